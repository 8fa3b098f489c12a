"""Requests to Anthropic's Messages API: deterministic to the byte, growing only at the end, and always acceptable."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ModelFailed
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.anthropic.messages import (
    NO_BEGINNING,
    NO_MESSAGE,
    NO_OUTPUT,
    SAMPLED_VERSION,
    UNREADABLE,
    VERSION,
    AnthropicMessages,
    AnthropicWire,
)
from tidegate.models.formats.anthropic.messages_parameters import BUDGETS, LEAST_BUDGET
from tidegate.models.formats.request_text import aside
from tidegate.values import Call, Media, Message, OpaqueItem, Prefix, ToolCall, ToolDefinition

MODEL = "claude-opus-5-5"
ADAPTIVE = Facts(
    window=1_000_000,
    output=128_000,
    vision=True,
    thinking="adaptive",
    efforts=("low", "medium", "high", "xhigh", "max"),
    known=True,
)
BUDGET = Facts(window=200_000, output=64_000, vision=True, thinking="budget", known=True)
PLAIN = Facts(window=200_000, output=8_192, thinking="none", known=True)
WIRE = AnthropicWire(MODEL, ADAPTIVE)
MARK = b',"cache_control":{"type":"ephemeral"}'
DOCUMENT = Media(media_type="application/pdf", data=b"%PDF-1.7", name="a.pdf", size=8)
PICTURE = Media(media_type="image/png", data=b"\x89PNG", width=1, height=1)
SOUND = Media(media_type="audio/wav", data=b"RIFF", seconds=1.0)
OWN = ToolDefinition(name="own", description="d")
PREFIX = Prefix(prompt="You are a test.", tools=(OWN,))
ID = re.compile(r"[a-zA-Z0-9_-]+")


def thought(text: str, signature: str = "sig==") -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"thinking": text, "signature": signature, "type": "thinking"}))


REDACTED = msgspec.Raw(b'{"data":"xyz","type":"redacted_thinking"}')


def body(
    history: Sequence[bytes], call: Call | None = None, prefix: Prefix = PREFIX, wire: AnthropicWire = WIRE
) -> Any:
    return msgspec.json.decode(b"".join(wire.body(wire.encode_prefix(prefix), history, call or Call())))


def content(message: Message, wire: AnthropicWire = WIRE) -> Any:
    return msgspec.json.decode(wire.encode(message))["content"]


def check(request: Any) -> None:
    """The API's own rules for messages."""
    awaited: list[str] = []
    marks = sum("cache_control" in block for block in [*request.get("tools", ()), *request.get("system", ())])
    for message in request["messages"]:
        assert message["content"], "a message holds something"
        answered = []
        for place, block in enumerate(message["content"]):
            marks += "cache_control" in block
            match block["type"]:
                case "text":
                    assert block["text"].strip()
                case "tool_use":
                    assert message["role"] == "assistant"
                    assert ID.fullmatch(block["id"])
                    assert ID.fullmatch(block["name"])
                    assert len(block["name"]) <= 128
                    assert isinstance(block["input"], dict)
                case "tool_result":
                    assert message["role"] == "user"
                    assert all(earlier["type"] == "tool_result" for earlier in message["content"][:place])
                    assert block["content"]
                    assert all(
                        part["type"] in ("image", "document") or part["text"].strip() for part in block["content"]
                    )
                    answered.append(block["tool_use_id"])
                case "thinking" | "redacted_thinking":
                    assert message["role"] == "assistant"
                    assert "cache_control" not in block
        assert message["content"][-1]["type"] not in ("thinking", "redacted_thinking")
        assert answered == awaited, "results stand in the message right after their calls"
        awaited = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    assert marks <= 4


# -- any conversation ------------------------------------------------------------------------------

