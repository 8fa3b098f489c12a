"""Comparison with Anthropic's own package: it accepts our requests, and both parse answers to the same result."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, get_type_hints

import anthropic
import anyio
import msgspec
import pytest
from anthropic import types
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tests.models.anthropic_streams import BROKEN_OFF, OVERLOADED, STREAMS
from tests.models.test_anthropic_wire import (
    ADAPTIVE,
    BUDGET,
    MODEL,
    OWN,
    PLAIN,
    WIRE,
    check,
    conversations,
    encoded,
    thinking_message,
)
from tidegate.errors import ModelFailed
from tidegate.models.formats.answer import AnswerError
from tidegate.models.formats.anthropic.messages import AnthropicMessages, AnthropicWire
from tidegate.models.formats.anthropic.messages_answer import AnthropicAnswer
from tidegate.values import Call, Message, Prefix, ToolDefinition

SECONDS = 20

# -- requests --------------------------------------------------------------------------------------

BLOCKS: dict[str, Any] = {
    "text": types.TextBlockParam,
    "image": types.ImageBlockParam,
    "document": types.DocumentBlockParam,
    "tool_use": types.ToolUseBlockParam,
    "tool_result": types.ToolResultBlockParam,
    "thinking": types.ThinkingBlockParam,
    "redacted_thinking": types.RedactedThinkingBlockParam,
}
THINKING: dict[str, Any] = {
    "enabled": types.ThinkingConfigEnabledParam,
    "disabled": types.ThinkingConfigDisabledParam,
    "adaptive": types.ThinkingConfigAdaptiveParam,
}
CHOICES: dict[str, Any] = {
    "auto": types.ToolChoiceAutoParam,
    "any": types.ToolChoiceAnyParam,
    "tool": types.ToolChoiceToolParam,
    "none": types.ToolChoiceNoneParam,
}
# Accepted by the API version that these models use; the package knows a newer one.
OLDER = {"temperature", "top_p"}


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def strictly(kind: Any, value: dict[str, Any]) -> None:
    """Parse strictly: the package's types accept unknown fields."""
    adapter(kind).validate_python(value)
    assert set(value) <= set(get_type_hints(kind)), kind
    if marked := value.get("cache_control"):
        strictly(types.CacheControlEphemeralParam, marked)


def validate(request: Any) -> None:
    """Validate each part by the package's exact type for it. The package checks lists only when they are read, and of a
    union of blocks it accepts the most lenient."""
    for message in request["messages"]:
        strictly({"user": types.UserMessageParam, "assistant": types.AssistantMessageParam}[message["role"]], message)
        for block in message["content"]:
            strictly(BLOCKS[block["type"]], block)
            for part in block["content"] if block["type"] == "tool_result" else ():
                assert part["type"] in ("text", "image", "document")
                strictly(BLOCKS[part["type"]], part)
    for tool in request.get("tools", ()):
        strictly(types.ToolParam, tool)
    for block in request.get("system", ()):
        strictly(types.TextBlockParam, block)
    if thinking := request.get("thinking"):
        strictly(THINKING[thinking["type"]], thinking)
    if choice := request.get("tool_choice"):
        strictly(CHOICES[choice["type"]], choice)
    if config := request.get("output_config"):
        strictly(types.OutputConfigParam, config)
        if shape := config.get("format"):
            strictly(types.JSONOutputFormatParam, shape)
    if metadata := request.get("metadata"):
        strictly(types.MetadataParam, metadata)
    strictly(MessageCreateParamsStreaming, {name: value for name, value in request.items() if name not in OLDER})


BROUGHT = ToolDefinition(name="f", description="d", strict=True)

calls = st.builds(
    Call,
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1),
    max_tokens=st.none() | st.integers(1, 200_000),
    reasoning=st.sampled_from([None, "off", "minimal", "low", "medium", "high", "max"]),
    stop=st.sampled_from([(), ("a", "b")]),
    user=st.none() | st.text(max_size=300),
    metadata=st.sampled_from([None, {"a": 1}]),
    tool_choice=st.sampled_from(
        [b"", b'"none"', b'"auto"', b'"required"', b'{"type":"function","function":{"name":"f"}}']
    ),
    response_format=st.sampled_from(
        [b"", b'{"type":"text"}', b'{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}']
    ),
)


@given(conversations(), calls, st.sampled_from([ADAPTIVE, BUDGET, PLAIN]), st.sampled_from(["5m", "1h"]), st.booleans())
def test_every_request_is_one_that_the_official_package_would_send(
    groups: list[list[Message]], call: Call, facts: Any, ttl: Any, tools: bool
) -> None:
    """S32: for any conversation, with any settings."""
    wire = AnthropicWire(MODEL, facts, cache_ttl=ttl)
    prefix = wire.encode_prefix(
        Prefix(prompt="You are a test.", tools=(OWN,) if tools else (), caller_tools=(BROUGHT,) if tools else ())
    )
    history = [piece for group in groups if (piece := encoded(group, wire))]
    try:
        request = msgspec.json.decode(b"".join(wire.body(prefix, history, call)))
    except ModelFailed as refused:
        assert refused.param in OLDER
        assert {call.temperature, call.top_p} - {None, 1}
        return
    check(request)
    validate(request)
    thinking = request.get("thinking", {})
    if thinking.get("type") == "enabled":
        assert 1024 <= thinking["budget_tokens"] < request["max_tokens"]
        assert not OLDER & set(request)
        assert request.get("tool_choice", {}).get("type") not in ("any", "tool")
    assert len(OLDER & set(request)) < 2
    assert 0 <= request.get("temperature", 0) <= 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "extra": 1}]}]},
        {"messages": [], "thinking": {"type": "enabled"}},
        {"messages": [], "unknown": 1},
        {"messages": [], "output_config": {"effort": "minimal"}},
    ],
)
def test_the_validation_itself_finds_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValidationError, AssertionError)):
        validate({"model": "m", "max_tokens": 1, "stream": True, **wrong})


