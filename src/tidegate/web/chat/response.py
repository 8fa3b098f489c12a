"""OpenAI's chat completion responses, complete and in chunks.

Every response is valid for the official client's types. The fields common to all of a response's chunks are encoded
once.
"""

from typing import Any, Literal

import msgspec

from tidegate.values import Outcome, ToolCall, Usage

_FINISH = {"stopped": "stop", "error": "stop", "": "stop"}
"""OpenAI's equivalents of the gateway's own finish reasons."""

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int


class ReasoningTokens(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class UsageOut(msgspec.Struct, frozen=True):
    """Tokens, summed over the turn's steps. `estimated` is present if the provider did not report all of them, for
    example because a call was interrupted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens
    estimated: Literal[True] | msgspec.UnsetType = msgspec.UNSET


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class CallOut(msgspec.Struct, frozen=True):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class MessageOut(msgspec.Struct, frozen=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: str | None = None
    tool_calls: list[CallOut] | msgspec.UnsetType = msgspec.UNSET
    function_call: CalledFunction | msgspec.UnsetType = msgspec.UNSET


class LogProbs(msgspec.Struct, frozen=True):
    content: list[Any]
    refusal: None = None


class Choice(msgspec.Struct, frozen=True):
    message: MessageOut
    finish_reason: FinishReason
    index: int = 0
    logprobs: LogProbs | None = None


class Completion(msgspec.Struct, frozen=True):
    """A turn's complete answer."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: UsageOut
    object: Literal["chat.completion"] = "chat.completion"
    notices: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Notices for the user, in addition to the answer. They are not part of OpenAI's format."""


def completion_id(turn: str) -> str:
    return f"chatcmpl-{turn}"


def usage_out(usage: Usage) -> UsageOut:
    return UsageOut(
        prompt_tokens=usage.input,
        completion_tokens=usage.output,
        total_tokens=usage.input + usage.output,
        prompt_tokens_details=CachedTokens(usage.cached),
        completion_tokens_details=ReasoningTokens(usage.reasoning),
        estimated=True if usage.estimated else msgspec.UNSET,
    )


def completion(outcome: Outcome, model: str, *, old_functions: bool) -> Completion:
    calls: Any = msgspec.UNSET
    function: Any = msgspec.UNSET
    if outcome.calls and old_functions:
        function = _function(outcome.calls[0])
    if _shows_tool_calls(outcome.calls, old_functions=old_functions):
        calls = [CallOut(id=call.id, function=_function(call)) for call in outcome.calls]
    message = MessageOut(
        content=outcome.text if outcome.text or not outcome.calls else None, tool_calls=calls, function_call=function
    )
    finish = finish_reason(outcome, old_functions=old_functions)
    logprobs = LogProbs(msgspec.json.decode(outcome.logprobs, type=list[msgspec.Raw])) if outcome.logprobs else None
    return Completion(
        id=completion_id(outcome.turn),
        created=int(outcome.accepted),
        model=model,
        choices=[Choice(message=message, finish_reason=finish, logprobs=logprobs)],
        usage=usage_out(outcome.usage),
        notices=outcome.notices or msgspec.UNSET,
    )


def finish_reason(outcome: Outcome, *, old_functions: bool) -> FinishReason:
    if outcome.calls:
        return "function_call" if old_functions else "tool_calls"
    finish: Any = _FINISH.get(outcome.finish, outcome.finish)
    return finish if finish in ("stop", "length", "content_filter") else "stop"


def _shows_tool_calls(calls: tuple[ToolCall, ...], *, old_functions: bool) -> bool:
    """True if the response has `tool_calls`. A client that uses the older `function_call`, which can contain only one
    call, also gets `tool_calls` if the model has made several calls."""
    return len(calls) > 1 if old_functions else bool(calls)


def _function(call: ToolCall) -> CalledFunction:
    return CalledFunction(name=call.name, arguments=call.arguments)


class Chunks:
    """Encodes the chunks of one streamed answer."""

    __slots__ = ("_close", "_head", "_old_functions", "_tail", "_usage")

    def __init__(self, turn: str, model: str, created: int, *, usage: bool, old_functions: bool) -> None:
        self._head = b'data: {"id":"%b","object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            completion_id(turn).encode(),
            created,
            msgspec.json.encode(model),
        )
        self._usage = usage
        self._close = b'],"usage":null}\n\n' if usage else b"]}\n\n"
        self._tail = b'},"logprobs":null,"finish_reason":null}' + self._close
        self._old_functions = old_functions

    def opening(self) -> bytes:
        return self._head + b'{"index":0,"delta":{"role":"assistant","content":"","refusal":null' + self._tail

    def text(self, text: str) -> bytes:
        return b'%b{"index":0,"delta":{"content":%b%b' % (self._head, msgspec.json.encode(text), self._tail)

    def calls(self, calls: tuple[ToolCall, ...]) -> bytes:
        pieces: list[bytes] = []
        if self._old_functions:
            pieces.append(b'"function_call":' + msgspec.json.encode(_function(calls[0])))
        if _shows_tool_calls(calls, old_functions=self._old_functions):
            listed = [
                {"index": index, "id": call.id, "type": "function", "function": _function(call)}
                for index, call in enumerate(calls)
            ]
            pieces.append(b'"tool_calls":' + msgspec.json.encode(listed))
        return b'%b{"index":0,"delta":{%b%b' % (self._head, b",".join(pieces), self._tail)

    def ending(self, outcome: Outcome) -> bytes:
        """Returns the last chunks: the finish reason, the usage if it was requested, and the end marker."""
        reason = finish_reason(outcome, old_functions=self._old_functions).encode()
        logprobs = b'{"content":%b,"refusal":null}' % bytes(outcome.logprobs) if outcome.logprobs else b"null"
        last = b'{"index":0,"delta":{},"logprobs":%b,"finish_reason":"%b"}' % (logprobs, reason)
        out = self._head + last + self._close
        if self._usage:
            out += b'%b],"usage":%b}\n\n' % (self._head, msgspec.json.encode(usage_out(outcome.usage)))
        return out + b"data: [DONE]\n\n"
