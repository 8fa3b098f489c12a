"""The contract of `Engine` and `Turn`, for every engine: hints may be repeated or lost, and the store decides.

A second engine is added to `ENGINES`.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from tests.core import WAIT
from tests.engine.lab import Permits, WithoutWakes, Worker, begin_sessions, steer, worker
from tests.store.rows import new_session, new_turn
from tidegate import engine as engine_package
from tidegate.engine import Engine
from tidegate.errors import NotFound, Stopping
from tidegate.store import StopRequest, Store, messages, open_turns, receipts, sessions, turns
from tidegate.values import Event, Message, Notice, TurnEnded

pytestmark = pytest.mark.anyio

ENGINES: dict[str, Callable[[Engine], Engine]] = {
    "embedded": lambda engine: engine,
    "embedded, wakes lost": lambda engine: cast(Engine, WithoutWakes(engine)),
}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store.open(tmp_path / "tidegate.db") as opened:
        await begin_sessions(opened, "s_1", "s_2")
        yield opened


@pytest.fixture
def permits() -> Permits:
    return Permits()


@pytest.fixture(params=ENGINES)
async def one(store: Store, permits: Permits, request: pytest.FixtureRequest) -> AsyncIterator[Worker]:
    async with worker(store, permits, ENGINES[request.param]) as opened:
        yield opened


@pytest.fixture
async def two(store: Store, permits: Permits) -> AsyncIterator[tuple[Worker, Worker]]:
    """Two engines on one store, which do not wake each other."""
    async with worker(store, permits) as first, worker(store, permits) as second:
        yield first, second


async def begin_one_shot(store: Store, session: str) -> None:
    await store.write(new_session, session, kind="ephemeral")


async def events(one: Worker, turn: str) -> list[Event]:
    """All events of the turn until its log is closed."""
    log = one.engine.follow(turn)
    assert log is not None
    with anyio.fail_after(WAIT):
        async with aclosing(log.read()) as batches:
            return [event async for batch in batches for event in batch]


def test_packages_above_see_the_protocols_their_values_and_one_factory() -> None:
    """Engines can be exchanged: nothing of the embedded engine is exported."""
    exported = ["PARENT_ENDED", "Engine", "Handler", "NewTurn", "StartedTurn", "TakenTurn", "TurnLog", "build_engine"]
    assert engine_package.__all__ == exported


async def test_a_session_runs_one_turn_at_a_time_in_the_order_of_acceptance(one: Worker, permits: Permits) -> None:
    """B7, S13: whatever order the hints have in other sessions."""
    names = [f"t_{number}" for number in range(5)]
    for name in names:
        await one.accept(name)
        permits.give(name)
    await one.accept("t_other", session="s_2")
    permits.give("t_other")
    for name in (*reversed(names), "t_other"):
        assert (await one.result(name)).state == "answered"
    assert [turn for turn, _ in permits.made if turn != "t_other"] == names
    assert permits.most == 1


async def test_the_order_of_a_session_holds_whichever_engine_has_its_turns(
    store: Store, permits: Permits, two: tuple[Worker, Worker]
) -> None:
    """B7, S13: a turn waits for the earlier ones that wait or run elsewhere, and takes no slot meanwhile."""
    first, second = two
    await first.accept("t_1")
    await permits.steps("t_1", 1)
    await second.accept("t_2")
    await first.accept("t_3")
    await second.accept("t_4")
    await second.accept("t_5")
    await second.accept("t_other", session="s_2")
    permits.give("t_other")
    assert (await second.result("t_other")).state == "answered"
    with anyio.fail_after(WAIT):
        while second.engine.stats().running:
            await anyio.sleep(0.001)
    assert await second.engine.stop("t_4", "by its user")
    names = ["t_1", "t_2", "t_3", "t_5"]
    for name in names:
        permits.give(name)
    assert [(await first.result(name)).state for name in (*names, "t_4")] == ["answered"] * 4 + ["stopped"]
    assert [turn for turn, _ in permits.made if turn != "t_other"] == names
    assert permits.most == 1
    assert [row.fence for name in names if (row := await store.read(turns.get, name))] == [1] * 4


async def test_a_turn_whose_hint_was_late_still_precedes_later_ones(
    one: Worker, permits: Permits, store: Store
) -> None:
    """S13: the order is that of acceptance, not that of the hints."""
    await store.write(new_turn, "s_1", "t_1", "1 step")
    for name in ("t_2", "t_3"):
        await one.accept(name)
    one.engine.submit("s_1", "t_1")
    names = ["t_1", "t_2", "t_3"]
    for name in names:
        permits.give(name)
    assert [(await one.result(name)).state for name in names] == ["answered"] * 3
    assert [turn for turn, _ in permits.made] == names


async def test_a_turn_submitted_again_runs_once(one: Worker, permits: Permits) -> None:
    """P05, S22: while it waits, while it runs, and after its end."""
    await one.accept("t_1", "2 steps")
    await one.accept("t_2")
    log = one.engine.follow("t_1")
    for turn in ("t_1", "t_2", "t_1"):
        one.engine.submit("s_1", turn)
    await permits.steps("t_1", 1)
    one.engine.submit("s_1", "t_1")
    assert one.engine.follow("t_1") is log
    permits.give("t_1")
    permits.give("t_2")
    before = [await one.result("t_1"), await one.result("t_2")]
    for turn in ("t_1", "t_2"):
        one.engine.submit("s_1", turn)
        with anyio.fail_after(WAIT):
            while one.engine.follow(turn) is not None:
                await anyio.sleep(0.001)
    assert [await one.result("t_1"), await one.result("t_2")] == before
    assert permits.made == [("t_1", "model-0"), ("t_1", "model-1"), ("t_2", "model-0")]
    assert one.engine.stats().answered == 2


async def test_a_steered_message_is_read_after_the_next_commit_although_nobody_woke_the_turn(
    one: Worker, permits: Permits, store: Store
) -> None:
    """S14: a wake is a hint; the fence check of the commit reads the news."""
    await one.accept("t_1", "3 steps")
    await permits.steps("t_1", 1)
    await store.write(steer, "t_1", "and this")
    permits.give("t_1")
    assert (await one.result("t_1")).notices == ()
    assert permits.read["t_1"] == ["and this"]
    rows = await store.read(messages.journal, "t_1")
    assert [row.message.text for row in rows] == ["3 steps", "step 0", "and this", "step 1", "step 2"]


async def test_a_request_to_stop_is_found_by_the_next_commit_although_nobody_woke_the_turn(
    one: Worker, permits: Permits, store: Store
) -> None:
    """L21: the step that was being committed is kept, and no further one is begun."""
    await one.accept("t_1", "3 steps")
    await permits.steps("t_1", 1)
    await store.write(turns.request_stop, "t_1", StopRequest("by another process"))
    permits.give("t_1")
    outcome = await one.result("t_1")
    assert outcome.state == "stopped" and outcome.error is not None
    assert outcome.error.message == "The turn was stopped by another process."
    assert permits.made == [("t_1", "model-0")]
    assert [row.step for row in await store.read(messages.journal, "t_1")] == ["in-0", "model-0"]


async def test_a_wake_delivers_a_request_to_stop_at_once(store: Store, permits: Permits) -> None:
    """L21: a model call in progress is cut off, and a queued turn leaves its queue."""
    async with worker(store, permits) as one:
        await one.accept("t_1")
        await permits.steps("t_1", 1)
        await store.write(turns.request_stop, "t_1", StopRequest("by another process", abandoned=True))
        one.engine.wake("t_1")
        outcome = await one.result("t_1")
        assert outcome.state == "stopped" and outcome.text == "0"
        assert outcome.error is not None and outcome.error.retry


async def test_a_queued_turn_that_is_stopped_has_ended_when_stop_returns(
    one: Worker, permits: Permits, store: Store
) -> None:
    """L21, S13: it never runs, its message stays out of the transcript, and the others keep their order."""
    for turn in ("t_1", "t_2", "t_3"):
        await one.accept(turn)
    await permits.steps("t_1", 1)
    assert await one.engine.stop("t_2", "by its user")
    row = await store.read(turns.get, "t_2")
    assert row is not None and row.state == "stopped"
    assert one.engine.follow("t_2") is None
    for turn in ("t_1", "t_2", "t_3"):
        permits.give(turn)
    assert [(await one.result(turn)).state for turn in ("t_1", "t_2", "t_3")] == ["answered", "stopped", "answered"]
    assert [turn for turn, _ in permits.made] == ["t_1", "t_3"]
    assert (
        await store.read(messages.history, "s_1")
        == [
            Message(role="user", text="1 step"),
            Message(role="assistant", text="step 0", finish="stop"),
        ]
        * 2
    )


async def test_a_running_turn_that_is_stopped_is_cancelled_and_keeps_what_it_has_shown(
    one: Worker, permits: Permits
) -> None:
    """B7, L21: also if the wake is lost, since the engine that is asked runs the turn."""
    await one.accept("t_1", "2 steps")
    permits.give("t_1", 1)
    await permits.steps("t_1", 2)
    assert await one.engine.stop("t_1", "by its user")
    outcome = await one.result("t_1")
    assert (outcome.state, outcome.text, outcome.steps) == ("stopped", "1", 1)
    assert outcome.error is not None and "by its user" in outcome.error.message


async def test_a_turn_that_has_ended_is_not_stopped(one: Worker, permits: Permits) -> None:
    """B7: and nothing changes; nor does a turn that does not exist."""
    await one.accept("t_1")
    permits.give("t_1")
    outcome = await one.result("t_1")
    assert not await one.engine.stop("t_1", "by its user")
    assert not await one.engine.stop("t_none", "by its user")
    assert await one.result("t_1") == outcome


async def test_all_turns_of_a_session_end_and_those_of_another_go_on(
    one: Worker, permits: Permits, store: Store
) -> None:
    """B3, L21: the running one and the waiting ones, each with the reason."""
    for turn in ("t_1", "t_2", "t_3"):
        await one.accept(turn)
    await one.accept("t_other", session="s_2")
    await permits.steps("t_1", 1)
    assert await one.engine.stop_session("s_1", "because its session ended (new)", WAIT)
    assert await store.read(open_turns.is_idle, "s_1") and not await store.read(open_turns.is_idle, "s_2")
    for turn in ("t_1", "t_2", "t_3"):
        outcome = await one.result(turn)
        assert outcome.state == "stopped" and outcome.error is not None
        assert "its session ended (new)" in outcome.error.message
    permits.give("t_other")
    assert (await one.result("t_other")).state == "answered"
    assert await one.engine.stop_session("s_1", "again", WAIT)


async def test_the_stop_of_a_session_does_not_wait_longer_than_it_was_told(
    store: Store, permits: Permits, two: tuple[Worker, Worker]
) -> None:
    """B3: another process runs the turn and is in the middle of a step."""
    first, second = two
    await first.accept("t_1", "2 steps")
    await permits.steps("t_1", 1)
    assert not await second.engine.stop_session("s_1", "by its user", 0.01)
    permits.give("t_1")
    assert (await second.result("t_1")).state == "stopped"


async def test_news_of_a_waiting_step_are_read_although_nobody_woke_the_turn(store: Store, permits: Permits) -> None:
    """S29: an answer in the store is found, and so is a request to stop."""
    found: list[str] = []

    async def answered() -> str | None:
        row = await store.read(turns.get, "t_2")
        return row.state if row is not None else None

    class Waiting(Worker):
        async def __call__(self, turn: Any, taken: Any) -> None:
            found.append(await turn.wait(answered))
            await super().__call__(turn, taken)

    async with worker(store, permits) as plain:
        one = Waiting(plain.scope, store, permits, ENGINES["embedded, wakes lost"])
        await one.accept("t_1")
        permits.give("t_1")
        with anyio.fail_after(WAIT):
            while not one.engine.stats().asking:
                await anyio.sleep(0.001)
        await store.write(new_turn, "s_2", "t_2", "1 step")
        assert (await one.result("t_1")).state == "answered" and found == ["queued"]

        async def never() -> None:
            return None

        answered = never  # type: ignore[assignment]
        await one.accept("t_3")
        with anyio.fail_after(WAIT):
            while not one.engine.stats().asking:
                await anyio.sleep(0.001)
        await store.write(turns.request_stop, "t_3", StopRequest("by another process"))
        assert (await one.result("t_3")).state == "stopped"


async def test_a_follower_gets_every_event_and_what_others_tell(one: Worker, permits: Permits) -> None:
    """B1: in order, from the start, up to the outcome, which is also the turn's result."""
    await one.accept("t_1", "2 steps")
    await permits.steps("t_1", 1)
    one.engine.tell("t_1", Notice(text="told"))
    one.engine.tell("t_none", Notice(text="lost"))
    log = one.engine.follow_session("s_1")
    assert log is one.engine.follow("t_1")
    permits.give("t_1")
    seen = await events(one, "t_1")
    assert [type(event).__name__ for event in seen] == [
        "TurnStarted",
        "MessageAdded",
        "TextDelta",
        "Notice",
        "MessageAdded",
        "TextDelta",
        "MessageAdded",
        "TurnEnded",
    ]
    last = seen[-1]
    assert isinstance(last, TurnEnded) and last.outcome == await one.result("t_1")
    assert one.engine.follow("t_1") is None and one.engine.follow_session("s_1") is None


