"""Requests of chat completions: deterministic to the byte, and growing only at the end."""

import re
import tracemalloc
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.transcripts import carrying, groups, prefixes, texts
from tidegate.errors import ModelFailed
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.openai.chat import API, CALL_ID_CHARACTERS, ChatWire, EndpointFields, OpenAIChat
from tidegate.models.formats.request_text import ASIDE_HEADING
from tidegate.values import Call, Message, OpaqueItem, Prefix, ToolCall, ToolDefinition

FACTS = Facts(vision=True, audio=True, thinking="effort", efforts=("none", "low", "medium", "high", "xhigh"))
WIRE = ChatWire("m", FACTS)
PLAIN = Call()
NOTHING = WIRE.encode_prefix(Prefix(prompt=""))
fields = st.dictionaries(texts, texts, max_size=2).map(lambda made: msgspec.Raw(msgspec.json.encode(made)))
carried = st.builds(
    OpaqueItem,
    item=st.builds(EndpointFields, message=fields, call=fields).map(
        lambda made: msgspec.Raw(msgspec.json.encode(made))
    ),
    calls=st.integers(0, 3),
)
turns = groups(carrying(API, carried))


def encoded(wire: ChatWire, group: Sequence[Message]) -> bytes:
    return wire.encode_results(group) if group[0].role == "tool" else wire.encode(group[0])


def decoded(wire: ChatWire = WIRE, call: Call = PLAIN, history: Sequence[bytes] = (), prefix: Any = NOTHING) -> Any:
    return msgspec.json.decode(b"".join(wire.body(prefix, history, call)))


@given(turns)
def test_messages_reloaded_from_the_store_encode_to_the_same_bytes(past: list[list[Message]]) -> None:
    """B4, S32: a round trip through JSON changes no byte of the request, including fields that a model wants back."""
    for group in past:
        stored = msgspec.json.decode(msgspec.json.encode(group), type=list[Message])
        assert encoded(WIRE, stored) == encoded(WIRE, group) == encoded(ChatWire("m", FACTS), group)


@given(turns)
def test_encoded_messages_are_canonical_json(past: list[list[Message]]) -> None:
    """S32: decoding and encoding again gives the same bytes."""
    plain = [msgspec.structs.replace(message, carried=()) for group in past for message in group]
    for message in plain:
        once = encoded(WIRE, [message])
        assert msgspec.json.encode(msgspec.json.decode(b"[" + once + b"]"))[1:-1] == once


@given(prefixes)
def test_a_prefix_reloaded_from_the_store_encodes_to_the_same_bytes(prefix: Prefix) -> None:
    """A4, S32: prompt and tools, with each schema verbatim."""
    stored = msgspec.json.decode(msgspec.json.encode(prefix), type=Prefix)
    assert WIRE.encode_prefix(stored) == WIRE.encode_prefix(prefix)
    if prefix.tools:
        assert b'{"type": "object", "x":[1 ,2]}' in WIRE.encode_prefix(prefix).tools


@given(prefixes, turns, turns)
def test_the_next_request_starts_with_the_previous_one(
    prefix: Prefix, past: list[list[Message]], fresh: list[list[Message]]
) -> None:
    """S32, B4: a request without its closing brackets is the start of the conversation's next request."""
    start = WIRE.encode_prefix(prefix)
    history = [encoded(WIRE, group) for group in past]
    before = b"".join(WIRE.body(start, history, Call()))
    later = history + [encoded(WIRE, group) for group in fresh]
    after = b"".join(WIRE.body(start, later, Call()))
    assert after.startswith(before[:-2] + b",")
    assert b"".join(WIRE.body(start, [b",".join(later)], Call())) == after, "several may stand in one piece"
    assert [message["role"] for message in msgspec.json.decode(after)["messages"] if message["role"] != "tool"]


