"""Comparison with OpenAI's own package: it accepts our requests, and both parse answers to the same result."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import openai
import pytest
from hypothesis import given, settings
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from tests.models import recordings as recorded
from tests.models.streams import outcome
from tests.models.transcripts import groups, prefixes, users
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.answer import AnswerError, IncomingAnswer
from tidegate.models.formats.openai.chat import ChatWire
from tidegate.models.formats.openai.chat_answer import ChatAnswer
from tidegate.models.formats.openai.responses import ResponsesWire
from tidegate.models.formats.openai.responses_answer import BETWEEN_MESSAGES, ResponsesAnswer
from tidegate.values import Call, Media, Message, Prefix, ToolDefinition

pytestmark = pytest.mark.anyio

FACTS = Facts(vision=True, audio=True, thinking="effort", efforts=("none", "low", "medium", "high", "xhigh"))
TOOLS = (ToolDefinition(name="clock", description="Tells the time."),)
OWN = ToolDefinition(name="own", description="D", parameters=msgspec.Raw(b'{"type":"object"}'), strict=True)
PREFIX = Prefix(prompt="You are a test.", tools=TOOLS, caller_tools=(OWN,))
PICTURE = Media(media_type="image/png", data=b"\x89PNG", width=4, height=3)
SOUND = Media(media_type="audio/wav", data=b"RIFF", seconds=1.0)
DOCUMENT = Media(media_type="application/pdf", data=b"%PDF-1.7", name="a.pdf", size=8)
CALLS = [
    Call(),
    Call(temperature=0.5, top_p=0.9, max_tokens=70, reasoning="off", user="u", metadata={"a": "b"}),
    Call(temperature=1, max_tokens=70, reasoning="max"),
    Call(
        reasoning="off",
        tool_choice=b'{"type":"function","function":{"name":"own"}}',
        response_format=b'{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"},"strict":true}}',
    ),
    Call(tool_choice=b'"required"', response_format=b'{"type":"json_object"}'),
]


# -- requests ----------------------------------------------------------------------------------------------------------


def strict(kind: Any) -> Callable[[bytes], Any]:
    validator = SchemaValidator(_tightened(TypeAdapter[Any](kind).core_schema))
    return validator.validate_json


def _tightened(schema: Any) -> Any:
    """The type without unknown keys, which pydantic would ignore, and with lists for iterables, whose items it would
    not check."""
    if isinstance(schema, dict):
        if schema.get("type") == "typed-dict":
            schema["extra_behavior"] = "forbid"
        if schema.get("type") == "generator":
            schema["type"] = "list"
        for inner in schema.values():
            _tightened(inner)
    elif isinstance(schema, list | tuple):
        for inner in schema:
            _tightened(inner)
    return schema


check_chat = strict(CompletionCreateParamsStreaming)
check_responses = strict(ResponseCreateParamsStreaming)


def test_the_validation_itself_finds_errors() -> None:
    good = b'{"model":"m","stream":true,"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}'
    assert check_chat(good) == msgspec.json.decode(good)
    for wrong in (good.replace(b'"stream"', b'"strem"'), good.replace(b'"text":"a"', b'"text":"a","x":1')):
        with pytest.raises(ValidationError):
            check_chat(wrong)
    good = b'{"model":"m","stream":true,"input":[{"role":"user","content":"a","type":"message"}]}'
    assert check_responses(good) == msgspec.json.decode(good)
    for wrong in (good.replace(b'"type"', b'"typ"'), good.replace(b'"message"', b'"massage"')):
        with pytest.raises(ValidationError):
            check_responses(wrong)


def history(wire: ChatWire | ResponsesWire, answers: list[Message]) -> list[bytes]:
    """A conversation with everything in it: each answer's calls get results, with pictures, sounds and documents."""
    shown = (PICTURE, DOCUMENT, SOUND)
    made = [wire.encode(Message(role="user", text="look", aside="a note", media=shown))]
    for answer in answers:
        made.append(wire.encode(answer))
        results = [
            Message(role="tool", call_id=call.id, name=call.name, text="done", media=shown[: len(call.name) % 4])
            for call in answer.calls
        ]
        made.append(wire.encode_results(results) if results else b"")
    return [piece for piece in made if piece]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_a_chat_request_is_what_the_official_package_would_send(call: Call) -> None:
    """S32, A2: no unknown field, and none missing."""
    wire = ChatWire("m", FACTS, completion_tokens=True)
    answers = [answered(ChatAnswer, stream) for stream in recorded.CHAT.values()]
    body = b"".join(wire.body(wire.encode_prefix(PREFIX), history(wire, answers), call))
    assert check_chat(body) == msgspec.json.decode(body)


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_a_responses_request_is_what_the_official_package_would_send(call: Call) -> None:
    """S32, A2: with reasoning and phases returned as the package's own items."""
    wire = ResponsesWire("m", FACTS)
    answers = [answered(ResponsesAnswer, recorded.responses_stream(told)) for told in recorded.RESPONSES.values()]
    body = b"".join(wire.body(wire.encode_prefix(PREFIX), history(wire, answers), call))
    assert b"gAAAAABo-secret=" in body and b'"commentary"' in body
    assert check_responses(body) == msgspec.json.decode(body)


@settings(max_examples=60, deadline=None)
@given(prefixes, groups(users))
def test_any_conversation_is_one_that_the_official_package_could_send(
    prefix: Prefix, past: list[list[Message]]
) -> None:
    """S32"""
    wires: list[tuple[Any, Callable[[bytes], Any]]] = [
        (ChatWire("m", FACTS), check_chat),
        (ResponsesWire("m", FACTS), check_responses),
    ]
    for wire, check in wires:
        pieces = [wire.encode_results(group) if group[0].role == "tool" else wire.encode(group[0]) for group in past]
        body = b"".join(wire.body(wire.encode_prefix(prefix), pieces, Call()))
        assert check(body) == msgspec.json.decode(body)


