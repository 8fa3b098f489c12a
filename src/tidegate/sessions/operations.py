"""Changes that a user makes to a conversation: its settings, title, last turn, and frozen prompt and tools.

Each change is one transaction under the caller's principal, and survives a restart. Changes that rebuild the model's
view (undo, retry, reload) are refused during a turn. Once committed, such a change unloads the resident, even if its
caller has disconnected. A setting applies from the next turn on and requires no rebuild.
"""

from typing import Any

import msgspec

from tidegate.engine import NewTurn
from tidegate.errors import Conflict, Refused
from tidegate.security import Principal
from tidegate.sessions import queries
from tidegate.sessions.admission import check_waiting
from tidegate.sessions.components import Components
from tidegate.sessions.prompt_prefix import NewSession
from tidegate.store import Db, SessionRow, audit, messages, open_turns, sessions, settings, spooled, summaries, turns
from tidegate.turns import COMPACTION_REQUESTED, SUMMARY_COOLDOWN
from tidegate.values import Acceptance, new_id

MODEL = "model"
"""The key of the setting changed by /model."""

LONGEST_TITLE = 200
"""Maximum length of a title, in characters. Titles are shown on one line in lists."""


class Operations:
    def __init__(self, components: Components) -> None:
        self._store = components.store
        self._config = components.config
        self._clock = components.clock
        self._presence = components.presence
        self._engine = components.engine
        self._intake = components.intake
        self._prompt_prefixes = components.prompt_prefixes
        self._spool = components.spool
        self._memory = components.memory

    async def set_setting(
        self,
        session: str,
        principal: Principal,
        key: str,
        value: Any,
        *,
        source: str,
        lasts: float | None = None,
    ) -> float | None:
        """Sets a setting of the session. The setting survives unloading and restarts, and expires when the session ends
        or after `lasts` seconds. Returns the time when it expires."""
        await self._owned(session, principal)
        now = self._clock()
        expires = None if lasts is None else now + lasts

        def write(db: Db) -> None:
            settings.put(db, session, key, value, source, now, expires)
            _record(db, session, principal, key, value, now)

        await self._store.write(write)
        return expires

    async def clear_setting(self, session: str, principal: Principal, key: str) -> bool:
        row = await self._row(session, principal)
        if key == MODEL:
            return await self._choose_model(row, principal, None, None)
        now = self._clock()

        def write(db: Db) -> bool:
            if cleared := settings.clear(db, session, key) > 0:
                _record(db, session, principal, key, None, now)
            return cleared

        return await self._store.write(write)

    async def choose_model(
        self, session: str, principal: Principal, name: str, *, lasts: float | None = None
    ) -> float | None:
        """Chooses this session's model, until the session ends or for `lasts` seconds. The new model is told about the
        change once. Returns the time when the choice expires."""
        row = await self._owned(session, principal)
        ends = None if lasts is None else self._clock() + lasts
        await self._choose_model(row, principal, name, ends)
        return ends

    async def _choose_model(self, row: SessionRow, principal: Principal, name: str | None, ends: float | None) -> bool:
        """Stores the choice; None means the agent's own model. Returns True if a choice was made or an earlier choice
        was cleared."""
        now = self._clock()
        agent = self._config.agents.get(row.agent)
        own = "" if agent is None else agent.model

        def write(db: Db) -> bool:
            db.lock("session", row.id)
            held = next((each.value for each in settings.get_all(db, row.id, now) if each.key == MODEL), None)
            if name is not None:
                settings.put(db, row.id, MODEL, name, "command", now, ends)
            else:
                settings.clear(db, row.id, MODEL)
            if row.ended is None:
                settings.note_switch(db, row.id, before=held or own, after=name or own, own=own, ends=ends, now=now)
            changed = name is not None or held is not None
            if changed:
                _record(db, row.id, principal, MODEL, name, now)
            return changed

        return await self._store.write(write)

    async def ask_to_compact(self, session: str, principal: Principal) -> None:
        """Requests that older messages be summarised with the next turn, even if a recent summary was of no use."""
        await self.clear_setting(session, principal, SUMMARY_COOLDOWN)
        await self.set_setting(session, principal, COMPACTION_REQUESTED, True, source="command")

    async def set_title(self, session: str, principal: Principal, title: str) -> None:
        await self._owned(session, principal)
        await self._store.write(sessions.set_title, session, _checked_title(title))

    async def undo(self, session: str, principal: Principal) -> str:
        """Removes the last turn from the model's view. The turn's rows stay in the transcript and are marked as undone.
        Returns the turn's id."""
        row = await self._idle_session(session, principal)

        def then(turn: str) -> str:
            self._presence.unload(session, reason="undo")
            return turn

        undone = await self._store.write_then(then, _undo, session, self._clock())
        if self._memory is not None:
            await self._memory.queue_current_notes(row)
        return undone

    async def retry(self, session: str, principal: Principal) -> Acceptance:
        """Undoes the last turn and runs its messages again in a new turn. The limits for new messages apply."""
        self._intake.check_open()
        row = await self._idle_session(session, principal)
        turn, now, can_start = new_id("t"), self._clock(), self._engine.can_start()

        def write(db: Db) -> None:
            last = _undo_last(db, session, now)
            incoming = [
                found.message for found in messages.journal(db, last) if (found.step or "").startswith(turns.INCOMING)
            ]
            old = turns.get(db, last)
            if old is None:
                raise Conflict("There is no turn to retry.")
            _close_calls(db, session, now, except_ids=frozenset(message.call_id for message in incoming))
            if not can_start:
                check_waiting(db, principal.id, self._config.limits)
            new = NewTurn(
                id=turn, channel=old.channel, call=old.call, on_disconnect="continue", messages=incoming, job=old.job
            )
            self._engine.accept(db, row, new, now, start=False)

        def then(_: None) -> Acceptance:
            # Nothing is awaited between the commit and this call, so the engine gets turns in commit order.
            self._presence.unload(session, reason="retry")
            self._engine.submit(session, turn)
            return Acceptance(turn=turn, session=session, how="started")

        return await self._store.write_then(then, write)

    async def reload(self, session: str, principal: Principal) -> bool:
        """Replaces the frozen prompt and tools with those configured now. Returns True if anything changed."""
        row = await self._idle_session(session, principal)
        extra = await self._store.read(sessions.extra, row)
        frozen = await self._store.read(sessions.prefix, row.prefix) if row.prefix is not None else None
        own_tools = frozen is None or not frozen.caller_only
        fresh = await self._prompt_prefixes.of(row.agent, row.principal, extra, own_tools=own_tools)

        at = self._clock()

        def write(db: Db) -> bool:
            db.lock("session", session)
            _check_idle(db, session)
            now = sessions.get(db, session)
            old = sessions.prefix(db, now.prefix) if now is not None and now.prefix is not None else fresh.prefix
            prefix = msgspec.structs.replace(fresh.prefix, caller_tools=old.caller_tools, caller_only=old.caller_only)
            changed = sessions.refreeze(db, session, prefix, fresh.encoder, fresh.memory_seen)
            if changed:
                of = sessions.identity(prefix)
                audit.append(db, "configuration", "reloaded", at, principal=principal.id, session=session, of=of)
            return changed

        def then(changed: bool) -> bool:
            if changed:
                self._presence.unload(session, reason="reload")
            return changed

        return await self._store.write_then(then, write)

    async def resume(self, session: str, principal: Principal) -> tuple[str, bool]:
        """Switches to another session. An ended session is never reopened; instead, a new session begins with its
        transcript. Returns the session's id, and True if the session is new."""
        row = await self._row(session, principal)
        if row.ended is None:
            return session, False
        again = new_id("s")
        extra = await self._store.read(sessions.extra, row)
        fresh = await self._prompt_prefixes.of(row.agent, principal.id, extra)
        # The files come first: every row must have a file, whereas a file without a row is removed later by the sweep.
        await self._spool.share(session, again)
        await self._store.write(_begin_with, row, again, principal.id, extra, fresh, self._clock())
        return again, True

    async def _owned(self, session: str, principal: Principal) -> SessionRow:
        row = await self._row(session, principal)
        if row.ended is not None:
            raise Conflict("This session has ended; use /resume to continue it in a new one.", code="session_ended")
        return row

    async def _idle_session(self, session: str, principal: Principal) -> SessionRow:
        """Returns the session if it is idle. The check here is only an early one; `_check_idle`, in the write
        transaction, is authoritative."""
        row = await self._owned(session, principal)
        if not await self._store.read(open_turns.is_idle, session):
            raise _mid_turn()
        return row

    async def _row(self, session: str, principal: Principal) -> SessionRow:
        return await queries.visible_session(self._store, session, principal)


