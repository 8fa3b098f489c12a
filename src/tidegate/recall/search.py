"""Search of earlier messages: ranked (also by vectors, if there are any), for all words, with a regular expression or
with a plug-in index. A search of the spooled tool results follows.

Only the requesting principal's visible messages are read; undone messages and messages of the requesting turn are
excluded. Each stage reads a bounded amount in a bounded time and reports where it stopped. Every hit has a cursor that
continues after it, so nothing is skipped. Regular expressions run in worker threads. Searches share no state.
"""

import itertools
import re
import time
from typing import TYPE_CHECKING, Literal

from tidegate.errors import ToolFailed
from tidegate.plugins import IndexHits
from tidegate.recall import render
from tidegate.recall.search_index import IndexUnanswered, PluginIndex
from tidegate.spool import Spool
from tidegate.spool.search import SearchMatches, SearchTerms, search_files, search_texts
from tidegate.store import (
    AllWords,
    Db,
    Mention,
    QueryVector,
    SpooledRow,
    Store,
    messages,
    ranking,
    search,
    search_index,
    sessions,
    spooled,
)
from tidegate.values import Frozen, Message

if TYPE_CHECKING:
    from tidegate.recall.vectors import MessageVectors

PATTERN_SECONDS = 15.0
"""Time limit for searching messages with a regular expression, and another one for searching results. After that, the
search reports how far it got."""
TEXTS_BYTES = 2 * 1024 * 1024
TEXTS = 5_000
"""Number of messages to which one worker thread applies a regular expression."""
SESSIONS = 5_000
"""Number of sessions in which one read looks for messages or results, which takes about ten milliseconds."""
FILES = 50
"""Number of results that one worker thread searches."""
_PUNCTUATION = " \t\n.,;:!?\"'*()[]"
INDEX_AFTER = 1_000
"""Maximum length of a plug-in index's cursor, in characters."""

_CURSORS = re.compile(
    r"[wv](?P<entry>\d{1,19})|[km](?P<rank>\d{1,4})|x(?P<number>\d{1,10})\.(?P<place>\d{1,19})|i(?P<skip>\d{1,4})\.(?P<after>.*)"
    r"|r(?P<of>\d{1,10})\.(?P<id>sp_\w{1,64}|-)\.(?P<byte>\d{1,18})",
    re.ASCII | re.DOTALL,
)
_LAST_PLACE = 2**60
_LAST_NUMBER = 2**30
_PATTERN = f"x{_LAST_NUMBER}.{_LAST_PLACE}"
"""The cursor at which a search of the texts begins."""
_RESULTS = f"r{_LAST_NUMBER}.-.0"
"""The cursor at which the last stage, the search in results, begins."""


SearchKind = Literal["ranked", "exact", "regex"]
"""`ranked` finds the messages that best match any of the words, `exact` those that contain all words, and `regex` those
that match a regular expression."""
_KINDS: dict[SearchKind, str] = {"ranked": "kmixr", "exact": "wvxr", "regex": "xr"}
"""The initial letters of each kind's cursors."""


class SearchRequest(Frozen, frozen=True):
    """The query, the requesting principal, and the scope: only the requesting session `own` or, with `everywhere`, all
    of the principal's sessions."""

    principal: str
    own: str
    turn: str
    everywhere: bool
    query: str
    kind: SearchKind
    limit: int
    max_bytes: int

    @property
    def pattern(self) -> str:
        """The regular expression that texts must match: the query, or its literal text if it contains no words to look
        up."""
        if self.kind == "regex":
            return self.query
        return "(?i)" + r"\s+".join(map(re.escape, (self.query.strip(_PUNCTUATION) or self.query).split()))

    @property
    def session(self) -> str | None:
        return None if self.everywhere else self.own


class ShownHit(Frozen, frozen=True):
    """A hit as it is displayed, and the cursor that continues after it."""

    heading: str
    excerpt: str
    after: str


class SearchStage(Frozen, frozen=True):
    """The hits and remarks from one stage. `after` is the cursor from which to continue, or None if the stage is
    complete."""

    hits: tuple[ShownHit, ...]
    after: str | None
    notes: tuple[str, ...] = ()
    goes_on: bool = False
    """True if `after` is the beginning of the search's next stage."""


