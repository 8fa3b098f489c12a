"""The chat-completions wire format, incoming: a stream, or one whole completion, becomes an assistant Message.

Guarantee: what comes out is complete (a finish reason or the end mark was seen) and bounded (bytes of text and
arguments, number of calls, size of an event), or an AnswerBroken says why not. Text is handed on once per read from
the network, in order. Tool arguments are kept verbatim. It belongs to one attempt of one model step.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.models.answer import AnswerBroken, AnswerError
from tidegate.models.sse import EVENT_BYTES, Events, EventTooLarge
from tidegate.values import Message, ToolCall, Usage

# More calls in one answer than any toolset could make sense of.
CALLS = 128
# Wire bytes for each byte of answer that a stream may cost: about 60 for the smallest pieces in use, doubled.
WIRE_FACTOR = 128

_DONE = b"[DONE]"
_FINISHES = {"length": "length", "content_filter": "content_filter", "tool_calls": "tool_calls"}


class _Part(msgspec.Struct, gc=False):
    text: str | None = None


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_encode = msgspec.json.Encoder().encode


class _Growing:
    """A tool call while its arguments arrive."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []  # house: allow `_weigh` bounds an answer


class ChatAnswer:
    """`shown` says that text was handed on; `done` that the end mark was seen."""

    __slots__ = (
        "_bytes",
        "_calls",
        "_events",
        "_finish",
        "_limit",
        "_on_text",
        "_text",
        "_usage",
        "_wire",
        "done",
        "shown",
    )

    def __init__(self, limit: int, on_text: Callable[[str], None]) -> None:
        self._limit = limit
        self._on_text = on_text
        self._events = Events()
        self._text: list[str] = []
        self._calls: list[_Growing] = []
        self._finish: str | None = None
        self._usage: _Usage | None = None
        self._bytes = 0
        self._wire = 0
        self.done = False
        self.shown = False

    @property
    def complete(self) -> bool:
        return self.done or self._finish is not None

    def feed(self, received: bytes) -> None:
        """Takes what the network gave; hands on the text in it in one piece."""
        self._wire += len(received)
        if self._wire > WIRE_FACTOR * self._limit + EVENT_BYTES:
            raise AnswerBroken("the stream is far longer than its answer", limit="answer_bytes")
        try:
            events = self._events.feed(received)
        except EventTooLarge:
            raise AnswerBroken("one event of the stream is larger than 1 MiB") from None
        if events:
            self._take(events)

    def end(self) -> None:
        """The stream has ended; takes an event that was left without its empty line."""
        if not self.done and (events := self._events.finish()):
            self._take(events)

    def whole(self, body: bytes) -> None:
        """A completion that came in one piece, from an endpoint that does not stream."""
        self._take([body])
        if self._finish is None and not self._text and not self._calls:
            raise AnswerBroken("the endpoint's answer holds none")
        self.done = True

    def _take(self, events: list[bytes]) -> None:
        fresh = len(self._text)
        try:
            for event in events:
                if event == _DONE:
                    self.done = True
                    break
                try:
                    chunk = _decode_chunk(event)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    raise AnswerBroken("a piece of the stream is not the JSON it should be") from None
                if (complaint := bytes(chunk.error)) and complaint != b"null":
                    raise AnswerError(complaint)
                if chunk.usage is not None:
                    self._usage = chunk.usage
                if chunk.choices:
                    choice = chunk.choices[0]
                    if not choice.index:
                        self._grow(choice)
        finally:
            if len(self._text) > fresh:
                self.shown = True
                text = "".join(self._text[fresh:])
                self._text[fresh:] = (text,)  # one object for all the small pieces, and the same that is handed on
                self._on_text(text)

    def _grow(self, choice: _Choice) -> None:
        if choice.finish_reason:
            self._finish = choice.finish_reason
        delta = choice.delta or choice.message
        if delta is None:
            return
        content = delta.content
        if content:
            if not isinstance(content, str):
                content = "".join([part.text for part in content if part.text])
            self._add_text(content)
        if delta.refusal:
            self._add_text(delta.refusal)
        if delta.tool_calls:
            for piece in delta.tool_calls:
                self._grow_call(piece)

    def _add_text(self, text: str) -> None:
        if text:
            self._weigh(text)
            self._text.append(text)

    def _grow_call(self, piece: _Call) -> None:
        call = self._find(piece)
        if piece.id:
            call.id = piece.id
        function = piece.function
        if function is None:
            return
        if function.name and not call.name:
            call.name = function.name
        arguments = function.arguments
        if arguments:
            if not isinstance(arguments, str):
                arguments = _encode(arguments).decode()
            self._weigh(arguments)
            call.arguments.append(arguments)

    def _find(self, piece: _Call) -> _Growing:
        """The call that a piece belongs to: by its index; where a server sends none, a new id begins a new call."""
        calls = self._calls
        if piece.index is not None:
            for call in reversed(calls):
                if call.index == piece.index:
                    return call
        elif calls and (not piece.id or piece.id == calls[-1].id):
            return calls[-1]
        if len(calls) >= CALLS:
            raise AnswerBroken(f"the answer holds more than {CALLS} tool calls", limit="tool calls")
        calls.append(_Growing(piece.index))
        return calls[-1]

    def _weigh(self, text: str) -> None:
        self._bytes += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if self._bytes > self._limit:
            raise AnswerBroken(f"the answer is longer than {self._limit} bytes", limit="answer_bytes")

    def message(self, model: str) -> Message:
        calls = tuple(
            ToolCall(id=call.id or f"call_{place}", name=call.name, arguments="".join(call.arguments) or "{}")
            for place, call in enumerate(self._calls)
        )
        finish = _FINISHES.get(self._finish or "", "stop")
        if calls and finish == "stop":
            finish = "tool_calls"
        elif not calls and finish == "tool_calls":
            finish = "stop"
        return Message(
            role="assistant",
            text="".join(self._text),
            calls=calls,
            finish=finish,
            usage=self._usage_value(),
            model=model,
        )

    def _usage_value(self) -> Usage | None:
        usage = self._usage
        if usage is None:
            return None
        details = usage.prompt_tokens_details
        return Usage(
            input=usage.prompt_tokens or 0,
            cached=(details.cached_tokens or 0) if details is not None else 0,
            output=usage.completion_tokens or 0,
        )
