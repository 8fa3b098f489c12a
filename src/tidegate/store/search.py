"""Full-text search over transcripts.

Guarantee: any text a person types is a valid query; only sessions of the asking principal are looked at; no second copy
of a text is kept (the index holds words and row numbers). Indexing happens off the hot path, in batches, by `index`;
`search` catches up first, by a bounded amount.
"""

import re
from collections.abc import Callable
from typing import Any, Protocol

from tidegate.store.rows import Db, Found, unpack

BATCH = 200
"""Messages per indexing write at most, so that a turn's write does not wait long behind it."""
BATCH_CHARACTERS = 200_000
"""Text per indexing write at most, beyond its last message; some ten milliseconds of work."""
CATCH_UP = 50
"""Batches that a search indexes at most before it answers."""
WORDS = 16
"""Words of a query that count."""
INDEXED_CHARACTERS = 200_000
"""Of a longer message only this much is searchable; what follows is bulk (dumps, pages), and is in the transcript."""
EXCERPT = 160
_WORD = re.compile(r"\w+")


class Searchable(Protocol):
    async def write(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
    async def read(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...


async def search(
    store: Searchable, query: str, *, principal: str | None, session: str | None = None, limit: int = 20
) -> list[Found]:
    """`find`, after the index has caught up."""
    for _ in range(CATCH_UP):
        if await store.read(behind) == 0 or await store.write(index, BATCH) == 0:
            break
    found: list[Found] = await store.read(find, query, principal=principal, session=session, limit=limit)
    return found


def behind(db: Db) -> int:
    """About how many rows wait to be indexed."""
    mark = int(db.execute("SELECT value FROM meta WHERE key = 'indexed'").get)
    return max(0, int(db.execute("SELECT coalesce(max(id), 0) FROM messages").get) - mark)


def index(db: Db, batch: int = BATCH) -> int:
    """Indexes the next messages; how many rows it went through, 0 when all are done."""
    mark = int(db.execute("SELECT value FROM meta WHERE key = 'indexed'").get)
    last = mark
    entries: list[tuple[int, str]] = []
    size = seen = 0
    for id, body, packed in db.execute(
        "SELECT id, body, packed FROM messages WHERE id > ? ORDER BY id LIMIT ?", (mark, batch)
    ):
        text = unpack(body, packed).text[:INDEXED_CHARACTERS]
        if text:
            entries.append((id, text))
        last = id
        seen += 1
        size += len(text)
        if size > BATCH_CHARACTERS:
            break
    if seen:
        db.executemany("INSERT INTO messages_text(rowid, text) VALUES(?, ?)", entries)
        db.execute("UPDATE meta SET value = ? WHERE key = 'indexed'", (last,))
    return seen


def find(db: Db, query: str, *, principal: str | None, session: str | None = None, limit: int = 20) -> list[Found]:
    """Messages that hold every word of the query (the last one may be cut short), the latest first.
    `principal=None` is the operator's view."""
    words = _WORD.findall(query.encode(errors="ignore").decode())[:WORDS]
    if not words:
        return []
    match = " ".join(f'"{word}"' for word in words) + "*"
    rows = db.execute(
        "SELECT messages.session, title, seq, role, at, body, packed FROM messages_text"
        " JOIN messages ON messages.id = messages_text.rowid JOIN sessions ON sessions.id = messages.session"
        " WHERE messages_text MATCH ?1 AND seq IS NOT NULL AND undone IS NULL"
        " AND (?2 IS NULL OR principal = ?2) AND (?3 IS NULL OR messages.session = ?3)"
        " ORDER BY messages_text.rowid DESC LIMIT ?4",
        (match, principal, session, limit),
    )
    return [
        Found(of, title, seq, role, at, _excerpt(unpack(body, packed).text, words))
        for of, title, seq, role, at, body, packed in rows
    ]


def _excerpt(text: str, words: list[str]) -> str:
    found = re.search("|".join(map(re.escape, words)), text, re.IGNORECASE)
    start = max(0, found.start() - EXCERPT // 2) if found else 0
    cut = " ".join(text[start : start + EXCERPT].split())
    return ("… " if start else "") + cut + (" …" if start + EXCERPT < len(text) else "")
