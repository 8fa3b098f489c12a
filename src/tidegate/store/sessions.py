"""Sessions: who talks with which agent, and whether it is over.

Guarantee: a session ends once, in one transaction with everything that dies with it, and what has ended is never
written to again; a live name leads to at most one session of its principal. `get` is for the gateway's own work
(recovery, turns); whatever serves a caller asks `owned`, `live_by_name` or `listing` with the caller's principal.
"""

import hashlib
from collections.abc import Sequence

import apsw
import msgspec

from tidegate.errors import Conflict, NotFound, StoreFailed
from tidegate.store import endings
from tidegate.store.rows import Db, SessionKind, SessionRow, decode_prefix, encode
from tidegate.values import Failure, Prefix

_COLUMNS = (
    "id, principal, channel, name, kind, agent, title, extra, prefix, encoder, parent, created, active, version, ended,"
    " end_reason"
)
_NO_WORK = "NOT EXISTS(SELECT 1 FROM turns WHERE turns.session = sessions.id AND turns.state IN ('queued', 'running'))"
_SESSION_ENDED = encode(
    Failure(
        message="The session ended before this message was taken.",
        type="invalid_request_error",
        code="session_ended",
        status=409,
    )
)


def create(
    db: Db,
    *,
    id: str,
    principal: str,
    channel: str,
    name: str | None,
    kind: SessionKind,
    agent: str,
    extra: str,
    parent: str | None,
    now: float,
    title: str = "",
    prefix: Prefix | None = None,
    encoder: int = 0,
) -> SessionRow:
    """A new session, frozen with its prompt and tools. Conflict when the principal has a live one of that name."""
    frozen = None if prefix is None else _keep_prefix(db, prefix)
    row = SessionRow(
        id, principal, channel, name, kind, agent, title, extra, frozen, encoder, parent, now, now, 0, None, None
    )
    try:
        db.execute(
            f"INSERT INTO sessions({_COLUMNS}) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            msgspec.structs.astuple(row),
        )
    except apsw.ConstraintError:
        raise Conflict("A live session of that name or id exists already.") from None
    return row


def get(db: Db, id: str) -> SessionRow | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM sessions WHERE id = ?", (id,)).get
    return None if row is None else SessionRow(*row)


def version(db: Db, id: str) -> int:
    """Rises with every change of what a model is shown of the session, and with its end; -1 when it is not there."""
    found: int | None = db.execute("SELECT version FROM sessions WHERE id = ?", (id,)).get
    return -1 if found is None else found


def owned(db: Db, id: str, principal: str) -> SessionRow | None:
    """The session, if it is this principal's."""
    row = db.execute(f"SELECT {_COLUMNS} FROM sessions WHERE id = ? AND principal = ?", (id, principal)).get
    return None if row is None else SessionRow(*row)


def live_by_name(db: Db, principal: str, name: str) -> SessionRow | None:
    row = db.execute(
        f"SELECT {_COLUMNS} FROM sessions WHERE principal = ? AND name = ? AND ended IS NULL", (principal, name)
    ).get
    return None if row is None else SessionRow(*row)


def listing(
    db: Db,
    *,
    principal: str | None,
    ended: bool | None = None,
    kind: SessionKind | None = None,
    limit: int = 50,
    before: tuple[float, str] | None = None,
) -> list[SessionRow]:
    """Sessions, the last active first; `before` is (active, id) of the last one seen. `principal=None` is the
    operator's view of all."""
    where: list[str] = []
    values: list[float | str | None] = []
    if principal is not None:
        where.append("principal = ?")
        values.append(principal)
    if ended is not None:
        where.append("ended IS NOT NULL" if ended else "ended IS NULL")
    if kind is not None:
        where.append("kind = ?")
        values.append(kind)
    if before is not None:
        where.append("(active, id) < (?, ?)")
        values.extend(before)
    condition = f"WHERE {' AND '.join(where)}" if where else ""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM sessions {condition} ORDER BY active DESC, id DESC LIMIT ?", (*values, limit)
    )
    return [SessionRow(*row) for row in rows]