texts = st.text(max_size=30) | st.sampled_from(["", " ", "\n\n", '","role":"assistant"', '"type":"thinking"}]}'])
arguments = st.sampled_from(
    ["", "{}", ' {"a" : 1.0}', '{"role":"assistant","content":[{"type":"text"}]}', "[1]", "{", "x"]
)
media = st.lists(st.sampled_from([PICTURE, SOUND, DOCUMENT]), max_size=2).map(tuple)
users = st.builds(Message, role=st.just("user"), text=texts, aside=texts, media=media)


@st.composite
def answers(draw: st.DrawFn, *, calling: bool) -> Message:
    text = draw(texts)
    count = draw(st.integers(1, 3)) if calling else 0
    nonce = draw(st.uuids()).hex
    calls = tuple(
        ToolCall(id=f"{draw(texts)}{nonce}{place}", name=draw(texts), arguments=draw(arguments))
        for place in range(count)
    )
    items = st.sampled_from([thought("hm"), thought(""), REDACTED, msgspec.Raw(b"null")])
    chosen = draw(st.lists(st.tuples(items, st.integers(0, len(text)), st.integers(0, count)), max_size=3))
    ats, dones = sorted(at for _, at, _ in chosen), sorted(done for _, _, done in chosen)
    carried = [
        OpaqueItem(item=item, text=at, calls=done) for (item, _, _), at, done in zip(chosen, ats, dones, strict=True)
    ]
    return Message(
        role="assistant",
        text=text,
        calls=calls,
        model=draw(st.sampled_from([MODEL, "other"])),
        carrier=draw(st.sampled_from(["anthropic", "openai-responses"])),
        carried=tuple(carried),
    )


@st.composite
def conversations(draw: st.DrawFn) -> list[list[Message]]:
    """Groups of messages that are encoded together: a user message, a model's answer, all results of its calls. Each
    answer ends a request made of all groups before it."""
    groups: list[list[Message]] = []
    for _ in range(draw(st.integers(1, 3))):
        groups += [[draw(users)] for _ in range(draw(st.integers(1, 2)))]
        for _ in range(draw(st.integers(0, 2))):
            answer = draw(answers(calling=True))
            groups.append([answer])
            groups.append(
                [
                    Message(
                        role="tool",
                        call_id=call.id,
                        text=draw(texts),
                        aside=draw(texts),
                        failed=draw(st.booleans()),
                        media=draw(media),
                    )
                    for call in answer.calls
                ]
            )
        groups.append([draw(answers(calling=False))])
    groups.append([draw(users)])
    return groups


def encoded(group: list[Message], wire: AnthropicWire = WIRE) -> bytes:
    return wire.encode_results(group) if group[0].role == "tool" else wire.encode(group[0])


@given(conversations(), st.sampled_from(["", "You are a test."]), st.booleans())
def test_the_next_request_starts_with_the_previous_one(groups: list[list[Message]], prompt: str, tools: bool) -> None:
    """S32, B4: a request without its marks and closing brackets is the start of the conversation's next request; the
    end of the previous one is marked too; the API accepts every request."""
    prefix = WIRE.encode_prefix(Prefix(prompt=prompt, tools=(OWN,) if tools else ()))
    history: list[bytes] = []
    before = b""
    for group in groups:
        if group[0].role == "assistant":
            whole = b"".join(WIRE.body(prefix, history, Call()))
            check(msgspec.json.decode(whole))
            plain = whole.replace(MARK, b"")
            assert plain.startswith(before)
            before = plain[: -len(b"]}")]
        if piece := encoded(group):
            history.append(piece)
    last = b"".join(WIRE.body(prefix, history, Call()))
    check(msgspec.json.decode(last))
    assert last.replace(MARK, b"").startswith(before)
    assert last.count(MARK) == bool(prompt) + tools + 1 + any(
        group[0].role == "assistant" and encoded(group) for group in groups
    )


@given(conversations())
def test_a_conversation_reloaded_from_the_store_encodes_to_the_same_bytes(groups: list[list[Message]]) -> None:
    """B4, S32: a round trip through JSON changes no byte of the request."""
    for group in groups:
        stored = msgspec.json.decode(msgspec.json.encode(group), type=list[Message])
        assert encoded(stored, AnthropicWire(MODEL, ADAPTIVE)) == encoded(group)


