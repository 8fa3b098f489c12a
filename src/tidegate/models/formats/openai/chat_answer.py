"""Answers from OpenAI's chat completions API: turns a stream or a complete body into an assistant Message.

The result is always complete, with a finish reason or an end mark; otherwise BrokenAnswer says what is wrong. The
limits are the same as for all streamed answers. Tool arguments are stored verbatim, and so are the fields that an
endpoint expects back: reasoning, under any of the names in use, and the calls' signatures.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.models.formats.answer import AnswerError, BrokenAnswer
from tidegate.models.formats.json_repair import decode_tolerantly
from tidegate.models.formats.openai.reasoning import EndpointReasoning, checked
from tidegate.models.formats.stream_answer import GrowingCall, StreamedAnswer, finish_reason_of, raw_value
from tidegate.models.formats.token_counts import TOKENS, ReportedUsage
from tidegate.values import Message, OpaqueItem, Usage

API = "openai-chat"
"""The name of this format. It is stored with fields that the endpoint expects back, so that they are sent only in this
format."""

_DONE = b"[DONE]"
_NULL = len(b"null")  # a list that is not longer than this is empty
_FINISHES = {
    "length": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "tool_calls": "tool_calls",
}
_ERROR = "error"
"""A finish reason that relays use, usually together with an error object."""


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
    """A part of a streamed message. The last four fields are not part of OpenAI's format, so unexpected content in them
    must never cause an answer to fail."""

    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    extra_content: msgspec.Raw = msgspec.Raw()


class _LogProbs(msgspec.Struct, gc=False):
    content: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    logprobs: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class EndpointFields(msgspec.Struct, omit_defaults=True):
    """A stored item: a JSON object with fields that an endpoint has added to its message or to one of its calls, and
    that it expects in later requests. For a call, the item's `calls` is the call's index."""

    message: msgspec.Raw = msgspec.Raw()
    call: msgspec.Raw = msgspec.Raw()


_decode_logprobs = msgspec.json.Decoder(_LogProbs).decode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_encode = msgspec.json.Encoder().encode


class ChatAnswer(StreamedAnswer):
    __slots__ = ("_begun", "_finish", "_logprobs", "_marks", "_thoughts", "_usage")

    def __init__(self, limit: int, on_text: Callable[[str], None]) -> None:
        super().__init__(limit, on_text)
        self._begun = False
        self._finish: str | None = None
        self._usage = b""
        self._logprobs: list[bytes] = []  # lint: allow `count_bytes` bounds an answer
        self._thoughts: EndpointReasoning | None = None
        self._marks: dict[int, bytes] = {}  # lint: allow one for each of the bounded calls
        """The calls' extra fields, by call index."""

    @property
    def complete(self) -> bool:
        return self._finish is not None or (self.done and self._begun)

    def event(self, data: bytes) -> None:
        if data == _DONE:
            self.done = True
            return
        try:
            self._take_chunk(decode_tolerantly(_decode_chunk, data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BrokenAnswer("a piece of the stream is not the expected JSON") from None

    def one_piece(self, body: bytes) -> None:
        self.event(body)
        if self._finish is None and not self.text and not self.calls:
            raise BrokenAnswer("the endpoint's response contains no answer")

    def _take_chunk(self, chunk: _Chunk) -> None:
        if chunk.error and (complaint := raw_value(chunk.error)):
            raise AnswerError(complaint)
        if chunk.usage:
            self._usage = raw_value(chunk.usage) or self._usage
        if chunk.choices:
            choice = chunk.choices[0]
            if not choice.index:
                self._grow(choice)

    def _grow(self, choice: _Choice) -> None:
        self._begun = True
        if choice.finish_reason:
            if choice.finish_reason == _ERROR:
                raise AnswerError(b'{"message":"The answer ended with an error."}')
            self._finish = choice.finish_reason
        if choice.usage:
            self._usage = raw_value(choice.usage) or self._usage
        if len(choice.logprobs) > _NULL:
            self._keep_logprobs(choice.logprobs)
        delta = choice.delta or choice.message
        if delta is None:
            return
        content = delta.content
        if content:
            if not isinstance(content, str):
                content = "".join([part.text for part in content if part.text])
            self.add_text(content)
        if delta.refusal:
            self.refused = True
            self.add_text(delta.refusal)
        if delta.tool_calls:
            for piece in delta.tool_calls:
                self._grow_call(piece)
        self._keep(delta)

    def _keep_logprobs(self, raw: msgspec.Raw) -> None:
        """Stores the log probabilities of each token; values with an unexpected shape are ignored."""
        try:
            found = _decode_logprobs(raw).content or ()
        except msgspec.DecodeError:
            return
        for entry in found:
            self.count_bytes(str(bytes(entry), "utf-8", "replace"))
            self._logprobs.append(bytes(entry))

    def _grow_call(self, piece: _Call) -> None:
        call = self._find(piece)
        if piece.id and not call.id:
            self.count_bytes(piece.id)
            call.id = piece.id
        if piece.extra_content and (mark := checked(piece.extra_content, self.count_bytes)):
            self._marks[self.calls.index(call)] = mark
        function = piece.function
        if function is None:
            return
        if function.name and not call.name:
            self.count_bytes(function.name)
            call.name = function.name
        arguments = function.arguments
        if arguments:
            if not isinstance(arguments, str):
                arguments = _encode(arguments).decode()
            self.count_bytes(arguments)
            call.arguments.append(arguments)

    def _find(self, piece: _Call) -> GrowingCall:
        """Returns the call to which a piece belongs, by index. Without an index, a new id starts a new call. If the
        server reuses an index, a new id with a name also starts a new call: some servers number the calls in every
        event from the start."""
        calls = self.calls
        if piece.index is not None:
            for call in reversed(calls):
                if call.index == piece.index:
                    named = piece.function is not None and piece.function.name and call.name
                    if named and piece.id and call.id and piece.id != call.id:
                        break
                    return call
        elif calls and (not piece.id or piece.id == calls[-1].id):
            return calls[-1]
        return self.new_call(piece.index)

    def _keep(self, delta: _Delta) -> None:
        if (
            delta.reasoning_content is None
            and delta.reasoning is None
            and delta.reasoning_details is None
            and not delta.extra_content
        ):
            return
        thoughts = self._thoughts = self._thoughts or EndpointReasoning()
        if delta.reasoning_content is not None:
            thoughts.content(delta.reasoning_content, self.count_bytes)
        if delta.reasoning is not None:
            thoughts.plain(delta.reasoning, self.count_bytes)
        if delta.reasoning_details is not None:
            thoughts.details(delta.reasoning_details, self.count_bytes)
        if delta.extra_content:
            thoughts.mark(delta.extra_content, self.count_bytes)

    def _carried(self) -> tuple[OpaqueItem, ...]:
        fields = b"" if self._thoughts is None else self._thoughts.fields()
        carried = [OpaqueItem(item=_item(EndpointFields(message=msgspec.Raw(fields))))] if fields else []
        for place, mark in sorted(self._marks.items()):
            carried.append(
                OpaqueItem(item=_item(EndpointFields(call=msgspec.Raw(b'{"extra_content":%b}' % mark))), calls=place)
            )
        return tuple(carried)

    def message(self, model: str) -> Message:
        calls = self.finished_calls()
        carried = self._carried()
        return Message(
            role="assistant",
            text="".join(self.text),
            calls=calls,
            finish=finish_reason_of(_FINISHES.get(self._finish or "", "stop"), calls=bool(calls), refused=self.refused),
            usage=_usage_of(ReportedUsage(self._usage)) if self._usage else None,
            model=model,
            carrier=API if carried else "",
            carried=carried,
            logprobs=msgspec.Raw(b"[%b]" % b",".join(self._logprobs)) if self._logprobs else None,
        )


def _item(wanted: EndpointFields) -> msgspec.Raw:
    return msgspec.Raw(_encode(wanted))


def _usage_of(usage: ReportedUsage) -> Usage:
    """Returns the usage. Cached tokens are in the details, or at the top level under one of two names. Some providers
    include reasoning only in the total and not in the completion, but all of them charge for it."""
    prompt, completion = usage.tokens("prompt_tokens"), usage.tokens("completion_tokens")
    total = usage.tokens("total_tokens")
    output = max(completion, total - prompt) if total < TOKENS else completion
    return Usage(
        input=prompt,
        cached=usage.tokens("prompt_tokens_details", "cached_tokens")
        or usage.tokens("prompt_cache_hit_tokens")
        or usage.tokens("cached_tokens"),
        output=output,
        written=usage.tokens("prompt_tokens_details", "cache_write_tokens"),
        reasoning=usage.tokens("completion_tokens_details", "reasoning_tokens") or output - completion,
    )