async def test_a_log_that_closed_without_an_end_is_followed_again(
    store: Store, permits: Permits, two: tuple[Worker, Worker]
) -> None:
    """F1, V01: the first engine stops in the middle of the turn, and the second one goes on with it."""
    first, second = two
    await first.accept("t_1", "2 steps")
    await permits.steps("t_1", 1)
    async with anyio.create_task_group() as group:
        group.start_soon(first.engine.drain, 0.01)
        seen = await events(first, "t_1")
        assert not any(isinstance(event, TurnEnded) for event in seen)
        assert not first.engine.can_start()
        with pytest.raises(Stopping):
            await first.result("t_1")
        permits.give("t_1")
    second.engine.submit("s_1", "t_1")
    again = await events(second, "t_1")
    assert isinstance(again[-1], TurnEnded) and again[-1].outcome.state == "answered"
    assert permits.resumed == ["t_1"]


async def test_a_result_is_awaited_wherever_the_turn_runs(
    store: Store, permits: Permits, two: tuple[Worker, Worker]
) -> None:
    """B1: by an engine that never heard of the turn."""
    first, second = two
    await first.accept("t_1")
    await permits.steps("t_1", 1)
    outcomes: list[Any] = []

    async def wait() -> None:
        outcomes.append(await second.result("t_1"))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.lowlevel.checkpoint()
        assert not outcomes
        permits.give("t_1")
    assert outcomes == [await first.result("t_1")] and outcomes[0].state == "answered"
    with pytest.raises(NotFound):
        await second.result("t_none")


