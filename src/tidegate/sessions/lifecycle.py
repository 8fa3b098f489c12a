"""End and delete: the two ways in which a session is over, both run from the store.

Guarantee: a session ends once, with a reason, whether or not anything of it is present; its running turn is stopped
first, what waited is refused with a notice, its settings and approvals go in the same transaction, and every end hook
takes effect exactly once, across a crash too, because its effect and its mark commit together. An ended session is
never opened again. Deleting ends first, and is itself owed from then on: the rows go with the last hook's effect, at
once if there is none, and later if a hook has failed. Nobody waits for a slow hook: it runs behind the end, or later on
a timer of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import anyio

from tidegate.engine import EmbeddedEngine
from tidegate.errors import HookPostponed
from tidegate.lifetimes import Presence, Scope, gather
from tidegate.log import Log
from tidegate.store import Db, SessionKind, SessionRow, Store, maintenance, sessions, turns
from tidegate.values import Outcome

log = Log(__name__)

STOP_SECONDS = 10.0
"""How long the end waits for a running turn to let go; its tools are stopped by then or their tasks are broken."""

PREPARE_SECONDS = 30.0
"""How long a hook may prepare: whoever asked for the end waits for it, and the timer can try again."""

BATCH = 100
"""Sessions that one write of expiry ends: some milliseconds, between which turns get in."""

BATCHES = 200
"""Batches in one run of the timer: all there is after months without one, and an end to it."""

HOOKS_AT_ONCE = 8
"""Hooks that one run prepares side by side: one that hangs holds up few others, and a start is no storm of them."""

SLOW_AT_ONCE = 4
"""Slow hooks that are prepared side by side, behind ends and on the timer: each may be asking a model."""

SLOW_IN_A_RUN = 20
"""Slow hooks in one run of their timer: a few minutes at worst; the next run goes on."""

Write = Callable[[Db], Any]
EndHook = Callable[[SessionRow], Awaitable[Write | None]]
"""Prepares what a session's end should leave behind. It may be prepared twice; what it returns is committed once."""


class SlowHook(Protocol):
    """An end hook for which nobody waits."""

    def applies(self, session: SessionRow) -> bool:
        """Whether there is anything to prepare, as far as its row tells; never for one that is being deleted."""
        ...

    async def prepare(self, session: SessionRow) -> Write | None: ...

    def done(self, session: SessionRow) -> None:
        """Its effect is committed."""
        ...


