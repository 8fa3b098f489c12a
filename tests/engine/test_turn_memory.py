"""The memory of turns is counted for their sessions."""

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import WAIT, core
from tidegate.engine.turn_log import TurnLog
from tidegate.lifetimes import Holding
from tidegate.values import Message, MessageAdded, TextDelta, TurnStarted

pytestmark = pytest.mark.anyio

LONG = "x" * 100_000


async def until(true: Callable[[], bool]) -> None:
    """The writer's thread releases a turn a moment after its end was published."""
    with anyio.fail_after(WAIT):
        while not true():
            await anyio.sleep(0.001)


async def test_the_memory_of_a_running_turn_is_counted_for_its_session(home: Path, model: ScriptedModel) -> None:
    """L99: with its log, its request and, in a one-shot call, its conversation; nothing is left afterwards."""
    async with core(home, model=model) as c:
        ledger = c.service.ledger
        named = await c.accept(f"[hold a] {LONG}", "talk")
        once = await c.accept(f"[hold b] {LONG}", None)
        queued = await c.accept("next", "talk")
        with anyio.fail_after(WAIT):
            await model.held("a")
            await model.held("b")
        books = ledger.read()
        for accepted, kept in ((named, "resident"), (once, "one-shot")):
            own = books.owners[f"session {accepted.session}"]
            assert own.keys() == {kept, "turn", "turn log", "model request"}
            assert all(own[kind].bytes > len(LONG) for kind in (kept, "turn log"))
            assert own["model request"].bytes < len(LONG), "it is made of what the conversation holds"
        assert books.owners[f"session {named.session}"]["turn"].count == 2
        assert books.kinds["one-shot"].count == 1
        assert books.kinds["prefix"] == Holding(), "sessions that begin together share what they begin with"
        async with anyio.create_task_group() as group:
            for accepted in (named, once, queued):
                group.start_soon(c.answered, accepted.turn)
            await anyio.wait_all_tasks_blocked()
            model.release("a")
            model.release("b")
        left = {f"session {named.session}": ["resident"]}
        await until(lambda: {owner: list(kinds) for owner, kinds in ledger.read().owners.items()} == left)


async def test_the_memory_of_a_log_is_counted_while_a_slow_reader_follows_it(home: Path, model: ScriptedModel) -> None:
    """L99, L21: the turn has ended; events that its reader has not read yet are still in memory, and are reported."""
    async with core(home, model=model) as c:
        accepted = await c.accept(f"[hold a] {LONG}")
        log = c.service.turn_log(accepted.turn)
        assert log is not None
        async with aclosing(log.read()) as batches:
            with anyio.fail_after(WAIT):
                await anext(batches)
            del log
            model.release("a")
            await c.answered(accepted.turn)
            held = c.service.ledger.read().owners[f"session {accepted.session}"]
            assert held["turn log"].bytes > len(LONG)
            assert "turn" not in held
        del batches
        await until(lambda: c.service.ledger.totals()["turn log"] == Holding())


def test_the_weight_of_a_log_is_that_of_its_events() -> None:
    """L99: text in any script, messages and their calls' arguments; folding makes it lighter."""
    log = TurnLog("t_1", "s_1")
    log.append(TurnStarted(turn="t_1"))
    empty = log.weight
    log.append(TextDelta(text="a" * 1000))
    latin = log.weight - empty
    log.append(TextDelta(text="\u65e5" * 1000))
    assert 1000 < latin < 1300 < 2000 < log.weight - empty - latin < 2300
    log.append(MessageAdded(seq=1, message=Message(role="user", text=LONG)))
    assert log.weight > len(LONG)
    for _ in range(400):
        log.append(TextDelta(text="piece"))
    small = log.weight
    for _ in range(200):
        log.append(TextDelta(text="piece"))
    assert log.weight < small
