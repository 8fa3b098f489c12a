"""Taking a turn: it leaves the queue, and its messages enter the transcript.

Guarantee: what `begin` gives is the turn, its session, its settings and its journal as they are in the transaction that
takes it. A session with nothing else to do begins at once, in the transaction that accepts the message.
"""

from collections.abc import Sequence

import msgspec

from tidegate.errors import NotFound
from tidegate.store import (
    Db,
    MessageRow,
    SessionRow,
    Setting,
    TurnRow,
    Within,
    intents,
    messages,
    notes,
    notices,
    sessions,
    settings,
    turns,
)
from tidegate.values import Call, Frozen, Message, OnDisconnect

NOTICE = f"{turns.INCOMING}notice"
"""The step of what the agent is told besides what was said."""


def is_incoming(row: MessageRow) -> bool:
    """Whether the turn was begun with it."""
    return (row.step or "").startswith(turns.INCOMING)


class Taken(Frozen, frozen=True):
    """A turn as its handler gets it: the rows as they were when it was taken."""

    turn: TurnRow
    session: SessionRow
    settings: tuple[Setting, ...]


class Begun(Frozen, frozen=True):
    """A turn that may run: what it was begun with, by place, and what an earlier attempt left."""

    taken: Taken
    incoming: tuple[tuple[int, Message], ...]
    recorded: tuple[MessageRow, ...] = ()
    lost: frozenset[str] = frozenset()
    """Steps that had begun and left no row."""


def begin(db: Db, turn: str, now: float) -> Begun:
    """Take a turn that waited, or one that an earlier process left."""
    row = turns.take(db, turn, now)
    session = sessions.get(db, row.session)
    if session is None:
        raise NotFound("This conversation was deleted; send the message to a new one.")
    recorded = messages.journal(db, turn)
    if all(is_incoming(each) and each.step != NOTICE for each in recorded):
        recorded += _tell(db, session, turn, now)
    return Begun(
        taken=Taken(turn=row, session=session, settings=tuple(settings.get_all(db, row.session, now))),
        incoming=tuple((each.seq or 0, each.message) for each in recorded if is_incoming(each)),
        recorded=tuple(recorded),
        lost=frozenset(intents.open_of(db, turn)),
    )


def begin_at_once(
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
    within: Within | None = None,
) -> Begun:
    """Accept and take in one, for a session in which nothing else waits or runs: its rows are written once."""
    row = turns.insert(
        db,
        id=turn,
        session=session.id,
        channel=channel,
        call=call,
        on_disconnect=on_disconnect,
        now=now,
        job=job,
        running=True,
        within=within,
    )
    placed = [
        messages.append(db, session=session.id, turn=turn, step=f"{turns.INCOMING}{number}", message=message, now=now)
        for number, message in enumerate(incoming)
    ]
    placed += _tell(db, session, turn, now)
    session = msgspec.structs.replace(session, version=session.version + len(placed), active=now)
    return Begun(
        taken=Taken(turn=row, session=session, settings=tuple(settings.get_all(db, session.id, now))),
        incoming=tuple((each.seq or 0, each.message) for each in placed),
    )


def _tell(db: Db, session: SessionRow, turn: str, now: float) -> list[MessageRow]:
    """What happened meanwhile joins the turn as a message of its own, behind what was said."""
    text = notices.take(db, session.id)
    if session.memory_seen and (changed := notes.tell(db, session, turn, now)):
        text = f"{text}\n{changed}" if text else changed
    if not text:
        return []
    told = Message(role="user", aside=text)
    return [messages.append(db, session=session.id, turn=turn, step=NOTICE, message=told, now=now)]


def peek(db: Db, turn: str) -> Taken | None:
    """The turn without taking it."""
    row = turns.get(db, turn)
    session = sessions.get(db, row.session) if row is not None else None
    return Taken(turn=row, session=session, settings=()) if row is not None and session is not None else None
