"""The embedded engine, which runs turns in this process and keeps them in the store.

Guarantee: a turn's record is released in one place, however the turn ends, and only after the turns that ran its
delegated tasks have ended. A commit is never interrupted. If a turn that is running in this process is stopped, it is
cancelled immediately; the stored request is for turns that are running elsewhere, and for the time after a crash. The
engine owns its queue and its turns' asyncio tasks; the handler decides what a turn does.
"""

import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import ParamSpec
from weakref import WeakSet

import anyio

from tidegate.agent import Parked, tool_ended
from tidegate.engine.attempt_runner import AttemptRunner, log_superseded
from tidegate.engine.interface import PARENT_ENDED, Engine, Handler, StartedTurn
from tidegate.engine.journal import REREAD_SECONDS
from tidegate.engine.live_turn import LiveTurn, log_holdings, turn_holdings
from tidegate.engine.run_queue import RunQueue
from tidegate.engine.turn_end import (
    Attempt,
    Settlement,
    Stopped,
    TurnEnd,
    peek,
    settle,
    stop_session,
    stop_turn,
    turn_end,
)
from tidegate.engine.turn_log import TurnLog
from tidegate.engine.turn_start import accept
from tidegate.error_mapping import failure_of
from tidegate.errors import Conflict, EarlierTurnOpen, NotFound, Stopping, StoreFailed, Superseded
from tidegate.lifetimes import Presence, Present, Scope
from tidegate.log import Log
from tidegate.status_report import EngineStats
from tidegate.store import StopRequest, Store, open_turns, turns
from tidegate.values import Event, Notice, Outcome, TurnEnded

log = Log(__name__)
P = ParamSpec("P")

OPEN = ("queued", "running")
"""The states of turns that have not ended."""

TASKS_END_SECONDS = 10.0
"""Seconds that an ending turn waits for its delegated tasks to end. Only a tool that hangs takes longer."""

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0
"""Shortest and longest pause, in seconds, between two attempts to store a turn's end while the store refuses the write
(usually because the disk is full). The shortest pause also separates two attempts to start a turn that has to wait for
one running elsewhere."""

LONGEST_POLL = 1.0
"""Longest pause, in seconds, between two reads of a turn that is running in another process."""


