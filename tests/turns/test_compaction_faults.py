"""Faults injected at every write and every await of a compaction: nothing is lost, and the conversation continues."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from bench.scripted import ScriptedModel
from bench.scripted.behaviour import Behaviour
from tests.core import ANNA, WAIT, Core, idle
from tests.engine.test_faults import Fault
from tests.turns.test_compaction import WINDOW, WORDS, compacting_core, conversation_requests, refused_requests, talk
from tidegate.agent import is_balanced
from tidegate.errors import TidegateError
from tidegate.models import SUMMARY_TASK
from tidegate.store import messages
from tidegate.turns.compaction.compaction import COMPACTION_REQUESTED, read_view

pytestmark = pytest.mark.anyio

TURNS = 9
"""Enough that a requested compaction has old messages."""

WRITES = 8
"""More than a turn with a compaction makes: accept, clear the request, summaries with their cost, apply, settle."""


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(behaviour=Behaviour(marker=SUMMARY_TASK, windows={"*": WINDOW})) as model:
        yield model


async def prepared(h: Core) -> str:
    """A conversation whose next turn compacts."""
    session = (await talk(h, TURNS))[-1].session
    await h.service.operations.set_setting(session, ANNA, COMPACTION_REQUESTED, True, source="test")
    return session


async def check_invariants(h: Core, session: str) -> None:
    """The invariants after any fault."""
    history = await h.store.read(messages.history, session)
    assert is_balanced(history)
    assert [row.text for row in history if row.role == "user"][:TURNS] == [f"turn {n}: {WORDS}" for n in range(TURNS)]
    view = await h.store.read(read_view, session, None)
    end = 0
    for row in view.summaries:
        assert row.first == end + 1
        end = row.last


@pytest.mark.parametrize("number", range(1, WRITES + 1))
async def test_a_write_that_fails_anywhere_in_a_compaction_loses_nothing(
    home: Path, model: ScriptedModel, number: int
) -> None:
    """L23, B7, S35: the next message is answered, from an intact view."""
    fault = Fault(number)
    async with compacting_core(home, model, fault=fault) as h:
        session = await prepared(h)
        fault.armed = True
        with anyio.fail_after(WAIT):
            try:
                accepted = await h.accept("second")
                await h.service.wait(accepted.turn)
            except TidegateError:
                accepted = None
            fault.armed = False
            await h.service.recover()
            if accepted is not None:
                await idle(h, session)
        assert (await h.say("third")).state == "answered"
        await check_invariants(h, session)
        before = conversation_requests(model)[-1]["messages"]
        h.components.presence.unload(session, reason="test")
        assert (await h.say("fourth")).state == "answered"
        assert conversation_requests(model)[-1]["messages"][: len(before)] == before, "what is stored is what was shown"
    assert refused_requests(model) == 0


@pytest.mark.parametrize("after", [1, 2, 3, 5, 8, 12, 17, 23, 30, 40, 60, 90, 140, 200])
async def test_a_stop_at_any_moment_of_a_compaction_loses_nothing(home: Path, model: ScriptedModel, after: int) -> None:
    """L23, B7: the turn is stopped after n rounds of the loop, wherever that is."""
    async with compacting_core(home, model) as h:
        session = await prepared(h)
        accepted = await h.accept("second")
        for _ in range(after):
            await asyncio.sleep(0)
        await h.service.stop(session, ANNA)
        assert (await h.answered(accepted.turn)).state in ("stopped", "answered")
        assert (await h.say("third")).state == "answered"
        await check_invariants(h, session)
        assert not [task for task in asyncio.all_tasks() if accepted.turn in task.get_name()]
    assert refused_requests(model) == 0


@pytest.mark.parametrize("after", [1, 3, 8, 17, 30, 60, 90, 140])
async def test_a_crash_at_any_moment_of_a_compaction_loses_nothing(
    home: Path, model: ScriptedModel, after: int
) -> None:
    """B1, S03: the turn continues in the next process with the view of the store."""
    async with compacting_core(home, model, drain=None) as h:
        session = await prepared(h)
        accepted = await h.accept("second")
        for _ in range(after):
            await asyncio.sleep(0)
    async with compacting_core(home, model) as h:
        outcome = await h.answered(accepted.turn)
        assert outcome.state == "answered", outcome.error
        await check_invariants(h, session)
        before = conversation_requests(model)[-1]["messages"]
        assert (await h.say("third")).state == "answered"
        assert conversation_requests(model)[-1]["messages"][: len(before)] == before
    assert refused_requests(model) == 0