def test_a_request_does_not_copy_its_history() -> None:
    """L22, S32: the pieces of a long history are used as they are."""
    prefix = WIRE.encode_prefix(Prefix(prompt="p"))
    history = [WIRE.encode(Message(role="user", text="x" * 65_536)) for _ in range(64)]
    tracemalloc.start()
    try:
        pieces = WIRE.body(prefix, history, Call(temperature=0.5))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16_384
    assert [piece for piece in pieces if len(piece) > 60_000] == history
    assert all(any(piece is held for held in pieces) for piece in history)


@pytest.mark.parametrize("prompt", ["", "p"])
@pytest.mark.parametrize("said", [(), ("a",), ("a", "b")])
def test_requests_are_valid_with_and_without_a_prompt(prompt: str, said: tuple[str, ...]) -> None:
    """S32: for any number of messages."""
    history = [WIRE.encode(Message(role="user", text=text)) for text in said]
    body = decoded(history=history, prefix=WIRE.encode_prefix(Prefix(prompt=prompt)))
    assert [message["content"] for message in body["messages"]] == [*filter(None, (prompt,)), *said]


def test_the_body_has_parameters_and_tools_before_messages() -> None:
    """S32: the growing part comes last."""
    prefix = WIRE.encode_prefix(Prefix(prompt="p", tools=(ToolDefinition(name="t", description="d"),)))
    call = Call(temperature=0.5, max_tokens=7, stop=("x",), reasoning="off", user="u", metadata={"a": "b"})
    body = decoded(call=call, history=[b'{"role":"user","content":"hi"}'], prefix=prefix)
    assert list(body) == [
        *("model", "stream", "stream_options", "temperature", "max_tokens", "reasoning_effort", "stop", "user"),
        *("metadata", "tools", "messages"),
    ]
    assert body["reasoning_effort"] == "none"
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


@pytest.mark.parametrize("effort", ["off", "minimal", "low", "medium", "high", "max"])
def test_reasoning_effort_changes_neither_prefix_nor_messages(effort: str) -> None:
    """A3, S32: it is a parameter of the call; tools and messages stay the same bytes."""
    prefix = WIRE.encode_prefix(Prefix(prompt="p", tools=(ToolDefinition(name="t", description="d"),)))
    plain = b"".join(WIRE.body(prefix, [b"{}"], Call()))
    asked = b"".join(WIRE.body(prefix, [b"{}"], Call(reasoning=effort)))
    assert plain != asked
    assert plain.partition(b',"tools":')[2] == asked.partition(b',"tools":')[2]


@pytest.mark.parametrize(
    ("thinking", "efforts", "asked", "sent"),
    [
        ("effort", ("low", "high"), "max", "high"),
        ("effort", ("low", "high"), "off", "low"),
        ("effort", ("none", "high"), "off", "none"),
        ("effort", (), "high", None),
        ("none", ("low", "high"), "high", None),
        ("effort", ("low", "high"), "ultra", "ultra"),
        ("effort", ("low", "high"), None, None),
    ],
)
def test_the_effort_is_one_that_the_model_knows(thinking: Any, efforts: Any, asked: Any, sent: str | None) -> None:
    """A3: a model that does not think gets none."""
    wire = ChatWire("m", Facts(thinking=thinking, efforts=efforts))
    assert decoded(wire, Call(reasoning=asked, temperature=1.0)).get("reasoning_effort") == sent


def test_sampling_parameters_are_sent_if_supported_and_refused_by_name_otherwise() -> None:
    """A3, H08: OpenAI's own reasoning models accept only the default values."""
    call = Call(temperature=0.5, top_p=0.9)
    for wire in (ChatWire("m", Facts(), completion_tokens=True), WIRE):
        assert {"temperature", "top_p"} <= set(decoded(wire, call))
    reasoning = ChatWire("m", FACTS, completion_tokens=True)
    for field in ("temperature", "top_p"):
        with pytest.raises(ModelFailed, match="does not support") as refused:
            decoded(reasoning, Call(**{field: 0.0}))
        assert refused.value.param == field
    assert not {"temperature", "top_p"} & set(decoded(reasoning, Call(temperature=1, top_p=1)))
    off = msgspec.structs.replace(call, reasoning="off")
    assert "temperature" in decoded(reasoning, off)


