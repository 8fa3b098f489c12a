"""End and delete: the two ways in which a session is over, both run from the store.

Guarantee: a session ends once, with a reason, whether or not anything of it is present; its running turn is stopped
first, what waited is refused with a notice, its settings and approvals go in the same transaction, and every end hook
takes effect exactly once, across a crash too, because its effect and its mark commit together. An ended session is
never opened again. Deleting ends first.
"""

from collections.abc import Awaitable, Callable, Mapping
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

BATCH = 100
"""Sessions that one pass of expiry ends: a pass is short, and the next one goes on."""

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
            await self.finish()
        return ended

    async def delete(self, session: str) -> bool:
        await self.end(session, "delete")
        return bool(await self._store.write(sessions.delete, session))

    async def finish(self) -> int:
        """Run the end hooks that are still owed, after an end, at start and on the timer; how many took effect."""
        done = 0
        for session, hook in await self._store.read(endings.pending):
            row = await self._store.read(sessions.get, session)
            prepare = self._hooks.get(hook)
            try:
                write = await prepare(row) if row is not None and prepare is not None else None
            except Exception:
                log.exception("an end hook could not be prepared; it is tried again", session=session, hook=hook)
                continue
            done += await self._store.write(_take_effect, session, hook, write, self._clock())
        return done

    async def expire(self, kind: SessionKind, idle: float | None) -> int:
        """End what has been idle for too long; never what has a turn running or waiting."""
        if idle is None:
            return 0
        found = await self._store.read(
            lambda db: sessions.idle(db, kind=kind, before=self._clock() - idle, limit=BATCH)
        )
        for session in found:
            await (self.delete(session) if kind == "ephemeral" else self.end(session, "expiry"))
        return len(found)

    async def purge(self, retention: float | None) -> int:
        """Delete the transcripts of sessions that ended longer ago than their retention."""
        if retention is None:
            return 0
        found = await self._store.read(sessions.ended_before, self._clock() - retention, BATCH)
        for session in found:
            await self._store.write(sessions.delete, session)
        return len(found)

    async def _let_go(self, session: str, why: str) -> None:
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
    """The mark and the effect in one transaction: neither is ever there without the other."""
    if not endings.done(db, session, hook, now):
        return 0
    if write is not None:
        write(db)
    return 1