def _record(db: Db, session: str, principal: Principal, key: str, value: Any, now: float) -> None:
    """Records a setting in the audit log, except for the gateway's internal ones. `value` is None if the setting was
    cleared."""
    if not key.startswith(settings.OWN):
        of = None if value is None else msgspec.json.encode(value)
        outcome = "cleared" if value is None else "set"
        audit.append(db, "setting", outcome, now, subject=key, principal=principal.id, session=session, of=of)


def _checked_title(text: str) -> str:
    """Returns the title as one line. A title that is too long is refused, never shortened."""
    title = " ".join(text.split())
    if len(title) > LONGEST_TITLE:
        raise Refused(
            f"The title has {len(title)} characters; the limit is {LONGEST_TITLE}. Choose a shorter one.",
            code="title_too_long",
            param="title",
        )
    return title


def _begin_with(db: Db, old: SessionRow, again: str, principal: str, extra: str, fresh: NewSession, now: float) -> None:
    sessions.create(
        db,
        id=again,
        principal=principal,
        channel=old.channel,
        name=None,
        kind="named",
        agent=old.agent,
        extra=extra,
        title=old.title,
        parent=old.id,
        prefix=fresh.prefix,
        encoder=fresh.encoder,
        memory_seen=fresh.memory_seen,
        now=now,
    )
    messages.copy(db, old.id, again, now)
    messages.close_calls(db, again, now)
    summaries.copy(db, old.id, again)
    spooled.copy(db, old.id, again)


