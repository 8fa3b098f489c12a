"""Messages: the append-only transcript of each session, and messages that are not in the transcript yet.

An accepted message has one permanent row and at most one position (`seq`) in its session; positions only increase. Each
named step of a turn is committed at most once. After a session's end, only the last rows of the turn that was running
are added, followed by the messages accepted before the end (`close_inbox`). Every change increments the session's
`version`, which shows whether a copy is stale.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tidegate.errors import Conflict, NotFound
from tidegate.store.interface import ConstraintError, Db
from tidegate.store.rows import MessageRow, decode_message, decompress, pack, unpack
from tidegate.store.tables.notes import is_offer
from tidegate.store.tables.turns.open_turns import is_idle
from tidegate.store.tables.turns.turns import INCOMING, place_waiting, refusal
from tidegate.values import Message, Role, ToolCall

_COLUMNS = "id, session, turn, seq, step, at, undone, body, packed"
_LAST = 2**62
"""A position higher than that of any row."""
NO_RESULT = "No result: the caller did not return one."
"""The result stored for a tool call if the caller did not return one."""
CLOSING, CLOSED = f"{INCOMING}call-", "closed-"
"""Prefixes for the steps that store `NO_RESULT` for an open call: in the next turn, or in the turn that made the
call."""
UNANSWERED = "unanswered-"
"""Prefix for the steps added by `close_inbox`."""
ENDED_FIRST = "This message was not answered: the conversation ended first."
"""The note that models see on an unanswered message if a later conversation begins with this transcript."""
_RESULTS_READ = 20
"""Number of tool results at the end of a transcript read by one statement. A step usually has fewer."""
NOTICES_KEPT = 20
"""Maximum number of notices per session. A few lines are enough to report what has happened since its last turn, and
with this limit, a session that nobody uses cannot fill the store."""
NOTICE_CHARACTERS = 2000
"""Maximum length of a notice. It says what happened and where to look, not every detail."""
PAGE_BYTES = 2 * 1024 * 1024
"""Default size of a page: hundreds of ordinary messages."""


def _row(row: Any) -> MessageRow:
    id, session, turn, seq, step, at, undone, body, packed = row
    return MessageRow(id, session, turn, seq, step, at, undone, unpack(body, packed))


def accept(db: Db, *, session: str, turn: str, message: Message, now: float) -> int:
    """Stores a message for an open turn, without a position yet. Returns its row id."""
    db.lock("session", session)
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
    """Adds a row at the end of the transcript. Raises Conflict if this step of the turn has already been committed.

    `settling` is for the last rows of a turn whose session ended while the turn was running. Its calls still need
    results.
    """
    db.lock("session", session)
    body, packed = pack(message)
    _advance(db, session, now if message.role == "user" else None, even_ended=settling)
    try:
        id, seq = db.insert_unique(
            "INSERT INTO messages(session, turn, seq, step, role, body, packed, at)"
            " VALUES(?1, ?2, (SELECT coalesce(max(seq), 0) + 1 FROM messages WHERE session = ?1), ?3, ?4, ?5, ?6, ?7)"
            " RETURNING id, seq",
            (session, turn, step, message.role, body, packed, now),
        ).get
    except ConstraintError:
        raise Conflict(f"Step {step} of this turn is already committed.", code="step_committed") from None
    return MessageRow(id, session, turn, seq, step, now, None, message)


def place_steered(db: Db, turn: str, prefix: str, now: float) -> list[MessageRow]:
    """Adds the messages accepted for a running turn since the last call to the transcript, as steps <prefix>0,
    <prefix>1, …. Returns them."""
    db.lock("turn", turn)
    session = db.execute("SELECT session FROM messages WHERE turn = ? AND seq IS NULL LIMIT 1", (turn,)).get
    if session is None:
        return []
    _advance(db, session, now)
    ids = place_waiting(db, session, turn, prefix)
    return [_row(db.execute(f"SELECT {_COLUMNS} FROM messages WHERE id = ?", (id,)).get) for id in ids]


def close_inbox(db: Db, session: str) -> list[MessageRow]:
    """Adds the messages that an ended session will not answer to the transcript, in order of acceptance and marked as
    unanswered. These are messages that were waiting in the queue, and messages that arrived too late for the running
    turn. Does nothing while a turn is still running in the session, since that turn's rows come first. Messages
    withdrawn by their sender and notes that were offered with a message are left out."""
    db.lock("session", session)
    if not is_idle(db, session):
        return []
    waiting = db.execute(
        f"SELECT {', '.join(f'messages.{column}' for column in _COLUMNS.split(', '))} FROM messages"
        " JOIN turns ON turns.id = messages.turn WHERE messages.session = ? AND seq IS NULL"
        " AND (turns.state = 'refused' OR turns.started IS NOT NULL) ORDER BY messages.id",
        (session,),
    )
    found = [row for row in map(_row, waiting.fetchall()) if not is_offer(row.message)]
    if found:
        answered = frozenset(row.message.call_id for row in found)
        close_calls(db, session, found[0].at, except_ids=answered, settling=True)
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


def count_waiting(db: Db, turn: str) -> int:
    """Returns the number of the turn's accepted messages that have no position yet."""
    return int(db.execute("SELECT count(*) FROM messages WHERE turn = ? AND seq IS NULL", (turn,)).get)


