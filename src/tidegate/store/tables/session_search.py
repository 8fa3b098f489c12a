"""Search for sessions: by the words of their titles and names, and by those of their messages.

Only sessions of the searching principal are found, or all if there is no principal (the operator's view). Both indexes
are numbered by principal, so the time does not depend on other people's sessions.
"""

from typing import Any

from tidegate.store import dialect
from tidegate.store.interface import Db
from tidegate.store.rows import decode_message, decompress
from tidegate.store.tables.search import (
    FORMER_ROW,
    HITS,
    READS,
    SKIPPED,
    WORDS,
    AllWords,
    matches,
    place_of,
)
from tidegate.store.tables.search_index import (
    ENTRY_BITS,
    FORMER_BITS,
    LAST,
    Searchable,
    analyzer,
    block_of,
    catch_up,
    count_former,
    is_behind,
    ranges,
    searchable,
)
from tidegate.values import Frozen

TITLES = 1_000
"""The most sessions with a matching title that are compared by their last activity: those that began last."""


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
    if await store.read(is_behind, ""):
        await catch_up(store)
    titled: list[str] = await store.read(search_titles, query, principal=principal, ended=ended, limit=limit)
    found = {id: FoundSession(id=id, excerpt="") for id in titled}
    for former in (False, True):
        below: int | None = LAST
        for _ in range(READS):
            if below is None or len(found) >= limit:
                break
            more, below = await store.read(
                search_mentions, query, principal=principal, ended=ended, below=below, limit=limit, former=former
            )
            for each in more:
                found.setdefault(each.id, each)
    return list(found.values())[:limit]


def search_titles(db: Db, query: str, *, principal: str | None, ended: bool | None, limit: int) -> list[str]:
    """Returns the sessions whose title or name contains the words, the most recently active first."""
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
    former: bool = False,
) -> tuple[list[FoundSession], int | None]:
    """Returns the next sessions with a message that contains the words, and the entry to continue from."""
    analysis = analyzer(db)
    wanted = AllWords(query, analysis, last_is_prefix=True)
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
                        found[session[0]] = FoundSession(id=session[0], excerpt=analysis.excerpt(text, wanted.shown))
    return list(found.values()), None


def _session(db: Db, block: int, principal: str | None, ended: bool | None) -> tuple[str, int] | None:
    """The session of a block and its first position, if it is one of those searched."""
    known = block_of(db, block)
    if known is None:
        return None
    whose, over = db.execute("SELECT principal, ended FROM sessions WHERE id = ?", (known[0],)).get
    return known if principal in (None, whose) and (ended is None or (over is not None) == ended) else None


def _row(db: Db, session: tuple[str, int], entry: int, mark: int) -> Any:
    """The content of the entry's message, if it is shown."""
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
