"""Messages: the transcript, append-only, and what waits to enter it.

An accepted message has one row for ever and at most one place (`seq`) in its session; places only grow; a named step of
a turn is committed at most once. An ended session gets only the last rows of the turn that ran in it, and then what had
been accepted before the end (`close_inbox`). `version` of the session rises with every change here, so that whoever
holds a copy can tell whether it is stale.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import apsw
import msgspec

from tidegate.errors import Conflict, NotFound
from tidegate.store.rows import Db, MessageRow, decode_message, pack, unpack, unsqueeze
from tidegate.store.tables.turns import INCOMING, is_idle, place_waiting, refusal
from tidegate.values import Message, Role, ToolCall

_COLUMNS = "id, session, turn, seq, step, at, undone, body, packed"
_LAST = 2**62
"""A place after every row."""
NO_RESULT = "No result: the caller did not return one."
"""The result of a call that its caller left open."""
CLOSING, CLOSED = f"{INCOMING}call-", "closed-"
"""How the steps are named that give an open call such a result: in the turn that comes next, or in the call's own."""
UNANSWERED = "unanswered-"
"""How the steps are named that `close_inbox` places."""
ENDED_FIRST = "This message was not answered: the conversation ended first."
"""What a model is told of such a message, when a later conversation begins with this transcript."""
PAGE_BYTES = 2 * 1024 * 1024
"""Of messages in one page, if nothing else is asked for: hundreds of ordinary ones."""


def _row(row: Any) -> MessageRow:
    id, session, turn, seq, step, at, undone, body, packed = row
    return MessageRow(id, session, turn, seq, step, at, undone, unpack(body, packed))


def accept(db: Db, *, session: str, turn: str, message: Message, now: float) -> int:
    """Stores a message for an open turn, without a place yet; its row id."""
    body, packed = pack(message)
    id = db.execute(
        "INSERT INTO messages(session, turn, role, body, packed, at) SELECT session, turns.id, ?, ?, ?, ?"
        " FROM turns JOIN sessions ON sessions.id = turns.session"
        " WHERE turns.id = ? AND session = ? AND state IN ('queued', 'running') AND ended IS NULL RETURNING id",
        (message.role, body, packed, now, turn, session),
    ).get
    if id is None:
        raise _refusal(db, session)
    return int(id)


def append(
    db: Db,
    *,
    session: str,
    turn: str | None,
    step: str | None,
    message: Message,
    now: float,
    settling: bool = False,
) -> MessageRow:
    """Adds a row at the end of the transcript. Conflict when that step of the turn is committed already.

    `settling` is for the last rows of a turn whose session ended while it ran: it must still come to a balanced end.
    """
    body, packed = pack(message)
    _advance(db, session, now if message.role == "user" else None, even_ended=settling)
    try:
        id, seq = db.execute(
            "INSERT INTO messages(session, turn, seq, step, role, body, packed, at)"
            " VALUES(?1, ?2, (SELECT coalesce(max(seq), 0) + 1 FROM messages WHERE session = ?1), ?3, ?4, ?5, ?6, ?7)"
            " RETURNING id, seq",
            (session, turn, step, message.role, body, packed, now),
        ).get
    except apsw.ConstraintError:
        raise Conflict(f"Step {step} of this turn is committed already.", code="step_committed") from None
    return MessageRow(id, session, turn, seq, step, now, None, message)


def steered(db: Db, turn: str, prefix: str, now: float) -> list[MessageRow]:
    """What was accepted for a running turn since: gets its places and the names <prefix>0, … and is returned."""
    session = db.execute("SELECT session FROM messages WHERE turn = ? AND seq IS NULL LIMIT 1", (turn,)).get
    if session is None:
        return []
    _advance(db, session, now)
    ids = place_waiting(db, session, turn, prefix)
    return [_row(db.execute(f"SELECT {_COLUMNS} FROM messages WHERE id = ?", (id,)).get) for id in ids]


def close_inbox(db: Db, session: str) -> list[MessageRow]:
    """What was accepted before the session ended and will not be answered (what waited in its queue, and what was
    steered too late) enters the transcript in the order of its acceptance, marked as unanswered. Nothing does while a
    turn still runs there, whose rows come first, nor what was withdrawn by its sender."""
    if not is_idle(db, session):
        return []
    waiting = db.execute(
        f"SELECT {', '.join(f'messages.{column}' for column in _COLUMNS.split(', '))} FROM messages"
        " JOIN turns ON turns.id = messages.turn WHERE messages.session = ? AND seq IS NULL"
        " AND (turns.state = 'refused' OR turns.started IS NOT NULL) ORDER BY messages.id",
        (session,),
    )
    found = [_row(row) for row in waiting.fetchall()]
    if found:
        given = frozenset(row.message.call_id for row in found)
        close_calls(db, session, found[0].at, but=given, settling=True)
        _advance(db, session, None, even_ended=True)
    placed: list[MessageRow] = []
    for number, row in enumerate(found):
        aside = "\n".join(filter(None, (row.message.aside, ENDED_FIRST)))
        message = msgspec.structs.replace(row.message, aside=aside, unanswered=True)
        step = f"{UNANSWERED}{number}"
        seq = db.execute(
            "UPDATE messages SET body = ?, packed = ?, step = ?,"
            " seq = (SELECT coalesce(max(seq), 0) + 1 FROM messages WHERE session = ?) WHERE id = ? RETURNING seq",
            (*pack(message), step, session, row.id),
        ).get
        placed.append(msgspec.structs.replace(row, seq=seq, step=step, message=message))
    return placed


