"""Encoding for chat completions: deterministic to the byte, and growing only at the end."""

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ModelFailed
from tidegate.models.openai_wire import ASIDE_HEADING, OpenAIWire
from tidegate.values import Call, Message, Prefix, ToolCall, ToolDefinition

WIRE = OpenAIWire()
texts = st.text(max_size=60)
calls = st.builds(ToolCall, id=texts, name=texts, arguments=texts)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    text=texts,
    aside=texts,
    calls=st.lists(calls, max_size=3).map(tuple),
    call_id=texts,
)
tools = st.builds(
    ToolDefinition, name=texts, description=texts, parameters=st.just(msgspec.Raw(b'{"type": "object", "x":[1 ,2]}'))
)
prefixes = st.builds(Prefix, prompt=texts, tools=st.lists(tools, max_size=3).map(tuple))


@given(messages)
def test_a_message_reloaded_from_the_store_encodes_to_the_same_bytes(message: Message) -> None:
    """B4, S32: JSON there and back changes no byte of the request."""
    stored = msgspec.json.decode(msgspec.json.encode(message), type=Message)
    assert WIRE.encode(stored) == WIRE.encode(message) == OpenAIWire().encode(message)


@given(messages)
def test_encoded_messages_are_canonical_json(message: Message) -> None:
    """S32: decoding and encoding again gives the same bytes, so that canonical content and bytes agree."""
    encoded = WIRE.encode(message)
    assert msgspec.json.encode(msgspec.json.decode(encoded)) == encoded


@given(prefixes)
def test_a_prefix_reloaded_from_the_store_encodes_to_the_same_bytes(prefix: Prefix) -> None:
    """A4, S32: prompt and tools, with each schema verbatim."""
    stored = msgspec.json.decode(msgspec.json.encode(prefix), type=Prefix)
    assert WIRE.encode_prefix(stored) == WIRE.encode_prefix(prefix)
    if prefix.tools:
        assert b'{"type": "object", "x":[1 ,2]}' in WIRE.encode_prefix(prefix).tools


@given(prefixes, st.lists(messages, min_size=1, max_size=5), st.lists(messages, min_size=1, max_size=3))
def test_the_next_request_begins_with_the_previous_one(
    prefix: Prefix, past: list[Message], fresh: list[Message]
) -> None:
    """S32, B4: all of a request but its closing brackets is the beginning of the conversation's next request."""
    encoded = WIRE.encode_prefix(prefix)
    history = [WIRE.encode(message) for message in past]
    before = WIRE.body("m", encoded, history, Call(), stream=True)
    after = WIRE.body("m", encoded, history + [WIRE.encode(message) for message in fresh], Call(), stream=True)
    assert after.startswith(before[:-2] + b",")
    assert len(msgspec.json.decode(after)["messages"]) == len(past) + len(fresh) + bool(prefix.prompt)


