"""Searches in the index of messages and titles: for all words in a query, and for sessions that contain them.

Any text is a valid query. Only sessions of the searching principal are searched: a search reads the principal's ranges
of the index, and every entry is checked against its rows. The index contains stems, so every match is also checked
against the words of its text. Ranked searches are in `ranking.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tidegate.store import dialect
from tidegate.store.analysis import Analyzer
from tidegate.store.dialect import JOIN_IN_ORDER
from tidegate.store.interface import Db
from tidegate.store.rows import Row, SpooledRow, decode_message, decompress, unpack
from tidegate.store.tables.search.search_index import (
    BLOCK,
    ENTRY_BITS,
    FORMER_BITS,
    LAST,
    LENGTH_BITS,
    analyzer,
    block_of,
    count_former,
    ranges,
    searchable,
)
from tidegate.store.tables.spooled import SHOWN
from tidegate.values import Message, Role

T = TypeVar("T")

WORDS = 32
"""Maximum number of words used from a query."""
HITS = 10_000
"""Maximum number of entries checked in one read."""
HITS_AT_ONCE = 1_000
"""Maximum number of entries read by one statement."""
READS = 100
"""Maximum number of reads per search, so that no query can keep the readers busy."""
MENTION_BYTES = 4 * 1024 * 1024
"""Maximum number of bytes of messages, not counting the last one, that one read decompresses and checks. This takes
some ten milliseconds."""
FORMER_ROW = (1 << FORMER_BITS) - 1
"""The bits of an entry in the earlier index that contain the row id."""


class Mention(Row, frozen=True):
    """A message found by a search, with its entry in the index and its position (`place`) in its session's
    transcript."""

    entry: int
    session: str
    place: int
    at: float
    message: Message


class AllWords:
    """A query for texts that contain all words. A word that ends in * is a prefix; words in double quotes are a phrase.
    `match` is the query for the index, or an empty string if the query contains no indexed word."""

    def __init__(self, query: str, analyzer: Analyzer) -> None:
        self._split = analyzer.words
        self._analyzer = analyzer
        self.words: list[str] = []
        self._prefixes: list[str] = []  # lint: allow (at most `WORDS`)
        self._phrases: list[list[str]] = []
        for number, part in enumerate(query.split('"')):
            phrase: list[str] = []
            for text in part.split():
                found = analyzer.words(text)[: WORDS - len(self.words) - len(self._prefixes)]
                phrase += found
                if found and text.endswith("*"):
                    self._prefixes.append(found.pop())
                self.words += found
            if number % 2 and len(phrase) > 1:
                self._phrases.append(phrase)
        self._complete()

    def _complete(self) -> None:
        analyzer = self._analyzer
        parts = [dialect.match_word(term) for word in self.words for term in analyzer.terms_of(word)]
        for prefix in self._prefixes:
            if not analyzer.begins_stop_word(prefix):
                terms = analyzer.completions(prefix)
                parts.append(dialect.match_any(terms) if len(terms) > 1 else "".join(map(dialect.match_word, terms)))
        # A prefix without a completion matches nothing.
        self.match = "" if "" in parts else dialect.match_all(list(dict.fromkeys(parts)))

    def with_last_as_prefix(self) -> bool:
        """Lets the last word be a prefix. Returns False if nothing else can match then."""
        if self._prefixes or not self.words:
            return False
        match = self.match
        self._prefixes.append(self.words.pop())
        self._complete()
        return self.match not in ("", match)

    @property
    def former(self) -> str:
        """The query for the index of the earlier format, which contains words."""
        return dialect.match_all([*map(dialect.match_word, self.shown)])

    @property
    def shown(self) -> list[str]:
        """The words and prefixes, for excerpts."""
        return [*self.words, *(f"{prefix}*" for prefix in self._prefixes)]

    def is_in(self, text: str) -> bool:
        words = self._split(text)
        present = set(words)
        return (
            all(word in present or (not word.isascii() and _is_within(word, words)) for word in self.words)
            and all(any(word.startswith(prefix) for word in present) for prefix in self._prefixes)
            and all(_contains(words, phrase) for phrase in self._phrases)
        )


def _is_within(word: str, words: Sequence[str]) -> bool:
    """True if a word in a script without spaces is part of one of the words."""
    return ord(word[0]) >= 0xE00 and any(word in each for each in words)


def _contains(words: Sequence[str], phrase: Sequence[str]) -> bool:
    last = phrase[-1]
    return any(
        word == last and list(words[place - len(phrase) + 1 : place + 1]) == list(phrase)
        for place, word in enumerate(words)
        if place + 1 >= len(phrase)
    )


def words(db: Db, query: str) -> list[str]:
    """Returns the query's words. Prefixes end in *."""
    return AllWords(query, analyzer(db)).shown