@given(conversations(), st.integers(1, 5))
def test_joined_pieces_make_the_same_request(groups: list[list[Message]], width: int) -> None:
    """S32: except for the marks, because a joined history may hide the position of the last answer."""
    prefix = WIRE.encode_prefix(PREFIX)
    history = [piece for group in groups if (piece := encoded(group))]
    joined = [b",".join(history[at : at + width]) for at in range(0, len(history), width)]
    apart = b"".join(WIRE.body(prefix, history, Call()))
    together = b"".join(WIRE.body(prefix, joined, Call()))
    check(msgspec.json.decode(together))
    assert together.replace(MARK, b"") == apart.replace(MARK, b"")


def test_a_request_does_not_copy_its_history() -> None:
    """L22: pieces of the history are sent as the same objects, except for the two marked ones."""
    history = [WIRE.encode(Message(role="user", text=str(place))) for place in range(50)]
    pieces = WIRE.body(WIRE.encode_prefix(PREFIX), history, Call())
    assert sum(any(piece is part for part in pieces) for piece in history) == len(history) - 1


# -- marks -----------------------------------------------------------------------------------------


def test_tools_prompt_and_the_last_two_ends_are_marked_for_the_cache() -> None:
    """S32: four marks, of which the last two move."""
    call = ToolCall(id="c1", name="own", arguments="{}")
    history = [
        WIRE.encode(Message(role="user", text="first")),
        WIRE.encode(Message(role="assistant", text="hm", calls=(call,))),
        WIRE.encode_results([Message(role="tool", call_id="c1", text="done")]),
    ]
    request = body(history)
    ephemeral = {"type": "ephemeral"}
    assert request["tools"][-1]["cache_control"] == request["system"][-1]["cache_control"] == ephemeral
    assert [message["content"][-1].get("cache_control") for message in request["messages"]] == [
        ephemeral,
        None,
        ephemeral,
    ]


def test_reasoning_is_never_marked_for_the_cache() -> None:
    """The API refuses it. Our messages never end with reasoning, but the encoder checks anyway."""
    piece = b'{"role":"assistant","content":[' + bytes(thought("hm")) + b"]}"
    assert MARK not in b"".join(WIRE.body(WIRE.encode_prefix(Prefix(prompt="")), [piece], Call()))


def test_the_longer_cache_time_is_used_for_all_marks() -> None:
    """A shorter one before a longer one is refused."""
    wire = AnthropicWire(MODEL, ADAPTIVE, cache_ttl="1h")
    whole = b"".join(wire.body(wire.encode_prefix(PREFIX), [wire.encode(Message(role="user", text="x"))], Call()))
    assert whole.count(b"cache_control") == whole.count(b'"cache_control":{"type":"ephemeral","ttl":"1h"}') == 3


def test_the_cache_mark_is_on_the_last_tool_which_may_be_the_callers() -> None:
    brought = ToolDefinition(name="brought", description="", parameters=msgspec.Raw(b'{"properties":{}}'))
    tools = body([], Call(), prefix=msgspec.structs.replace(PREFIX, caller_tools=(brought,)))["tools"]
    assert [tool["name"] for tool in tools] == ["own", "brought"]
    assert ["cache_control" in tool for tool in tools] == [False, True]
    assert tools[1]["input_schema"] == {"type": "object", "properties": {}}


# -- messages --------------------------------------------------------------------------------------


