"""Answers of the Messages format as bytes: blocks, events, usage, errors. Valid by the official types. Pure."""

from collections.abc import Iterator
from typing import Any

import msgspec

from bench.scripted.anthropic_thoughts import redacted_of
from bench.scripted.interface import Tokens
from bench.scripted.script import Plan
from bench.scripted.seal import sealed, signature
from bench.scripted.wire import event

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# Sentences of this format for the error codes of other formats.
SENTENCES = {
    "context_length_exceeded": "prompt is too long: 250000 tokens > 200000 maximum",
    "content_filter": "Output blocked by content filtering policy",
    "insufficient_quota": "Your credit balance is too low to access the API",
}
STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
# In a stream, the error type of this format for a code of other formats.
STREAM_KINDS = {"server_error": "api_error", "rate_limit_exceeded": "rate_limit_error"}
REQUEST_ID = "req_scripted"
PING = event(b"ping", b'{"type":"ping"}')
STOPPED = event(b"message_stop", b'{"type":"message_stop"}')
Said = tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]
"""A block: its start, its pieces, and its end."""

_encode = msgspec.json.encode


def blocks_of(model: str, tail: str, plan: Plan, *, shown: bool) -> Iterator[Said]:
    """The blocks of an answer."""
    thought = "".join(plan.thoughts)
    if thought and plan.redacted:
        yield {"type": "redacted_thinking", "data": sealed(redacted_of(model, tail, thought))}, [], []
    elif thought:
        signed = signature(tail, model, thought if shown else "")
        pieces = [{"type": "thinking_delta", "thinking": piece} for piece in plan.thoughts if shown]
        closing = [{"type": "signature_delta", "signature": signed}]
        yield {"type": "thinking", "thinking": "", "signature": ""}, pieces, closing
    if plan.pieces:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in plan.pieces], []
    for identity, name, arguments in plan.calls:
        half = len(arguments) // 2
        parts = [part for part in (arguments[:half], arguments[half:]) if part]
        given = [{"type": "input_json_delta", "partial_json": part} for part in parts]
        yield {"type": "tool_use", "id": identity, "name": name, "input": {}}, given, []


def event_of(kind: str, more: dict[str, Any]) -> bytes:
    return event(kind.encode(), _encode({"type": kind, **more}))


def block_events(
    index: int, begun: dict[str, Any], deltas: list[dict[str, Any]], closing: list[dict[str, Any]]
) -> bytes:
    told = [event_of("content_block_start", {"index": index, "content_block": begun})]
    told += [event_of("content_block_delta", {"index": index, "delta": delta}) for delta in (*deltas, *closing)]
    return b"".join(told) + event_of("content_block_stop", {"index": index})


def started(identity: str, model: str, tokens: Tokens) -> bytes:
    data = (
        b'{"type":"message_start","message":{"id":"%b","type":"message","role":"assistant","model":%b,"content":[],'
        b'"stop_reason":null,"stop_sequence":null,"stop_details":null,"usage":%b}}'
        % (identity.encode(), _encode(model), full_usage(tokens, 1))
    )
    return event(b"message_start", data)


def ended(reason: bytes, details: bytes, usage: bytes, stopped_by: bytes = b"null") -> bytes:
    data = b'{"type":"message_delta","delta":{"stop_reason":%b,"stop_sequence":%b,"stop_details":%b},"usage":%b}' % (
        reason,
        stopped_by,
        details,
        usage,
    )
    return event(b"message_delta", data)


def usage_of(tokens: Tokens, output: int, thinking: int = 0) -> bytes:
    """The usage at the end of a stream."""
    return (
        b'{"input_tokens":%d,"cache_creation_input_tokens":%d,"cache_read_input_tokens":%d,"output_tokens":%d,'
        b'"output_tokens_details":{"thinking_tokens":%d}}'
        % (tokens.prompt - tokens.cached - tokens.written, tokens.written, tokens.cached, output, thinking)
    )


def full_usage(tokens: Tokens, output: int, thinking: int = 0) -> bytes:
    """The usage of a complete message, including the counts from its start."""
    return (
        b'%b,"cache_creation":{"ephemeral_5m_input_tokens":%d,"ephemeral_1h_input_tokens":%d},'
        b'"service_tier":"standard"}'
        % (usage_of(tokens, output, thinking)[:-1], tokens.written - tokens.lasting, tokens.lasting)
    )


def stop_of(plan: Plan) -> tuple[str, bytes]:
    reason = "refusal" if plan.refused else STOPS.get(plan.finish, plan.finish)
    reason = reason if plan.stopped_by is None else "stop_sequence"
    return reason, b'{"type":"refusal","category":null,"explanation":null}' if reason == "refusal" else b"null"


def input_of(partial: str) -> Any:
    """The arguments as an object; empty if they are not JSON."""
    try:
        return msgspec.json.decode(partial)
    except msgspec.DecodeError:
        return {}


def error_of(kind: str, message: str) -> bytes:
    return _encode({"type": "error", "error": {"type": kind, "message": message}, "request_id": REQUEST_ID})
