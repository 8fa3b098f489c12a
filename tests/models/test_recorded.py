"""The file format of recordings."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.recording_files import lines_of, written
from tidegate.errors import Misconfigured
from tidegate.models.recording.recording_file import (
    Event,
    RecordedAnswer,
    RecordedPiece,
    RecordedRequest,
    RecordingHead,
    RecordingStopped,
    digest,
    line,
)
from tidegate.models.recording.replayer import TransportReplayer
from tidegate.security import Redactor

HEADERS = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
EVENTS = st.one_of(
    st.builds(
        RecordedRequest,
        id=st.integers(0, 9),
        time=st.text(max_size=5),
        origin=st.text(max_size=5),
        method=st.text(max_size=5),
        path=st.text(max_size=5),
        headers=HEADERS,
        body=JSON,
        left_out=st.integers(0, 9),
        digest=st.text(max_size=5),
    ),
    st.builds(
        RecordedAnswer,
        id=st.integers(0, 9),
        after=st.integers(0, 9),
        end=st.sampled_from(["complete", "left", "broken", "silent", "foreign"]),
        said=st.text(max_size=5),
        status=st.integers(0, 599),
        headers=HEADERS,
        pieces=st.lists(st.builds(RecordedPiece.of, st.integers(0, 9), st.binary(max_size=9)), max_size=4),
        left_out=st.integers(0, 9),
    ),
    st.builds(RecordingStopped, why=st.text(max_size=5)),
)


@given(st.lists(EVENTS, max_size=5), st.integers(0, 10_000))
def test_a_recording_is_readable_up_to_its_last_complete_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Event], cut: int
) -> None:
    """Wherever a kill truncated the file."""
    file = written(tmp_path_factory.mktemp("file") / "f", *lines)
    assert lines_of(file) == lines
    whole = file.read_bytes()
    first = whole.index(b"\n") + 1
    end = first + cut % (len(whole) - first + 1)
    file.write_bytes(whole[:end])
    assert lines_of(file) == lines[: whole[first:end].count(b"\n")]


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_pieces_keep_every_byte(pieces: list[bytes]) -> None:
    """Also of characters that the network split."""
    assert [RecordedPiece.of(0, data).bytes for data in pieces] == pieces


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"hello\n", "is not a recording"),
        (b'{"tidegate":"other","version":1}\n', "is not a recording"),
        (b"[]\n", "is not a recording"),
        (b'{"tidegate":"recording","version":"x"}\n', "is not a recording"),
        (b'{"tidegate":"recording","version":2,"new":[]}\n', "newer Tidegate .format 2, here 1."),
        (line(RecordingHead("recording", 1, "", "")), "contains no requests to replay"),
        (
            line(RecordingHead("recording", 1, "", "")) + b'{"event":"asked"}\n' + line(RecordingStopped("x")),
            "line 2 cannot be read",
        ),
        (
            line(RecordingHead("recording", 1, "", "")) + b'{"event":"asked"}\n' + line(RecordingStopped("x")),
            "is damaged",
        ),
    ],
)
def test_a_file_that_is_not_a_recording_is_refused_in_one_sentence(tmp_path: Path, content: bytes, why: str) -> None:
    """The sentence names the file."""
    file = tmp_path / "f"
    file.write_bytes(content)
    with pytest.raises(Misconfigured, match=why) as refused:
        TransportReplayer(file, Redactor()).open()
    assert str(file) in refused.value.message and "\n" not in refused.value.message


def test_a_path_that_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    """A folder, a pipe without a writer, a missing file."""
    os.mkfifo(tmp_path / "pipe")
    for name, why in ((".", "not a file"), ("pipe", "not a file"), ("none", "cannot be read .No such file")):
        with pytest.raises(Misconfigured, match=why):
            TransportReplayer(tmp_path / name, Redactor()).open()


def test_the_digest_does_not_depend_on_json_formatting() -> None:
    """Order of names, spaces, escapes."""
    assert digest(json.loads('{"a": "\\u00e9", "b": 1}')) == digest(json.loads('{"b":1,"a":"é"}'))
    assert digest({"a": 1}) != digest({"a": "1"})
