"""Logging setup: one handler for everything the process logs, with redaction as its last step.

Every line, including lines from libraries, passes through the redactor twice: as values while the structure is still
known, and as the finished line. In JSON format, a record is one line. In text format, control characters are escaped,
so that nothing logged can look like a separate line. Logging never raises and never waits for the log's reader: lines
that cannot be written are counted, and the count is reported with the next line that is written. Request bodies and
messages are not logged. At most `REPEATS` lines of one kind are written in `REPEAT_SECONDS`. Further lines are counted,
and their number is written when that time is over.

Logging is global to the process: `configure_logging` sets it up and returns a function that undoes it.
"""

import logging
import math
import re
import select
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from tidegate.config import LogSettings
from tidegate.log import VALUES
from tidegate.safe_text import CONTROL
from tidegate.security.redactor import Redactor

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_NAMES = {number: name for name, number in _LEVELS.items()}
_OWN = "tidegate"  # the parent of our own loggers
_WORD = re.compile(r"[^\s\"'=]+")

PIECE_CHARACTERS = 1024
"""Number of characters per write. A pipe that polls as writable accepts 4096 bytes, and a character has at most
four."""

REPEATS, REPEAT_SECONDS = 30, 60.0
"""At most this many lines of one kind are written in this many seconds, so that a fault in a tight loop cannot fill the
disk."""
KIND_CHARACTERS = 200
KINDS = 1000
"""The number of kinds of lines that are counted separately: about as many as there are in the code."""

Event = dict[str, Any]
Kind = tuple[str, int, str, type | None]


def configure_logging(
    settings: LogSettings, redactor: Redactor, stream: TextIO, *, clock: Callable[[], float] = time.monotonic
) -> Callable[[], None]:
    """Sends everything that is logged to `stream`, redacted. Returns a function that undoes it."""
    level = _LEVELS[settings.level]
    render = _render_json if settings.format == "json" else _render_text
    root, own = logging.getLogger(), logging.getLogger(_OWN)
    handler = _Handler(_Sink(stream, redactor, render), clock)
    before = (root.level, own.level, list(root.handlers))
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.INFO))
    own.setLevel(level)

    def undo() -> None:
        if handler in root.handlers:
            handler.report_repeats()
            root.handlers.remove(handler)
            root.handlers.extend(known for known in before[2] if known not in root.handlers)
            root.setLevel(before[0])
            own.setLevel(before[1])

    return undo


class _Sink:
    """Writes events as lines."""

    def __init__(self, stream: TextIO, redactor: Redactor, render: Callable[[Event], str]) -> None:
        self._stream = stream
        self._redactor = redactor
        self._render = render
        self._torn = False
        self.lost = 0

    def write(self, event: Event) -> None:
        # The last step checks the finished line, to find secrets that were put together along the way.
        line = self._redactor.text(self._render(self._redactor.value(event)))
        if self.lost:
            loss: Event = {"level": "warning", "event": "log lines were lost", "lines": self.lost}
            line = f"{self._render(loss)}\n{line}"
        text = "\n" * self._torn + line.encode("utf-8", "backslashreplace").decode() + "\n"
        try:
            for start in range(0, len(text), PIECE_CHARACTERS):
                if not _has_room(self._stream):
                    self._torn = self._torn or start > 0
                    self.lost += 1
                    return
                self._stream.write(text[start : start + PIECE_CHARACTERS])
                self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1
        else:
            self._torn = False
            self.lost = 0


def _has_room(stream: TextIO) -> bool:
    """True if a piece can be written without waiting. A pipe whose reader has stopped reading would block the event
    loop. A stream without a descriptor is always writable; a closed one raises when it is written to."""
    try:
        descriptor = stream.fileno()
    except OSError:
        return True
    room = select.poll()
    room.register(descriptor, select.POLLOUT)
    return bool(room.poll(0))


