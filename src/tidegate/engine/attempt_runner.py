"""One attempt to run a turn: takes the turn, runs its handler, and determines how the turn ends.

Guarantee: whatever happens to an attempt, it ends in one of three ways. The turn is to be settled; it is left to a
later attempt because this process is stopping; or it no longer belongs to this attempt because another one has taken or
settled it. The rows that it has taken show whether the attempt resumes a turn. The attempt owns its journal; the engine
owns its asyncio task.
"""

import asyncio
import contextlib
from collections.abc import Callable

from tidegate.agent import Parked
from tidegate.engine.interface import Handler, StartedTurn
from tidegate.engine.journal import Journal
from tidegate.engine.live_turn import NOTHING, LiveTurn
from tidegate.engine.run_queue import RunQueue
from tidegate.engine.turn_end import Attempt, billing_of
from tidegate.engine.turn_log import TurnLog
from tidegate.engine.turn_start import start
from tidegate.error_mapping import failure_of
from tidegate.errors import EarlierTurnOpen, ModelFailed, StoreFailed, Superseded, TurnFailed
from tidegate.lifetimes import Scope, ScopeClosed, is_cancelled
from tidegate.log import Log
from tidegate.store import Db, StopRequest, Store, turns
from tidegate.values import Failure, TurnStarted

log = Log(__name__)


class AttemptRunner:
    def __init__(
        self,
        scope: Scope,
        store: Store,
        queue: RunQueue,
        handler: Handler,
        *,
        turn_seconds: float,
        reread_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._scope = scope
        self._store = store
        self._queue = queue
        self._handler = handler
        self._turn_seconds = turn_seconds
        self._reread_seconds = reread_seconds
        self._clock = clock

    async def run(self, live: LiveTurn) -> Attempt | None:
        """Starts the turn and runs its handler. Returns None if the turn is left to another attempt or has ended.
        Raises EarlierTurnOpen if the turn cannot start yet."""
        attempt = Attempt()
        live.attach_task()
        live.start_timer(self._turn_seconds)
        try:
            if live.stopped_by is None:
                started: StartedTurn | StopRequest | None
                started, live.start = live.start, None  # the turn may have been taken when it was accepted
                if started is None:
                    started = await self._store.write(start, live.turn, self._clock())
                if started is None:
                    return None
                if isinstance(started, StopRequest):
                    live.stopped_by, live.abandoned = started.by, started.abandoned
                else:
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
            log_superseded(live)
            return None
        except EarlierTurnOpen:
            if not live.detach_task():
                raise
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

    def _is_end_of_process(self, error: Exception) -> bool:
        """True if a turn failed only because the process is stopping and nothing can be opened any more."""
        return not self._scope.open and (isinstance(error, ScopeClosed) or is_cancelled())

    async def _park(self, live: LiveTurn, attempt: Attempt) -> None:
        """Leaves the turn for the next process. A graceful stop does not count towards limits.resumes. The cost of the
        model call in progress is recorded, since the next process makes the call again."""
        taken = attempt.taken or (live.start.taken if live.start is not None else None)
        if taken is None or not self._queue.is_closed:
            return
        fence = taken.turn.fence

        def write(db: Db) -> None:
            if turns.park(db, live.turn, fence) and attempt.journal is not None:
                attempt.journal.bill_cut_calls(db)

        with contextlib.suppress(StoreFailed):
            await self._store.write(write)

    def _open_journal(self, live: LiveTurn, started: StartedTurn) -> Journal:
        turn = started.taken.turn
        if turn.usage != NOTHING:
            live.add_usage(turn.usage)
        resumed = turn.fence > 1
        if resumed:  # the earlier attempt may have delegated tasks, and messages may have been steered into it
            live.delegated = live.steered = True
        live.log.append(TurnStarted(turn=live.turn, resumed=resumed))
        for seq, message in started.incoming:
            live.log.append(TurnLog.row_event(seq, message))
        return Journal(
            live,
            self._store,
            billing_of(turn, started.taken.session),
            fence=turn.fence,
            incoming=tuple(message for _, message in started.incoming),
            recorded=started.recorded,
            open_intents=started.intents,
            parking=lambda: self._queue.is_parking,
            waiting_for_person=lambda: self._queue.waiting_for_person(live),
            clock=self._clock,
            reread_seconds=self._reread_seconds,
        )

    def _log_failure(self, live: LiveTurn, failure: Failure, error: BaseException) -> None:
        """Writes one log line per failed turn, so that the operator notices a wrong key or a broken model. The
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


def log_superseded(live: LiveTurn) -> None:
    log.info("another attempt has taken over a turn", session=live.session, turn=live.turn)
