"""Taking a turn: it leaves the queue, and its messages enter the transcript.

Guarantee: what `begin` gives is the turn, its session, its settings and its journal as they are in the transaction that
takes it. A session with nothing else to do begins at once, in the transaction that accepts the message.
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
    notices,
    sessions,
    settings,
    switches,
    turns,
)
from tidegate.values import Call, Frozen, Message, OnDisconnect

NOTICE = f"{turns.INCOMING}notice"
"""The step of what the agent is told besides what was said."""


def is_incoming(row: MessageRow) -> bool:
    """Whether the turn was begun with it."""
    return (row.step or "").startswith(turns.INCOMING)


class TakenTurn(Frozen, frozen=True):
    """A turn as its handler gets it: the rows as they were when it was taken."""

    turn: TurnRow
    session: SessionRow
    settings: tuple[SettingRow, ...]
    tools_changed: bool = False
    """Whether the prefix was frozen anew with other caller tools."""


class StartedTurn(Frozen, frozen=True):
    """A turn that may run: what it was begun with, by place, and what an earlier attempt left."""

    taken: TakenTurn
    incoming: tuple[tuple[int, Message], ...]
    recorded: tuple[MessageRow, ...] = ()
    intents: dict[str, IntentRow] = msgspec.field(default_factory=dict)
    """Of the steps that began in an earlier attempt and left no row."""


def start(db: Db, turn: str, now: float) -> StartedTurn:
    """Take a turn that waited, or one that an earlier process left."""
    changed = _take_caller_tools(db, turn, now)
    row = turns.take(db, turn, now)
    session = sessions.get(db, row.session)
    if session is None:
        raise NotFound("This conversation was deleted; send the message to a new one.")
    recorded = messages.journal(db, turn)
    held = tuple(settings.get_all(db, row.session, now))
    if all(is_incoming(each) and each.step != NOTICE for each in recorded):
        recorded += _tell(db, session, turn, held, now)
    return StartedTurn(
        taken=TakenTurn(turn=row, session=session, settings=held, tools_changed=changed),
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
    """Accept and take in one, for a session in which nothing else waits or runs: its rows are written once."""
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
    placed = [
        messages.append(db, session=session.id, turn=turn, step=f"{turns.INCOMING}{number}", message=message, now=now)
        for number, message in enumerate(incoming)
    ]
    held = tuple(settings.get_all(db, session.id, now))
    placed += _tell(db, session, turn, held, now)
    session = msgspec.structs.replace(session, version=session.version + len(placed) + closed, active=now)
    if closed:
        placed = messages.journal(db, turn)
    changed = session.caller_tools != before.caller_tools
    return StartedTurn(
        taken=TakenTurn(turn=row, session=session, settings=held, tools_changed=changed),
        incoming=tuple((each.seq or 0, each.message) for each in placed),
    )


def _tell(db: Db, session: SessionRow, turn: str, held: tuple[SettingRow, ...], now: float) -> list[MessageRow]:
    """What happened meanwhile joins the turn as a message of its own, behind what was said."""
    texts = [notices.take(db, session.id), switches.take(db, session.id, held, now)]
    if session.memory_seen:
        texts.append(notes.tell(db, session, turn, now))
    text = "\n".join(filter(None, texts))
    if not text:
        return []
    told = Message(role="user", aside=text)
    return [messages.append(db, session=session.id, turn=turn, step=NOTICE, message=told, now=now)]


def peek(db: Db, turn: str) -> TakenTurn | None:
    """The turn without taking it."""
    row = turns.get(db, turn)
    session = sessions.get(db, row.session) if row is not None else None
    return TakenTurn(turn=row, session=session, settings=()) if row is not None and session is not None else None


def freeze_caller_tools(db: Db, session: SessionRow, call: Call) -> SessionRow:
    """Puts the caller tools of a turn that begins into its session's prefix, where these are not the ones in it. A call
    without their definitions, such as one that is tried again, takes those of the session."""
    given = call.caller_tools
    if call.tools_digest == session.caller_tools or session.prefix is None:
        return session
    if given is not None and not given.definitions:
        return session
    prefix = sessions.prefix(db, session.prefix).with_caller_tools(given)
    return sessions.set_caller_tools(db, session, prefix, call.tools_digest)


def _take_caller_tools(db: Db, turn: str, now: float) -> bool:
    """The same for a turn that waited, with what its session's open calls are owed; whether the prefix changed."""
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
    given = frozenset(message.call_id for message in incoming if message.role == "tool")
    return messages.close_calls(db, session.id, now, but=given, turn=turn)


def _frozen(call: Call) -> Call:
    """The call without the definitions of its tools: they are in the session's prefix."""
    if call.caller_tools is None:
        return call
    return msgspec.structs.replace(call, caller_tools=msgspec.structs.replace(call.caller_tools, definitions=()))