# -- answers ---------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(body: bytes, kind: bytes = b"text/event-stream") -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers every request with these bytes, and the requests that it received."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith(b"content-length:"))
        asked.extend((head, await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)))
        for at in range(0, len(body), 97):
            writer.write(body[at : at + 97])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def official(base_url: str, **request: Any) -> types.Message:
    asking: Any = request or {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "x"}]}
    client = anthropic.AsyncAnthropic(base_url=base_url, api_key="k", max_retries=0)
    with anyio.fail_after(SECONDS):
        async with client, client.messages.stream(**asking) as stream:
            return await stream.get_final_message()


async def ours(base_url: str, form: AnthropicMessages) -> AnthropicAnswer:
    """Our parse of the bytes from the socket, without the rest of the gateway."""
    host, port = base_url.removeprefix("http://").split(":")
    with anyio.fail_after(SECONDS):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        await reader.readuntil(b"\r\n\r\n")
        answer = form.answer(64 * 1024, lambda text: None)
        try:
            while not answer.done and (received := await reader.read(113)):
                answer.feed(received)
            answer.end()
        finally:
            writer.close()
    return answer


FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


def parse(arguments: str) -> Any:
    """Parse like the package, which accepts the beginning of an object."""
    from jiter import from_json

    return from_json(arguments.encode(), partial_mode=True)


def same(theirs: types.Message, message: Message) -> None:
    texts = [block.text for block in theirs.content if block.type == "text"]
    assert message.text == "".join(texts)
    uses = [(block.id, block.name, block.input) for block in theirs.content if block.type == "tool_use"]
    assert [(call.id, call.name, parse(call.arguments)) for call in message.calls] == uses
    thoughts = [
        block.to_dict() for block in theirs.content if block.type == "thinking" or block.type == "redacted_thinking"
    ]
    carried: Iterable[Any] = (msgspec.json.decode(carried.item) for carried in message.carried)
    assert [item for item in carried if item is not None] == thoughts
    assert message.finish == FINISHES[theirs.stop_reason or ""]
    assert message.usage is not None
    written, cached = theirs.usage.cache_creation_input_tokens or 0, theirs.usage.cache_read_input_tokens or 0
    assert message.usage.input == theirs.usage.input_tokens + written + cached
    assert (message.usage.written, message.usage.cached) == (written, cached)
    assert message.usage.output == theirs.usage.output_tokens
    details = theirs.usage.output_tokens_details
    assert message.usage.reasoning == (details.thinking_tokens if details else 0)


@pytest.mark.anyio
@pytest.mark.parametrize("name", list(STREAMS))
async def test_the_official_client_and_ours_read_the_same_message(name: str) -> None:
    """Text, calls, reasoning with signatures, stop reason and usage."""
    async with serving(STREAMS[name]) as (base_url, _):
        theirs = await official(base_url)
        answer = await ours(base_url, AnthropicMessages(MODEL, ADAPTIVE))
    assert answer.complete
    same(theirs, answer.message(MODEL))


@pytest.mark.anyio
async def test_the_official_client_and_ours_report_the_same_error() -> None:
    async with serving(BROKEN_OFF) as (base_url, _):
        with pytest.raises(anthropic.APIStatusError) as theirs:
            await official(base_url)
        with pytest.raises(AnswerError) as caught:
            await ours(base_url, AnthropicMessages(MODEL, ADAPTIVE))
    assert theirs.value.body == OVERLOADED
    assert msgspec.json.decode(caught.value.complaint) == OVERLOADED["error"]


@pytest.mark.anyio
async def test_a_request_of_ours_sent_by_the_official_client_is_the_same_request() -> None:
    """S32: the official client neither drops nor changes any of it."""
    history = [WIRE.encode(Message(role="user", text="x")), WIRE.encode(thinking_message())]
    history.append(WIRE.encode_results([Message(role="tool", call_id=name, text="y") for name in ("a", "b")]))
    prefix = WIRE.encode_prefix(Prefix(prompt="p", tools=(OWN,)))
    request = msgspec.json.decode(b"".join(WIRE.body(prefix, history, Call(reasoning="high", user="u"))))
    async with serving(STREAMS["plain"]) as (base_url, asked):
        await official(base_url, **{name: value for name, value in request.items() if name != "stream"})
    head, sent = asked
    assert msgspec.json.decode(sent) == request
    assert head.startswith(b"POST /v1" + AnthropicMessages.path.encode() + b" ")
    version = AnthropicMessages(MODEL, ADAPTIVE).headers("k")["anthropic-version"]
    assert f"anthropic-version: {version}".encode() in head.lower()


@pytest.mark.anyio
async def test_a_complete_body_is_parsed_like_the_official_client_does() -> None:
    body = msgspec.json.encode(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s=="},
                {"type": "text", "text": "Grüße"},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1, None]}},
            ],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 3, "output_tokens": 4, "cache_read_input_tokens": 5},
        }
    )
    async with serving(body, b"application/json") as (base_url, _):
        client = anthropic.AsyncAnthropic(base_url=base_url, api_key="k", max_retries=0)
        with anyio.fail_after(SECONDS):
            async with client:
                theirs = await client.messages.create(
                    model=MODEL, max_tokens=10, messages=[{"role": "user", "content": "x"}]
                )
    answer = AnthropicAnswer(64 * 1024, lambda text: None)
    answer.whole(body)
    assert answer.message(MODEL).text == "Grüße"
    same(theirs, answer.message(MODEL))
