"""Streams of OpenAI's two formats, event by event, built from the intended content."""

import json
from collections.abc import Iterator
from typing import Any

PIECE = 7
"""Characters of one delta; no text or arguments here are a multiple of it."""


def pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


# -- responses ---------------------------------------------------------------------------------------------------------


def reasoning(id: str = "rs_1", encrypted: str | None = "gAAAAABo-secret=", **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "reasoning", "encrypted_content": encrypted, "summary": [], **more}


def message(text: str, id: str = "msg_1", phase: str | None = None, status: str = "completed") -> dict[str, Any]:
    content = [{"type": "output_text", "annotations": [], "logprobs": [], "text": text}]
    made = {"id": id, "type": "message", "status": status, "content": content, "role": "assistant"}
    return made if phase is None else {**made, "phase": phase}


def refusal(text: str) -> dict[str, Any]:
    return {**message(""), "content": [{"type": "refusal", "refusal": text}]}


def function_call(name: str, arguments: str, call_id: str = "call_1", id: str = "fc_1") -> dict[str, Any]:
    made = {"id": id, "type": "function_call", "status": "completed", "arguments": arguments}
    return {**made, "call_id": call_id, "name": name}


USAGE = {
    "input_tokens": 81,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 11},
    "output_tokens": 47,
    "output_tokens_details": {"reasoning_tokens": 20},
    "total_tokens": 128,
}


def response(output: list[dict[str, Any]], status: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_790_000_000,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": "m-2026-01-01",
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": "medium", "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": USAGE if status in ("completed", "incomplete") else None,
        **more,
    }


def _of_message(item: dict[str, Any], place: int) -> Iterator[dict[str, Any]]:
    at = {"item_id": item["id"], "output_index": place}
    for number, part in enumerate(item["content"]):
        kind = part["type"]
        name, field = ("refusal", "refusal") if kind == "refusal" else ("output_text", "text")
        here = {**at, "content_index": number}
        yield {"type": "response.content_part.added", **here, "part": {**part, field: ""}}
        for piece in pieces(part[field]):
            yield {"type": f"response.{name}.delta", **here, "delta": piece, "obfuscation": "x1y2"}
        yield {"type": f"response.{name}.done", **here, field: part[field]}
        yield {"type": "response.content_part.done", **here, "part": part}


def _of_item(item: dict[str, Any], place: int) -> Iterator[dict[str, Any]]:
    begun = {**item, "status": "in_progress"}
    match item["type"]:
        case "message":
            yield {"type": "response.output_item.added", "output_index": place, "item": {**begun, "content": []}}
            yield from _of_message(item, place)
        case "function_call":
            at = {"item_id": item["id"], "output_index": place}
            yield {"type": "response.output_item.added", "output_index": place, "item": {**begun, "arguments": ""}}
            for piece in pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **at, "delta": piece, "obfuscation": "Qz"}
            yield {"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"]}
        case "reasoning":
            added = {**item, "encrypted_content": "gAAA-begun"}
            yield {"type": "response.output_item.added", "output_index": place, "item": added}
            for number, part in enumerate(item["summary"]):
                here = {"item_id": item["id"], "output_index": place, "summary_index": number}
                yield {"type": "response.reasoning_summary_part.added", **here, "part": {**part, "text": ""}}
                yield {"type": "response.reasoning_summary_text.delta", **here, "delta": part["text"]}
                yield {"type": "response.reasoning_summary_text.done", **here, "text": part["text"]}
                yield {"type": "response.reasoning_summary_part.done", **here, "part": part}
        case _:
            yield {"type": "response.output_item.added", "output_index": place, "item": begun}
    yield {"type": "response.output_item.done", "output_index": place, "item": item}


def events(output: list[dict[str, Any]], status: str = "completed", **more: Any) -> list[dict[str, Any]]:
    """All events of a response with this end."""
    told: list[dict[str, Any]] = [
        {"type": "response.created", "response": response([], "in_progress")},
        {"type": "response.in_progress", "response": response([], "in_progress")},
    ]
    for place, item in enumerate(output):
        told += _of_item(item, place)
    return [*told, {"type": f"response.{status}", "response": response(output, status, **more)}]


