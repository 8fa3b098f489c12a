"""The full-text index of messages and titles: its numbering, and how it is filled.

Texts are not stored twice: the index contains only terms (`store/analysis.py`) and numbers. Messages are indexed in
bounded batches, off the hot path, in the transaction that moves the mark, so nothing is lost or repeated after a crash.
The index records its language; if that changes, the index is rebuilt.

An entry's number consists of a block, a place in the block, and a length class. A block covers `BLOCK` adjacent
positions in one session, so neighbouring messages have adjacent numbers. One principal's blocks come from a few ranges
of numbers (extents). A conversation is therefore one short range of the index, all of a person's conversations are a
few ranges, and a search never reads other people's entries.

A store in an earlier format has an index of words, whose entries are numbered by session and row id. It is used for the
messages that are not in the new index yet, and is dropped when all of them are.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from tidegate.store import dialect
from tidegate.store.analysis import Analyzer
from tidegate.store.dialect import JOIN_IN_ORDER
from tidegate.store.interface import Db
from tidegate.store.rows import unpack
from tidegate.store.tables.notes import is_offer
from tidegate.store.tables.search import vectors
from tidegate.values import LANGUAGES, Message

BATCH = 200
"""Maximum number of messages per indexing write, so that a turn's write does not have to wait long for it."""
BATCH_CHARACTERS = 100_000
"""Maximum number of characters per indexing write, not counting its last message. Indexing them takes some ten
milliseconds."""
CATCH_UP = 50
"""Maximum number of batches that a search indexes before it returns results, which takes about half a second."""
INDEXED_CHARACTERS = 200_000
"""Number of characters of a long message that are searchable. The rest is usually a dump or a web page, and is still in
the transcript."""
PLACE_BITS = 12
LENGTH_BITS = 2
BLOCK = 1 << PLACE_BITS
"""Number of positions in one block. Almost all conversations have only one block. With larger blocks, the numbers would
need more bytes in the index."""
ENTRY_BITS = PLACE_BITS + LENGTH_BITS
LENGTHS = (400, 2_000, 10_000)
"""The numbers of characters above which a message is in the next length class."""
EXTENT = 4096
"""Number of blocks initially reserved for a principal. Most people's conversations fit into this one range."""
EXTENT_GROWTH = 16
"""The factor by which further reservations grow. It keeps the number of ranges small, since each range is searched
separately."""
COMPLETED_FROM, COMPLETIONS = 2_000, 100
"""Maximum number of terms that are read to complete a prefix, and maximum number that are used. The shortest terms are
used, since common words are short."""
SWEPT = 200
"""Number of terms that one write looks up, to remove those that no message contains any more. The write takes some
milliseconds."""
QUOTING = frozenset({"context_search", "context_describe", "context_expand"})
"""Tools that quote messages. Their arguments and results are not indexed, so that they do not count as further
mentions."""
FORMER_BITS = 32
"""Number of low bits in an entry in the earlier index that contain the message's row id. The higher bits contain the
block."""
LAST = 2**62
"""A number higher than that of any entry."""


