"""Text analysis for search: words, index terms, stop words and dates in questions.

Messages and queries are analysed in the same way. A *word* is a token returned by the database's tokenizer, in lower
case and without accents. A *term* is an entry in the index: a word's stem or, for scripts written without spaces, a
pair of adjacent characters. Stop words have no terms. The time needed is linear in the length of the text.

An `Analyzer` is used for one call in one thread, since stemmers must not be shared between threads.
"""

import datetime
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import Stemmer  # type: ignore[import-not-found]

from tidegate.values import NO_LANGUAGE, Frozen

LONGEST_WORD = 64
"""In the index, longer words, such as encoded data, are cut to this length."""
AROUND = 120
"""Number of characters in an excerpt before the words, and half the number after them."""
EXCERPT_FROM = 50_000
"""Number of characters of a long text from which an excerpt is taken."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)

STOP_WORDS = _words(
    "a about above after again all also am an and any are as at be because been before being below between both "
    "but by can could did do does doing down during each few for from further had has have having he her here "
    "hers herself him himself his how i if in into is it its itself just me more most my myself no nor not now of "
    "off on once only or other our ours ourselves out over own same she should so some such than that the their "
    "theirs them themselves then there these they this those through to too under until up us very was we were "
    "what when where which while who whom whose why will with would you your yours yourself yourselves d ll m re "
    "s t ve don didn doesn isn wasn aren weren hasn haven hadn wouldn couldn shouldn won"
)
"""English words that are not indexed. They make up almost half of all words, and no answer depends on them."""
SUFFIXES = _words(
    "able ably al ally ance ant ate ated ating ation ations ative atives bilities bility ed edly ely ence ent er "
    "ers es ful fully ible ied ier ies iest ily iness ing ings ingly ion ions ism ist ists ities ity ive ively "
    "ization ize ized izes izing less ly ment ments ness or ors ous ously s y"
)
"""English suffixes that are removed by a stemmer."""
ENDS = {
    begun: tuple(sorted({suffix[len(begun) :] for suffix in SUFFIXES if suffix.startswith(begun)}))
    for begun in {suffix[:end] for suffix in SUFFIXES for end in range(1, len(suffix) + 1)}
}
"""The ends of suffixes by their beginnings. A prefix that ends in such a beginning is completed, to find words whose
stem is shorter than the prefix."""
DOUBLED_ENDS = ("ing", "ed", "er")
"""Suffixes after which a doubled letter is removed too."""
QUESTION_WORDS = _words(
    "ask asked discuss discussed find kind long many mention mentioned much often say said talk talked tell told "
    "type conversation message messages according"
)
"""Words in questions about conversations that describe the question, not the answer. They are ignored in ranked
searches if the query contains other words."""

TIME_WORDS = _words(
    "yesterday today tonight tomorrow last next ago recently just week weeks weekend month months year years morning "
    "evening monday tuesday wednesday thursday friday saturday sunday "
).union(MONTHS)
"""Expressions of time that messages use to say when something happened."""

_LONGEST_SUFFIX = max(map(len, SUFFIXES))

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_RUNS = re.compile(f"({_UNSPACED.pattern}+)")
_MONTH = "|".join(f"{name}|{name[:3]}" for name in MONTHS)
_DATES = (
    re.compile(r"\b(?P<year>\d{4})-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2}))?\b"),
    re.compile(rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<name>{_MONTH})\b(?:,?\s*(?P<year>\d{{4}})\b)?"),
    re.compile(rf"\b(?P<name>{_MONTH})\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s*(?P<year>\d{{4}})\b)?"),
    re.compile(rf"\b(?P<name>{_MONTH})\b,?\s+(?:of\s+)?(?P<year>\d{{4}})\b"),
    re.compile(rf"\b(?:in|during|since|of|last|this|early|late|mid)\s+(?P<name>{'|'.join(MONTHS)})\b"),
    re.compile(r"\b(?:in|during|since|of)\s+(?P<year>(?:19|20)\d{2})\b"),
)
_RELATIVE = {"today": (0, 0), "yesterday": (1, 1), "last week": (1, 13), "this week": (0, 6), "last month": (1, 61)}
"""Expressions relative to the current day, each with its last and first day, in days before today."""


class Period(Frozen, frozen=True):
    """A period mentioned in a query: a year, a month, a day of a month, or the seconds from `first` to `end`."""

    year: int | None = None
    month: int | None = None
    day: int | None = None
    first: float | None = None
    end: float | None = None

    def distance(self, at: float) -> float | None:
        """Returns the number of days between this time and the period, 0 if the time is within the period, or None if
        the period leaves this open."""
        if self.first is not None and self.end is not None:
            return 0.0 if self.first <= at < self.end else max(self.first - at, at - self.end) / 86400
        then = time.gmtime(at)
        year = self.year if self.year is not None else then.tm_year
        if self.month is None:
            return 0.0 if then.tm_year == year else 366.0 * abs(then.tm_year - year)
        if self.day is None:
            return 31.0 * abs((then.tm_year - year) * 12 + then.tm_mon - self.month)
        try:
            day = datetime.date(year, self.month, self.day)
        except ValueError:
            return None
        return float(abs((datetime.date(then.tm_year, then.tm_mon, then.tm_mday) - day).days))


class WordSplitter(Protocol):
    """The database's tokenizer."""

    def words(self, text: str) -> list[str]: ...
    def spans(self, text: str) -> list[tuple[int, int, str]]: ...


