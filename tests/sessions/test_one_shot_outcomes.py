"""Outcomes of one-shot calls: kept until somebody has fetched them, unless they were delivered."""

from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, OWNER, WAIT, Core, core
from tidegate.errors import NotFound
from tidegate.security import Principal
from tidegate.store import receipts
from tidegate.values import Acceptance, Outcome

pytestmark = pytest.mark.anyio


async def kept(gateway: Core) -> int:
    count: int = await gateway.store.read(lambda db: db.execute("SELECT count(*) FROM receipts").get)
    return count


async def unattended(gateway: Core, text: str = "[say once]") -> Acceptance:
    """A one-shot call that has ended and that nobody waited for."""
    accepted = await gateway.accept(text, name=None, on_disconnect="continue")
    with anyio.fail_after(WAIT):
        while gateway.service.turn_log(accepted.turn) is not None:
            await anyio.sleep(0.001)
    return accepted


async def fetch(gateway: Core, turn: str, who: Principal) -> Outcome:
    fetched: list[Outcome] = []

    async def deliver(outcome: Outcome) -> None:
        fetched.append(outcome)

    await gateway.service.fetch_outcome(turn, who, deliver)
    return fetched[0]


async def test_an_outcome_that_could_not_be_delivered_is_kept(home: Path, model: ScriptedModel) -> None:
    """B1, V18: the process may die in between."""

    async def break_off(outcome: Outcome) -> None:
        raise ConnectionResetError

    async with core(home, model=model) as gateway:
        accepted = await unattended(gateway)
        with pytest.raises(ConnectionResetError):
            await gateway.service.fetch_outcome(accepted.turn, ANNA, break_off)
        assert (await fetch(gateway, accepted.turn, ANNA)).text == "once"
        assert await kept(gateway) == 0


async def test_the_outcome_of_a_one_shot_call_that_nobody_waited_for_is_fetched_once(
    home: Path, model: ScriptedModel
) -> None:
    """B1, V18: after a restart too, by its own caller; then it is gone."""
    async with core(home, model=model) as gateway:
        accepted = await unattended(gateway)
    async with core(home, model=model) as gateway:
        assert (await gateway.answered(accepted.turn)).text == "once", "a caller who waits for it now"
        with pytest.raises(NotFound):
            await fetch(gateway, accepted.turn, BERT)
        assert (await fetch(gateway, accepted.turn, ANNA)).text == "once"
        with pytest.raises(NotFound):
            await fetch(gateway, accepted.turn, ANNA)
        assert await kept(gateway) == 0


async def test_an_outcome_that_the_owner_has_looked_at_is_kept_for_its_caller(home: Path, model: ScriptedModel) -> None:
    """B1, V18: the owner sees every turn, but has not fetched it."""
    async with core(home, model=model) as gateway:
        accepted = await unattended(gateway)
        for _ in range(2):
            assert (await fetch(gateway, accepted.turn, OWNER)).text == "once"
        assert (await fetch(gateway, accepted.turn, ANNA)).text == "once"
        assert await kept(gateway) == 0


async def test_an_outcome_that_nobody_fetches_expires(home: Path, model: ScriptedModel) -> None:
    """V18, L20: it is removed like an expired receipt, and counts towards limits.receipts."""
    async with core(home, model=model) as gateway:
        accepted = await unattended(gateway)
        now = gateway.components.clock()
        assert await gateway.store.write(receipts.prune, now + receipts.UNFETCHED_SECONDS - 60, 10) == 0
        assert await gateway.store.write(receipts.prune, now + receipts.UNFETCHED_SECONDS + 60, 10) == 1
        with pytest.raises(NotFound):
            await fetch(gateway, accepted.turn, ANNA)
        await unattended(gateway)
        assert await gateway.store.write(receipts.prune, now, 0) == 1


async def test_a_one_shot_call_whose_caller_waits_makes_two_writes_and_leaves_no_outcome(
    home: Path, model: ScriptedModel
) -> None:
    """V18: like any plain turn."""
    async with core(home, model=model) as gateway:
        await gateway.say("warm up", name=None)
        before = gateway.store.stats().writes
        assert (await gateway.say("[say here]", name=None)).text == "here"
        assert gateway.store.stats().writes - before == 2
        assert await kept(gateway) == 0


async def test_a_one_shot_call_whose_caller_left_leaves_no_outcome(home: Path, model: ScriptedModel) -> None:
    """H16, V18: it is stopped, and nobody will ask for it."""
    async with core(home, model=model) as gateway:
        accepted = await gateway.accept("[hold gate]", name=None)
        with anyio.fail_after(WAIT):
            await model.held("gate")
            await gateway.service.abandon(accepted.turn)
            while gateway.service.turn_log(accepted.turn) is not None:
                await anyio.sleep(0.001)
        assert await kept(gateway) == 0
