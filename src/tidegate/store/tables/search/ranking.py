"""Ranked search: the messages that best match the words in a question, even if most of the words do not occur in them.

A message is scored by the terms that it contains, weighted by their rarity among the caller's own messages (BM25
without counting repetitions), and to a lesser degree by the terms of its neighbours: an answer often does not repeat
the words of the question before it. Long messages count less, since they contain many words. A date in the query raises
the scores of messages from that time. Among messages with equal scores, the newest comes first.

If messages have vectors (`vectors.py`), the ranking by words is fused with the ranking by vectors: the scores of both
are put on the same scale and added. For measurements, see docs/decisions/0045-vectors.md.

Only the caller's ranges of the index are read, and at most `TERM_ENTRIES` entries for each term, so the time of a
search is bounded. For measurements, see docs/decisions/0043-ranked-search.md.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from tidegate.store import dialect
from tidegate.store.analysis import EXCERPT_FROM, QUESTION_WORDS, TIME_WORDS, Analyzer, Period, periods
from tidegate.store.interface import Db
from tidegate.store.rows import Row, decode_message, decompress
from tidegate.store.tables.search import vectors
from tidegate.store.tables.search.search import Mention
from tidegate.store.tables.search.search_index import (
    BLOCK,
    ENTRY_BITS,
    FORMER_BITS,
    LENGTH_BITS,
    PLACE_BITS,
    analyzer,
    block_of,
    count_entries,
    count_former,
    ranges,
    searchable,
)
from tidegate.values import Message

T = TypeVar("T")
Scored = tuple[float, int, int, bool]

TERMS = 32
"""Maximum number of terms used from a query."""
QUERY_CHARACTERS = 4_000
TERM_ENTRIES = 10_000
"""Maximum number of entries read for one term: the newest entries, and the newest of those that also contain another
term of the query."""
FAR_ENTRIES = 2_000
"""Maximum number of entries for which the neighbours at distance two are ranked, too."""
RANKED = 200
"""Maximum number of messages that a ranked search returns, on all its pages together."""
CANDIDATES = 400
"""Number of messages whose rows are read, to check them and to compare their times."""

NEAR = 100
"""Maximum number of messages in the ranking by vectors."""
VECTOR_WEIGHT = 0.4
"""The weight of the similarity of vectors against that of words."""
BESIDE = 0.6
"""The share of its similarity with which a vector counts for the messages before and after its own."""

BEFORE, AFTER, FAR = 0.7, 0.5, 0.3
"""The weights of terms that occur only in the message before, only in the message after, or only in those beyond."""
LENGTH_WEIGHTS = (1.0, 0.9, 0.7, 0.5)
"""The weights of messages by length class."""
RERANKED = 100
"""The number of best messages whose texts are read, to compare their lengths and expressions of time."""
LENGTH_POWER = 0.1
"""A message's score is multiplied by its length to this power, since very short messages rarely answer a question."""
COMPARED_LENGTHS = (20, 400)
"""Lengths in characters below and above which differences do not matter."""
TIME_RISE = 0.2
"""The increase of the score if the question begins with "when" and the message contains an expression of time."""
NAME_WEIGHT = 0.3
"""The weight of a name in the question that many messages contain. It usually addresses the other person, so the
message is not by the person in question."""
NAME_SHARES = (0.03, 0.3)
"""The shares of all messages between which a name has this weight. Above, it is that of the sender in each message."""
NAME_MESSAGES = 100
"""Minimum number of messages for which these shares are meaningful."""
SAME_DAY, NEAR_DAY, SAME_PERIOD = 1.0, 0.5, 0.5
"""The increase of the score if the message is from the day in question, at most `NEAR_DAYS` away from it, or from the
month or year in question."""
NEAR_DAYS = 3
_LENGTH = (1 << LENGTH_BITS) - 1


RankedMessage = tuple[float, float, int, str, Any]
"""A message: its score, time, position and session, and the message itself or its row."""


class QueryVector(Row, frozen=True):
    """The vector of a query, and the identity of its model."""

    vector: bytes
    identity: str


class Question:
    """A query's terms and dates. `terms` are looked up in the index, `former` in the index in the earlier format."""

    def __init__(self, query: str, analyzer: Analyzer, now: float) -> None:
        words = analyzer.words(query[:QUERY_CHARACTERS])
        prefixes = {word for part in query.split() if part.endswith("*") for word in analyzer.words(part)[-1:]}
        content = [word for word in words if word not in QUESTION_WORDS] or words
        self.words = list(dict.fromkeys(content))
        """The words of the query, for excerpts."""
        self._completions: dict[str, list[str]] = {}
        terms: dict[str, None] = {}
        for word in self.words:
            if word in prefixes:
                terms |= dict.fromkeys([f"{word}*"])
                self._completions[f"{word}*"] = analyzer.completions(word)
            else:
                terms |= dict.fromkeys(analyzer.terms_of(word))
        self.terms = [term for term in terms if self._completions.get(term) != []][:TERMS]
        capitalised = (
            {part for part in query[:QUERY_CHARACTERS].split() if part[0].isupper()} if analyzer.english else ()
        )
        self.names = {term for part in capitalised for word in analyzer.words(part) for term in analyzer.terms_of(word)}
        self.asks_when = analyzer.english and "when" in words[:1]
        self.former = [word for word in self.words if not analyzer.is_stop_word(word)][:TERMS]
        self.periods = periods(query, now)

    def match(self, term: str) -> str:
        """Returns the query for entries with this term. A prefix is completed."""
        found = self._completions.get(term)
        return dialect.match_word(term) if found is None else dialect.match_any(found)


