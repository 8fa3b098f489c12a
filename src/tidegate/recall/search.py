"""One search in what was said: by words, by a regular expression, or by an index of another maker, and then in the
results that lie in the spool.

Guarantee: only what belongs to the asking principal is read, and only what was shown: nothing undone, nothing of the
turn that asks. Each stage reads a bounded amount in a bounded time, and says where it stopped: what was found comes
with the place to go on from, so that nothing is passed over. Regular expressions run in a child. Nothing is held.
"""

import re
import time

from tidegate.errors import ToolFailed
from tidegate.recall import render
from tidegate.recall.search_index import IndexHits, IndexUnanswered, PluginIndex
from tidegate.spool import Spool
from tidegate.spool.search import SearchMatches, SearchTerms, search_files, search_texts
from tidegate.store import Db, SpooledRow, Store, messages, search, sessions, spooled
from tidegate.store.tables.search import Mention
from tidegate.values import Frozen, Message

PATTERN_SECONDS = 15.0
"""That a regular expression may take over messages, and over results, before it is said how far it came."""
TEXTS_BYTES = 2 * 1024 * 1024
TEXTS = 5_000
"""Messages that a regular expression is tried on in one child."""
SESSIONS = 5_000
"""Sessions that one read looks through for messages or results: some ten milliseconds."""
FILES = 50
"""Results that are searched in one child."""
INDEX_AFTER = 1_000
"""Characters that an index of another maker may want to be told to go on."""

_CURSORS = re.compile(
    r"w(?P<entry>\d{1,19})|x(?P<number>\d{1,10})\.(?P<place>\d{1,19})|i(?P<skip>\d{1,4})\.(?P<after>.*)"
    r"|r(?P<of>\d{1,10})\.(?P<id>sp_\w{1,64}|-)\.(?P<byte>\d{1,18})",
    re.ASCII | re.DOTALL,
)
_LAST_PLACE = 2**60
_LAST_NUMBER = search.LAST >> search.MESSAGE_BITS
_RESULTS = f"r{_LAST_NUMBER}.-.0"
"""The last stage, from its beginning."""


class SearchRequest(Frozen, frozen=True):
    """What is sought, by whom and where: in `own`, the session that asks, or everywhere."""

    principal: str
    own: str
    turn: str
    everywhere: bool
    query: str
    regex: bool
    limit: int
    max_bytes: int

    @property
    def session(self) -> str | None:
        return None if self.everywhere else self.own


class ShownHit(Frozen, frozen=True):
    """What is shown of a place, and where a search goes on behind it."""

    heading: str
    excerpt: str
    after: str


class SearchStage(Frozen, frozen=True):
    """What one stage has found; where to go on when asked to, None when it went through all; what is to be said
    beside it."""

    hits: tuple[ShownHit, ...]
    after: str | None
    notes: tuple[str, ...] = ()


