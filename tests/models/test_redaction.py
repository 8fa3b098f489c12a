"""No secret is left in what is recorded."""

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.recording_files import REDACTOR
from tests.models.support import CANARY
from tidegate.models.recording.redaction import redacted_head, redacted_pieces
from tidegate.security import HIDDEN, Redactor, Secret


def streamed(texts: Sequence[str]) -> bytes:
    """An answer of events, one for each text."""
    parts = [{"id": "x", "choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    return b"".join(b"data: %b\n\n" % json.dumps(part).encode() for part in parts) + b"data: [DONE]\n\n"


def cut_at(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def told(data: bytes) -> str:
    found = [json.loads(part[6:]) for part in data.decode().split("\n\n") if part.startswith('data: {"')]
    return "".join(part["choices"][0]["delta"]["content"] for part in found)


@given(
    st.lists(st.text(max_size=8), max_size=4),
    st.lists(st.text(max_size=8), max_size=4),
    st.lists(st.integers(1, len(CANARY) - 1), max_size=6),
    st.lists(st.integers(0, 5000), max_size=8),
)
def test_a_secret_is_found_however_events_and_network_cut_it(
    before: list[str], after: list[str], inside: list[int], places: list[int]
) -> None:
    """X15: and what stands around it is still there, in as many pieces."""
    secret = [part.decode() for part in cut_at(CANARY.encode(), inside)]
    pieces = cut_at(streamed([*before, *secret, *after]), places)
    left = redacted_pieces(pieces, REDACTOR, cut=False)
    assert len(left) == len(pieces)
    assert told(b"".join(left)) == REDACTOR.text("".join((*before, CANARY, *after)))
    assert CANARY not in told(b"".join(left))


@given(st.lists(st.text(max_size=8), max_size=6), st.lists(st.integers(0, 5000), max_size=8))
def test_an_answer_without_secrets_stays_as_it_was_byte_for_byte(texts: list[str], places: list[int]) -> None:
    """X15: nothing is written anew that need not be."""
    pieces = cut_at(streamed(texts), places)
    redactor = Redactor([Secret("nobody says this here")])
    assert redacted_pieces(pieces, redactor, cut=True) == pieces


@pytest.mark.parametrize("most", range(4, len(CANARY)))
def test_a_stream_that_breaks_off_in_the_middle_of_a_secret_does_not_show_its_beginning(most: int) -> None:
    """X15: as events, within an event, and in what is no stream at all."""
    begun = CANARY[:most]
    for whole in (streamed(["a ", *begun]), streamed(["a " + begun]).partition(begun.encode())[0] + begun.encode()):
        cut = whole.removesuffix(b"data: [DONE]\n\n")
        left = b"".join(redacted_pieces([cut], REDACTOR, cut=True))
        assert begun.encode() not in left
        assert begun not in (told(left) if left.endswith(b"\n\n") else "")
        assert HIDDEN.encode() in left
    assert redacted_pieces([b"plain " + begun.encode()], REDACTOR, cut=True) == [b"plain [hidden]"]


def test_what_grows_side_by_side_in_one_stream_is_read_apart() -> None:
    """X15: two tool calls whose arguments come by turns."""
    parts = [(0, CANARY[:6]), (1, "other"), (0, CANARY[6:]), (1, CANARY)]
    shape = [{"choices": [{"delta": {"tool_calls": [{"index": n, "function": {"arguments": t}}]}}]} for n, t in parts]
    whole = b"".join(b"data: %b\n\n" % json.dumps(part).encode() for part in shape)
    left = b"".join(redacted_pieces([whole], REDACTOR, cut=False)).decode()
    assert CANARY[6:] not in left and CANARY[:6] not in left
    assert left.count(HIDDEN) == 2 and "other" in left


@pytest.mark.parametrize("before", ['{"error":{"message":"', "<html>", '{"cut": "', "[" * 5000, "\udcff\udcfe "])
def test_an_answer_that_is_no_stream_is_stripped_as_well(before: str) -> None:
    """X15: JSON, a page, something broken, something absurd, something that is no text."""
    whole = before.encode("utf-8", "surrogateescape") + CANARY.encode() + b'"}}' * ("error" in before)
    assert b"".join(redacted_pieces([whole], REDACTOR, cut=False)) == whole.replace(CANARY.encode(), b"[hidden]")


def test_a_credential_in_the_path_is_hidden() -> None:
    """X15: some put it there."""
    head = f"POST /v1/{CANARY}/chat HTTP/1.1\r\nHost: h\r\n\r\n".encode()
    assert redacted_head(head, (), REDACTOR).path == f"/v1/{HIDDEN}/chat"


def test_an_answer_in_one_piece_is_read_as_one_whatever_stands_before_it() -> None:
    """X15: so that a secret is found however it is escaped."""
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in CANARY)
    whole = f' \n{{\n"a": "it is\\n {escaped}"\n}}\n'.encode()
    left = b"".join(redacted_pieces([whole], REDACTOR, cut=False))
    assert json.loads(left) == {"a": f"it is\n {HIDDEN}"}
