"""What a person may change in a conversation: its settings, its title, its last turn, its frozen beginning.

Guarantee: each change is one transaction, made under the caller's principal, and is there after a restart. A change
that rebuilds what the model sees (undo, retry, reload) is refused in mid-turn, in the transaction itself, and drops the
resident through the one removal path as soon as it is committed, whether or not its caller is still there; a setting
applies from the next turn and rebuilds nothing by itself.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.errors import Conflict
from tidegate.sessions import titles
from tidegate.sessions.admission import NewSession
from tidegate.store import Db, SessionRow, audit, messages, sessions, settings, spooled, summaries, turns
from tidegate.turns.compaction.compaction import COOLDOWN, WANTED
from tidegate.values import Acceptance, new_id

MODEL = "model"
"""Key of the setting that /model makes."""

if TYPE_CHECKING:
    from tidegate.security import Principal
    from tidegate.sessions.service import Sessions


async def set_setting(
    service: "Sessions",
    session: str,
    principal: "Principal",
    key: str,
    value: Any,
    *,
    source: str,
    lasts: float | None = None,
) -> float | None:
    """A setting of the session: it survives unload and restart, and dies with the session, or after `lasts` seconds.
    When that is."""
    await _owned(service, session, principal)
    now = service.clock()
    expires = None if lasts is None else now + lasts

    def write(db: Db) -> None:
        settings.put(db, session, key, value, source, now, expires)
        _record(db, session, principal, key, value, now)

    await service.store.write(write)
    return expires


async def clear_setting(service: "Sessions", session: str, principal: "Principal", key: str) -> bool:
    row = await service.row(session, principal)
    if key == MODEL:
        return await _choose_model(service, row, principal, None, None)
    now = service.clock()

    def write(db: Db) -> bool:
        if cleared := settings.clear(db, session, key) > 0:
            _record(db, session, principal, key, None, now)
        return cleared

    return await service.store.write(write)


async def choose_model(
    service: "Sessions", session: str, principal: "Principal", name: str, *, lasts: float | None = None
) -> float | None:
    """The model of this session, to its end or for `lasts` seconds. The next model is told of it once. When it ends."""
    row = await _owned(service, session, principal)
    ends = None if lasts is None else service.clock() + lasts
    await _choose_model(service, row, principal, name, ends)
    return ends


async def _choose_model(
    service: "Sessions", row: SessionRow, principal: "Principal", name: str | None, ends: float | None
) -> bool:
    """None for the agent's own; whether anything was chosen before, or is now."""
    now = service.clock()
    agent = service.config.agents.get(row.agent)
    own = "" if agent is None else agent.model

    def write(db: Db) -> bool:
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

    return await service.store.write(write)


def _record(db: Db, session: str, principal: "Principal", key: str, value: Any, now: float) -> None:
    """In the audit log, but for what the gateway keeps for itself; `value` is None when it was cleared."""
    if not key.startswith(settings.OWN):
        of = None if value is None else msgspec.json.encode(value)
        outcome = "cleared" if value is None else "set"
        audit.append(db, "setting", outcome, now, subject=key, principal=principal.id, session=session, of=of)


async def ask_to_compact(service: "Sessions", session: str, principal: "Principal") -> None:
    """Have older messages summarised with the next turn, also where that was of no use lately."""
    await clear_setting(service, session, principal, COOLDOWN)
    await set_setting(service, session, principal, WANTED, True, source="command")


async def set_title(service: "Sessions", session: str, principal: "Principal", title: str) -> None:
    await _owned(service, session, principal)
    await service.store.write(sessions.set_title, session, titles.chosen(title))


async def undo(service: "Sessions", session: str, principal: "Principal") -> str:
    """Take the last turn out of what the model sees; its rows stay in the transcript, marked. The turn's id."""
    row = await _quiet(service, session, principal)

    def then(turn: str) -> str:
        service.presence.unload(session, reason="undo")
        return turn

    undone = await service.store.write_then(then, _undo, session, service.clock())
    if service.memory is not None:
        await service.memory.remind(row)
    return undone


