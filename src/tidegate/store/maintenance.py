"""Upkeep of the file: what the maintenance timer does, in small pieces.

Guarantee: each write does a bounded amount of work, so that no turn's write waits long behind it; what has to be looked
for is looked for by a reader. Whatever is begun here may be broken off and begun anew.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import apsw

from tidegate.store.rows import Db
from tidegate.store.sqlite.writer import outside
from tidegate.store.tables import principals, sessions, settings

FORGET_KEYS = 86400.0
"""Seconds for which a code or cookie that no longer works stays known."""
BATCH = 500
"""Rows that one write removes: some milliseconds, which a turn's write may have to wait."""
BATCHES = 200
"""Of one kind in one run: far more than a run of every few minutes ever has to do, and an end to it."""


class MaintainedStore(Protocol):
    """What a `Store` is here: named by what is asked of it, since the store itself imports nothing of its nouns."""

    async def write(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
    async def read(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...


@outside
def checkpoint(db: Db) -> tuple[int, int]:
    """Moves the log's pages into the file, as far as readers let it and without waiting for any; (pages in the log,
    pages moved)."""
    return db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)


@outside
def look(db: Db) -> None:
    """Nothing but what the writer does before each write: see whether the file is still in its place."""


def vacuum(db: Db, pages: int) -> int:
    """Gives up to that many free pages back to the disk; how many are still free."""
    db.execute(f"PRAGMA incremental_vacuum({int(pages)})").fetchall()
    return int(db.execute("PRAGMA freelist_count").get)


async def tidy(store: MaintainedStore, now: float) -> int:
    """Removes what nothing refers to any more: settings past their time, codes and cookies that stopped working a day
    ago, intents of turns that are over, prompts that no session uses. Goes on until nothing is left, in writes of at
    most `BATCH` rows between which turns get in. How many."""
    total = 0
    for remove, *values in (
        (settings.expire, now, BATCH),
        (principals.prune_keys, now - FORGET_KEYS, BATCH),
        (forget_intents, BATCH),
    ):
        for _ in range(BATCHES):
            removed: int = await store.write(remove, *values)
            total += removed
            if removed < BATCH:
                break
    after: bytes | None = b""
    while after is not None:  # once through the table: each look begins after the last
        unused, after = await store.read(unused_prompts, after)
        if unused:
            total += await store.write(drop_prompts, unused)
    return total


async def delete_session(store: MaintainedStore, id: str) -> bool:
    """`sessions.delete` of one that has ended, its transcript first, in writes of at most `BATCH` rows; a crash on the
    way leaves a session that has ended and whose deletion is begun anew."""
    while await store.write(sessions.shed, id, BATCH) == BATCH:
        pass  # each leaves fewer
    gone: bool = await store.write(sessions.delete, id)
    return gone


def forget_intents(db: Db, limit: int) -> int:
    """Up to `limit` of the intents whose turn is over or gone; how many."""
    db.execute(
        "DELETE FROM intents WHERE (turn, step) IN (SELECT turn, step FROM intents WHERE NOT EXISTS("
        "SELECT 1 FROM turns WHERE turns.id = intents.turn AND state IN ('queued', 'running')) LIMIT ?)",
        (limit,),
    )
    return db.changes()


def unused_prompts(db: Db, after: bytes, look: int = BATCH) -> tuple[list[bytes], bytes | None]:
    """Of the next `look` prompts those that no session uses, and where to go on."""
    rows: list[Any] = db.execute(
        "SELECT id, EXISTS(SELECT 1 FROM sessions WHERE sessions.prefix = prefixes.id) FROM prefixes WHERE id > ?"
        " ORDER BY id LIMIT ?",
        (after, look),
    ).fetchall()
    return [id for id, used in rows if not used], rows[-1][0] if len(rows) == look else None


def drop_prompts(db: Db, ids: Sequence[bytes]) -> int:
    """Those of these prompts that no session uses, now that nothing can come between; how many."""
    return sum(sessions.drop_unused_prefix(db, id) for id in ids)


def probe(db: Db, now: float) -> None:
    """The smallest write there is: when it returns, writing works."""
    db.execute(
        "INSERT INTO meta VALUES('probed', ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value", (int(now),)
    )
