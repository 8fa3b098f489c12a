"""Ranked search: the messages that best match the words of a question, most of which need not occur.

A message is scored by the terms that it contains, weighted by their rarity among the caller's own messages (BM25
without counting repetitions), and to a lesser degree by the terms of its neighbours: an answer often does not repeat
the words of the question before it. Long messages count less, since they contain many words. Dates in the query raise
messages of that time. Among equals, the newer message comes first.

If messages have vectors (`vectors.py`), the ranking by words is fused with the ranking by vectors: the scores of both
are put on the same scale and added. docs/decisions/0045-vectors.md has the measurements.

Only the caller's ranges of the index are read, and of each term at most `TERM_ENTRIES` entries, so the time of a search
is bounded. docs/decisions/0043-ranked-search.md has the measurements.
"""

import heapq
import math
from collections.abc import Callable
from typing import Any, TypeVar

from tidegate.store import dialect
from tidegate.store.analysis import QUESTION_WORDS, Analyzer, Period, periods
from tidegate.store.interface import Db
from tidegate.store.rows import Row, decode_message, decompress
from tidegate.store.tables import vectors
from tidegate.store.tables.search import Mention
from tidegate.store.tables.search_index import (
    BLOCK,
    ENTRY_BITS,
    FORMER_BITS,
    LENGTH_BITS,
    PLACE_BITS,
    block_of,
    count_entries,
    count_former,
    ranges,
    searchable,
)

T = TypeVar("T")

TERMS = 32
"""The most terms of a query that are used."""
QUERY_CHARACTERS = 4_000
TERM_ENTRIES = 10_000
"""The most entries of one term that are read: the newest, and the newest among those with another term of the query."""
RANKED = 200
"""The most messages that a ranked search returns, over all its pages."""
CANDIDATES = 400
"""The number of messages whose rows are read, to check them and to compare their times."""

NEAR = 100
"""The most messages of the ranking by vectors."""
VECTOR_WEIGHT = 0.4
"""The weight of the similarity of vectors against that of words."""
BESIDE = 0.6
"""The share of its similarity for which a vector counts for the messages before and after its own."""

BEFORE, AFTER, FAR = 0.5, 0.4, 0.25
"""The weights of terms that occur only in the message before, only in the message after, or only in those beyond."""
LENGTH_WEIGHTS = (1.0, 0.9, 0.7, 0.5)
"""The weights of messages by length class."""
SAME_DAY, NEAR_DAY, SAME_PERIOD = 1.0, 0.5, 0.5
"""By how much the score rises if the message is of the day in question, at most `NEAR_DAYS` from it, or of the month or
year in question."""
NEAR_DAYS = 3
_LENGTH = (1 << LENGTH_BITS) - 1


RankedRow = tuple[float, float, int, str, bool, Any]
"""A message: its score, time, position and session, whether it has no term of the query itself, and its row."""


class QueryVector(Row, frozen=True):
    """The vector of a query, and the identity of its model."""

    vector: bytes
    identity: str


class Question:
    """The terms and dates of a query. `terms` are looked up in the index, `former` in that of the earlier format."""

    def __init__(self, query: str, analyzer: Analyzer, now: float) -> None:
        words = analyzer.words(query[:QUERY_CHARACTERS])
        prefixes = {word for part in query.split() if part.endswith("*") for word in analyzer.words(part)[-1:]}
        content = [word for word in words if word not in QUESTION_WORDS] or words
        self.words = list(dict.fromkeys(content))
        """The words of the query, for excerpts."""
        terms: dict[str, None] = {}
        for word in self.words:
            if word in prefixes:
                beginnings, _ = analyzer.beginnings(word)
                terms |= dict.fromkeys(f"{each}*" for each in beginnings)
            else:
                terms |= dict.fromkeys(analyzer.terms_of(word))
        self.terms = list(terms)[:TERMS]
        self.former = [word for word in self.words if not analyzer.is_stop_word(word)][:TERMS]
        self.periods = periods(query, now)


def search_ranked(
    db: Db,
    question: Question,
    show: Callable[[Mention], T],
    *,
    principal: str,
    session: str | None,
    own: str,
    turn: str | None = None,
    skip: int = 0,
    limit: int = 20,
    vector: QueryVector | None = None,
) -> tuple[list[T], bool]:
    """Returns the messages with the ranks from `skip` on, converted by `show`, and whether there are more. The scope is
    that of `search.search_messages`. With a vector, messages with a similar one are found as well."""
    rows = _ranked_rows(db, question, principal=principal, session=session, own=own, turn=turn)
    if vector is not None:
        near = nearest_rows(db, vector, principal=principal, session=session, own=own, turn=turn)
        rows = _fused(rows, near, question)
    found: list[T] = []
    rank = 0
    for _, at, place, of_session, is_neighbour, row in rows:
        if rank >= skip + limit:
            return found, rank < RANKED
        message = decode_message(decompress(row[7], row[8])) if is_neighbour or rank >= skip else None
        if is_neighbour and (message is None or not searchable(message)):
            continue  # a message without text of its own, or one that quotes others
        rank += 1
        if message is not None and rank > skip:
            if rank > RANKED:
                break
            found.append(show(Mention(0, of_session, place, at, message)))
    return found, False


