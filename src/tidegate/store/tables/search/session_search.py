"""Search for sessions by the words in their titles, names and messages.

Only the searching principal's sessions are found, or all sessions if there is no principal (the operator's view). Both
indexes are numbered by principal, so the time needed does not depend on other people's sessions.
"""

from typing import Any

from tidegate.store import dialect
from tidegate.store.analysis import Analyzer
from tidegate.store.dialect import JOIN_IN_ORDER, Tokenizer
from tidegate.store.interface import Db
from tidegate.store.rows import decode_message, decompress
from tidegate.store.tables.search.search import (
    FORMER_ROW,
    HITS,
    HITS_AT_ONCE,
    READS,
    WORDS,
    AllWords,
    place_of,
)
from tidegate.store.tables.search.search_index import (
    BLOCK,
    ENTRY_BITS,
    FORMER_BITS,
    LAST,
    Searchable,
    analyzer,
    catch_up,
    count_former,
    is_behind,
    ranges,
    searchable,
)
from tidegate.values import Frozen

HITS_AT_FIRST = 250
"""The number of entries of the first statement. Twenty sessions are usually among them, and a statement for common
words takes almost as long with fewer."""
TITLES = 1_000
"""Maximum number of sessions with a matching title that are compared by their last activity: those that began last."""

_WORDS, _PREFIX, _FORMER = range(3)
"""The stages of a search. Messages with the words come first; then those in which the last word is a prefix; then
those that only the earlier index contains."""


class FoundSession(Frozen, frozen=True):
    """A session, and the part of its latest matching message that contains the words. The excerpt is empty if the title
    or name contains the words."""

    id: str
    excerpt: str


async def search(
    store: Searchable, query: str, *, principal: str | None, ended: bool | None = None, limit: int = 20
) -> list[FoundSession]:
    """Returns sessions that contain every word of the query; the last word may be a prefix. Sessions with the words in
    their title or name come first, most recently active first. They are followed by sessions with all the words in one
    message, latest session first."""
    found: dict[str, FoundSession] = {}
    at: tuple[int, int] | None = (0, LAST)
    may_wait = True
    for _ in range(READS):
        if at is None or len(found) >= limit:
            break
        read = await store.read(find, query, principal=principal, ended=ended, at=at, limit=limit, may_wait=may_wait)
        if read is None:
            may_wait = False
            await catch_up(store)
            continue
        more, at = read
        for each in more:
            found.setdefault(each.id, each)
    return list(found.values())[:limit]


def find(
    db: Db,
    query: str,
    *,
    principal: str | None,
    ended: bool | None = None,
    at: tuple[int, int] = (0, LAST),
    limit: int = 20,
    may_wait: bool = False,
) -> tuple[list[FoundSession], tuple[int, int] | None] | None:
    """Returns the next sessions, and the stage and entry from which to continue. Returns None if the index is
    behind."""
    if may_wait and is_behind(db, ""):
        return None
    stage, below = at
    analysis = analyzer(db)
    wanted = AllWords(query, analysis)
    found: dict[str, FoundSession] = {}
    if at == (0, LAST):
        titled = _titled(db, query, principal=principal, ended=ended, limit=limit)
        found |= {id: FoundSession(id=id, excerpt="") for id in titled}
    most = min(limit, sum(end - first for first, end in ranges(db, principal)))  # a session has one block or more
    while len(found) < most:
        if stage != _WORDS and not wanted.with_last_as_prefix() and stage == _PREFIX:
            stage = _FORMER
        if stage == _FORMER and not count_former(db):
            break
        then = _add_mentions(
            db,
            wanted,
            found,
            analysis,
            principal=principal,
            ended=ended,
            below=below,
            limit=limit,
            former=stage == _FORMER,
        )
        if then is not None:
            return list(found.values()), (stage, then)
        stage, below = stage + 1, LAST
        if stage > _FORMER:
            break
    return list(found.values()), None