async def test_who_waits_for_a_turn_elsewhere_is_told_when_its_session_is_deleted(
    store: Store, permits: Permits, two: tuple[Worker, Worker]
) -> None:
    """B1, B3: and when the process stops, that the turn continues."""
    first, second = two
    told: list[str] = []

    async def wait(turn: str) -> None:
        try:
            told.append((await second.result(turn)).state)
        except (NotFound, Stopping) as error:
            told.append(type(error).__name__)

    for turn, session in (("t_1", "s_1"), ("t_2", "s_2")):
        await first.accept(turn, session=session)
        await permits.steps(turn, 1)
    async with anyio.create_task_group() as group:
        group.start_soon(wait, "t_1")
        await anyio.lowlevel.checkpoint()
        assert await first.engine.stop_session("s_1", "because its session ended", WAIT)
        await store.write(lambda db: sessions.end(db, "s_1", reason="delete", hooks=(), now=3.0))
        assert await store.write(sessions.delete, "s_1")
    assert told in (["NotFound"], ["stopped"]), "it may still have read the outcome"
    async with anyio.create_task_group() as group:
        group.start_soon(wait, "t_2")
        await anyio.lowlevel.checkpoint()
        await second.engine.drain(0.01)
    assert told[1:] == ["Stopping"]


async def test_another_engine_stops_a_turn_at_its_next_commit(
    store: Store, permits: Permits, two: tuple[Worker, Worker]
) -> None:
    """L21: a queued turn at once, whoever has it in its queue."""
    first, second = two
    await first.accept("t_1", "3 steps")
    await first.accept("t_2")
    await permits.steps("t_1", 1)
    assert await second.engine.stop("t_1", "by its user") and await second.engine.stop("t_2", "by its user")
    assert (await second.result("t_2")).state == "stopped"
    permits.give("t_1")
    permits.give("t_2")
    assert [(await first.result(turn)).state for turn in ("t_1", "t_2")] == ["stopped", "stopped"]
    assert permits.made == [("t_1", "model-0")]


