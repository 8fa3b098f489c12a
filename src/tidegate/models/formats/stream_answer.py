"""The base class for answers that arrive as a stream of events, in any format.

There are limits on the bytes of text and arguments, the number of calls, the size of an event, and the bytes on the
wire per byte of the answer. If one is exceeded, BrokenAnswer says which. Text is passed on in order, once per read from
the network. Formats receive JSON in which every string is valid Unicode. An answer belongs to one attempt at one model
step.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from tidegate.models.formats.answer import BrokenAnswer
from tidegate.models.formats.json_repair import repair_json, repair_json_text
from tidegate.models.http.sse import EVENT_BYTES, EventParser, EventTooLarge
from tidegate.values import ToolCall

# More calls than any real answer contains.
CALLS = 128
# Maximum number of wire bytes per byte of the answer: about 60 for the smallest pieces in use, doubled.
WIRE_FACTOR = 128


class GrowingCall:
    """A tool call whose arguments are arriving. `index` is the call's number as assigned by the provider, or None."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []  # lint: allow `count_bytes` bounds an answer


class AnswerSize:
    """Counts the stored bytes of an answer, shown or not. The counter has no reference to the answer, so a reference to
    this object does not keep the answer and its turn in memory."""

    __slots__ = ("_limit", "bytes")

    def __init__(self, limit: int) -> None:
        self.bytes = 0
        self._limit = limit

    def __call__(self, text: str) -> None:
        self.bytes += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if self.bytes > self._limit:
            raise BrokenAnswer(f"the answer is longer than {self._limit} bytes", limit="answer_bytes")


class StreamedAnswer(ABC):
    """An answer that arrives as a stream. `shown` is true if text has been passed on, `done` if the end mark has
    arrived, and `refused` if the text is a refusal. A format implements `event` for one event of a stream and
    `one_piece` for a complete body."""

    __slots__ = (
        "_event_bytes",
        "_events",
        "_is_intact",
        "_limit",
        "_on_text",
        "_wire",
        "calls",
        "count_bytes",
        "done",
        "refused",
        "shown",
        "text",
    )

    def __init__(self, limit: int, on_text: Callable[[str], None], *, event_bytes: int = EVENT_BYTES) -> None:
        self._limit = limit
        self._on_text = on_text
        self._events = EventParser(event_bytes)
        self._event_bytes = event_bytes
        self.count_bytes = AnswerSize(limit)
        self._wire = 0
        self._is_intact = True
        """True if everything received so far is plain ASCII without escapes and needs no repair."""
        self.text: list[str] = []
        self.calls: list[GrowingCall] = []
        self.done = False
        self.shown = False
        self.refused = False

    @property
    def received_bytes(self) -> int:
        return self.count_bytes.bytes

    @abstractmethod
    def event(self, data: bytes) -> None:
        """Parses one event's data."""

    @abstractmethod
    def one_piece(self, body: bytes) -> None:
        """Parses a body that contains the complete answer. Raises BrokenAnswer if it contains none."""

    def feed(self, received: bytes) -> None:
        """Parses received bytes and passes on their text in one piece."""
        self._wire += len(received)
        if self._is_intact and (b"\\" in received or not received.isascii()):
            self._is_intact = False
        if self._wire > WIRE_FACTOR * self._limit + self._event_bytes:
            raise BrokenAnswer("the stream is far longer than its answer", limit="answer_bytes")
        try:
            events = self._events.feed(received)
        except EventTooLarge:
            raise BrokenAnswer(f"one event of the stream is larger than {self._event_bytes} bytes") from None
        if events:
            self._take(events)

    def end(self) -> None:
        """Called at the end of the stream. A last event that lacks its empty line is parsed; an event that was cut off
        is ignored."""
        if not self.done and (events := self._events.finish()):
            try:
                self._take(events)
            except BrokenAnswer as broken:
                if broken.limit:
                    raise

    def whole(self, body: bytes) -> None:
        """Parses an answer that arrived as one body, from an endpoint that does not stream."""
        fresh = len(self.text)
        try:
            self.one_piece(repair_json(body))
            self.done = True
        finally:
            self._hand_on(fresh)

    def _take(self, events: list[bytes]) -> None:
        fresh = len(self.text)
        try:
            for event in events:
                self.event(event if self._is_intact else repair_json(event))
                if self.done:
                    break
        finally:
            self._hand_on(fresh)

    def _hand_on(self, fresh: int) -> None:
        if len(self.text) > fresh:
            self.shown = True
            text = "".join(self.text[fresh:])
            self.text[fresh:] = (text,)  # one object instead of many small pieces; the same object is passed on
            self._on_text(text)

    # -- for the formats --

    def add_text(self, text: str) -> None:
        if text:
            self.count_bytes(text)
            self.text.append(text)

    def new_call(self, index: int | None) -> GrowingCall:
        if len(self.calls) >= CALLS:
            raise BrokenAnswer(f"the answer contains more than {CALLS} tool calls", limit="tool calls")
        call = GrowingCall(index)
        self.calls.append(call)
        return call

    def finished_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(
                id=call.id or f"call_{place}",
                name=call.name,
                arguments=repair_json_text("".join(call.arguments)) or "{}",
            )
            for place, call in enumerate(self.calls)
        )


def raw_value(raw: msgspec.Raw) -> bytes:
    """Returns a copy of a raw value, because the value itself is only a view of its event. The copy is empty if the
    value is missing or null."""
    copied = bytes(raw)
    return b"" if copied == b"null" else copied


def finish_reason_of(finish: str, *, calls: bool, refused: bool = False) -> str:
    """Returns a message's finish reason, corrected if the message contains calls, or a refusal that was marked as
    "stop"."""
    if refused and finish == "stop":
        return "content_filter"
    if calls and finish == "stop":
        return "tool_calls"
    return "stop" if finish == "tool_calls" and not calls else finish
