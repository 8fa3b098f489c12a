"""Search for sessions by the words in their titles, names and messages.

Only the searching principal's sessions are found, or all sessions if there is no principal (the operator's view). Both
indexes are numbered by principal, so the time needed does not depend on other people's sessions.
"""

from typing import Any, Literal

from tidegate.store import dialect
from tidegate.store.interface import Db
from tidegate.store.rows import decode_message, decompress
from tidegate.store.tables.search.search import (
    FORMER_ROW,
    HITS,
    READS,
    SKIPPED,
    WORDS,
    AllWords,
    matches,
    place_of,
)
from tidegate.store.tables.search.search_index import (
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

TITLES = 1_000
"""Maximum number of sessions with a matching title that are compared by their last activity: those that began last."""

Stage = Literal["words", "prefix", "former"]
STAGES: tuple[Stage, ...] = ("words", "prefix", "former")
"""Messages with the words come first, since a prefix is expensive to look up; then those in which the last word is a
prefix; then those that only the earlier index contains."""


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
        read = await store.read(_search, query, principal=principal, ended=ended, at=at, limit=limit, may_wait=may_wait)
        if read is None:
            may_wait = False
            await catch_up(store)
            continue
        more, at = read
        for each in more:
            found.setdefault(each.id, each)
    return list(found.values())[:limit]


def _search(
    db: Db,
    query: str,
    *,
    principal: str | None,
    ended: bool | None,
    at: tuple[int, int],
    limit: int,
    may_wait: bool,
) -> tuple[list[FoundSession], tuple[int, int] | None] | None:
    """Returns the next sessions, and the stage and entry from which to continue. Returns None if the index is
    behind."""
    if may_wait and is_behind(db, ""):
        return None
    stage, below = at
    found: dict[str, FoundSession] = {}
    if at == (0, LAST):
        titled = search_titles(db, query, principal=principal, ended=ended, limit=limit)
        found |= {id: FoundSession(id=id, excerpt="") for id in titled}
    while len(found) < limit:
        more, then = search_mentions(
            db, query, principal=principal, ended=ended, below=below, limit=limit, stage=STAGES[stage]
        )
        for each in more:
            found.setdefault(each.id, each)
        if then is not None:
            return list(found.values()), (stage, then)
        stage, below = stage + 1, LAST
        if stage == len(STAGES):
            break
    return list(found.values()), None


def search_titles(db: Db, query: str, *, principal: str | None, ended: bool | None, limit: int) -> list[str]:
    """Returns the sessions whose title or name contains the words, most recently active first."""
    words = analyzer(db).words(query)[:WORDS]
    if not words:
        return []
    match = dialect.match_all([*map(dialect.match_word, words[:-1]), dialect.match_word(f"{words[-1]}*")])
    found: list[tuple[float, str]] = []
    for first, end in ranges(db, principal):
        rows = db.execute(dialect.FIND_TITLES, (match, first, end, TITLES - len(found))).fetchall()
        numbers = [row[0] for row in rows]
        listed = db.execute(
            "SELECT sessions.id, principal, active, ended FROM index_blocks JOIN sessions ON sessions.id = session"
            f" WHERE number IN {dialect.NUMBER_LIST}",
            (dialect.number_list(numbers),),
        )
        found += [
            (active, id)
            for id, whose, active, over in listed
            if principal in (None, whose) and (ended is None or (over is not None) == ended)
        ]
    return [id for _, id in sorted(found, reverse=True)[:limit]]


def search_mentions(
    db: Db,
    query: str,
    *,
    principal: str | None,
    ended: bool | None,
    below: int,
    limit: int,
    stage: Stage = "prefix",
) -> tuple[list[FoundSession], int | None]:
    """Returns the next sessions with a message that contains the words, and the entry from which to continue."""
    analysis = analyzer(db)
    former = stage == "former"
    wanted = AllWords(query, analysis, last_is_prefix=stage != "words")
    mark = count_former(db) if former else 0
    match = wanted.former if former else wanted.match
    if not match or (former and not mark):
        return [], None
    bits, sql = (FORMER_BITS, dialect.FIND_FORMER) if former else (ENTRY_BITS, dialect.FIND_ENTRIES)
    found: dict[str, FoundSession] = {}
    checked = 0
    for first, end in ranges(db, principal):
        lowest = first << bits
        below_here: int | None = min(end << bits, below)
        while below_here is not None:
            entries = matches(db, sql, match, lowest, below_here)
            below_here = None
            block, session, skipped = -1, None, 0
            for entry in entries:
                if len(found) >= limit or checked >= HITS:
                    return list(found.values()), below
                below = entry
                checked += 1
                if entry >> bits != block:
                    block, skipped = entry >> bits, 0
                    session = _session(db, block, principal, ended)
                if session is None or session[0] in found:
                    skipped += 1
                    if skipped > SKIPPED:
                        below_here = below = block << bits  # continue after this session
                        break
                    continue
                row = _row(db, session, entry, mark)
                if row is not None:
                    text = searchable(decode_message(decompress(*row)))
                    if wanted.is_in(text):
                        found[session[0]] = FoundSession(
                            id=session[0], excerpt=analysis.excerpt(text, wanted.shown, exact=True)
                        )
    return list(found.values()), None


def _session(db: Db, block: int, principal: str | None, ended: bool | None) -> tuple[str, int] | None:
    """Returns the session of a block and its first position, if that session is being searched."""
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