def test_a_note_of_the_gateway_is_separate_from_the_users_text() -> None:
    """S32: a note is a separate part, marked as not the user's, and stays with its message."""
    message = msgspec.json.decode(WIRE.encode(Message(role="user", text="hello", aside="It is Monday.")))
    assert message["content"] == [
        {"text": "hello", "type": "text"},
        {"text": ASIDE_HEADING + "It is Monday.", "type": "text"},
    ]


def test_tool_arguments_are_sent_verbatim() -> None:
    """S32: even if they are not valid JSON."""
    call = ToolCall(id="c1", name="read_file", arguments='{ "path":  "a" , broken')
    message = msgspec.json.decode(WIRE.encode(Message(role="assistant", calls=(call,))))
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == call.arguments


def test_ids_and_names_that_the_service_would_refuse_are_mapped() -> None:
    """A2, S33: ids of another server may be longer, and a model may invent a name; every later request would be
    refused."""
    long = "chatcmpl-tool-" + "5" * 32
    call = ToolCall(id=long, name="functions.read file", arguments="{}")
    sent = msgspec.json.decode(WIRE.encode(Message(role="assistant", calls=(call,))))["tool_calls"][0]
    assert msgspec.json.decode(WIRE.encode_results([Message(role="tool", call_id=long)]))["tool_call_id"] == sent["id"]
    assert len(sent["id"]) <= CALL_ID_CHARACTERS < len(long)
    assert sent["function"]["name"] == "functions_read_file"
    fitting = "y" * CALL_ID_CHARACTERS
    assert msgspec.json.decode(WIRE.encode_results([Message(role="tool", call_id=fitting)]))["tool_call_id"] == fitting


@pytest.mark.parametrize("given", ["call_0fypS1hVX", "", "toolu_01A09q90qw90lq917835lq9", "abcdefgh-"])
def test_an_endpoint_that_requires_short_ids_gets_them(given: str) -> None:
    """A2: nine letters and digits, for calls and results alike; its own ids stay unchanged."""
    wire = OpenAIChat("https://api.mistral.ai/v1", "m", FACTS).wire
    for id, expected in ((given, None), ("D681PevKs", "D681PevKs")):
        answer = Message(role="assistant", calls=(ToolCall(id=id, name="x", arguments="{}"),))
        sent = msgspec.json.decode(wire.encode(answer))["tool_calls"][0]["id"]
        result = msgspec.json.decode(wire.encode_results([Message(role="tool", call_id=id)]))
        assert re.fullmatch("[A-Za-z0-9]{9}", sent) and result["tool_call_id"] == sent == (expected or sent)


def test_results_of_one_step_are_contiguous_and_in_the_order_of_its_calls() -> None:
    """S32, S33: one message each, and nothing between them."""
    results = [Message(role="tool", call_id=f"c{n}", name="x", text=f"result {n}") for n in range(3)]
    messages = msgspec.json.decode(b"[" + WIRE.encode_results(results) + b"]")
    assert messages == [{"tool_call_id": f"c{n}", "content": f"result {n}", "role": "tool"} for n in range(3)]


def test_the_output_limit_has_the_name_that_the_endpoint_accepts() -> None:
    """A2: chosen by its address."""
    for base_url, name in [
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://mine.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("https://openrouter.ai/api/v1", "max_tokens"),
        ("http://127.0.0.1:8080/v1", "max_tokens"),
    ]:
        body = decoded(OpenAIChat(base_url, "m", FACTS).wire, Call(max_tokens=5))
        assert body == {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            name: 5,
            "messages": [],
        }


# -- fields that a model wants back ------------------------------------------------------------------------------------


def wanted(**given: bytes) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(EndpointFields(**{name: msgspec.Raw(raw) for name, raw in given.items()})))


