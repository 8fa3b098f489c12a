"""A conversation's encoded messages: the newest in memory, older ones in a file.

Guarantee: appended messages are read back in order, byte for byte, in a bounded number of pieces, so a request costs
the same however long the history is. After `settle`, memory use is bounded, and the rest of the history is in an
anonymous file, which leaves nothing behind even if the process is killed. If writing to the file fails, everything
stays in memory. A history owns its file; `release` closes it.
"""

import os
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import BinaryIO, cast

from anyio import to_thread

from tidegate.log import Log
from tidegate.values import Message

log = Log(__name__)

IN_MEMORY_BYTES = 256 * 1024
"""Above this size, the oldest messages are moved to the file. This is about ten times a typical conversation's size, so
most conversations never need a file."""

KEPT_BYTES = 128 * 1024
"""Bytes that stay in memory after messages have been moved to the file. This is well below the threshold, so moves are
rare."""

ROW_OVERHEAD = 64
"""Overhead of an encoded message, in bytes: the object's header and its slot in the list."""

PIECES = 64
"""The number of pieces in memory at which old pieces are joined."""

KEPT_PIECES = 16
"""The number of newest pieces that are not joined, because a wire format may have to inspect them."""

Group = tuple[Message, ...]
"""Messages that are encoded together: one message, or all tool results of one model step."""

Overflow = Callable[[], BinaryIO]
"""Opens an anonymous file. Raises OSError if that fails."""


class Run:
    """Consecutive messages in the file, joined by commas."""

    __slots__ = ("length", "start")

    def __init__(self, start: int, length: int) -> None:
        self.start = start
        self.length = length


class History:
    __slots__ = ("_end", "_file", "_fold_at", "_kept_bytes", "_memory_bytes", "_overflow", "memory", "parts")

    def __init__(
        self, overflow: Overflow | None, *, memory_bytes: int = IN_MEMORY_BYTES, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._overflow = overflow
        self._memory_bytes = memory_bytes
        self._kept_bytes = kept_bytes
        self._file: BinaryIO | None = None
        self._end = 0
        self._fold_at = PIECES
        self.parts: list[bytes | Group | Run] = []
        """The parts in order. Messages that cannot be encoded yet are stored unencoded."""
        self.memory = 0
        """The number of bytes in memory."""

    @property
    def has_file(self) -> bool:
        return self._file is not None

    @property
    def filed(self) -> int:
        """The number of bytes in the file."""
        return self._end

    def append(self, encoded: bytes) -> None:
        self.parts.append(encoded)
        self.memory += len(encoded) + ROW_OVERHEAD

        if len(self.parts) >= self._fold_at:
            self._fold()

    def extend(self, encoded: list[bytes]) -> None:
        """Adds newly encoded pieces. If this makes too many pieces, all but the newest are joined into one."""
        if len(encoded) >= PIECES:
            self.append(b",".join(encoded[:-KEPT_PIECES]))
            encoded = encoded[-KEPT_PIECES:]
        for piece in encoded:
            # An encoder's result keeps its buffer's spare capacity (at least 512 bytes, up to half of a long text);
            # pieces that stay for hours are exact copies.
            self.append(bytes(memoryview(piece)))

    def append_unencoded(self, group: Group, weight: int) -> None:
        self.parts.append(group)
        self.memory += weight + ROW_OVERHEAD

    async def settle(self) -> None:
        """Moves old messages to the file if memory use exceeds the bound. Nothing may be appended until this
        returns."""
        if self.memory > self._memory_bytes and self._overflow is not None:
            await to_thread.run_sync(self._move)

    async def read(self) -> Sequence[bytes | Group]:
        """Returns the complete history. One piece may contain several messages."""
        if self._file is None:
            return self.parts  # type: ignore[return-value]  # no run without a file
        return await to_thread.run_sync(self._read)

    def clear(self) -> None:
        """Removes all messages."""
        self.parts = []
        self.memory = self._end = 0
        self._fold_at = PIECES

    def release(self) -> None:
        self.clear()
        self._overflow = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fold(self) -> None:
        """Joins neighbouring pieces. Joins are rare, and the memory limit bounds the amount copied."""
        old, self.parts[:-KEPT_PIECES] = self.parts[:-KEPT_PIECES], []
        folded: list[bytes | Group | Run] = []
        for kind, parts in groupby(old, type):
            together = list(parts)
            if kind is bytes and len(together) > 1:
                folded.append(b",".join(cast(list[bytes], together)))
                self.memory -= (len(together) - 1) * (ROW_OVERHEAD - 1)
            else:
                folded += together
        self.parts[:0] = folded
        self._fold_at = len(self.parts) + PIECES - KEPT_PIECES

    # -- in a thread --

    def _move(self) -> None:
        parts: list[bytes | Group | Run] = []
        moving: list[bytes] = []
        left, end = self.memory, self._end
        for place, part in enumerate(self.parts):
            if left <= self._kept_bytes:
                parts += self.parts[place:]
                break
            if not isinstance(part, bytes):
                parts.append(part)
                continue
            left -= len(part) + ROW_OVERHEAD
            last = parts[-1] if parts else None
            if isinstance(last, Run):
                parts[-1] = Run(last.start, last.length + 1 + len(part))
                moving += (b",", part)
                end += 1
            else:
                parts.append(Run(end, len(part)))
                moving.append(part)
            end += len(part)
        try:
            self._write(b"".join(moving))
        except OSError as error:
            log.warning(
                "a long conversation stays in memory because it cannot be written to disk", error=error.strerror
            )
            self._overflow = None
            return
        self.parts = parts
        self.memory = left

    def _write(self, data: bytes) -> None:
        if self._file is None:
            assert self._overflow is not None
            self._file = self._overflow()
        view, end = memoryview(data), self._end
        while view:
            written = os.pwrite(self._file.fileno(), view, end)
            view, end = view[written:], end + written
        self._end = end

    def _read(self) -> list[bytes | Group]:
        assert self._file is not None
        file = self._file.fileno()
        return [read_whole(file, part.start, part.length) if isinstance(part, Run) else part for part in self.parts]


def read_whole(file: int, start: int, length: int) -> bytes:
    data = os.pread(file, length, start)
    while len(data) < length:  # one read may return less
        more = os.pread(file, length - len(data), start + len(data))
        if not more:
            raise OSError("a long conversation's file is truncated")
        data += more
    return data
