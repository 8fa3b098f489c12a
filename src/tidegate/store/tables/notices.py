"""Notices: what an agent is to be told with the next message of its session.

Guarantee: a notice is told once, in the transaction that takes the turn which tells it, and survives every restart
until then. A session keeps the last `KEPT`, so that one to which nobody speaks any more cannot fill the store.
"""

from collections.abc import Sequence
from typing import Any

from tidegate.store.rows import Db

KEPT = 20
"""What happened while nobody spoke is told in a few lines, or it is no longer news."""

CHARACTERS = 2000
"""Of one notice. It says what happened and where to look, not all of it."""


def add(db: Db, session: str, text: str, now: float) -> None:
    """Nothing is kept for a session that has ended or is gone."""
    db.execute(
        "INSERT INTO notices(session, text, at) SELECT id, ?, ? FROM sessions WHERE id = ? AND ended IS NULL",
        (text[:CHARACTERS], now, session),
    )
    db.execute(
        "DELETE FROM notices WHERE session = ?1 AND id NOT IN"
        " (SELECT id FROM notices WHERE session = ?1 ORDER BY id DESC LIMIT ?2)",
        (session, KEPT),
    )


def add_lines(db: Db, session: str, lines: Sequence[str], now: float) -> None:
    """One thing in many lines, in as many notices as it takes."""
    text = ""
    for line in lines:
        if text and len(text) + len(line) >= CHARACTERS:
            add(db, session, text, now)
            text = ""
        text = f"{text}\n{line}" if text else line
    add(db, session, text, now)


def take(db: Db, session: str) -> str:
    """All of them as one text, the oldest first; empty when there are none, which is nearly always."""
    rows: list[Any] = db.execute("SELECT text FROM notices WHERE session = ? ORDER BY id", (session,)).fetchall()
    if rows:
        db.execute("DELETE FROM notices WHERE session = ?", (session,))
    return "\n".join(text for (text,) in rows)