async def test_another_engine_goes_on_with_the_turn_of_one_that_died(store: Store, permits: Permits) -> None:
    """F4, S17: from its last row; a request to stop that was stored before is not lost either."""
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(worker(store, permits))
        async with worker(store, permits) as first:
            await first.accept("t_1", "3 steps")
            permits.give("t_1", 1)
            await permits.steps("t_1", 2)
            await first.accept("t_2", session="s_2")
            await permits.steps("t_2", 1)
        await store.write(turns.request_stop, "t_2", StopRequest("by its user"))
        for turn, session in (("t_1", "s_1"), ("t_2", "s_2")):
            second.engine.submit(session, turn)
            permits.give(turn)
        outcome = await second.result("t_1")
        assert (outcome.state, outcome.text, outcome.steps) == ("answered", "step 2", 3)
        assert permits.resumed == ["t_1"]
        assert (await second.result("t_2")).state == "stopped"
        made = [step for turn, step in permits.made if turn == "t_1"]
        assert made == ["model-0", "model-1", "model-1", "model-2"], "only the step that was cut off is made again"
        assert len([turn for turn, _ in permits.made if turn == "t_2"]) == 1


async def test_capacity_is_a_hint_and_drain_ends_it(one: Worker, permits: Permits) -> None:
    """F1, P15: False while all slots are in use and when the process stops; figures are of this process."""
    for number in range(4):
        assert one.engine.can_start()
        await begin_sessions(one.store, f"s_more{number}")
        await one.accept(f"t_{number}", session=f"s_more{number}")
    assert not one.engine.can_start()
    await one.accept("t_waits")
    stats = one.engine.stats()
    assert (stats.running, stats.waiting) == (4, 1)
    with one.engine.delegating("t_0"):
        assert one.engine.can_start("t_0") and not one.engine.can_start()
    for number in range(4):
        permits.give(f"t_{number}")
    permits.give("t_waits")
    assert (await one.result("t_waits")).state == "answered"
    await one.engine.drain(WAIT)
    assert not one.engine.can_start() and one.engine.stats().answered == 5


