"""Full-text search: in messages, and for sessions that contain a few words.

Any text is a valid query. Only sessions of the searching principal are searched. Texts are not stored twice: the index
contains only words and numbers. `index` adds messages in batches, off the hot path. A search first indexes a bounded
number of waiting messages and reports if that was not enough. Messages, queries and titles are all split into words by
the index's tokenizer.

An entry of the index is numbered by its session and its message, and the sessions of one principal have adjacent
numbers. So one conversation is one range of the index, all conversations of a person are a few ranges, and a search
reads no entries of other people, however many messages there are. Every entry is also checked against its rows.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from tidegate.store import dialect
from tidegate.store.dialect import JOIN_IN_ORDER
from tidegate.store.interface import Db
from tidegate.store.rows import Row, SpooledRow, decode_message, decompress, unpack
from tidegate.store.tables.spooled import SHOWN
from tidegate.values import Message, Role

T = TypeVar("T")

BATCH = 200
"""The maximum number of messages per indexing write, so that a turn's write does not wait long behind it."""
BATCH_CHARACTERS = 200_000
"""The maximum number of characters per indexing write, not counting its last message. Indexing them takes about ten
milliseconds."""
CATCH_UP = 100
"""The maximum number of batches that a search indexes before it returns results, which takes a quarter of a second."""
WORDS = 16
"""The maximum number of words of a query that are used."""
INDEXED_CHARACTERS = 200_000
"""The number of characters of a long message that are searchable. The rest is usually a dump or a web page, and is
still in the transcript."""
TITLES = 2_000
"""The number of sessions whose titles one read checks in a few milliseconds. Titles have no index, since they change
and are short."""
HITS = 10_000
"""The number of matching messages that one read checks in about ten milliseconds."""
HITS_AT_ONCE = 1_000
"""The number of rows per statement. The contents of this many messages may be in memory at a time."""
READS = 100
"""The maximum number of reads of titles and of messages per search, so that no query can keep the readers busy. They
cover the latest two hundred thousand titles and the latest million matching messages."""
SKIPPED = 200
"""The number of further matches in an already found session that one read skips. The next read continues after that
session."""
MENTION_BYTES = 4 * 1024 * 1024
"""Bytes of messages that one read of mentions decompresses in about ten milliseconds, not counting the last message."""
MESSAGE_BITS = 32
"""The number of low bits in an entry's number that hold the message. The higher bits hold the session. That is enough
for four billion messages and a billion sessions."""
EXTENT = 4096
"""How many numbers are first reserved for a principal's sessions. The conversations of most people fit into this one
range."""
EXTENT_GROWTH = 16
"""The factor by which further reservations grow. It keeps the number of ranges small, since each range is searched
separately."""
QUOTING = frozenset({"context_search", "context_describe", "context_expand"})
"""Tools that quote messages. Their arguments and results are not indexed, so that they do not count as further
mentions."""
_MESSAGE = (1 << MESSAGE_BITS) - 1
LAST = 2**62
"""A number higher than that of any entry."""

Before = tuple[float, str]
"""A position in the list of titles: a session's last activity, and its id."""


