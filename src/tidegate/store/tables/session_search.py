"""Search for sessions: by the words of their titles and names, and by those of their messages.

Only sessions of the searching principal are found, or all if there is no principal (the operator's view). Both indexes
are numbered by principal, so the time does not depend on other people's sessions.
"""

from typing import Any

from tidegate.store import dialect
from tidegate.store.analysis import Analyzer
from tidegate.store.dialect import Tokenizer
from tidegate.store.interface import Db
from tidegate.store.rows import decode_message, decompress
from tidegate.store.tables.search import (
    FORMER_ROW,
    HITS,
    HITS_AT_ONCE,
    READS,
    WORDS,
    AllWords,
    place_of,
)
from tidegate.store.tables.search_index import (
    ENTRY_BITS,
    FORMER_BITS,
    LAST,
    PLACE_BITS,
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
"""The most sessions with a matching title that are compared by their last activity: those that began last."""

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
    their title or name come first, the most recently active first. They are followed by sessions with all the words in
    one message, the latest session first."""
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
    """Returns the next sessions, and the stage and entry to continue from. Returns None if the index is behind."""
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
            session: tuple[str, int] | None = None
            for entry in entries:
                if passed and entry >> bits == block:
                    continue
                if len(found) >= limit or checked >= HITS:
                    return below
                below = entry
                checked += 1
                if entry >> bits != block:
                    block = entry >> bits
                    session = _session(db, block, principal, ended)
                    passed = session is None or session[0] in found
                    if passed:
                        continue
                row = _row(db, session, entry, mark) if session else None
                if session and row is not None:
                    text = searchable(decode_message(decompress(*row)))
                    if wanted.is_in(text):
                        excerpt = analysis.excerpt(text, wanted.shown, exact=True)
                        found[session[0]] = FoundSession(id=session[0], excerpt=excerpt)
                        passed = True
            if len(entries) < size:
                break
            # The rest of a session that is found, or cannot be, is not read.
            below = block << bits if passed else below
            size = HITS_AT_ONCE
    return None


def _session(db: Db, block: int, principal: str | None, ended: bool | None) -> tuple[str, int] | None:
    """Returns the session of a block and its first position, if it is one of those searched."""
    row = db.execute(
        "SELECT session, part, principal, ended FROM index_blocks JOIN sessions ON sessions.id = session"
        " WHERE number = ?",
        (block,),
    ).get
    if row is None:
        return None
    session, part, whose, over = row
    is_searched = principal in (None, whose) and (ended is None or (over is not None) == ended)
    return (session, part << PLACE_BITS) if is_searched else None


def _row(db: Db, session: tuple[str, int], entry: int, mark: int) -> Any:
    """Returns the content of the entry's message, if it is shown."""
    if mark:
        id = entry & FORMER_ROW
        return (
            None
            if id > mark
            else db.execute(
                "SELECT body, packed FROM messages WHERE id = ? AND seq IS NOT NULL AND undone IS NULL", (id,)
            ).get
        )
    return db.execute(
        "SELECT body, packed FROM messages WHERE session = ? AND seq = ? AND undone IS NULL",
        (session[0], place_of(entry, session[1])),
    ).get