def _titled(db: Db, query: str, *, principal: str | None, ended: bool | None, limit: int) -> list[str]:
    """Returns the sessions whose title or name contains the words, the most recently active first."""
    words = Tokenizer(db).words(query)[:WORDS]
    if not words:
        return []
    match = dialect.match_all([*map(dialect.match_word, words[:-1]), dialect.match_word(f"{words[-1]}*")])
    found: list[tuple[float, str]] = []
    for first, end in ranges(db, principal):
        rows = db.execute(dialect.FIND_TITLES, (match, first, end, TITLES - len(found))).fetchall()
        if not rows:
            continue
        listed = db.execute(
            "SELECT sessions.id, principal, active, ended FROM index_blocks JOIN sessions ON sessions.id = session"
            f" WHERE number IN {dialect.NUMBER_LIST}",
            (dialect.number_list([row[0] for row in rows]),),
        )
        found += [
            (active, id)
            for id, whose, active, over in listed
            if principal in (None, whose) and (ended is None or (over is not None) == ended)
        ]
    return [id for _, id in sorted(found, reverse=True)[:limit]]


def _add_mentions(
    db: Db,
    wanted: AllWords,
    found: dict[str, FoundSession],
    analysis: Analyzer,
    *,
    principal: str | None,
    ended: bool | None,
    below: int,
    limit: int,
    former: bool = False,
) -> int | None:
    """Adds the next sessions with a message that contains the words to `found`, up to `limit`. Returns the entry to
    continue from."""
    match = wanted.former if former else wanted.match
    if not match:
        return None
    mark = count_former(db) if former else 0
    bits, sql = (FORMER_BITS, dialect.FIND_FORMER) if former else (ENTRY_BITS, dialect.FIND_ENTRIES)
    checked = 0
    for first, end in ranges(db, principal):
        lowest = first << bits
        below = min(end << bits, below)
        size = HITS_AT_FIRST
        while True:
            entries = [row[0] for row in db.execute(sql, (match, lowest, below, size)).fetchall()]
            block, passed = -1, False
            for entry in entries:
                if entry >> bits != block:
                    block, passed = entry >> bits, False
                elif passed:
                    continue
                if len(found) >= limit or checked >= HITS:
                    return below
                below = entry
                checked += 1
                session, whose, over, body, packed = _message(db, entry, mark)
                is_searched = principal in (None, whose) and (ended is None or (over is not None) == ended)
                passed = session is None or session in found or not is_searched
                if not passed and body is not None:
                    text = searchable(decode_message(decompress(body, packed)))
                    if wanted.is_in(text):
                        found[session] = FoundSession(
                            id=session, excerpt=analysis.excerpt(text, wanted.shown, exact=True)
                        )
                        passed = True
            if len(entries) < size:
                break
            # The rest of a session that is found, or cannot be, is not read.
            below = block << bits if passed else below
            size = HITS_AT_ONCE
    return None


def _message(db: Db, entry: int, mark: int) -> Any:
    """Returns (session, its principal, the time of its end, body, packed) of the message with this entry. The body is
    None if the message is not shown, and everything is None if the session no longer exists."""
    if mark:
        id = entry & FORMER_ROW
        row = db.execute(_FORMER_MESSAGE, (id if id <= mark else 0, entry >> FORMER_BITS)).get
    else:
        row = db.execute(_MESSAGE, (place_of(entry, 0), entry >> ENTRY_BITS)).get
    return row or (None, None, None, None, None)


_OF_BLOCK = (
    "SELECT sessions.id, principal, sessions.ended, body, packed FROM index_blocks"
    f" {JOIN_IN_ORDER} sessions ON sessions.id = index_blocks.session"
    " LEFT JOIN messages ON messages.session = sessions.id AND undone IS NULL"
)
_MESSAGE = f"{_OF_BLOCK} AND seq = part * {BLOCK} + ? WHERE number = ?"
_FORMER_MESSAGE = f"{_OF_BLOCK} AND seq IS NOT NULL AND messages.id = ? WHERE number = ?"