def nearest_rows(
    db: Db, vector: QueryVector, *, principal: str, session: str | None, own: str, turn: str | None
) -> list[RankedRow]:
    """Returns the messages with the nearest vectors, the nearest first."""
    scope = [(first << PLACE_BITS, end << PLACE_BITS) for first, end in ranges(db, principal, session)]
    found: list[RankedRow] = []
    blocks: dict[int, tuple[str, int] | None] = {}
    for key, similarity in vectors.nearest(db, vector.vector, vector.identity, scope, NEAR):
        row = _row_at(db, key, blocks)
        if row is not None and _is_shown(row, principal, session, own, turn):
            found.append((similarity, row[4], row[3], row[0], False, row))
    return found


def _fused(by_words: list[RankedRow], near: list[RankedRow], question: Question) -> list[RankedRow]:
    """Returns the messages of both rankings by the sum of their scores, each on a scale of 0 to 1. A message also
    counts for the vector of the message before or after it."""
    if not near:
        return by_words
    rows = {(row[3], row[2]): row for row in (*near, *by_words)}
    best = max((row[0] for row in by_words), default=0.0) or 1.0
    scores = dict.fromkeys(rows, 0.0) | {(row[3], row[2]): row[0] / best for row in by_words}
    low, high = near[-1][0], near[0][0]
    longest = 1.0 + SAME_DAY if question.periods else 1.0
    own = {
        (of_session, place): _time_factor(question.periods, at) / longest * (similarity - low) / ((high - low) or 1.0)
        for similarity, at, place, of_session, _, _ in near
    }
    for of_session, place in rows:
        beside = max(own.get((of_session, place - 1), 0.0), own.get((of_session, place + 1), 0.0))
        similar = max(own.get((of_session, place), 0.0), BESIDE * beside)
        scores[of_session, place] += VECTOR_WEIGHT * similar
    fused = [(round(scores[message], 6), *row[1:]) for message, row in rows.items()]
    return sorted(fused, key=lambda each: each[:4], reverse=True)


def _ranked_rows(
    db: Db, question: Question, *, principal: str, session: str | None, own: str, turn: str | None
) -> list[RankedRow]:
    """Returns the messages that best match the words, the best first."""
    scored = [*_scores(db, question, principal, session), *_former_scores(db, question, principal, session)]
    rows: list[RankedRow] = []
    blocks: dict[int, tuple[str, int] | None] = {}
    for score, key, former, is_neighbour in heapq.nlargest(CANDIDATES, scored):
        row = db.execute(f"{_ROW} WHERE messages.id = ?", (former,)).get if former else _row_at(db, key, blocks)
        if row is not None and _is_shown(row, principal, session, own, turn):
            at = row[4]
            score = round(score * _time_factor(question.periods, at), 6)
            rows.append((score, at, row[3], row[0], is_neighbour, row))
    rows.sort(key=lambda each: each[:4], reverse=True)
    return rows


def _row_at(db: Db, key: int, blocks: dict[int, tuple[str, int] | None]) -> Any:
    """Returns the row of the message with this number. `blocks` keeps the sessions of the blocks already read."""
    block = key >> PLACE_BITS
    if block not in blocks:
        blocks[block] = block_of(db, block)
    of = blocks[block]
    return None if of is None else db.execute(_PLACE, (of[0], of[1] + (key & (BLOCK - 1)))).get


def _is_shown(row: Any, principal: str, session: str | None, own: str, turn: str | None) -> bool:
    of_session, whose, kind, place, _, undone, within, _, _ = row
    shown = place is not None and undone is None and (turn is None or within != turn)
    is_searched = whose == principal and (of_session == own or (kind == "named" and session in (None, of_session)))
    return bool(shown and is_searched)


_ROW = (
    "SELECT messages.session, principal, kind, seq, at, undone, turn, body, packed FROM messages"
    " JOIN sessions ON sessions.id = messages.session"
)
_PLACE = f"{_ROW} WHERE messages.session = ? AND seq = ?"