class Searchable(Protocol):
    async def write(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
    async def read(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...


# -- progress ----------------------------------------------------------------------------------------------------------


def count_unindexed(db: Db) -> int:
    """Returns the approximate number of rows that are waiting to be indexed, not counting those that the earlier index
    contains."""
    return max(0, int(db.execute("SELECT coalesce(max(id), 0) FROM messages").get) - _meta(db, "indexed"))


def count_former(db: Db) -> int:
    """Returns the approximate number of rows that only the earlier index contains."""
    return _meta(db, "former")


def is_behind(db: Db, turn: str) -> bool:
    """True if there are messages from other turns that a search in this turn could find but that are not indexed
    yet."""
    waiting = db.execute(
        "SELECT 1 FROM messages WHERE id > (SELECT value FROM meta WHERE key = 'indexed') AND turn IS DISTINCT FROM ?"
        " LIMIT 1",
        (turn,),
    ).get
    placed = waiting if waiting is not None else db.execute(f"SELECT 1 {_PLACED_ROWS} LIMIT 1").get
    return placed is not None or db.execute("SELECT 1 FROM index_retitled LIMIT 1").get is not None


async def catch_up(store: Searchable) -> int:
    """Indexes a bounded number of waiting messages. Returns the approximate number left."""
    for _ in range(CATCH_UP):
        if await store.write(index, BATCH) == 0:
            return 0
    return int(await store.read(count_unindexed))


def set_language(db: Db, language: str) -> None:
    """Sets the index's language. If it changes, all messages are indexed again."""
    number = LANGUAGES.index(language)
    if _meta(db, "index_language") != number:
        dialect.clear_index(db)
        db.execute("DELETE FROM index_words")
        db.execute("DELETE FROM index_unplaced")
        db.execute("UPDATE indexed_extents SET entries = 0")
        db.execute("UPDATE meta SET value = 0 WHERE key = 'indexed'")
        # The earlier index keeps its messages, which are those up to its mark.
        db.execute("UPDATE meta SET value = ? WHERE key = 'index_language'", (number,))


def analyzer(db: Db) -> Analyzer:
    """Returns the analyzer with which the index is filled and searched."""

    def vocabulary(terms: Sequence[str], prefixes: Sequence[str]) -> list[str]:
        known = db.execute(f"SELECT term FROM index_words WHERE term IN {dialect.ID_LIST}", (dialect.id_list(terms),))
        found = [term for (term,) in known] if terms else []
        for prefix in prefixes:
            found += [term for (term,) in db.execute(_COMPLETIONS, (prefix, f"{prefix}{_HIGHEST}"))]
        return found

    return Analyzer(dialect.Tokenizer(db), LANGUAGES[_meta(db, "index_language")], vocabulary)


_HIGHEST = "\U0010ffff"
_COMPLETIONS = (
    "SELECT term FROM (SELECT term FROM index_words WHERE term >= ? AND term < ? ORDER BY term"
    f" LIMIT {COMPLETED_FROM}) AS found ORDER BY length(term), term LIMIT {COMPLETIONS}"
)


def _meta(db: Db, key: str) -> int:
    return int(db.execute("SELECT value FROM meta WHERE key = ?", (key,)).get or 0)


# -- filling -----------------------------------------------------------------------------------------------------------


def index(db: Db, batch: int = BATCH) -> int:
    """Indexes the next titles and messages. Returns the number of rows processed, or 0 if there are no new ones."""
    titles = _index_titles(db, batch)
    done, rows = _read(db, _PLACED, (batch,))
    if done:
        db.execute(f"DELETE FROM index_unplaced WHERE message IN {dialect.NUMBER_LIST}", (dialect.number_list(done),))
    mark = _meta(db, "indexed")
    new, more = _read(db, _NEW, (mark, batch))
    if new:
        unplaced = [(id,) for id, _, place, _ in more if place is None]
        db.executemany("INSERT INTO index_unplaced(message) VALUES(?)", unplaced)
        db.execute("UPDATE meta SET value = ? WHERE key = 'indexed'", (new[-1],))
    _add(db, [*rows, *more])
    return titles + len(done) + len(new)


def index_former(db: Db, batch: int = BATCH) -> int:
    """Indexes the next messages that only the earlier index contains, latest first. Finally, drops that index. Returns
    the number of rows processed, or 0 if there is no earlier index."""
    mark = _meta(db, "former")
    if mark == 0:
        return 0
    done, rows = _read(db, _FORMER, (mark, batch))
    _add(db, rows)
    left = done[-1] - 1 if done else 0
    db.execute("UPDATE meta SET value = ? WHERE key = 'former'", (left,))
    if left == 0:
        dialect.drop_former_index(db)
    return max(1, len(done))


_COLUMNS = "messages.id, session, seq, body, packed"
_NEW = f"SELECT {_COLUMNS} FROM messages WHERE id > ? ORDER BY id LIMIT ?"
_FORMER = f"SELECT {_COLUMNS} FROM messages WHERE id <= ? ORDER BY id DESC LIMIT ?"
_PLACED_ROWS = f"FROM index_unplaced {JOIN_IN_ORDER} messages ON messages.id = message WHERE seq IS NOT NULL"
_PLACED = f"SELECT {_COLUMNS} {_PLACED_ROWS} ORDER BY message LIMIT ?"


def _read(db: Db, sql: str, values: Sequence[int]) -> tuple[list[int], list[tuple[int, str, int | None, str]]]:
    """Returns the ids of the rows that were read, and (id, session, place, text) of each."""
    done: list[int] = []
    found: list[tuple[int, str, int | None, str]] = []
    size = 0
    for id, session, place, body, packed in db.execute(sql, values):
        if size > BATCH_CHARACTERS:
            break
        text = "" if place is None else searchable(unpack(body, packed))[:INDEXED_CHARACTERS]
        size += len(text)
        done.append(id)
        found.append((id, session, place, text))
    return done, found


def _add(db: Db, rows: list[tuple[int, str, int | None, str]]) -> None:
    split = analyzer(db)
    blocks: dict[tuple[str, int], int] = {}
    entries: list[tuple[int, str]] = []
    for _, session, place, text in rows:
        if place is None or not text:
            continue
        part = place >> PLACE_BITS
        if (session, part) not in blocks:
            blocks[session, part] = _block(db, session, part)
        terms = split.terms(text)
        if terms:
            length = sum(len(text) > least for least in LENGTHS)
            entries.append((entry_of(blocks[session, part], place) | length, " ".join(terms)))
    if entries:
        words = sorted({term for _, terms in entries for term in terms.split()})
        db.executemany(
            "INSERT INTO index_words(term) VALUES(?) ON CONFLICT(term) DO NOTHING", [(each,) for each in words]
        )
        # In order, since the index starts a new segment for each entry that does not follow the last one.
        db.executemany(dialect.INSERT_ENTRY, sorted(entries))
        counts: dict[int, int] = {}
        for entry, _ in entries:
            counts[entry >> ENTRY_BITS] = counts.get(entry >> ENTRY_BITS, 0) + 1
        db.executemany(
            "UPDATE indexed_extents SET entries = entries + ? WHERE first = (SELECT max(first) FROM indexed_extents AS"
            " other WHERE other.first <= ?)",
            [(count, block) for block, count in counts.items()],
        )
        vectors.mark_due(db, tuple(counts))


def _index_titles(db: Db, batch: int) -> int:
    rows: list[Any] = db.execute(
        f"SELECT sessions.id, title, name FROM index_retitled {JOIN_IN_ORDER} sessions"
        " ON sessions.id = session LIMIT ?",
        (batch,),
    ).fetchall()
    for session, title, name in rows:
        number = _block(db, session, 0)
        db.execute(dialect.DELETE_TITLE, (number,))
        db.execute(dialect.INSERT_TITLE, (number, f"{title} {name or ''}"))
    db.execute(
        f"DELETE FROM index_retitled WHERE session IN {dialect.ID_LIST}", (dialect.id_list([row[0] for row in rows]),)
    )
    return len(rows)


def retitled(db: Db, session: str) -> None:
    """Records that a session's title or name is not in the index yet."""
    db.execute("INSERT INTO index_retitled(session) VALUES(?) ON CONFLICT(session) DO NOTHING", (session,))


def unindex(db: Db, session: str, first: int = 0, last: int = LAST) -> None:
    """Removes a session from the index, or only its messages at these positions."""
    rows: list[Any] = db.execute("SELECT number, part FROM index_blocks WHERE session = ?", (session,)).fetchall()
    for number, part in rows:
        low = max(first, part << PLACE_BITS)
        high = min(last, ((part + 1) << PLACE_BITS) - 1)
        if low <= high:
            db.execute(dialect.DELETE_ENTRIES, (entry_of(number, low), entry_of(number, high) + (1 << LENGTH_BITS)))
            removed = db.changes()
            vectors.remove(db, entry_of(number, low) >> LENGTH_BITS, (entry_of(number, high) >> LENGTH_BITS) + 1)
            db.execute(
                "UPDATE indexed_extents SET entries = entries - ? WHERE first = (SELECT max(first) FROM indexed_extents"
                " AS other WHERE other.first <= ?)",
                (removed, number),
            )
            if removed:
                db.execute("UPDATE index_sweep SET again = 1")
                if not db.changes():
                    db.execute("INSERT INTO index_sweep(term, again) VALUES('', 0)")
        if part == 0:
            if last == LAST:
                db.execute(dialect.DELETE_TITLE, (number,))
            if _meta(db, "former"):
                dialect.delete_former_entries(db, number << FORMER_BITS, session, first, last)


def sweep(db: Db) -> int:
    """After messages were removed, removes the next terms that no message contains any more. Returns the number of
    terms looked up, 0 if there is nothing to do."""
    state = db.execute("SELECT term, again FROM index_sweep").get
    if state is None:
        return 0
    after, again = state
    terms = [term for (term,) in db.execute(_SWEPT, (after, SWEPT))]
    unused = [
        term for term in terms if db.execute(dialect.FIND_ENTRIES, (dialect.match_word(term), 0, LAST, 1)).get is None
    ]
    db.execute(f"DELETE FROM index_words WHERE term IN {dialect.ID_LIST}", (dialect.id_list(unused),))
    if terms:
        db.execute("UPDATE index_sweep SET term = ?", (terms[-1],))
    elif again:
        db.execute("UPDATE index_sweep SET term = '', again = 0")
    else:
        db.execute("DELETE FROM index_sweep")
    return max(1, len(terms))


_SWEPT = "SELECT term FROM index_words WHERE term > ? ORDER BY term LIMIT ?"


def searchable(message: Message) -> str:
    """Returns the searchable text of a message: its text, the gateway's remarks on it, and the names and arguments of
    its tool calls. Quotations of messages and notes are not searchable."""
    if (message.role == "tool" and message.name in QUOTING) or is_offer(message):
        return ""
    parts = [message.text, message.aside]
    for call in message.calls:
        if call.name not in QUOTING:
            parts += (call.name, _readable(call.arguments))
    return "\n".join(filter(None, parts))


def _readable(arguments: str) -> str:
    """Returns a call's arguments without JSON syntax and escapes, or unchanged if they are not JSON."""
    try:
        return "\n".join(_leaves(msgspec.json.decode(arguments)))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments


def _leaves(value: Any) -> Iterator[str]:
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _leaves(part)
    if not isinstance(value, dict | list):
        yield str(value)


# -- numbers -----------------------------------------------------------------------------------------------------------


def entry_of(block: int, place: int) -> int:
    """Returns the number of the entry at this position of the block's session, without its length class."""
    return block << ENTRY_BITS | (place & (BLOCK - 1)) << LENGTH_BITS


def _block(db: Db, session: str, part: int) -> int:
    """Returns the number of the block that covers the session's positions starting at `part * BLOCK`. The number is
    assigned when the first message in the block is indexed, and never changes."""
    known = db.execute("SELECT number FROM index_blocks WHERE session = ? AND part = ?", (session, part)).get
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
    db.execute("INSERT INTO index_blocks(number, session, part) VALUES(?, ?, ?)", (first + used, session, part))
    return int(first + used)


def ranges(db: Db, principal: str | None, session: str | None = None) -> list[tuple[int, int]]:
    """Returns the ranges of block numbers of a principal or of one session, as (first, end), latest first. If
    `principal` is None, a single range contains all principals' sessions."""
    if session is not None:
        blocks = db.execute("SELECT number FROM index_blocks WHERE session = ? ORDER BY number DESC", (session,))
        found: list[tuple[int, int]] = []
        for (number,) in blocks:
            if found and found[-1][0] == number + 1:
                found[-1] = (number, found[-1][1])
            else:
                found.append((number, number + 1))
        return found
    if principal is None:
        return [(0, LAST >> ENTRY_BITS)]
    rows = db.execute(
        "SELECT first, first + used FROM indexed_extents WHERE principal = ? ORDER BY first DESC", (principal,)
    )
    return [(first, end) for first, end in rows]


def count_entries(db: Db, principal: str | None, session: str | None) -> int:
    """Returns the approximate number of messages that a search in this scope covers."""
    if session is not None:
        return int(db.execute("SELECT coalesce(max(seq), 0) FROM messages WHERE session = ?", (session,)).get)
    if principal is None:
        return int(db.execute("SELECT coalesce(sum(entries), 0) FROM indexed_extents").get)
    return int(
        db.execute("SELECT coalesce(sum(entries), 0) FROM indexed_extents WHERE principal = ?", (principal,)).get
    )


def block_of(db: Db, number: int) -> tuple[str, int] | None:
    """Returns a block's session and first position."""
    row = db.execute("SELECT session, part FROM index_blocks WHERE number = ?", (number,)).get
    return None if row is None else (row[0], row[1] << PLACE_BITS)


def sessions_below(db: Db, principal: str, number: int, limit: int) -> list[tuple[int, str]]:
    """Returns a principal's sessions whose first block has a lower number than `number`, latest first."""
    found: list[tuple[int, str]] = []
    for first, end in ranges(db, principal):
        rows = db.execute(
            "SELECT number, session FROM index_blocks WHERE number >= ? AND number < ? AND part = 0"
            " ORDER BY number DESC LIMIT ?",
            (first, min(end, number), limit - len(found)),
        )
        found += [(number, session) for number, session in rows]
    return found


def session_of(db: Db, principal: str, number: int) -> str | None:
    """Returns the session with this first block, if it belongs to this principal."""
    found: str | None = db.execute(
        "SELECT session FROM index_blocks JOIN sessions ON sessions.id = session"
        " WHERE number = ? AND part = 0 AND principal = ?",
        (number, principal),
    ).get
    return found
