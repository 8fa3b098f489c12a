"""Outcomes of one-shot calls: whoever may ask for one can ask again, until it expires."""

from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, OWNER, WAIT, Core, core
from tidegate.errors import NotFound
from tidegate.store import receipts
from tidegate.values import Acceptance, Receipt

pytestmark = pytest.mark.anyio


async def kept(gateway: Core) -> int:
    count: int = await gateway.store.read(lambda db: db.execute("SELECT count(*) FROM receipts").get)
    return count


async def unattended(gateway: Core, text: str = "[say once]", *given: Receipt) -> Acceptance:
    """A one-shot call that has ended and that nobody waited for."""
    accepted = await gateway.accept(text, name=None, on_disconnect="continue", receipts=given)
    with anyio.fail_after(WAIT):
        while gateway.service.turn_log(accepted.turn) is not None:
            await anyio.sleep(0.001)
    return accepted


async def prune(gateway: Core, after: float) -> int:
    """What maintenance removes so many seconds from now."""
    removed: int = await gateway.store.write(receipts.prune, gateway.components.clock() + after, 100)
    return removed


async def test_an_outcome_can_be_fetched_again_and_only_by_its_caller_and_the_owner(
    home: Path, model: ScriptedModel
) -> None:
    """B1, V18: after a restart too, whether somebody waited for it or not; it may have been lost on its way."""
    async with core(home, model=model) as gateway:
        turns = [(await gateway.say("[say once]", name=None)).turn, (await unattended(gateway)).turn]
    async with core(home, model=model) as gateway:
        for turn in turns:
            assert (await gateway.answered(turn)).text == "once", "a caller who waits for it now"
            for who in (ANNA, ANNA, OWNER):
                assert (await gateway.service.outcome(turn, who)).text == "once"
            with pytest.raises(NotFound):
                await gateway.service.outcome(turn, BERT)


async def test_an_outcome_expires(home: Path, model: ScriptedModel) -> None:
    """V18, L20: soon if somebody waited for it, else after a day; it counts towards limits.receipts."""
    async with core(home, model=model) as gateway:
        followed, unfollowed = (await gateway.say("hello", name=None)).turn, (await unattended(gateway)).turn
        assert await prune(gateway, receipts.FOLLOWED_SECONDS - 60) == 0
        assert await prune(gateway, receipts.FOLLOWED_SECONDS + 60) == 1
        with pytest.raises(NotFound):
            await gateway.service.outcome(followed, ANNA)
        assert (await gateway.service.outcome(unfollowed, ANNA)).text == "once"
        assert await prune(gateway, receipts.UNFOLLOWED_SECONDS - 60) == 0
        assert await prune(gateway, receipts.UNFOLLOWED_SECONDS + 60) == 1
        with pytest.raises(NotFound):
            await gateway.service.outcome(unfollowed, ANNA)
        await unattended(gateway)
        assert await gateway.store.write(receipts.prune, gateway.components.clock(), 0) == 1


@pytest.mark.parametrize(("keep", "rows"), [(600.0, 2), (receipts.UNFOLLOWED_SECONDS, 1)])
async def test_a_receipt_keeps_the_outcome_if_it_is_valid_long_enough(
    home: Path, model: ScriptedModel, keep: float, rows: int
) -> None:
    """V18, H17: otherwise the outcome outlives it."""
    async with core(home, model=model) as gateway:
        given = Receipt(source="idempotency", key="k", digest=b"d", keep=keep)
        turn = (await unattended(gateway, "[say once]", given)).turn
        assert await kept(gateway) == rows
        await prune(gateway, keep - 60)
        await prune(gateway, receipts.UNFOLLOWED_SECONDS - 60)
        assert (await gateway.service.outcome(turn, ANNA)).text == "once"
        await prune(gateway, receipts.UNFOLLOWED_SECONDS + 60)
        assert await kept(gateway) == 0


async def test_one_shot_calls_leave_nothing_but_their_usage(home: Path, model: ScriptedModel) -> None:
    """V18, L04, L20: at most limits.receipts outcomes are kept, and the space of expired ones is used again."""
    async with core(home, "[limits]\nreceipts = 50", model=model) as gateway:
        tidy = next(task for task in gateway.service.maintenance_tasks() if task.name == "tidy")
        for _ in range(120):
            await gateway.say("hello", name=None)
        assert await kept(gateway) == 120
        await tidy.run()
        assert await kept(gateway) == 50
        await gateway.store.write(lambda db: db.execute("UPDATE receipts SET expires = 0") and None)
        await tidy.run()
        tables = await gateway.store.read(
            lambda db: [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        )
        private = {"receipts", "messages", "turns", "sessions", "approvals", "intents", "spooled", "workspaces"}
        assert private <= set(tables)
        for table in private:
            count = f"SELECT count(*) FROM {table}"
            assert await gateway.store.read(lambda db, count=count: db.execute(count).get) == 0, table


async def test_a_one_shot_call_makes_two_writes(home: Path, model: ScriptedModel) -> None:
    """V18: like any plain turn."""
    async with core(home, model=model) as gateway:
        await gateway.say("warm up", name=None)
        before = gateway.store.stats().writes
        turn = (await gateway.say("[say here]", name=None)).turn
        assert (await gateway.service.outcome(turn, ANNA)).text == "here"
        assert gateway.store.stats().writes - before == 2


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