def waiting(db: Db, turn: str) -> list[Message]:
    """Returns the turn's accepted messages that have no position yet, in order."""
    rows = db.execute("SELECT body, packed FROM messages WHERE turn = ? AND seq IS NULL ORDER BY id", (turn,))
    return [unpack(body, packed) for body, packed in rows]


def move(db: Db, from_turn: str, to_turn: str) -> int:
    """Moves messages that came too late for a turn to a queued turn of the same session. Returns their number."""
    db.lock("turn", from_turn)
    if db.execute("SELECT 1 FROM messages WHERE turn = ? AND seq IS NULL LIMIT 1", (from_turn,)).get is None:
        return 0
    open_target = db.execute(
        "SELECT 1 FROM turns AS old JOIN turns AS new ON new.session = old.session"
        " WHERE old.id = ? AND new.id = ? AND new.state = 'queued'",
        (from_turn, to_turn),
    ).get
    if open_target is None:
        raise Conflict("Messages can be moved only to a queued turn of the same session.")
    db.execute("UPDATE messages SET turn = ? WHERE turn = ? AND seq IS NULL", (to_turn, from_turn))
    return db.changes()


def journal(db: Db, turn: str) -> list[MessageRow]:
    """Returns a turn's committed steps, in order."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM messages WHERE turn = ? AND step IS NOT NULL ORDER BY seq NULLS FIRST", (turn,)
    )
    return [_row(row) for row in rows]


def history(db: Db, session: str, before_turn: str | None = None) -> list[Message]:
    """Returns the session's messages in order, except undone ones and those of `before_turn`."""
    return [message for _, message in placed(db, session, before_turn=before_turn)]


def placed(db: Db, session: str, *, after: int = 0, before_turn: str | None = None) -> list[tuple[int, Message]]:
    """Like `history`, for the messages after position `after`, with their positions."""
    others, values = ("", ()) if before_turn is None else (" AND turn IS DISTINCT FROM ?", (before_turn,))
    rows = db.execute(
        f"SELECT seq, body, packed FROM messages WHERE session = ? AND seq > ? AND undone IS NULL{others}"
        " ORDER BY seq NULLS FIRST",
        (session, after, *values),
    )
    return [(seq, unpack(body, packed) if packed else decode_message(body)) for seq, body, packed in rows]


def is_shown(db: Db, session: str, place: int) -> bool:
    """True if there is a message at this position that has not been undone."""
    found = db.execute("SELECT 1 FROM messages WHERE session = ? AND seq = ? AND undone IS NULL", (session, place)).get
    return found is not None


def count_shown(db: Db, session: str, first: int, last: int) -> int:
    """Returns the number of messages from position `first` to `last` that have not been undone."""
    counted = "SELECT count(*) FROM messages WHERE session = ? AND seq >= ? AND seq <= ? AND undone IS NULL"
    return int(db.execute(counted, (session, first, last)).get)


