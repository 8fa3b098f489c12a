"""Notices: texts that an agent gets with the next message of its session.

A notice is delivered once, in the transaction that takes the turn which delivers it, and survives every restart until
then. A session keeps the last `KEPT` notices, so that an abandoned session cannot fill the store.
"""

from collections.abc import Sequence
from typing import Any

from tidegate.store.interface import Db

KEPT = 20
"""A few lines are enough to report what happened in the meantime; older notices are no longer news."""

CHARACTERS = 2000
"""The longest notice. It says what happened and where to look, not every detail."""


def add(db: Db, session: str, text: str, now: float) -> None:
    """Adds a notice, unless the session has ended or is gone."""
    db.lock("session", session)
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
    """Adds a long text, in as many notices as needed."""
    text = ""
    for line in lines:
        if text and len(text) + len(line) >= CHARACTERS:
            add(db, session, text, now)
            text = ""
        text = f"{text}\n{line}" if text else line
    add(db, session, text, now)


def take(db: Db, session: str) -> str:
    """Removes all notices of the session and returns them as one text, the oldest first; nearly always empty."""
    db.lock("session", session)
    rows: list[Any] = db.execute("SELECT text FROM notices WHERE session = ? ORDER BY id", (session,)).fetchall()
    if rows:
        db.execute("DELETE FROM notices WHERE session = ?", (session,))
    return "\n".join(text for (text,) in rows)
