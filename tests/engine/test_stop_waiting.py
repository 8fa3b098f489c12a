"""A turn that is stopped while it waits: it ends at once, leaves the queue, and never runs."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, core
from tidegate.store import open_turns, sessions

pytestmark = pytest.mark.anyio


async def test_a_waiting_turn_that_is_stopped_ends_at_once_and_leaves_the_queue(
    home: Path, model: ScriptedModel
) -> None:
    """L21, B7: waiting callers are informed, the queue is shorter by one, and the others keep their order."""
    async with core(home, "[limits]\nqueue_length = 2", model=model) as gateway:
        running = await gateway.accept("[hold gate] one")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        gone, kept = await gateway.accept("two"), await gateway.accept("three")
        assert await gateway.components.engine.stop(gone.turn, "by its user")
        outcome = await gateway.answered(gone.turn)
        assert outcome.state == "stopped" and outcome.error is not None and "by its user" in outcome.error.message
        assert await gateway.service.outcome(gone.turn, ANNA) == outcome
        assert (await gateway.store.read(open_turns.of_session, running.session)).waiting == 1
        later = await gateway.accept("four")
        assert later.ahead == 2
        model.release("gate")
        for accepted in (running, kept, later):
            assert (await gateway.answered(accepted.turn)).state == "answered"
        rows = (await gateway.service.transcript(running.session, ANNA)).rows
        assert [row.message.text for row in rows if row.message.role == "user"] == ["[hold gate] one", "three", "four"]
        assert gateway.components.engine.stats().waiting == 0


async def test_a_one_shot_call_whose_caller_left_while_it_waited_never_runs(home: Path, model: ScriptedModel) -> None:
    """H16, V18, L29: it leaves nothing behind, and no model is asked."""
    async with core(home, "[limits]\nturns = 1", model=model) as gateway:
        running = await gateway.accept("[hold gate] one")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        waiting = await gateway.accept("two", name=None)
        await gateway.service.abandon(waiting.turn)
        with anyio.fail_after(WAIT):
            while gateway.service.turn_log(waiting.turn) is not None:
                await anyio.lowlevel.checkpoint()
        assert await gateway.store.read(sessions.get, waiting.session) is None
        model.release("gate")
        await gateway.answered(running.turn)
        assert (await gateway.say("three", name="other")).state == "answered"
        assert [request["messages"][-1]["content"] for request in gateway.requests()] == ["[hold gate] one", "three"]
        assert gateway.service.census()["present"] == 2


async def test_a_one_shot_call_that_waited_when_the_gateway_died_never_runs(home: Path, model: ScriptedModel) -> None:
    """S18, V18: nobody waits for it any more; it leaves nothing behind and has no later effect."""
    async with core(home, "[limits]\nturns = 1", model=model, drain=None) as gateway:
        await gateway.accept("[hold gate] one")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        waiting = await gateway.accept("two", name=None)
    model.release("gate")
    async with core(home, model=model) as gateway:
        assert await gateway.store.read(sessions.get, waiting.session) is None
        assert waiting.session not in [turn.session for turn in await gateway.store.read(open_turns.listing)]


async def test_the_last_waiting_turn_that_is_stopped_leaves_no_trace_in_memory(
    home: Path, model: ScriptedModel
) -> None:
    """B7, L02: its session is present for no other reason."""
    async with core(home, "[limits]\nturns = 1", model=model) as gateway:
        running = await gateway.accept("[hold gate] one")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        waiting = await gateway.accept("two", name="other")
        assert gateway.components.presence.get(waiting.session) is not None
        await gateway.components.engine.stop(waiting.turn, "by its user")
        with anyio.fail_after(WAIT):
            while gateway.components.presence.get(waiting.session) is not None:
                await anyio.lowlevel.checkpoint()
        model.release("gate")
        await gateway.answered(running.turn)
        assert (await gateway.say("three", name="other")).session == waiting.session


async def test_when_the_stop_of_a_waiting_turn_is_reported_its_session_is_gone_from_memory(
    home: Path, model: ScriptedModel
) -> None:
    """B7, F5: in the same iteration of the event loop, not some iterations later."""
    async with core(home, "[limits]\nturns = 1", model=model) as gateway:
        await gateway.accept("[hold gate] one")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        present = gateway.service.census()["present"]
        told: list[int] = []
        for number in range(20):
            waiting = await gateway.accept("two", name=f"other {number}")
            assert await gateway.components.engine.stop(waiting.turn, "by its user")
            await gateway.answered(waiting.turn)
            told.append(gateway.service.census()["present"])
        assert told == [present] * 20
        model.release("gate")
