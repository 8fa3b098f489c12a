"""Removal of secrets from recordings."""

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.recording_files import REDACTOR
from tests.models.support import CANARY
from tidegate.http_client import Target
from tidegate.models.recording.redaction import redacted_head, redacted_pieces
from tidegate.security import HIDDEN, Redactor, Secret


def streamed(texts: Sequence[str]) -> bytes:
    """An answer of events, one per text."""
    parts = [{"id": "x", "choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    return b"".join(b"data: %b\n\n" % json.dumps(part).encode() for part in parts) + b"data: [DONE]\n\n"


def cut_at(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def redacted_text(data: bytes) -> str:
    found = [json.loads(part[6:]) for part in data.decode().split("\n\n") if part.startswith('data: {"')]
    return "".join(part["choices"][0]["delta"]["content"] for part in found)


@given(
    st.lists(st.text(max_size=8), max_size=4),
    st.lists(st.text(max_size=8), max_size=4),
    st.lists(st.integers(1, len(CANARY) - 1), max_size=6),
    st.lists(st.integers(0, 5000), max_size=8),
)
def test_a_secret_is_found_however_events_and_network_split_it(
    before: list[str], after: list[str], inside: list[int], places: list[int]
) -> None:
    """X15: the text around it and the number of pieces stay."""
    secret = [part.decode() for part in cut_at(CANARY.encode(), inside)]
    pieces = cut_at(streamed([*before, *secret, *after]), places)
    left = redacted_pieces(pieces, REDACTOR, cut=False)
    assert len(left) == len(pieces)
    assert redacted_text(b"".join(left)) == REDACTOR.text("".join((*before, CANARY, *after)))
    assert CANARY not in redacted_text(b"".join(left))


@given(st.lists(st.text(max_size=8), max_size=6), st.lists(st.integers(0, 5000), max_size=8))
def test_an_answer_without_secrets_stays_the_same_bytes(texts: list[str], places: list[int]) -> None:
    """X15: nothing is rewritten unnecessarily."""
    pieces = cut_at(streamed(texts), places)
    redactor = Redactor([Secret("nobody says this here")])
    assert redacted_pieces(pieces, redactor, cut=True) == pieces


@pytest.mark.parametrize("most", range(4, len(CANARY)))
def test_the_start_of_a_secret_at_the_end_of_a_broken_stream_is_hidden(most: int) -> None:
    """X15: across events, within an event, and in a body that is not a stream."""
    begun = CANARY[:most]
    for whole in (streamed(["a ", *begun]), streamed(["a " + begun]).partition(begun.encode())[0] + begun.encode()):
        cut = whole.removesuffix(b"data: [DONE]\n\n")
        left = b"".join(redacted_pieces([cut], REDACTOR, cut=True))
        assert begun.encode() not in left
        assert begun not in (redacted_text(left) if left.endswith(b"\n\n") else "")
        assert HIDDEN.encode() in left
    assert redacted_pieces([b"plain " + begun.encode()], REDACTOR, cut=True) == [b"plain [hidden]"]


def test_parallel_parts_of_a_stream_are_redacted_separately() -> None:
    """X15: two tool calls whose arguments alternate."""
    parts = [(0, CANARY[:6]), (1, "other"), (0, CANARY[6:]), (1, CANARY)]
    shape = [{"choices": [{"delta": {"tool_calls": [{"index": n, "function": {"arguments": t}}]}}]} for n, t in parts]
    whole = b"".join(b"data: %b\n\n" % json.dumps(part).encode() for part in shape)
    left = b"".join(redacted_pieces([whole], REDACTOR, cut=False)).decode()
    assert CANARY[6:] not in left and CANARY[:6] not in left
    assert left.count(HIDDEN) == 2 and "other" in left


@pytest.mark.parametrize("before", ['{"error":{"message":"', "<html>", '{"cut": "', "[" * 5000, "\udcff\udcfe "])
def test_an_answer_that_is_not_a_stream_is_redacted_too(before: str) -> None:
    """X15: JSON, a web page, damaged data, absurd data, binary data."""
    whole = before.encode("utf-8", "surrogateescape") + CANARY.encode() + b'"}}' * ("error" in before)
    assert b"".join(redacted_pieces([whole], REDACTOR, cut=False)) == whole.replace(CANARY.encode(), b"[hidden]")


def test_a_credential_in_the_path_is_hidden() -> None:
    """X15: some APIs have it there."""
    target = Target("POST", f"http://h/v1/{CANARY}/chat", {})
    assert redacted_head(target, (), REDACTOR).path == f"/v1/{HIDDEN}/chat"


def test_a_json_body_is_redacted_as_json_after_leading_white_space() -> None:
    """X15: so that a secret is found in any escaping."""
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in CANARY)
    whole = f' \n{{\n"a": "it is\\n {escaped}"\n}}\n'.encode()
    left = b"".join(redacted_pieces([whole], REDACTOR, cut=False))
    assert json.loads(left) == {"a": f"it is\n {HIDDEN}"}
