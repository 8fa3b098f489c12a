"""Streams as sent by Anthropic's Messages API, for the tests of its parser."""

from typing import Any

import msgspec

SIGNATURE = "EqQBCkYIBxgCKkBXo4Zs0vJ1bQ9x8fH2mC0e7aR5uD3nP6wYtKqLsVgJhEiOzNcMfXbTrUyW/lAd+SkQjGpHvB4=="
USAGE = {
    "input_tokens": 12,
    "cache_creation_input_tokens": 340,
    "cache_read_input_tokens": 5600,
    "cache_creation": {"ephemeral_5m_input_tokens": 340, "ephemeral_1h_input_tokens": 0},
    "output_tokens": 1,
    "service_tier": "standard",
    "inference_geo": "global",
}


def sse(*events: Any) -> bytes:
    """Named events, each with its JSON on one line."""
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event)) for event in events
    )


def start(**changed: Any) -> dict[str, Any]:
    message: dict[str, Any] = {
        "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-5-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": USAGE,
    }
    return {"type": "message_start", "message": {**message, **changed}}


def begin(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def text(index: int, *pieces: str) -> list[dict[str, Any]]:
    deltas = [delta(index, type="text_delta", text=piece) for piece in pieces]
    return [begin(index, type="text", text=""), *deltas, stop(index)]


def thinking(index: int, *pieces: str, signature: str = SIGNATURE) -> list[dict[str, Any]]:
    deltas = [delta(index, type="thinking_delta", thinking=piece) for piece in pieces]
    signed = delta(index, type="signature_delta", signature=signature)
    return [begin(index, type="thinking", thinking="", signature=""), *deltas, signed, stop(index)]


def redacted(index: int, data: str) -> list[dict[str, Any]]:
    return [begin(index, type="redacted_thinking", data=data), stop(index)]


def tool(index: int, id: str, name: str, *pieces: str) -> list[dict[str, Any]]:
    deltas = [delta(index, type="input_json_delta", partial_json=piece) for piece in ("", *pieces)]
    return [begin(index, type="tool_use", id=id, name=name, input={}), *deltas, stop(index)]


def end(reason: str, output: int, **more: Any) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": None, **more.pop("delta", {})}
    usage = {"output_tokens": output, **more}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


PING = {"type": "ping"}
DETAILS = {"output_tokens_details": {"thinking_tokens": 57}}

STREAMS: dict[str, bytes] = {
    "plain": sse(
        start(), begin(0, type="text", text=""), PING, *text(0, "Hello", ", wörld 🌊", "!")[1:], *end("end_turn", 9)
    ),
    "thinking and parallel calls": sse(
        start(),
        *thinking(0, "The user wants two files.\n", 'Both "at once", then.'),
        *text(1, "I'll read both."),
        *tool(2, "toolu_01A09q90qw90lq917835lq9", "read_file", '{"path":', ' "a/ä.txt"', "}"),
        PING,
        *tool(3, "toolu_01T1x1fJ34qAmk2tNTrN7Up6", "clock"),
        *tool(4, "toolu_01B2y2gK45rBnl3uOUsO8Vq7", "read_file", '{"path": "b", "lines": [1, 2.50]}'),
        *end("tool_use", 321, **DETAILS),
    ),
    "interleaved thoughts": sse(
        start(),
        *thinking(0, "one"),
        *tool(1, "toolu_1", "clock"),
        *thinking(2, signature="c2Vjb25k"),
        *text(3, "Meanwhile: ", "this."),
        *tool(4, "toolu_2", "clock", "{}"),
        *end("tool_use", 80, **DETAILS),
    ),
    "text after calls": sse(
        start(),
        *text(0, "Grüße: "),
        *tool(1, "toolu_1", "clock"),
        *text(2, "wörter ", "und"),
        *thinking(3, "two"),
        *text(4, "🌊"),
        *tool(5, "toolu_2", "clock"),
        *tool(6, "toolu_3", "clock"),
        *text(7, "end"),
        *end("tool_use", 80),
    ),
    "redacted thoughts": sse(
        start(),
        *redacted(0, "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyIw"),
        *thinking(1, "ok"),
        *text(2, "Done."),
        *end("end_turn", 44),
    ),
    "refusal": sse(
        start(),
        *text(0, "I can"),
        *end("refusal", 3, delta={"stop_details": {"type": "refusal", "category": "cyber", "explanation": "No."}}),
    ),
    "cut by the limit in a call": sse(
        start(),
        *text(0, "Let me"),
        *tool(1, "toolu_9", "write_file", '{"path": "x", "text": "aaaa'),
        *end("max_tokens", 4096),
    ),
    "cut by the limit in a thought": sse(
        start(),
        begin(0, type="thinking", thinking="", signature=""),
        delta(0, type="thinking_delta", thinking="So let us"),
        stop(0),
        *end("max_tokens", 1024),
    ),
    "a stop sequence": sse(start(), *text(0, "a b "), *end("stop_sequence", 3, delta={"stop_sequence": "END"})),
    "nothing": sse(start(), *end("end_turn", 2)),
    "counted again at the end": sse(
        start(),
        *text(0, "x"),
        *end("end_turn", 7, input_tokens=20, cache_creation_input_tokens=0, cache_read_input_tokens=0),
    ),
    "a tool of the server": sse(
        start(),
        *text(0, "I'll look. "),
        begin(1, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        delta(1, type="input_json_delta", partial_json='{"query": "tides"}'),
        stop(1),
        begin(2, type="web_search_tool_result", tool_use_id="srvtoolu_1", content=[]),
        stop(2),
        begin(3, type="text", text="", citations=[]),
        delta(3, type="text_delta", text="Twice a day."),
        stop(3),
        *end("end_turn", 30),
    ),
}

OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "req_1"}
BROKEN_OFF = sse(start(), *text(0, "Hel")[:2], OVERLOADED)
