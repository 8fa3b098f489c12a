"""Invalid bytes and halves of characters in a model's answer are replaced, in every format."""

import json
import sqlite3
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scripted_model import ScriptedModel
from tests.faulty_model import FORMATS
from tests.models import anthropic_streams as anthropic
from tests.models import recordings as recorded
from tests.models.streams import New
from tests.models.support import Listener, ask, configured
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.anthropic.messages import AnthropicWire
from tidegate.models.formats.anthropic.messages_answer import AnthropicAnswer
from tidegate.models.formats.json_repair import repair_json
from tidegate.models.formats.openai.chat import ChatWire
from tidegate.models.formats.openai.chat_answer import ChatAnswer
from tidegate.models.formats.openai.responses import ResponsesWire
from tidegate.models.formats.openai.responses_answer import ResponsesAnswer
from tidegate.values import Message

DAMAGE = {
    "a byte": b"\xff",
    "half a character": b"\xe4\xb8",
    "a surrogate as bytes": b"\xed\xa0\xbd",
    "a first half": rb"\ud83d",
    "a last half": rb"\ude00",
    "halves in the wrong order": rb"\ude00\ud83d",
    "capitals": rb"\uDBFF",
}
FACTS = Facts(thinking="effort", vision=True)
NEW: dict[str, New] = {
    "openai-chat": lambda shown: ChatAnswer(65_536, shown.append),
    "openai-responses": lambda shown: ResponsesAnswer(65_536, shown.append),
    "anthropic": lambda shown: AnthropicAnswer(65_536, shown.append),
}
MARK = "~"
"""One character, which no helper cuts in two."""
SAID, ARGUMENTS = f"low {MARK} tide 🌊", json.dumps({"path": f"a{MARK}b"})


def stream_of(api: str) -> bytes:
    """An answer with text, reasoning and a call, and the mark in each of their strings."""
    if api == "openai-chat":
        thought = {"reasoning_content": f"hm {MARK}"}
        call = recorded.calling(0, f"read{MARK}", ARGUMENTS)
        call[0]["tool_calls"][0]["id"] = f"call_{MARK}"
        return recorded.chat_stream(thought, {"content": SAID}, *call, finish="tool_calls")
    if api == "openai-responses":
        items = [
            recorded.reasoning(summary=[{"type": "summary_text", "text": MARK}]),
            recorded.message(SAID),
            recorded.function_call(f"read{MARK}", ARGUMENTS, f"call_{MARK}", "fc_1"),
        ]
        return recorded.responses_stream(recorded.events(items))
    return anthropic.sse(
        anthropic.start(),
        *anthropic.thinking(0, f"hm {MARK}"),
        *anthropic.text(1, SAID),
        *anthropic.tool(2, f"toolu_{MARK}", f"read{MARK}", ARGUMENTS),
        *anthropic.end("tool_use", 9),
    )


def read(new: New, pieces: list[bytes]) -> Message:
    shown: list[str] = []
    answer = new(shown)
    for piece in pieces:
        answer.feed(piece)
    answer.end()
    assert answer.complete
    message = answer.message("m")
    assert "".join(shown) == message.text
    return message


def is_sound(message: Message) -> None:
    """Whether the message can be stored, sent to every provider and to every client."""
    stored = msgspec.json.decode(msgspec.json.encode(message), type=Message)
    assert stored == message
    db = sqlite3.connect(":memory:")
    call = message.calls[0]
    kept = db.execute("SELECT ?, ?, ?, ?", (message.text, call.id, call.name, call.arguments)).fetchone()
    assert kept == (message.text, call.id, call.name, call.arguments)
    db.close()
    for wire in (ChatWire("m", FACTS), ResponsesWire("m", FACTS), AnthropicWire("m", FACTS)):
        json.loads(b"[" + wire.encode(stored) + b"]")
    json.loads(call.arguments)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("api", FORMATS)
