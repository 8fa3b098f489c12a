"""A conversation whose frozen prompt or tools differ from the configuration: its user is notified once."""

from pathlib import Path
from typing import Any

import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, OWNER, Core, core
from tidegate.agent import EXTRA, PROMPT, build_prefix
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.turns.prefix_drift import drift_of

pytestmark = pytest.mark.anyio

BOTH, ONE, OTHER = '"clock", "files"', '"clock"', '"clock", "ask"'
LESS = "This agent's tools changed since this conversation began (no longer: "
MORE = "This agent's tools changed since this conversation began (now also: ask_user; no longer: "


def running(home: Path, model: ScriptedModel, tools: str = BOTH, **options: Any) -> Any:
    return core(home, model=model, tools=tools, **options)


async def drift_notices(gateway: Core, text: str = "hello") -> tuple[str, ...]:
    """The notices to the user: the same live and from the store."""
    outcome = await gateway.say(text)
    assert outcome.state == "answered"
    assert await gateway.service.outcome(outcome.turn, ANNA) == outcome
    return outcome.notices


async def test_each_change_of_the_tools_is_reported_once(home: Path, model: ScriptedModel) -> None:
    """A4, S33: across restarts, and to the user alone; the model's view stays frozen."""
    async with running(home, model) as gateway:
        assert await drift_notices(gateway) == ()
        frozen = gateway.requests()[-1]["tools"]
    for tools, expected in ((ONE, LESS), (ONE, ""), (OTHER, MORE), (BOTH, ""), (ONE, LESS)):
        async with running(home, model, tools) as gateway:
            told = await drift_notices(gateway)
            assert len(told) == bool(expected) and "".join(told).startswith(expected), tools
            assert all(text.endswith("). /reload applies the change.") for text in told)
            assert await drift_notices(gateway) == (), "once"
            assert gateway.requests()[-1]["tools"] == frozen
            assert "changed since" not in str(gateway.requests()[-1]["messages"])
    assert model.stats()["refused"] == 0


async def test_nothing_is_reported_after_a_reload(home: Path, model: ScriptedModel) -> None:
    """A4: the tools are then those of the configuration, and a later change is reported again."""
    async with running(home, model) as gateway:
        first = await gateway.say("hello")
    async with running(home, model, ONE) as gateway:
        assert len(await drift_notices(gateway)) == 1
        assert await gateway.service.operations.reload(first.session, OWNER)
        assert await drift_notices(gateway) == ()
        assert [each["function"]["name"] for each in gateway.requests()[-1]["tools"]] == ["clock"]
    async with running(home, model, BOTH) as gateway:
        (told,) = await drift_notices(gateway)
        assert "(now also: edit_file, " in told


async def test_a_tool_that_is_no_longer_there_says_so(home: Path, model: ScriptedModel) -> None:
    """S33: the model may still call what its frozen list names."""
    async with running(home, model) as gateway:
        await drift_notices(gateway)
    async with running(home, model, ONE) as gateway:
        outcome = await gateway.say('[tool read_file {"path":"x"}] look')
        rows = (await gateway.service.transcript(outcome.session, ANNA)).rows
        assert "There is no tool named 'read_file' here." in [row.message.text for row in rows]


async def test_a_changed_prompt_is_reported_unless_the_caller_replaced_it(home: Path, model: ScriptedModel) -> None:
    """A4: one-shot calls have nothing frozen; an additional prompt of the caller is no difference."""
    async with running(home, model) as gateway:
        await gateway.say("hello", extra_prompt="Be brief.")
        await gateway.say("hello", name="plain")
    text = (home / "tidegate.toml").read_text().replace("You are a test.", "You are another test.")
    async with running(home, model, toml=text) as gateway:
        for name in ("talk", "plain"):
            (told,) = (await gateway.say("again", name=name)).notices
            assert told == "This agent's prompt changed since this conversation began. /reload applies the change."
        assert (await gateway.say("once", None)).notices == ()
        assert (await gateway.say("new", name="fresh")).notices == ()


async def test_a_turn_that_is_killed_tells_it_in_its_next_attempt(home: Path, model: ScriptedModel) -> None:
    """S17: a notice that nobody could read is repeated; the next turn has none."""
    async with running(home, model) as gateway:
        await drift_notices(gateway)
    async with running(home, model, ONE, drain=None) as gateway:
        accepted = await gateway.accept("[hold gate] two")
        await model.held("gate")
    model.release("gate")
    async with running(home, model, ONE) as gateway:
        outcome = await gateway.answered(accepted.turn)
        assert [text.startswith(LESS) for text in outcome.notices] == [True]
        assert await drift_notices(gateway) == ()


async def test_it_costs_a_usual_turn_nothing(home: Path, model: ScriptedModel) -> None:
    """L20: no additional read or write; the turn with the notice has one more write."""

    async def cost(gateway: Core, name: str) -> tuple[int, int]:
        await gateway.say("hello", name="another")  # what a start reads and writes is over by then
        before = gateway.store.stats()
        accepted = await gateway.accept("hello", name)
        await gateway.answered(accepted.turn)
        after = gateway.store.stats()
        return after.writes - before.writes, after.reads - before.reads

    async with running(home, model) as gateway:
        await gateway.say("hello", name="told")
        await gateway.say("hello", name="reference")
        usual = await cost(gateway, "told")
    async with running(home, model) as gateway:
        first = await cost(gateway, "reference")
    async with running(home, model, ONE) as gateway:
        assert await cost(gateway, "told") == (first[0] + 1, first[1])
        assert await cost(gateway, "told") == usual


@tool(effect="read")
async def look(ctx: ToolContext) -> str:
    """Look."""
    return ""


@tool(effect="read", name="look")
async def stare(ctx: ToolContext, *, long: bool = False) -> str:
    """Look."""
    return ""


def test_the_notice_names_the_differences() -> None:
    """A4: tools by name, also one that only changed; prompt and tools together."""
    old, new = Toolset((look,)), Toolset((stare,))
    assert drift_of(build_prefix([(PROMPT, "a ")], old), " a", old) is None
    assert drift_of(build_prefix([(PROMPT, ""), (EXTRA, "mine")], old), "", old) is None
    assert drift_of(build_prefix([(PROMPT, "a"), (EXTRA, "mine")], old), "a", old) is None
    found = drift_of(build_prefix([(PROMPT, "a")], old), "b", new)
    assert found is not None and found.text == (
        "This agent's prompt and tools changed since this conversation began (changed: look). "
        "/reload applies the change."
    )
