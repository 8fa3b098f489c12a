"""Turns that wait for a person: their residents are unloaded like any other, and reloaded with the answer."""

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core
from tests.effects import EffectRecord, ask, asked, asking, results, until
from tests.sessions.test_residents import check_growth
from tests.tasks import delegating, task
from tidegate.agent import Conversation
from tidegate.tools import ToolContext, Toolset, tool

pytestmark = pytest.mark.anyio

TURNS = 12
LONG = "the tide comes in and the tide goes out. " * 500


def resident_sizes(gateway: Core) -> tuple[int, int]:
    """The residents in memory and their bytes, counted from their contents."""
    found = [
        resident
        for record in gateway.components.presence
        for resident in (record.resident, *record.detached)
        if isinstance(resident, Conversation)
    ]
    return len(found), sum(sum(len(part) for part in each.history.parts if isinstance(part, bytes)) for each in found)


def reported_sizes(gateway: Core) -> tuple[int, int]:
    """The same according to metrics, status and ledger."""
    stats = gateway.components.presence.stats()
    total = gateway.components.presence.ledger.totals().get("resident")
    assert (stats.residents, stats.resident_bytes) == ((0, 0) if total is None else (total.count, total.bytes))
    return stats.residents, stats.resident_bytes


def check_books(gateway: Core) -> None:
    count, size = resident_sizes(gateway)
    residents, told = reported_sizes(gateway)
    assert residents == count
    assert size <= told <= 1.1 * size + 2048 * count


async def settled(gateway: Core) -> None:
    """Wait until unloaded residents are released."""
    await until(lambda: not gateway.components.presence.releasing)


async def wait_for_person(gateway: Core, count: int = TURNS) -> list[tuple[str, str]]:
    """Conversations with a long message whose next turn waits; the turn and question of each."""
    waiting: list[tuple[str, str]] = []
    for number in range(count):
        await gateway.say(f"{number}: {LONG}", name=f"talk {number}", channel="page")
        call = f'[tool push {{"what": "{number}"}}] [say done {number}]'
        turn, [question] = await ask(gateway, call, name=f"talk {number}")
        waiting.append((turn, question.id))
    return waiting


async def test_turns_that_wait_keep_no_more_residents_than_the_cap(home: Path, model: ScriptedModel) -> None:
    """A6, A8, A12, B4: the others go on from the store after their answers, and every request begins as the one
    before."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, "[limits]\nresidents = 2") as gateway:
        waiting = await wait_for_person(gateway)
        await settled(gateway)
        assert resident_sizes(gateway)[0] == 2
        check_books(gateway)
        for number, (turn, question) in enumerate(waiting):
            await gateway.service.questions.answer(question, ANNA, "approved")
            assert (await gateway.answered(turn)).text == f"done {number}"
            await settled(gateway)
            assert resident_sizes(gateway)[0] <= 2
        assert sorted(deeds.done) == sorted(str(number) for number in range(TURNS))
        assert model.stats()["reuse"] == 1.0 and model.stats()["refused"] == 0
        check_books(gateway)


async def test_turns_that_wait_hold_no_more_bytes_than_the_budget(home: Path, model: ScriptedModel) -> None:
    """A6, L03: the messages of the running turn are weighed too."""
    async with asking(home, model, EffectRecord(), '[limits]\nresident_bytes = "64 KiB"') as gateway:
        await wait_for_person(gateway, 6)
        await settled(gateway)
        assert 0 < reported_sizes(gateway)[1] <= 64 * 1024
        check_books(gateway)


async def test_pressure_and_idleness_unload_waiting_residents(home: Path, model: ScriptedModel) -> None:
    """A7, A8, P16: and the turns go on all the same."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        waiting = await wait_for_person(gateway, 2)
        assert gateway.components.presence.relieve(1)[0] == 1
        assert gateway.components.presence.sweep(now=1e12) == 1
        await settled(gateway)
        assert resident_sizes(gateway) == (0, 0)
        for turn, question in waiting:
            await gateway.service.questions.answer(question, ANNA, "approved")
            await gateway.answered(turn)
        assert model.stats()["reuse"] == 1.0
    assert deeds.done == ["0", "1"]


async def test_a_kill_while_turns_wait_unloaded_loses_nothing(home: Path, model: ScriptedModel) -> None:
    """S29, F4, B4: the next process asks again, and its answers count."""
    deeds = EffectRecord()
    extra = "[limits]\nresidents = 1"
    async with asking(home, model, deeds, extra, drain=None) as gateway:
        waiting = await wait_for_person(gateway, 3)
        await settled(gateway)
    async with asking(home, model, deeds, extra) as gateway:
        for turn, question in waiting:
            assert [found.id for found in await asked(gateway, turn)] == [question]
            await gateway.service.questions.answer(question, ANNA, "approved")
            assert (await gateway.answered(turn)).state == "answered"
        assert model.stats()["reuse"] == 1.0
    assert deeds.done == ["0", "1", "2"]