class MessageSearch:
    def __init__(self, store: Store, spool: Spool, index: PluginIndex | None) -> None:
        self._store = store
        self._spool = spool
        self._index = index

    async def seek(self, seeking: SearchRequest, after: str) -> SearchStage:
        """What is found from that place on, at most as many as wanted."""
        hits: list[ShownHit] = []
        notes: list[str] = []
        at = after or self._first(seeking)
        while True:
            stage = await self._stage(seeking, at, seeking.limit - len(hits))
            hits += stage.hits
            notes += stage.notes
            is_last = at.startswith("r")
            at = stage.after or _RESULTS
            if stage.after is None and is_last:
                return SearchStage(hits=tuple(hits), after=None, notes=tuple(notes))
            if stage.after is not None or len(hits) >= seeking.limit:
                return SearchStage(hits=tuple(hits), after=at, notes=tuple(notes))

    def _first(self, seeking: SearchRequest) -> str:
        if seeking.regex:
            return f"x{_LAST_NUMBER}.{_LAST_PLACE}"
        return "i0." if self._index is not None and self._index.is_open else f"w{search.LAST}"

    async def _stage(self, seeking: SearchRequest, at: str, limit: int) -> SearchStage:
        found = _CURSORS.fullmatch(at)
        kinds = "xr" if seeking.regex else "wir"
        if found is None or at[0] not in kinds:
            raise ToolFailed("context_search: after must be what the last answer gave, for the same search")
        if at[0] == "w":
            return await self._words(seeking, min(int(found["entry"]), search.LAST), limit)
        if at[0] == "i":
            return await self._asked(seeking, found["after"], int(found["skip"]), limit)
        if at[0] == "x":
            return await self._pattern(seeking, int(found["number"]), min(int(found["place"]), _LAST_PLACE), limit)
        start = (int(found["of"]), "" if found["id"] == "-" else found["id"], int(found["byte"]))
        return await self._results(seeking, start, limit)

    # -- words, by the full-text index --

    async def _words(self, seeking: SearchRequest, below: int, limit: int) -> SearchStage:
        notes: tuple[str, ...] = ()
        hits: list[ShownHit] = []
        following: int | None = below
        may_wait = True
        for _ in range(search.READS):
            if following is None or len(hits) >= limit:
                break
            found = await self._store.read(_said, seeking, following, limit - len(hits), may_wait=may_wait)
            if found is None:
                may_wait = False
                notes = _behind(await search.catch_up(self._store))
                continue
            more, following = found
            hits += more
        return SearchStage(hits=tuple(hits), after=None if following is None else f"w{following}", notes=notes)

    # -- an index of another maker --

    async def _asked(self, seeking: SearchRequest, after: str, skip: int, limit: int) -> SearchStage:
        index = self._index
        name = "" if index is None else index.name
        try:
            if index is None:
                raise IndexUnanswered("is not configured any more")
            found: IndexHits = await index.search(
                seeking.query, principal=seeking.principal, session=seeking.session, limit=limit, after=after
            )
            if len(found.after) > INDEX_AFTER:
                raise IndexUnanswered("gave no answer that can be read")
        except IndexUnanswered as error:
            if after or skip:
                raise ToolFailed(f"The index {name!r} {error}; search again without after.") from None
            stage = await self._words(seeking, search.LAST, limit)
            note = f"the index {name!r} {error}; this is the full-text search"
            return SearchStage(hits=stage.hits, after=stage.after, notes=(note, *stage.notes))
        claims = [(place, hit.message) for place, hit in enumerate(found.hits[:limit])][skip:]
        shown = await self._store.read(_claimed, seeking, claims, after)
        return SearchStage(hits=tuple(shown), after=f"i0.{found.after}" if found.after else None)

    # -- regular expressions --

    async def _pattern(self, seeking: SearchRequest, number: int, place: int, limit: int) -> SearchStage:
        left_behind = _behind(await search.catch_up(self._store)) if seeking.everywhere else ()
        until = time.monotonic() + PATTERN_SECONDS
        hits: list[ShownHit] = []
        at: tuple[int, int] | None = (number, place)
        while at is not None:
            begun = at
            said, at = await self._store.read(_texts, seeking, *at)
            left = until - time.monotonic()
            if not said:
                continue
            if left <= 0 or len(hits) >= limit:
                return SearchStage(
                    hits=tuple(hits), after=f"x{begun[0]}.{begun[1]}", notes=(*left_behind, *_late(left))
                )
            sought = SearchTerms(
                limit=limit - len(hits), max_bytes=seeking.max_bytes, seconds=left, pattern=seeking.query
            )
            try:
                spots = await search_texts(self._spool.workers, (text for *_, text in said), sought)
            except TimeoutError:
                raise ToolFailed(
                    f"This regular expression takes too long, at message {said[0][1]} or before it; use a simpler one, "
                    "or words."
                ) from None
            for spot in spots.found:
                of, at_place, heading, _ = said[spot.number]
                hits.append(ShownHit(heading=heading, excerpt=spot.text, after=f"x{of}.{at_place}"))
            if spots.next is not None:
                # The one before it was looked at, so that the search goes on behind that.
                last = said[spots.next[0] - 1][:2] if spots.next[0] else begun
                late = _late(0.0 if spots.late else 1.0)
                return SearchStage(hits=tuple(hits), after=f"x{last[0]}.{last[1]}", notes=(*left_behind, *late))
        return SearchStage(hits=tuple(hits), after=None, notes=left_behind)

    # -- results in the spool --

    async def _results(self, seeking: SearchRequest, start: tuple[int, str, int], limit: int) -> SearchStage:
        until = time.monotonic() + PATTERN_SECONDS
        hits: list[ShownHit] = []
        notes: list[str] = []
        number, id, byte = start
        at: tuple[int, str] | None = (number, id)
        while at is not None:
            found = await self._store.read(_files, seeking, *at)
            if found is None:
                raise ToolFailed("context_search: the result to go on from is gone; search again without after")
            rows, following, words = found
            left = until - time.monotonic()
            if rows and (left <= 0 or len(hits) >= limit):
                then = f"r{rows[0][0]}.{rows[0][1].id}.{byte}"
                return SearchStage(hits=tuple(hits), after=then, notes=(*notes, *_late(left)))
            if rows:
                spots = await self._search_files(seeking, rows, byte, limit - len(hits), left, words)
                hits += (_result(seeking, rows, spots, place) for place in range(len(spots.found)))
                notes += (f"the file of {rows[gone][1].id} is no longer there" for gone in spots.gone)
                if spots.next is not None:
                    of, row = rows[spots.next[0]]
                    late = _late(0.0 if spots.late else 1.0)
                    then = f"r{of}.{row.id}.{spots.next[1]}"
                    return SearchStage(hits=tuple(hits), after=then, notes=(*notes, *late))
            at, byte = following, 0
        return SearchStage(hits=tuple(hits), after=None, notes=tuple(notes))

    async def _search_files(
        self,
        seeking: SearchRequest,
        rows: list[tuple[int, SpooledRow]],
        byte: int,
        limit: int,
        seconds: float,
        words: tuple[str, ...],
    ) -> SearchMatches:
        sought = SearchTerms(
            limit=limit,
            max_bytes=seeking.max_bytes,
            seconds=seconds,
            words=words,
            pattern=seeking.query if seeking.regex else "",
        )
        try:
            paths = [self._spool.file(row.session, row.id) for _, row in rows]
            return await search_files(self._spool.workers, paths, sought, byte)
        except TimeoutError:
            raise ToolFailed(
                f"This search takes too long, in the result {rows[0][1].id} or one before it; use a simpler one."
            ) from None