def test_a_note_of_the_gateway_is_separate_from_the_users_text() -> None:
    """S32: a note is a separate block, marked as not the user's, and stays with its message."""
    said = content(Message(role="user", text="hello", aside="It is Monday.", media=(PICTURE, SOUND)))
    assert [block["type"] for block in said] == ["text", "text", "image", "text"]
    assert said[1]["text"] == aside("It is Monday.")
    assert said[2]["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}
    assert "cannot hear" in said[3]["text"]


def test_a_document_is_a_named_block_that_may_be_marked_for_the_cache() -> None:
    """S32, D3: in messages and in results."""
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjc="}
    block = {"type": "document", "source": source, "title": "a.pdf"}
    said = Message(role="user", text="read", media=(DOCUMENT,))
    assert content(said)[1] == block
    (result,) = content(Message(role="tool", call_id="a", media=(DOCUMENT,)))
    assert result["content"] == [block]
    assert body([WIRE.encode(said)])["messages"][0]["content"][-1] == {**block, "cache_control": {"type": "ephemeral"}}
    told = content(said, AnthropicWire(MODEL, PLAIN))[1]["text"]
    assert told == "[A document (application/pdf, a.pdf) stands here, which this model cannot read.]"


def test_only_picture_types_of_format_and_model_are_sent() -> None:
    assert WIRE.takes("image/webp")
    assert not WIRE.takes("image/tiff")
    assert not AnthropicWire(MODEL, Facts(vision=True, audio=True)).takes("audio/wav")
    assert not AnthropicWire(MODEL, PLAIN).takes("image/png")
    assert "cannot see" in content(Message(role="user", media=(PICTURE,)), AnthropicWire(MODEL, PLAIN))[0]["text"]


@pytest.mark.parametrize("blank", ["", " ", "\n\t "])
def test_empty_blocks_are_never_sent(blank: str) -> None:
    """S32: the API refuses them. An empty user message or result is replaced by a sentence; an empty answer is
    omitted."""
    assert content(Message(role="user", text=blank)) == [{"text": aside(NO_MESSAGE), "type": "text"}]
    assert WIRE.encode(Message(role="assistant", text=blank)) == b""
    call = ToolCall(id="c1", name="own", arguments="{}")
    assert [block["type"] for block in content(Message(role="assistant", text=blank, calls=(call,)))] == ["tool_use"]
    result = msgspec.json.decode(WIRE.encode_results([Message(role="tool", call_id="c1", text=blank, failed=True)]))
    assert result["content"][0]["content"] == [{"text": NO_OUTPUT, "type": "text"}]
    assert WIRE.encode_prefix(Prefix(prompt=blank)).system == b""


def test_all_results_of_a_step_are_in_one_message_with_their_media() -> None:
    results = [
        Message(role="tool", call_id="a", text="one", media=(PICTURE,), aside="Steps are running out."),
        Message(role="tool", call_id="b", text="two", failed=True),
    ]
    message = msgspec.json.decode(WIRE.encode_results(results))
    assert message["role"] == "user"
    first, second, note = message["content"]
    assert (first["tool_use_id"], first["is_error"]) == ("a", False)
    assert [part["type"] for part in first["content"]] == ["text", "image"]
    assert (second["tool_use_id"], second["is_error"], second["content"][0]["text"]) == ("b", True, "two")
    assert note == {"text": aside("Steps are running out."), "type": "text"}


def test_media_of_a_failed_result_follows_all_results() -> None:
    """S32: the API accepts only text in a failed result."""
    results = [
        Message(role="tool", call_id="a", text="broke", failed=True, media=(PICTURE,)),
        Message(role="tool", call_id="b", text="two"),
    ]
    first, second, shown = msgspec.json.decode(WIRE.encode_results(results))["content"]
    assert [part["type"] for part in first["content"]] == ["text"] and first["is_error"]
    assert second["tool_use_id"] == "b" and shown["type"] == "image"


def test_a_conversation_that_starts_with_an_answer_gets_a_user_message_first() -> None:
    """S32: some callers send a greeting first; the API requires a user message at the start."""
    past = [WIRE.encode(Message(role="assistant", text="Hello!")), WIRE.encode(Message(role="user", text="Hi."))]
    messages = body(past)["messages"]
    check(body(past))
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"][0]["text"] == aside(NO_BEGINNING)


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ('{"path": "a",\n "n": 1.0}', b'{"path": "a",\n "n": 1.0}'),
        ("", b"{}"),
        (" {} ", b"{}"),
        ('{ "path": broken', b'{"%b":"{ \\"path\\": broken"}' % UNREADABLE.encode()),
        ("[1,2]", b'{"%b":"[1,2]"}' % UNREADABLE.encode()),
        ("null", b'{"%b":"null"}' % UNREADABLE.encode()),
        ('{"a":NaN}', b'{"%b":"{\\"a\\":NaN}"}' % UNREADABLE.encode()),
        ("[" * 100_000, None),
    ],
)
def test_tool_arguments_are_sent_verbatim_or_quoted_in_an_object(written: str, sent: bytes | None) -> None:
    """S32: an object is sent as it is; anything else is quoted inside an object."""
    piece = WIRE.encode(Message(role="assistant", calls=(ToolCall(id="c", name="own", arguments=written),)))
    value = msgspec.json.decode(piece)["content"][0]["input"]
    if sent is None:
        assert value == {UNREADABLE: written}
    else:
        assert b'"input":' + sent + b',"type":"tool_use"' in piece


