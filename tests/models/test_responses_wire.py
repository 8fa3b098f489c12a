"""Requests of the Responses format: deterministic to the byte, growing only at the end, with nothing stored at the
provider."""

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.transcripts import carrying, groups, prefixes, texts
from tidegate.errors import ModelFailed
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.call_names import call_name
from tidegate.models.formats.openai.responses import (
    API,
    CALL_ID_CHARACTERS,
    OpenAIResponses,
    ResponsesWire,
    ReturnedItem,
)
from tidegate.models.formats.request_text import ASIDE_HEADING
from tidegate.models.interface import EncodedPrefix
from tidegate.values import Call, Media, Message, OpaqueItem, Prefix, ToolCall, ToolDefinition

FACTS = Facts(vision=True, audio=True, thinking="effort", efforts=("none", "low", "high"))
WIRE = ResponsesWire("m", FACTS)
PLAIN = Call()
NOTHING = WIRE.encode_prefix(Prefix(prompt=""))
PICTURE = Media(media_type="image/png", data=b"\x89PNG pixels", width=4, height=3)
DOCUMENT = Media(media_type="application/pdf", data=b"%PDF-1.7", name="a.pdf", size=8)
SOUND = Media(media_type="audio/wav", data=b"RIFF", seconds=1.0)
URL = "data:image/png;base64," + base64.b64encode(PICTURE.data).decode()
items = st.dictionaries(texts, texts, min_size=1, max_size=2).map(lambda made: msgspec.Raw(msgspec.json.encode(made)))
kept = st.one_of(
    st.builds(ReturnedItem, item=items), st.builds(ReturnedItem, phase=texts, characters=st.integers(0, 20))
)
carried = st.builds(
    OpaqueItem,
    item=kept.map(lambda made: msgspec.Raw(msgspec.json.encode(made))),
    text=st.integers(0, 50),
    calls=st.integers(0, 4),
)
turns = groups(carrying(API, carried))


def encoded(wire: ResponsesWire, group: Sequence[Message]) -> bytes:
    return wire.encode_results(group) if group[0].role == "tool" else wire.encode(group[0])


def decoded(
    call: Call = PLAIN, history: Sequence[bytes] = (), prefix: EncodedPrefix = NOTHING, facts: Facts = FACTS
) -> Any:
    return msgspec.json.decode(b"".join(ResponsesWire("m", facts).body(prefix, history, call)))


def item(message: Message) -> Any:
    return msgspec.json.decode(WIRE.encode(message))


@given(turns)
def test_messages_reloaded_from_the_store_encode_to_the_same_bytes(past: list[list[Message]]) -> None:
    """B4, S32: a round trip through JSON changes no byte of the request, including items that a model wants back."""
    for group in past:
        stored = msgspec.json.decode(msgspec.json.encode(group), type=list[Message])
        assert encoded(WIRE, stored) == encoded(WIRE, group) == encoded(ResponsesWire("m", FACTS), group)


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
    history = [part for group in past if (part := encoded(WIRE, group))]
    later = history + [part for group in fresh if (part := encoded(WIRE, group))]
    before = b"".join(WIRE.body(start, history, PLAIN))
    after = b"".join(WIRE.body(start, later, PLAIN))
    assert after.startswith(before[:-2])
    msgspec.json.decode(after)
    if later:
        assert b"".join(WIRE.body(start, [b",".join(later)], PLAIN)) == after, "several may stand in one piece"


@given(turns)
def test_all_text_and_every_call_is_sent_once(past: list[list[Message]]) -> None:
    """S32: with any stored items, at any positions."""
    for (message,) in (group for group in past if group[0].role == "assistant"):
        sent = msgspec.json.decode(b"[" + WIRE.encode(message) + b"]")
        said = "".join(part["content"] for part in sent if part.get("role") == "assistant")
        assert said.split() == message.text.split() or "".join(said.split()) == "".join(message.text.split())
        called = [part["name"] for part in sent if part.get("type") == "function_call"]
        assert called == [call_name(call.name) for call in message.calls]


def test_a_request_does_not_copy_its_history() -> None:
    """L22, S32: the pieces of a long history are used as they are."""
    history = [WIRE.encode(Message(role="user", text="x" * 65_536)) for _ in range(8)]
    pieces = WIRE.body(WIRE.encode_prefix(Prefix(prompt="p")), history, Call(max_tokens=70))
    assert all(any(piece is held for held in pieces) for piece in history)


