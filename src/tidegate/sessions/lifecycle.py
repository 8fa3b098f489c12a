"""Ending and deleting sessions, based on the store alone.

A session ends once, with a reason, whether or not it is in memory. Its running turn is stopped first, waiting turns are
refused with a notice, and its settings and approvals are deleted in the same transaction. Every end hook takes effect
exactly once, even across crashes, because its effect and its mark are committed together. An ended session is never
reopened.

Before a session is deleted, it is ended. The deletion is itself a pending hook: the rows are deleted together with the
last hook's effect, immediately if there is none, and later if a hook has failed. Slow hooks run in the background or on
a separate timer, so no caller waits for them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import anyio

from tidegate.engine import Engine
from tidegate.errors import HookPostponed
from tidegate.lifetimes import Presence, Scope, gather
from tidegate.log import Log
from tidegate.store import Db, SessionKind, SessionRow, Store, maintenance, open_turns, sessions

log = Log(__name__)

STOP_SECONDS = 10.0
"""Seconds to wait for the running turn to stop when its session ends. By then, its tools have stopped or been
cancelled."""

PREPARE_SECONDS = 30.0
"""Seconds that a hook may take to prepare. The caller that ends the session waits this long; after that, the timer can
try again."""

BATCH = 100
"""Number of expired sessions ended in one write. Such a write takes a few milliseconds, and turns can run between
writes."""

BATCHES = 200
"""Maximum number of batches in one run of the timer: enough even after months without a run."""

HOOKS_AT_ONCE = 8
"""Number of hooks that one run prepares concurrently. This way, a hook that hangs delays few others, and not all hooks
run at once after a start."""

SLOW_AT_ONCE = 4
"""Number of slow hooks that are prepared concurrently, both when sessions end and on the timer. Each of them may be
calling a model."""

SLOW_IN_A_RUN = 20
"""Number of slow hooks in one run of their timer. They take a few minutes at worst; the next run continues with the
rest."""

Write = Callable[[Db], Any]
EndHook = Callable[[SessionRow], Awaitable[Write | None]]
"""Prepares the effect of a session's end. A hook may be called twice, but the write that it returns is committed only
once."""


class SlowHook(Protocol):
    """An end hook that no caller waits for."""

    def applies(self, session: SessionRow) -> bool:
        """True if, according to the session's row, there is something to prepare. False for a session that is being
        deleted."""
        ...

    async def prepare(self, session: SessionRow) -> Write | None: ...

    def done(self, session: SessionRow) -> None:
        """Runs after the effect has been committed."""
        ...


class SessionEndings:
    def __init__(
        self,
        store: Store,
        presence: Presence,
        engine: Engine,
        hooks: Mapping[str, EndHook],
        clock: Callable[[], float],
        on_deleted: Callable[[str], Awaitable[None]],
        *,
        on_ended: Callable[[str], None],
        scope: Scope,
        slow: Mapping[str, SlowHook] | None = None,
    ) -> None:
        """`on_deleted` is called for each session whose rows have been deleted; if a crash prevents the call, the
        sweeps remove the files. `on_ended` is called for each session that will have no further turns. Slow hooks run
        in `scope`."""
        self._slow = slow or {}
        self._scope = scope
        self.prepare_seconds = PREPARE_SECONDS
        self.hooks_at_once = HOOKS_AT_ONCE
        # lint: allow at most SLOW_AT_ONCE after ends and SLOW_IN_A_RUN on the timer
        self._in_progress: set[str] = set()
        self._names = (*hooks, *self._slow)
        self._store = store
        self._presence = presence
        self._engine = engine
        self._hooks = hooks
        self._clock = clock
        self._on_deleted = on_deleted
        self._on_ended = on_ended

    @property
    def in_progress(self) -> int:
        """The number of ended sessions whose hooks are currently running."""
        return len(self._in_progress)

    async def end(self, session: str, reason: str) -> bool:
        """Ends a session. Returns True if this call ended it."""
        if not await self._store.write(_end, session, reason, self._names, self._clock()):
            return False
        await self._stop_turns(session, reason)
        await self.finish(session)
        if self._slow and len(self._in_progress) < SLOW_AT_ONCE and self._scope.open:
            # lint: allow a few, see above; the timer does the rest
            self._in_progress.add(session)
            self._scope.start(self._finish_in_background, session, name="slow end hooks of a session")
        return True

    async def delete(self, session: str) -> bool:
        """Deletes a session. If an end hook is still pending or the turn does not stop, returns False; the timer then
        deletes the session later."""
        await self._store.write(_end_to_delete, session, self._names, self._clock())
        # This applies even if another call has ended the session: that call may still be waiting for the turn.
        await self._stop_turns(session, "delete")
        await self.finish(session)
        owed = await self._store.read(sessions.owed_hooks, session)
        if owed:
            log.warning("a session will be deleted when its end hooks have run", session=session, owed=owed)
        return not owed

    async def finish(self, session: str | None = None) -> int:
        """Runs pending end hooks: those of one session when it has ended, or those of all sessions at startup and on
        the timer. Returns the number of hooks that took effect. Slow hooks that apply to the session are skipped."""
        run = _Run(self.hooks_at_once)
        if session is not None:
            owed = await self._store.read(sessions.owed_hooks, session)
            return sum(await gather([self._run(run, session, hook) for hook in owed]))
        done, last = 0, ("", "")
        for _ in range(BATCHES):
            found = await self._store.read(sessions.pending_hooks, BATCH, last)
            done += sum(await gather([self._run(run, owing, hook) for owing, hook in found]))
            if len(found) < BATCH:
                break
            last = found[-1]
        return done

    async def finish_slow(self, session: str | None = None) -> int:
        """Runs pending slow hooks that are not already in progress: those of one session or, on the timer, of several
        sessions."""
        run = _Run(SLOW_AT_ONCE)
        owed = await self._pending_slow(session)
        if session is not None:
            return sum(await gather([self._run(run, *owing, slowly=True) for owing in owed]))
        mine = [owing for owing in owed if owing[0] not in self._in_progress]
        self._in_progress.update(owing[0] for owing in mine)
        try:
            return sum(await gather([self._run(run, *owing, slowly=True) for owing in mine]))
        finally:
            self._in_progress.difference_update(owing[0] for owing in mine)

    async def _finish_in_background(self, session: str) -> None:
        try:
            await self.finish_slow(session)
        finally:
            self._in_progress.discard(session)

    async def _pending_slow(self, session: str | None) -> list[tuple[str, str]]:
        if session is not None:
            hooks = await self._store.read(sessions.owed_hooks, session)
            return [(session, hook) for hook in hooks if hook in self._slow]
        found: list[tuple[str, str]] = []
        last = ("", "")
        for _ in range(BATCHES):
            batch = await self._store.read(sessions.pending_hooks, BATCH, last)
            found += [owing for owing in batch if owing[1] in self._slow]
            if len(batch) < BATCH or len(found) >= SLOW_IN_A_RUN:
                break
            last = batch[-1]
        return found[:SLOW_IN_A_RUN]

    async def _run(self, run: "_Run", session: str, hook: str, *, slowly: bool = False) -> int:
        async with run.slots:
            if hook in run.hung:
                return 0
            row = await self._store.read(sessions.get, session)
            slow = self._slow.get(hook)
            prepare = self._hooks.get(hook)
            if slow is not None and row is not None and slow.applies(row):
                if not slowly:
                    return 0
                prepare = slow.prepare
            write: Write | None = None
            try:
                if row is not None and prepare is not None:
                    with anyio.move_on_after(self.prepare_seconds) as deadline:
                        write = await prepare(row)
                    if deadline.cancelled_caught:
                        run.hung.add(hook)
                        log.error("an end hook is hanging; it will be tried again", session=session, hook=hook)
                        return 0
            except HookPostponed:
                return 0
            except Exception:
                log.exception("an end hook could not be prepared; it will be tried again", session=session, hook=hook)
                return 0
            then = partial(_report_done, slow, row)
            effect, is_gone = await self._store.write_then(then, _take_effect, session, hook, write, self._clock())
            if is_gone:
                await self._on_deleted(session)
            return int(effect)

    async def expire(self, kind: SessionKind, idle: float | None) -> int:
        """Ends sessions that have been idle for too long. A session with a running or waiting turn is never ended, even
        if its message arrived after the lookup. `finish` runs the hooks. Returns the number of sessions ended."""
        if idle is None:
            return 0
        total, before, hooks = 0, self._clock() - idle, self._names
        for _ in range(BATCHES):
            found = await self._store.read(sessions.idle, kind=kind, before=before, limit=BATCH)
            ended = await self._store.write(_end_idle, found, kind == "ephemeral", before, hooks, self._clock())
            for session in ended:
                self._forget(session)  # these sessions had no open turn
            total += len(ended)
            if len(found) < BATCH:
                break
        return total

    async def purge(self, retention: float | None) -> int:
        """Deletes the transcripts of sessions whose retention period is over, and returns the number of these sessions.
        Each transcript is deleted in several writes, since it may be long."""
        if retention is None:
            return 0
        total, before = 0, self._clock() - retention
        for _ in range(BATCHES):
            found = await self._store.read(sessions.ended_before, before, BATCH)
            for session in found:
                total += await maintenance.delete_session(self._store, session)
                await self._on_deleted(session)
            if len(found) < BATCH:
                break
        return total

    async def _stop_turns(self, session: str, reason: str) -> None:
        """Stops an ended session's running turn, and removes the session from memory."""
        await self._engine.stop_session(session, f"because its session ended ({reason})", STOP_SECONDS)
        self._forget(session)

    def _forget(self, session: str) -> None:
        self._on_ended(session)
        self._presence.drop(session)