def _behind(left: int) -> tuple[str, ...]:
    return (f"about {left} messages are not in the index yet, and were not searched; try again later",) if left else ()


def _late(left: float) -> tuple[str, ...]:
    return (f"not all was searched in {PATTERN_SECONDS:g} s",) if left <= 0 else ()


def _result(seeking: SearchRequest, rows: list[tuple[int, SpooledRow]], spots: SearchMatches, place: int) -> ShownHit:
    spot = spots.found[place]
    number, row = rows[spot.number]
    # The next place, or the byte behind this one: neither is found twice or left out.
    then = spots.found[place + 1] if place + 1 < len(spots.found) else None
    after = f"r{number}.{row.id}.{spot.byte + 1}"
    if then is not None:
        of, following = rows[then.number]
        after = f"r{of}.{following.id}.{then.byte}"
    where = f"conversation {row.session}, " if row.session != seeking.own else ""
    heading = f"{where}result {row.id} of {render.plain(row.name)} · line {spot.line}, byte {spot.byte}"
    return ShownHit(heading=f"{heading} · {render.when(row.created)}", excerpt=" ".join(spot.text.split()), after=after)


# -- what is read ------------------------------------------------------------------------------------------------------


def _is_behind(db: Db, turn: str) -> bool:
    """Whether something waits to be indexed that a search may find."""
    waiting = db.execute(
        "SELECT 1 FROM messages WHERE id > (SELECT value FROM meta WHERE key = 'indexed') AND turn IS NOT ? LIMIT 1",
        (turn,),
    ).get
    return waiting is not None


def _said(
    db: Db, seeking: SearchRequest, below: int, limit: int, *, may_wait: bool
) -> tuple[list[ShownHit], int | None] | None:
    """What is found next; None when the index is behind and is to be waited for."""
    if may_wait and _is_behind(db, seeking.turn):
        return None
    words = search.words(db, seeking.query)

    def show(mention: Mention) -> ShownHit:
        return ShownHit(
            heading=_heading(seeking, mention.session, mention.place, mention.message, mention.at),
            excerpt=render.excerpt(search.searchable(mention.message), words),
            after=f"w{mention.entry}",
        )

    return search.search_messages(
        db,
        seeking.query,
        show,
        principal=seeking.principal,
        session=seeking.session,
        own=seeking.own,
        turn=seeking.turn,
        below=below,
        limit=limit,
    )