def responses_stream(told: list[dict[str, Any]]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps({**event, "sequence_number": n}).encode())
        for n, event in enumerate(told)
    )


MANY = [
    reasoning(summary=[{"type": "summary_text", "text": "Two files."}]),
    message("I'll look at both: ä 🌊", "msg_1", "commentary"),
    reasoning("rs_2", "gAAAAABo-more="),
    function_call("read_file", '{"path": "ä/ö.txt"}', "call_1", "fc_1"),
    function_call("clock", "{}", "call_2", "fc_2"),
]
TWICE = [message("First this.", "msg_1", "commentary"), message("Then that.", "msg_2", "final_answer")]

RESPONSES = {
    "plain": events([message('Hello, 世界! \\ "quoted"')]),
    "parallel tool calls": events([function_call("clock", "{}"), function_call("x", '{"a":1}', "call_2", "fc_2")]),
    "reasoning, words and calls": events(MANY),
    "two messages": events(TWICE),
    "refusal": events([refusal("I can't help with that.")]),
    "nothing": events([message("")]),
    "no room": events(
        [reasoning(), message("This is as far as", status="incomplete")],
        "incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    ),
    "no room to think": events([reasoning()], "incomplete", incomplete_details={"reason": "max_output_tokens"}),
    "filtered": events(
        [message("Well", status="incomplete")], "incomplete", incomplete_details={"reason": "content_filter"}
    ),
}

FAILING = {
    "failed": events([], "failed", error={"code": "rate_limit_exceeded", "message": "Rate limit reached."}),
    "failed after words": events([message("Hel")], "failed", error={"code": "server_error", "message": "Sorry."}),
    "error": [
        *events([])[:2],
        {"type": "error", "code": "server_error", "message": "The server had an error.", "param": None},
    ],
    "nested error": [
        *events([])[:2],
        {"type": "error", "error": {"type": "tokens", "code": "rate_limit_exceeded", "message": "Too fast."}},
    ],
}


# -- chat --------------------------------------------------------------------------------------------------------------


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    made = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "m-2026-01-01"}
    return b"data: %b\n\n" % json.dumps({**made, "system_fingerprint": "fp_1", "choices": choices, **more}).encode()


CHAT_USAGE = {
    "prompt_tokens": 81,
    "completion_tokens": 47,
    "total_tokens": 128,
    "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 20, "audio_tokens": 0},
}


def chat_stream(*deltas: dict[str, Any], finish: str) -> bytes:
    return b"".join(
        [
            chunk({"role": "assistant", "content": None, "refusal": None}),
            *map(chunk, deltas),
            chunk({}, finish),
            chunk(None, usage=CHAT_USAGE),
            b"data: [DONE]\n\n",
        ]
    )


def calling(index: int, name: str, arguments: str) -> list[dict[str, Any]]:
    first = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
    rest = [{"index": index, "function": {"arguments": piece}} for piece in pieces(arguments)]
    return [{"tool_calls": [piece]} for piece in [first, *rest]]


CHAT = {
    "plain": chat_stream(*({"content": piece} for piece in pieces('Hello, 世界! \\ "quoted"')), finish="stop"),
    "parallel tool calls": chat_stream(
        *calling(0, "clock", "{}"), *calling(1, "read_file", '{"path": "ä/ö.txt"}'), finish="tool_calls"
    ),
    "words and calls": chat_stream({"content": "Let me see."}, *calling(0, "clock", '{"a":1}'), finish="tool_calls"),
    "refusal": chat_stream(*({"refusal": piece} for piece in pieces("I can't help with that.")), finish="stop"),
    "no room": chat_stream({"content": "This is as far as"}, finish="length"),
    "filtered": chat_stream({"content": "Well"}, finish="content_filter"),
}

CHAT_FAILING = chunk({"role": "assistant", "content": "Hel"}) + (
    b'data: {"error":{"message":"The server had an error.","type":"server_error","param":null,"code":null}}\n\n'
)
