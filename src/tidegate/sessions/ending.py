"""End and delete: the two ways in which a session is over, both run from the store.

Guarantee: a session ends once, with a reason, whether or not anything of it is present; its running turn is stopped
first, what waited is refused with a notice, its settings and approvals go in the same transaction, and every end hook
takes effect exactly once, across a crash too, because its effect and its mark commit together. An ended session is
never opened again. Deleting ends first, and is itself owed from then on: the rows go with the last hook's effect, at
once if there is none, and later if a hook has failed.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import structlog

from tidegate.engine import EmbeddedEngine
from tidegate.lifetimes import Presence
from tidegate.store import Db, SessionKind, SessionRow, Store, endings, sessions, turns
from tidegate.values import Failure, Outcome

log = structlog.stdlib.get_logger(__name__)

STOP_SECONDS = 10.0
"""How long the end waits for a running turn to let go; its tools are stopped by then or their tasks are broken."""

PREPARE_SECONDS = 30.0
"""How long a hook may prepare: whoever asked for the end waits for it, and the timer can try again."""

BATCH = 100
"""Sessions that one write of expiry ends: some milliseconds, between which turns get in."""

BATCHES = 200
"""Batches in one run of the timer: all there is after months without one, and an end to it."""

Write = Callable[[Db], Any]
EndHook = Callable[[SessionRow], Awaitable[Write | None]]
"""Prepares what a session's end should leave behind. It may be prepared twice; what it returns is committed once."""


class Endings:
    def __init__(
        self,
        store: Store,
        presence: Presence,
        engine: EmbeddedEngine,
        hooks: Mapping[str, EndHook],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._presence = presence
        self._engine = engine
        self._hooks = hooks
        self._clock = clock

    async def end(self, session: str, reason: str) -> bool:
        """Whether this call ended it."""
        ended: bool = await self._store.write(
            lambda db: sessions.end(db, session, reason=reason, hooks=tuple(self._hooks), now=self._clock())
        )
        if ended:
            await self._let_go(session, f"because its session ended ({reason})")
            await self.finish(session)
        return ended

    async def delete(self, session: str) -> bool:
        """Whether it is gone. Not when an end hook is still owed: then it goes when that is done, on the timer."""
        ended: bool = await self._store.write(_end_to_delete, session, tuple(self._hooks), self._clock())
        if ended:
            await self._let_go(session, "because its session ended (delete)")
        await self.finish(session)
        owed = await self._store.read(endings.owed, session)
        if owed:
            log.warning("a session is deleted as soon as its end hooks are done", session=session, owed=owed)
        return not owed

    async def finish(self, session: str | None = None) -> int:
        """Do what is still owed to ended sessions: to one after its end, to all at start and on the timer; how many
        hooks took effect."""
        if session is not None:
            return sum([await self._run(session, hook) for hook in await self._store.read(endings.owed, session)])
        done, last = 0, ("", "")
        for _ in range(BATCHES):
            found = await self._store.read(endings.pending, BATCH, last)
            for owing, hook in found:
                done += await self._run(owing, hook)
            if len(found) < BATCH:
                break
            last = found[-1]
        return done

    async def _run(self, session: str, hook: str) -> int:
        row = await self._store.read(sessions.get, session)
        prepare = self._hooks.get(hook)
        write: Write | None = None
        try:
            if row is not None and prepare is not None:
                with anyio.fail_after(PREPARE_SECONDS):
                    write = await prepare(row)
        except Exception:
            log.exception("an end hook could not be prepared; it is tried again", session=session, hook=hook)
            return 0
        return await self._store.write(_take_effect, session, hook, write, self._clock())

    async def expire(self, kind: SessionKind, idle: float | None) -> int:
        """End what has been idle for too long; never what has a turn running or waiting, though its message came only
        after the look. How many."""
        if idle is None:
            return 0
        total, before, hooks = 0, self._clock() - idle, tuple(self._hooks)
        for _ in range(BATCHES):
            found = await self._store.read(sessions.idle, kind=kind, before=before, limit=BATCH)
            ended = await self._store.write(_end_idle, found, kind == "ephemeral", before, hooks, self._clock())
            for session in ended:
                await self._let_go(session, "because its session ended (expiry)")
                if hooks or kind == "ephemeral":
                    await self.finish(session)
            total += len(ended)
            if len(found) < BATCH:
                break
        return total

    async def purge(self, retention: float | None) -> int:
        """Delete the transcripts of sessions that ended longer ago than their retention; how many. Each is a write of
        its own, since a transcript may be long."""
        if retention is None:
            return 0
        total, before = 0, self._clock() - retention
        for _ in range(BATCHES):
            found = await self._store.read(sessions.ended_before, before, BATCH)
            for session in found:
                total += await self._store.write(sessions.delete, session)
            if len(found) < BATCH:
                break
        return total

    async def _let_go(self, session: str, why: str) -> None:
        if self._presence.get(session) is None:
            return
        refused = {row.id: row for row in await self._store.read(turns.listing, session, BATCH)}

        def outcome_of(turn: str) -> Outcome:
            row = refused.get(turn)
            error = row.error if row is not None else None
            return Outcome(turn=turn, session=session, state="refused", error=error or _ENDED)

        self._engine.forget(session, outcome_of)
        running = self._engine.running(session)
        if running is not None:
            running.stop(why)
            with anyio.move_on_after(STOP_SECONDS):
                await self._engine.idle(session)
        self._presence.drop(session)


_ENDED = Failure(
    message="The session ended before this message was taken; send it to a new one.",
    type="turn_error",
    code="session_ended",
    status=409,
)


def _take_effect(db: Db, session: str, hook: str, write: Write | None, now: float) -> int:
    """The mark and the effect in one transaction: neither is ever there without the other. So is the deletion, when
    nothing else is owed any more."""
    effect = hook != endings.DELETE and endings.done(db, session, hook, now)
    if effect and write is not None:
        write(db)
    if endings.owed(db, session) == [endings.DELETE]:
        sessions.delete(db, session)
    return int(effect)


def _end_to_delete(db: Db, session: str, hooks: Sequence[str], now: float) -> bool:
    """Whether this ended it; what had ended before is to be deleted too."""
    ended = sessions.end(db, session, reason="delete", hooks=hooks, now=now)
    sessions.condemn(db, session)
    return ended


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
            sessions.condemn(db, session)
    return ended