def _check_idle(db: Db, session: str) -> None:
    if not open_turns.is_idle(db, session):
        raise _mid_turn()


def _mid_turn() -> Conflict:
    return Conflict("A turn is running; /stop it first, or wait for its answer.", code="mid_turn")


def _undo_last(db: Db, session: str, now: float) -> str:
    db.lock("session", session)
    _check_idle(db, session)
    last = messages.last_turn(db, session)
    if last is None:
        raise Conflict("There is nothing to undo in this session.", code="nothing_to_undo")
    first = messages.first_of(db, last)
    messages.undo(db, last, now)
    if first is not None:
        summaries.uncover(db, session, first)
    return last


def _undo(db: Db, session: str, now: float) -> str:
    last = _undo_last(db, session, now)
    _close_calls(db, session, now)
    return last


def _close_calls(db: Db, session: str, now: float, *, except_ids: frozenset[str] = frozenset()) -> None:
    """Closes the tool calls that an undone turn had answered, in a session that no longer has caller tools. Closing
    them is necessary because the next turn looks for open calls only in sessions that have caller tools. The results
    belong to the turn that made the calls and are undone with it."""
    row = sessions.get(db, session)
    if row is not None and not row.caller_tools:
        owner = messages.last_turn(db, session)
        messages.close_calls(db, session, now, except_ids=except_ids, turn=owner, step=messages.CLOSED)
