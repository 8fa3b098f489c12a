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


async def drift_notices(house: Core, text: str = "hello") -> tuple[str, ...]:
    """The notices to the user: the same live and from the store."""
    outcome = await house.say(text)
    assert outcome.state == "answered"
    assert await house.service.outcome(outcome.turn, ANNA) == outcome
    return outcome.notices


async def test_each_change_of_the_tools_is_reported_once(home: Path, model: ScriptedModel) -> None:
    """A4, S33: across restarts, and to the user alone; the model's view stays frozen."""
    async with running(home, model) as house:
        assert await drift_notices(house) == ()
        frozen = house.requests()[-1]["tools"]
    for tools, expected in ((ONE, LESS), (ONE, ""), (OTHER, MORE), (BOTH, ""), (ONE, LESS)):
        async with running(home, model, tools) as house:
            told = await drift_notices(house)
            assert len(told) == bool(expected) and "".join(told).startswith(expected), tools
            assert all(text.endswith("). /reload applies the change.") for text in told)
            assert await drift_notices(house) == (), "once"
            assert house.requests()[-1]["tools"] == frozen
            assert "changed since" not in str(house.requests()[-1]["messages"])
    assert model.stats()["refused"] == 0


async def test_nothing_is_reported_after_a_reload(home: Path, model: ScriptedModel) -> None:
    """A4: the tools are then those of the configuration, and a later change is reported again."""
    async with running(home, model) as house:
        first = await house.say("hello")
    async with running(home, model, ONE) as house:
        assert len(await drift_notices(house)) == 1
        assert await house.service.operations.reload(first.session, OWNER)
        assert await drift_notices(house) == ()
        assert [each["function"]["name"] for each in house.requests()[-1]["tools"]] == ["clock"]
    async with running(home, model, BOTH) as house:
        (told,) = await drift_notices(house)
        assert "(now also: edit_file, " in told


async def test_a_tool_that_is_no_longer_there_says_so(home: Path, model: ScriptedModel) -> None:
    """S33: the model may still call what its frozen list names."""
    async with running(home, model) as house:
        await drift_notices(house)
    async with running(home, model, ONE) as house:
        outcome = await house.say('[tool read_file {"path":"x"}] look')
        rows = (await house.service.transcript(outcome.session, ANNA)).rows
        assert "There is no tool named 'read_file' here." in [row.message.text for row in rows]


async def test_a_changed_prompt_is_reported_unless_the_caller_replaced_it(home: Path, model: ScriptedModel) -> None:
    """A4: one-shot calls have nothing frozen; an additional prompt of the caller is no difference."""
    async with running(home, model) as house:
        await house.say("hello", extra_prompt="Be brief.")
        await house.say("hello", name="plain")
    text = (home / "tidegate.toml").read_text().replace("You are a test.", "You are another test.")
    async with running(home, model, toml=text) as house:
        for name in ("talk", "plain"):
            (told,) = (await house.say("again", name=name)).notices
            assert told == "This agent's prompt changed since this conversation began. /reload applies the change."
        assert (await house.say("once", None)).notices == ()
        assert (await house.say("new", name="fresh")).notices == ()


async def test_a_turn_that_is_killed_tells_it_in_its_next_attempt(home: Path, model: ScriptedModel) -> None:
    """S17: a notice that nobody could read is repeated; the next turn has none."""
    async with running(home, model) as house:
        await drift_notices(house)
    async with running(home, model, ONE, drain=None) as house:
        accepted = await house.accept("[hold gate] two")
        await model.held("gate")
    model.release("gate")
    async with running(home, model, ONE) as house:
        outcome = await house.answered(accepted.turn)
        assert [text.startswith(LESS) for text in outcome.notices] == [True]
        assert await drift_notices(house) == ()


async def test_it_costs_a_usual_turn_nothing(home: Path, model: ScriptedModel) -> None:
    """L20: no additional read or write; the turn with the notice has one more write."""

    async def cost(house: Core, name: str) -> tuple[int, int]:
        await house.say("hello", name="another")  # what a start reads and writes is over by then
        before = house.store.stats()
        accepted = await house.accept("hello", name)
        await house.answered(accepted.turn)
        after = house.store.stats()
        return after.writes - before.writes, after.reads - before.reads

    async with running(home, model) as house:
        await house.say("hello", name="told")
        await house.say("hello", name="reference")
        usual = await cost(house, "told")
    async with running(home, model) as house:
        first = await cost(house, "reference")
    async with running(home, model, ONE) as house:
        assert await cost(house, "told") == (first[0] + 1, first[1])
        assert await cost(house, "told") == usual


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
