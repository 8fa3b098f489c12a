"""A turn cut off by a crash continues from its journal. Here a crash is the end of the core without any clean-up."""

import asyncio
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, core, idle
from tidegate.agent import is_balanced
from tidegate.store import messages, turns
from tidegate.tools import ToolContext, Toolset, tool

pytestmark = pytest.mark.anyio


async def test_a_turn_continues_from_its_last_row(home: Path, model: ScriptedModel) -> None:
    """F4, P01, P02, P06, V01: committed steps are not repeated, and the answer comes in the next process."""
    ran: list[str] = []

    @tool(effect="write")
    async def note(ctx: ToolContext, *, text: str) -> str:
        """Notes something."""
        ran.append(text)
        return f"noted {text}"

    options = {"tools": '"note"', "toolsets": {"note": Toolset((note,))}}
    async with core(home, model=model, drain=None, **options) as gateway:
        accepted = await gateway.accept(
            '[tool note {"text": "a"}] [tool note {"text": "b"}] [hold gate step=2] [say end]'
        )
        with anyio.fail_after(WAIT):
            await model.held("gate")
    model.release("gate")
    async with core(home, model=model, **options) as gateway:
        outcome = await gateway.answered(accepted.turn)
        assert (outcome.state, outcome.text) == ("answered", "end")
        rows = await gateway.store.read(lambda db: messages.journal(db, accepted.turn))
        assert [row.step for row in rows] == ["in-0", "model-0", "tool-0-0", "model-1", "tool-1-0", "model-2"]
        assert ran == ["a", "b"]
        assert gateway.model.stats()["refusals"] == []


async def test_an_interrupted_tool_with_effects_is_never_run_again(home: Path, model: ScriptedModel) -> None:
    """P05, S17, F4: its result says that the effect is unknown, and the model decides."""
    started = asyncio.Event()
    count = 0

    @tool(effect="execute")
    async def launch(ctx: ToolContext) -> str:
        """Launches."""
        nonlocal count
        count += 1
        started.set()
        await asyncio.Event().wait()
        return "launched"

    options = {"tools": '"launch"', "toolsets": {"launch": Toolset((launch,))}}
    async with core(home, model=model, drain=None, **options) as gateway:
        accepted = await gateway.accept("[tool launch {}] [say what now]")
        with anyio.fail_after(WAIT):
            await started.wait()
    async with core(home, model=model, **options) as gateway:
        outcome = await gateway.answered(accepted.turn)
        assert outcome.text == "what now"
        rows = await gateway.store.read(lambda db: messages.journal(db, accepted.turn))
        result = next(row.message for row in rows if row.message.role == "tool")
        assert result.failed and "effect is unknown" in result.text
    assert count == 1


async def test_an_interrupted_read_only_tool_may_run_again(home: Path, model: ScriptedModel) -> None:
    """P04: reading twice does no harm."""
    started = asyncio.Event()
    count = 0

    @tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        """Looks."""
        nonlocal count
        count += 1
        if count == 1:
            started.set()
            await asyncio.Event().wait()
        return f"look {count}"

    options = {"tools": '"look"', "toolsets": {"look": Toolset((look,))}}
    async with core(home, model=model, drain=None, **options) as gateway:
        accepted = await gateway.accept("[tool look {}] [say seen]")
        with anyio.fail_after(WAIT):
            await started.wait()
    async with core(home, model=model, **options) as gateway:
        assert (await gateway.answered(accepted.turn)).text == "seen"
        rows = await gateway.store.read(lambda db: messages.journal(db, accepted.turn))
        assert [row.message.text for row in rows if row.message.role == "tool"] == ["look 2"]


async def test_a_turn_that_keeps_killing_the_gateway_is_not_resumed_for_ever(home: Path, model: ScriptedModel) -> None:
    """S17, L23: after limits.resumes it ends with a reason; its transcript is balanced and its session is free."""
    extra = "[limits]\nresumes = 1"
    async with core(home, extra, model=model, drain=None) as gateway:
        accepted = await gateway.accept("[tool clock {}] [hang step=1]")
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        with anyio.fail_after(WAIT):
            while model.counts["requests"] < 2:
                await anyio.sleep(0.001)
    for _ in range(2):
        async with core(home, extra, model=model, drain=None) as gateway:
            row = await gateway.store.read(turns.get, accepted.turn)
            if row is not None and row.state == "running":
                asked = model.counts["requests"]
                with anyio.fail_after(WAIT):
                    while model.counts["requests"] <= asked and row is not None and row.state == "running":
                        await anyio.sleep(0.001)
                        row = await gateway.store.read(turns.get, accepted.turn)
    async with core(home, extra, model=model) as gateway:
        outcome = await gateway.answered(accepted.turn)
        assert outcome.state == "failed"
        assert outcome.error is not None and outcome.error.code == "resume_budget"
        history = await gateway.store.read(lambda db: messages.history(db, accepted.session))
        assert is_balanced(history)
        assert (await gateway.say("[say free]")).text == "free"


