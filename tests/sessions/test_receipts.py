"""Receipts: a second delivery finds the first; nothing runs twice, and nothing is lost by retrying."""

from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import BERT, WAIT, core
from tidegate.errors import IdempotencyMismatch
from tidegate.store import receipts
from tidegate.values import Receipt

pytestmark = pytest.mark.anyio


def key(name: str = "k1", body: bytes = b"body", source: str = "idempotency") -> dict[str, tuple[Receipt, ...]]:
    return {"receipts": (Receipt(source=source, key=name, digest=body),)}


async def test_the_same_key_joins_the_running_turn(home: Path, model: ScriptedModel) -> None:
    """H18, P01: one turn, however often it is sent."""
    async with core(home, model=model) as gateway:
        first = await gateway.accept("[hold gate] hello", **key())
        with anyio.fail_after(WAIT):
            await model.held("gate")
        again = await gateway.accept("[hold gate] hello", **key())
        assert (again.how, again.turn, again.session) == ("attached", first.turn, first.session)
        model.release("gate")
        assert await gateway.answered(first.turn) == await gateway.answered(again.turn)
        assert model.counts["requests"] == 1


@pytest.mark.parametrize("name", ["talk", None])
async def test_the_same_key_replays_a_finished_turn(home: Path, model: ScriptedModel, name: str | None) -> None:
    """H18, V18: named or one-shot, also after a restart, the very same outcome."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("[say once]", name=name, **key())
    async with core(home, model=model) as gateway:
        again = await gateway.accept("[say once]", name=name, **key())
        assert again.how == "replayed"
        replayed = await gateway.answered(again.turn)
        assert (replayed.turn, replayed.text, replayed.usage) == (first.turn, "once", first.usage)
        assert model.counts["requests"] == 1


async def test_the_same_key_with_another_body_is_refused(home: Path, model: ScriptedModel) -> None:
    """H17: nothing is accepted."""
    async with core(home, model=model) as gateway:
        await gateway.say("hello", **key())
        with pytest.raises(IdempotencyMismatch):
            await gateway.accept("something else", **key(body=b"other"))
        assert model.counts["requests"] == 1


async def test_keys_belong_to_their_principal(home: Path, model: ScriptedModel) -> None:
    """H17, X06: another principal's equal key is another key."""
    async with core(home, model=model) as gateway:
        mine = await gateway.say("hello", **key())
        theirs = await gateway.say("hello", principal=BERT.id, **key())
        assert theirs.turn != mine.turn and theirs.session != mine.session


async def test_a_failure_that_says_try_again_is_tried_again(home: Path, model: ScriptedModel) -> None:
    """H18: any other failure is replayed."""
    async with core(home, model=model) as gateway:
        overloaded = await gateway.say("[status 503 times=1] [say at last]", **key())
        assert overloaded.error is not None and overloaded.error.retry
        again = await gateway.say("[status 503 times=1] [say at last]", **key())
        assert again.text == "at last"
        refused = await gateway.say("[status 400]", **key("k2"))
        replayed = await gateway.accept("[status 400]", **key("k2"))
        assert replayed.how == "replayed" and replayed.turn == refused.turn


async def test_an_official_clients_own_retry_joins_its_first_attempt(home: Path, model: ScriptedModel) -> None:
    """H19: each first attempt leaves a mark; only a request that says it is a retry is matched."""
    async with core(home, model=model) as gateway:
        first = await gateway.accept("[hold gate]", **key(source="retry-mark"))
        with anyio.fail_after(WAIT):
            await model.held("gate")
        other = await gateway.accept("[hold gate]", **key(source="retry-mark"))
        assert other.turn != first.turn
        retry = await gateway.accept("[hold gate]", **key(source="retry"))
        assert (retry.how, retry.turn) == ("attached", other.turn)
        model.release("gate")
        for accepted in (first, other, retry):
            await gateway.answered(accepted.turn)
        unknown = await gateway.accept("[say new]", **key("never seen", source="retry"))
        assert unknown.how == "started"
        await gateway.answered(unknown.turn)


async def test_receipts_are_bounded_in_number_and_time(home: Path, model: ScriptedModel) -> None:
    """H17, L04: the oldest go first."""
    async with core(home, model=model) as gateway:
        for number in range(10):
            await gateway.say("hello", **key(f"k{number}"))
        while await gateway.store.write(receipts.prune, gateway.components.clock(), 4):
            pass
        left = await gateway.store.read(
            lambda db: [row[0] for row in db.execute("SELECT key FROM receipts ORDER BY key")]
        )
        assert left == ["k6", "k7", "k8", "k9"]
        while await gateway.store.write(receipts.prune, gateway.components.clock() + 90_000, 4):
            pass
        assert await gateway.store.read(lambda db: db.execute("SELECT count(*) FROM receipts").get) == 0