ANSWER = Message(
    role="assistant",
    text="let me see",
    calls=(ToolCall(id="a", name="x", arguments="{}"), ToolCall(id="b", name="y", arguments="{}")),
    model="m",
    carrier=API,
    carried=(
        OpaqueItem(item=wanted(message=b'{"reasoning_content":"hm", "n": 1.50}')),
        OpaqueItem(item=wanted(call=b'{"extra_content":{"google": {"thought_signature":"Zm9v"}}}'), calls=1),
    ),
)


def test_fields_that_a_model_wants_back_are_sent_verbatim_at_their_position() -> None:
    """S32: reasoning on the message, signatures on their calls, to the byte."""
    sent = WIRE.encode(ANSWER)
    assert sent.endswith(b',"reasoning_content":"hm", "n": 1.50}')
    assert b'"type":"function","extra_content":{"google": {"thought_signature":"Zm9v"}}}]' in sent
    first, second = msgspec.json.decode(sent)["tool_calls"]
    assert "extra_content" not in first and "extra_content" in second


@pytest.mark.parametrize("change", [{"model": "other"}, {"carrier": "anthropic"}, {"carrier": ""}])
def test_fields_of_one_model_are_not_sent_to_another(change: dict[str, str]) -> None:
    """A2: another model could not read them."""
    plain = msgspec.structs.replace(ANSWER, carrier="", carried=())
    assert WIRE.encode(msgspec.structs.replace(ANSWER, **change)) == WIRE.encode(plain)


def test_an_endpoint_that_requires_reasoning_gets_empty_fields_for_answers_without_it() -> None:
    """A2: a conversation that another model started, or with a stopped answer, can continue there."""
    wire = OpenAIChat("https://api.deepseek.com/v1", "m", FACTS).wire
    stopped = msgspec.json.decode(wire.encode(Message(role="assistant", text="I was", finish="stopped")))
    assert stopped == {"role": "assistant", "content": "I was", "reasoning_content": ""}
    assert msgspec.json.decode(wire.encode(ANSWER))["reasoning_content"] == "hm"
    assert b"reasoning_content" not in wire.encode(Message(role="user", text="hi"))


def test_an_endpoint_that_requires_signatures_gets_a_placeholder_for_calls_of_other_models() -> None:
    """A2: on the first call of a step, where it puts its own."""
    wire = OpenAIChat("https://generativelanguage.googleapis.com/v1beta/openai", "m", FACTS).wire
    first, second = msgspec.json.decode(wire.encode(msgspec.structs.replace(ANSWER, model="other")))["tool_calls"]
    assert first["extra_content"] == {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert "extra_content" not in second
    own = msgspec.json.decode(wire.encode(msgspec.structs.replace(ANSWER, carried=())))
    assert "extra_content" not in own["tool_calls"][0]


# -- a caller's parameters ---------------------------------------------------------------------------------------------


def test_a_callers_tools_follow_the_agents_own() -> None:
    """C3, H09: on a name clash the agent's own tool stays; schemas are sent verbatim, `strict` only if requested."""
    own = (ToolDefinition(name="own", description="d"),)
    schema = msgspec.Raw(b'{"type":  "object"}')
    brought = (
        ToolDefinition(name="own", description="an impostor"),
        ToolDefinition(name="brought", description="b", parameters=schema, strict=True),
    )
    prefix = Prefix(prompt="", tools=own, caller_tools=brought)
    call = Call(tool_choice=b'"auto"', response_format=b'{"type":"text"}')
    body = decoded(call=call, prefix=WIRE.encode_prefix(prefix))
    assert [tool["function"].get("description") for tool in body["tools"]] == ["d", "b"]
    assert [tool["function"].get("strict") for tool in body["tools"]] == [None, True]
    assert bytes(schema) in WIRE.encode_prefix(prefix).tools
    assert (prefix.shadowed, prefix.run_by_caller) == ({"own"}, {"brought"})
    assert body["tool_choice"] == "auto"
    assert body["response_format"] == {"type": "text"}
    alone = decoded(prefix=WIRE.encode_prefix(msgspec.structs.replace(prefix, caller_only=True)))
    assert [tool["function"]["description"] for tool in alone["tools"]] == ["an impostor", "b"]