def test_a_long_history_is_copied_once_into_its_request() -> None:
    """L22: a request takes its own size while it is written, not twice that."""
    prefix = WIRE.encode_prefix(Prefix(prompt="p"))
    history = [WIRE.encode(Message(role="user", text="x" * 65_536)) for _ in range(64)]
    tracemalloc.start()
    try:
        body = WIRE.body("m", prefix, history, Call(), stream=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * len(body)


@pytest.mark.parametrize("prompt", ["", "p"])
@pytest.mark.parametrize("said", [(), ("a",), ("a", "b")])
def test_messages_are_whole_with_and_without_a_prompt(prompt: str, said: tuple[str, ...]) -> None:
    """S32: however few there are."""
    history = [WIRE.encode(Message(role="user", text=text)) for text in said]
    body = WIRE.body("m", WIRE.encode_prefix(Prefix(prompt=prompt)), history, Call(), stream=False)
    shown = [message["content"] for message in msgspec.json.decode(body)["messages"]]
    assert shown == [*filter(None, (prompt,)), *said]


def test_the_body_has_parameters_and_tools_before_messages() -> None:
    """S32: what grows comes last."""
    prefix = WIRE.encode_prefix(Prefix(prompt="p", tools=(ToolDefinition(name="t", description="d"),)))
    call = Call(temperature=0.5, max_tokens=7, stop=("x",), reasoning="off", user="u", metadata={"a": "b"})
    body = msgspec.json.decode(WIRE.body("m", prefix, [b'{"role":"user","content":"hi"}'], call, stream=True))
    assert list(body) == [
        *("model", "stream", "stream_options", "temperature", "max_tokens", "reasoning_effort", "stop", "user"),
        *("metadata", "tools", "messages"),
    ]
    assert body["reasoning_effort"] == "none"
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


@pytest.mark.parametrize("effort", ["off", "minimal", "low", "medium", "high", "max"])
def test_reasoning_effort_touches_neither_prefix_nor_messages(effort: str) -> None:
    """A3, S32: it is a parameter of the call; tools and messages stay the same bytes."""
    prefix = WIRE.encode_prefix(Prefix(prompt="p", tools=(ToolDefinition(name="t", description="d"),)))
    plain = WIRE.body("m", prefix, [b"{}"], Call(), stream=True)
    asked = WIRE.body("m", prefix, [b"{}"], Call(reasoning=effort), stream=True)
    assert plain.partition(b',"tools":')[2] == asked.partition(b',"tools":')[2]


def test_what_the_gateway_adds_to_a_message_is_kept_apart_from_the_users_words() -> None:
    """S32: an aside is a part of its own, marked as not the user's, and stays with its message."""
    encoded = msgspec.json.decode(WIRE.encode(Message(role="user", text="hello", aside="It is Monday.")))
    assert encoded["content"] == [
        {"text": "hello", "type": "text"},
        {"text": ASIDE_HEADING + "It is Monday.", "type": "text"},
    ]


def test_tool_arguments_go_out_verbatim() -> None:
    """S32: also when they are not valid JSON."""
    call = ToolCall(id="c1", name="read_file", arguments='{ "path":  "a" , broken')
    encoded = msgspec.json.decode(WIRE.encode(Message(role="assistant", calls=(call,))))
    assert encoded["content"] is None
    assert encoded["tool_calls"][0]["function"]["arguments"] == call.arguments


def test_the_output_limit_has_the_name_that_the_service_knows() -> None:
    older = msgspec.json.decode(
        WIRE.body("m", WIRE.encode_prefix(Prefix(prompt="")), [], Call(max_tokens=5), stream=False)
    )
    newer_wire = OpenAIWire(completion_tokens=True)
    newer = msgspec.json.decode(
        newer_wire.body("m", WIRE.encode_prefix(Prefix(prompt="")), [], Call(max_tokens=5), stream=False)
    )
    assert older == {"model": "m", "stream": False, "max_tokens": 5, "messages": []}
    assert newer == {"model": "m", "stream": False, "max_completion_tokens": 5, "messages": []}


def test_a_callers_tools_follow_the_agents_own() -> None:
    prefix = WIRE.encode_prefix(Prefix(prompt="", tools=(ToolDefinition(name="own", description="d"),)))
    brought = b' [{"type":"function","function":{"name":"brought"}}] '
    call = Call(tools=brought, tool_choice=b'"auto"')
    body = msgspec.json.decode(WIRE.body("m", prefix, [], call, stream=True))
    assert [tool["function"]["name"] for tool in body["tools"]] == ["own", "brought"]
    assert body["tool_choice"] == "auto"


@pytest.mark.parametrize(
    "brought", [b'[{"type":"function","function":{"name":"own"}}]', b'{"name":"x"}', b'[{"function":{"name":1}}]']
)
def test_a_callers_tool_that_is_malformed_or_takes_a_name_twice_is_refused(brought: bytes) -> None:
    """C3: names are unique before every request, whoever contributes."""
    prefix = WIRE.encode_prefix(Prefix(prompt="", tools=(ToolDefinition(name="own", description="d"),)))
    with pytest.raises(ModelFailed) as caught:
        WIRE.body("m", prefix, [], Call(tools=brought), stream=True)
    assert caught.value.kind == "invalid"