class _Run:
    """One run over the pending hooks. A hook that hung is not retried in the same run, so that the run finishes
    eventually. Concurrent hooks continue."""

    def __init__(self, at_once: int) -> None:
        self.slots = asyncio.Semaphore(at_once)
        self.hung: set[str] = set()  # lint: allow hooks are named in the code


def _report_done(hook: SlowHook | None, session: SessionRow | None, done: tuple[bool, bool]) -> tuple[bool, bool]:
    effect, _ = done
    if hook is not None and session is not None and effect:
        hook.done(session)
    return done


def _take_effect(db: Db, session: str, hook: str, write: Write | None, now: float) -> tuple[bool, bool]:
    """Commits the mark and the effect together, so that neither exists without the other. Also deletes a session that
    is to be deleted, if no other hook is pending and every turn is settled. Returns two flags: whether the hook took
    effect, and whether the session was deleted."""
    db.lock("session", session)
    effect = hook != sessions.DELETE_HOOK and sessions.finish_hook(db, session, hook, now)
    if effect and write is not None:
        write(db)
    is_due = sessions.owed_hooks(db, session) == [sessions.DELETE_HOOK] and open_turns.is_idle(db, session)
    return effect, is_due and sessions.delete(db, session)


def _end(db: Db, session: str, reason: str, hooks: Sequence[str], now: float) -> bool:
    """Ends the session and refuses its queued turns. Returns False if this call did not end the session."""
    return sessions.end(db, session, reason=reason, hooks=hooks, now=now) is not None


def _end_to_delete(db: Db, session: str, hooks: Sequence[str], now: float) -> None:
    """Like `_end`, but also accepts a session that has already ended."""
    _end(db, session, "delete", hooks, now)
    sessions.mark_for_deletion(db, session)


def _end_idle(
    db: Db, found: Sequence[str], ephemeral: bool, before: float, hooks: Sequence[str], now: float
) -> list[str]:
    """Ends the sessions in `found` that are still idle, and returns their ids."""
    ended = [
        session
        for session in found
        if sessions.end(db, session, reason="expiry", hooks=hooks, now=now, only_idle_since=before)
    ]
    if ephemeral:
        for session in ended:
            sessions.mark_for_deletion(db, session)
    return ended