@given(
    st.lists(
        st.text(max_size=12) | st.from_regex(r"tg_[0-9a-f]{4}", fullmatch=True), min_size=2, max_size=2, unique=True
    )
)
def test_ids_of_other_providers_are_mapped_to_valid_and_distinct_ones(ids: list[str]) -> None:
    calls = tuple(ToolCall(id=given, name="own", arguments="{}") for given in ids)
    used = [block["id"] for block in content(Message(role="assistant", calls=calls))]
    results = msgspec.json.decode(WIRE.encode_results([Message(role="tool", call_id=given, text="x") for given in ids]))
    assert [block["tool_use_id"] for block in results["content"]] == used
    assert all(ID.fullmatch(made) for made in used)
    assert len(set(used)) == 2


def test_an_id_with_our_prefix_is_mapped_too() -> None:
    made = content(Message(role="assistant", calls=(ToolCall(id="a|b", name="own", arguments="{}"),)))[0]["id"]
    again = content(Message(role="assistant", calls=(ToolCall(id=made, name="own", arguments="{}"),)))[0]["id"]
    assert ID.fullmatch(again)
    assert again != made


def test_an_id_of_the_provider_is_sent_back_unchanged() -> None:
    call = ToolCall(id="toolu_01D7FLrfh4GYq7yT1ULFeyMV", name="a b/c" + "x" * 100, arguments="{}")
    (block,) = content(Message(role="assistant", calls=(call,)))
    assert block["id"] == call.id
    assert block["name"] == "a_b_c" + "x" * 59


# -- thoughts --------------------------------------------------------------------------------------


def thinking_message(**changed: Any) -> Message:
    calls = (ToolCall(id="a", name="own", arguments="{}"), ToolCall(id="b", name="own", arguments="{}"))
    given: dict[str, Any] = {
        "role": "assistant",
        "text": "Grüße, done",
        "calls": calls,
        "model": MODEL,
        "carrier": "anthropic",
        "carried": (
            OpaqueItem(item=thought("first", "s1=="), text=0, calls=0),
            OpaqueItem(item=REDACTED, text=6, calls=0),
            OpaqueItem(item=thought("second"), text=6, calls=1),
        ),
    }
    return Message(**{**given, **changed})


def test_signed_reasoning_is_sent_back_verbatim_at_its_position() -> None:
    """S32: among text and calls, byte for byte."""
    piece = WIRE.encode(thinking_message())
    assert bytes(thought("first", "s1==")) in piece
    kinds = [
        block.get("text") or block.get("thinking") or block.get("id") or block["data"]
        for block in msgspec.json.decode(piece)["content"]
    ]
    assert kinds == ["first", "Grüße,", "xyz", "a", "second", " done", "b"]


@pytest.mark.parametrize("changed", [{"model": "claude-other"}, {"carrier": "openai-responses"}, {"carrier": ""}])
def test_reasoning_is_not_sent_to_another_model_or_in_another_format(changed: dict[str, str]) -> None:
    """S32: another model cannot read it."""
    kinds = [block["type"] for block in content(thinking_message(**changed))]
    assert kinds == ["text", "tool_use", "tool_use"]


