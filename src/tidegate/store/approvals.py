"""Approvals: questions to a person about one exact action.

Guarantee: an approval is answered at most once, by whoever comes first, and only while it is pending and has not
expired; it survives restarts. `digest` is of the exact action, so that an answer to one can never pass for another.
"""

from typing import Literal

from tidegate.store.rows import ApprovalRow, Db
from tidegate.store.turns import refusal

_COLUMNS = "approvals.id, session, turn, digest, action, state, asked, expires, answered, answered_by"


def ask(
    db: Db,
    *,
    id: str,
    session: str,
    turn: str | None,
    digest: bytes,
    action: bytes,
    now: float,
    expires: float | None,
) -> ApprovalRow:
    """A pending question in a live session."""
    asked = db.execute(
        "INSERT INTO approvals(id, session, turn, digest, action, state, asked, expires)"
        " SELECT ?, id, ?, ?, ?, 'pending', ?, ? FROM sessions WHERE id = ? AND ended IS NULL RETURNING 1",
        (id, turn, digest, action, now, expires, session),
    ).get
    if asked is None:
        raise refusal(db, session)
    return ApprovalRow(id, session, turn, digest, action, "pending", now, expires, None, None)


def get(db: Db, id: str) -> ApprovalRow | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM approvals WHERE id = ?", (id,)).get
    return None if row is None else ApprovalRow(*row)


def pending(
    db: Db, *, principal: str | None, now: float, session: str | None = None, limit: int = 100
) -> list[ApprovalRow]:
    """Questions that wait for an answer, the oldest first; `principal=None` is the operator's view."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM approvals JOIN sessions ON sessions.id = session WHERE state = 'pending'"
        " AND (expires IS NULL OR expires > ?1) AND (?2 IS NULL OR principal = ?2) AND (?3 IS NULL OR session = ?3)"
        " ORDER BY asked, approvals.id LIMIT ?4",
        (now, principal, session, limit),
    )
    return [ApprovalRow(*row) for row in rows]


def answer(db: Db, id: str, *, state: Literal["approved", "denied"], by: str, now: float) -> bool:
    """Whether this answer is the one that counts."""
    counted = db.execute(
        "UPDATE approvals SET state = ?, answered = ?, answered_by = ?"
        " WHERE id = ? AND state = 'pending' AND (expires IS NULL OR expires > ?) RETURNING 1",
        (state, now, by, id, now),
    ).get
    return counted is not None


def cancel(db: Db, id: str, now: float) -> bool:
    cancelled = db.execute(
        "UPDATE approvals SET state = 'cancelled', answered = ? WHERE id = ? AND state = 'pending' RETURNING 1",
        (now, id),
    ).get
    return cancelled is not None


def expire(db: Db, now: float) -> list[str]:
    """Closes the questions whose time is over; their ids."""
    rows = db.execute(
        "UPDATE approvals SET state = 'expired', answered = ?1 WHERE state = 'pending' AND expires <= ?1 RETURNING id",
        (now,),
    )
    return [row[0] for row in rows]
