"""The start of a turn: it leaves the queue, and its messages enter the transcript.

Guarantee: `start` returns the turn, its session, its settings and its journal as they are in the transaction that takes
the turn. If nothing else runs or waits in the session, the turn starts in the transaction that accepts its message.
"""

from collections.abc import Iterable, Sequence

import msgspec

from tidegate.errors import NotFound
from tidegate.store import (
    Db,
    IntentRow,
    MessageRow,
    ParentTurn,
    SessionRow,
    SettingRow,
    TurnRow,
    intents,
    messages,
    notes,
    sessions,
    settings,
    turns,
)
from tidegate.values import Call, Frozen, Message, OnDisconnect

NOTICE = f"{turns.INCOMING}notice"
"""The step name of the gateway's notice to the agent, which follows the user's messages."""


def is_incoming(row: MessageRow) -> bool:
    """Whether the row is one of the messages that the turn was started with."""
    return (row.step or "").startswith(turns.INCOMING)


class TakenTurn(Frozen, frozen=True):
    """A turn as its handler receives it: its rows at the moment it was taken."""

    turn: TurnRow
    session: SessionRow
    settings: tuple[SettingRow, ...]
    tools_changed: bool = False
    """Whether the frozen prefix was replaced because the caller tools have changed."""


class StartedTurn(Frozen, frozen=True):
    """A turn that is ready to run: its incoming messages with their sequence numbers, and the rows of an earlier
    attempt."""

    taken: TakenTurn
    incoming: tuple[tuple[int, Message], ...]
    recorded: tuple[MessageRow, ...] = ()
    intents: dict[str, IntentRow] = msgspec.field(default_factory=dict)
    """Intents of steps that began in an earlier attempt and left no row."""


def start(db: Db, turn: str, now: float) -> StartedTurn:
    """Take a turn from the queue, or one that an earlier process left unfinished."""
    changed = _take_caller_tools(db, turn, now)
    row = turns.take(db, turn, now)
    session = sessions.get(db, row.session)
    if session is None:
        raise NotFound("This conversation was deleted; send the message to a new one.")
    recorded = messages.journal(db, turn)
    current = tuple(settings.get_all(db, row.session, now))
    if all(is_incoming(each) and each.step != NOTICE for each in recorded):
        recorded += _append_notice(db, session, turn, current, now)
    return StartedTurn(
        taken=TakenTurn(turn=row, session=session, settings=current, tools_changed=changed),
        incoming=tuple((each.seq or 0, each.message) for each in recorded if is_incoming(each)),
        recorded=tuple(recorded),
        intents=intents.open_of(db, turn),
    )


def accept_and_start(
    db: Db,
    session: SessionRow,
    *,
    turn: str,
    channel: str,
    call: Call,
    on_disconnect: OnDisconnect,
    incoming: Sequence[Message],
    now: float,
    job: str = "",
    within: ParentTurn | None = None,
) -> StartedTurn:
    """Accept and take a turn in one transaction, for a session in which nothing else waits or runs. Its rows are
    written only once."""
    before = session
    session = freeze_caller_tools(db, session, call)
    row = turns.insert(
        db,
        id=turn,
        session=session.id,
        channel=channel,
        call=_frozen(call),
        on_disconnect=on_disconnect,
        now=now,
        job=job,
        running=True,
        within=within,
    )
    closed = _close_calls(db, before, incoming, now, turn)
    rows = [
        messages.append(db, session=session.id, turn=turn, step=f"{turns.INCOMING}{number}", message=message, now=now)
        for number, message in enumerate(incoming)
    ]
    current = tuple(settings.get_all(db, session.id, now))
    rows += _append_notice(db, session, turn, current, now)
    session = msgspec.structs.replace(session, version=session.version + len(rows) + closed, active=now)
    if closed:
        rows = messages.journal(db, turn)
    changed = session.caller_tools != before.caller_tools
    return StartedTurn(
        taken=TakenTurn(turn=row, session=session, settings=current, tools_changed=changed),
        incoming=tuple((each.seq or 0, each.message) for each in rows),
    )


def _append_notice(
    db: Db, session: SessionRow, turn: str, current: tuple[SettingRow, ...], now: float
) -> list[MessageRow]:
    """Commits notices, model switches and changed notes as one message of its own, after the user's messages."""
    texts = [messages.take_notices(db, session.id), settings.take_switches(db, session.id, current, now)]
    if session.memory_seen:
        texts.append(notes.take_changes(db, session, turn, now))
    text = "\n".join(filter(None, texts))
    if not text:
        return []
    notice = Message(role="user", aside=text)
    return [messages.append(db, session=session.id, turn=turn, step=NOTICE, message=notice, now=now)]


def peek(db: Db, turn: str) -> TakenTurn | None:
    """Read a turn without taking it."""
    row = turns.get(db, turn)
    session = sessions.get(db, row.session) if row is not None else None
    return TakenTurn(turn=row, session=session, settings=()) if row is not None and session is not None else None


def freeze_caller_tools(db: Db, session: SessionRow, call: Call) -> SessionRow:
    """Puts the caller tools of a starting turn into the session's prefix, unless the prefix has them already. A call
    without definitions, such as a retried one, uses the tools of the session."""
    tools = call.caller_tools
    if call.tools_digest == session.caller_tools or session.prefix is None:
        return session
    if tools is not None and not tools.definitions:
        return session
    prefix = sessions.prefix(db, session.prefix).with_caller_tools(tools)
    return sessions.set_caller_tools(db, session, prefix, call.tools_digest)


def _take_caller_tools(db: Db, turn: str, now: float) -> bool:
    """Does the same for a queued turn and closes the session's open calls. Returns whether the prefix changed."""
    row = turns.get(db, turn)
    session = sessions.get(db, row.session) if row is not None else None
    if row is None or session is None or row.state != "queued" or session.ended is not None:
        return False
    _close_calls(db, session, messages.waiting(db, turn), now, turn)
    if row.call.caller_tools is not None:
        turns.set_call(db, turn, _frozen(row.call))
    return freeze_caller_tools(db, session, row.call).caller_tools != session.caller_tools


def _close_calls(db: Db, session: SessionRow, incoming: Iterable[Message], now: float, turn: str) -> int:
    if not session.caller_tools:
        return 0
    answered = frozenset(message.call_id for message in incoming if message.role == "tool")
    return messages.close_calls(db, session.id, now, but=answered, turn=turn)


def _frozen(call: Call) -> Call:
    """The call without its tool definitions: those are in the session's prefix."""
    if call.caller_tools is None:
        return call
    return msgspec.structs.replace(call, caller_tools=msgspec.structs.replace(call.caller_tools, definitions=()))