def test_nothing_is_stored_at_the_provider() -> None:
    """S32: encrypted reasoning is requested from models that think; others would refuse that."""
    assert {name: value for name, value in decoded().items() if name != "prompt_cache_key"} == {
        "model": "m",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [],
    }
    assert "include" not in decoded(facts=Facts(efforts=("low",)))


def test_the_body_has_parameters_and_tools_before_the_input() -> None:
    """S32: the growing part comes last, and starts with the prompt."""
    prefix = WIRE.encode_prefix(Prefix(prompt="p", tools=(ToolDefinition(name="t", description="d"),)))
    call = Call(temperature=0.5, top_p=0.9, max_tokens=70, reasoning="off", user="u", metadata={"a": "b"})
    body = decoded(call, [WIRE.encode(Message(role="user", text="hi"))], prefix)
    assert list(body) == [
        *("model", "stream", "store", "include", "temperature", "top_p", "max_output_tokens", "reasoning"),
        *("safety_identifier", "metadata", "prompt_cache_key", "tools", "input"),
    ]
    assert (body["max_output_tokens"], body["reasoning"], body["safety_identifier"]) == (70, {"effort": "none"}, "u")
    assert body["input"] == [
        {"role": "system", "content": "p", "type": "message"},
        {"role": "user", "content": "hi", "type": "message"},
    ]
    assert body["tools"] == [
        {
            "name": "t",
            "description": "d",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
            "type": "function",
        }
    ]


def test_conversations_with_the_same_prefix_share_a_cache_key() -> None:
    """S32: for any messages; another prompt or other tools give another key."""
    tool = ToolDefinition(name="t", description="d")
    keys = []
    for prefix in (Prefix(prompt="p"), Prefix(prompt="q"), Prefix(prompt="p", tools=(tool,))):
        start = WIRE.encode_prefix(prefix)
        said = [WIRE.encode(Message(role="user", text="hi"))]
        key = decoded(prefix=start)["prompt_cache_key"]
        assert decoded(Call(temperature=1.0), said, start)["prompt_cache_key"] == key
        keys.append(key)
    assert len(set(keys)) == 3


@pytest.mark.parametrize("effort", ["off", "minimal", "low", "medium", "high", "max"])
def test_reasoning_effort_changes_neither_prefix_nor_input(effort: str) -> None:
    """A3, S32: it is a parameter of the call."""
    prefix = WIRE.encode_prefix(Prefix(prompt="p", tools=(ToolDefinition(name="t", description="d"),)))
    plain = b"".join(WIRE.body(prefix, [b"{}"], PLAIN))
    asked = b"".join(WIRE.body(prefix, [b"{}"], Call(reasoning=effort)))
    assert plain != asked
    assert plain.partition(b',"prompt_cache_key":')[2] == asked.partition(b',"prompt_cache_key":')[2]


@pytest.mark.parametrize(
    ("facts", "asked", "sent"),
    [
        (FACTS, "off", {"effort": "none"}),
        (FACTS, "medium", {"effort": "low"}),
        (FACTS, "ultra", {"effort": "ultra"}),
        (FACTS, None, None),
        (Facts(thinking="effort"), "high", None),
        (Facts(efforts=("low",)), "high", None),
    ],
)
def test_the_effort_is_one_that_the_model_knows(facts: Facts, asked: str | None, sent: Any) -> None:
    """A3"""
    assert decoded(Call(reasoning=asked, max_tokens=9), facts=facts).get("reasoning") == sent


def test_sampling_parameters_are_sent_if_supported_and_refused_by_name_otherwise() -> None:
    """A3, H08: a reasoning model accepts only the default values."""
    call = Call(temperature=0.5, top_p=0.9)
    for field in ("temperature", "top_p"):
        with pytest.raises(ModelFailed, match="does not support") as refused:
            decoded(Call(**{field: 0.0}))
        assert refused.value.param == field
    assert not {"temperature", "top_p"} & set(decoded(Call(temperature=1, top_p=1)))
    assert {"temperature", "top_p"} <= set(decoded(call, facts=Facts()))
    assert {"temperature", "top_p"} <= set(decoded(msgspec.structs.replace(call, reasoning="off")))


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_users_text_notes_and_pictures_are_parts_of_one_message() -> None:
    """D3, S32"""
    assert item(Message(role="user", text="look", aside="a note", media=(PICTURE,))) == {
        "role": "user",
        "content": [
            {"text": "look", "type": "input_text"},
            {"text": ASIDE_HEADING + "a note", "type": "input_text"},
            {"image_url": URL, "detail": "auto", "type": "input_image"},
        ],
        "type": "message",
    }