class MessageSearch:
    def __init__(
        self, store: Store, spool: Spool, index: PluginIndex | None, vectors: "MessageVectors | None" = None
    ) -> None:
        self._store = store
        self._spool = spool
        self._index = index
        self._vectors = vectors

    async def search(self, request: SearchRequest, after: str) -> SearchStage:
        """Returns at most the requested number of hits, starting at the cursor `after`."""
        hits: list[ShownHit] = []
        notes: list[str] = []
        at = after or self._first(request)
        while True:
            stage = await self._stage(request, at, request.limit - len(hits))
            hits += stage.hits
            notes += stage.notes
            is_last = at.startswith("r")
            at = stage.after or _RESULTS
            if stage.after is None and is_last:
                return SearchStage(hits=tuple(hits), after=None, notes=tuple(notes))
            if (stage.after is not None and not stage.goes_on) or len(hits) >= request.limit:
                return SearchStage(hits=tuple(hits), after=at, notes=tuple(notes))

    def _first(self, request: SearchRequest) -> str:
        if request.kind == "regex":
            return _PATTERN
        if request.kind == "exact":
            return f"w{search_index.LAST}"
        return "i0." if self._index is not None and self._index.is_open else "k0"

    async def _stage(self, request: SearchRequest, at: str, limit: int) -> SearchStage:
        found = _CURSORS.fullmatch(at)
        if found is None or at[0] not in _KINDS[request.kind]:
            raise ToolFailed("context_search: after must come from the last result of the same search")
        if at[0] in "km":
            return await self._ranked(request, int(found["rank"]), limit, fused=at[0] == "m")
        if at[0] in "wv":
            return await self._words(request, min(int(found["entry"]), search_index.LAST), limit, former=at[0] == "v")
        if at[0] == "i":
            return await self._index_hits(request, found["after"], int(found["skip"]), limit)
        if at[0] == "x":
            return await self._pattern(request, int(found["number"]), min(int(found["place"]), _LAST_PLACE), limit)
        start = (int(found["of"]), "" if found["id"] == "-" else found["id"], int(found["byte"]))
        return await self._results(request, start, limit)

    # -- ranked, by the full-text index --

    async def _ranked(self, request: SearchRequest, skip: int, limit: int, *, fused: bool = False) -> SearchStage:
        """Returns the next hits. A search that began with vectors (`fused`) continues with them, since the ranks of the
        hits already shown depend on them; one that began without continues without."""
        notes: tuple[str, ...] = ()
        if await self._store.read(search_index.is_behind, request.turn):
            notes = _behind(await search_index.catch_up(self._store))
        vector, missing = await self._query_vector(request) if fused or not skip else (None, "")
        if fused and vector is None:
            raise ToolFailed(f"This search cannot be continued, since {missing}; search again without `after`.")
        if missing:
            notes = (*notes, f"{missing}, so only words were compared")
        found = await self._store.read(_ranked_hits, request, skip, limit, vector)
        if found is None:
            return SearchStage(hits=(), after=_PATTERN, notes=(_UNRANKED,), goes_on=True)
        hits, more = found
        after = f"{'k' if vector is None else 'm'}{skip + len(hits)}" if more else None
        best = _RANKED if vector is None else _FUSED
        return SearchStage(hits=tuple(hits), after=after, notes=(*notes, *((best,) if hits else ())))

    async def _query_vector(self, request: SearchRequest) -> tuple[QueryVector | None, str]:
        """Returns the vector of the query, or why there is none."""
        if self._vectors is None:
            return None, ""
        from tidegate.recall.vectors import VectorsUnavailable  # loaded only with an embeddings model

        try:
            return await self._vectors.query(request.query, request.own, request.turn), ""
        except VectorsUnavailable as error:
            return None, f"the embeddings model {self._vectors.name!r} {error}"

    # -- all words, by the full-text index --

    async def _words(self, request: SearchRequest, below: int, limit: int, *, former: bool) -> SearchStage:
        notes: tuple[str, ...] = ()
        if not former and await self._store.read(search_index.is_behind, request.turn):
            notes = _behind(await search_index.catch_up(self._store))
        hits: list[ShownHit] = []
        following: int | None = below
        for _ in range(search.READS):
            if following is None or len(hits) >= limit:
                break
            found = await self._store.read(_word_hits, request, following, limit - len(hits), former=former)
            if found is None:
                return SearchStage(hits=(), after=_PATTERN, notes=(_UNRANKED,), goes_on=True)
            more, following = found
            hits += more
        if following is not None:
            return SearchStage(hits=tuple(hits), after=f"{'v' if former else 'w'}{following}", notes=notes)
        if not former and await self._store.read(search_index.count_former) > 0:
            return SearchStage(hits=tuple(hits), after=f"v{search_index.LAST}", notes=notes, goes_on=True)
        return SearchStage(hits=tuple(hits), after=None, notes=notes)

    # -- a plug-in index --

    async def _index_hits(self, request: SearchRequest, after: str, skip: int, limit: int) -> SearchStage:
        index = self._index
        if index is None:
            raise ToolFailed("The index that this search used is no longer configured; search again without `after`.")
        try:
            found: IndexHits = await index.search(
                request.query, principal=request.principal, session=request.session, limit=limit, after=after
            )
            if len(found.after) > INDEX_AFTER:
                raise IndexUnanswered("returned an invalid answer")
        except IndexUnanswered as error:
            if after or skip:
                raise ToolFailed(f"The index {index.name!r} {error}; search again without `after`.") from None
            stage = await self._ranked(request, 0, limit)
            note = f"the index {index.name!r} {error}; this is the full-text search"
            return SearchStage(hits=stage.hits, after=stage.after, notes=(note, *stage.notes))
        claims = [(place, hit.message) for place, hit in enumerate(found.hits[:limit])][skip:]
        shown = await self._store.read(_checked_claims, request, claims, after)
        return SearchStage(hits=tuple(shown), after=f"i0.{found.after}" if found.after else None)

    # -- regular expressions --

    async def _pattern(self, request: SearchRequest, number: int, place: int, limit: int) -> SearchStage:
        left_behind = _behind(await search_index.catch_up(self._store)) if request.everywhere else ()
        until = time.monotonic() + PATTERN_SECONDS
        hits: list[ShownHit] = []
        at: tuple[int, int] | None = (number, place)
        while at is not None:
            begun = at
            said, at = await self._store.read(_texts, request, *at)
            left = until - time.monotonic()
            if not said:
                continue
            if left <= 0 or len(hits) >= limit:
                return SearchStage(
                    hits=tuple(hits), after=f"x{begun[0]}.{begun[1]}", notes=(*left_behind, *_late(left))
                )
            terms = SearchTerms(
                limit=limit - len(hits), max_bytes=request.max_bytes, seconds=left, pattern=request.pattern
            )
            spots = await search_texts(self._spool.workers, (text for *_, text in said), terms)
            for spot in spots.found:
                of, at_place, heading, _ = said[spot.number]
                hits.append(ShownHit(heading=heading, excerpt=spot.text, after=f"x{of}.{at_place}"))
            if spots.next is not None:
                # The message before it has been searched, so the search continues after that message.
                last = said[spots.next[0] - 1][:2] if spots.next[0] else begun
                late = _late(0.0 if spots.late else 1.0)
                return SearchStage(hits=tuple(hits), after=f"x{last[0]}.{last[1]}", notes=(*left_behind, *late))
        return SearchStage(hits=tuple(hits), after=None, notes=left_behind)

    # -- results in the spool --

    async def _results(self, request: SearchRequest, start: tuple[int, str, int], limit: int) -> SearchStage:
        until = time.monotonic() + PATTERN_SECONDS
        hits: list[ShownHit] = []
        notes: list[str] = []
        number, id, byte = start
        at: tuple[int, str] | None = (number, id)
        while at is not None:
            found = await self._store.read(_files, request, *at)
            if found is None:
                raise ToolFailed(
                    "context_search: the result from which to continue no longer exists; search again without after"
                )
            rows, following, words = found
            left = until - time.monotonic()
            if rows and (left <= 0 or len(hits) >= limit):
                then = f"r{rows[0][0]}.{rows[0][1].id}.{byte}"
                return SearchStage(hits=tuple(hits), after=then, notes=(*notes, *_late(left)))
            if rows:
                spots = await self._search_files(request, rows, byte, limit - len(hits), left, words)
                hits += (_result(request, rows, spots, place) for place in range(len(spots.found)))
                notes += (f"the file of {rows[gone][1].id} no longer exists" for gone in spots.gone)
                if spots.next is not None:
                    of, row = rows[spots.next[0]]
                    late = _late(0.0 if spots.late else 1.0)
                    then = f"r{of}.{row.id}.{spots.next[1]}"
                    return SearchStage(hits=tuple(hits), after=then, notes=(*notes, *late))
            at, byte = following, 0
        return SearchStage(hits=tuple(hits), after=None, notes=tuple(notes))

    async def _search_files(
        self,
        request: SearchRequest,
        rows: list[tuple[int, SpooledRow]],
        byte: int,
        limit: int,
        seconds: float,
        words: tuple[str, ...],
    ) -> SearchMatches:
        terms = SearchTerms(
            limit=limit,
            max_bytes=request.max_bytes,
            seconds=seconds,
            words=words,
            pattern=request.query if request.kind == "regex" else "",
        )
        paths = [self._spool.file(row.session, row.id) for _, row in rows]
        return await search_files(self._spool.workers, paths, terms, byte)


