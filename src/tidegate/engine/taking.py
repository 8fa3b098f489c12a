"""Taking a turn: it leaves the queue, and its messages enter the transcript.

Guarantee: what `begin` gives is the turn, its session, its settings and its journal as they are in the transaction that
takes it. It may be that of the turn's acceptance (a session with nothing else to do begins at once) or one of its own.
"""

from tidegate.errors import StoreFailed
from tidegate.store import Db, MessageRow, SessionRow, Setting, TurnRow, intents, messages, sessions, settings, turns
from tidegate.values import Frozen, Message


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


def begin(db: Db, turn: str, now: float, incoming: tuple[Message, ...] | None = None) -> Begun:
    """`incoming` are the messages that the turn was accepted with, if they are at hand; they are read otherwise."""
    row = turns.take(db, turn, now)
    session = sessions.get(db, row.session)
    if session is None:
        raise StoreFailed(f"The session of turn {turn} is gone.")
    taken = Taken(turn=row, session=session, settings=tuple(settings.get_all(db, row.session, now)))
    if row.attempts == 1 and incoming is not None:
        return Begun(taken=taken, incoming=tuple(zip(messages.places(db, turn), incoming, strict=True)))
    recorded = messages.journal(db, turn)
    return Begun(
        taken=taken,
        incoming=tuple((each.seq or 0, each.message) for each in recorded if (each.step or "").startswith("in-")),
        recorded=tuple(recorded),
        lost=frozenset(intents.open_of(db, turn)),
    )


def peek(db: Db, turn: str) -> Taken | None:
    """The turn without taking it."""
    row = turns.get(db, turn)
    session = sessions.get(db, row.session) if row is not None else None
    return Taken(turn=row, session=session, settings=()) if row is not None and session is not None else None