async def retry(service: "Sessions", session: str, principal: "Principal") -> Acceptance:
    """Undo the last turn and work its messages again in a new one. It is taken in on the same terms as a message."""
    service.check_intake(principal.id)
    await _quiet(service, session, principal)
    turn, now = new_id("t"), service.clock()

    def write(db: Db) -> None:
        last = _undo_last(db, session, now)
        said = [found.message for found in messages.journal(db, last) if (found.step or "").startswith(turns.INCOMING)]
        old = turns.get(db, last)
        if old is None:
            raise Conflict("There is no turn to try again.")
        _close_calls(db, session, now, but=frozenset(message.call_id for message in said))
        turns.insert(
            db,
            id=turn,
            session=session,
            channel=old.channel,
            call=old.call,
            on_disconnect="continue",
            now=now,
            job=old.job,
        )
        for message in said:
            messages.accept(db, session=session, turn=turn, message=message, now=now)

    def then(_: None) -> Acceptance:
        # Nothing is awaited between the commit and this: the engine gets turns in the order of their commits.
        service.presence.unload(session, reason="retry")
        service.engine.submit(session, turn, principal.id)
        return Acceptance(turn=turn, session=session, how="started")

    return await service.store.write_then(then, write)


async def reload(service: "Sessions", session: str, principal: "Principal") -> bool:
    """Freeze the prompt and tools anew, as they are configured now; whether that changed anything."""
    row = await _quiet(service, session, principal)
    extra = await service.store.read(sessions.extra, row)
    frozen = await service.store.read(sessions.prefix, row.prefix) if row.prefix is not None else None
    own_tools = frozen is None or not frozen.caller_only
    fresh = await service.prompt_prefixes.of(row.agent, row.principal, extra, own_tools=own_tools)

    at = service.clock()

    def write(db: Db) -> bool:
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
            service.presence.unload(session, reason="reload")
        return changed

    return await service.store.write_then(then, write)


async def resume(service: "Sessions", session: str, principal: "Principal") -> tuple[str, bool]:
    """A live session is switched to. An ended one is never opened again: a new one begins with its transcript. The
    session's id, and whether it is new."""
    row = await service.row(session, principal)
    if row.ended is None:
        return session, False
    again = new_id("s")
    extra = await service.store.read(sessions.extra, row)
    fresh = await service.prompt_prefixes.of(row.agent, principal.id, extra)
    # The files first: what has a row has a file, and a file without one is swept.
    await service.spool.share(session, again)
    await service.store.write(_begin_with, row, again, principal.id, extra, fresh, service.clock())
    return again, True


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


async def _owned(service: "Sessions", session: str, principal: "Principal") -> SessionRow:
    row = await service.row(session, principal)
    if row.ended is not None:
        raise Conflict("This session has ended; /resume it into a new one.", code="session_ended")
    return row


async def _quiet(service: "Sessions", session: str, principal: "Principal") -> SessionRow:
    """Refuses early; what counts is `_check_idle` in the write."""
    row = await _owned(service, session, principal)
    if service.engine.running(session) is not None or service.engine.waiting(session):
        raise _mid_turn()
    return row


def _check_idle(db: Db, session: str) -> None:
    if not turns.is_idle(db, session):
        raise _mid_turn()


def _mid_turn() -> Conflict:
    return Conflict("A turn is running; /stop it first, or wait for its answer.", code="mid_turn")


def _undo_last(db: Db, session: str, now: float) -> str:
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


def _close_calls(db: Db, session: str, now: float, *, but: frozenset[str] = frozenset()) -> None:
    """Closes calls that an undone turn had answered, in a session that has no caller tools any more: the next turn
    looks for open calls only where there are some. The results belong to the turn of the calls and are undone with it.
    """
    row = sessions.get(db, session)
    if row is not None and not row.caller_tools:
        owner = messages.last_turn(db, session)
        messages.close_calls(db, session, now, but=but, turn=owner, step=messages.CLOSED)
