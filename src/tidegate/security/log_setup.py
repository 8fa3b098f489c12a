"""The log: one way out for what anything in the process logs, with redaction as its last step.

Guarantee: every line, a library's too, passes the redactor twice: as values, where the structure is still known, and as
the finished line. A line is one line in JSON; as text, control characters are escaped, so that nothing logged can pose
as another line. Logging never raises, and never waits for whoever reads the log: a line that cannot be written is
counted, and the count is reported with the next one that can. Requests' and messages' bodies are not logged. Of one
kind of line at most `REPEATS` are written in `REPEAT_SECONDS`; further ones are counted, and the count is written when
the time is over.

Logging is the one thing that a process has only once; `configure_logging` sets it, and what it returns unsets it.
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
_OWN = "tidegate"  # our own loggers are below it
_WORD = re.compile(r"[^\s\"'=]+")

PIECE_CHARACTERS = 1024
"""Written at once: a pipe that says it has room takes 4096 bytes, and a character is at most four."""

REPEATS, REPEAT_SECONDS = 30, 60.0
"""Lines of one kind that are written in that time: a fault in a tight loop must not fill the disk with its log."""
KIND_CHARACTERS = 200
KINDS = 1000
"""Kinds of lines that are told apart at once: as many as the code has."""

Event = dict[str, Any]
Kind = tuple[str, int, str, type | None]


def configure_logging(
    settings: LogSettings, redactor: Redactor, stream: TextIO, *, clock: Callable[[], float] = time.monotonic
) -> Callable[[], None]:
    """Sends everything that is logged to `stream`, redacted. Returns what undoes it."""
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
            handler.tell_repeats()
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
        # The last step, over the finished line: whatever put a secret together on the way is seen here.
        line = self._redactor.text(self._render(self._redactor.value(event)))
        if self.lost:
            loss: Event = {"level": "warning", "event": "lines of the log could not be written", "lines": self.lost}
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
    """Whether a piece can be written without waiting. A pipe whose reader has stopped reading would hold up the loop,
    and with it everything. What has no descriptor always has room; what is closed says so when it is written to."""
    try:
        descriptor = stream.fileno()
    except OSError:
        return True
    room = select.poll()
    room.register(descriptor, select.POLLOUT)
    return bool(room.poll(0))


class _Handler(logging.Handler):
    """Makes an event of what is logged: with named values where it is ours, with the logger's name where it is not."""

    def __init__(self, sink: _Sink, clock: Callable[[], float]) -> None:
        super().__init__()
        self._sink = sink
        self._clock = clock
        self._repeated: dict[Kind, _Repeated] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self._tell_repeats(before=self._clock() - REPEAT_SECONDS)
        if self._admits(record):
            self._write(_event, record)

    def tell_repeats(self) -> None:
        """Write how often each line was repeated and not written."""
        with self.lock or nullcontext():
            self._tell_repeats(before=math.inf)

    def _admits(self, record: logging.LogRecord) -> bool:
        kind = _kind(record)
        known = self._repeated.get(kind)
        if known is None:
            if len(self._repeated) >= KINDS:
                self._tell(next(iter(self._repeated)))
            known = self._repeated[kind] = _Repeated(self._clock())
        known.lines += 1
        if known.lines > REPEATS:
            known.last = record
        return known.lines <= REPEATS

    def _tell_repeats(self, before: float) -> None:
        # In the order of their beginning, so that the first that is younger ends the search.
        while self._repeated:
            kind, oldest = next(iter(self._repeated.items()))
            if oldest.since > before:
                return
            self._tell(kind)

    def _tell(self, kind: Kind) -> None:
        told = self._repeated.pop(kind)
        if told.last is not None:
            count = {"repeated": told.lines - REPEATS, "seconds": round(self._clock() - told.since)}
            self._write(lambda record: {**_plain(record, _message(record).partition("\n")[0]), **count}, told.last)

    def _write(self, make: Callable[[logging.LogRecord], Event], record: logging.LogRecord) -> None:
        try:
            self._sink.write(make(record))
        except Exception as error:  # something in it cannot be shown: then it is said that there was something
            self._sink.write(_plain(record, f"a line could not be shown ({type(error).__name__})"))

    def handleError(self, record: logging.LogRecord) -> None:
        # The inherited one prints the record with its arguments, unredacted.
        self._sink.lost += 1


class _Repeated:
    """A kind of line: since when it is counted, how often it came, and the last that was not written."""

    __slots__ = ("last", "lines", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.lines = 0
        self.last: logging.LogRecord | None = None


def _kind(record: logging.LogRecord) -> Kind:
    """What makes two lines the same, whatever their values: who logs it, its first words, and what was raised."""
    said = record.args[0] if hasattr(record, VALUES) and isinstance(record.args, tuple) and record.args else record.msg
    words = said.partition("\n")[0][:KIND_CHARACTERS] if isinstance(said, str) else type(said).__name__
    return record.name, record.levelno, words, record.exc_info[0] if record.exc_info else None


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # a library's wrong format string is no reason to fail, nor to lose the line
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
    # Outside strings JSON has none of these; inside them it may be escaped as well.
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", plain.decode())


def _encodable(value: Any) -> Any:
    """Text with lone surrogates cannot be encoded; integers beyond 64 bits are no JSON number everywhere."""
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
    # A traceback keeps its lines, each moved in, so that none can pose as a line of the log.
    return line if trace is None else line + "".join(f"\n    {_line(row)}" for row in str(trace).split("\n"))


def _text(value: Any) -> str:
    shown = _line(value)
    return shown if _WORD.fullmatch(shown) or not isinstance(value, str) else f'"{shown}"'


def _line(value: Any) -> str:
    if not isinstance(value, str):
        value = f"0x{value:x}" if type(value) is int and value.bit_length() > 63 else str(value)
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], value)