def count_user_messages(db: Db, session: str, most: int) -> int:
    """Returns the number of messages that users have sent in this conversation and not undone. Stops counting at
    `most`. Messages copied from an earlier conversation belong to no turn and are not counted. Notices from the gateway
    have no text and are not counted either."""
    found, after = 0, 0
    while found < most:
        missing = most - found
        rows = db.execute(
            "SELECT seq, body, packed FROM messages WHERE session = ? AND seq > ? AND role = 'user' AND undone IS NULL"
            " AND turn IS NOT NULL ORDER BY seq NULLS FIRST LIMIT ?",
            (session, after, missing),
        ).fetchall()
        found += sum(1 for _, body, packed in rows if unpack(body, packed).text.strip())
        if len(rows) < missing:
            break
        after = rows[-1][0]
    return found


def open_calls(db: Db, session: str) -> tuple[ToolCall, ...]:
    """Returns the calls at the end of the transcript that have no result yet because the caller runs their tools."""
    answered: set[str] = set()
    before, most = _LAST, 1  # in most conversations, the last message is not a tool result
    while True:
        rows = db.execute(
            "SELECT seq, role, body, packed FROM messages WHERE session = ? AND seq < ? AND undone IS NULL"
            " ORDER BY seq DESC NULLS LAST LIMIT ?",
            (session, before, most),
        ).fetchall()
        for seq, role, body, packed in rows:
            message = unpack(body, packed)
            if role != "tool":
                return tuple(call for call in message.calls if call.id not in answered)
            answered.add(message.call_id)
            before = seq
        if len(rows) < most:
            return ()
        most = _RESULTS_READ


def close_calls(
    db: Db,
    session: str,
    now: float,
    *,
    except_ids: frozenset[str] = frozenset(),
    turn: str | None = None,
    step: str = CLOSING,
    settling: bool = False,
) -> int:
    """Adds the result `NO_RESULT` for each of the session's open calls, except those in `except_ids`. Returns the
    number of calls. The results are steps <step>0, <step>1, … of `turn` and are undone together with the turn. Without
    `turn`, they belong to no turn."""
    db.lock("session", session)
    left = [call for call in open_calls(db, session) if call.id not in except_ids]
    for place, call in enumerate(left):
        message = Message(role="tool", call_id=call.id, name=call.name, text=NO_RESULT, failed=True)
        name = None if turn is None else f"{step}{place}"
        append(db, session=session, turn=turn, step=name, message=message, now=now, settling=settling)
    return len(left)


def first_of(db: Db, turn: str) -> int | None:
    """Returns a turn's first position in the transcript."""
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
    """Returns a page of rows after position `after`. Undone rows are included only if requested. The page ends before
    the message that would make it larger than `most_bytes`. If even the first message is larger, it is returned alone
    and in full."""
    hidden = "" if undone else "AND undone IS NULL"
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM messages WHERE session = ? AND seq > ? {hidden} ORDER BY seq NULLS FIRST LIMIT ?",
        (session, after, limit),
    )
    return _within(rows, most_bytes)


def last_turn(db: Db, session: str) -> str | None:
    """Returns the turn of the last message that is visible to models."""
    turn: str | None = db.execute(
        "SELECT turn FROM messages WHERE session = ? AND seq IS NOT NULL AND undone IS NULL AND turn IS NOT NULL"
        " ORDER BY seq DESC NULLS LAST LIMIT 1",
        (session,),
    ).get
    return turn


def copy(db: Db, source: str, target: str, now: float) -> int:
    """Copies the messages of `source` that are visible to models to the beginning of the empty session `target`.
    Returns the number of rows. The copies belong to no turn, so they cannot be undone or resumed."""
    db.lock("session", target)
    db.execute(
        "INSERT INTO messages(session, seq, role, body, packed, at) SELECT ?2, row_number() OVER (ORDER BY seq NULLS"
        " FIRST), role,"
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
    """Returns the transcript's last rows in order, except undone ones; optionally only rows before position `before`,
    or with one role. The size is bounded as in `page`, counted from the end."""
    only = "" if role is None else "AND role = ?4"
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM messages WHERE session = ?1 AND seq < ?2 AND undone IS NULL {only}"
        " ORDER BY seq DESC NULLS LAST LIMIT ?3",
        (session, _LAST if before is None else before, limit, *(() if role is None else (role,))),
    )
    return _within(rows, most_bytes)[::-1]


