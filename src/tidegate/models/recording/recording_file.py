"""The file format of a recording: JSON lines with a header line.

A recording can be read back exactly, with the same pieces and the same bytes. A truncated file, for example after a
kill, is readable up to its last complete line. A file that is not a recording, or has a newer format, is refused with a
one-sentence error. Each exchange has two lines, one when it starts and one when it ends, so requests without an answer
are recorded too.
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
from tidegate.http_client import Trouble

VERSION = 1
MiB = 1024 * 1024
BODY_BYTES = 8 * MiB
"""Maximum size of a recorded request or answer in bytes: larger than a context window full of text. Larger bodies
contain images or are mistakes."""
FILE_BYTES = 256 * MiB
"""Maximum size of the file in bytes. Typical traffic needs less, and a file of this size is no burden for a disk."""
LINE_BYTES = 8 * BODY_BYTES
"""Maximum length of a line in bytes. A byte of a body takes up to six bytes in JSON; the rest is for headers."""
HOLDS = (
    "The requests that a Tidegate gateway sent to its models and what they answered, conversations included; keys and "
    "other known secrets are replaced by [hidden]."
)

End = Literal[Trouble, "complete", "left"]
"""How an exchange ended. `complete`: the answer is complete. `left`: the caller stopped reading before the answer was
complete. Anything else is the kind of failure."""


class RecordingHead(msgspec.Struct, frozen=True):
    """The header line of a recording."""

    tidegate: Literal["recording"]
    version: int
    by: str
    time: str
    holds: str = ""


class RecordedRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event", tag="asked"):
    """A request. If the body is too long, it is omitted, and `left_out` and `digest` are its size and digest."""

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
    """The bytes of one read, which arrived `after` milliseconds after the request. The bytes are base64-encoded if they
    are not valid text, for example because a character was split."""

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
    """The answer to a request, written when it ends. Status 0 means that no answer arrived. `left_out` is the number of
    bytes after these pieces that were not recorded."""

    id: int
    after: int
    end: End
    said: str = ""
    status: int = 0
    headers: dict[str, str] = {}
    pieces: Sequence[RecordedPiece] = ()
    left_out: int = 0


class RecordingStopped(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event", tag="stopped"):
    """Marks the point where recording stopped, although the gateway continued."""

    why: str


Event = RecordedRequest | RecordedAnswer | RecordingStopped
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class PlacedEvent(NamedTuple):
    """An event and its line's position in the file."""

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
    """Returns a digest that is equal for requests with equal JSON, however formatted."""
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()


def events(path: Path) -> Iterator[PlacedEvent]:
    """Yields the file's events in order. A last line without a line feed is ignored because the gateway was killed
    while writing it. Blocks the calling thread."""
    with _opened(path) as file:
        first = file.readline(LINE_BYTES)
        _check_opening(path, first)
        start, number = len(first), 1
        while (text := file.readline(LINE_BYTES)).endswith(b"\n"):
            number += 1
            yield PlacedEvent(start, len(text), _decoded(path, text, f"line {number}"))
            start += len(text)
        if len(text) == LINE_BYTES:
            raise Misconfigured(
                f"Line {number + 1} of {path} is longer than any line of a recording; get a new copy of the file."
            )


def event_at(path: Path, start: int, size: int) -> Event:
    """Returns the event at a position returned by `events`. Blocks the calling thread."""
    with _opened(path) as file:
        file.seek(start)
        return _decoded(path, file.read(size), f"the line at byte {start}")


def _opened(path: Path) -> IO[bytes]:
    descriptor = -1
    try:
        # Non-blocking, so that a pipe instead of a file cannot block the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Misconfigured(f"{path} is not a file; name a file written by `tidegate up --record`.")
        if found.st_size > FILE_BYTES:
            raise Misconfigured(f"{path} is larger than any recording; name a file written by `tidegate up --record`.")
        return os.fdopen(descriptor, "rb")
    except OSError as error:
        raise Misconfigured(f"The recording {path} cannot be read ({error.strerror}); name another.") from None
    except Misconfigured:
        os.close(descriptor)
        raise


def _check_opening(path: Path, first: bytes) -> None:
    if not first:
        raise Misconfigured(f"{path} is empty; name a file written by `tidegate up --record`.")
    try:
        # For a newer format, only its version can be read.
        found = msgspec.json.decode(first, type=dict[str, Any])
        version = found["version"] if found["tidegate"] == "recording" else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        version = None
    if not isinstance(version, int):
        raise Misconfigured(f"{path} is not a recording; name a file written by `tidegate up --record`.")
    if version > VERSION:
        raise Misconfigured(
            f"{path} was recorded by a newer Tidegate (format {version}, here {VERSION}); replay it with that version."
        )


def _decoded(path: Path, text: bytes, place: str) -> Event:
    try:
        return _events.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misconfigured(
            f"{path} is damaged: {place} cannot be read ({error}); get a new copy of the file."
        ) from None