async def test_the_outcome_of_a_one_shot_call_is_found_by_every_engine_until_it_expires(
    store: Store, permits: Permits, two: tuple[Worker, Worker]
) -> None:
    """B1, V18: whether somebody followed the call or not, as often as they ask; its other rows are gone."""
    first, second = two
    for number, seconds in enumerate((receipts.FOLLOWED_SECONDS, receipts.UNFOLLOWED_SECONDS)):
        turn, session = f"t_once{number}", f"s_once{number}"
        await begin_one_shot(store, session)
        await store.write(new_turn, session, turn, "1 step", now=time.time())
        first.engine.submit(session, turn)
        await permits.steps(turn, 1)
        async with anyio.create_task_group() as group:
            if seconds == receipts.FOLLOWED_SECONDS:
                group.start_soon(events, first, turn)
                await anyio.lowlevel.checkpoint()
            permits.give(turn)
        with anyio.fail_after(WAIT):
            while first.engine.follow(turn) is not None:
                await anyio.sleep(0.001)
        async with worker(store, permits) as third:
            found = [await engine.result(turn) for engine in (first, second, third, second)]
        assert {outcome.text for outcome in found} == {"step 0"}
        assert await store.read(sessions.get, session) is None and await store.read(turns.get, turn) is None
        await store.write(receipts.prune, time.time() + seconds - 60, 100)
        assert await second.result(turn) == found[0]
        await store.write(receipts.prune, time.time() + seconds + 60, 100)
        for engine in two:
            with pytest.raises(NotFound):
                await engine.result(turn)


@pytest.mark.parametrize("moments", range(0, 24, 3))
async def test_whenever_an_engine_dies_another_one_has_the_outcome_of_a_one_shot_call(
    store: Store, permits: Permits, moments: int
) -> None:
    """B1, F4, V18: also between the end of the turn in the store and its delivery to whoever follows it."""
    await begin_one_shot(store, "s_once")
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(worker(store, permits))
        async with anyio.create_task_group() as group, worker(store, permits) as first:
            await first.accept("t_1", session="s_once")
            await permits.steps("t_1", 1)
            group.start_soon(events, first, "t_1")
            await anyio.lowlevel.checkpoint()
            permits.give("t_1")
            for _ in range(moments):
                await anyio.lowlevel.checkpoint()
        second.engine.submit("s_once", "t_1")
        outcome = await second.result("t_1")
        assert (outcome.state, outcome.text) == ("answered", "step 0")
