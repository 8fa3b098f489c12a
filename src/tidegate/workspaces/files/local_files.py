"""Files on this machine below a session's mounts.

`LocalFiles` has the same guarantees as `Filesystem` and acts with the rights of the session's user. The work is done in
worker threads, which finish soon after the caller is cancelled; a completed write is not undone. Nothing is kept
between calls.
"""

import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tidegate.line_search import read_pattern
from tidegate.workspaces.files.file_search import DEFAULT_BOUNDS, SearchBounds, search
from tidegate.workspaces.files.file_user import User, in_thread
from tidegate.workspaces.files.file_values import (
    FileContents,
    FileFilter,
    FileLines,
    Listing,
    SearchQuery,
    SearchResult,
    WriteResult,
)
from tidegate.workspaces.files.filesystem import Filesystem
from tidegate.workspaces.files.mounts import Mount
from tidegate.workspaces.processes.children import Spawner


class _Opening:
    """Opens a descriptor in a worker thread for a caller that may be cancelled before receiving the descriptor."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = -1
        self._unwanted = False

    def open(self, filesystem: Filesystem, path: str) -> int:
        fd = filesystem.open(path)
        with self._lock:
            if self._unwanted:
                os.close(fd)
            else:
                self._fd = fd
        return fd

    def close(self) -> None:
        with self._lock:
            self._unwanted = True
            if self._fd >= 0:
                os.close(self._fd)


class LocalFiles:
    """`mounts` are the reachable folders; relative paths start in the first. The `helpers` of `spawner` limit the
    number of concurrent searches. Files are accessed as `user`; None means the gateway's own user."""

    def __init__(
        self,
        mounts: Sequence[Mount],
        spawner: Spawner,
        *,
        user: User | None = None,
        bounds: SearchBounds = DEFAULT_BOUNDS,
    ) -> None:
        self.mounts = tuple(mounts)
        self._filesystem = Filesystem(mounts)
        self._helpers = spawner.helpers
        self._user = user
        self._bounds = bounds

    async def lines(self, path: str, *, offset: int, lines: int, max_bytes: int) -> FileLines:
        return await in_thread(self._user, self._filesystem.lines, path, offset, lines, max_bytes)

    async def load(self, path: str, *, limit: int) -> FileContents:
        return await in_thread(self._user, self._filesystem.load, path, limit)

    @asynccontextmanager
    async def opened(self, path: str) -> AsyncIterator[int]:
        opening = _Opening()
        try:
            yield await in_thread(self._user, opening.open, self._filesystem, path)
        finally:
            opening.close()

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> WriteResult:
        return await in_thread(self._user, self._filesystem.write, path, data, expected)

    async def list(self, path: str, choice: FileFilter, *, recursive: bool, limit: int) -> Listing:
        return await in_thread(self._user, self._filesystem.list, path, choice, recursive, limit)

    async def search(self, path: str, query: SearchQuery) -> SearchResult:
        async with self._helpers:
            return await in_thread(self._user, self._search, path, query)

    def _search(self, path: str, query: SearchQuery) -> SearchResult:
        pattern = read_pattern(query.pattern, literal=query.literal, ignore_case=query.ignore_case)
        return search(self.mounts, path, query, pattern, self._bounds)
