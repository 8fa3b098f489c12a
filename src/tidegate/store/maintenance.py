"""Upkeep of the file: what the maintenance timer sends to the writer, in small pieces.

Guarantee: each call does a bounded amount of work, so that no turn's write waits long behind it, and can be repeated
until it has nothing left to do.
"""

import apsw

from tidegate.store import principals, settings
from tidegate.store._writer import outside
from tidegate.store.rows import Db

FORGET_KEYS = 86400.0
"""Seconds for which a code or cookie that no longer works stays known."""


@outside
def checkpoint(db: Db) -> tuple[int, int]:
    """Moves the log's pages into the file, as far as readers let it and without waiting for any; (pages in the log,
    pages moved)."""
    return db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)


def vacuum(db: Db, pages: int) -> int:
    """Gives up to that many free pages back to the disk; how many are still free."""
    db.execute(f"PRAGMA incremental_vacuum({int(pages)})").fetchall()
    return int(db.execute("PRAGMA freelist_count").get)


def tidy(db: Db, now: float, limit: int) -> int:
    """Removes what nothing refers to any more: prompts that no session uses, intents of turns that are over, settings
    past their time, codes and cookies that stopped working a day ago; of the first two `limit` at a time. How many of
    that one of the two of which there were more: less than `limit` when nothing is left."""
    settings.expire(db, now)
    principals.prune_keys(db, now - FORGET_KEYS)
    db.execute(
        "DELETE FROM prefixes WHERE id IN (SELECT id FROM prefixes WHERE NOT EXISTS("
        "SELECT 1 FROM sessions WHERE sessions.prefix = prefixes.id) LIMIT ?)",
        (limit,),
    )
    prompts = db.changes()
    db.execute(
        "DELETE FROM intents WHERE (turn, step) IN (SELECT turn, step FROM intents WHERE NOT EXISTS("
        "SELECT 1 FROM turns WHERE turns.id = intents.turn AND state IN ('queued', 'running')) LIMIT ?)",
        (limit,),
    )
    return max(prompts, db.changes())


def probe(db: Db, now: float) -> None:
    """The smallest write there is: when it returns, writing works."""
    db.execute(
        "INSERT INTO meta VALUES('probed', ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value", (int(now),)
    )
