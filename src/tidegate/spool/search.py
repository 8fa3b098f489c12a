"""Searches spooled results and texts.

`search` searches one result for a model. `search_files` searches several results, and `search_texts` searches texts in
memory. Time, memory and output are limited for every pattern, since a search runs in a child process that is killed if
it takes too long. An incomplete search reports where to continue.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from anyio import to_thread

from tidegate.errors import ToolFailed
from tidegate.spool.jobs.runner import JobRunner
from tidegate.spool.jobs.search_job import LENGTH_BYTES
from tidegate.values import Frozen

SECONDS = 10.0
"""The time limit of a search, after which it stops and reports its position. It is about the time needed for a gigabyte
of short lines."""

GRACE = 5.0
"""Additional seconds for the child process to start and to notice that its time is up. After that, the pattern is
assumed to take forever."""

MEMORY_BYTES = 256 * 1024 * 1024
"""Memory limit of the child process, which reads one piece of a line at a time."""

PATTERN_CHARACTERS = 1000


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
    """Searches one result. Raises FileNotFoundError if the file is gone."""
    if not query.pattern or len(query.pattern) > PATTERN_CHARACTERS:
        raise ToolFailed(f"The search text must have 1 to {PATTERN_CHARACTERS} characters.")
    order = {
        "path": str(path),
        "pattern": query.pattern,
        "regex": query.regex,
        "offset": query.offset,
        "byte": query.byte,
        "limit": min(query.limit, query.max_lines),
        "bytes": query.max_bytes,
        "seconds": SECONDS,
    }
    try:
        found = await workers.run("search_job", order, within=SECONDS + GRACE, memory=MEMORY_BYTES)
    except TimeoutError:
        raise ToolFailed("This regular expression takes too long; use a simpler one, or plain text.") from None
    if "gone" in found:
        raise FileNotFoundError(path)
    if "wrong" in found:
        raise ToolFailed(f"This is not a valid regular expression: {found['wrong']}.")
    return _format_result(found)


def _format_result(found: dict[str, Any]) -> str:
    places = found["places"]
    lines = [f"{place['line']} (byte {place['byte']}): {place['text']}" for place in places]
    count = f"{len(places)} match{'es' * (len(places) != 1)}" if places else "nothing found"
    if "more" in found:
        lines.append(f"[{count}, and there are more; continue with byte={found['more']}]")
    elif "stopped" in found:
        lines.append(f"[{count}, but the time of {SECONDS:g} s ran out; continue with byte={found['stopped']}]")
    else:
        lines.append(f"[{count}; searched to the end]")
    return "\n".join(lines)


# -- several results, and texts --


class SearchTerms(Frozen, frozen=True):
    """A search of several results, either for all of the `words` or for the regular expression `pattern`. Returns at
    most `limit` matches within `max_bytes`, and takes about `seconds`."""

    limit: int
    max_bytes: int
    seconds: float
    words: tuple[str, ...] = ()
    pattern: str = ""

    @property
    def order(self) -> dict[str, Any]:
        what: dict[str, Any] = {"words": self.words} if self.words else {"pattern": self.pattern, "regex": True}
        return {**what, "limit": self.limit, "bytes": self.max_bytes, "seconds": self.seconds}


class SearchMatch(Frozen, frozen=True):
    """A match in the result or text with the index `number`. A match in a result also has a line and a byte."""

    number: int
    text: str
    line: int = 0
    byte: int = 0


class SearchMatches(Frozen, frozen=True):
    """The result of a search. `next` is the position to continue from, as (index of the result or text, byte), or None
    if everything was searched. `late` is true if the time ran out. `gone` lists files that do not exist."""

    found: tuple[SearchMatch, ...]
    next: tuple[int, int] | None = None
    late: bool = False
    gone: tuple[int, ...] = ()


async def search_files(workers: JobRunner, paths: Sequence[Path], terms: SearchTerms, byte: int = 0) -> SearchMatches:
    """Searches these files, starting at `byte` of the first. Raises TimeoutError if a regular expression takes too
    long."""
    order = {**terms.order, "paths": list(map(str, paths)), "byte": byte}
    found = await _run_job(workers, order, terms.seconds)
    end = found.get("more", found.get("stopped"))
    return SearchMatches(
        found=tuple(
            SearchMatch(number=each["file"], text=each["text"], line=each["line"], byte=each["byte"])
            for each in found["places"]
        ),
        next=None if end is None else (end[0], end[1]),
        late="stopped" in found,
        gone=tuple(found["gone"]),
    )


async def search_texts(workers: JobRunner, texts: Iterable[str], terms: SearchTerms) -> SearchMatches:
    """Searches these texts for at most one match in each. Raises TimeoutError if a regular expression takes too
    long."""
    fd = os.memfd_create("texts")
    try:
        await to_thread.run_sync(_write_texts, fd, texts)
        found = await _run_job(workers, terms.order, terms.seconds, fd)
    finally:
        os.close(fd)
    end = found.get("more", found.get("stopped"))
    return SearchMatches(
        found=tuple(SearchMatch(number=each["text_at"], text=each["text"]) for each in found["places"]),
        next=None if end is None else (end, 0),
        late="stopped" in found,
    )


def _write_texts(fd: int, texts: Iterable[str]) -> None:
    with os.fdopen(os.dup(fd), "wb") as file:
        for text in texts:
            data = text.encode("utf-8", "replace")
            file.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
    os.lseek(fd, 0, os.SEEK_SET)


async def _run_job(
    workers: JobRunner, order: dict[str, Any], seconds: float, input: int | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = await workers.run(
        "search_job", order, within=seconds + GRACE, memory=MEMORY_BYTES, input=input
    )
    if "wrong" in found:
        raise ToolFailed(f"This is not a valid regular expression: {found['wrong']}.")
    return found