def freeze(db: Db, id: str, prefix: Prefix, encoder: int) -> bytes:
    """Fixes the session's prompt and tools. Freezing the same again changes nothing; another one is a Conflict, until
    `clear_prefix` was called."""
    digest = _keep_prefix(db, prefix)
    changed = db.execute(
        "UPDATE sessions SET prefix = ?1, encoder = ?2, version = version + (prefix IS NOT ?1)"
        " WHERE id = ?3 AND ended IS NULL AND (prefix IS NULL OR prefix = ?1) RETURNING 1",
        (digest, encoder, id),
    ).get
    if changed is None:
        raise _why_not(db, id, "Its prompt is frozen already; use /reload to rebuild it.")
    return digest


def identity(prefix: Prefix) -> bytes:
    """The id under which a prefix is stored: equal for equal ones."""
    return hashlib.sha256(encode(prefix)).digest()


def prefix(db: Db, prefix_id: bytes) -> Prefix:
    body = db.execute("SELECT body FROM prefixes WHERE id = ?", (prefix_id,)).get
    if body is None:
        raise StoreFailed("The frozen prompt of this session is not in the store; use /reload to rebuild it.")
    return decode_prefix(body)


def clear_prefix(db: Db, id: str) -> None:
    """Forgets the frozen prompt, so that the next turn freezes a new one."""
    old = db.execute("SELECT prefix FROM sessions WHERE id = ?", (id,)).get
    _change(db, id, "prefix = NULL, encoder = 0, version = version + 1", ())
    if old is not None:
        _drop_unused_prefix(db, old)


def set_title(db: Db, id: str, title: str) -> None:
    """No model is shown it, so that the version stays."""
    _change(db, id, "title = ?", (title,))


def touch(db: Db, id: str, now: float) -> None:
    """The session is in use; one that has ended is not."""
    db.execute("UPDATE sessions SET active = max(active, ?) WHERE id = ? AND ended IS NULL", (now, id))


def end(
    db: Db, id: str, *, reason: str, hooks: Sequence[str], now: float, only_idle_since: float | None = None
) -> bool:
    """Ends the session for good. True exactly once; False when it has ended already or is not there, or, with
    `only_idle_since`, when it is no longer one that `idle` would name.

    With it, in the caller's transaction: settings go, pending approvals are cancelled, queued turns are refused (their
    messages stay, never taken), and each hook gets a row that says it is still to run.
    """
    ended = db.execute(
        "UPDATE sessions SET ended = ?1, end_reason = ?2, version = version + 1 WHERE id = ?3 AND ended IS NULL"
        f" AND (?4 IS NULL OR (active < ?4 AND {_NO_WORK})) RETURNING 1",
        (now, reason, id, only_idle_since),
    ).get
    if ended is None:
        return False
    db.execute("DELETE FROM settings WHERE session = ?", (id,))
    db.execute(
        "UPDATE approvals SET state = 'cancelled', answered = ? WHERE session = ? AND state = 'pending'", (now, id)
    )
    db.execute(
        "UPDATE turns SET state = 'refused', finish = 'error', finished = ?, error = ?"
        " WHERE session = ? AND state IN ('queued', 'running') AND state = 'queued'",
        (now, _SESSION_ENDED, id),
    )
    for hook in hooks:
        endings.owe(db, id, hook)
    return True


def condemn(db: Db, id: str) -> bool:
    """An ended session is to be deleted, whatever it ended for, once nothing else is owed to it. False when it is not
    there or has not ended."""
    found = db.execute(
        "UPDATE sessions SET end_reason = 'delete' WHERE id = ? AND ended IS NOT NULL RETURNING 1", (id,)
    )
    if found.get is None:
        return False
    endings.owe(db, id, endings.DELETE)
    return True