def untaken(db: Db, turn: str) -> int:
    """How many accepted messages of the turn have no place yet."""
    return int(db.execute("SELECT count(*) FROM messages WHERE turn = ? AND seq IS NULL", (turn,)).get)


def waiting(db: Db, turn: str) -> list[Message]:
    """Accepted messages of the turn that have no place yet, in order."""
    rows = db.execute("SELECT body, packed FROM messages WHERE turn = ? AND seq IS NULL ORDER BY id", (turn,))
    return [unpack(body, packed) for body, packed in rows]


def move(db: Db, from_turn: str, to_turn: str) -> int:
    """Messages that came too late for a turn become those of a queued turn of the same session; how many."""
    if db.execute("SELECT 1 FROM messages WHERE turn = ? AND seq IS NULL LIMIT 1", (from_turn,)).get is None:
        return 0
    open_target = db.execute(
        "SELECT 1 FROM turns AS old JOIN turns AS new ON new.session = old.session"
        " WHERE old.id = ? AND new.id = ? AND new.state = 'queued'",
        (from_turn, to_turn),
    ).get
    if open_target is None:
        raise Conflict("Messages move only to a queued turn of the same session.")
    db.execute("UPDATE messages SET turn = ? WHERE turn = ? AND seq IS NULL", (to_turn, from_turn))
    return db.changes()