def rarity(count: int, total: int) -> float:
    """Returns the weight of a term that `count` of `total` texts contain."""
    return math.log(1 + (max(total, count) - count + 0.5) / (count + 0.5))


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
    """Returns the messages from rank `skip` on, converted with `show`, and whether there are more. The scope is the
    same as for `search.search_messages`. With a vector, messages with a similar one are found as well."""
    ranked: Iterable[RankedMessage] = _by_words(db, question, principal, session, own, turn)
    if vector is not None:
        ranked = _fused(list(ranked), nearest(db, vector, principal, session, own, turn), question)
    found: list[T] = []
    for rank, (_, at, place, of_session, content) in enumerate(ranked):
        if rank >= skip + limit or rank >= RANKED:
            return found, rank < RANKED
        if rank >= skip:
            message = content if isinstance(content, Message) else _message(content)
            found.append(show(Mention(0, of_session, place, at, message)))
    return found, False


def _by_words(
    db: Db, question: Question, principal: str, session: str | None, own: str, turn: str | None
) -> Iterator[RankedMessage]:
    """Yields the messages that best match the words, the best first. Those that are not compared by their texts follow
    those that are, with scores on the same scale."""
    scored = [*_scores(db, question, principal, session), *_former_scores(db, question, principal, session)]
    best = _visible(db, heapq.nlargest(CANDIDATES, scored), principal, session, own, turn)
    if question.periods:
        dated = [(score * _time_factor(question.periods, at), at, *rest) for score, at, *rest in best]
        best = iter(sorted(dated, key=lambda each: each[:4], reverse=True))
    compared: list[RankedMessage] = []
    splitter = analyzer(db) if question.asks_when else None
    for score, at, place, of_session, is_neighbour, row in itertools.islice(best, RERANKED):
        message = _message(row)
        text = searchable(message)
        if is_neighbour and not text:
            continue  # a message without text of its own, or one that quotes others
        if len(question.terms) > 1:
            score *= min(max(len(text), COMPARED_LENGTHS[0]), COMPARED_LENGTHS[1]) ** LENGTH_POWER
        if splitter is not None and not TIME_WORDS.isdisjoint(splitter.words(text[:EXCERPT_FROM])):
            score *= 1 + TIME_RISE
        compared.append((round(score, 6), at, place, of_session, message))
    compared.sort(key=lambda each: each[:4], reverse=True)
    yield from compared
    scale = 0.0
    for score, at, place, of_session, is_neighbour, row in best:
        if not is_neighbour:
            scale = scale or (compared[-1][0] / score if compared else 1.0)
            yield score * scale, at, place, of_session, row


def nearest(
    db: Db, vector: QueryVector, principal: str, session: str | None, own: str, turn: str | None
) -> list[RankedMessage]:
    """Returns the messages with the nearest vectors, the nearest first."""
    scope = [(first << PLACE_BITS, end << PLACE_BITS) for first, end in ranges(db, principal, session)]
    near = vectors.nearest(db, vector.vector, vector.identity, scope, NEAR)
    scored = ((similarity, key, 0, False) for key, similarity in near)
    return [(*found[:4], found[5]) for found in _visible(db, scored, principal, session, own, turn)]


def _fused(by_words: list[RankedMessage], near: list[RankedMessage], question: Question) -> list[RankedMessage]:
    """Returns the messages of both rankings by the sum of their scores, each on a scale of 0 to 1. A message also
    counts for the vector of the message before or after it."""
    if not near:
        return by_words
    messages = {(each[3], each[2]): each for each in (*near, *by_words)}
    best = max((each[0] for each in by_words), default=0.0) or 1.0
    scores = dict.fromkeys(messages, 0.0) | {(each[3], each[2]): each[0] / best for each in by_words}
    low, high = near[-1][0], near[0][0]
    longest = 1.0 + SAME_DAY if question.periods else 1.0
    own = {
        (of_session, place): _time_factor(question.periods, at) / longest * (similarity - low) / ((high - low) or 1.0)
        for similarity, at, place, of_session, _ in near
    }
    for of_session, place in messages:
        beside = max(own.get((of_session, place - 1), 0.0), own.get((of_session, place + 1), 0.0))
        similar = max(own.get((of_session, place), 0.0), BESIDE * beside)
        scores[of_session, place] += VECTOR_WEIGHT * similar
    fused = [(round(scores[message], 6), *each[1:]) for message, each in messages.items()]
    return sorted(fused, key=lambda each: each[:4], reverse=True)