async def test_unloaded_at_any_moment_of_the_wait_the_turn_goes_on(home: Path, model: ScriptedModel) -> None:
    """A8, B4, S03: before the answer, with it, after it, and twice; a turn that works again keeps what it works on."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        await gateway.say(LONG, channel="page")
        for after in range(40):
            turn, [question] = await ask(gateway, f'[tool push {{"what": "{after}"}}] [say done {after}]')
            session = gateway.service.turn_log(turn).session  # type: ignore[union-attr]
            async with anyio.create_task_group() as group:
                group.start_soon(gateway.service.questions.answer, question.id, ANNA, "approved")
                for _ in range(after):
                    await anyio.lowlevel.checkpoint()
                gateway.components.presence.unload(session, reason="test")
                await anyio.lowlevel.checkpoint()
                gateway.components.presence.unload(session, reason="test")
            assert (await gateway.answered(turn)).text == f"done {after}"
            assert results(gateway)[-1] == f"pushed {after}"
        check_growth(model)
        assert deeds.done == [str(after) for after in range(40)]


async def test_a_call_beside_a_waiting_one_finds_its_turn_complete(home: Path, model: ScriptedModel) -> None:
    """A12, P16: results of both are in the next request, in the order of the calls."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        call = '[together linger {"what": "slow"} push {"what": "b"}] [say both]'
        accepted = await gateway.accept(call, channel="page")
        first, second = await asked(gateway, accepted.turn, 2)
        by_tool = {question.tool: question.id for question in (first, second)}
        await gateway.service.questions.answer(by_tool["linger"], ANNA, "approved")
        await until(deeds.started.is_set)
        assert gateway.components.presence.unload(accepted.session, reason="test")
        await gateway.service.questions.answer(by_tool["push"], ANNA, "approved")
        deeds.goes_on.set()
        assert (await gateway.answered(accepted.turn)).text == "both"
        assert results(gateway) == ["lingered", "pushed b"]
        check_growth(model)


@contextlib.contextmanager
def slow_writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writes to the file of unloaded histories wait for the end of the block."""
    write, goes_on = os.pwrite, threading.Event()

    def slow(fd: int, data: bytes, offset: int) -> int:
        goes_on.wait(WAIT)
        return write(fd, data, offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", slow)
        try:
            yield
        finally:
            goes_on.set()


async def test_a_history_that_was_kept_late_does_not_stand_for_a_turn_in_its_middle(
    home: Path, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B4, S03: a history unloaded before the turn is written while the turn is already waiting."""
    async with asking(home, model, EffectRecord()) as gateway:
        session = (await gateway.say(LONG, channel="page")).session
        with slow_writes(monkeypatch):
            assert gateway.components.presence.unload(session, reason="test")
            turn, [question] = await ask(gateway)
        await until(lambda: gateway.components.runner.histories.stats().size == 1)
        assert gateway.components.presence.unload(session, reason="test")
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        assert (await gateway.answered(turn)).text == "done"
        assert results(gateway) == ["pushed a"]
        check_growth(model)


async def test_a_turn_that_waits_for_an_asking_task_is_unloaded_too(home: Path, model: ScriptedModel) -> None:
    """A6, A8, B4: neither the delegating agent nor the working one holds memory while a person is asked."""
    deeds = EffectRecord()
    options: dict[str, Any] = {"toolsets": {"deeds": deeds.toolset()}, "approvals": "balanced"}
    async with delegating(home, model, "[limits]\nresidents = 1", **options) as gateway:
        given = task("helper", '[tool push {"what": "a"}] [say pushed it]')
        accepted = await gateway.accept(f"{LONG} {given} [say told]", channel="page")
        await until(lambda: gateway.components.engine.stats().asking == 1)
        [question] = await gateway.service.questions.open_for(ANNA)
        assert gateway.components.presence.relieve(1)[0] == 1
        await settled(gateway)
        assert resident_sizes(gateway) == (0, 0)
        assert gateway.components.presence.ledger.totals()["one-shot"].count == 0
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        assert (await gateway.answered(accepted.turn)).text == "told"
        assert model.stats()["reuse"] == 1.0
    assert deeds.done == ["a"]


async def test_the_ledger_shows_the_resident_at_every_step_of_a_running_turn(home: Path, model: ScriptedModel) -> None:
    """L03, L02: seen from the tools that it calls, and by a second conversation that is unloaded for it."""
    sizes: list[int] = []

    @tool(effect="read")
    async def look(ctx: ToolContext, *, time: int) -> str:
        """Reads the ledger."""
        check_books(gateway)
        sizes.append(reported_sizes(gateway)[1])
        return LONG[:10_000]

    extra, toolsets = '[limits]\nresident_bytes = "64 KiB"', {"look": Toolset((look,))}
    async with core(home, extra, model=model, toolsets=toolsets, tools='"look"') as gateway:
        other = await gateway.say("hello", name="other")
        await gateway.say(" ".join(f'[tool look {{"time": {time}}}]' for time in range(8)))
        await settled(gateway)
        check_books(gateway)
        assert [b - a > 9_000 for a, b in itertools.pairwise(sizes)] == [True] * 7
        assert gateway.components.presence.get(other.session) is None, "what runs has grown over the budget"