def delete(db: Db, id: str) -> bool:
    """Removes the session and all that is only its own. False when it is not there.

    Of an ephemeral session stay the receipts that hold their outcome, for their own retention, and the principal of
    its usage rows; a prompt that only it used is left to `maintenance.tidy`, since the next one mostly has the same.
    """
    found = db.execute("SELECT prefix, kind FROM sessions WHERE id = ?", (id,)).get
    if found is None:
        return False
    prefix_id, kind = found
    ephemeral = kind == "ephemeral"
    mine = "(SELECT id FROM turns WHERE session = ?)"
    mark = int(db.execute("SELECT value FROM meta WHERE key = 'indexed'").get)
    db.execute(
        "DELETE FROM messages_text WHERE rowid IN (SELECT id FROM messages WHERE session = ? AND id <= ?)", (id, mark)
    )
    db.execute(f"DELETE FROM intents WHERE turn IN {mine}", (id,))
    if ephemeral:
        db.execute(f"DELETE FROM receipts WHERE outcome IS NULL AND turn IN {mine}", (id,))
        db.execute("UPDATE usage SET session = NULL, turn = NULL WHERE session = ?", (id,))
    else:
        db.execute(f"DELETE FROM receipts WHERE turn IN {mine}", (id,))
        db.execute("UPDATE usage SET session = NULL, turn = NULL, principal = NULL WHERE session = ?", (id,))
    db.execute("DELETE FROM endings WHERE session = ?", (id,))
    db.execute("DELETE FROM outbox WHERE session = ?", (id,))
    db.execute("DELETE FROM sessions WHERE id = ?", (id,))
    # Row ids are given again once the highest is gone; the mark must not stand above a row that is yet to come.
    db.execute(
        "UPDATE meta SET value = (SELECT coalesce(max(id), 0) FROM messages)"
        " WHERE key = 'indexed' AND value > (SELECT coalesce(max(id), 0) FROM messages)"
    )
    if prefix_id is not None and not ephemeral:
        _drop_unused_prefix(db, prefix_id)
    return True


def idle(db: Db, *, kind: SessionKind, before: float, limit: int) -> list[str]:
    """Live sessions without activity since `before`, the stalest first; never one with a queued or running turn."""
    rows = db.execute(
        f"SELECT id FROM sessions WHERE kind = ? AND ended IS NULL AND active < ? AND {_NO_WORK}"
        " ORDER BY active LIMIT ?",
        (kind, before, limit),
    )
    return [row[0] for row in rows]


def ended_before(db: Db, before: float, limit: int) -> list[str]:
    """Sessions that ended before that time and whose hooks have all run, the oldest first."""
    rows = db.execute(
        "SELECT id FROM sessions WHERE ended IS NOT NULL AND ended < ? AND NOT EXISTS("
        "SELECT 1 FROM endings WHERE endings.session = sessions.id AND done IS NULL) ORDER BY ended LIMIT ?",
        (before, limit),
    )
    return [row[0] for row in rows]


def _keep_prefix(db: Db, prefix: Prefix) -> bytes:
    """Stored once, however many sessions begin with it; its id."""
    digest = identity(prefix)
    db.execute("INSERT OR IGNORE INTO prefixes(id, body) VALUES(?, ?)", (digest, encode(prefix)))
    return digest


def _change(db: Db, id: str, assignment: str, values: tuple[str | float, ...]) -> None:
    changed = db.execute(
        f"UPDATE sessions SET {assignment} WHERE id = ? AND ended IS NULL RETURNING 1",
        (*values, id),
    ).get
    if changed is None:
        raise _why_not(db, id, "The session cannot be changed.")


def _why_not(db: Db, id: str, otherwise: str) -> Conflict | NotFound:
    ended = db.execute("SELECT ended FROM sessions WHERE id = ?", (id,)).fetchall()
    if not ended:
        return NotFound("There is no such session.")
    if ended[0][0] is not None:
        return Conflict("The session has ended; start a new one.", code="session_ended")
    return Conflict(otherwise)


def _drop_unused_prefix(db: Db, prefix_id: bytes) -> None:
    db.execute(
        "DELETE FROM prefixes WHERE id = ? AND NOT EXISTS(SELECT 1 FROM sessions WHERE prefix = ?)",
        (prefix_id, prefix_id),
    )