def _message(row: Any) -> Message:
    return decode_message(decompress(row[7], row[8]))


def _visible(
    db: Db, scored: Iterable[Scored], principal: str, session: str | None, own: str, turn: str | None
) -> Iterator[tuple[float, float, int, str, bool, Any]]:
    """Yields (score, time, position, session, whether it has no term itself, row) for those messages that the principal
    may see."""
    blocks: dict[int, tuple[str, int] | None] = {}
    for score, key, former, is_neighbour in scored:
        if former:
            row = db.execute(f"{_ROW} WHERE messages.id = ?", (former,)).get
        else:
            block = key >> PLACE_BITS
            if block not in blocks:
                blocks[block] = block_of(db, block)
            of = blocks[block]
            row = None if of is None else db.execute(_PLACE, (of[0], of[1] + (key & (BLOCK - 1)))).get
        if row is None:
            continue
        of_session, whose, kind, place, at, undone, within, _, _ = row
        shown = place is not None and undone is None and (turn is None or within != turn)
        if shown and whose == principal and (of_session == own or (kind == "named" and session in (None, of_session))):
            yield score, at, place, of_session, is_neighbour, row


_ROW = (
    "SELECT messages.session, principal, kind, seq, at, undone, turn, body, packed FROM messages"
    " JOIN sessions ON sessions.id = messages.session"
)
_PLACE = f"{_ROW} WHERE messages.session = ? AND seq = ?"


def _scores(db: Db, question: Question, principal: str, session: str | None) -> list[Scored]:
    """Returns (score, key, 0, whether it has no term itself) for the messages that contain a term of the question and,
    if it has several terms, for their neighbours. The key is the entry without its length class."""
    total = max(1, count_entries(db, principal, session))
    scope = ranges(db, principal, session)
    masks: dict[int, int] = {}
    lengths: dict[int, int] = {}
    weights: list[float] = []
    for number, term in enumerate(question.terms):
        match = question.match(term)
        entries, complete = _entries(db, dialect.FIND_ENTRIES, match, scope, ENTRY_BITS)
        count = len(entries)
        others = [each for each in question.terms if each != term]
        if not complete:
            # The newest entries stand for all entries, as far as their block numbers allow this.
            covered = sum(max(0, end - max(first, entries[-1] >> ENTRY_BITS)) for first, end in scope)
            count = min(total, count * sum(end - first for first, end in scope) // max(1, covered))
            if others:
                match = f"{match} AND ({' OR '.join(map(question.match, others))})"
                entries += _entries(db, dialect.FIND_ENTRIES, match, scope, ENTRY_BITS)[0]
        weight = rarity(count, total)
        is_common = total >= NAME_MESSAGES and NAME_SHARES[0] < count / total < NAME_SHARES[1]
        weights.append(weight * NAME_WEIGHT if is_common and term in question.names else weight)
        bit = 1 << number
        for entry in entries:
            key = entry >> LENGTH_BITS
            masks[key] = masks.get(key, 0) | bit
            if entry & _LENGTH:
                lengths[key] = entry & _LENGTH
    return _with_neighbours(masks, lengths, weights)


def _with_neighbours(masks: dict[int, int], lengths: dict[int, int], weights: list[float]) -> list[Scored]:
    sums: dict[int, float] = {0: 0.0}

    def sum_of(mask: int) -> float:
        known = sums.get(mask)
        if known is None:
            known = sums[mask] = sum(weight for bit, weight in enumerate(weights) if mask >> bit & 1)
        return known

    found: list[Scored] = []
    keys = set(masks)
    if len(weights) > 1 and len(masks) <= TERM_ENTRIES:
        keys.update(key + 1 for key in masks)
        keys.update(key - 1 for key in masks)
        if len(masks) <= FAR_ENTRIES:
            keys.update(key + 2 for key in masks)
            keys.update(key - 2 for key in masks)
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
        if score:  # otherwise, only a message of another session is near
            found.append((score, key, 0, not own))
    return found


def _former_scores(db: Db, question: Question, principal: str, session: str | None) -> list[Scored]:
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
    """Returns the newest matching entries in the scope, and whether these are all of them."""
    found: list[int] = []
    for first, end in scope:
        left = TERM_ENTRIES - len(found)
        if left <= 0:
            return found, False
        found += [row[0] for row in db.execute(sql, (match, first << bits, end << bits, left)).fetchall()]
    return found, len(found) < TERM_ENTRIES


def _time_factor(wanted: list[Period], at: float) -> float:
    """Returns the factor by which the dates in the query raise the score of a message with this time."""
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