_FUSED = (
    "the best matches by words and meaning first, of which the last may be far off; exact=true finds only messages "
    "with all of the words"
)
_RANKED = "the best matches for any of the words first; exact=true finds only messages with all of them"
_UNRANKED = "these words are too common to look up, so this is a search for the exact text"


def _behind(left: int) -> tuple[str, ...]:
    return (f"about {left} messages are not indexed yet and were not searched; try again later",) if left else ()


def _late(left: float) -> tuple[str, ...]:
    return (f"not everything was searched in {PATTERN_SECONDS:g} s",) if left <= 0 else ()


def _result(request: SearchRequest, rows: list[tuple[int, SpooledRow]], spots: SearchMatches, place: int) -> ShownHit:
    spot = spots.found[place]
    number, row = rows[spot.number]
    # Continue at the next hit or, if there is none, at the next byte, so that no hit is repeated or skipped.
    then = spots.found[place + 1] if place + 1 < len(spots.found) else None
    after = f"r{number}.{row.id}.{spot.byte + 1}"
    if then is not None:
        of, following = rows[then.number]
        after = f"r{of}.{following.id}.{then.byte}"
    where = f"conversation {row.session}, " if row.session != request.own else ""
    heading = f"{where}result {row.id} of {render.plain(row.name)} · line {spot.line}, byte {spot.byte}"
    return ShownHit(heading=f"{heading} · {render.when(row.created)}", excerpt=" ".join(spot.text.split()), after=after)