def has_rows(db: Db, session: str, *, after: int = 0, before: int | None = None) -> bool:
    """True if the transcript has rows between these positions that have not been undone."""
    found = db.execute(
        "SELECT 1 FROM messages WHERE session = ? AND seq > ? AND seq < ? AND undone IS NULL LIMIT 1",
        (session, after, _LAST if before is None else before),
    ).get
    return found is not None


def _within(rows: Iterable[Any], most_bytes: int) -> list[MessageRow]:
    """Returns the first rows, up to the given size. Bodies are decompressed one at a time, and only as many as
    needed."""
    found: list[MessageRow] = []
    size = 0
    for id, session, turn, seq, step, at, undone, body, packed in rows:
        plain = decompress(body, packed)
        size += len(plain)
        if found and size > most_bytes:
            break
        found.append(MessageRow(id, session, turn, seq, step, at, undone, decode_message(plain)))
    return found


def undo(db: Db, turn: str, now: float) -> int:
    """Hides a turn's rows from models. The rows stay in the transcript and are marked as undone. Returns their
    number."""
    db.lock("turn", turn)
    session = db.execute("SELECT session FROM turns WHERE id = ?", (turn,)).get
    if session is None:
        raise NotFound("There is no such turn.")
    _advance(db, session, now)
    db.execute("UPDATE messages SET undone = ? WHERE turn = ? AND step IS NOT NULL AND undone IS NULL", (now, turn))
    return db.changes()


# -- notices: texts that an agent gets with the next message of its session --


def add_notice(db: Db, session: str, text: str, now: float) -> None:
    """Adds a notice, unless the session has ended or been deleted. The session keeps the last `NOTICES_KEPT` notices. A
    notice is delivered once, in the transaction that takes the next turn. Until then, it survives restarts."""
    db.lock("session", session)
    db.execute(
        "INSERT INTO notices(session, text, at) SELECT id, ?, ? FROM sessions WHERE id = ? AND ended IS NULL",
        (text[:NOTICE_CHARACTERS], now, session),
    )
    db.execute(
        "DELETE FROM notices WHERE session = ?1 AND id NOT IN"
        " (SELECT id FROM notices WHERE session = ?1 ORDER BY id DESC LIMIT ?2)",
        (session, NOTICES_KEPT),
    )


def add_notice_lines(db: Db, session: str, lines: Sequence[str], now: float) -> None:
    """Adds several lines of text, split into several notices if they are too long for one."""
    text = ""
    for line in lines:
        if text and len(text) + len(line) >= NOTICE_CHARACTERS:
            add_notice(db, session, text, now)
            text = ""
        text = f"{text}\n{line}" if text else line
    add_notice(db, session, text, now)


def take_notices(db: Db, session: str) -> str:
    """Removes all of the session's notices and returns them as one text, oldest first. The text is nearly always
    empty."""
    db.lock("session", session)
    rows: list[Any] = db.execute("SELECT text FROM notices WHERE session = ? ORDER BY id", (session,)).fetchall()
    if rows:
        db.execute("DELETE FROM notices WHERE session = ?", (session,))
    return "\n".join(text for (text,) in rows)


def _advance(db: Db, session: str, now: float | None, *, even_ended: bool = False) -> None:
    """Increments the session's version. A message from a person also counts as activity (`now`). Model answers and tool
    results do not, so committing them does not write to two indexes."""
    activity = "" if now is None else ", active = CASE WHEN active < ?2 THEN ?2 ELSE active END"
    only_live = "" if even_ended else " AND ended IS NULL"
    live = db.execute(
        f"UPDATE sessions SET version = version + 1{activity} WHERE id = ?1{only_live} RETURNING 1",
        (session,) if now is None else (session, now),
    ).get
    if live is None:
        raise refusal(db, session)


def _refusal(db: Db, session: str) -> Conflict | NotFound:
    live = db.execute("SELECT 1 FROM sessions WHERE id = ? AND ended IS NULL", (session,)).get
    if live is None:
        return refusal(db, session)
    return Conflict("The turn has already ended.", code="turn_ended")
