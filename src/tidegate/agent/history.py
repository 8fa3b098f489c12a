"""The encoded messages of a conversation: the newest in memory, a long past in a file.

Guarantee: what was appended is read back in order, byte for byte, in a bounded number of pieces, so that a request
costs the same however many messages are behind it. After `settle` no more than a bound is in memory; the rest lies in a
file without a name, which not even a kill leaves behind. Where the disk refuses, all stays in memory. A history owns
its file, and `release` closes it.
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
"""Above this the oldest go to the file: some ten times a usual conversation, so that most never have one."""

KEPT_BYTES = 128 * 1024
"""That stay in memory then: so much is moved at once that it is seldom done."""

ROW_OVERHEAD = 64
"""Bytes that an encoded message costs beside its text: the object's header and its slot in the list."""

PIECES = 64
"""In memory at most, before old ones are put together."""

KEPT_PIECES = 16
"""Of the newest that stay as they are then: a wire format may have to look at them."""

Group = tuple[Message, ...]
"""What is encoded together: one message, or all results of one model step."""

Overflow = Callable[[], BinaryIO]
"""Opens a file without a name. OSError when the disk refuses."""


class Run:
    """Consecutive messages in the file, joined by commas."""

    __slots__ = ("length", "start")

    def __init__(self, start: int, length: int) -> None:
        self.start = start
        self.length = length


class History:
    __slots__ = ("_end", "_file", "_fold_at", "_overflow", "memory", "parts")

    def __init__(self, overflow: Overflow | None) -> None:
        self._overflow = overflow
        self._file: BinaryIO | None = None
        self._end = 0
        self._fold_at = PIECES
        self.parts: list[bytes | Group | Run] = []
        """In their order; what could not be encoded yet stands as it is."""
        self.memory = 0
        """Bytes that are held in memory."""

    @property
    def has_file(self) -> bool:
        return self._file is not None

    @property
    def filed(self) -> int:
        """Bytes that lie in the file."""
        return self._end

    def append(self, encoded: bytes) -> None:
        self.parts.append(encoded)
        self.memory += len(encoded) + ROW_OVERHEAD

        if len(self.parts) >= self._fold_at:
            self._fold()

    def extend(self, encoded: list[bytes]) -> None:
        """Adds what an encoder has just made. Of many, all but the newest become one piece."""
        if len(encoded) >= PIECES:
            self.append(b",".join(encoded[:-KEPT_PIECES]))
            encoded = encoded[-KEPT_PIECES:]
        for piece in encoded:
            # An encoder's result keeps the spare room of its buffer (512 bytes at least, up to half of a long text);
            # what is held for hours is an exact copy.
            self.append(bytes(memoryview(piece)))

    def append_unencoded(self, group: Group, weight: int) -> None:
        self.parts.append(group)
        self.memory += weight + ROW_OVERHEAD

    async def settle(self) -> None:
        """Keep to the bound. Called where nobody appends meanwhile."""
        if self.memory > IN_MEMORY_BYTES and self._overflow is not None:
            await to_thread.run_sync(self._move)

    async def read(self) -> Sequence[bytes | Group]:
        """All of it; several messages may stand in one piece."""
        if self._file is None:
            return self.parts  # type: ignore[return-value]  # no run without a file
        return await to_thread.run_sync(self._read)

    def clear(self) -> None:
        """Nothing was said."""
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
        """Puts neighbours together. No more is copied than may be in memory, and that only every so many messages."""
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
            if left <= KEPT_BYTES:
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
            log.warning("a long conversation stays in memory, because the disk refuses it", error=error.strerror)
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
    while len(data) < length:  # more than the kernel gives at once
        more = os.pread(file, length - len(data), start + len(data))
        if not more:
            raise OSError("the file of a long conversation is shorter than it was")
        data += more
    return data
