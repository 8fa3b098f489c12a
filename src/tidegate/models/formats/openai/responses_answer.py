"""Answers from OpenAI's Responses API: turns a stream or a complete body into an assistant Message.

The result is always complete: every item was finished, and the response reported that it is complete or why it was cut
short. Otherwise, BrokenAnswer says what is wrong. The limits are the same as for all streamed answers. Tool arguments
are stored verbatim, and so is reasoning, at its position. Unknown events are ignored; unknown items are sent back
unchanged.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.models.formats.answer import AnswerError, BrokenAnswer, check_depth
from tidegate.models.formats.json_repair import REPLACEMENT, decode_tolerantly
from tidegate.models.formats.stream_answer import GrowingCall, StreamedAnswer, finish_reason_of, raw_value
from tidegate.models.formats.token_counts import ReportedUsage
from tidegate.models.http.sse import EVENT_BYTES
from tidegate.values import Message, OpaqueItem, Usage

API = "openai-responses"
"""The name of this format. It is stored with items that the endpoint expects back, so that they are sent only in this
format."""

BETWEEN_MESSAGES = "\n\n"
"""Separates two messages in one answer for the reader. It was not written by the model."""

ITEMS = 1024
"""Maximum number of items in an answer. It allows for reasoning and a message before each call, with a margin."""

_REASONS = {"content_filter": "content_filter"}
"""The finish reasons for incomplete responses. Any reason not listed here means that the output limit was reached."""


class _Content(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Kind(msgspec.Struct, gc=False):
    type: str = ""


class _Item(msgspec.Struct, gc=False):
    """An item of an answer: a message, a call or reasoning. For other kinds, only `type` is set."""

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[_Content] | None = None
    phase: str | None = None
    encrypted_content: str | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    incomplete_details: _Incomplete | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    output_index: int | None = None
    item: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    delta: Any = None
    arguments: Any = None


class _Growing:
    """An item of the response as it arrives. `start` is its position in the text, and `calls` is the number of calls
    before it."""

    __slots__ = ("call", "calls", "characters", "done", "index", "kind", "phase", "raw", "start")

    def __init__(self, kind: str, index: int | None, start: int, calls: int) -> None:
        self.kind = kind
        self.index = index
        self.start = start
        self.calls = calls
        self.characters = 0
        self.phase = ""
        self.raw = b""
        self.call: GrowingCall | None = None
        self.done = False


class ReturnedItem(msgspec.Struct, omit_defaults=True):
    """A stored item. It is either an item that is sent back verbatim, or a mark that `characters` characters of the
    text were a separate message in this `phase`."""

    item: msgspec.Raw = msgspec.Raw()
    phase: str = ""
    characters: int = 0


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_known = msgspec.json.Decoder(_Item).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_encode = msgspec.json.Encoder().encode

_MESSAGE, _CALL, _THOUGHT = "message", "function_call", "reasoning"
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ResponsesAnswer(StreamedAnswer):
    __slots__ = ("_finish", "_items", "_length", "_usage")

    def __init__(self, limit: int, on_text: Callable[[str], None]) -> None:
        # The last event repeats the complete answer, escaped, together with fields from the request.
        super().__init__(limit, on_text, event_bytes=EVENT_BYTES + 2 * limit)
        self._items: list[_Growing] = []  # lint: allow bounded by ITEMS
        self._length = 0
        """The number of characters of text so far."""
        self._finish = "stop"
        self._usage = b""

    @property
    def complete(self) -> bool:
        return self.done

    def event(self, data: bytes) -> None:
        if data == b"[DONE]":  # some servers also send the end mark of chat completions
            return
        try:
            self._take_event(decode_tolerantly(_decode_event, data), data)
        except _UNREADABLE:
            raise BrokenAnswer("a piece of the stream is not the expected JSON") from None

    def one_piece(self, body: bytes) -> None:
        try:
            response = decode_tolerantly(_decode_response, body)
            if response.output is None and not raw_value(response.error):
                raise BrokenAnswer("the endpoint's response contains no answer")
            self._end(response, response.status or "completed")
        except _UNREADABLE:
            raise BrokenAnswer("the endpoint's answer is not the expected JSON") from None

    # -- events --

    def _take_event(self, event: _Event, data: bytes) -> None:
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                if isinstance(event.delta, str) and event.delta:
                    self.refused |= event.type == "response.refusal.delta"
                    self._say(self._growing(event.output_index, _MESSAGE), event.delta)
            case "response.function_call_arguments.delta":
                if isinstance(event.delta, str):
                    self._add_arguments(self._growing(event.output_index, _CALL), event.delta)
            case "response.function_call_arguments.done":
                if isinstance(event.arguments, str):
                    self._settle_arguments(self._growing(event.output_index, _CALL), event.arguments)
            case "response.output_item.added":
                item = _decode_item(event.item)
                self._name(self._growing(event.output_index, item.type), item)
            case "response.output_item.done":
                self._finish_item(event.output_index, event.item)
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                self._end(_decode_response(event.response), event.type.removeprefix("response."))
            case "error":
                raise AnswerError(raw_value(event.error) or data)
            case "" if complaint := raw_value(event.error):  # from a relay, in the shape of chat completions
                raise AnswerError(complaint)

    def _end(self, response: _Response, status: str) -> None:
        complaint = raw_value(response.error)
        if complaint or status in ("failed", "cancelled"):
            raise AnswerError(complaint or b'{"message":"The response was %b."}' % status.encode())
        if not self._items:
            for place, item in enumerate(response.output or ()):
                self._finish_item(place, item)
        if status == "incomplete":
            reason = response.incomplete_details.reason if response.incomplete_details else None
            self._finish = _REASONS.get(reason or "", "length")
        elif status != "completed":
            raise BrokenAnswer("the endpoint's answer is incomplete")
        elif any(not item.done for item in self._items):
            raise BrokenAnswer("part of the answer was started but never finished")
        self._usage = raw_value(response.usage)
        self.done = True

    # -- items --

    def _find(self, index: int | None, kind: str) -> _Growing | None:
        """Returns the item with this index. If the server sends no index, returns the open item of this kind."""
        for item in reversed(self._items):
            if item.index == index if index is not None else item.kind == kind and not item.done:
                if item.kind != kind:
                    raise BrokenAnswer("part of the answer changes its type")
                return item
        return None

    def _growing(self, index: int | None, kind: str) -> _Growing:
        item = self._find(index, kind) or self._open(kind, index)
        if item.done:
            raise BrokenAnswer("part of the answer continues after its end")
        return item

    def _open(self, kind: str, index: int | None) -> _Growing:
        if len(self._items) >= ITEMS:
            raise BrokenAnswer(f"the answer contains more than {ITEMS} items", limit="items")
        item = _Growing(kind, index, self._length, len(self.calls))
        if kind == _CALL:
            item.call = self.new_call(index)
        self._items.append(item)
        return item

    def _name(self, item: _Growing, given: _Item) -> None:
        if item.call is not None:
            item.call.id = self._newer(item.call.id, given.call_id or item.call.id or given.id)
            item.call.name = self._newer(item.call.name, given.name)
        item.phase = self._newer(item.phase, given.phase)

    def _newer(self, known: str, given: str | None) -> str:
        if not given or given == known:
            return known
        self.count_bytes(given)
        return given

    def _finish_item(self, index: int | None, raw: msgspec.Raw) -> None:
        """Finishes an item. The item's final event contains the complete content, which must start with the streamed
        content."""
        given = _decode_item(raw)
        item = self._growing(index, given.type)
        self._name(item, given)
        if item.kind == _MESSAGE:
            self.refused |= any(part.refusal for part in given.content or ())
            self._settle_text(item, "".join([part.text or part.refusal or "" for part in given.content or ()]))
        elif item.kind == _CALL:
            self._settle_arguments(item, given.arguments or "")
        elif given.type != _THOUGHT or given.encrypted_content or given.content:
            # Reasoning with only an id is dropped, since the provider stores nothing and the id is therefore useless.
            item.raw = bytes(raw)
            self.count_bytes(item.raw.decode())
            # The unparsed part must be JSON too, because it becomes part of every request.
            check_depth(msgspec.json.decode(item.raw))
        item.done = True

    def _say(self, item: _Growing, text: str) -> None:
        if not item.characters:
            if self._length:
                self.add_text(BETWEEN_MESSAGES)
                self._length += len(BETWEEN_MESSAGES)
            item.start = self._length
        elif item.start + item.characters != self._length:
            raise BrokenAnswer("two parts of the answer arrive interleaved")
        self.add_text(text)
        self._length += len(text)
        item.characters += len(text)

    def _settle_text(self, item: _Growing, whole: str) -> None:
        if not whole:
            return
        said = "".join(self.text)[item.start : item.start + item.characters]
        if whole.startswith(said):
            if rest := whole[len(said) :]:
                self._say(item, rest)
        elif not _same_but_for_damage(said, whole):
            raise BrokenAnswer("the final text differs from the streamed text")

    def _add_arguments(self, item: _Growing, piece: str) -> None:
        if piece and item.call is not None:
            self.count_bytes(piece)
            item.call.arguments.append(piece)

    def _settle_arguments(self, item: _Growing, whole: str) -> None:
        if item.call is None or not whole:
            return
        begun = "".join(item.call.arguments)
        if whole.startswith(begun):
            self._add_arguments(item, whole[len(begun) :])
        elif not _same_but_for_damage(begun, whole):
            raise BrokenAnswer("the final arguments of a tool call differ from the streamed ones")
        elif REPLACEMENT in begun:
            item.call.arguments[:] = (whole,)

    # -- the message --

    def message(self, model: str) -> Message:
        calls = self.finished_calls()
        carried = self._carried()
        return Message(
            role="assistant",
            text="".join(self.text),
            calls=calls,
            finish=finish_reason_of(self._finish, calls=bool(calls), refused=self.refused),
            usage=_usage_of(ReportedUsage(self._usage)) if self._usage else None,
            model=model,
            carrier=API if carried else "",
            carried=carried,
        )

    def _carried(self) -> tuple[OpaqueItem, ...]:
        """Returns the reasoning items at their positions, and marks for the messages. There are no marks if the text is
        a single message before all calls."""
        messages = [item for item in self._items if item.characters]
        marked = len(messages) > 1 or any(item.phase or item.calls for item in messages)
        carried: list[OpaqueItem] = []
        for item in self._items:
            if item.raw:
                kept = ReturnedItem(item=msgspec.Raw(item.raw))
            elif item.characters and marked:
                kept = ReturnedItem(phase=item.phase, characters=item.characters)
            else:
                continue
            carried.append(OpaqueItem(item=msgspec.Raw(_encode(kept)), text=item.start, calls=item.calls))
        return tuple(carried)


def _decode_item(raw: msgspec.Raw) -> _Item:
    kind = _decode_kind(raw).type
    return _decode_known(raw) if kind in (_MESSAGE, _CALL, _THOUGHT) else _Item(type=kind)


def _same_but_for_damage(said: str, whole: str) -> bool:
    """True if two texts may differ only in replaced characters. A character split between two events is replaced in the
    stream, but intact in the final text."""
    damaged, other = (said, whole) if REPLACEMENT in said else (whole, said)
    parts = damaged.split(REPLACEMENT)
    return len(parts) > 1 and other.startswith(parts[0]) and other.endswith(parts[-1])


def _usage_of(usage: ReportedUsage) -> Usage:
    return Usage(
        input=usage.tokens("input_tokens"),
        cached=usage.tokens("input_tokens_details", "cached_tokens"),
        output=usage.tokens("output_tokens"),
        written=usage.tokens("input_tokens_details", "cache_write_tokens"),
        reasoning=usage.tokens("output_tokens_details", "reasoning_tokens"),
    )