class _Handler(logging.Handler):
    """Turns records into events. Our own records have named values; records from libraries have their logger's name."""

    def __init__(self, sink: _Sink, clock: Callable[[], float]) -> None:
        super().__init__()
        self._sink = sink
        self._clock = clock
        self._repeated: dict[Kind, _Repeated] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self._report_repeats(before=self._clock() - REPEAT_SECONDS)
        if self._admits(record):
            self._write(_event, record)

    def report_repeats(self) -> None:
        """Writes how many lines of each kind were suppressed."""
        with self.lock or nullcontext():
            self._report_repeats(before=math.inf)

    def _admits(self, record: logging.LogRecord) -> bool:
        kind = _kind(record)
        known = self._repeated.get(kind)
        if known is None:
            if len(self._repeated) >= KINDS:
                self._report(next(iter(self._repeated)))
            known = self._repeated[kind] = _Repeated(self._clock())
        known.lines += 1
        if known.lines > REPEATS:
            known.last = record
        return known.lines <= REPEATS

    def _report_repeats(self, before: float) -> None:
        # They are ordered by start, so the search can stop at the first younger one.
        while self._repeated:
            kind, oldest = next(iter(self._repeated.items()))
            if oldest.since > before:
                return
            self._report(kind)

    def _report(self, kind: Kind) -> None:
        repeated = self._repeated.pop(kind)
        if repeated.last is not None:
            count = {"repeated": repeated.lines - REPEATS, "seconds": round(self._clock() - repeated.since)}
            self._write(lambda record: {**_plain(record, _message(record).partition("\n")[0]), **count}, repeated.last)

    def _write(self, make: Callable[[logging.LogRecord], Event], record: logging.LogRecord) -> None:
        try:
            self._sink.write(make(record))
        except Exception as error:  # a value that cannot be formatted must not cause the line to be lost
            self._sink.write(_plain(record, f"a log line could not be formatted ({type(error).__name__})"))

    def handleError(self, record: logging.LogRecord) -> None:
        # The inherited method would print the record with its arguments, unredacted.
        self._sink.lost += 1


class _Repeated:
    """The counter for one kind of line: when counting began, how many lines there were, and the last line that was not
    written."""

    __slots__ = ("last", "lines", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.lines = 0
        self.last: logging.LogRecord | None = None


def _kind(record: logging.LogRecord) -> Kind:
    """Returns a line's kind. Lines are of the same kind if they have the same logger, level, message and exception
    type, whatever their values."""
    said = record.args[0] if hasattr(record, VALUES) and isinstance(record.args, tuple) and record.args else record.msg
    words = said.partition("\n")[0][:KIND_CHARACTERS] if isinstance(said, str) else type(said).__name__
    return record.name, record.levelno, words, record.exc_info[0] if record.exc_info else None


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # a wrong format string must not cause an error or the loss of the line
        return f"{record.msg!r} could not be formatted: {type(error).__name__}"


def _event(record: logging.LogRecord) -> Event:
    event = _plain(record, _message(record))
    values = getattr(record, VALUES, None)
    if isinstance(values, dict):
        del event["logger"]
        event.update((f"{name}_" if name in event else name, value) for name, value in values.items())
    raised = record.exc_info[1] if record.exc_info else None
    if raised is not None:
        event["exception"] = "".join(traceback.format_exception(raised)).rstrip("\n")
    return event


def _plain(record: logging.LogRecord, message: str) -> Event:
    return {
        "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
        "level": _NAMES[_nearest_level(record.levelno)],
        "event": message,
        "logger": record.name,
    }


def _nearest_level(number: int) -> int:
    return max((known for known in _LEVELS.values() if known <= number), default=logging.DEBUG)


def _render_json(event: Event) -> str:
    first = {name: event.pop(name, "") for name in ("timestamp", "level", "event")}
    plain = msgspec.json.encode(_encodable({**first, **event}), enc_hook=repr)
    # In JSON, control characters occur only inside strings, where they may be escaped.
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", plain.decode())


def _encodable(value: Any) -> Any:
    """Makes a value encodable: text with lone surrogates cannot be encoded, and integers with more than 64 bits are not
    portable in JSON."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(name): _encodable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 63:
        return f"0x{value:x}"
    return value


def _render_text(event: Event) -> str:
    stamp, level = event.pop("timestamp", ""), event.pop("level", "")
    message, trace = _line(event.pop("event", "")), event.pop("exception", None)
    parts = [f"{stamp} {level:<7} {message}", *(f"{_line(name)}={_text(item)}" for name, item in event.items())]
    line = " ".join(parts)
    # The lines of a traceback are indented, so that none can look like a log line.
    return line if trace is None else line + "".join(f"\n    {_line(row)}" for row in str(trace).split("\n"))


def _text(value: Any) -> str:
    shown = _line(value)
    return shown if _WORD.fullmatch(shown) or not isinstance(value, str) else f'"{shown}"'


def _line(value: Any) -> str:
    if not isinstance(value, str):
        value = f"0x{value:x}" if type(value) is int and value.bit_length() > 63 else str(value)
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], value)