class SessionEndings:
    def __init__(
        self,
        store: Store,
        presence: Presence,
        engine: EmbeddedEngine,
        hooks: Mapping[str, EndHook],
        clock: Callable[[], float],
        gone: Callable[[str], Awaitable[None]],
        *,
        unkept: Callable[[str], None],
        scope: Scope,
        slow: Mapping[str, SlowHook] | None = None,
    ) -> None:
        """`gone` is told of each session whose rows were deleted; what a crash keeps from it, the sweeps find.
        `unkept` is told of each that has no next turn. Slow hooks run in `scope`."""
        self._slow = slow or {}
        self._scope = scope
        # house: allow at most SLOW_AT_ONCE behind ends and SLOW_IN_A_RUN on the timer
        self._under_way: set[str] = set()
        self._names = (*hooks, *self._slow)
        self._store = store
        self._presence = presence
        self._engine = engine
        self._hooks = hooks
        self._clock = clock
        self._gone = gone
        self._unkept = unkept

    async def end(self, session: str, reason: str) -> bool:
        """Whether this call ended it."""
        refused = await self._store.write(_end, session, reason, self._names, self._clock())
        if refused is None:
            return False
        await self._let_go(session, refused, reason)
        await self.finish(session)
        if self._slow and len(self._under_way) < SLOW_AT_ONCE and self._scope.open:
            # house: allow a few, see above; what is not begun here the timer does
            self._under_way.add(session)
            self._scope.start(self._finish_behind, session, name="what an ended session is owed")
        return True

    async def delete(self, session: str) -> bool:
        """Whether it is gone. Not when an end hook is still owed or its turn does not let go: then it goes when that is
        over, on the timer."""
        refused = await self._store.write(_end_to_delete, session, self._names, self._clock())
        # Also when somebody else has ended it: his call may still be waiting for its turn.
        await self._let_go(session, refused, "delete")
        await self.finish(session)
        owed = await self._store.read(sessions.owed_hooks, session)
        if owed:
            log.warning("a session is deleted as soon as nothing of it is owed", session=session, owed=owed)
        return not owed

    async def finish(self, session: str | None = None) -> int:
        """Do what is still owed to ended sessions: to one after its end, to all after the start and on the timer; how
        many hooks took effect. Of slow hooks only those that do not apply."""
        run = _Run(HOOKS_AT_ONCE)
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
        """The same for what nobody waits for: of one session, or of some on the timer, but for those that are being
        seen to."""
        run = _Run(SLOW_AT_ONCE)
        owed = await self._owed_slowly(session)
        if session is not None:
            return sum(await gather([self._run(run, *owing, slowly=True) for owing in owed]))
        mine = [owing for owing in owed if owing[0] not in self._under_way]
        self._under_way.update(owing[0] for owing in mine)
        try:
            return sum(await gather([self._run(run, *owing, slowly=True) for owing in mine]))
        finally:
            self._under_way.difference_update(owing[0] for owing in mine)

    async def _finish_behind(self, session: str) -> None:
        try:
            await self.finish_slow(session)
        finally:
            self._under_way.discard(session)

    async def _owed_slowly(self, session: str | None) -> list[tuple[str, str]]:
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
        async with run.room:
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
                    with anyio.move_on_after(PREPARE_SECONDS) as patience:
                        write = await prepare(row)
                    if patience.cancelled_caught:
                        run.hung.add(hook)
                        log.error("an end hook hangs; it is tried again", session=session, hook=hook)
                        return 0
            except HookPostponed:
                return 0
            except Exception:
                log.exception("an end hook could not be prepared; it is tried again", session=session, hook=hook)
                return 0
            then = partial(_tell, slow, row)
            effect, is_gone = await self._store.write_then(then, _take_effect, session, hook, write, self._clock())
            if is_gone:
                await self._gone(session)
            return int(effect)

    async def expire(self, kind: SessionKind, idle: float | None) -> int:
        """End what has been idle for too long; never what has a turn running or waiting, though its message came only
        after the look. What the ends owe is left to `finish`. How many."""
        if idle is None:
            return 0
        total, before, hooks = 0, self._clock() - idle, self._names
        for _ in range(BATCHES):
            found = await self._store.read(sessions.idle, kind=kind, before=before, limit=BATCH)
            ended = await self._store.write(_end_idle, found, kind == "ephemeral", before, hooks, self._clock())
            for session in ended:
                await self._let_go(session, (), "expiry")
            total += len(ended)
            if len(found) < BATCH:
                break
        return total

    async def purge(self, retention: float | None) -> int:
        """Delete the transcripts of sessions that ended longer ago than their retention; how many. Each goes in writes
        of its own, since a transcript may be long."""
        if retention is None:
            return 0
        total, before = 0, self._clock() - retention
        for _ in range(BATCHES):
            found = await self._store.read(sessions.ended_before, before, BATCH)
            for session in found:
                total += await maintenance.delete_session(self._store, session)
                await self._gone(session)
            if len(found) < BATCH:
                break
        return total

    async def _let_go(self, session: str, refused: Sequence[Outcome], reason: str) -> None:
        """Tell whoever waits in the ended session, stop what runs there, and forget what is present of it."""
        if self._presence.get(session) is not None:
            self._engine.refuse(refused)
            self._engine.interrupt_all(session, f"because its session ended ({reason})")
            with anyio.move_on_after(STOP_SECONDS):
                await self._engine.idle(session)
        self._unkept(session)
        self._presence.drop(session)


class _Run:
    """One run over what is owed. A hook that hung once is not asked again in the same run, so that the run ends; those
    that run beside it go on meanwhile."""

    def __init__(self, at_once: int) -> None:
        self.room = asyncio.Semaphore(at_once)
        self.hung: set[str] = set()  # house: allow hooks are named in the code


def _tell(hook: SlowHook | None, session: SessionRow | None, done: tuple[bool, bool]) -> tuple[bool, bool]:
    effect, _ = done
    if hook is not None and session is not None and effect:
        hook.done(session)
    return done


def _take_effect(db: Db, session: str, hook: str, write: Write | None, now: float) -> tuple[bool, bool]:
    """The mark and the effect in one transaction: neither is ever there without the other. So is the deletion, when
    nothing else is owed any more and no turn is still to be told how it ended. Whether the hook took effect, and
    whether the session was deleted."""
    effect = hook != sessions.DELETE_HOOK and sessions.finish_hook(db, session, hook, now)
    if effect and write is not None:
        write(db)
    is_due = sessions.owed_hooks(db, session) == [sessions.DELETE_HOOK] and turns.is_idle(db, session)
    return effect, is_due and sessions.delete(db, session)


def _end(db: Db, session: str, reason: str, hooks: Sequence[str], now: float) -> tuple[Outcome, ...] | None:
    """How the turns that waited in it have ended; None when this did not end it."""
    ended = sessions.end(db, session, reason=reason, hooks=hooks, now=now)
    if ended is None:
        return None
    outcomes = (turns.outcome(db, turn) for turn in ended.refused)
    return tuple(outcome for outcome in outcomes if outcome is not None)


def _end_to_delete(db: Db, session: str, hooks: Sequence[str], now: float) -> tuple[Outcome, ...]:
    """As `_end`; what had ended before is to be deleted too."""
    refused = _end(db, session, "delete", hooks, now)
    sessions.mark_for_deletion(db, session)
    return refused or ()


def _end_idle(
    db: Db, found: Sequence[str], ephemeral: bool, before: float, hooks: Sequence[str], now: float
) -> list[str]:
    """Which of those that were idle still are, and have ended now."""
    ended = [
        session
        for session in found
        if sessions.end(db, session, reason="expiry", hooks=hooks, now=now, only_idle_since=before)
    ]
    if ephemeral:
        for session in ended:
            sessions.mark_for_deletion(db, session)
    return ended
