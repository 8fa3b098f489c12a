"""What is still to be done for sessions that have ended: their end hooks, and their deletion.

Guarantee: a row is made in the transaction that ends or condemns the session and is marked done once; what a crash left
undone is found here at the next start.
"""

from tidegate.store.rows import Db

DELETE = "(delete)"
"""Owed by a session that is to be deleted when every other row of it is done; no hook has such a name."""


def owe(db: Db, session: str, hook: str) -> None:
    """It is to be done; owing it twice is owing it once."""
    db.execute("INSERT OR IGNORE INTO endings(session, hook) VALUES(?, ?)", (session, hook))


def pending(db: Db, limit: int = 1000, after: tuple[str, str] = ("", "")) -> list[tuple[str, str]]:
    """(session, hook) of what has not run yet, in that order; `after` is the last one seen."""
    rows = db.execute(
        "SELECT session, hook FROM endings WHERE done IS NULL AND (session, hook) > (?, ?)"
        " ORDER BY session, hook LIMIT ?",
        (*after, limit),
    )
    return [(session, hook) for session, hook in rows]


def owed(db: Db, session: str) -> list[str]:
    """What this session's end has not done yet."""
    rows = db.execute("SELECT hook FROM endings WHERE session = ? AND done IS NULL ORDER BY hook", (session,))
    return [row[0] for row in rows]


def attempt(db: Db, session: str, hook: str) -> int:
    """It is about to be tried; how often that was so by now, across restarts. 0 when it is not owed."""
    tries: int | None = db.execute(
        "UPDATE endings SET tries = tries + 1 WHERE session = ? AND hook = ? AND done IS NULL RETURNING tries",
        (session, hook),
    ).get
    return tries or 0


def done(db: Db, session: str, hook: str, now: float) -> bool:
    """Marks it done. True exactly once: who does the hook's own writes in this transaction does them exactly once."""
    first = db.execute(
        "UPDATE endings SET done = ? WHERE session = ? AND hook = ? AND done IS NULL RETURNING 1", (now, session, hook)
    ).get
    return first is not None
