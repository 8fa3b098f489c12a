"""Races: a decision about a session is made in the write that applies it, not in a read before it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core
from tidegate.errors import Busy, Conflict, Stopping
from tidegate.sessions.operations import Operations
from tidegate.store import Db, Store, open_turns

pytestmark = pytest.mark.anyio

CHANGES: dict[str, Callable[..., Awaitable[Any]]] = {
    "undo": Operations.undo,
    "retry": Operations.retry,
    "reload": Operations.reload,
}


@asynccontextmanager
async def held_up(store: Store) -> AsyncIterator[None]:
    """Inside, nothing is written: writes wait in order until the end of the block."""
    entered, release = threading.Event(), threading.Event()

    def hold(db: Db) -> None:
        entered.set()
        assert release.wait(WAIT)

    holding = asyncio.ensure_future(store.write(hold))
    try:
        with anyio.fail_after(WAIT):
            while not entered.is_set():
                await anyio.lowlevel.checkpoint()
        yield
    finally:
        release.set()
        await holding


async def queued(store: Store, number: int) -> None:
    """Wait until this many writes are queued, including the one that blocks them."""
    with anyio.fail_after(WAIT):
        while store.stats().writes_waiting < number:
            await anyio.lowlevel.checkpoint()


async def make_idle(gateway: Core) -> None:
    await gateway.store.write(lambda db: db.execute("UPDATE sessions SET active = 1"))


async def test_expiry_spares_a_session_that_is_spoken_to_while_it_looks(home: Path, model: ScriptedModel) -> None:
    """V05, V17: the message came before the end, so there is no end."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        await make_idle(gateway)
        async with held_up(gateway.store):
            accepting = asyncio.ensure_future(gateway.accept("[hold gate] two"))
            await queued(gateway.store, 2)
            expiring = asyncio.ensure_future(gateway.components.endings.expire("named", 3600.0))
            await queued(gateway.store, 3)
        with anyio.fail_after(WAIT):
            accepted, ended = await accepting, await expiring
            await model.held("gate")
        model.release("gate")
        assert ended == 0
        assert (await gateway.answered(accepted.turn)).state == "answered"
        assert accepted.session == first.session
        assert (await gateway.service.session(first.session, ANNA)).ended is None


@pytest.mark.parametrize("way", list(CHANGES))
async def test_a_change_that_a_message_overtakes_is_refused(home: Path, model: ScriptedModel, way: str) -> None:
    """S19, L23: the message's turn sees the conversation that it was sent to."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        async with held_up(gateway.store):
            accepting = asyncio.ensure_future(gateway.accept("[hold gate] two"))
            await queued(gateway.store, 2)
            changing = asyncio.ensure_future(CHANGES[way](gateway.service.operations, first.session, ANNA))
            await queued(gateway.store, 3)
        with anyio.fail_after(WAIT):
            accepted = await accepting
            with pytest.raises(Conflict, match="A turn is running") as refused:
                await changing
            await model.held("gate")
        assert refused.value.code == "mid_turn"
        model.release("gate")
        assert (await gateway.answered(accepted.turn)).state == "answered"
        rows = (await gateway.service.transcript(first.session, ANNA)).rows
        assert [row.message.role for row in rows] == ["user", "assistant"] * 2
        assert gateway.components.presence.stats().unloads == {}


async def test_a_retry_runs_even_if_its_caller_has_left(home: Path, model: ScriptedModel) -> None:
    """F4, L23: once it is committed, the engine has it, and no timer has to find it."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        async with held_up(gateway.store):
            retrying = asyncio.ensure_future(gateway.service.operations.retry(first.session, ANNA))
            await queued(gateway.store, 2)
            retrying.cancel()
            await asyncio.wait([retrying])
        with anyio.fail_after(WAIT):
            while len(gateway.requests()) < 2 or not await gateway.store.read(open_turns.is_idle, first.session):
                await anyio.lowlevel.checkpoint()
        rows = (await gateway.service.transcript(first.session, ANNA)).rows
        assert [row.message.role for row in rows] == ["user", "assistant"]


async def test_a_retry_is_worked_in_the_order_in_which_it_was_committed(home: Path, model: ScriptedModel) -> None:
    """S19, V05: before a message that was accepted after it."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        async with held_up(gateway.store):
            retrying = asyncio.ensure_future(gateway.service.operations.retry(first.session, ANNA))
            await queued(gateway.store, 2)
            accepting = asyncio.ensure_future(gateway.accept("two"))
            await queued(gateway.store, 3)
        with anyio.fail_after(WAIT):
            again, later = await retrying, await accepting
        assert later.ahead == 1
        assert (await gateway.answered(again.turn)).state == "answered"
        assert (await gateway.answered(later.turn)).state == "answered"
        said = [message["content"] for message in gateway.requests()[-1]["messages"] if message["role"] == "user"]
        assert said == ["one", "two"]


async def test_a_retry_is_refused_while_nothing_is_taken_in(home: Path, model: ScriptedModel) -> None:
    """F1, L21: by a stop or by limits.waiting_total, as a message is; the conversation stays as it was."""
    async with core(home, "[limits]\nwaiting_total = 1\nturns = 1", model=model) as gateway:
        first = await gateway.say("one")
        running = await gateway.accept("[hold gate]", name="other")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        waiting = await gateway.accept("hello", name="third")
        with pytest.raises(Busy, match=r"limits\.waiting_total"):
            await gateway.service.operations.retry(first.session, ANNA)
        model.release("gate")
        for accepted in (running, waiting):
            await gateway.answered(accepted.turn)
        await gateway.service.drain(1)
        with pytest.raises(Stopping):
            await gateway.service.operations.retry(first.session, ANNA)
        rows = (await gateway.service.transcript(first.session, ANNA)).rows
        assert [row.message.role for row in rows] == ["user", "assistant"]
