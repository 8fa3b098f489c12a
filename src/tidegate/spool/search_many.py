"""A search in several spooled results, or in texts at hand.

Guarantee: as of a search in one (`search`): bounded time, memory and text, whatever the pattern, in a child that is
ended when the pattern runs away; where it did not go through all, it says where to go on. Loaded only where it is used.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from anyio import to_thread

from tidegate.errors import ToolFailed
from tidegate.spool.jobs.runner import JobRunner
from tidegate.spool.jobs.search_job import LENGTH_BYTES
from tidegate.spool.search import GRACE, MEMORY_BYTES
from tidegate.values import Frozen


class SearchTerms(Frozen, frozen=True):
    """What is looked for: every one of the `words`, or else `pattern`, a regular expression; at most `limit` places, in
    `max_bytes`, in about `seconds`."""

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
    """A place that was found: in the n-th of what was searched, and in a file its line and byte."""

    number: int
    text: str
    line: int = 0
    byte: int = 0


class SearchMatches(Frozen, frozen=True):
    """`next` is where to go on: the n-th of what was searched, and the byte in it; None when all was searched. `late`
    says that time was over. `gone` are the files that were not there."""

    found: tuple[SearchMatch, ...]
    next: tuple[int, int] | None = None
    late: bool = False
    gone: tuple[int, ...] = ()


async def search_files(workers: JobRunner, paths: Sequence[Path], sought: SearchTerms, byte: int = 0) -> SearchMatches:
    """In these files, from a byte of the first on. TimeoutError when a regular expression runs away."""
    order = {**sought.order, "paths": list(map(str, paths)), "byte": byte}
    found = await _work(workers, order, sought.seconds)
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


async def search_texts(workers: JobRunner, texts: Iterable[str], sought: SearchTerms) -> SearchMatches:
    """In these texts, one place in each at most. TimeoutError when a regular expression runs away."""
    fd = os.memfd_create("texts")
    try:
        await to_thread.run_sync(_put, fd, texts)
        found = await _work(workers, sought.order, sought.seconds, fd)
    finally:
        os.close(fd)
    end = found.get("more", found.get("stopped"))
    return SearchMatches(
        found=tuple(SearchMatch(number=each["text_at"], text=each["text"]) for each in found["places"]),
        next=None if end is None else (end, 0),
        late="stopped" in found,
    )


def _put(fd: int, texts: Iterable[str]) -> None:
    with os.fdopen(os.dup(fd), "wb") as file:
        for text in texts:
            data = text.encode("utf-8", "replace")
            file.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
    os.lseek(fd, 0, os.SEEK_SET)


async def _work(workers: JobRunner, order: dict[str, Any], seconds: float, input: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = await workers.run(
        "search_job", order, within=seconds + GRACE, memory=MEMORY_BYTES, input=input
    )
    if "wrong" in found:
        raise ToolFailed(f"This is no regular expression: {found['wrong']}.")
    return found
