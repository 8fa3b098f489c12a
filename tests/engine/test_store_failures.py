"""A store that refuses for a while: waiting callers are informed, nothing is reordered, nothing is lost."""

import itertools
import re
import time
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core
from tests.logs import capture_logs
from tests.store.rows import bulk, new_session, new_turn
from tidegate.error_mapping import BUSY, failure_of
from tidegate.errors import Misconfigured, StoreBusy, StoreDamaged, StoreFailed, StoreFull, TidegateError, TooLarge
from tidegate.store import Db, messages, turns
from tidegate.values import Message, Outcome

pytestmark = pytest.mark.anyio


class FullFor:
    """Refuses every group of writes that contains one of these functions, until there is space."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.full = False

    def __call__(self, point: str, names: tuple[str, ...]) -> None:
        if self.full and point == "before-commit" and self.names & set(names):
            raise StoreFull("There is no room on the disk; make some.")


async def test_if_the_disk_is_full_the_end_of_a_turn_is_reported_at_once_and_stored_before_the_next(
    home: Path, model: ScriptedModel
) -> None:
    """P01, P02, S19: 507 for its caller; when there is space its answer is stored, and the next turn follows it."""
    fault = FullFor("settle")
    async with core(home, model=model, fault=fault) as gateway:
        await gateway.say("warm up")
        fault.full = True
        refused = await gateway.say("[say first]")
        assert refused.error is not None and refused.error.status == 507
        second = await gateway.accept("[say second]")
        fault.full = False
        assert (await gateway.answered(second.turn)).text == "second"
        first = await gateway.service.outcome(refused.turn, ANNA)
        assert (first.state, first.text) == ("answered", "first")
        rows = await gateway.store.read(lambda db: messages.page(db, refused.session, after=2))
        assert [row.turn for row in rows] == [refused.turn] * 2 + [second.turn] * 2


async def test_no_turn_fails_because_its_reads_block_the_log(home: Path, model: ScriptedModel) -> None:
    """L17, S03: long conversations are reloaded beside many writes under the smallest log; every turn is answered."""
    async with core(home, model=model, wal_bytes=64 * 1024, readers=1) as gateway:
        await gateway.store.write(new_session, "s_busy")
        await gateway.store.write(new_turn, "s_busy", "t_busy")
        session = (await gateway.say("hello")).session
        await gateway.store.write(lengthen, session, 4000)
        states: list[str] = []
        async with anyio.create_task_group() as group:
            group.start_soon(write_on, gateway)
            for _ in range(10):
                gateway.components.presence.unload(session, reason="test")
                states.append((await gateway.say("on")).state)
            group.cancel_scope.cancel()
        assert states == ["answered"] * 10
        assert gateway.store.stats().wal_peak < 1024 * 1024


async def test_a_slow_read_is_reported_in_words_for_a_chat_user(home: Path, model: ScriptedModel) -> None:
    """L17, P02: the store's own message is only in the operator's log."""
    with capture_logs() as lines:
        refused = await read_too_long(home, model)
    assert refused.error is not None
    assert (refused.error.code, refused.error.status, refused.error.retry) == ("store_busy", 503, True)
    assert refused.error.message == BUSY
    assert any("limits.snapshot_seconds" in str(line.get("error")) for line in lines)


@pytest.mark.parametrize(
    "error",
    [
        StoreBusy("The store has 4096 writes waiting and takes no more."),
        StoreFailed("The store could not do it (SQLError: no such column)."),
        StoreFull("The disk has no room for the store (FullError: database or disk is full)."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_store_errors_are_reported_without_internal_details(error: StoreFailed) -> None:
    """P02: one sentence that a chat user can act on."""
    told = failure_of(error).message
    assert told.startswith("The gateway") and told.endswith(".")
    assert not re.search(r"store's|Error|limits\.|reads|writes|snapshot|log has", told)


async def test_a_conversation_without_its_prompt_says_how_to_repair_it(home: Path, model: ScriptedModel) -> None:
    """P02, P19: /reload gives it a new one."""
    async with core(home, model=model) as gateway:
        session = (await gateway.say("hello")).session
        gateway.components.presence.unload(session, reason="test")
        gateway.components.runner.prefixes.clear()
        await gateway.store.write(lambda db: db.execute("UPDATE sessions SET prefix = NULL"))
        refused = await gateway.say("on")
        assert refused.error is not None and "/reload" in refused.error.message


async def read_too_long(home: Path, model: ScriptedModel) -> Outcome:
    """A turn whose conversation cannot be read within the lifetime of a snapshot."""
    async with core(home, model=model, snapshot_seconds=0.0) as gateway:
        session = (await gateway.say("hello")).session
        await gateway.store.write(lengthen, session, 4000)
        gateway.components.presence.unload(session, reason="test")
        return await gateway.say("on")


def lengthen(db: Db, session: str, count: int) -> None:
    for number in range(count):
        said = Message(role="user", text=f"line {number}")
        messages.append(db, session=session, turn=None, step=None, message=said, now=1.0)


async def write_on(gateway: Core) -> None:
    for number in itertools.count():
        await gateway.store.write(bulk, "s_busy", "t_busy", number, 40_000)


async def test_a_clock_set_back_does_not_keep_a_turn_from_continuing(home: Path, model: ScriptedModel) -> None:
    """F4: a turn accepted "in the future" is still continued at the start."""
    async with core(home, model=model, drain=None) as gateway:
        accepted = await gateway.accept("[hold gate] [say on]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        await gateway.store.write(lambda db: db.execute("UPDATE turns SET accepted = accepted + 3600"))
    model.release("gate")
    async with core(home, model=model) as gateway:
        assert (await gateway.answered(accepted.turn)).text == "on"


async def test_an_orderly_stop_uses_up_no_resume(home: Path, model: ScriptedModel) -> None:
    """F1, S17: however often the gateway is restarted during a long model call, the turn is resumed."""
    extra = "[limits]\nresumes = 1"
    async with core(home, extra, model=model, drain=0.05) as gateway:
        accepted = await gateway.accept("[hold gate] [say at last]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
    for _ in range(4):
        async with core(home, extra, model=model, drain=0.05) as gateway:
            row = await gateway.store.read(turns.get, accepted.turn)
            assert row is not None and row.state == "running"
    model.release("gate")
    async with core(home, extra, model=model) as gateway:
        assert (await gateway.answered(accepted.turn)).text == "at last"


async def test_a_call_with_too_many_messages_is_refused_with_the_limits_name(home: Path, model: ScriptedModel) -> None:
    """P15, L21: one caller cannot block the writes of all others."""
    many = tuple(Message(role="user", text="x") for _ in range(11))
    async with core(home, "[limits]\ncall_messages = 10", model=model) as gateway:
        with pytest.raises(TooLarge, match=r"limits\.call_messages \(10\)"):
            await gateway.accept("", name=None, messages=many)
        assert (await gateway.say("", name=None, messages=many[:10])).state == "answered"


async def test_waiting_for_an_end_that_cannot_be_stored_does_not_spin(home: Path, model: ScriptedModel) -> None:
    """F1, L20: a stop on a full disk retries now and then, and keeps no core busy meanwhile."""
    fault = FullFor("settle")
    async with core(home, model=model, fault=fault, drain=None) as gateway:
        await gateway.say("warm up")
        fault.full = True
        refused = await gateway.say("[say first]")
        assert refused.error is not None and refused.error.status == 507
        wall, work = time.monotonic(), time.process_time()
        await gateway.service.drain(0.5)
        assert time.process_time() - work < (time.monotonic() - wall) / 2
        fault.full = False


@pytest.mark.parametrize("error", [StoreDamaged("A page of the database is damaged."), Misconfigured("It is wrong.")])
def test_a_failure_that_no_retry_repairs_says_so(error: TidegateError) -> None:
    """H22: clients would otherwise repeat the request."""
    failure = failure_of(error)
    assert (failure.status, failure.final, failure.retry) == (500, True, False)