def test_a_result_contains_its_pictures() -> None:
    """D3, S32: as a list; as plain text if it has none that the model accepts."""
    results = [
        Message(role="tool", call_id="a", name="x", text="done"),
        Message(role="tool", call_id="b", name="y", text="a picture", media=(PICTURE, SOUND)),
        Message(role="tool", call_id="c", name="z", text="a sound", media=(SOUND,)),
        Message(role="tool", call_id="d", name="z"),
    ]
    first, second, third, fourth = msgspec.json.decode(b"[" + WIRE.encode_results(results) + b"]")
    assert first == {"call_id": "a", "output": "done", "type": "function_call_output"}
    assert [part["type"] for part in second["output"]] == ["input_text", "input_image", "input_text"]
    assert second["output"][1]["image_url"] == URL
    assert third["output"].startswith("a sound\n[A sound (audio/wav, 1.0 s) stands here, which")
    assert fourth["output"] == ""


def test_a_document_is_a_file_in_messages_and_in_results() -> None:
    """D3, S32: under its name."""
    data = "data:application/pdf;base64," + base64.b64encode(DOCUMENT.data).decode()
    file = {"type": "input_file", "filename": "a.pdf", "file_data": data}
    assert item(Message(role="user", media=(DOCUMENT,)))["content"] == [file]
    result = WIRE.encode_results([Message(role="tool", call_id="a", name="x", media=(DOCUMENT,))])
    assert msgspec.json.decode(result)["output"] == [file]


@pytest.mark.parametrize(
    ("facts", "media_type", "taken"),
    [
        (FACTS, "application/pdf", True),
        (Facts(audio=True), "application/pdf", False),
        (FACTS, "image/png", True),
        (FACTS, "image/webp", True),
        (FACTS, "image/tiff", False),
        (FACTS, "audio/wav", False),
        (Facts(), "image/png", False),
    ],
)
def test_unsupported_media_is_replaced_by_a_note(facts: Facts, media_type: str, taken: bool) -> None:
    """D3, A2: the format has no sounds at all."""
    wire = ResponsesWire("m", facts)
    assert wire.takes(media_type) is taken
    if not taken:
        media = Media(media_type=media_type, spooled="sp_1", width=4, height=3)
        (part,) = msgspec.json.decode(wire.encode(Message(role="user", media=(media,))))["content"]
        assert "stands here, which this model cannot" in part["text"]


def test_encoding_a_picture_that_was_not_loaded_is_an_error() -> None:
    """D3: nothing is sent instead."""
    with pytest.raises(ValueError, match="sp_1 was not loaded"):
        WIRE.encode(Message(role="user", media=(Media(media_type="image/png", spooled="sp_1"),)))


def test_tool_arguments_are_sent_verbatim_after_the_text() -> None:
    """S32: even if they are not valid JSON."""
    call = ToolCall(id="c1", name="x", arguments='{ "path":  "a" , broken')
    sent = msgspec.json.decode(b"[" + WIRE.encode(Message(role="assistant", text="see", calls=(call,))) + b"]")
    assert sent == [
        {"role": "assistant", "content": "see", "type": "message"},
        {"call_id": "c1", "name": "x", "arguments": call.arguments, "type": "function_call"},
    ]


def test_an_empty_answer_is_not_sent() -> None:
    """S33: one that was stopped before its first word."""
    assert WIRE.encode(Message(role="assistant", finish="stopped")) == b""


def test_a_long_call_id_of_another_model_is_mapped_with_its_result() -> None:
    """A2, S33: the service refuses long ids."""
    long = "x" * (CALL_ID_CHARACTERS + 1)
    call = item(Message(role="assistant", calls=(ToolCall(id=long, name="x", arguments="{}"),)))
    result = msgspec.json.decode(WIRE.encode_results([Message(role="tool", call_id=long)]))
    assert call["call_id"] == result["call_id"] != long
    assert len(call["call_id"]) <= CALL_ID_CHARACTERS
    fitting = "y" * CALL_ID_CHARACTERS
    assert msgspec.json.decode(WIRE.encode_results([Message(role="tool", call_id=fitting)]))["call_id"] == fitting


@pytest.mark.parametrize(("dreamt", "sent"), [("functions.clock", "functions_clock"), ("", "_"), ("x" * 99, "x" * 64)])
def test_an_invented_tool_name_is_mapped_to_a_valid_one(dreamt: str, sent: str) -> None:
    """A2, S33: otherwise the service would refuse every later request."""
    call = ToolCall(id="c1", name=dreamt, arguments="{}")
    assert item(Message(role="assistant", calls=(call,)))["name"] == sent


