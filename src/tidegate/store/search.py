"""Full-text search: the sessions that a person means by a few words.

Guarantee: any text a person types is a valid query; only sessions of the asking principal are looked at; no second copy
of a text is kept (the index holds words and row numbers). Indexing happens off the hot path, in batches, by `index`;
`search` catches up first, by a bounded amount. What a word is, is said once: by the index's own tokenizer, which reads
queries and titles too.
"""

from collections.abc import Callable
from typing import Any, Protocol

import apsw

from tidegate.store.rows import Db, unpack

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
TITLES = 2_000
"""Sessions whose titles one read looks at: some milliseconds. Titles have no index, since they change and are short."""
HITS = 10_000
"""Messages with the words that one read looks at: some ten milliseconds."""
READS = 100
"""Reads of either kind that one search makes, so that no query can keep the readers busy: two hundred thousand titles
and a million messages, the latest first."""
_TOKENIZER = ("unicode61", ["remove_diacritics", "2"])
_LAST = 2**62

Before = tuple[float, str]
"""When a session was last active, and its id: a place in the list of titles."""


class Searchable(Protocol):
    async def write(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
    async def read(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...


async def search(
    store: Searchable, query: str, *, principal: str | None, ended: bool | None = None, limit: int = 20
) -> list[str]:
    """Ids of the sessions that have every word of the query (the last one may be cut short): in their title or name,
    the last active first; then in one message, the latest mention first. `principal=None` is the operator's view."""
    for _ in range(CATCH_UP):
        if await store.read(behind) == 0 or await store.write(index, BATCH) == 0:
            break
    found: dict[str, None] = {}
    before: Before | None = None
    for _ in range(READS):
        sessions, before = await store.read(titled, query, principal=principal, ended=ended, before=before)
        found |= dict.fromkeys(sessions)
        if before is None or len(found) >= limit:
            break
    below: int | None = _LAST
    for _ in range(READS):
        if below is None or len(found) >= limit:
            break
        sessions, below = await store.read(mentioned, query, principal=principal, ended=ended, below=below)
        found |= dict.fromkeys(sessions)
    return list(found)[:limit]


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


def titled(
    db: Db, query: str, *, principal: str | None, ended: bool | None, before: Before | None
) -> tuple[list[str], Before | None]:
    """Of the next sessions those whose title or name holds the words, and where to go on. A principal's own are found
    by their activity; the operator's view goes through all of them by id, the latest begun first."""
    tokens = _tokenizer(db)
    words = tokens(query)[:WORDS]
    if not words:
        return [], None
    where, order = ("principal = ?", "active DESC, id DESC") if principal is not None else ("1", "id DESC")
    values: list[float | str] = [] if principal is None else [principal]
    if before is not None:
        where += " AND (active, id) < (?, ?)" if principal is not None else " AND id < ?"
        values += before if principal is not None else before[1:]
    rows: list[Any] = db.execute(
        f"SELECT id, active, title, name, ended FROM sessions WHERE {where} ORDER BY {order} LIMIT ?", (*values, TITLES)
    ).fetchall()
    *whole, begun = words
    found: list[str] = []
    for id, _, title, name, over in rows:
        if (title or name) and (ended is None or (over is not None) == ended):
            said = tokens(f"{title} {name or ''}")
            if all(word in said for word in whole) and any(word.startswith(begun) for word in said):
                found.append(id)
    return found, (rows[-1][1], rows[-1][0]) if len(rows) == TITLES else None


def mentioned(
    db: Db, query: str, *, principal: str | None, ended: bool | None, below: int
) -> tuple[list[str], int | None]:
    """The sessions of the next messages that hold the words, and where to go on."""
    words = _tokenizer(db)(query)[:WORDS]
    if not words:
        return [], None
    match = " ".join(f'"{word}"' for word in words) + "*"
    rows: list[Any] = db.execute(
        "SELECT hits.id, sessions.id, principal, ended, seq IS NOT NULL AND undone IS NULL FROM (SELECT rowid AS id"
        " FROM messages_text WHERE messages_text MATCH ? AND rowid < ? ORDER BY rowid DESC LIMIT ?) AS hits"
        " LEFT JOIN messages ON messages.id = hits.id LEFT JOIN sessions ON sessions.id = messages.session"
        " ORDER BY hits.id DESC",
        (match, below, HITS),
    ).fetchall()
    found = dict.fromkeys(
        session
        for _, session, whose, over, shown in rows
        if shown and principal in (None, whose) and (ended is None or (over is not None) == ended)
    )
    return list(found), rows[-1][0] if len(rows) == HITS else None


def _tokenizer(db: Db) -> Callable[[str], list[str]]:
    """Takes a text apart as the index does: such words are never syntax, and compare as those of the index do."""
    tokenizer = db.fts5_tokenizer(*_TOKENIZER)
    only_words = {"include_offsets": False, "include_colocated": False}

    def tokens(text: str) -> list[str]:
        plain = text.encode(errors="ignore")
        return list(map(str, tokenizer(plain, apsw.FTS5_TOKENIZE_QUERY, None, **only_words)))

    return tokens
