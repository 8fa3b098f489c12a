"""The embedded engine, which runs turns in this process and keeps them in the store.

Guarantee: a session runs one turn at a time, in the order in which its messages were accepted. At most `turns` turns
run concurrently; the others wait for a slot. A turn's record is released in one place, however the turn ends, and only
after the turns that ran its delegated tasks have ended. A commit is never interrupted. The engine owns the tasks of its
turns and the map of live turns; the handler decides what a turn does.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol
from weakref import WeakSet

import anyio

from tidegate.agent import Parked, Turn, tool_ended
from tidegate.engine.interface import Engine
from tidegate.engine.journal import Journal, slim
from tidegate.engine.live_turn import NOTHING, LiveTurn, Slots, StartedTurn, TakenTurn, log_holdings, turn_holdings
from tidegate.engine.turn_failures import failure_of
from tidegate.engine.turn_lifecycle import (
    Attempt,
    Settlement,
    TurnEnd,
    billing_of,
    peek,
    settle,
    start,
    turn_end,
    turn_end_without_resume,
)
from tidegate.engine.turn_log import TurnLog
from tidegate.errors import Conflict, ModelFailed, NotFound, Stopping, StoreFailed, Superseded, TurnFailed
from tidegate.lifetimes import Presence, Present, Scope, ScopeClosed, is_cancelled
from tidegate.log import Log
from tidegate.status_report import EngineStats
from tidegate.store import Db, SessionRow, Store, TurnRow, turns
from tidegate.values import Event, Failure, MessageAdded, Notice, Outcome, TurnEnded, TurnStarted

log = Log(__name__)


PARENT_ENDED = "because the turn that delegated this task has ended"

TASKS_END_SECONDS = 10.0
"""Seconds that an ending turn waits for its delegated tasks to end. Only a hanging tool takes longer."""

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0
"""Shortest and longest pause, in seconds, between two attempts to store the end of a turn while the store refuses the
write (usually because the disk is full)."""


class Handler(Protocol):
    async def __call__(self, turn: Turn, taken: TakenTurn, /) -> None: ...

    def turn_ended(self, record: Present, outcome: Outcome, version: int) -> None:
        """Called when the turn has ended, before its record is released. `version` is the session's current version in
        the store."""
        ...


class EmbeddedEngine(Engine):
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
    ) -> None:
        self._scope = scope
        self._store = store
        self._presence = presence
        self._handler = handler
        self.slots = Slots(turns)
        self._turn_seconds = turn_seconds
        self._clock = clock
        self._live: dict[str, LiveTurn] = {}
        self._logs: WeakSet[TurnLog] = WeakSet()  # a log outlives its turn while it has readers
        self._ready: dict[Present, None] = {}
        self.parking = False
        """True if running turns are to stop before their next step and continue in the next process."""
        self._closed = False
        self._counts: Counter[str] = Counter()  # lint: allow one entry for each way a turn can end
        self._seconds = 0.0
        presence.ledger.view("turn", lambda: turn_holdings(self._live.values()))
        presence.ledger.view("turn log", lambda: log_holdings(self._logs))

    # -- the interface for sessions --

    @property
    def waiting_total(self) -> int:
        """The number of waiting turns in all sessions."""
        return len(self._live) - self.slots.started

    def waiting_of(self, principal: str) -> int:
        """The number of waiting turns of one principal."""
        return sum(live.started_at is None and live.principal == principal for live in self._live.values())

    @property
    def asking(self) -> int:
        """The number of turns that wait for a person."""
        return self.slots.asking

    @property
    def is_stopping(self) -> bool:
        """True if the process is stopping. Turns that have not ended by then continue in the next process."""
        return self.parking or not self._scope.open

    def has_free_slot(self, within: str = "") -> bool:
        """True if a turn accepted now could start immediately. `within` is the parent turn if the new turn runs a
        delegated task."""
        parent = self._live.get(within)
        return self._is_open(parent) and self.slots.is_free_for(parent)

    def accepts_tasks(self, turn: str) -> bool:
        """True if this turn may delegate a task now. A running turn may delegate even when no other new turns are
        accepted."""
        return turn in self._live and not self.is_stopping

    @property
    def is_open(self) -> bool:
        """False once the engine has begun to stop. From then on, only tasks delegated by running turns are accepted."""
        return self._is_open(None)

    @property
    def queued(self) -> int:
        """The number of sessions whose next turn waits for a slot."""
        return len(self._ready)

    def _is_open(self, parent: LiveTurn | None) -> bool:
        return self._scope.open and not (self.parking if parent is not None else self._closed)

    def submit(
        self,
        session: str,
        turn: str,
        principal: str,
        *,
        started: StartedTurn | None = None,
        resumed: bool = False,
        within: str | None = None,
    ) -> int:
        """Queue an accepted turn. `started` is set if the turn was started in the transaction that accepted it.
        `within` is the parent turn that delegated the task; the new turn ends no later than its parent. Idempotent: a
        turn that is already live keeps its position and its log. Returns the number of turns of the session that
        precede the new turn."""
        if turn in self._live:
            return 0
        parent = self._live.get(within) if within is not None else None
        live = self._live[turn] = LiveTurn(turn, session, principal, start=started, resumed=resumed, parent=parent)
        self._logs.add(live.log)
        record = self._presence.obtain(session)
        ahead = len(record.waiting) + (record.turn is not None)
        record.waiting.append(live)
        if parent is not None:
            parent.children[turn] = live
        if within is not None and (parent is None or parent.is_done) and not self.is_stopping:
            self.interrupt(turn, PARENT_ENDED)
        else:
            self._start_next(record)
        return ahead

    def log(self, turn: str) -> TurnLog | None:
        live = self._live.get(turn)
        return live.log if live is not None else None

    async def result(self, turn: str) -> Outcome:
        """Waits until the turn has ended, here or in the process that has taken it over, and returns its outcome. If
        the turn is not live, returns the outcome that is in the store now."""
        live = self._live.get(turn)
        if live is not None:
            await live.log.ended()
            last = live.log.events[-1] if live.log.events else None
            if isinstance(last, TurnEnded):
                return last.outcome
            if self._closed or not self._scope.open:
                raise Stopping("The gateway is stopping; this turn continues after the restart.", retry_after=2)
        outcome = await self._store.read(turns.outcome, turn)
        while live is not None and outcome is not None and outcome.state in ("queued", "running"):
            await anyio.sleep(FIRST_PAUSE)  # another attempt is running the turn
            outcome = await self._store.read(turns.outcome, turn)
        if outcome is None:
            raise NotFound(f"There is no turn {turn}.", code="turn_not_found")
        return outcome

    @property
    def turns(self) -> tuple[str, ...]:
        """The ids of all turns that wait or run in this process."""
        return tuple(self._live)

    def running(self, session: str) -> LiveTurn | None:
        record = self._presence.get(session)
        return record.turn if record is not None else None

    def waiting(self, session: str) -> int:
        record = self._presence.get(session)
        return len(record.waiting) if record is not None else 0

    def steer(self, turn: str) -> None:
        """Called when a steering message for this turn has been committed."""
        live = self._live.get(turn)
        if live is not None:
            live.steer()

    def signal(self, turn: str) -> None:
        """Called when an event has been committed that this turn may be waiting for."""
        live = self._live.get(turn)
        if live is not None:
            live.signal()

    def tell(self, turn: str, event: Event) -> None:
        """Send an event that did not originate in this turn to the turn's followers."""
        live = self._live.get(turn)
        if live is not None and not live.log.closed:
            live.emit(event)

    @contextlib.contextmanager
    def delegating(self, turn: str) -> Iterator[None]:
        """Within the block, one of the turn's tool calls counts as waiting for a task that it delegated. The task's
        turn may use the slot of this turn."""
        live = self._live[turn]
        try:
            with self.slots.waiting_for_tasks(live):
                self._fill_slots(live)
                yield
        finally:
            self._fill_slots(live)

    def interrupt(self, turn: str, by: str, *, abandoned: bool = False) -> bool:
        """Stop a turn that runs or waits. It ends as stopped; the text it has shown is kept."""
        live = self._live.get(turn)
        if live is None:
            return False
        if live.stopped_by is None:
            live.abandoned = abandoned
        live.stop(by)
        if self._scope.open and self._leave_queue(live):
            self._scope.start(self._withdraw, live, name=f"turn {live.turn}", at_close="finish")
        return True

    def interrupt_all(self, session: str, by: str) -> None:
        """Stop all turns of a session."""
        record = self._presence.get(session)
        if record is not None:
            for live in (*record.waiting, *((record.turn,) if record.turn is not None else ())):
                self.interrupt(live.turn, by)

    def refuse(self, outcomes: Iterable[Outcome]) -> None:
        """End waiting turns that the store has refused, and publish their outcomes. A turn that has left the queue in
        the meantime finds the refusal in the store."""
        for outcome in outcomes:
            live = self._live.get(outcome.turn)
            if live is not None and self._leave_queue(live):
                del self._live[live.turn]
                live.log.append(TurnEnded(outcome=outcome))

    async def idle(self, session: str) -> None:
        """Wait until no turn of this session runs or waits."""
        while (live := next((live for live in self._live.values() if live.session == session), None)) is not None:
            await self._until_ended(live)

    async def drain(self, within: float) -> None:
        """Stop starting turns. Running turns have this many seconds to finish; those that do not are parked before
        their next step."""
        self._closed = True
        with anyio.move_on_after(within):
            await self._until_idle()
        self.parking = True
        with anyio.move_on_after(min(1.0, within)):
            await self._until_idle()
        for live in self._live.values():
            live.log.close()

    def stats(self) -> EngineStats:
        return EngineStats(
            running=self.slots.running,
            waiting=self.waiting_total,
            asking=self.slots.asking,
            delegating=self.slots.delegating,
            answered=self._counts["answered"],
            failed=self._counts["failed"],
            stopped=self._counts["stopped"],
            seconds=self._seconds,
        )

    # -- running --

    async def _until_idle(self) -> None:
        """Wait until no turn has a slot. A turn that reserves its slot for its tasks is included until the tasks can no
        longer start."""
        while (live := next(filter(self._is_busy, self._live.values()), None)) is not None:
            await self._until_ended(live)

    def _is_busy(self, live: LiveTurn) -> bool:
        return live.has_slot and not (self.parking and live.is_waiting)

    async def _until_ended(self, live: LiveTurn) -> None:
        """Wait until the end of the turn is published. If the end could not be stored yet, wait a little longer."""
        await live.log.ended()
        await anyio.sleep(FIRST_PAUSE if live.turn in self._live else 0)

    def _start_next(self, record: Present) -> None:
        """Start the session's next turn if a slot is free; otherwise remember that the session waits for one."""
        if record.turn is not None or not record.waiting or not self._is_open(record.waiting[0].parent):
            return
        if not self.slots.is_free_for(record.waiting[0].parent):
            self._ready[record] = None
            return
        self._ready.pop(record, None)
        live = record.waiting.popleft()
        record.turn = live
        live.started_at = self._clock()
        self.slots.occupy(live)
        self._scope.start(self._run, record, live, name=f"turn {live.turn}")
        record.notify()

    def _leave_queue(self, live: LiveTurn) -> bool:
        """Remove a turn from the queue. Returns False if the turn is not in the queue because it is already running."""
        record = self._presence.get(live.session)
        if record is None or live not in record.waiting:
            return False
        record.waiting.remove(live)
        if not record.waiting:
            self._ready.pop(record, None)
        return True

    async def _withdraw(self, live: LiveTurn) -> None:
        """End a turn that left the queue without running. Its session stays present only until the end is published."""
        with contextlib.ExitStack() as present:
            record = present.enter_context(self._presence.keep_present(live.session))

            def release(settlement: Settlement) -> None:
                self._release(record, live, settlement)
                present.close()

            try:
                await self._settle(live, Attempt(), release)
            finally:
                self._release(record, live, None)

    def _release(self, record: Present, live: LiveTurn, settlement: Settlement | None) -> None:
        """Release a turn's record, exactly once; no other code does this. The record is released as soon as the end is
        stored, so that waiting callers are notified in the same iteration of the event loop, and at the latest when the
        turn's asyncio task ends."""
        if live.released:
            return
        live.released = True
        self.slots.release(live)
        self._live.pop(live.turn, None)
        try:
            if settlement is not None:
                self._publish_end(record, live, settlement)
        finally:
            live.log.close()
            self._presence.turn_ended(record, live)
        if record.waiting:
            self._ready[record] = None  # behind the sessions that are waiting for a slot
        self._fill_slots(live.parent)

    def _fill_slots(self, tree: LiveTurn | None) -> None:
        """Give free slots to the sessions that wait for one. Slots that the turns of this task tree have reserved for
        their tasks go to these tasks first."""
        while tree is not None:
            for task in tuple(tree.children.values()):
                if task.started_at is None and (record := self._presence.get(task.session)) is not None:
                    self._start_next(record)
            tree = tree.parent
        while self._ready and self.slots.free and not self._closed:
            waiting = next(iter(self._ready))
            del self._ready[waiting]
            self._start_next(waiting)

    @contextlib.contextmanager
    def _waiting_for_person(self, live: LiveTurn) -> Iterator[None]:
        """Within the block, a step of the turn counts as waiting for a person. The slot is available to other turns,
        the resident conversation may be unloaded, and the time limit is suspended. When the turn continues, it does not
        wait for a slot again; limits.questions limits how many turns may wait this way."""
        try:
            with self.slots.waiting_for_person(live):
                self._fill_slots(live.parent)
                self._allow_unload(live)
                yield
        finally:
            self._fill_slots(live.parent)

    def _allow_unload(self, asking: LiveTurn) -> None:
        """Allow the residents of this turn, and of the parent turns that wait for it, to be unloaded."""
        live: LiveTurn | None = asking
        while live is not None:
            record = self._presence.get(live.session)
            if live.waits_for_person and record is not None and record.turn is live:
                self._presence.turn_waits(record)
            live = live.parent

    def _publish_end(self, record: Present, live: LiveTurn, settlement: Settlement) -> None:
        outcome = settlement.outcome
        self._counts[outcome.state] += 1
        if live.started_at is not None:
            self._seconds += self._clock() - live.started_at
            self._handler.turn_ended(record, outcome, settlement.version)
        if settlement.follow_up is not None:
            self.submit(live.session, settlement.follow_up, live.principal)
        if live.log.closed:
            return  # its readers have already been notified of the store failure
        running = live.log.running_calls() if outcome.state != "answered" else frozenset()
        for row in settlement.rows:
            live.log.append(MessageAdded(seq=row.seq or 0, message=slim(row.message)))
            if row.message.call_id in running:
                live.log.append(tool_ended(row.message))
        for text in outcome.notices:
            if text not in live.notices:
                live.log.append(Notice(text=text))
        live.log.append(TurnEnded(outcome=outcome))

    async def _run(self, record: Present, live: LiveTurn) -> None:
        """Run a turn and settle it, or leave it for the next process. This is the turn's asyncio task."""
        try:
            attempt = await self._attempt(live)
            if attempt is not None:
                await self._settle(live, attempt, partial(self._release, record, live))
        finally:
            self._release(record, live, None)

    async def _attempt(self, live: LiveTurn) -> Attempt | None:
        """Start the turn and run its handler. Returns None if the turn was parked for the next process or taken over by
        another attempt."""
        attempt = Attempt()
        live.attach_task()
        live.start_timer(self._turn_seconds)
        try:
            if live.stopped_by is None:
                started, live.start = live.start, None
                if started is None:
                    started = await self._store.write(start, live.turn, self._clock())
                attempt.taken = started.taken
                attempt.journal = self._open_journal(live, started)
                await self._handler(attempt.journal, started.taken)
        except asyncio.CancelledError as error:
            if not live.detach_task():
                if is_cancelled():
                    await self._park(live, attempt)
                    raise
                attempt.failure = failure_of(error)  # an awaited task was cancelled, not the turn
                self._log_failure(live, attempt.failure, error)
        except Parked:
            await self._park(live, attempt)
            return None
        except Superseded:
            _log_superseded(live)
            return None
        except Exception as error:
            if self._is_end_of_process(error) and not live.detach_task():
                await self._park(live, attempt)
                return None
            attempt.failure = failure_of(error)
            self._log_failure(live, attempt.failure, error)
        finally:
            live.stop_timer()
            live.detach_task()
        if live.expired and attempt.journal is not None and not attempt.journal.has_answered:
            limit = f"limits.turn_seconds ({self._turn_seconds:g} s)"
            attempt.failure = failure_of(TurnFailed(f"The turn took longer than {limit}.", code="timeout"))
        return attempt

    async def _settle(self, live: LiveTurn, attempt: Attempt, release: Callable[[Settlement], None]) -> None:
        """Stop the turn's delegated tasks, decide how the turn ends, and store its end."""
        if live.children:
            await self._end_tasks(live)
        end = await self._turn_end(live, attempt)
        if end is not None:
            await self._commit(live, end, release)

    def _is_end_of_process(self, error: Exception) -> bool:
        """True if a turn failed only because the process is ending and nothing can be opened any more."""
        return not self._scope.open and (isinstance(error, ScopeClosed) or is_cancelled())

    async def _end_tasks(self, live: LiveTurn) -> None:
        """Stop the tasks that this turn delegated and wait until they have ended."""
        tasks = tuple(live.children.values())
        for task in tasks:
            self.interrupt(task.turn, PARENT_ENDED)
        with anyio.move_on_after(TASKS_END_SECONDS) as deadline:
            for task in tasks:
                await self._until_ended(task)
        if deadline.cancelled_caught:
            log.warning(
                "a delegated task still runs after the end of its parent turn", session=live.session, turn=live.turn
            )

    async def _park(self, live: LiveTurn, attempt: Attempt) -> None:
        """Leave the turn for the next process. An orderly stop does not count towards limits.resumes. The cost of the
        model call in progress is recorded, since the next process makes the call again."""

        taken = attempt.taken or (live.start.taken if live.start is not None else None)
        if taken is None or not self._closed:
            return
        fence = taken.turn.fence

        def write(db: Db) -> None:
            if turns.park(db, live.turn, fence) and attempt.journal is not None:
                attempt.journal.bill_cut_calls(db)

        with contextlib.suppress(StoreFailed):
            await self._store.write(write)

    def _log_failure(self, live: LiveTurn, failure: Failure, error: BaseException) -> None:
        """Write one log line per failed turn, so that the operator notices a wrong key or a broken model. The
        endpoint's error message is left out because it may quote the conversation."""
        if failure.code == "internal":
            log.exception("a turn failed unexpectedly", session=live.session, turn=live.turn, error=failure.message)
        else:
            reason = failure.message
            if isinstance(error, ModelFailed):
                reason = error.brief
            elif isinstance(error, StoreFailed):
                reason = error.message
            log.warning("a turn failed", session=live.session, turn=live.turn, code=failure.code, error=reason)

    def _open_journal(self, live: LiveTurn, started: StartedTurn) -> Journal:
        if (earlier := started.taken.turn.usage) != NOTHING:
            live.add_usage(earlier)
        live.log.append(TurnStarted(turn=live.turn, resumed=live.resumed))
        for seq, message in started.incoming:
            live.log.append(MessageAdded(seq=seq, message=slim(message)))
        return Journal(
            live,
            self._store,
            billing_of(started.taken.turn, started.taken.session),
            fence=started.taken.turn.fence,
            incoming=tuple(message for _, message in started.incoming),
            recorded=started.recorded,
            open_intents=started.intents,
            parking=lambda: self.parking,
            waiting_for_person=lambda: self._waiting_for_person(live),
            clock=self._clock,
        )

    async def _turn_end(self, live: LiveTurn, attempt: Attempt) -> TurnEnd | None:
        """Returns the end of the turn after this attempt. If the turn was never taken, it was stopped while it waited
        or refused by the store."""
        taken = attempt.taken or (live.start.taken if live.start is not None else None)
        taken = taken or await self._store.read(peek, live.turn)
        if taken is None:
            log.warning("the session of a live turn was deleted", session=live.session, turn=live.turn)
            return None
        if attempt.journal is None:
            return turn_end(live, attempt, taken, await self._store.read(turns.usage_so_far, live.turn))
        return turn_end(live, attempt, taken, (live.usage, attempt.journal.steps))

    async def _commit(self, live: LiveTurn, end: TurnEnd, release: Callable[[Settlement], None]) -> None:
        """Store the end and release the turn. If the store refuses the write, waiting callers are notified immediately,
        but the session starts no other turn until this end is stored, because a later turn must not overtake this
        one."""
        pause = FIRST_PAUSE
        while True:
            try:
                await self._store.write_then(release, settle, end, self._clock())
            except Superseded:
                _log_superseded(live)
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

    async def give_up(self, turn: TurnRow, session: SessionRow, failure: Failure) -> bool:
        """Settle a turn that will not be resumed. Returns False if the turn has ended in the meantime."""

        def then(settlement: Settlement) -> None:
            if settlement.follow_up is not None:
                self.submit(session.id, settlement.follow_up, session.principal)

        end = turn_end_without_resume(turn, session, failure, await self._store.read(turns.usage_so_far, turn.id))
        try:
            await self._store.write_then(then, settle, end, self._clock())
        except (Conflict, Superseded):
            return False
        return True


def _log_superseded(live: LiveTurn) -> None:
    log.info("another attempt has taken over a turn", session=live.session, turn=live.turn)