class Searchable(Protocol):
    async def write(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
    async def read(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...


class Mention(Row, frozen=True):
    """A message that was found, with its entry in the index and its position (`place`) in its session's transcript."""

    entry: int
    session: str
    place: int
    at: float
    message: Message


# -- the index ---------------------------------------------------------------------------------------------------------


def count_unindexed(db: Db) -> int:
    """Returns the approximate number of rows that wait to be indexed."""
    mark = int(db.execute("SELECT value FROM meta WHERE key = 'indexed'").get)
    return max(0, int(db.execute("SELECT coalesce(max(id), 0) FROM messages").get) - mark)


def is_behind(db: Db, turn: str) -> bool:
    """True if messages of other turns, which a search of this turn could find, are not indexed yet."""
    waiting = db.execute(
        "SELECT 1 FROM messages WHERE id > (SELECT value FROM meta WHERE key = 'indexed') AND turn IS DISTINCT FROM ?"
        " LIMIT 1",
        (turn,),
    ).get
    return waiting is not None


async def catch_up(store: Searchable) -> int:
    """Indexes a bounded number of waiting messages. Returns the approximate number left."""
    left = int(await store.read(count_unindexed))
    for _ in range(CATCH_UP):
        if left == 0 or await store.write(index, BATCH) == 0:
            return 0
        left = int(await store.read(count_unindexed))
    return left


def index(db: Db, batch: int = BATCH) -> int:
    """Indexes the next messages. Returns the number of rows processed, 0 if all are done."""
    mark = int(db.execute("SELECT value FROM meta WHERE key = 'indexed'").get)
    rows: list[tuple[int, str, str]] = []
    size = 0
    for id, session, body, packed in db.execute(
        "SELECT id, session, body, packed FROM messages WHERE id > ? ORDER BY id LIMIT ?", (mark, batch)
    ):
        text = searchable(unpack(body, packed))[:INDEXED_CHARACTERS]
        rows.append((id, session, text))
        size += len(text)
        if size > BATCH_CHARACTERS:
            break
    if rows:
        named = dict.fromkeys(session for _, session, text in rows if text)
        numbers = {session: _number(db, session) for session in named}
        # In order, since the index starts a new segment for each entry that does not follow the last one.
        entries = sorted((numbers[session] << MESSAGE_BITS | id, text) for id, session, text in rows if text)
        db.executemany(dialect.INSERT_ENTRY, entries)
        db.execute("UPDATE meta SET value = ? WHERE key = 'indexed'", (rows[-1][0],))
    return len(rows)


def unindex(db: Db, session: str, which: str, values: Sequence[str | int]) -> None:
    """Removes messages of a session from the index. The query `which` selects their ids. Messages beyond the mark are
    left out, since they are not indexed yet."""
    number = db.execute("SELECT number FROM indexed_sessions WHERE session = ?", (session,)).get
    if number is not None:
        mark = int(db.execute("SELECT value FROM meta WHERE key = 'indexed'").get)
        db.execute(
            dialect.delete_entries(f"SELECT ? | id FROM ({which}) AS removed WHERE id <= ?"),
            (number << MESSAGE_BITS, *values, mark),
        )


def searchable(message: Message) -> str:
    """Returns the searchable text of a message: its text, the gateway's notes on it, and the names and arguments of its
    tool calls."""
    if message.role == "tool" and message.name in QUOTING:
        return ""
    parts = [message.text, message.aside]
    for call in message.calls:
        if call.name not in QUOTING:
            parts += (call.name, _readable(call.arguments))
    return "\n".join(filter(None, parts))


def _readable(arguments: str) -> str:
    """Returns a call's arguments without the syntax and escapes of JSON, or unchanged if they are not JSON."""
    try:
        return "\n".join(_leaves(msgspec.json.decode(arguments)))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments


def _leaves(value: Any) -> Iterator[str]:
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _leaves(part)
    if not isinstance(value, dict | list):
        yield str(value)


def _number(db: Db, session: str) -> int:
    """Returns the session's number. It is assigned when the session's first message is indexed, and never changes."""
    known = db.execute("SELECT number FROM indexed_sessions WHERE session = ?", (session,)).get
    if known is not None:
        return int(known)
    principal = db.execute("SELECT principal FROM sessions WHERE id = ?", (session,)).get
    extents: list[Any] = db.execute(
        "SELECT first, size, used FROM indexed_extents WHERE principal = ? ORDER BY first", (principal,)
    ).fetchall()
    first, size, used = extents[-1] if extents else (0, 0, 0)
    if used == size:
        last = "(SELECT max(first) FROM indexed_extents)"
        end = db.execute(f"SELECT first + size FROM indexed_extents WHERE first = {last}").get
        first, size, used = end or 0, max(EXTENT, EXTENT_GROWTH * sum(extent[1] for extent in extents)), 0
        db.execute(
            "INSERT INTO indexed_extents(principal, first, size, used) VALUES(?, ?, ?, 0)", (principal, first, size)
        )
    db.execute("UPDATE indexed_extents SET used = used + 1 WHERE first = ?", (first,))
    db.execute("INSERT INTO indexed_sessions(session, number) VALUES(?, ?)", (session, first + used))
    return int(first + used)


def ranges(db: Db, principal: str | None, session: str | None = None) -> list[tuple[int, int]]:
    """Returns the ranges of session numbers of a principal, or of one session, as (first, end), the latest first. If
    `principal` is None, one range contains the sessions of all principals."""
    if session is not None:
        number = db.execute("SELECT number FROM indexed_sessions WHERE session = ?", (session,)).get
        return [] if number is None else [(number, number + 1)]
    if principal is None:
        return [(0, LAST >> MESSAGE_BITS)]
    rows = db.execute(
        "SELECT first, first + used FROM indexed_extents WHERE principal = ? ORDER BY first DESC", (principal,)
    )
    return [(first, end) for first, end in rows]


def sessions_below(db: Db, principal: str, number: int, limit: int) -> list[tuple[int, str]]:
    """Returns a principal's sessions with lower numbers than `number`, the latest first."""
    found: list[tuple[int, str]] = []
    for first, end in ranges(db, principal):
        rows = db.execute(
            "SELECT number, session FROM indexed_sessions WHERE number >= ? AND number < ?"
            " ORDER BY number DESC LIMIT ?",
            (first, min(end, number), limit - len(found)),
        )
        found += [(number, session) for number, session in rows]
    return found


def session_of(db: Db, principal: str, number: int) -> str | None:
    """Returns the session with this number, if it belongs to this principal."""
    found: str | None = db.execute(
        "SELECT session FROM indexed_sessions JOIN sessions ON sessions.id = session"
        " WHERE number = ? AND principal = ?",
        (number, principal),
    ).get
    return found


def results_below(
    db: Db, principal: str, own: str, number: int, span: int, limit: int
) -> tuple[list[tuple[int, SpooledRow]], int | None]:
    """Returns spooled text results from the principal's sessions whose number is below `number`: latest session first,
    and newest result first within each. At most `span` session numbers are searched. The second value is the number to
    continue from, or None at the end. The only one-shot conversation searched is `own`."""
    found: list[tuple[int, SpooledRow]] = []
    for first, end in ranges(db, principal):
        end = min(end, number)
        if end <= first:
            continue
        lowest = max(first, end - span)
        rows = db.execute(RESULTS_QUERY, (lowest, end, principal, own, limit - len(found)))
        found += [(of, SpooledRow(*row)) for of, *row in rows]
        if len(found) < limit and lowest > first:
            return found, lowest
        span -= end - lowest
    return found, None


RESULTS_QUERY = (
    "SELECT number, spooled.id, spooled.session, turn, spooled.kind, bytes, lines, media_type, spooled.name,"
    f" spooled.created FROM indexed_sessions {JOIN_IN_ORDER} sessions ON sessions.id = indexed_sessions.session"
    f" {JOIN_IN_ORDER} spooled ON spooled.session = sessions.id"
    " WHERE number >= ? AND number < ? AND principal = ? AND (sessions.kind = 'named' OR sessions.id = ?)"
    f" AND spooled.kind = 'text' AND {SHOWN} ORDER BY number DESC, spooled.created DESC, spooled.id DESC LIMIT ?"
)


# -- messages ----------------------------------------------------------------------------------------------------------


def search_messages(
    db: Db,
    query: str,
    show: Callable[[Mention], T],
    *,
    principal: str,
    session: str | None,
    own: str,
    turn: str | None = None,
    below: int = LAST,
    limit: int = 20,
) -> tuple[list[T], int | None]:
    """Returns the next messages that contain every word of the query, converted by `show`, and the entry to continue
    from. A word that ends in * is a prefix. Searches one session of the principal or all of them: latest session first,
    and latest message first within each. The only one-shot conversation searched is `own`. Messages of the running
    `turn` are left out."""
    match = matching(db, query)
    if not match:
        return [], None
    found: list[T] = []
    size = 0
    for first, end in ranges(db, principal, session):
        checked = 0
        rows = _matches(db, MENTIONS_QUERY, match, first << MESSAGE_BITS, min(end << MESSAGE_BITS, below))
        for entry, of, whose, kind, place, at, undone, within, body, packed in rows:
            if len(found) == limit or size > MENTION_BYTES:
                return found, below
            below = entry
            checked += 1
            shown = place is not None and undone is None and (turn is None or within != turn)
            if shown and whose == principal and (of == own or (kind == "named" and session in (None, of))):
                plain = decompress(body, packed)
                size += len(plain)
                found.append(show(Mention(entry, of, place, at, decode_message(plain))))
        if checked == HITS:
            return found, below
    return found, None


def _matches(db: Db, sql: str, match: str, lowest: int, below: int) -> Iterator[Any]:
    """Yields at most `HITS` rows in the given range of entries, the highest entry first. Several statements are used,
    so that only the rows of one statement are in memory at a time."""
    left = HITS
    while left > 0:
        number, size = 0, min(HITS_AT_ONCE, left)
        for row in db.execute(sql, (match, lowest, below, size)):
            number += 1
            below = row[0]
            yield row
        if number < size:
            return
        left -= number


# The index is read only as far as needed, and not sorted: entries come in order.
MENTIONS_QUERY = (
    "SELECT entry, messages.session, principal, kind, seq, at, undone, turn, body, packed"
    f" FROM ({dialect.FIND_ENTRIES}) AS entries LEFT JOIN messages ON messages.id = entry & {_MESSAGE}"
    " LEFT JOIN sessions ON sessions.id = messages.session ORDER BY entry DESC"
)


def mention(db: Db, message: int, turn: str | None = None) -> Mention | None:
    """Returns the message with this row id, unless it was undone, has no position, or belongs to the given turn."""
    others, values = ("", ()) if turn is None else (" AND turn IS DISTINCT FROM ?", (turn,))
    row = db.execute(
        f"SELECT session, seq, at, body, packed FROM messages WHERE id = ? AND seq IS NOT NULL AND undone IS NULL"
        f"{others}",
        (message, *values),
    ).get
    if row is None:
        return None
    session, place, at, body, packed = row
    return Mention(0, session, place, at, unpack(body, packed))


def matching(db: Db, query: str) -> str:
    """Returns the query in the syntax of the index, or an empty string if it contains no words."""
    return dialect.match_words(words(db, query))


def words(db: Db, query: str) -> list[str]:
    """Returns the words of the query. Prefixes end in *."""
    tokens = dialect.tokenizer(db)
    found: list[str] = []
    for part in query.split():
        parts = tokens(part)
        if parts and part.endswith("*"):
            parts[-1] += "*"
        found += parts
    return found[:WORDS]


# -- plug-in indexes ---------------------------------------------------------------------------------------------------


class SearchableMessage(Row, frozen=True):
    """A message that a plug-in index has not received yet."""

    id: int
    session: str
    principal: str
    role: Role
    at: float
    text: str


def next_messages(db: Db, index: str, batch: int, characters: int) -> tuple[list[SearchableMessage], int | None]:
    """Returns the next messages with text for the plug-in index, and the mark after them, or None if there are none.
    Reads at most `batch` messages and at most `characters` characters of text, not counting the last message. Ephemeral
    sessions are left out."""
    mark = db.execute("SELECT value FROM meta WHERE key = ?", (_mark_of(index),)).get or 0
    found: list[SearchableMessage] = []
    last: int | None = None
    size = 0
    for id, session, principal, kind, role, at, body, packed in db.execute(_FOLLOWING, (mark, batch)):
        last = id
        text = searchable(unpack(body, packed)) if kind == "named" else ""
        if text:
            found.append(SearchableMessage(id, session, principal, role, at, text))
            size += len(text)
        if size > characters:
            break
    return found, last


_FOLLOWING = (
    "SELECT messages.id, session, principal, kind, role, at, body, packed FROM messages"
    " JOIN sessions ON sessions.id = session WHERE messages.id > ? ORDER BY messages.id LIMIT ?"
)


def save_index_mark(db: Db, index: str, mark: int) -> None:
    """Records that the plug-in index has received all messages up to this mark."""
    db.execute(
        "INSERT INTO meta(key, value) VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
        (_mark_of(index), mark),
    )


def _mark_of(index: str) -> str:
    return f"indexed:{index}"


# -- sessions ----------------------------------------------------------------------------------------------------------


async def search(
    store: Searchable, query: str, *, principal: str | None, ended: bool | None = None, limit: int = 20
) -> list[str]:
    """Returns the ids of sessions that contain every word of the query; the last word may be a prefix. Sessions with
    the words in their title or name come first, the most recently active first. They are followed by sessions with all
    the words in one message, the latest message first. `principal=None` is the operator's view."""
    await catch_up(store)
    found: dict[str, None] = {}
    before: Before | None = None
    for _ in range(READS):
        sessions, before = await store.read(search_titles, query, principal=principal, ended=ended, before=before)
        found |= dict.fromkeys(sessions)
        if before is None or len(found) >= limit:
            break
    mentions: dict[str, int] = {}
    below: int | None = LAST
    for _ in range(READS):
        if below is None or len(found.keys() | mentions.keys()) >= limit:
            break
        latest, below = await store.read(search_mentions, query, principal=principal, ended=ended, below=below)
        mentions |= latest
    found |= dict.fromkeys(sorted(mentions, key=mentions.__getitem__, reverse=True))
    return list(found)[:limit]


def search_titles(
    db: Db, query: str, *, principal: str | None, ended: bool | None, before: Before | None
) -> tuple[list[str], Before | None]:
    """Returns the sessions among the next `TITLES` whose title or name contains the words, and the position to continue
    from. A principal's sessions are read by activity, and all sessions (for the operator) by id, the latest first."""
    tokens = dialect.tokenizer(db)
    words = tokens(query)[:WORDS]
    if not words:
        return [], None
    where, order = ("principal = ?", "active DESC, id DESC") if principal is not None else ("TRUE", "id DESC")
    values: list[float | str] = [] if principal is None else [principal]
    if before is not None:
        where += " AND (active, id) < (?, ?)" if principal is not None else " AND id < ?"
        values += before if principal is not None else before[1:]
    rows: list[Any] = db.execute(
        f"SELECT id, active, title, name, ended FROM sessions WHERE {where} ORDER BY {order} LIMIT ?", (*values, TITLES)
    ).fetchall()
    *complete, prefix = words
    found: list[str] = []
    for id, _, title, name, over in rows:
        if (title or name) and (ended is None or (over is not None) == ended):
            title_words = tokens(f"{title} {name or ''}")
            if all(word in title_words for word in complete) and any(word.startswith(prefix) for word in title_words):
                found.append(id)
    return found, (rows[-1][1], rows[-1][0]) if len(rows) == TITLES else None


def search_mentions(
    db: Db, query: str, *, principal: str | None, ended: bool | None, below: int
) -> tuple[dict[str, int], int | None]:
    """Returns the next sessions with a message that contains the words, each with the id of its latest such message,
    and the entry to continue from."""
    words = dialect.tokenizer(db)(query)[:WORDS]
    if not words:
        return {}, None
    match = dialect.match_words((*words[:-1], f"{words[-1]}*"))
    found: dict[str, int] = {}
    known = -1
    for first, end in ranges(db, principal):
        checked = skipped = 0
        for (entry,) in _matches(
            db, dialect.FIND_ENTRIES, match, first << MESSAGE_BITS, min(end << MESSAGE_BITS, below)
        ):
            below = entry
            checked += 1
            if entry >> MESSAGE_BITS == known:
                skipped += 1
                if skipped > SKIPPED:
                    return found, known << MESSAGE_BITS
                continue
            row = db.execute(_WHOSE, (entry & _MESSAGE,)).get
            if row is None:
                continue
            session, whose, over, shown = row
            if shown and principal in (None, whose):
                known, skipped = entry >> MESSAGE_BITS, 0
                if ended is None or (over is not None) == ended:
                    found[session] = entry & _MESSAGE
        if checked == HITS:
            return found, below
    return found, None


_WHOSE = (
    "SELECT sessions.id, principal, ended, seq IS NOT NULL AND undone IS NULL FROM messages"
    " JOIN sessions ON sessions.id = session WHERE messages.id = ?"
)
