"""What is still to be done for sessions that have ended.

Guarantee: a hook's row is made in the transaction that ends the session and is marked done once; what a crash left
undone is found here at the next start.
"""

from tidegate.store.rows import Db


def pending(db: Db, limit: int = 1000) -> list[tuple[str, str]]:
    """(session, hook) of what has not run yet."""
    rows = db.execute("SELECT session, hook FROM endings WHERE done IS NULL ORDER BY session, hook LIMIT ?", (limit,))
    return [(session, hook) for session, hook in rows]


def done(db: Db, session: str, hook: str, now: float) -> bool:
    """Marks it done. True exactly once: who does the hook's own writes in this transaction does them exactly once."""
    first = db.execute(
        "UPDATE endings SET done = ? WHERE session = ? AND hook = ? AND done IS NULL RETURNING 1", (now, session, hook)
    ).get
    return first is not None
