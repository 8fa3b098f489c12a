"""A cache for the encoded histories of unloaded conversations, in one file of bounded size.

When a conversation is reloaded, its history is read from this cache instead of being decoded and encoded message by
message, so the cost does not depend on the number of messages.

Guarantee: a hit returns exactly the bytes that were cached, and only for the same signature and version of the session.
On a miss, the caller reads the store. Each entry is returned at most once. The file is anonymous, so it does not
outlive the process. It is used as a ring buffer: new entries overwrite the oldest. Histories that arrive during a write
are batched into the next one. Their total size in memory is bounded, so unloading frees memory even if the disk is
slow. If a write fails, the cache stops accepting entries. The cache owns the file; `close` closes it.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import BinaryIO

from anyio import to_thread

from tidegate.agent.history import Overflow, read_whole
from tidegate.lifetimes import BoundedCache, CacheStats
from tidegate.log import Log
from tidegate.values import Frozen

log = Log(__name__)

FILE_BYTES = 64 * 1024 * 1024
"""Size of the file: enough for a few hundred long conversations. The file is usually in the page cache."""

LEAST_BYTES = 16 * 1024
"""Size of the smallest history worth caching. Encoding a shorter one again costs no more than reading it from a
file."""

MOST_BYTES = FILE_BYTES // 16
"""Size of the largest history that is cached. A longer one would overwrite too many other entries."""

WAITING_BYTES = FILE_BYTES // 8
"""Maximum total size of the histories that are waiting to be written. Further histories are not cached, to save
memory."""

ENTRIES = 1024
"""Maximum number of entries: as many histories of typical length as fit into the file."""


class HistoryState(Frozen, frozen=True):
    """The part of a conversation's state that is cached with its encoded history."""

    signature: bytes
    version: int
    era: int
    mark: str
    carries: bool
    estimated: int
    counted: tuple[int, int] | None


class PendingHistory:
    """A history that is waiting to be written to the file."""

    __slots__ = ("lengths", "pieces", "session", "state")

    def __init__(self, session: str, state: HistoryState, pieces: Sequence[bytes]) -> None:
        self.session = session
        self.state = state
        self.pieces = pieces
        self.lengths = tuple(map(len, pieces))


class CachedHistory(Frozen, frozen=True):
    """A history's position in the file. `start` is counted in bytes written since the file was opened; `lengths` are
    the pieces' lengths."""

    state: HistoryState
    start: int
    lengths: tuple[int, ...]


class HistoryCache:
    def __init__(self, open: Overflow, *, file_bytes: int = FILE_BYTES) -> None:
        self._open = open
        self._size = file_bytes
        self._file: BinaryIO | None = None
        self._end = 0
        self._writing = asyncio.Lock()
        self._waiting: list[PendingHistory] = []  # lint: allow at most WAITING_BYTES
        self._waiting_bytes = 0
        self._closed = False
        self._entries: BoundedCache[str, CachedHistory] = BoundedCache("histories", cap=ENTRIES)

    def stats(self) -> CacheStats:
        return self._entries.stats()

    @property
    def has_file(self) -> bool:
        return self._file is not None

    async def keep(self, session: str, state: HistoryState, pieces: Sequence[bytes]) -> None:
        """Caches a history until it is retrieved, forgotten or overwritten."""
        size = sum(map(len, pieces))
        if self._closed or not LEAST_BYTES <= size <= min(MOST_BYTES, self._size):
            return
        if self._waiting_bytes + size > min(WAITING_BYTES, self._size):
            return
        self._waiting.append(PendingHistory(session, state, pieces))
        self._waiting_bytes += size
        async with self._writing:
            if self._waiting:  # otherwise the previous holder of the lock has written this history too
                await self._write_waiting()

    async def _write_waiting(self) -> None:
        """Writes all waiting histories in a single call to a thread."""
        batch, self._waiting = self._waiting, []
        size, self._waiting_bytes = self._waiting_bytes, 0
        if self._closed:
            return
        left = self._size - self._end % self._size
        start = self._end if size <= left else self._end + left
        self._end = start + size
        try:
            await to_thread.run_sync(self._write, batch, start % self._size)
        except OSError as error:
            log.warning("cannot cache a conversation's history", error=error.strerror)
            self._closed = True
            return
        for waiting in batch:
            self._entries.put(waiting.session, CachedHistory(state=waiting.state, start=start, lengths=waiting.lengths))
            start += sum(waiting.lengths)

    async def find(self, session: str, signature: bytes, version: int) -> tuple[HistoryState, list[bytes]] | None:
        """Returns the cached history, if the session has not changed since it was cached."""
        entry = self._entries.get(session)
        self._entries.discard(session)
        if entry is None or (entry.state.signature, entry.state.version) != (signature, version):
            return None
        if not self._is_there(entry) or self._file is None:
            return None
        try:
            data = await to_thread.run_sync(
                read_whole, self._file.fileno(), entry.start % self._size, sum(entry.lengths)
            )
        except OSError as error:
            log.warning("cannot read a conversation's cached history", error=error.strerror)
            return None
        if not self._is_there(entry):
            return None
        pieces: list[bytes] = []
        at = 0
        for length in entry.lengths:
            pieces.append(data[at : at + length])
            at += length
        return entry.state, pieces

    def forget(self, session: str) -> None:
        self._entries.discard(session)

    async def close(self) -> None:
        async with self._writing:
            self._closed = True
            self._entries.clear()
            if self._file is not None:
                self._file.close()
                self._file = None

    def _is_there(self, entry: CachedHistory) -> bool:
        """True if the entry has not been overwritten and is not being overwritten right now."""
        return self._end - entry.start <= self._size

    def _write(self, batch: Sequence[PendingHistory], offset: int) -> None:
        if self._file is None:
            self._file = self._open()
        view = memoryview(b"".join(piece for waiting in batch for piece in waiting.pieces))
        while view:
            written = os.pwrite(self._file.fileno(), view, offset)
            view, offset = view[written:], offset + written
