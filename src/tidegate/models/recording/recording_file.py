"""The file of a recording: JSON lines, the first of which says what it is.

Guarantee: what is written can be read back, piece by piece and byte by byte; a file that was cut off, as by a kill, is
readable up to its last whole line; a file that is none of ours, or of a newer format, is refused in one sentence. Each
exchange has two lines, one when it is asked and one when it has ended, so that a request that was never answered is
there as well. Nothing is held here.
"""

import base64
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import msgspec

from tidegate import __version__
from tidegate.errors import Misconfigured
from tidegate.models.http.connection import Trouble

VERSION = 1
MiB = 1024 * 1024
BODY_BYTES = 8 * MiB
"""Of one request or one answer: more than a context window of text. What is longer holds pictures, or is a mistake."""
FILE_BYTES = 256 * MiB
"""Of the whole: more than anybody sends, and no surprise to a disk."""
LINE_BYTES = 8 * BODY_BYTES
"""A byte of a body takes at most six in JSON; then there are the headers."""
HOLDS = (
    "The requests that a Tidegate gateway sent to its models and what they answered, conversations included; keys and "
    "other known secrets are replaced by [hidden]."
)

End = Literal[Trouble, "complete", "left"]
"""Of an exchange: all of the answer came; whoever asked left before that; or what the trouble was."""


class RecordingHead(msgspec.Struct, frozen=True):
    """The first line."""

    tidegate: Literal["recording"]
    version: int
    by: str
    time: str
    holds: str = ""


class RecordedRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event", tag="asked"):
    """A request. One that is too long is `left_out`: then there is how many bytes it had, and its digest."""

    id: int
    time: str
    origin: str
    method: str
    path: str
    headers: dict[str, str] = {}
    body: Any = None
    left_out: int = 0
    digest: str = ""


class RecordedPiece(msgspec.Struct, frozen=True, array_like=True):
    """What one read gave, so many milliseconds after the request; in base64 where it is no text, as when a character
    was cut in two."""

    after: int
    data: str
    coding: Literal["text", "base64"] = "text"

    @classmethod
    def of(cls, after: int, data: bytes) -> "RecordedPiece":
        try:
            return cls(after, data.decode())
        except UnicodeDecodeError:
            return cls(after, base64.b64encode(data).decode(), "base64")

    @property
    def bytes(self) -> bytes:
        return self.data.encode() if self.coding == "text" else base64.b64decode(self.data, validate=True)


class RecordedAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event", tag="answered"):
    """What came of a request. No status means that no answer began; `left_out` counts the bytes behind the pieces."""

    id: int
    after: int
    end: End
    said: str = ""
    status: int = 0
    headers: dict[str, str] = {}
    pieces: Sequence[RecordedPiece] = ()
    left_out: int = 0


class RecordingStopped(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event", tag="stopped"):
    """Nothing was recorded any more, although the gateway went on."""

    why: str


Event = RecordedRequest | RecordedAnswer | RecordingStopped
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class PlacedEvent(NamedTuple):
    """An event with where its line is in the file."""

    start: int
    size: int
    event: Event


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def opening() -> bytes:
    return line(RecordingHead("recording", VERSION, f"tidegate {__version__}", now(), HOLDS))


def line(event: Event | RecordingHead) -> bytes:
    return msgspec.json.encode(event) + b"\n"


def digest(body: Any) -> str:
    """By which two requests are known for the same, however their JSON is written."""
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()


def events(path: Path) -> Iterator[PlacedEvent]:
    """What is in the file, in order. A last line without its end was being written when the gateway was killed, and
    is passed over. Blocks."""
    with _opened(path) as file:
        first = file.readline(LINE_BYTES)
        _check_opening(path, first)
        start, number = len(first), 1
        while (text := file.readline(LINE_BYTES)).endswith(b"\n"):
            number += 1
            yield PlacedEvent(start, len(text), _decoded(path, text, f"line {number}"))
            start += len(text)
        if len(text) == LINE_BYTES:
            raise Misconfigured(f"Line {number + 1} of {path} is longer than any of a recording; get the file anew.")


def event_at(path: Path, start: int, size: int) -> Event:
    """One that `events` has placed. Blocks."""
    with _opened(path) as file:
        file.seek(start)
        return _decoded(path, file.read(size), f"what stands at byte {start}")


def _opened(path: Path) -> IO[bytes]:
    descriptor = -1
    try:
        # Non-blocking, so that a pipe in the place of a file cannot hold up the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Misconfigured(f"{path} is not a file; name one that `tidegate up --record` has made.")
        if found.st_size > FILE_BYTES:
            raise Misconfigured(f"{path} is larger than any recording; name one that `tidegate up --record` has made.")
        return os.fdopen(descriptor, "rb")
    except OSError as error:
        raise Misconfigured(f"The recording {path} cannot be read ({error.strerror}); name another.") from None
    except Misconfigured:
        os.close(descriptor)
        raise


def _check_opening(path: Path, first: bytes) -> None:
    if not first:
        raise Misconfigured(f"{path} is empty; name a file that `tidegate up --record` has made.")
    try:
        # Of a newer format nothing is known but its number.
        found = msgspec.json.decode(first, type=dict[str, Any])
        version = found["version"] if found["tidegate"] == "recording" else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        version = None
    if not isinstance(version, int):
        raise Misconfigured(f"{path} is no recording; name a file that `tidegate up --record` has made.")
    if version > VERSION:
        raise Misconfigured(
            f"{path} was recorded by a newer Tidegate (format {version}, here {VERSION}); replay it with that one."
        )


def _decoded(path: Path, text: bytes, place: str) -> Event:
    try:
        return _events.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misconfigured(f"{path} is damaged: {place} cannot be read ({error}); get the file anew.") from None