# -- reads --


def _ranked_hits(
    db: Db, request: SearchRequest, skip: int, limit: int, vector: QueryVector | None
) -> tuple[list[ShownHit], bool] | None:
    """Returns the hits from rank `skip` on, and whether there are more. Returns None if the query contains no words to
    look up and has no vector."""
    analyzer = search_index.analyzer(db)
    now = time.time()
    question = ranking.Question(request.query, analyzer, now)
    if not question.terms and vector is None:
        return None
    ranks = itertools.count(skip + 1)

    def show(mention: Mention) -> ShownHit:
        return ShownHit(
            heading=_heading(request, mention.session, mention.place, mention.message, mention.at),
            excerpt=analyzer.excerpt(search_index.searchable(mention.message), question.words),
            after=f"{'k' if vector is None else 'm'}{next(ranks)}",
        )

    return ranking.search_ranked(
        db,
        question,
        show,
        principal=request.principal,
        session=request.session,
        own=request.own,
        turn=request.turn,
        skip=skip,
        limit=limit,
        vector=vector,
    )


def _word_hits(
    db: Db, request: SearchRequest, below: int, limit: int, *, former: bool
) -> tuple[list[ShownHit], int | None] | None:
    """Returns the next hits, and the entry from which to continue. Returns None if the query contains no words to look
    up."""
    analyzer = search_index.analyzer(db)
    query = AllWords(request.query, analyzer)
    if not query.match:
        return None

    def show(mention: Mention) -> ShownHit:
        return ShownHit(
            heading=_heading(request, mention.session, mention.place, mention.message, mention.at),
            excerpt=analyzer.excerpt(search_index.searchable(mention.message), query.shown, exact=True),
            after=f"{'v' if former else 'w'}{mention.entry}",
        )

    return search.search_messages(
        db,
        query,
        show,
        principal=request.principal,
        session=request.session,
        own=request.own,
        turn=request.turn,
        below=below,
        former=former,
        limit=limit,
    )