def test_invalid_bytes_are_replaced_wherever_the_network_splits_them(api: str, data: Any) -> None:
    """A2, S33: in text, reasoning, names, ids and arguments; intact content stays unchanged."""
    damage = data.draw(st.sampled_from(sorted(DAMAGE)))
    stream = stream_of(api).replace(MARK.encode(), DAMAGE[damage])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    message = read(NEW[api], pieces)
    assert message == read(NEW[api], [stream])
    is_sound(message)
    call = message.calls[0]
    assert message.text.startswith("low ") and message.text.endswith(" tide 🌊")
    assert all("\ufffd" in text for text in (message.text, call.name, call.id, call.arguments))
    assert json.loads(call.arguments)["path"].startswith("a") and call.arguments.endswith('b"}')
    assert message.carried, "the thought is kept"


@pytest.mark.parametrize("api", FORMATS)
def test_intact_text_is_not_changed(api: str) -> None:
    """S33: a surrogate pair is one character, and a backslash before `u` may be a backslash."""
    stream = stream_of(api)
    pair = read(NEW[api], [stream.replace(MARK.encode(), rb"\uD83C\udF0A")])
    assert pair.text == "low 🌊 tide 🌊" and json.loads(pair.calls[0].arguments) == {"path": "a🌊b"}
    assert read(NEW[api], [stream.replace(MARK.encode(), rb"\\\\ud800")]).text == r"low \\ud800 tide 🌊"


@pytest.mark.parametrize("api", FORMATS)
def test_half_a_character_in_tool_arguments_is_replaced(api: str) -> None:
    """S33: the arguments are JSON in JSON; a provider that gets them back would refuse all following requests."""
    message = read(NEW[api], [stream_of(api).replace(MARK.encode(), rb"\\ud800")])
    assert json.loads(message.calls[0].arguments) == {"path": "a\ufffdb"}
    is_sound(message)


def test_a_character_split_between_two_events_does_not_break_an_answer() -> None:
    """A2: the last event of a response repeats all of it, intact."""
    told = recorded.events([recorded.message("🌊🌊"), recorded.function_call("f", '{"a":"🌊"}')])
    stream = recorded.responses_stream(told)
    half = (
        rb'\ud83c", "obfuscation": "Q"}' + b"\n\n" + b'data: {"type": "%b", "output_index": %d, "delta": "' + rb"\udf0a"
    )

    def cut(kind: bytes, place: int, said: bytes) -> bytes:
        head, mark, tail = said.partition(b'"type": "response.%b.delta"' % kind)
        whole = rb"\ud83c\udf0a"
        return head + mark + tail.replace(whole, half % (b"response.%b.delta" % kind, place), 1)

    message = read(NEW["openai-responses"], [cut(b"function_call_arguments", 1, cut(b"output_text", 0, stream))])
    assert message.text == "\ufffd\ufffd🌊"
    assert message.calls[0].arguments == '{"a":"🌊"}'


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["chunk=1", "chunk=7", "", "whole"])
@pytest.mark.parametrize("api", FORMATS)
async def test_a_garbled_answer_is_accepted_and_sent_back_as_stored(server: ScriptedModel, api: str, way: str) -> None:
    """A2: streamed a byte at a time, or not streamed."""
    how = f"[garbled {way}]" if way != "whole" else "[garbled] [whole]"
    async with configured(server.base_url, api=api, key="env:CANARY", retries=0) as model:
        listener = Listener()
        question = f"[saying a<xff>b <ud800>] [tool clock<xe4> {{}}] {how}"
        answer = await ask(model, question, listener)
        assert answer.text == listener.text == "a\ufffdb \ufffd"
        assert answer.calls[0].name == "clock\ufffd"
        result = Message(role="tool", call_id=answer.calls[0].id, text="noon")
        again = await ask(model, [Message(role="user", text=question), answer, result])
        assert again.text.startswith("The tide")


def test_repair_leaves_valid_data_unchanged() -> None:
    for data in (b"", b'{"a":"b"}', '{"a":"世界"}'.encode(), rb'{"a":"\\ud800"}', rb'{"a":"\ud83c\udf0a\n"}'):
        assert repair_json(data) == data
    assert repair_json(rb'"\\\ud83d\n\\\\ud83d"') == rb'"\\\ufffd\n\\\\ud83d"'