# -- messages ----------------------------------------------------------------------------------------------------------


def search_messages(
    db: Db,
    query: AllWords,
    show: Callable[[Mention], T],
    *,
    principal: str,
    session: str | None,
    own: str,
    turn: str | None = None,
    below: int = LAST,
    former: bool = False,
    limit: int = 20,
) -> tuple[list[T], int | None]:
    """Returns the next messages that match the query, converted with `show`, and the entry from which to continue.
    Searches one or all of the principal's sessions: latest session first, and latest message first within each. The
    only one-shot conversation searched is `own`. Messages of the running `turn` are left out. If `former` is true,
    searches the earlier index for messages that the current index does not contain yet."""
    match = query.former if former else query.match
    mark = count_former(db) if former else 0
    if not match or (former and not mark):
        return [], None
    bits, sql, read = (
        (FORMER_BITS, dialect.FIND_FORMER, _FORMER_MENTION) if former else (ENTRY_BITS, dialect.FIND_ENTRIES, _MENTION)
    )
    found: list[T] = []
    size = checked = 0
    known: tuple[int, tuple[str, int] | None] = (-1, None)
    for first, end in ranges(db, principal, session):
        for entry in matches(db, sql, match, first << bits, min(end << bits, below)):
            if len(found) == limit or size > MENTION_BYTES or checked == HITS:
                return found, below
            below = entry
            checked += 1
            if former:
                row = db.execute(read, (entry & FORMER_ROW,)).get if entry & FORMER_ROW <= mark else None
            else:
                if known[0] != entry >> bits:
                    known = (entry >> bits, block_of(db, entry >> bits))
                row = None if known[1] is None else db.execute(read, (known[1][0], place_of(entry, known[1][1]))).get
            if row is None:
                continue
            of, whose, kind, place, at, undone, within, body, packed = row
            shown = place is not None and undone is None and (turn is None or within != turn)
            if shown and whose == principal and (of == own or (kind == "named" and session in (None, of))):
                plain = decompress(body, packed)
                size += len(plain)
                message = decode_message(plain)
                if query.is_in(searchable(message)):
                    found.append(show(Mention(entry, of, place, at, message)))
    return found, None


def place_of(entry: int, first: int) -> int:
    return first + ((entry >> LENGTH_BITS) & (BLOCK - 1))


def matches(db: Db, sql: str, match: str, lowest: int, below: int) -> Iterator[int]:
    """Yields the matching entries in the given range, highest first. Uses several statements, so that a loop that stops
    early reads little."""
    size = 20
    while True:
        rows: list[Any] = db.execute(sql, (match, lowest, below, size)).fetchall()
        for (entry,) in rows:
            yield entry
        if len(rows) < size:
            return
        below = rows[-1][0]
        size = min(HITS_AT_ONCE, size * 4)


_MENTION_COLUMNS = (
    "SELECT messages.session, principal, kind, seq, at, undone, turn, body, packed FROM messages"
    " JOIN sessions ON sessions.id = messages.session"
)
_MENTION = f"{_MENTION_COLUMNS} WHERE messages.session = ? AND seq = ?"
_FORMER_MENTION = f"{_MENTION_COLUMNS} WHERE messages.id = ?"


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


# -- results in the spool ----------------------------------------------------------------------------------------------


def results_below(
    db: Db, principal: str, own: str, number: int, span: int, limit: int
) -> tuple[list[tuple[int, SpooledRow]], int | None]:
    """Returns spooled text results from the principal's sessions whose number is below `number`: latest session first,
    and newest result first within each. At most `span` session numbers are searched. The second value is the number
    from which to continue, or None at the end. The only one-shot conversation searched is `own`."""
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
    f" spooled.created FROM index_blocks {JOIN_IN_ORDER} sessions ON sessions.id = index_blocks.session"
    f" {JOIN_IN_ORDER} spooled ON spooled.session = sessions.id"
    " WHERE number >= ? AND number < ? AND part = 0 AND principal = ? AND (sessions.kind = 'named' OR sessions.id = ?)"
    f" AND spooled.kind = 'text' AND {SHOWN} ORDER BY number DESC, spooled.created DESC, spooled.id DESC LIMIT ?"
)


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