class Analyzer:
    """`language` is one of `values.LANGUAGES`. `vocabulary` returns those of the given terms that are in the index, and
    the terms of the index that begin with one of the given prefixes, up to a limit."""

    def __init__(
        self,
        tokenizer: WordSplitter,
        language: str,
        vocabulary: Callable[[Sequence[str], Sequence[str]], list[str]] = lambda terms, prefixes: list(terms),
    ) -> None:
        self.words = tokenizer.words
        self._spans = tokenizer.spans
        self._vocabulary = vocabulary
        self.english = language == "english"
        self._stop_words = STOP_WORDS if self.english else frozenset[str]()
        self._stem: Callable[[list[str]], list[str]] = (
            list if language == NO_LANGUAGE else Stemmer.Stemmer(language).stemWords
        )

    def terms(self, text: str) -> list[str]:
        """Returns a text's distinct terms, in order of first occurrence."""
        return list(dict.fromkeys(self._terms(self.words(text))))

    def terms_of(self, word: str) -> list[str]:
        """Returns the terms of one word; none if it is a stop word."""
        return list(self._terms([word]))

    def begins_stop_word(self, prefix: str) -> bool:
        """True if words that are not indexed may begin with this prefix."""
        return any(word.startswith(prefix) for word in self._stop_words)

    def completions(self, prefix: str) -> list[str]:
        """Returns the terms in the index of the words that begin with `prefix`. Other words may have them too. If there
        are very many, the shortest are returned. In languages other than English, a word whose stem is shorter than the
        prefix may be missed."""
        prefixes, terms = self._beginnings(prefix)
        return self._vocabulary(terms, prefixes)

    def _beginnings(self, prefix: str) -> tuple[list[str], list[str]]:
        """Returns (prefixes, terms): a word that begins with `prefix` has a term that begins with one of the prefixes
        or is one of the terms."""
        if _UNSPACED.search(prefix):
            parts = list(_parts(prefix))
            return ([parts[0]], []) if len(parts) == 1 else ([], parts[:1])
        ends: list[str] = [""]
        if self.english:
            for length in range(1, min(len(prefix), _LONGEST_SUFFIX) + 1):
                ends += ENDS.get(prefix[-length:], ())
            ends += DOUBLED_ENDS if prefix[-2:-1] == prefix[-1:] else ()
        stems = self._stem([prefix + end for end in ends])
        return [prefix], list(dict.fromkeys(stem for stem in stems if not stem.startswith(prefix)))

    def excerpt(self, text: str, words: Iterable[str], *, exact: bool = False) -> str:
        """Returns one line with the part of a text that contains most of these words or, if there is none, its
        beginning. A word that ends in * is a prefix. Unless `exact` is set, other words with the same stem count,
        too."""
        start = 0 if len(text) <= 2 * AROUND else self._densest(text[:EXCERPT_FROM], list(words), exact)
        first, last = max(0, start - AROUND), min(len(text), start + 2 * AROUND)
        line = " ".join(text[first:last].split())
        return f"{'…' if first else ''}{line}{'…' if last < len(text) else ''}"

    def _densest(self, text: str, words: list[str], exact: bool) -> int:
        """Returns the offset of the part with the most distinct terms."""
        prefixes = tuple(word[:-1] for word in words if word[-1:] == "*")
        complete = [word for word in words if word[-1:] != "*"]
        terms = {term for word in complete for term in ([word] if exact else self.terms_of(word) or [word])}
        spans = self._spans(text)
        distinct = {word for _, _, word in spans}
        known: dict[str, tuple[str, ...]] = {word: (word,) for word in terms & distinct}
        if not exact:
            for word, stem in zip(distinct, self._stem(list(distinct)), strict=True):
                if stem in terms:
                    known[word] = (stem,)
        if any(not term.isascii() for term in terms):
            for word in distinct:
                if not word.isascii():
                    known[word] = tuple(term for term in terms if term in word or term in known.get(word, ()))
        for word in distinct if prefixes else ():
            if word.startswith(prefixes):
                known[word] = (*known.get(word, ()), *(prefix for prefix in prefixes if word.startswith(prefix)))
        found = [(start, term) for start, _, word in spans if word in known for term in known[word]]
        best, most, first = 0, 0, 0
        inside: dict[str, int] = {}
        for start, term in found:
            inside[term] = inside.get(term, 0) + 1
            while start - found[first][0] > AROUND:
                left = found[first][1]
                inside[left] -= 1
                if not inside[left]:
                    del inside[left]
                first += 1
            if len(inside) > most:
                best, most = found[first][0], len(inside)
        return best if text.isascii() else len(text.encode(errors="replace")[:best].decode(errors="ignore"))

    def is_stop_word(self, word: str) -> bool:
        return word in self._stop_words

    def _terms(self, words: Iterable[str]) -> Iterator[str]:
        plain = [word for word in words if word not in self._stop_words]
        if all(map(str.isascii, plain)):
            yield from self._stem([word[:LONGEST_WORD] for word in plain])
            return
        for word in plain:
            if _UNSPACED.search(word):
                for part in _RUNS.split(word):
                    if part and _UNSPACED.match(part):
                        yield from _parts(part)
                    elif part:
                        yield from self._stem([part[:LONGEST_WORD]])
            else:
                yield from self._stem([word[:LONGEST_WORD]])


def _parts(run: str) -> Iterator[str]:
    """Yields the pairs of adjacent characters, or the only character."""
    if len(run) == 1:
        yield run
    for place in range(len(run) - 1):
        yield run[place : place + 2]


def periods(query: str, now: float) -> list[Period]:
    """Returns the dates mentioned in a query. Only the first 1,000 characters are read."""
    text = query[:1000].lower()
    found: list[Period] = []
    for pattern in _DATES:
        for match in pattern.finditer(text):
            parts = match.groupdict()
            name = parts.get("name")
            month = (
                int(parts["month"])
                if parts.get("month")
                else next((number for number, each in enumerate(MONTHS, 1) if name and each.startswith(name[:3])), None)
            )
            day, year = parts.get("day"), parts.get("year")
            if (month is None or 1 <= month <= 12) and (day is None or 1 <= int(day) <= 31):
                found.append(Period(year=int(year) if year else None, month=month, day=int(day) if day else None))
        text = pattern.sub(" ", text)
    today = now - now % 86400
    for words, (last, first) in _RELATIVE.items():
        if re.search(rf"\b{words}\b", text):
            found.append(Period(first=today - first * 86400, end=today - (last - 1) * 86400))
    return found
