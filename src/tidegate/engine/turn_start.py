"""The start of a turn in the store, in one transaction.

`start` takes a turn from the queue and adds its messages to the transcript. It returns the turn, its session, its
settings and its journal as read in the same transaction. If no other turn is running or waiting in the session,
`accept` starts the turn in the transaction that accepts its message.
"""

from collections.abc import Iterable

import msgspec

from tidegate.engine.interface import PARENT_ENDED, NewTurn, StartedTurn, TakenTurn
from tidegate.store import (
    Db,
    MessageRow,
    SessionRow,
    SettingRow,
    StopRequest,
    TurnRow,
    intents,
    messages,
    notes,
    sessions,
    settings,
    turns,
)
from tidegate.values import Call, Message

NOTICE = f"{turns.INCOMING}notice"
"""The step name of the gateway's notice to the agent. The notice follows the user's messages."""


def is_incoming(row: MessageRow) -> bool:
    """True if the row is one of the messages with which the turn was started."""
    return (row.step or "").startswith(turns.INCOMING)


def start(db: Db, turn: str, now: float) -> StartedTurn | StopRequest | None:
    """Takes a turn that is queued or that an earlier attempt left unfinished. Returns None if the turn has ended, or
    the reason if the turn is to be stopped instead."""
    db.lock("turn", turn)
    before = turns.get(db, turn)
    session = sessions.get(db, before.session) if before is not None else None
    if before is None or session is None or before.state not in ("queued", "running"):
        return None
    if (request := _reason_to_stop(db, before, session)) is not None:
        return request
    changed = before.state == "queued" and _take_caller_tools(db, before, session, now)
    row = turns.take(db, turn, now)
    session = sessions.get(db, row.session)
    assert session is not None, "a turn is deleted with its session"
    recorded = messages.journal(db, turn)
    current = tuple(settings.get_all(db, row.session, now))
    if all(is_incoming(each) and each.step != NOTICE for each in recorded):
        recorded += _append_notice(db, session, turn, current, now)
    return StartedTurn(
        taken=TakenTurn(
            turn=row, session=session, settings=current, tools_changed=changed, interruptions=max(row.attempts - 1, 0)
        ),
        incoming=tuple((each.seq or 0, each.message) for each in recorded if is_incoming(each)),
        recorded=tuple(recorded),
        intents=intents.open_of(db, turn),
    )


def accept(db: Db, session: SessionRow, turn: NewTurn, now: float, *, start: bool) -> StartedTurn | None:
    """Stores an accepted turn and its messages. If `start` is true, the session has no other open turn, and the turn is
    taken in the same transaction, so its rows are written only once."""
    before = session
    call = turn.call
    if start:
        session = freeze_caller_tools(db, session, call)
        call = _frozen(call)
    row = turns.insert(
        db,
        id=turn.id,
        session=session.id,
        channel=turn.channel,
        call=call,
        on_disconnect=turn.on_disconnect,
        now=now,
        job=turn.job,
        running=start,
        within=turn.within,
    )
    if not start:
        for message in turn.messages:
            messages.accept(db, session=session.id, turn=turn.id, message=message, now=now)
        return None
    closed = _close_calls(db, before, turn.messages, now, turn.id)
    rows = [
        messages.append(
            db, session=session.id, turn=turn.id, step=f"{turns.INCOMING}{number}", message=message, now=now
        )
        for number, message in enumerate(turn.messages)
    ]
    current = tuple(settings.get_all(db, session.id, now))
    rows += _append_notice(db, session, turn.id, current, now)
    session = msgspec.structs.replace(session, version=session.version + len(rows) + closed, active=now)
    if closed:
        rows = messages.journal(db, turn.id)
    changed = session.caller_tools != before.caller_tools
    return StartedTurn(
        taken=TakenTurn(turn=row, session=session, settings=current, tools_changed=changed),
        incoming=tuple((each.seq or 0, each.message) for each in rows),
    )


def _append_notice(
    db: Db, session: SessionRow, turn: str, current: tuple[SettingRow, ...], now: float
) -> list[MessageRow]:
    """Commits notices, model switches and changed notes as one separate message after the user's messages."""
    texts = [messages.take_notices(db, session.id), settings.take_switches(db, session.id, current, now)]
    if session.memory_seen:
        texts.append(notes.take_changes(db, session, turn, now))
    text = "\n".join(filter(None, texts))
    if not text:
        return []
    notice = Message(role="user", aside=text)
    return [messages.append(db, session=session.id, turn=turn, step=NOTICE, message=notice, now=now)]


def freeze_caller_tools(db: Db, session: SessionRow, call: Call) -> SessionRow:
    """Puts a starting turn's caller tools into the session's prefix, unless they are already there. A call without tool
    definitions, such as a retry, uses the session's tools."""
    tools = call.caller_tools
    if call.tools_digest == session.caller_tools or session.prefix is None:
        return session
    if tools is not None and not tools.definitions:
        return session
    prefix = sessions.prefix(db, session.prefix).with_caller_tools(tools)
    return sessions.set_caller_tools(db, session, prefix, call.tools_digest)


def _reason_to_stop(db: Db, turn: TurnRow, session: SessionRow) -> StopRequest | None:
    """Returns the reason why an open turn must not be run any more."""
    if turn.stopping is not None:
        return turn.stopping
    if session.ended is not None:
        return StopRequest("because its session ended")
    parent = turns.get(db, turn.within) if turn.within is not None else None
    if turn.within is not None and (parent is None or parent.state != "running"):
        return StopRequest(PARENT_ENDED)
    return None


def _take_caller_tools(db: Db, row: TurnRow, session: SessionRow, now: float) -> bool:
    """Freezes a queued turn's caller tools and closes the session's open calls. Returns True if the prefix has
    changed."""
    _close_calls(db, session, messages.waiting(db, row.id), now, row.id)
    if row.call.caller_tools is not None:
        turns.set_call(db, row.id, _frozen(row.call))
    return freeze_caller_tools(db, session, row.call).caller_tools != session.caller_tools


def _close_calls(db: Db, session: SessionRow, incoming: Iterable[Message], now: float, turn: str) -> int:
    if not session.caller_tools:
        return 0
    answered = frozenset(message.call_id for message in incoming if message.role == "tool")
    return messages.close_calls(db, session.id, now, except_ids=answered, turn=turn)


def _frozen(call: Call) -> Call:
    """Returns the call without its tool definitions, which are in the session's prefix."""
    if call.caller_tools is None:
        return call
    return msgspec.structs.replace(call, caller_tools=msgspec.structs.replace(call.caller_tools, definitions=()))