# -- answers -----------------------------------------------------------------------------------------------------------


def answered(kind: type[ChatAnswer] | type[ResponsesAnswer], stream: bytes) -> Message:
    def new(shown: list[str]) -> IncomingAnswer:
        return kind(65_536, shown.append)

    found = outcome(new, stream)
    assert isinstance(found, Message), found
    return found


@asynccontextmanager
async def serving(stream: bytes) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client, and a server that sends one answer to everything, in small pieces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for at in range(0, len(stream), 1000):
            writer.write(stream[at : at + 1000])
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0) as client:
        try:
            with anyio.fail_after(30):
                yield client
        finally:
            server.close()
            await server.wait_closed()


Seen = tuple[str, list[tuple[str, str, str]], str, tuple[int, int, int, int]]


def ours(message: Message) -> Seen:
    usage = message.usage
    assert usage is not None
    calls = [(call.id, call.name, call.arguments) for call in message.calls]
    return message.text, calls, message.finish, (usage.input, usage.cached, usage.output, usage.reasoning)


@pytest.mark.parametrize("name", recorded.CHAT)
async def test_both_read_the_same_chat_stream_alike(name: str) -> None:
    """S32, A2: text, calls, finish and usage."""
    said: Any = [{"role": "user", "content": "hi"}]
    async with serving(recorded.CHAT[name]) as client, client.chat.completions.stream(model="m", messages=said) as seen:
        async for _ in seen:
            pass
        snapshot: Any = seen.current_completion_snapshot
    choice, usage = snapshot.choices[0], snapshot.usage
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    text = (choice.message.content or "") + (choice.message.refusal or "")
    cached, thought = usage.prompt_tokens_details.cached_tokens, usage.completion_tokens_details.reasoning_tokens
    counted = (usage.prompt_tokens, cached, usage.completion_tokens, thought)
    finish = "content_filter" if choice.message.refusal else choice.finish_reason
    assert ours(answered(ChatAnswer, recorded.CHAT[name])) == (text, calls, finish, counted)


async def test_both_see_an_error_in_a_chat_stream() -> None:
    said: Any = [{"role": "user", "content": "hi"}]
    async with serving(recorded.CHAT_FAILING) as client:
        with pytest.raises(openai.APIError, match="The server had an error"):
            async with client.chat.completions.stream(model="m", messages=said) as seen:
                async for _ in seen:
                    pass
    found = outcome(lambda shown: ChatAnswer(4096, shown.append), recorded.CHAT_FAILING)
    assert isinstance(found, AnswerError) and b"The server had an error" in found.complaint


FINISHES = {None: "stop", "max_output_tokens": "length", "content_filter": "content_filter"}


ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


async def officially(told: list[dict[str, Any]]) -> Any:
    """The last event from the official client, with its accumulated response."""
    async with (
        serving(recorded.responses_stream(told)) as client,
        client.responses.stream(model="m", input="hi") as seen,
    ):
        ends = [event async for event in seen if event.type in ENDS]
    return ends[-1]


@pytest.mark.parametrize("name", recorded.RESPONSES)
async def test_both_read_the_same_responses_stream_alike(name: str) -> None:
    """S32, A2: text, calls, items, finish and usage."""
    response = (await officially(recorded.RESPONSES[name])).response
    texts = [
        "".join(str(getattr(part, "text", "") or getattr(part, "refusal", "")) for part in item.content)
        for item in response.output
        if item.type == "message"
    ]
    calls = [(item.call_id, item.name, item.arguments) for item in response.output if item.type == "function_call"]
    reason = response.incomplete_details.reason if response.incomplete_details else None
    usage = response.usage
    counted = (
        usage.input_tokens,
        usage.input_tokens_details.cached_tokens,
        usage.output_tokens,
        usage.output_tokens_details.reasoning_tokens,
    )
    message = answered(ResponsesAnswer, recorded.responses_stream(recorded.RESPONSES[name]))
    refused = any(part.type == "refusal" for item in response.output if item.type == "message" for part in item.content)
    finish = "content_filter" if refused else "tool_calls" if calls else FINISHES[reason]
    assert ours(message) == (BETWEEN_MESSAGES.join(texts), calls, finish, counted)
    assert message.usage is not None and message.usage.written == usage.input_tokens_details.cache_write_tokens
    thoughts = [item.to_dict() for item in response.output if item.type == "reasoning"]
    back = msgspec.json.decode(b"[" + ResponsesWire("m", FACTS).encode(message) + b"]")
    kept = [item for item in back if item["type"] == "reasoning"]
    assert kept == (thoughts if message.text or message.calls else [])


@pytest.mark.parametrize("name", recorded.FAILING)
async def test_both_see_that_a_response_failed(name: str) -> None:
    """A2: by an event, or by an error in the stream."""
    told = recorded.FAILING[name]
    found = outcome(lambda shown: ResponsesAnswer(4096, shown.append), recorded.responses_stream(told))
    assert isinstance(found, AnswerError)
    said = msgspec.json.decode(found.complaint)
    try:
        event = await officially(told)
    except openai.APIError as error:
        assert error.message == said["message"]
    else:
        told_by = event if event.type == "error" else event.response.error
        assert (told_by.message, told_by.code) == (said["message"], said["code"])