def test_reasoning_at_the_end_of_a_cut_answer_is_not_sent() -> None:
    cut = thinking_message(calls=(), text="Well", carried=(OpaqueItem(item=thought("hm"), text=4, calls=0),))
    assert content(cut) == [{"text": "Well", "type": "text"}]
    assert WIRE.encode(thinking_message(calls=(), text="", carried=(OpaqueItem(item=thought("hm")),))) == b""


# -- parameters ------------------------------------------------------------------------------------


def test_the_body_has_parameters_tools_and_prompt_before_messages() -> None:
    """S32: the growing part comes last."""
    call = Call(max_tokens=7, stop=("x",), reasoning="high", user="u", metadata={"a": "b"}, tool_choice=b'"auto"')
    request = body([WIRE.encode(Message(role="user", text="hi"))], call)
    assert list(request) == [
        *("model", "stream", "max_tokens", "stop_sequences", "thinking", "output_config", "tool_choice", "metadata"),
        *("tools", "system", "messages"),
    ]
    assert request["stream"] is True
    assert request["stop_sequences"] == ["x"]
    assert request["metadata"] == {"user_id": "u"}
    assert request["thinking"] == {"type": "adaptive"}
    assert request["output_config"] == {"effort": "high"}


def test_a_call_without_parameters_sends_only_required_ones() -> None:
    request = body([WIRE.encode(Message(role="user", text="hi"))], prefix=Prefix(prompt=""))
    assert list(request) == ["model", "stream", "max_tokens", "messages"]
    assert request["max_tokens"] == 128_000


def test_max_tokens_never_exceeds_the_models_limit() -> None:
    assert body([], Call(max_tokens=500_000))["max_tokens"] == 128_000
    unknown = AnthropicWire("local", Facts())
    assert body([], Call(max_tokens=500_000), wire=unknown)["max_tokens"] == 500_000


def test_a_long_user_id_is_sent_as_a_digest() -> None:
    assert len(body([], Call(user="u" * 300))["metadata"]["user_id"]) == 64


@pytest.mark.parametrize(
    ("asked", "efforts", "thinking", "effort"),
    [
        (None, ("low", "high"), None, None),
        ("max", ("low", "high"), "adaptive", "high"),
        ("minimal", ("low", "high"), "adaptive", "low"),
        ("off", ("low", "high"), "adaptive", "low"),
        ("off", ("none", "low", "high"), "disabled", None),
        ("high", (), "adaptive", None),
        ("off", (), "disabled", None),
    ],
)
def test_an_adaptive_model_gets_an_effort(
    asked: str | None, efforts: tuple[str, ...], thinking: str | None, effort: str | None
) -> None:
    """A3: in its own word. A model that cannot stop thinking gets its lowest effort."""
    wire = AnthropicWire(MODEL, msgspec.structs.replace(ADAPTIVE, efforts=efforts))
    request = body([], Call(reasoning=asked), wire=wire)
    assert request.get("thinking", {}).get("type") == thinking
    assert request.get("output_config", {}).get("effort") == effort


def test_a_model_with_effort_only_gets_the_effort_without_thinking() -> None:
    wire = AnthropicWire(MODEL, Facts(thinking="effort", efforts=("low", "high")))
    assert body([], Call(reasoning="high"), wire=wire)["output_config"] == {"effort": "high"}
    assert "thinking" not in body([], Call(reasoning="high"), wire=wire)
    assert "thinking" not in body([], Call(reasoning="high"), wire=AnthropicWire(MODEL, PLAIN))


@pytest.mark.parametrize("effort", list(BUDGETS))
@pytest.mark.parametrize("most", [None, 500, 2047, 2048, 5000, 64_000])
def test_a_thinking_budget_leaves_tokens_for_the_answer(effort: str, most: int | None) -> None:
    """A3: within the limits of the API, or no budget at all."""
    request = body([], Call(reasoning=effort, max_tokens=most), wire=AnthropicWire(MODEL, BUDGET))
    if most is not None and most < 2 * LEAST_BUDGET:
        assert "thinking" not in request
    else:
        assert request["thinking"]["type"] == "enabled"
        assert LEAST_BUDGET <= request["thinking"]["budget_tokens"] <= request["max_tokens"] // 2