class EmbeddedEngine(Engine):
    """Runs at most `turns` turns concurrently, each for at most `turn_seconds`. A turn that is waiting for a person
    reads its news at least every `reread_seconds`."""

    def __init__(
        self,
        scope: Scope,
        store: Store,
        presence: Presence,
        handler: Handler,
        *,
        turns: int,
        turn_seconds: float,
        clock: Callable[[], float],
        reread_seconds: float = REREAD_SECONDS,
    ) -> None:
        self._scope = scope
        self._store = store
        self._presence = presence
        self._handler = handler
        self._clock = clock
        self._queue = RunQueue(scope, presence, self._run, clock, turns=turns)
        self._attempts = AttemptRunner(
            scope, store, self._queue, handler, turn_seconds=turn_seconds, reread_seconds=reread_seconds, clock=clock
        )
        self._logs: WeakSet[TurnLog] = WeakSet()  # a log outlives its turn as long as it has readers
        self._counts: Counter[str] = Counter()  # lint: allow one entry for each way a turn can end
        self._seconds = 0.0
        presence.is_waiting = lambda turn: turn.waits_for_person
        presence.ledger.view("turn", lambda: turn_holdings(self._queue.live.values()))
        presence.ledger.view("turn log", lambda: log_holdings(self._logs))

    # -- the interface --

    accept = staticmethod(accept)

    def submit(self, session: str, turn: str, *, within: str | None = None, started: StartedTurn | None = None) -> None:
        live = self._queue.live
        if turn in live:
            return
        parent = live.get(within) if within is not None else None
        added = LiveTurn(turn, session, start=started, parent=parent)
        self._logs.add(added.log)
        record = self._queue.add(added)
        if within is not None and (parent is None or parent.is_done) and not self._is_stopping:
            self._stop_here(added, StopRequest(PARENT_ENDED))
        else:
            self._queue.start_next(record)

    def wake(self, turn: str) -> None:
        live = self._queue.live.get(turn)
        if live is not None:
            live.wake()
            if self._scope.open:
                self._scope.start(self._reread, live, name=f"news for {turn}")

    async def stop(self, turn: str, by: str, *, abandoned: bool = False) -> bool:
        request = StopRequest(by, abandoned)
        live = self._queue.live.get(turn)
        is_cancelled = live is not None and live.started_at is not None
        if live is not None and is_cancelled:
            live.stop(by, abandoned=abandoned)
        is_followed = live is not None and live.log.readers > 0
        then = partial(self._stopped, turn, request)
        try:
            return await self._store.write_then(then, stop_turn, turn, request, self._clock(), is_followed=is_followed)
        except StoreFailed:
            if not is_cancelled:
                raise
            return True

    async def stop_session(self, session: str, by: str, within: float) -> bool:
        request = StopRequest(by)
        for live in self._queue.of_session(session):
            if live.started_at is not None:
                live.stop(by)

        def then(settlements: list[Settlement]) -> None:
            for settlement in settlements:
                self._stopped(settlement.outcome.turn, request, Stopped(True, settlement))
            for live in self._queue.of_session(session):
                self.wake(live.turn)  # it may have been ended or refused by another transaction

        await self._store.write_then(then, stop_session, session, request, self._clock())
        with anyio.move_on_after(within):
            await self._until_session_idle(session)
            return True
        return False

    def follow(self, turn: str) -> TurnLog | None:
        live = self._queue.live.get(turn)
        return live.log if live is not None else None

    def follow_session(self, session: str) -> TurnLog | None:
        live = self._queue.running(session)
        return live.log if live is not None else None

    async def result(self, turn: str) -> Outcome:
        pause = FIRST_PAUSE
        while True:
            live = self._queue.live.get(turn)
            if live is not None:
                await live.log.ended()
                last = live.log.events[-1] if live.log.events else None
                if isinstance(last, TurnEnded):
                    return last.outcome
            outcome = None if live is not None and self._is_closed else await self._store.read(turns.outcome, turn)
            if outcome is not None and outcome.state not in OPEN:
                return outcome
            if self._is_closed:
                raise Stopping("The gateway is stopping; this turn continues after the restart.", retry_after=2)
            if outcome is None:
                raise NotFound(f"There is no turn {turn}.", code="turn_not_found")
            await anyio.sleep(pause)  # another attempt is running the turn
            pause = min(2 * pause, LONGEST_POLL)

    def tell(self, turn: str, event: Event) -> None:
        live = self._queue.live.get(turn)
        if live is not None and not live.log.closed:
            live.emit(event)

    def delegating(self, turn: str) -> contextlib.AbstractContextManager[None]:
        if self._is_stopping:
            raise Parked
        return self._queue.waiting_for_tasks(self._queue.live[turn])

    def can_start(self, within: str = "") -> bool:
        parent = self._queue.live.get(within)
        return self._queue.is_open_for(parent) and self._queue.slots.is_free_for(parent)

    async def drain(self, within: float) -> None:
        self._queue.is_closed = True
        with anyio.move_on_after(within):
            await self._until_slots_free()
        self._queue.is_parking = True
        with anyio.move_on_after(min(1.0, within)):
            await self._until_slots_free()
        for live in self._queue.live.values():
            live.log.close()

    def stats(self) -> EngineStats:
        slots = self._queue.slots
        return EngineStats(
            running=slots.running,
            waiting=self._queue.waiting,
            asking=slots.asking,
            delegating=slots.delegating,
            answered=self._counts["answered"],
            failed=self._counts["failed"],
            stopped=self._counts["stopped"],
            seconds=self._seconds,
        )

    # -- waiting --

    async def _until_slots_free(self) -> None:
        """Waits until no turn has a slot. A turn that reserves its slot for its tasks counts until the tasks can no
        longer start."""
        while (live := next(filter(self._is_busy, self._queue.live.values()), None)) is not None:
            await self._until_ended(live)

    def _is_busy(self, live: LiveTurn) -> bool:
        return live.has_slot and not (self._queue.is_parking and live.is_waiting)

    async def _until_session_idle(self, session: str) -> None:
        """Waits until no turn of this session is open, here or elsewhere."""
        while live := self._queue.of_session(session):
            await self._until_ended(live[0])
        while True:
            if await self._store.read(open_turns.is_idle, session):
                return
            await anyio.sleep(FIRST_PAUSE)

    async def _until_ended(self, live: LiveTurn) -> None:
        """Waits until the turn's end is published. If it could not be stored yet, waits a little longer."""
        await live.log.ended()
        await anyio.sleep(FIRST_PAUSE if live.turn in self._queue.live else 0)

    # -- stopping --

    @property
    def _is_closed(self) -> bool:
        """True if the process has begun to stop."""
        return self._queue.is_closed or not self._scope.open

    @property
    def _is_stopping(self) -> bool:
        """True if turns that have not ended by now continue in another process."""
        return self._queue.is_parking or not self._scope.open

    def _stopped(self, turn: str, request: StopRequest, stopped: Stopped) -> bool:
        """Acts on a stored stop request, in the same iteration of the event loop in which it was committed."""
        live = self._queue.live.get(turn)
        if live is not None and stopped.settlement is not None:
            if self._queue.withdraw(live):
                with self._presence.keep_present(live.session) as record:
                    self._release(record, live, stopped.settlement)
        elif live is not None and stopped.is_open:
            self._stop_here(live, request)
        return stopped.is_open

    def _stop_here(self, live: LiveTurn, request: StopRequest) -> None:
        """Stops a turn of this process: cancels it, or takes it out of the queue and settles it."""
        live.stop(request.by, abandoned=request.abandoned)
        if self._scope.open and self._queue.withdraw(live):
            self._scope.start(self._settle_withdrawn, live, name=f"turn {live.turn}", at_close="finish")

    async def _settle_withdrawn(self, live: LiveTurn) -> None:
        """Publishes the end of a turn that left the queue without running. The session stays present only until
        then."""
        with contextlib.ExitStack() as present:
            record = present.enter_context(self._presence.keep_present(live.session))

            def release(settlement: Settlement) -> None:
                self._release(record, live, settlement)
                present.close()

            try:
                await self._settle(live, Attempt(), release)
            finally:
                self._release(record, live, None)

    async def _reread(self, live: LiveTurn) -> None:
        """Reads the news for a turn from the store."""
        with contextlib.suppress(StoreFailed):  # the turn will find the news at its next commit
            row = await self._store.read(turns.get, live.turn)
            if row is not None and row.state in OPEN:
                if row.stopping is not None and live.stopped_by is None:
                    self._stop_here(live, row.stopping)
            elif self._queue.withdraw(live):
                with self._presence.keep_present(live.session) as record:
                    await self._publish_elsewhere(record, live)

    # -- running --

    async def _run(self, record: Present, live: LiveTurn) -> None:
        """Runs a turn and settles it, or leaves it to another attempt. This is the turn's asyncio task."""
        with contextlib.ExitStack() as running:
            running.callback(self._release, record, live, None)
            try:
                attempt = await self._attempts.run(live)
            except EarlierTurnOpen:
                if not self._is_closed:
                    running.pop_all()
                    self._put_back(record, live)
                return
            if attempt is not None:
                await self._settle(live, attempt, partial(self._release, record, live))
            elif not self._is_closed:
                await self._publish_elsewhere(record, live)

    def _put_back(self, record: Present, live: LiveTurn) -> None:
        """Returns a turn to the queue because an earlier turn of its session is running elsewhere, and tries again
        after a pause."""
        self._queue.put_back(record, live)

        async def start_later() -> None:
            await anyio.sleep(FIRST_PAUSE)
            self._queue.start_next(record)

        self._scope.start(start_later, name=f"next turn of {live.session}")

    async def _publish_elsewhere(self, record: Present, live: LiveTurn) -> None:
        """Publishes the end of a turn that no attempt in this process has settled, and releases the turn. If another
        attempt is running the turn, its followers start following it again."""
        outcome = await self._store.read(turns.outcome, live.turn)
        if outcome is not None and outcome.state not in OPEN:
            live.log.append(TurnEnded(outcome=outcome))
        self._release(record, live, None)

    async def _settle(self, live: LiveTurn, attempt: Attempt, release: Callable[[Settlement], None]) -> None:
        """Stops the turn's delegated tasks, decides how the turn ends, and stores its end."""
        if attempt.journal is None:
            live.delegated = True  # an earlier attempt may have delegated tasks
        if live.delegated:
            await self._end_tasks(live)
        end = await self._turn_end(live, attempt)
        if end is not None:
            await self._commit(live, end, release)

    async def _end_tasks(self, live: LiveTurn) -> None:
        """Stops the tasks that this turn delegated, now or in an earlier attempt, and waits until they have ended."""
        with contextlib.suppress(StoreFailed):  # the timer will find the rest
            for turn, session in await self._store.read(open_turns.tasks_of, live.turn):
                self.submit(session, turn, within=live.turn)
        tasks = tuple(live.children.values())
        for task in tasks:
            self._stop_here(task, StopRequest(PARENT_ENDED))
        with anyio.move_on_after(TASKS_END_SECONDS) as deadline:
            for task in tasks:
                await self._until_ended(task)
        if deadline.cancelled_caught:
            log.warning(
                "a delegated task is still running after its parent turn has ended",
                session=live.session,
                turn=live.turn,
            )

    async def _turn_end(self, live: LiveTurn, attempt: Attempt) -> TurnEnd | None:
        """Returns the turn's end after this attempt. If the turn was never taken, it was stopped while it was waiting,
        or the store refused it."""
        taken = attempt.taken or (live.start.taken if live.start is not None else None)
        taken = taken or await self._store.read(peek, live.turn)
        if taken is None:
            log.warning("the session of a live turn was deleted", session=live.session, turn=live.turn)
            return None
        if attempt.journal is None:
            return turn_end(live, attempt, taken, await self._store.read(turns.usage_so_far, live.turn))
        if taken.turn.fence > 1:
            attempt.journal.count_unreached()
        return turn_end(live, attempt, taken, (live.usage, attempt.journal.steps))

    async def _commit(self, live: LiveTurn, end: TurnEnd, release: Callable[[Settlement], None]) -> None:
        """Stores the end and releases the turn. If the store refuses the write, waiting callers are notified
        immediately, but the session does not start another turn until this end is stored, because a later turn must not
        overtake this one."""
        pause = FIRST_PAUSE
        while True:
            try:
                await self._store.write_then(release, settle, end, self._clock())
            except Superseded:
                log_superseded(live)
            except Conflict:
                ended = await self._store.read(turns.outcome, live.turn)
                if ended is not None:
                    release(Settlement(outcome=ended))
            except StoreFailed as error:
                if not live.log.closed:
                    log.error(
                        "a turn's end cannot be stored yet", session=live.session, turn=live.turn, error=str(error)
                    )
                    failed = Outcome(turn=end.turn, session=end.session, state="failed", error=failure_of(error))
                    live.log.append(TurnEnded(outcome=failed))
                await anyio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            return

    # -- the end --

    def _release(self, record: Present, live: LiveTurn, settlement: Settlement | None) -> None:
        """Releases a turn's record, exactly once. No other code does this. This happens as soon as the end is stored,
        so that waiting callers are notified in the same iteration of the event loop, and at the latest when the turn's
        asyncio task ends."""
        if live.released:
            return
        live.released = True
        try:
            if settlement is not None:
                self._publish_end(record, live, settlement)
        finally:
            live.log.close()
            self._queue.release(record, live)
        self._queue.fill_slots(live.parent)

    def _publish_end(self, record: Present, live: LiveTurn, settlement: Settlement) -> None:
        outcome = settlement.outcome
        self._counts[outcome.state] += 1
        if live.started_at is not None:
            self._seconds += self._clock() - live.started_at
            self._handler.turn_ended(record, outcome, settlement.version)
        if settlement.follow_up is not None:
            self.submit(live.session, settlement.follow_up)
        if live.log.closed:
            return  # its readers have already been notified of the store failure
        running = live.log.running_calls() if outcome.state != "answered" else frozenset()
        for row in settlement.rows:
            live.log.append(TurnLog.row_event(row.seq or 0, row.message))
            if row.message.call_id in running:
                live.log.append(tool_ended(row.message))
        for text in outcome.notices:
            if text not in live.notices:
                live.log.append(Notice(text=text))
        live.log.append(TurnEnded(outcome=outcome))


def _as_engine(engine: Callable[P, Engine]) -> Callable[P, Engine]:
    return engine


build_engine = _as_engine(EmbeddedEngine)
"""Builds the engine. Callers see its parameters and the interface `Engine`, but not which engine it is."""
