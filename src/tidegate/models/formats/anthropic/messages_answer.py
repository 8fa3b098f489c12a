"""Answers from Anthropic's Messages API: turns a stream or a complete body into an assistant Message.

The result is always complete, with a stop reason; otherwise BrokenAnswer says what is wrong. The limits are the same as
for all streamed answers, and reasoning counts towards them. Reasoning blocks, their signatures and tool arguments are
stored verbatim and in place. Unknown events and blocks are ignored.
"""

from collections.abc import Callable

import msgspec

from tidegate.models.formats.answer import AnswerError, BrokenAnswer
from tidegate.models.formats.json_repair import decode_tolerantly
from tidegate.models.formats.stream_answer import GrowingCall, StreamedAnswer, finish_reason_of, raw_value
from tidegate.models.formats.token_counts import ReportedUsage
from tidegate.values import Message, OpaqueItem, Usage

API = "anthropic"
"""The format's name in the configuration. It is stored with reasoning blocks, so that they are sent back only in this
format."""

PLACE = msgspec.Raw(b"null")
"""Marks a position at which text followed a tool call, where the answer is split. The mark itself is not sent."""

_FINISHES = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    # The model expects to continue in another request, so the answer counts as cut off.
    "pause_turn": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_EVENTS = frozenset(
    {
        *("message_start", "message_delta", "message_stop", "error"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
    }
)
_BLOCKS = frozenset({"text", "tool_use", "thinking", "redacted_thinking"})
_STRANGE = "strange"
_DELTAS = frozenset({"text_delta", "input_json_delta", "thinking_delta", "signature_delta"})
_NOT_JSON = "a piece of the stream is not the expected JSON"
_DISORDER = "the pieces of the stream are out of order"


class _Thought(msgspec.Struct, gc=False):
    """A stored reasoning block, with its fields in the order that requests expect."""

    thinking: str
    signature: str
    type: str = "thinking"


class _Redacted(msgspec.Struct, gc=False):
    data: str
    type: str = "redacted_thinking"


class _Block(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw()
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class _Start(msgspec.Struct, gc=False):
    usage: msgspec.Raw = msgspec.Raw()


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Start | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _Typed(msgspec.Struct, gc=False):
    type: str = ""


class _Strange(msgspec.Struct, gc=False):
    """The part of an event that shows whether it is of an unknown kind, which may be ignored."""

    type: str = ""
    index: int = 0
    delta: _Typed | None = None
    content_block: _Typed | None = None


class _Whole(msgspec.Struct, gc=False):
    type: str = ""
    content: list[msgspec.Raw] | None = None
    stop_reason: str | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_strange = msgspec.json.Decoder(_Strange).decode
_decode_block = msgspec.json.Decoder(_Block).decode
_decode_typed = msgspec.json.Decoder(_Typed).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode
_encode = msgspec.json.Encoder().encode
# The errors that a decoder raises for arbitrary bytes; RecursionError is raised for extreme nesting.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Counted for every reasoning block, so that the number of empty ones is bounded, too.
_FRAME = _encode(_Thought("", "")).decode()


class AnthropicAnswer(StreamedAnswer):
    """An answer whose blocks arrive one after the other. `_open` is the kind of the current block, or "" if there is
    none. `_standing_in` is true if the current call's arguments came with its start event; any arguments that follow
    replace them."""

    __slots__ = (
        *("_begun", "_call", "_carried", "_characters", "_open", "_parted", "_place", "_signature", "_standing_in"),
        *("_stop", "_thinking", "_usage"),
    )

    def __init__(self, limit: int, on_text: Callable[[str], None]) -> None:
        super().__init__(limit, on_text)
        self._begun = False
        self._stop: str | None = None
        self._usage: ReportedUsage | None = None
        self._open = ""
        self._place = -1
        self._characters = 0
        self._parted = 0
        self._call: GrowingCall | None = None
        self._standing_in = False
        self._thinking: list[str] = []  # lint: allow `count_bytes` bounds an answer
        self._signature = ""
        self._carried: list[OpaqueItem] = []  # lint: allow `count_bytes` bounds an answer

    @property
    def complete(self) -> bool:
        return self._stop is not None

    def event(self, data: bytes) -> None:
        try:
            event = decode_tolerantly(_decode_event, data)
        except msgspec.ValidationError:
            self._pass_over(data)
            return
        except _UNREADABLE:
            raise BrokenAnswer(_NOT_JSON) from None
        kind = event.type
        if kind == "content_block_delta":
            if event.delta is not None:
                self._grow(event.index, event.delta)
        elif kind == "content_block_start":
            self._begin(event.index, event.content_block or _Block())
        elif kind == "content_block_stop":
            if event.index == self._place:
                self._close()
        elif kind == "message_start":
            if self._begun:
                raise BrokenAnswer(_DISORDER)
            self._begun = True
            if event.message is not None:
                self._count(event.message.usage)
        elif kind == "message_delta":
            self._count(event.usage)
            if event.delta is not None and event.delta.stop_reason:
                self._end(event.delta.stop_reason)
        elif kind == "message_stop":
            if self._stop is None:
                raise BrokenAnswer("the answer ended without a stop reason")
            self.done = True
        elif kind == "error" or (not kind and raw_value(event.error)):
            raise AnswerError(raw_value(event.error) or b"{}")

    def one_piece(self, body: bytes) -> None:
        try:
            whole = decode_tolerantly(_decode_whole, body)
        except _UNREADABLE:
            raise BrokenAnswer("the endpoint's answer is not the expected JSON") from None
        if complaint := raw_value(whole.error):
            raise AnswerError(complaint)
        if whole.type != "message" or not whole.stop_reason:
            raise BrokenAnswer("the endpoint's response contains no answer")
        self._begun = True
        self._count(whole.usage)
        for place, raw in enumerate(whole.content or ()):
            self._begin(place, _read_block(raw))
        self._end(whole.stop_reason)

    def message(self, model: str) -> Message:
        calls = self.finished_calls()
        return Message(
            role="assistant",
            text="".join(self.text),
            calls=calls,
            finish=finish_reason_of(_FINISHES.get(self._stop or "", "stop"), calls=bool(calls)),
            usage=self._usage_value(),
            model=model,
            carrier=API if self._carried else "",
            carried=tuple(self._carried),
        )

    # -- blocks --

    def _begin(self, place: int, block: _Block) -> None:
        """Starts a block. If the server left the previous block open, it is closed."""
        if not self._begun or place < self._place:
            raise BrokenAnswer(_DISORDER)
        self._close()
        self._place = place
        kind = block.type
        self._open = kind if kind in _BLOCKS else _STRANGE
        if kind == "text":
            if block.text:
                self._add(block.text)
        elif kind == "tool_use":
            self._call = call = self.new_call(place)
            call.id, call.name = block.id or "", block.name or ""
            self.count_bytes(call.id + call.name)
            self._add_arguments(call, raw_value(block.input).decode())
            self._standing_in = True
        elif kind == "thinking":
            self.count_bytes(_FRAME)
            self._add_reasoning(block.thinking or "")
            self._set_signature(block.signature or "")
        elif kind == "redacted_thinking":
            self.count_bytes(_FRAME)
            self.count_bytes(block.data or "")
            self._carry(_encode(_Redacted(block.data or "")))

    def _grow(self, place: int, delta: _Delta) -> None:
        opened, kind = self._open, delta.type
        if place != self._place or not opened:
            raise BrokenAnswer(_DISORDER)
        if kind == "text_delta":
            if opened == "text" and delta.text:
                self._add(delta.text)
        elif kind == "input_json_delta":
            if self._call is not None and delta.partial_json:
                if self._standing_in:
                    self._standing_in = False
                    self._call.arguments.clear()
                self._add_arguments(self._call, delta.partial_json)
        elif opened == "thinking":
            if kind == "thinking_delta":
                self._add_reasoning(delta.thinking or "")
            elif kind == "signature_delta":
                self._set_signature(delta.signature or "")

    def _close(self) -> None:
        if self._open == "thinking":
            self._carry(_encode(_Thought("".join(self._thinking), self._signature)))
            self._thinking.clear()
            self._signature = ""
        self._open = ""
        self._call = None

    def _end(self, reason: str) -> None:
        if not self._begun:
            raise BrokenAnswer(_DISORDER)
        self._close()
        self._stop = reason

    def _pass_over(self, data: bytes) -> None:
        """Ignores an event of an unexpected shape if its kind is unknown; otherwise raises BrokenAnswer."""
        try:
            if _decode_typed(data).type not in _EVENTS:
                return
            event = _decode_strange(data)
        except _UNREADABLE:
            raise BrokenAnswer(_NOT_JSON) from None
        if event.type == "content_block_start" and event.content_block and event.content_block.type not in _BLOCKS:
            self._begin(event.index, _Block())
        elif event.type == "content_block_delta" and event.delta and event.delta.type not in _DELTAS:
            self._grow(event.index, _Delta())
        else:
            raise BrokenAnswer(_NOT_JSON)

    # -- content --

    def _add(self, text: str) -> None:
        if len(self.calls) > self._parted:
            # This is text after a call. Without a mark, its position would be lost.
            self._carry(bytes(PLACE))
        self.add_text(text)
        self._characters += len(text)

    def _add_arguments(self, call: GrowingCall, arguments: str) -> None:
        if arguments:
            self.count_bytes(arguments)
            call.arguments.append(arguments)

    def _add_reasoning(self, text: str) -> None:
        if text:
            self.count_bytes(text)
            self._thinking.append(text)

    def _set_signature(self, signature: str) -> None:
        """Sets the signature of a reasoning block. A block has one signature, so a second one replaces the first."""
        if signature:
            self.count_bytes(signature)
            self._signature = signature

    def _carry(self, item: bytes) -> None:
        self._parted = len(self.calls)
        self._carried.append(OpaqueItem(item=msgspec.Raw(item), text=self._characters, calls=len(self.calls)))

    # -- usage --

    def _count(self, usage: msgspec.Raw) -> None:
        """Records token counts. Counts are totals, so later counts replace earlier ones. A missing count changes
        nothing."""
        if raw := raw_value(usage):
            counted = ReportedUsage(raw)
            if self._usage is None:
                self._usage = counted
            else:
                self._usage.update(counted)

    def _usage_value(self) -> Usage | None:
        usage = self._usage
        if usage is None:
            return None
        cached = usage.tokens("cache_read_input_tokens")
        written = usage.tokens("cache_creation_input_tokens")
        return Usage(
            input=usage.tokens("input_tokens") + cached + written,
            cached=cached,
            written=written,
            output=usage.tokens("output_tokens"),
            reasoning=usage.tokens("output_tokens_details", "thinking_tokens"),
        )


def _read_block(raw: msgspec.Raw) -> _Block:
    try:
        return _decode_block(raw)
    except msgspec.ValidationError:
        try:
            if _decode_typed(raw).type not in _BLOCKS:
                return _Block()
        except _UNREADABLE:
            pass
        raise BrokenAnswer("the endpoint's answer is not the expected JSON") from None
    except _UNREADABLE:
        raise BrokenAnswer("the endpoint's answer is not the expected JSON") from None
