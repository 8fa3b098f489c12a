"""An answer that arrives as a stream of events: what all formats have in common.

Guarantee: what comes out is bounded (bytes of text and arguments, number of calls, size of an event, bytes on the wire
for each of them), or an AnswerBroken says why not. Text is handed on once per read from the network, in order. It
belongs to one attempt of one model step. A format is given JSON of which every string is valid Unicode.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from tidegate.models.formats.answer import BrokenAnswer
from tidegate.models.formats.json_repair import repaired, repaired_text
from tidegate.models.http.sse import EVENT_BYTES, EventParser, EventTooLarge
from tidegate.values import ToolCall

# More calls in one answer than any toolset could make sense of.
CALLS = 128
# Wire bytes for each byte of answer that a stream may cost: about 60 for the smallest pieces in use, doubled.
WIRE_FACTOR = 128


class GrowingCall:
    """A tool call while its arguments arrive. `index` is the provider's own number of it, if it gives one."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []  # lint: allow `weigh` bounds an answer


class AnswerSize:
    """Counts what is kept of an answer, whether or not anybody is shown it. It knows nothing of the answer, so that
    whoever is given it to weigh by does not keep the answer, and with it a whole turn, in memory."""

    __slots__ = ("_limit", "bytes")

    def __init__(self, limit: int) -> None:
        self.bytes = 0
        self._limit = limit

    def __call__(self, text: str) -> None:
        self.bytes += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if self.bytes > self._limit:
            raise BrokenAnswer(f"the answer is longer than {self._limit} bytes", limit="answer_bytes")


class StreamedAnswer(ABC):
    """`shown` says that text was handed on; `done` that the end mark was seen; `refused` that its words are a refusal.
    A format says what an event means (`event`) and what a body in one piece means (`one_piece`)."""

    __slots__ = (
        "_event_bytes",
        "_events",
        "_is_intact",
        "_limit",
        "_on_text",
        "_wire",
        "calls",
        "done",
        "refused",
        "shown",
        "text",
        "weigh",
    )

    def __init__(self, limit: int, on_text: Callable[[str], None], *, event_bytes: int = EVENT_BYTES) -> None:
        self._limit = limit
        self._on_text = on_text
        self._events = EventParser(event_bytes)
        self._event_bytes = event_bytes
        self.weigh = AnswerSize(limit)
        self._wire = 0
        self._is_intact = True
        """Whether nothing came yet that could have to be repaired: plain ASCII without escapes."""
        self.text: list[str] = []
        self.calls: list[GrowingCall] = []
        self.done = False
        self.shown = False
        self.refused = False

    @property
    def heard(self) -> int:
        return self.weigh.bytes

    @abstractmethod
    def event(self, data: bytes) -> None:
        """Takes the data of one event."""

    @abstractmethod
    def one_piece(self, body: bytes) -> None:
        """Takes a body that holds the whole answer. AnswerBroken if it holds none."""

    def feed(self, received: bytes) -> None:
        """Takes what the network gave; hands on the text in it in one piece."""
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
        """The stream has ended; takes an event that was left without its empty line, or is cut off in its middle."""
        if not self.done and (events := self._events.finish()):
            try:
                self._take(events)
            except BrokenAnswer as broken:
                if broken.limit:
                    raise

    def whole(self, body: bytes) -> None:
        """An answer that came in one piece, from an endpoint that does not stream."""
        fresh = len(self.text)
        try:
            self.one_piece(repaired(body))
            self.done = True
        finally:
            self._hand_on(fresh)

    def _take(self, events: list[bytes]) -> None:
        fresh = len(self.text)
        try:
            for event in events:
                self.event(event if self._is_intact else repaired(event))
                if self.done:
                    break
        finally:
            self._hand_on(fresh)

    def _hand_on(self, fresh: int) -> None:
        if len(self.text) > fresh:
            self.shown = True
            text = "".join(self.text[fresh:])
            self.text[fresh:] = (text,)  # one object for all the small pieces, and the same that is handed on
            self._on_text(text)

    # -- for the formats --

    def add_text(self, text: str) -> None:
        if text:
            self.weigh(text)
            self.text.append(text)

    def new_call(self, index: int | None) -> GrowingCall:
        if len(self.calls) >= CALLS:
            raise BrokenAnswer(f"the answer holds more than {CALLS} tool calls", limit="tool calls")
        call = GrowingCall(index)
        self.calls.append(call)
        return call

    def made_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(
                id=call.id or f"call_{place}",
                name=call.name,
                arguments=repaired_text("".join(call.arguments)) or "{}",
            )
            for place, call in enumerate(self.calls)
        )


def given(raw: msgspec.Raw) -> bytes:
    """A copy, since the value itself is a part of its event; empty for one that is missing or null."""
    copied = bytes(raw)
    return b"" if copied == b"null" else copied


def finish_of(finish: str, *, calls: bool, refused: bool = False) -> str:
    """Our word for how an answer ended, by whether there are calls in it. A refusal is one, however it is marked."""
    if refused and finish == "stop":
        return "content_filter"
    if calls and finish == "stop":
        return "tool_calls"
    return "stop" if finish == "tool_calls" and not calls else finish