def test_budgets_rise_with_the_effort_and_off_has_none() -> None:
    wire = AnthropicWire(MODEL, BUDGET)
    assert "thinking" not in body([], Call(reasoning="off"), wire=wire)
    assert list(BUDGETS.values()) == sorted(BUDGETS.values())
    with pytest.raises(ModelFailed) as caught:
        body([], Call(reasoning="much"), wire=wire)
    assert caught.value.kind == "invalid"


def test_a_step_that_started_without_thinking_continues_without_it() -> None:
    """With a budget, the API refuses to think about calls that another model made."""
    wire = AnthropicWire(MODEL, BUDGET)
    calling = Message(role="assistant", calls=(ToolCall(id="a", name="own", arguments="{}"),), model="other")
    user = wire.encode(Message(role="user", text="x"))
    results = wire.encode_results([Message(role="tool", call_id="a", text="x")])
    asked = Call(reasoning="high")
    thought_of = msgspec.structs.replace(
        calling, model=MODEL, carrier="anthropic", carried=(OpaqueItem(item=thought("x")),)
    )
    assert "thinking" not in body([user, wire.encode(calling), results], asked, wire=wire)
    assert "thinking" in body([user, wire.encode(thought_of), results], asked, wire=wire)
    done = wire.encode(Message(role="assistant", text="done"))
    assert "thinking" in body([user, wire.encode(calling), results, done, user], asked, wire=wire)
    assert "thinking" in body([user, WIRE.encode(calling), results], asked)


def test_a_forced_tool_call_switches_off_a_thinking_budget() -> None:
    request = body([], Call(reasoning="high", tool_choice=b'"required"'), wire=AnthropicWire(MODEL, BUDGET))
    assert "thinking" not in request
    assert request["tool_choice"] == {"type": "any"}


@pytest.mark.parametrize(
    ("model", "facts", "call", "sent"),
    [
        ("claude-haiku-4-5", BUDGET, Call(temperature=0.2), {"temperature": 0.2}),
        ("claude-haiku-4-5", BUDGET, Call(top_p=0.5), {"top_p": 0.5}),
        ("claude-haiku-4-5", BUDGET, Call(temperature=0.2, top_p=1), {"temperature": 0.2}),
        ("claude-haiku-4-5", BUDGET, Call(temperature=1, top_p=0.5), {"top_p": 0.5}),
        ("claude-haiku-4-5", BUDGET, Call(temperature=1, top_p=1, reasoning="high"), {}),
        ("claude-haiku-4-5", BUDGET, Call(temperature=0.2, reasoning="off"), {"temperature": 0.2}),
        (MODEL, ADAPTIVE, Call(temperature=1, top_p=1), {}),
        (MODEL, ADAPTIVE, Call(temperature=1, reasoning="off"), {}),
        ("claude-opus-9", Facts(), Call(temperature=1), {}),
        ("some-other-model", ADAPTIVE, Call(temperature=0.2, top_p=0.5), {"temperature": 0.2, "top_p": 0.5}),
        ("some-other-model", ADAPTIVE, Call(temperature=1, reasoning="low"), {}),
        ("some-local-model", Facts(), Call(temperature=0.2), {"temperature": 0.2}),
    ],
)
def test_sampling_parameters_are_sent_only_to_models_that_accept_them(
    model: str, facts: Facts, call: Call, sent: dict[str, float]
) -> None:
    request = body([], call, wire=AnthropicWire(model, facts))
    assert {name: request[name] for name in ("temperature", "top_p") if name in request} == sent
    version = AnthropicMessages(model, facts).headers(None)["anthropic-version"]
    assert version == SAMPLED_VERSION if sent else version in (VERSION, SAMPLED_VERSION)