def _scores(db: Db, question: Question, principal: str, session: str | None) -> list[tuple[float, int, int, bool]]:
    """Returns (score, key, 0, whether it has no term itself) for the messages that contain a term of the question and,
    if it has several terms, for their neighbours. The key is the entry without its length class."""
    total = max(1, count_entries(db, principal, session))
    scope = ranges(db, principal, session)
    masks: dict[int, int] = {}
    lengths: dict[int, int] = {}
    weights: list[float] = []
    for number, term in enumerate(question.terms):
        match = dialect.match_word(term)
        entries, complete = _entries(db, dialect.FIND_ENTRIES, match, scope, ENTRY_BITS)
        count = len(entries)
        others = [each for each in question.terms if each != term]
        if not complete:
            # The newest entries stand for all, as far as the numbers of their blocks tell.
            covered = sum(max(0, end - max(first, entries[-1] >> ENTRY_BITS)) for first, end in scope)
            count = min(total, count * sum(end - first for first, end in scope) // max(1, covered))
            if others:
                match = dialect.match_all([match, dialect.match_any(others)])
                entries += _entries(db, dialect.FIND_ENTRIES, match, scope, ENTRY_BITS)[0]
        weights.append(math.log(1 + (max(total, count) - count + 0.5) / (count + 0.5)))
        bit = 1 << number
        for entry in entries:
            key = entry >> LENGTH_BITS
            masks[key] = masks.get(key, 0) | bit
            if entry & _LENGTH:
                lengths[key] = entry & _LENGTH
    return _with_neighbours(masks, lengths, weights)


def _with_neighbours(
    masks: dict[int, int], lengths: dict[int, int], weights: list[float]
) -> list[tuple[float, int, int, bool]]:
    sums: dict[int, float] = {0: 0.0}

    def sum_of(mask: int) -> float:
        known = sums.get(mask)
        if known is None:
            known = sums[mask] = sum(weight for bit, weight in enumerate(weights) if mask >> bit & 1)
        return known

    found: list[tuple[float, int, int, bool]] = []
    keys = set(masks)
    if len(weights) > 1 and len(masks) <= TERM_ENTRIES:
        keys.update(key + 1 for key in masks)
        keys.update(key - 1 for key in masks)
    known_scores: dict[tuple[int, int, int, int], float] = {}
    get = masks.get
    for key in keys:
        place = key & (BLOCK - 1)
        inner = 1 < place < BLOCK - 2  # otherwise, a neighbour may be in another session
        own = get(key, 0)
        before = get(key - 1, 0) if inner or place > 0 else 0
        after = get(key + 1, 0) if inner or place < BLOCK - 1 else 0
        far = (get(key - 2, 0) if inner or place > 1 else 0) | (get(key + 2, 0) if inner or place < BLOCK - 2 else 0)
        case = (own, before, after, far)
        score = known_scores.get(case)
        if score is None:
            score = sum_of(own) + BEFORE * sum_of(before & ~own) + AFTER * sum_of(after & ~before & ~own)
            score += FAR * sum_of(far & ~after & ~before & ~own)
            known_scores[case] = score
        if key in lengths:
            score *= LENGTH_WEIGHTS[lengths[key]]
        found.append((score, key, 0, not own))
    return found


def _former_scores(
    db: Db, question: Question, principal: str, session: str | None
) -> list[tuple[float, int, int, bool]]:
    """Returns (score, 0, row id, False) for messages that only the index of the earlier format contains."""
    mark = count_former(db)
    if not mark:
        return []
    scope = ranges(db, principal, session)
    scores: dict[int, float] = {}
    for word in question.former:
        entries, _ = _entries(db, dialect.FIND_FORMER, dialect.match_word(word), scope, FORMER_BITS)
        weight = math.log(1 + (mark + 0.5) / (len(entries) + 0.5))
        for entry in entries:
            id = entry & ((1 << FORMER_BITS) - 1)
            if id <= mark:
                scores[id] = scores.get(id, 0.0) + weight
    return [(score, 0, id, False) for id, score in scores.items()]


def _entries(db: Db, sql: str, match: str, scope: list[tuple[int, int]], bits: int) -> tuple[list[int], bool]:
    """Returns the newest matching entries in the scope, and whether these are all."""
    found: list[int] = []
    for first, end in scope:
        left = TERM_ENTRIES - len(found)
        if left <= 0:
            return found, False
        found += [row[0] for row in db.execute(sql, (match, first << bits, end << bits, left)).fetchall()]
    return found, len(found) < TERM_ENTRIES


def _time_factor(wanted: list[Period], at: float) -> float:
    """Returns the factor by which the dates in the query raise the score of a message of this time."""
    rise = 0.0
    for period in wanted:
        days = period.distance(at)
        if days is None:
            continue
        is_day = period.day is not None or period.first is not None
        if days == 0:
            rise = max(rise, SAME_DAY if is_day else SAME_PERIOD)
        elif is_day and days <= NEAR_DAYS:
            rise = max(rise, NEAR_DAY)
    return 1.0 + rise