def journal(db: Db, turn: str) -> list[MessageRow]:
    """The committed steps of a turn, in order."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM messages WHERE turn = ? AND step IS NOT NULL ORDER BY seq", (turn,))
    return [_row(row) for row in rows]


def history(db: Db, session: str, before_turn: str | None = None) -> list[Message]:
    """What was said in the session: in order, without what was undone and without the rows of `before_turn`."""
    return [message for _, message in placed(db, session, before_turn=before_turn)]


def placed(db: Db, session: str, *, after: int = 0, before_turn: str | None = None) -> list[tuple[int, Message]]:
    """As `history`, with the places, of what follows place `after`."""
    rows = db.execute(
        "SELECT seq, body, packed FROM messages WHERE session = ? AND seq > ? AND undone IS NULL"
        " AND (turn IS NULL OR turn IS NOT ?) ORDER BY seq",
        (session, after, before_turn),
    )
    return [(seq, unpack(body, packed) if packed else decode_message(body)) for seq, body, packed in rows]


def is_shown(db: Db, session: str, place: int) -> bool:
    """Whether a message stands there that was not undone."""
    found = db.execute("SELECT 1 FROM messages WHERE session = ? AND seq = ? AND undone IS NULL", (session, place)).get
    return found is not None


def said_by_people(db: Db, session: str, most: int) -> int:
    """How many messages people have sent in this very conversation and not taken back, counted up to `most`: what one
    begins with that goes on after an end belongs to no turn, and what the gateway tells has no text."""
    rows = db.execute(
        "SELECT body, packed FROM messages WHERE session = ? AND seq IS NOT NULL AND role = 'user' AND undone IS NULL"
        " AND turn IS NOT NULL ORDER BY seq",
        (session,),
    )
    return sum(1 for _ in islice((1 for row in rows if unpack(*row).text.strip()), most))


def open_calls(db: Db, session: str) -> tuple[ToolCall, ...]:
    """Calls at the end of what a model is shown that have no result: the caller runs those tools."""
    rows = db.execute(
        "SELECT role, body, packed FROM messages WHERE session = ? AND seq IS NOT NULL AND undone IS NULL"
        " ORDER BY seq DESC",
        (session,),
    )
    answered: set[str] = set()
    for role, body, packed in rows:
        message = unpack(body, packed)
        if role != "tool":
            return tuple(call for call in message.calls if call.id not in answered)
        answered.add(message.call_id)
    return ()


def close_calls(
    db: Db,
    session: str,
    now: float,
    *,
    but: frozenset[str] = frozenset(),
    turn: str | None = None,
    step: str = CLOSING,
    settling: bool = False,
) -> int:
    """Gives the session's open calls a result that says there is none, except those that are answered now; how many.
    The results are steps of `turn`, named <step>0, …, so that they are undone with it; without one, of no turn."""
    left = [call for call in open_calls(db, session) if call.id not in but]
    for place, call in enumerate(left):
        message = Message(role="tool", call_id=call.id, name=call.name, text=NO_RESULT, failed=True)
        name = None if turn is None else f"{step}{place}"
        append(db, session=session, turn=turn, step=name, message=message, now=now, settling=settling)
    return len(left)


def first_of(db: Db, turn: str) -> int | None:
    """The first place of a turn in the transcript."""
    place: int | None = db.execute("SELECT min(seq) FROM messages WHERE turn = ? AND step IS NOT NULL", (turn,)).get
    return place


def page(
    db: Db,
    session: str,
    *,
    after: int = 0,
    limit: int = 200,
    most_bytes: int = PAGE_BYTES,
    undone: bool = False,
) -> list[MessageRow]:
    """Rows of the transcript that follow place `after`; undone ones only if asked for. It ends before the message that
    would make it larger than `most_bytes`; one that is larger by itself comes alone, and whole."""
    hidden = "" if undone else "AND undone IS NULL"
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM messages WHERE session = ? AND seq > ? {hidden} ORDER BY seq LIMIT ?",
        (session, after, limit),
    )
    return _within(rows, most_bytes)


def last_turn(db: Db, session: str) -> str | None:
    """The turn that the last row shown to a model belongs to."""
    turn: str | None = db.execute(
        "SELECT turn FROM messages WHERE session = ? AND seq IS NOT NULL AND undone IS NULL AND turn IS NOT NULL"
        " ORDER BY seq DESC LIMIT 1",
        (session,),
    ).get
    return turn


def copy(db: Db, source: str, target: str, now: float) -> int:
    """What a model was shown of `source` becomes the beginning of the empty session `target`; how many rows. They
    belong to no turn: nothing there can be undone or resumed."""
    db.execute(
        "INSERT INTO messages(session, seq, role, body, packed, at) SELECT ?2, row_number() OVER (ORDER BY seq), role,"
        " body, packed, ?3 FROM messages WHERE session = ?1 AND seq IS NOT NULL AND undone IS NULL",
        (source, target, now),
    )
    return db.changes()


def newest(
    db: Db,
    session: str,
    *,
    before: int | None = None,
    limit: int = 200,
    most_bytes: int = PAGE_BYTES,
    role: Role | None = None,
) -> list[MessageRow]:
    """The last rows of the transcript, in order, before place `before` if one is given, of that role alone if one is;
    without what was undone. Bounded as `page` is, from the end."""
    only = "" if role is None else "AND role = ?4"
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM messages WHERE session = ?1 AND seq < ?2 AND undone IS NULL {only}"
        " ORDER BY seq DESC LIMIT ?3",
        (session, _LAST if before is None else before, limit, *(() if role is None else (role,))),
    )
    return _within(rows, most_bytes)[::-1]


def is_any(db: Db, session: str, *, after: int = 0, before: int | None = None) -> bool:
    """Whether the transcript has rows between these places, besides what was undone."""
    found = db.execute(
        "SELECT 1 FROM messages WHERE session = ? AND seq > ? AND seq < ? AND undone IS NULL LIMIT 1",
        (session, after, _LAST if before is None else before),
    ).get
    return found is not None


def _within(rows: Iterable[Any], most_bytes: int) -> list[MessageRow]:
    """The first of the rows that fit: their messages are unpacked one at a time, and no more of them than that."""
    found: list[MessageRow] = []
    size = 0
    for id, session, turn, seq, step, at, undone, body, packed in rows:
        plain = unsqueeze(body, packed)
        size += len(plain)
        if found and size > most_bytes:
            break
        found.append(MessageRow(id, session, turn, seq, step, at, undone, decode_message(plain)))
    return found


def undo(db: Db, turn: str, now: float) -> int:
    """Takes a turn's rows out of what a model is shown; they stay in the transcript, marked. How many."""
    session = db.execute("SELECT session FROM turns WHERE id = ?", (turn,)).get
    if session is None:
        raise NotFound("There is no such turn.")
    _advance(db, session, now)
    db.execute("UPDATE messages SET undone = ? WHERE turn = ? AND step IS NOT NULL AND undone IS NULL", (now, turn))
    return db.changes()


def _advance(db: Db, session: str, now: float | None, *, even_ended: bool = False) -> None:
    """The session has changed. What a person says is activity too (`now`); what a model or tool says is not, which
    spares its commits the pages of two indexes."""
    activity = "" if now is None else ", active = max(active, ?3)"
    live = db.execute(
        f"UPDATE sessions SET version = version + 1{activity} WHERE id = ?1 AND (ended IS NULL OR ?2) RETURNING 1",
        (session, even_ended) if now is None else (session, even_ended, now),
    ).get
    if live is None:
        raise refusal(db, session)


def _refusal(db: Db, session: str) -> Conflict | NotFound:
    live = db.execute("SELECT 1 FROM sessions WHERE id = ? AND ended IS NULL", (session,)).get
    if live is None:
        return refusal(db, session)
    return Conflict("The turn has ended already.", code="turn_ended")