@pytest.mark.parametrize("change", [{"model": "other"}, {"carrier": "anthropic"}, {"carrier": ""}])
def test_items_of_one_model_are_not_sent_to_another(change: dict[str, str]) -> None:
    """A2: another model could not read them."""
    kept = msgspec.Raw(msgspec.json.encode(ReturnedItem(item=msgspec.Raw(b'{"type":"reasoning"}'))))
    answer = Message(role="assistant", text="4", model="m", carrier=API, carried=(OpaqueItem(item=kept),))
    assert b"reasoning" in WIRE.encode(answer)
    assert b"reasoning" not in WIRE.encode(msgspec.structs.replace(answer, **change))


# -- a caller's parameters ---------------------------------------------------------------------------------------------


def test_a_callers_tools_choice_and_response_format_are_translated() -> None:
    """A2: from chat completions, the callers' format."""
    strict = ToolDefinition(name="a", description="D", parameters=msgspec.Raw(b'{"x":  1}'), strict=True)
    brought = (strict, ToolDefinition(name="b", description=""))
    own = (ToolDefinition(name="own", description="d"),)
    prefix = WIRE.encode_prefix(Prefix(prompt="", tools=own, caller_tools=brought))
    call = Call(
        tool_choice=b'{"type":"function","function":{"name":"a"}}',
        response_format=b'{"type":"json_schema","json_schema":{"name":"n","schema":{"y":1},"strict":true,"description":"d"}}',
    )
    body = decoded(call, prefix=prefix)
    assert [tool["name"] for tool in body["tools"]] == ["own", "a", "b"]
    assert body["tools"][1] == {
        "name": "a",
        "description": "D",
        "parameters": {"x": 1},
        "strict": True,
        "type": "function",
    }
    assert body["tools"][2]["parameters"] == {"type": "object", "properties": {}}
    assert body["tool_choice"] == {"name": "a", "type": "function"}
    assert body["text"] == {
        "format": {"name": "n", "description": "d", "schema": {"y": 1}, "strict": True, "type": "json_schema"}
    }
    other = msgspec.structs.replace(call, tool_choice=b'"required"', response_format=b'{"type":"json_object"}')
    alone = decoded(other, prefix=prefix)
    assert (alone["tool_choice"], alone["text"]) == ("required", {"format": {"type": "json_object"}})
    assert "tool_choice" not in decoded(Call(tool_choice=b'"none"')), "without tools there is nothing to choose"


@pytest.mark.parametrize(
    "call",
    [
        Call(seed=1),
        Call(frequency_penalty=0.5),
        Call(presence_penalty=0.5),
        Call(logit_bias={"5": 1}),
        Call(top_logprobs=0),
        Call(extras=b'{"top_k":4}'),
        Call(tool_choice=b'{"type":"allowed_tools"}'),
        Call(response_format=b'{"type":"grammar"}'),
    ],
)
def test_unsupported_parameters_are_refused_with_a_sentence(call: Call) -> None:
    """A2, C3: and not silently dropped."""
    prefix = WIRE.encode_prefix(Prefix(prompt="", tools=(ToolDefinition(name="own", description="d"),)))
    with pytest.raises(ModelFailed) as caught:
        WIRE.body(prefix, [], call)
    assert (caught.value.kind, caught.value.retryable) == ("invalid", False)
    assert caught.value.param


def test_parameters_with_other_names_in_the_format_are_translated() -> None:
    """H08: and those without meaning are omitted."""
    body = decoded(
        Call(parallel_tool_calls=False, service_tier="flex", verbosity="low", prompt_cache_key="k", seed=None),
        prefix=WIRE.encode_prefix(Prefix(prompt="", tools=(ToolDefinition(name="own", description="d"),))),
    )
    assert (body["parallel_tool_calls"], body["service_tier"], body["prompt_cache_key"]) == (False, "flex", "k")
    assert body["text"] == {"verbosity": "low"}
    decoded(Call(frequency_penalty=0, presence_penalty=0.0, logit_bias={}))


def test_a_long_user_id_is_sent_as_a_digest() -> None:
    body = decoded(Call(user="u" * 500))
    assert 0 < len(body["safety_identifier"]) <= 128
    assert decoded(Call(user="v" * 500))["safety_identifier"] != body["safety_identifier"]


def test_the_format_has_a_path_and_an_authorization_header() -> None:
    format = OpenAIResponses("m", FACTS)
    assert (format.api, format.path) == ("openai-responses", "/responses")
    assert format.headers("k") == {"Authorization": "Bearer k"}
    assert format.headers(None) == {}