def _claimed(db: Db, seeking: SearchRequest, claims: list[tuple[int, int]], after: str) -> list[ShownHit]:
    """Those of the messages that the principal may be shown, in that order; each came with its place in the answer."""
    words = search.words(db, seeking.query)
    found: list[ShownHit] = []
    for place, number in claims:
        mention = search.mention(db, number, seeking.turn) if 0 <= number < search.LAST else None
        if mention is not None and _may_read(db, seeking, mention.session):
            text = search.searchable(mention.message)
            heading = _heading(seeking, mention.session, mention.place, mention.message, mention.at)
            found.append(ShownHit(heading=heading, excerpt=render.excerpt(text, words), after=f"i{place + 1}.{after}"))
    return found


def _may_read(db: Db, seeking: SearchRequest, session: str) -> bool:
    if session == seeking.own:
        return True
    row = sessions.owned(db, session, seeking.principal) if seeking.everywhere else None
    return row is not None and row.kind == "named"


def _texts(
    db: Db, seeking: SearchRequest, number: int, place: int
) -> tuple[list[tuple[int, int, str, str]], tuple[int, int] | None]:
    """The next messages: the number of their session, their place, their heading and their text; and where to go on."""
    found: list[tuple[int, int, str, str]] = []
    size = looked = 0
    walk, following = _walk(db, seeking, number)
    for of, session in walk:
        before = place if of == number or not seeking.everywhere else _LAST_PLACE
        while rows := messages.newest(db, session, before=before, limit=TEXTS, most_bytes=TEXTS_BYTES):
            for row in reversed(rows):
                before = row.seq or 0
                looked += 1
                text = search.searchable(row.message) if row.turn != seeking.turn else ""
                if text:
                    found.append((of, before, _heading(seeking, session, before, row.message, row.at), text))
                    size += len(text)
                if size > TEXTS_BYTES or looked >= TEXTS:
                    return found, (of, before)
    return found, None if following is None else (following, _LAST_PLACE)


def _walk(db: Db, seeking: SearchRequest, number: int) -> tuple[list[tuple[int, str]], int | None]:
    """The next sessions to look through, from that number on, and the number to go on from."""
    if not seeking.everywhere:
        return [(number, seeking.own)], None
    below = search.sessions_below(db, seeking.principal, number + 1, SESSIONS)
    readable = [(of, session) for of, session in below if _may_read(db, seeking, session)]
    return readable, below[-1][0] - 1 if len(below) == SESSIONS else None


def _files(
    db: Db, seeking: SearchRequest, number: int, id: str
) -> tuple[list[tuple[int, SpooledRow]], tuple[int, str] | None, tuple[str, ...]] | None:
    """The next results, from that one on, each with the number of its session; where to go on; and the words. None when
    the one to begin with is no longer there."""
    words = () if seeking.regex else tuple(search.words(db, seeking.query))
    if not (words or seeking.regex):
        return [], None, ()
    found: list[tuple[int, SpooledRow]] = []
    following: int | None = None
    if id or not seeking.everywhere:
        session = search.session_of(db, seeking.principal, number) if seeking.everywhere else seeking.own
        row = spooled.get(db, id, session) if id and session else None
        row = row if row is not None and spooled.is_shown(db, row) else None
        if session is None or (id and row is None) or not _may_read(db, seeking, session):
            return None
        before = None
        if row is not None:
            found.append((number, row))
            before = (row.created, row.id)
        found += ((number, each) for each in spooled.latest_texts(db, session, before=before, limit=FILES))
        number -= 1
    if seeking.everywhere and len(found) <= FILES:
        room = FILES + 1 - len(found)
        more, following = search.results_below(db, seeking.principal, seeking.own, number + 1, SESSIONS, room)
        found += more
    if len(found) > FILES:
        return found[:FILES], (found[FILES][0], found[FILES][1].id), words
    return found, None if following is None else (following - 1, ""), words


def _heading(seeking: SearchRequest, session: str, place: int, message: Message, at: float) -> str:
    return render.heading(place, message, at, None if session == seeking.own else session)
