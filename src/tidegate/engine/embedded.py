"""The embedded engine: turns over SQLite, in this process.

Guarantee: a session runs one turn at a time, in the order in which its messages were accepted; at most `turns` run at
once and the others wait (`places`); a turn's record is released in one place, whichever way it ends, and before that
the turns that worked on tasks of its have ended; nothing is stopped half-way through a commit. The engine owns the
tasks of its turns and the map of live turns; what a turn does is its handler's.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol
from weakref import WeakSet

import anyio

from tidegate.agent import Parked, tool_ended
from tidegate.engine import held
from tidegate.engine.attempt import Attempt, bill_to, ending_of, given_up
from tidegate.engine.interface import Engine
from tidegate.engine.journal import Journal, slim
from tidegate.engine.live import LiveTurn
from tidegate.engine.settlement import Settlement, TurnEnd, settle
from tidegate.engine.slots import Slots
from tidegate.engine.turn_failures import describe
from tidegate.engine.turn_log import TurnLog
from tidegate.engine.turn_start import StartedTurn, TakenTurn, begin, peek
from tidegate.errors import Conflict, ModelFailed, Stopping, StoreFailed, TurnFailed
from tidegate.lifetimes import Presence, Present, Scope, ScopeClosed, is_cancelled
from tidegate.log import Log
from tidegate.status_report import EngineStats
from tidegate.store import Db, SessionRow, Store, TurnRow, turns
from tidegate.values import Event, Failure, MessageAdded, Notice, Outcome, TurnEnded, TurnStarted

log = Log(__name__)


TASK_OF_NONE = "because the turn that gave it its task has ended"

TASKS_END_SECONDS = 10.0
"""How long the end of a turn waits for the tasks that it gave to let go; their tools are stopped by then or broken."""

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0
"""Seconds between two tries to store a turn's end while the store refuses (no room on the disk, most often)."""


