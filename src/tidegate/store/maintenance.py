"""Maintenance of the database file, in small pieces, run by the maintenance timer.

Each write does a bounded amount of work, so turns' writes never wait long for it; lookups run on a reader. All of this
work can be interrupted and started again.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tidegate.store import dialect
from tidegate.store.interface import Db
from tidegate.store.sqlite.writer import outside
from tidegate.store.tables import principals, sessions, settings

FORGET_KEYS = 86400.0
"""Seconds for which a code or cookie is still stored after it has stopped working."""
BATCH = 500
"""Number of rows removed in one write. This takes a few milliseconds, during which a turn's write may have to wait."""
BATCHES = 200
"""Maximum number of batches of one kind in one run: far more than a run every few minutes needs, but finite."""


class MaintainedStore(Protocol):
    """The methods of `Store` that are used here."""

    async def write(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
    async def read(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...


@outside
def checkpoint(db: Db) -> tuple[int, int]:
    """Moves the log's pages into the file as far as possible without waiting for readers. Returns (pages in the log,
    pages moved)."""
    return dialect.checkpoint(db)


@outside
def check_path(db: Db) -> None:
    """Submits an empty write, which makes the writer check that the path still refers to the open file, as it does
    before every write."""


def vacuum(db: Db, pages: int) -> int:
    """Returns up to `pages` free pages to the file system. Returns the number of pages that are still free."""
    return dialect.return_free_pages(db, pages)


async def tidy(store: MaintainedStore, now: float) -> int:
    """Removes rows that are no longer needed: expired settings, codes and cookies that stopped working a day ago,
    intents of ended turns, prompts that no session uses. Continues until nothing is left, in writes of at most `BATCH`
    rows, so that turns can write in between. Returns the number of rows removed."""
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
    while after is not None:  # once through the table: each read begins after the previous one
        unused, after = await store.read(unused_prompts, after)
        if unused:
            total += await store.write(drop_prompts, unused)
    return total


async def delete_session(store: MaintainedStore, id: str) -> bool:
    """Deletes an ended session, first its transcript, in writes of at most `BATCH` rows. If a crash interrupts this,
    the session still exists as an ended one, and its deletion is started again."""
    while await store.write(sessions.delete_messages, id, BATCH) == BATCH:
        pass  # each batch leaves fewer
    gone: bool = await store.write(sessions.delete, id)
    return gone


def forget_intents(db: Db, limit: int) -> int:
    """Removes up to `limit` intents whose turn has ended or been deleted. Returns their number."""
    db.execute(
        "DELETE FROM intents WHERE (turn, step) IN (SELECT turn, step FROM intents WHERE NOT EXISTS("
        "SELECT 1 FROM turns WHERE turns.id = intents.turn AND state IN ('queued', 'running')) LIMIT ?)",
        (limit,),
    )
    return db.changes()


def unused_prompts(db: Db, after: bytes, limit: int = BATCH) -> tuple[list[bytes], bytes | None]:
    """Returns those of the next `limit` prompts that no session uses, and the position from which to continue."""
    rows: list[Any] = db.execute(
        "SELECT id, EXISTS(SELECT 1 FROM sessions WHERE sessions.prefix = prefixes.id) FROM prefixes WHERE id > ?"
        " ORDER BY id LIMIT ?",
        (after, limit),
    ).fetchall()
    return [id for id, used in rows if not used], rows[-1][0] if len(rows) == limit else None


def drop_prompts(db: Db, ids: Sequence[bytes]) -> int:
    """Removes these prompts, except those that a session has started using in the meantime. Returns the number
    removed."""
    return sum(sessions.drop_unused_prefix(db, id) for id in ids)


def probe(db: Db, now: float) -> None:
    """Performs the smallest possible write, to check that writing works."""
    db.execute(
        "INSERT INTO meta(key, value) VALUES('probed', ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
        (int(now),),
    )