@pytest.mark.parametrize(
    ("model", "facts", "call", "param"),
    [
        ("claude-haiku-4-5", BUDGET, Call(temperature=1.7), "temperature"),
        ("claude-haiku-4-5", BUDGET, Call(temperature=0.2, top_p=0.5), "top_p"),
        ("claude-haiku-4-5", BUDGET, Call(temperature=0, reasoning="high"), "temperature"),
        ("claude-haiku-4-5", BUDGET, Call(top_p=0.5, reasoning="high"), "top_p"),
        ("claude-haiku-4-5", BUDGET, Call(extras=b'{"top_k":4}', reasoning="high"), "top_k"),
        (MODEL, ADAPTIVE, Call(temperature=0.2), "temperature"),
        (MODEL, ADAPTIVE, Call(top_p=0.2, reasoning="off"), "top_p"),
        ("claude-opus-9", Facts(), Call(temperature=0.2), "temperature"),
        ("some-other-model", ADAPTIVE, Call(temperature=0.2, reasoning="low"), "temperature"),
    ],
)
def test_unsupported_sampling_parameters_are_refused_by_name(model: str, facts: Facts, call: Call, param: str) -> None:
    """H08: a different answer is not passed off as the requested one."""
    with pytest.raises(ModelFailed, match=r"This model (accepts|does not support)") as refused:
        body([], call, wire=AnthropicWire(model, facts))
    assert refused.value.param == param


def test_the_key_is_sent_in_the_header_of_the_api() -> None:
    form = AnthropicMessages(MODEL, ADAPTIVE)
    assert (form.api, form.path) == ("anthropic", "/messages")
    assert form.headers("k") == {"anthropic-version": "2026-10-21", "x-api-key": "k"}
    assert form.headers(None) == {"anthropic-version": "2026-10-21"}


# -- a caller's parameters -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (b'"none"', {"type": "none"}),
        (b'"auto"', {"type": "auto"}),
        (b'"required"', {"type": "any"}),
        (b'{"type":"function","function":{"name":"own"}}', {"type": "tool", "name": "own"}),
    ],
)
def test_a_callers_tool_choice_is_translated(choice: bytes, sent: dict[str, str]) -> None:
    assert body([], Call(tool_choice=choice))["tool_choice"] == sent
    assert "tool_choice" not in body([], Call(tool_choice=choice), prefix=Prefix(prompt="p"))


def test_a_callers_tools_are_translated() -> None:
    schema = msgspec.Raw(b'{"type":"object", "x":1}')
    strict = ToolDefinition(name="f", description="d", parameters=schema, strict=True)
    prefix = Prefix(prompt="", caller_tools=(strict, ToolDefinition(name="g", description="")))
    tools = body([], Call(), prefix=prefix)["tools"]
    assert tools[0] == {"name": "f", "description": "d", "strict": True, "input_schema": {"type": "object", "x": 1}}
    assert (tools[1]["name"], tools[1]["input_schema"]) == ("g", {"type": "object", "properties": {}})


def test_a_response_schema_is_sent_as_output_format() -> None:
    shape = b'{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object"}}}'
    assert body([], Call(response_format=shape, reasoning="low"))["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": {"type": "object"}},
    }
    assert "output_config" not in body([], Call(response_format=b'{"type":"text"}'))


@pytest.mark.parametrize(
    "call",
    [
        Call(tool_choice=b'"some"'),
        Call(tool_choice=b'{"type":"function"}'),
        Call(response_format=b'{"type":"json_schema"}'),
        Call(response_format=b'{"type":"grammar"}'),
        Call(response_format=b"nonsense"),
    ],
)
def test_unsupported_parameters_of_a_caller_are_refused_in_one_sentence(call: Call) -> None:
    """C3: tool names are unique in every request, and only what the caller meant is requested."""
    with pytest.raises(ModelFailed) as caught:
        body([], call)
    assert caught.value.kind == "invalid"
    assert not caught.value.retryable
    assert caught.value.message.endswith(".")