class Handler(Protocol):
    async def __call__(self, journal: Journal, taken: TakenTurn) -> None: ...

    def ended(self, session: str, outcome: Outcome, version: int) -> None:
        """The turn has ended and its record is about to be released; `version` is the session's in the store now."""
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
        self.places = Slots(turns)
        self._turn_seconds = turn_seconds
        self._clock = clock
        self._live: dict[str, LiveTurn] = {}
        self._logs: WeakSet[TurnLog] = WeakSet()  # a log outlives its turn while somebody reads it
        self._ready: dict[Present, None] = {}
        self.parking = False
        """Whether turns rest at their next step instead of taking it."""
        self._closed = False
        self._counts: Counter[str] = Counter()  # lint: allow one entry for each way a turn can end
        self._seconds = 0.0
        presence.ledger.view("turn", lambda: held.by_turns(self._live.values()))
        presence.ledger.view("turn log", lambda: held.by_logs(self._logs))

    # -- what the sessions room asks of an engine --

    @property
    def waiting_total(self) -> int:
        """Turns of all sessions that wait."""
        return len(self._live) - self.places.started

    def waiting_of(self, principal: str) -> int:
        """Turns of one principal that wait."""
        return sum(live.started is None and live.principal == principal for live in self._live.values())

    @property
    def away(self) -> int:
        """Turns that wait for a person."""
        return self.places.asking

    @property
    def resting(self) -> bool:
        """Whether what does not end now goes on in the next process."""
        return self.parking or not self._scope.open

    def has_room(self, within: str = "") -> bool:
        """Whether a turn accepted now, perhaps on a task of another, could start at once."""
        parent = self._live.get(within)
        return self._is_open(parent) and self.places.open_to(parent)

    def takes_tasks(self, turn: str) -> bool:
        """Whether this turn may give tasks now: while it runs, also when nothing else is taken in any more."""
        return turn in self._live and not self.resting

    def _is_open(self, parent: LiveTurn | None) -> bool:
        return self._scope.open and not (self.parking if parent is not None else self._closed)

    def submit(
        self,
        session: str,
        turn: str,
        principal: str,
        *,
        begun: StartedTurn | None = None,
        resumed: bool = False,
        within: str | None = None,
    ) -> TurnLog:
        """Queue an accepted turn; `begun` is given when it was taken as it was accepted, `within` is the turn that gave
        it its task, with which it ends. Idempotent: a turn that is already live keeps its place and its log."""
        live = self._live.get(turn)
        if live is None:
            parent = self._live.get(within) if within is not None else None
            live = self._live[turn] = LiveTurn(turn, session, principal, begun=begun, resumed=resumed, parent=parent)
            self._logs.add(live.log)
            record = self._presence.obtain(session)
            record.waiting.append(live)
            if parent is not None:
                parent.children[turn] = live
            if within is not None and (parent is None or parent.over) and not self.resting:
                self.interrupt(turn, TASK_OF_NONE)
            else:
                self._pump(record)
        return live.log

    def log(self, turn: str) -> TurnLog | None:
        live = self._live.get(turn)
        return live.log if live is not None else None

    async def result(self, turn: str) -> Outcome | None:
        """The outcome, once it has ended here; None when it is not live (the store knows)."""
        live = self._live.get(turn)
        if live is None:
            return None
        await live.log.ended()
        last = live.log.events[-1] if live.log.events else None
        if isinstance(last, TurnEnded):
            return last.outcome
        if self._closed or not self._scope.open:
            raise Stopping("The gateway is stopping; this turn goes on after its next start.", retry_after=2)
        return None

    @property
    def turns(self) -> tuple[str, ...]:
        """Every turn that waits or runs here."""
        return tuple(self._live)

    def running(self, session: str) -> LiveTurn | None:
        record = self._presence.get(session)
        return record.turn if record is not None else None

    def waiting(self, session: str) -> int:
        record = self._presence.get(session)
        return len(record.waiting) if record is not None else 0

    def steer(self, turn: str) -> None:
        """Something was said into this turn and is durable."""
        live = self._live.get(turn)
        if live is not None:
            live.steer()

    def signal(self, turn: str) -> None:
        """Something that this turn may wait for has happened and is durable."""
        live = self._live.get(turn)
        if live is not None:
            live.signal()

    def tell(self, turn: str, event: Event) -> None:
        """Whoever follows this turn is told something that did not happen in it."""
        live = self._live.get(turn)
        if live is not None and not live.log.closed:
            live.tell(event)

    @contextlib.contextmanager
    def delegating(self, turn: str) -> Iterator[None]:
        """A call of this turn waits for a task that it gives: what works on it gets the turn's place."""
        live = self._live[turn]
        try:
            with self.places.delegates(live):
                self._fill(live)
                yield
        finally:
            self._fill(live)

    def interrupt(self, turn: str, by: str, *, abandoned: bool = False) -> bool:
        """Stop a turn that runs or waits. It ends as stopped, with what it had said."""
        live = self._live.get(turn)
        if live is None:
            return False
        if live.stopping is None:
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
        """These turns were refused in the store while they waited: tell whoever waits for them. One that has left the
        queue since finds out by itself."""
        for outcome in outcomes:
            live = self._live.get(outcome.turn)
            if live is not None and self._leave_queue(live):
                del self._live[live.turn]
                live.log.append(TurnEnded(outcome=outcome))

    async def idle(self, session: str) -> None:
        """Until no turn of this session runs or waits."""
        while (live := next((live for live in self._live.values() if live.session == session), None)) is not None:
            await self._until_gone(live)

    async def drain(self, within: float) -> None:
        """Take no more turns; let the running ones finish within the budget, else park them at their next step."""
        self._closed = True
        with anyio.move_on_after(within):
            await self._quiet()
        self.parking = True
        with anyio.move_on_after(min(1.0, within)):
            await self._quiet()
        for live in self._live.values():
            live.log.close()

    def stats(self) -> EngineStats:
        return EngineStats(
            running=self.places.running,
            waiting=self.waiting_total,
            asking=self.places.asking,
            delegating=self.places.delegating,
            answered=self._counts["answered"],
            failed=self._counts["failed"],
            stopped=self._counts["stopped"],
            seconds=self._seconds,
        )

    # -- running --

    async def _quiet(self) -> None:
        """Until no turn has a place. One that keeps it for its tasks counts until they can begin no more."""
        while (live := next(filter(self._is_busy, self._live.values()), None)) is not None:
            await self._until_gone(live)

    def _is_busy(self, live: LiveTurn) -> bool:
        return live.placed and not (self.parking and live.waits)

    async def _until_gone(self, live: LiveTurn) -> None:
        """Until the turn's end is told, and some time more if it could not be stored yet."""
        await live.log.ended()
        await anyio.sleep(FIRST_PAUSE if live.turn in self._live else 0)

    def _pump(self, record: Present) -> None:
        """Start the session's next turn if it may run now; otherwise remember that it waits for a place."""
        if record.turn is not None or not record.waiting or not self._is_open(record.waiting[0].parent):
            return
        if not self.places.open_to(record.waiting[0].parent):
            self._ready[record] = None
            return
        self._ready.pop(record, None)
        live = record.waiting.popleft()
        record.turn = live
        live.started = self._clock()
        self.places.begin(live)
        self._scope.start(self._run, record, live, name=f"turn {live.turn}")
        record.notify()

    def _leave_queue(self, live: LiveTurn) -> bool:
        """Give up the turn's place; False when it has none, because it runs."""
        record = self._presence.get(live.session)
        if record is None or live not in record.waiting:
            return False
        record.waiting.remove(live)
        if not record.waiting:
            self._ready.pop(record, None)
        return True

    async def _withdraw(self, live: LiveTurn) -> None:
        """End a turn that has left the queue without having run. Its session stays present until the end is told, and
        no longer."""
        with contextlib.ExitStack() as present:
            record = present.enter_context(self._presence.attend(live.session))

            def release(settled: Settlement) -> None:
                self._release(record, live, settled)
                present.close()

            try:
                await self._end_tasks(live)
                ending = await self._ending(live, Attempt())
                if ending is not None:
                    await self._commit(live, ending, release)
            finally:
                self._release(record, live, None)

    async def _run(self, record: Present, live: LiveTurn) -> None:
        try:
            await self._work(record, live)
        finally:
            self._release(record, live, None)

    def _release(self, record: Present, live: LiveTurn, settled: Settlement | None) -> None:
        """The one place where a turn's record is let go, once: as soon as its end is stored, so that whoever waits for
        it is told in the same round of the loop; at the latest when its task ends."""
        if live.released:
            return
        live.released = True
        self.places.end(live)
        self._live.pop(live.turn, None)
        try:
            if settled is not None:
                self._tell(live, settled)
        finally:
            live.log.close()
            self._presence.turn_ended(record, live)
        if record.waiting:
            self._ready[record] = None  # behind the sessions that waited for a place meanwhile
        self._fill(live.parent)

    def _fill(self, tree: LiveTurn | None) -> None:
        """Give the free places to the sessions that wait for one; before that, what the turns of a tree keep for their
        tasks, to those."""
        while tree is not None:
            for task in tuple(tree.children.values()):
                if task.started is None and (record := self._presence.get(task.session)) is not None:
                    self._pump(record)
            tree = tree.parent
        while self._ready and self.places.free and not self._closed:
            waiting = next(iter(self._ready))
            del self._ready[waiting]
            self._pump(waiting)

    @contextlib.contextmanager
    def _absent(self, live: LiveTurn) -> Iterator[None]:
        """A step of the turn waits for a person: others get its place, its resident may be unloaded, and its time does
        not count. When it comes back it does not wait for a place, it has waited enough; limits.questions bounds how
        many there are."""
        try:
            with self.places.asks(live):
                self._fill(live.parent)
                self._let_rest(live)
                yield
        finally:
            self._fill(live.parent)

    def _let_rest(self, asking: LiveTurn) -> None:
        """Nothing of this turn works now, nor of those that wait for it."""
        live: LiveTurn | None = asking
        while live is not None:
            record = self._presence.get(live.session)
            if live.asks and record is not None and record.turn is live:
                self._presence.turn_asks(record)
            live = live.parent

    def _tell(self, live: LiveTurn, settled: Settlement) -> None:
        outcome = settled.outcome
        self._counts[outcome.state] += 1
        if live.started is not None:
            self._seconds += self._clock() - live.started
            self._handler.ended(live.session, outcome, settled.version)
        if settled.spilled is not None:
            self.submit(live.session, settled.spilled, live.principal)
        if live.log.closed:
            return  # its readers were told that it could not be stored
        running = live.log.running_calls() if outcome.state != "answered" else frozenset()
        for row in settled.rows:
            live.log.append(MessageAdded(seq=row.seq or 0, message=slim(row.message)))
            if row.message.call_id in running:
                live.log.append(tool_ended(row.message))
        for text in outcome.notices:
            if text not in live.notices:
                live.log.append(Notice(text=text))
        live.log.append(TurnEnded(outcome=outcome))

    async def _work(self, record: Present, live: LiveTurn) -> None:
        """Take the turn, have it handled, settle it; or leave it for the next start."""
        work = Attempt()
        live.run()
        live.limit(self._turn_seconds)
        try:
            if live.stopping is None:
                await self._handle(live, work)
        except asyncio.CancelledError as error:
            if not live.leave():
                if is_cancelled():
                    await self._park(live, work.journal)
                    raise
                work.failure = describe(error)  # something that it waited for was cancelled, not the turn
                self._log_failure(live, work.failure, error)
        except Parked:
            await self._park(live, work.journal)
            return
        except Exception as error:
            if self._is_end_of_process(error) and not live.leave():
                await self._park(live, work.journal)
                return
            work.failure = describe(error)
            self._log_failure(live, work.failure, error)
        finally:
            live.pause()
            live.leave()
        if live.expired and work.journal is not None and not work.journal.has_answered:
            limit = f"limits.turn_seconds ({self._turn_seconds:g} s)"
            work.failure = describe(TurnFailed(f"The turn took longer than {limit}.", code="timeout"))
        await self._end_tasks(live)
        ending = await self._ending(live, work)
        if ending is not None:
            await self._commit(live, ending, lambda settled: self._release(record, live, settled))

    def _is_end_of_process(self, error: Exception) -> bool:
        """Whether a turn broke because nothing can be opened any more: that is no fault of its own."""
        return not self._scope.open and (isinstance(error, ScopeClosed) or is_cancelled())

    async def _end_tasks(self, live: LiveTurn) -> None:
        """What others work on for this turn ends with it, and before it."""
        if not live.children:
            return
        tasks = tuple(live.children.values())
        for task in tasks:
            self.interrupt(task.turn, TASK_OF_NONE)
        with anyio.move_on_after(TASKS_END_SECONDS) as patience:
            for task in tasks:
                await self._until_gone(task)
        if patience.cancelled_caught:
            log.warning("a task outlives the turn that gave it", session=live.session, turn=live.turn)

    async def _park(self, live: LiveTurn, journal: Journal | None) -> None:
        """An orderly stop is no fault of the turn's: it goes on at the next start, and no resume is spent. What the
        call cost that was under way is written down: it will be made again."""

        def write(db: Db) -> None:
            if turns.park(db, live.turn) and journal is not None:
                journal.bill_cut(db)

        if self._closed:
            with contextlib.suppress(StoreFailed):
                await self._store.write(write)

    def _log_failure(self, live: LiveTurn, failure: Failure, error: BaseException) -> None:
        """One line a failed turn, so that a wrong key or a broken model is seen by the operator too. What an endpoint
        said stays out of it: it may quote the conversation."""
        if failure.code == "internal":
            log.exception("a turn broke", session=live.session, turn=live.turn, told=failure.message)
        else:
            told = failure.message
            if isinstance(error, ModelFailed):
                told = error.brief
            elif isinstance(error, StoreFailed):
                told = error.message
            log.warning("a turn failed", session=live.session, turn=live.turn, code=failure.code, told=told)

    async def _handle(self, live: LiveTurn, work: Attempt) -> None:
        begun, live.begun = live.begun, None
        if begun is None:
            begun = await self._store.write(begin, live.turn, self._clock())
        work.taken = begun.taken
        work.journal = self._open_journal(live, begun)
        await self._handler(work.journal, begun.taken)

    def _open_journal(self, live: LiveTurn, begun: StartedTurn) -> Journal:
        if begun.taken.turn.usage.tokens:
            live.use(begun.taken.turn.usage)
        live.log.append(TurnStarted(turn=live.turn, resumed=live.resumed))
        for seq, message in begun.incoming:
            live.log.append(MessageAdded(seq=seq, message=slim(message)))
        return Journal(
            live,
            self._store,
            bill_to(begun.taken.turn, begun.taken.session),
            incoming=tuple(message for _, message in begun.incoming),
            recorded=begun.recorded,
            begun=begun.intents,
            parking=lambda: self.parking,
            away=lambda: self._absent(live),
            clock=self._clock,
        )

    async def _ending(self, live: LiveTurn, work: Attempt) -> TurnEnd | None:
        """How the turn ends. One that was not taken was stopped while it waited, or the store refused it."""
        taken = work.taken or (live.begun.taken if live.begun is not None else None)
        taken = taken or await self._store.read(peek, live.turn)
        if taken is None:
            log.warning("a turn's session was deleted under it", session=live.session, turn=live.turn)
            return None
        if work.journal is None:
            return ending_of(live, work, taken, await self._store.read(turns.tally, live.turn))
        return ending_of(live, work, taken, (live.used, work.journal.steps))

    async def _commit(self, live: LiveTurn, ending: TurnEnd, release: Callable[[Settlement], None]) -> None:
        """Stores the end and releases the turn. While the store refuses, whoever waits is told so at once, and the
        session stays with this turn until its end is stored: a later turn must not come before it."""
        pause = FIRST_PAUSE
        while True:
            try:
                await self._store.write_then(release, settle, ending, self._clock())
            except Conflict:
                ended = await self._store.read(turns.outcome, live.turn)
                if ended is not None:
                    release(Settlement(outcome=ended))
            except StoreFailed as error:
                if not live.log.closed:
                    log.error(
                        "a turn's end cannot be stored yet", session=live.session, turn=live.turn, error=str(error)
                    )
                    failed = Outcome(turn=ending.turn, session=ending.session, state="failed", error=describe(error))
                    live.log.append(TurnEnded(outcome=failed))
                await anyio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            return

    async def give_up(self, turn: TurnRow, session: SessionRow, failure: Failure) -> bool:
        """Settle a turn that will not be resumed; False when it has ended meanwhile."""

        def then(settled: Settlement) -> None:
            if settled.spilled is not None:
                self.submit(session.id, settled.spilled, session.principal)

        ending = given_up(turn, session, failure, await self._store.read(turns.tally, turn.id))
        try:
            await self._store.write_then(then, settle, ending, self._clock())
        except Conflict:
            return False
        return True