async def test_queued_messages_are_answered_after_a_crash(home: Path, model: ScriptedModel) -> None:
    """F4, V05, P01: an acknowledged message is taken by exactly one turn, even if it had only waited."""
    async with core(home, model=model, drain=None) as gateway:
        first = await gateway.accept("[hold gate] first")
        second = await gateway.accept("[say second answer] second")
        with anyio.fail_after(WAIT):
            await model.held("gate")
    model.release("gate")
    async with core(home, model=model) as gateway:
        assert (await gateway.answered(first.turn)).state == "answered"
        assert (await gateway.answered(second.turn)).text == "second answer"
        rows = await gateway.store.read(lambda db: messages.page(db, first.session, after=0, limit=50))
        said = [row.message.text for row in rows if row.message.role == "user"]
        assert said == ["[hold gate] first", "[say second answer] second"]


async def test_messages_steered_in_before_a_crash_are_read_after_it(home: Path, model: ScriptedModel) -> None:
    """S14, P06: drained or not, each is in the transcript once, and a replay returns from each drain what it returned
    before."""
    async with core(home, model=model, drain=None) as gateway:
        accepted = await gateway.accept("[tool clock {}] [hold a step=0]")
        with anyio.fail_after(WAIT):
            await model.held("a")
            await gateway.accept("drained before [hold b]", busy="steer")
            model.release("a")
            await model.held("b")
            await gateway.accept("not drained yet", busy="steer")
    model.release("b")
    async with core(home, model=model) as gateway:
        with anyio.fail_after(WAIT):
            assert (await gateway.answered(accepted.turn)).state == "answered"
            await idle(gateway, accepted.session)
        rows = await gateway.store.read(lambda db: messages.page(db, accepted.session, after=0, limit=50))
        texts = [row.message.text for row in rows if row.message.role == "user"]
        assert texts.count("drained before [hold b]") == 1 and texts.count("not drained yet") == 1
        assert gateway.model.stats()["refusals"] == []


async def test_a_one_shot_call_without_a_key_ends_with_its_connection(home: Path, model: ScriptedModel) -> None:
    """S18, H16, V18: after a crash nobody waits for it, so it is stopped and leaves nothing behind."""
    async with core(home, model=model, drain=None) as gateway:
        accepted = await gateway.accept("[hold gate]", name=None)
        with anyio.fail_after(WAIT):
            await model.held("gate")
    model.release("gate")
    async with core(home, model=model) as gateway:
        assert (await gateway.answered(accepted.turn)).state == "stopped"
        rows = await gateway.store.read(lambda db: db.execute("SELECT count(*) FROM sessions").get)
        assert rows == 0
        assert gateway.service.turn_log(accepted.turn) is None


async def test_a_stop_lets_turns_finish_within_its_budget(home: Path, model: ScriptedModel) -> None:
    """F1, V01: intake is closed, the running turn is answered, nothing is parked."""
    async with core(home, model=model) as gateway:
        accepted = await gateway.accept("[slow ms=5] [words 5]")
        await gateway.service.drain(WAIT)
        assert (await gateway.service.outcome(accepted.turn, ANNA)).state == "answered"


async def test_a_stop_parks_unfinished_turns_and_the_next_start_continues_them(
    home: Path, model: ScriptedModel
) -> None:
    """F1, V01, S16: a parked turn is still running in the store, in its own session, and costs no resume."""
    async with core(home, "[limits]\nresumes = 0", model=model, drain=None) as gateway:
        accepted = await gateway.accept("[hold gate step=0] [tool clock {}] [say after the stop]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        async with asyncio.TaskGroup() as group:
            group.create_task(gateway.service.drain(0.05))
            while gateway.components.engine.can_start(accepted.turn):
                await anyio.sleep(0.001)
            model.release("gate")
        row = await gateway.store.read(turns.get, accepted.turn)
        assert row is not None and row.state == "running"
    async with core(home, "[limits]\nresumes = 0", model=model) as gateway:
        assert (await gateway.answered(accepted.turn)).text == "after the stop"


@pytest.mark.parametrize("rounds", range(0, 40, 2))
async def test_a_turn_broken_by_the_end_of_the_process_continues_at_the_next_start(
    home: Path, model: ScriptedModel, rounds: int
) -> None:
    """F1, F4, V01: even one that was about to open something when nothing could be opened any more."""
    async with core(home, model=model, drain=None) as gateway:
        accepted = await gateway.accept("[say at last]")
        for _ in range(rounds):
            await anyio.lowlevel.checkpoint()
    async with core(home, model=model) as gateway:
        assert (await gateway.answered(accepted.turn)).text == "at last"
