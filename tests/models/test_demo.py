"""The demo model: every phrase of docs/demo-model.md, and that it never pretends to be a real model."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.support import PREFIX, Listener, ask, encoded_by
from tidegate.config import ModelSettings
from tidegate.errors import ModelFailed
from tidegate.http_client import HttpClient
from tidegate.models import Model, Models
from tidegate.models.demo.model import FACTS
from tidegate.models.demo.script import CONFIGURE, GREETING, HELP, HIGHEST_COUNT, read_request, reply
from tidegate.models.formats.openai.chat import ChatWire
from tidegate.security import Secret
from tidegate.values import Call, Message, Prefix, ToolCall, ToolDefinition

pytestmark = pytest.mark.anyio

CLOCK = ToolDefinition(
    name="clock",
    description="Tells the time.",
    parameters=msgspec.Raw(b'{"type":"object","properties":{"zone":{"type":"string"}}}'),
)


@pytest.fixture
async def demo() -> AsyncIterator[Model]:
    async with HttpClient() as clients, Models({"main": ModelSettings(api="demo")}, clients, Secret, 1000) as models:
        yield models.get("main")


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("help", HELP),
        ("What can you do?", HELP),
        ("Who are you?", CONFIGURE),
        ("how do I configure a real model?", CONFIGURE),
        ("Hello there", GREETING),
        ("thanks!", "You are welcome."),
        ("say  two  spaces\nand a line", "two  spaces\nand a line"),
        ("count to 5", "1 2 3 4 5"),
        ("count to 0", ""),
        ("long 12", "x" * 12),
        ("slow a b", "a b"),
        ("silence", ""),
        ("what did I say", "This is the first thing you have said to me."),
    ],
)
async def test_it_answers_the_documented_phrases(demo: Model, said: str, answer: str) -> None:
    listener = Listener()
    message = await ask(demo, said, listener)
    assert message.text == listener.text == answer
    assert (message.finish, message.calls, message.model) == ("stop", (), "demo")
    assert message.usage is not None
    assert message.usage.input > 0


async def test_it_says_that_it_is_a_demo_when_it_does_not_understand(demo: Model) -> None:
    answer = (await ask(demo, "Explain the tides to me.")).text
    assert "Explain the tides to me." in answer
    assert "demo model" in answer
    assert "configure" in answer


async def test_it_remembers_the_conversation(demo: Model) -> None:
    said = [Message(role="user", text="my boat is red"), Message(role="assistant", text="ok")]
    said.append(Message(role="user", text="what did I say?", aside="It is Monday."))
    assert (await ask(demo, said)).text == "Before this you said: my boat is red"


@pytest.mark.parametrize(
    ("said", "name", "arguments"),
    [
        ("What time is it?", "clock", "{}"),
        ("what's the time in Europe/Paris please", "clock", '{"zone":"Europe/Paris"}'),
        ("what is the date", "clock", "{}"),
        ("read file notes.txt", "read_file", '{"path":"notes.txt"}'),
        ("Read the file `a/b.txt`", "read_file", '{"path":"a/b.txt"}'),
        ("read notes.txt from line 200", "read_file", '{"path":"notes.txt","offset":199}'),
        ('call read_file {"path": "x y"}', "read_file", '{"path": "x y"}'),
        ("What did I say first?", "context_expand", '{"first":1}'),
        ("what was message 3", "context_expand", '{"first":3}'),
        ("What were messages 3 to 9?", "context_expand", '{"first":3,"last":9}'),
        ("search for red boats", "context_search", '{"query":"red boats"}'),
        ("Search everywhere for red boats", "context_search", '{"query":"red boats","everywhere":true}'),
        ("call anything", "anything", "{}"),
        ("call clock {broken", "clock", "{broken"),
    ],
)
async def test_it_calls_tools_in_plain_words(demo: Model, said: str, name: str, arguments: str) -> None:
    recall = (ToolDefinition(name=f"context_{each}", description="Recalls.") for each in ("expand", "search"))
    prefix = Prefix(prompt="p", tools=(CLOCK, PREFIX.tools[1], *recall))
    message = await ask(demo, said, prefix=prefix)
    assert message.calls == (ToolCall(id="call_demo_1", name=name, arguments=arguments),)
    assert message.finish == "tool_calls"


async def test_it_reports_tool_results(demo: Model) -> None:
    said = [Message(role="user", text="what time is it")]
    said.append(await ask(demo, said))
    said.append(Message(role="tool", call_id="call_demo_1", text="Monday noon"))
    assert (await ask(demo, said)).text == "The clock says: Monday noon"
    said += [Message(role="assistant", text="x"), Message(role="user", text="call clock; call read_file {}")]
    both = await ask(demo, said)
    assert [(call.id, call.name) for call in both.calls] == [("call_demo_2", "clock"), ("call_demo_3", "read_file")]
    said += [both, *(Message(role="tool", call_id=call.id, text=f"from {call.name}") for call in both.calls)]
    assert (await ask(demo, said)).text == "clock gave me this:\nfrom clock\n\nread_file gave me this:\nfrom read_file"


async def test_it_calls_again_and_again_when_told_to_loop(demo: Model) -> None:
    said = [Message(role="user", text="loop clock {}")]
    for turn in range(1, 4):
        answer = await ask(demo, said)
        assert [call.id for call in answer.calls] == [f"call_demo_{turn}"]
        said += [answer, Message(role="tool", call_id=f"call_demo_{turn}", text="noon")]


@pytest.mark.parametrize(
    ("said", "word"), [("what time is it", "clock"), ("read file x", "read_file"), ("search for x", "context_search")]
)
async def test_it_says_when_a_tool_is_missing(demo: Model, said: str, word: str) -> None:
    answer = await ask(demo, said, prefix=Prefix(prompt=""))
    assert answer.calls == ()
    assert word in answer.text


@pytest.mark.parametrize(
    ("said", "kind", "retryable"),
    [
        ("fail", "overloaded", True),
        ("fail rate", "rate", True),
        ("fail quota", "quota", False),
        ("fail x", "overloaded", True),
    ],
)
async def test_it_fails_when_asked_to(demo: Model, said: str, kind: str, retryable: bool) -> None:
    with pytest.raises(ModelFailed) as caught:
        await ask(demo, said)
    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


async def test_stumble_withdraws_text_and_starts_again(demo: Model) -> None:
    listener = Listener()
    answer = await ask(demo, "stumble", listener)
    assert len(listener.resets) == 1
    assert listener.text == answer.text != ""


async def test_it_respects_the_token_limit(demo: Model) -> None:
    counted = await ask(demo, "count to 50", call=Call(max_tokens=3))
    assert (counted.text, counted.finish) == ("1 2 3", "length")
    said = await ask(demo, "say one two three", call=Call(max_tokens=2))
    assert (said.text, said.finish) == ("one two", "length")


async def test_a_long_count_yields_to_other_tasks_and_stops_at_once(demo: Model) -> None:
    """Other tasks run between two words, and a cancellation takes effect."""
    listener = Listener()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, demo, f"count to {HIGHEST_COUNT * 10}", listener)
            while len(listener.pieces) < 10:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    assert len(listener.pieces) < HIGHEST_COUNT


async def test_its_lease_is_counted(demo: Model) -> None:
    lease = demo.lease()
    assert lease.endpoint == "demo"
    lease.release()


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.text(max_size=40)), max_size=6))
def test_the_same_request_has_the_same_reply(said: list[tuple[str, str]]) -> None:
    """S32: every message gets a reply, always the same."""
    wire = ChatWire("demo", FACTS)
    history = [encoded_by(wire, Message(role=role, text=text, call_id="c")) for role, text in said]  # type: ignore[arg-type]
    body = b"".join(wire.body(wire.encode_prefix(PREFIX), history, Call()))
    assert reply(read_request(body)) == reply(read_request(body))


def test_every_phrase_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "demo-model.md").read_text()
    for word in ("help", "say", "count to", "long", "slow", "stumble", "silence", "fail", "call", "loop", "read file"):
        assert f"`{word}" in page
