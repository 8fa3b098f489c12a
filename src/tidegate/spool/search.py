"""Line-by-line search of spooled results and texts.

`search` searches one result for a model. `search_files` searches several results, and `search_texts` searches texts in
memory. Matches are reported in order, each with its line, byte and context. Time, memory and output are limited: text
is read in blocks, and an incomplete search reports where to continue. Searches run in worker threads;
`tidegate.line_search` is fast for every pattern.
"""

import io
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from anyio import from_thread

from tidegate.line_search import LinePattern, Match, Words, blocks, read_pattern
from tidegate.spool.excerpts import clean
from tidegate.spool.jobs.runner import JobRunner
from tidegate.text_parts import char_start
from tidegate.values import Frozen

SECONDS = 10.0
"""Time limit for a search, after which it stops and reports its position. A gigabyte of short lines takes a fraction of
this."""

AROUND = 120
"""Bytes of context before and after a match. Text shown as the context of one match is not searched for the next match
in the same line."""

PLACE_BYTES = 32
"""Bytes reserved for a match's line and byte numbers."""


class ResultQuery(Frozen, frozen=True):
    """A search of one result for `pattern`, which is plain text or a regular expression. The search starts after
    `offset` lines or `byte` bytes, and returns at most `limit` matches within `max_bytes` and `max_lines`."""

    pattern: str
    regex: bool
    offset: int
    byte: int
    limit: int
    max_bytes: int
    max_lines: int


async def search(workers: JobRunner, path: Path, query: ResultQuery) -> str:
    """Searches one result. Raises FileNotFoundError if the file no longer exists."""
    return await workers.in_thread(_search_result, path, query)


def _search_result(path: Path, query: ResultQuery) -> str:
    pattern = read_pattern(query.pattern, literal=not query.regex)
    room = _Room(min(query.limit, query.max_lines), query.max_bytes, SECONDS)
    with path.open("rb", buffering=0) as file:
        found = list(_matches(file, pattern, room, query.byte, query.offset))
    lines = [f"{match.line} (byte {match.byte}): {text}" for match, text in found]
    count = f"{len(found)} match{'es' * (len(found) != 1)}" if found else "nothing found"
    if room.next is None:
        lines.append(f"[{count}; searched to the end]")
    elif room.late:
        lines.append(f"[{count}, but the time of {SECONDS:g} s ran out; continue with byte={room.next}]")
    else:
        lines.append(f"[{count}, and there are more; continue with byte={room.next}]")
    return "\n".join(lines)


class _Room:
    """What remains of a search's limits. After the search, `next` is the byte from which to continue, or None if
    everything was searched, and `late` is true if the time ran out."""

    def __init__(self, limit: int, max_bytes: int, seconds: float) -> None:
        self._limit = limit
        self._bytes = max_bytes
        self._until = time.monotonic() + seconds
        self._used = False
        self.next: int | None = None
        self.late = False

    def take(self, match: Match, text: str) -> bool:
        """True if there is room for one more match. The first match always fits."""
        self._limit -= 1
        self._bytes -= len(text.encode()) + PLACE_BYTES
        if self._limit < 0 or (self._bytes < 0 and self._used):
            self.next = match.byte
            return False
        self._used = True
        return True

    def is_late(self, byte: int) -> bool:
        from_thread.check_cancelled()
        if time.monotonic() > self._until:
            self.next, self.late = byte, True
        return self.late


def _matches(
    file: IO[bytes], pattern: LinePattern, room: _Room, byte: int = 0, offset: int = 0
) -> Iterator[tuple[Match, str]]:
    """Yields the matches from `byte` on and after `offset` lines, each with its excerpt, as long as there is room."""
    for block in blocks(file.read):
        if room.is_late(block.byte + block.first):
            return
        if block.byte + len(block.data) < byte or block.line + block.data.count(b"\n") < offset:
            continue
        for match in block.matches(pattern, byte, spacing=AROUND):
            if match.line <= offset:
                continue
            text = _excerpt(match.text, match.start, match.end)
            if not room.take(match, text):
                return
            yield match, text
            byte = match.next


def _excerpt(line: bytes, start: int, end: int) -> str:
    """Returns the match with its context."""
    first, last = max(0, start - AROUND), min(len(line), min(end, start + AROUND) + AROUND)
    first, last = char_start(line, first), max(char_start(line, last), min(start, last))
    return f"{'…' if first else ''}{clean(line[first:last]).decode()}{'…' if last < len(line) else ''}"


# -- several results, and texts --


class SearchTerms(Frozen, frozen=True):
    """A search of several results, either for all of the `words` or for the regular expression `pattern`. Returns at
    most `limit` matches within `max_bytes`, and takes about `seconds`."""

    limit: int
    max_bytes: int
    seconds: float
    words: tuple[str, ...] = ()
    pattern: str = ""

    def compile(self) -> LinePattern:
        return Words(self.words) if self.words else read_pattern(self.pattern)


class SearchMatch(NamedTuple):
    """A match in the result or text with index `number`."""

    number: int
    text: str
    line: int
    byte: int


class SearchMatches(Frozen, frozen=True):
    """The result of a search. `next` is the position from which to continue, as (index of the result or text, byte), or
    None if everything was searched. `late` is true if the time ran out. `gone` lists files that do not exist."""

    found: tuple[SearchMatch, ...]
    next: tuple[int, int] | None = None
    late: bool = False
    gone: tuple[int, ...] = ()


async def search_files(workers: JobRunner, paths: Sequence[Path], terms: SearchTerms, byte: int = 0) -> SearchMatches:
    """Searches these files, starting at `byte` of the first."""
    return await workers.in_thread(_search_files, paths, terms, byte)


def _search_files(paths: Sequence[Path], terms: SearchTerms, byte: int) -> SearchMatches:
    pattern, room = terms.compile(), _Room(terms.limit, terms.max_bytes, terms.seconds)
    found: list[SearchMatch] = []
    gone: list[int] = []
    for number, path in enumerate(paths):
        try:
            with path.open("rb", buffering=0) as file:
                for match, text in _matches(file, pattern, room, 0 if number else byte):
                    found.append(SearchMatch(number, text, match.line, match.byte))
        except FileNotFoundError:
            gone.append(number)
        if room.next is not None:
            return SearchMatches(found=tuple(found), next=(number, room.next), late=room.late, gone=tuple(gone))
    return SearchMatches(found=tuple(found), gone=tuple(gone))


async def search_texts(workers: JobRunner, texts: Iterable[str], terms: SearchTerms) -> SearchMatches:
    """Searches these texts for at most one match each."""
    return await workers.in_thread(_search_texts, texts, terms)


def _search_texts(texts: Iterable[str], terms: SearchTerms) -> SearchMatches:
    pattern, room = terms.compile(), _Room(terms.limit, terms.max_bytes, terms.seconds)
    found: list[SearchMatch] = []
    for number, text in enumerate(texts):
        data = text.encode("utf-8", "replace")
        for match, _ in _matches(io.BytesIO(data), pattern, room):
            shown = _excerpt(data, match.byte, match.byte + match.end - match.start)
            found.append(SearchMatch(number, shown, match.line, match.byte))
            break
        if room.next is not None:
            return SearchMatches(found=tuple(found), next=(number, 0), late=room.late)
    return SearchMatches(found=tuple(found))
