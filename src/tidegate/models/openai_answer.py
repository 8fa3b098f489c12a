"""The chat-completions wire format, incoming: a stream, or one whole completion, becomes an assistant Message.

Guarantee: what comes out is complete (a finish reason or the end mark was seen), or an AnswerBroken says why not; the
bounds are those of every streamed answer. Tool arguments are kept verbatim, and so is what an endpoint wants back: its
thoughts, by whichever name it gives them, and its marks on calls.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.models.answer import AnswerBroken, AnswerError
from tidegate.models.openai_wire import API, Wanted
from tidegate.models.streamed import GrowingCall, StreamedAnswer, finish_of
from tidegate.values import Carried, Message, Usage

_DONE = b"[DONE]"
_FINISHES = {
    "length": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "tool_calls": "tool_calls",
}
_ERROR = "error"
"""A finish reason of those who relay to others; what went wrong usually stands beside it, as an error object."""


_GROWING = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""Kinds of thoughts that come in pieces, and the field that grows."""


class _Part(msgspec.Struct, gc=False):
    text: str | None = None


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: msgspec.Raw = msgspec.Raw()


class _Delta(msgspec.Struct, gc=False):
    """The last four are no part of the format: whatever stands there must not break an answer."""

    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    extra_content: msgspec.Raw = msgspec.Raw()


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    """Cached tokens stand in the details, or beside the others by one of two names."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    cached_tokens: int | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    usage: _Usage | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_encode = msgspec.json.Encoder().encode


class ChatAnswer(StreamedAnswer):
    __slots__ = ("_details", "_finish", "_mark", "_marks", "_thoughts", "_usage")

    def __init__(self, limit: int, on_text: Callable[[str], None]) -> None:
        super().__init__(limit, on_text)
        self._finish: str | None = None
        self._usage: _Usage | None = None
        self._thoughts: dict[str, list[str]] = {}
        """By the field that brought them; there are two."""
        self._details: list[dict[str, Any]] = []  # house: allow `weigh` bounds an answer
        self._mark = b""
        self._marks: dict[int, bytes] = {}  # house: allow one for each of the bounded calls
        """What stood beside the message, and beside each call."""

    @property
    def complete(self) -> bool:
        return self.done or self._finish is not None

    def event(self, data: bytes) -> None:
        if data == _DONE:
            self.done = True
            return
        try:
            chunk = _decode_chunk(data)
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

    def one_piece(self, body: bytes) -> None:
        self.event(body)
        if self._finish is None and not self.text and not self.calls:
            raise AnswerBroken("the endpoint's answer holds none")

    def _grow(self, choice: _Choice) -> None:
        if choice.finish_reason:
            if choice.finish_reason == _ERROR:
                raise AnswerError(b'{"message":"The answer ended with an error."}')
            self._finish = choice.finish_reason
        if choice.usage is not None:
            self._usage = choice.usage
        delta = choice.delta or choice.message
        if delta is None:
            return
        content = delta.content
        if content:
            if not isinstance(content, str):
                content = "".join([part.text for part in content if part.text])
            self.add_text(content)
        if delta.refusal:
            self.add_text(delta.refusal)
        if delta.tool_calls:
            for piece in delta.tool_calls:
                self._grow_call(piece)
        self._keep(delta)

    def _grow_call(self, piece: _Call) -> None:
        call = self._find(piece)
        if piece.id:
            call.id = piece.id
        if mark := self._kept(piece.extra_content):
            self._marks[self.calls.index(call)] = mark
        function = piece.function
        if function is None:
            return
        if function.name and not call.name:
            call.name = function.name
        arguments = function.arguments
        if arguments:
            if not isinstance(arguments, str):
                arguments = _encode(arguments).decode()
            self.weigh(arguments)
            call.arguments.append(arguments)

    def _find(self, piece: _Call) -> GrowingCall:
        """The call that a piece belongs to: by its index; where a server sends none, a new id begins a new call."""
        calls = self.calls
        if piece.index is not None:
            for call in reversed(calls):
                if call.index == piece.index:
                    return call
        elif calls and (not piece.id or piece.id == calls[-1].id):
            return calls[-1]
        return self.new_call(piece.index)

    # -- what the endpoint wants back --

    def _keep(self, delta: _Delta) -> None:
        if delta.reasoning_content is not None:
            self._think("reasoning_content", delta.reasoning_content)
        if delta.reasoning is not None:
            self._think("reasoning", delta.reasoning)
        if isinstance(delta.reasoning_details, list):
            for detail in delta.reasoning_details:
                if isinstance(detail, dict):
                    self._add_detail(detail)
        if mark := self._kept(delta.extra_content):
            self._mark = mark

    def _think(self, field: str, thought: object) -> None:
        """Also an empty one: some want the field back even then."""
        if isinstance(thought, str):
            pieces = self._thoughts.setdefault(field, [])
            if thought:
                self.weigh(thought)
                pieces.append(thought)

    def _add_detail(self, detail: dict[str, Any]) -> None:
        """A stream brings thoughts and summaries in pieces, each of which repeats what else is said of the whole."""
        self.weigh(_encode(detail).decode())
        field = _growing(detail)
        last = self._details[-1] if self._details else None
        if (
            field is None
            or last is None
            or last.get("type") != detail["type"]
            or last.get("index") != detail.get("index")
            or last.get("signature")
        ):
            self._details.append({**detail, field: [detail.get(field) or ""]} if field else detail)
            return
        last[field].append(detail.get(field) or "")
        last.update({name: value for name, value in detail.items() if name != field and value is not None})

    def _kept(self, mark: msgspec.Raw) -> bytes:
        """A copy: the mark itself is a view of the event that it came in."""
        kept = bytes(mark)
        if kept in (b"", b"null"):
            return b""
        self.weigh(kept.decode("utf-8", "replace"))
        return kept

    def _carried(self) -> tuple[Carried, ...]:
        """Where there are details, the plain thoughts only say again what they hold."""
        fields: dict[str, Any] = {}
        if self._details:
            fields["reasoning_details"] = [
                {**detail, field: "".join(detail[field])} if (field := _growing(detail)) else detail
                for detail in self._details
            ]
        else:
            fields.update({name: "".join(pieces) for name, pieces in self._thoughts.items()})
        if self._mark:
            fields["extra_content"] = msgspec.Raw(self._mark)
        carried = [Carried(item=_item(Wanted(message=msgspec.Raw(_encode(fields)))))] if fields else []
        for place, mark in sorted(self._marks.items()):
            carried.append(Carried(item=_item(Wanted(call=msgspec.Raw(b'{"extra_content":%b}' % mark))), calls=place))
        return tuple(carried)

    def message(self, model: str) -> Message:
        calls = self.made_calls()
        carried = self._carried()
        return Message(
            role="assistant",
            text="".join(self.text),
            calls=calls,
            finish=finish_of(_FINISHES.get(self._finish or "", "stop"), calls=bool(calls)),
            usage=None if self._usage is None else _usage_of(self._usage),
            model=model,
            carrier=API if carried else "",
            carried=carried,
        )


def _growing(detail: dict[str, Any]) -> str | None:
    kind = detail.get("type")
    return _GROWING.get(kind) if isinstance(kind, str) else None


def _item(wanted: Wanted) -> msgspec.Raw:
    return msgspec.Raw(_encode(wanted))


def _usage_of(usage: _Usage) -> Usage:
    """Some do not count thoughts into the completion, only into the total; all of them charge for thoughts."""
    given = usage.prompt_tokens_details or _InputDetails()
    spent = usage.completion_tokens_details or _OutputDetails()
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    output = max(completion, (usage.total_tokens or 0) - prompt)
    return Usage(
        input=prompt,
        cached=given.cached_tokens or usage.prompt_cache_hit_tokens or usage.cached_tokens or 0,
        output=output,
        written=given.cache_write_tokens or 0,
        reasoning=spent.reasoning_tokens or output - completion,
    )