def _checked_claims(db: Db, request: SearchRequest, claims: list[tuple[int, int]], after: str) -> list[ShownHit]:
    """Returns the claimed messages that the principal may see, in order. Each claim consists of its position in the
    index's response and a message id."""
    analyzer = search_index.analyzer(db)
    words = analyzer.words(request.query)
    found: list[ShownHit] = []
    for place, number in claims:
        mention = search.mention(db, number, request.turn) if 0 <= number < search_index.LAST else None
        if mention is not None and _may_read(db, request, mention.session):
            text = search_index.searchable(mention.message)
            heading = _heading(request, mention.session, mention.place, mention.message, mention.at)
            found.append(
                ShownHit(heading=heading, excerpt=analyzer.excerpt(text, words), after=f"i{place + 1}.{after}")
            )
    return found


def _may_read(db: Db, request: SearchRequest, session: str) -> bool:
    if session == request.own:
        return True
    row = sessions.owned(db, session, request.principal) if request.everywhere else None
    return row is not None and row.kind == "named"


def _texts(
    db: Db, request: SearchRequest, number: int, place: int
) -> tuple[list[tuple[int, int, str, str]], tuple[int, int] | None]:
    """Returns the next messages (session number, position, heading, text), and the position from which to continue."""
    found: list[tuple[int, int, str, str]] = []
    size = looked = 0
    walk, following = _walk(db, request, number)
    for of, session in walk:
        before = place if of == number or not request.everywhere else _LAST_PLACE
        while rows := messages.newest(db, session, before=before, limit=TEXTS, most_bytes=TEXTS_BYTES):
            for row in reversed(rows):
                before = row.seq or 0
                looked += 1
                text = search_index.searchable(row.message) if row.turn != request.turn else ""
                if text:
                    found.append((of, before, _heading(request, session, before, row.message, row.at), text))
                    size += len(text)
                if size > TEXTS_BYTES or looked >= TEXTS:
                    return found, (of, before)
    return found, None if following is None else (following, _LAST_PLACE)


def _walk(db: Db, request: SearchRequest, number: int) -> tuple[list[tuple[int, str]], int | None]:
    """Returns the next sessions to search, starting at `number`, and the number from which to continue."""
    if not request.everywhere:
        return [(number, request.own)], None
    below = search_index.sessions_below(db, request.principal, number + 1, SESSIONS)
    readable = [(of, session) for of, session in below if _may_read(db, request, session)]
    return readable, below[-1][0] - 1 if len(below) == SESSIONS else None


def _line_words(db: Db, request: SearchRequest) -> list[str]:
    """Returns the words that a line in a result must contain."""
    analyzer = search_index.analyzer(db)
    if request.kind == "exact":
        return AllWords(request.query, analyzer).shown
    if request.kind == "ranked":
        words = ranking.Question(request.query, analyzer, 0.0).words
        return [word for word in words if not analyzer.is_stop_word(word)]
    return []


def _files(
    db: Db, request: SearchRequest, number: int, id: str
) -> tuple[list[tuple[int, SpooledRow]], tuple[int, str] | None, tuple[str, ...]] | None:
    """Returns the next results, starting with the result `id`, each with its session number. Also returns the position
    from which to continue, and the query's words. Returns None if the first result no longer exists."""
    words = tuple(_line_words(db, request))
    if not (words or request.kind == "regex"):
        return [], None, ()
    found: list[tuple[int, SpooledRow]] = []
    following: int | None = None
    if id or not request.everywhere:
        session = search_index.session_of(db, request.principal, number) if request.everywhere else request.own
        row = spooled.get(db, id, session) if id and session else None
        row = row if row is not None and spooled.is_shown(db, row) else None
        if session is None or (id and row is None) or not _may_read(db, request, session):
            return None
        before = None
        if row is not None:
            found.append((number, row))
            before = (row.created, row.id)
        found += ((number, each) for each in spooled.latest_texts(db, session, before=before, limit=FILES))
        number -= 1
    if request.everywhere and len(found) <= FILES:
        room = FILES + 1 - len(found)
        more, following = search.results_below(db, request.principal, request.own, number + 1, SESSIONS, room)
        found += more
    if len(found) > FILES:
        return found[:FILES], (found[FILES][0], found[FILES][1].id), words
    return found, None if following is None else (following - 1, ""), words


def _heading(request: SearchRequest, session: str, place: int, message: Message, at: float) -> str:
    return render.heading(place, message, at, None if session == request.own else session)
