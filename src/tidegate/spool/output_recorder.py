"""A recorder for output that streams in.

Memory holds the beginning of the output, its end and one buffer, however long it is. As soon as the output is longer
than what a model is shown, all of it goes to the session's spool, byte for byte. At the threshold it is inline, one
byte above it is spooled. If the disk refuses or the session's quota is used up, the excerpt is kept and says so, and
recording continues. A recorder that is exited without `finish` leaves nothing behind. The sizes of the pieces in which
the output arrives make no difference.
"""

from types import TracebackType

from tidegate.spool.entry import EntryFolder, SpoolEntry
from tidegate.spool.excerpts import clean, excerpt

BUFFER_BYTES = 256 * 1024
"""Bytes written at once: few enough to hold, enough that a gigabyte costs only four thousand writes."""


class OutputRecorder:
    """One output. `bytes` and `lines` count all of it."""

    def __init__(self, place: EntryFolder, *, max_bytes: int, max_lines: int) -> None:
        self._entry = SpoolEntry(place)
        self._max_bytes = max_bytes
        self._max_lines = max_lines
        self._inline = True
        self._head = bytearray()
        self._tail = bytearray()
        self._buffer = bytearray()
        self._breaks = 0
        self._open_line = False
        self.bytes = 0

    @property
    def lines(self) -> int:
        return self._breaks + self._open_line

    @property
    def spooled(self) -> str:
        """The id of the complete output once it is finished; empty if it is inline or was not kept."""
        return self._entry.id

    async def __aenter__(self) -> "OutputRecorder":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entry.drop()

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return len(self._head) + len(self._tail) + len(self._buffer)

    async def write(self, data: bytes) -> None:
        if not data:
            return
        self.bytes += len(data)
        self._breaks += data.count(b"\n")
        self._open_line = not data.endswith(b"\n")
        if self._inline:
            if self.bytes <= self._max_bytes and self.lines <= self._max_lines:
                self._head += data
                return
            self._inline = False
            self._tail += self._head
            self._buffer += self._head
            await self._entry.begin()
        self._head += data[: self._max_bytes - len(self._head)]
        self._tail += data[-self._max_bytes :]
        del self._tail[: -self._max_bytes]
        if len(self._buffer) + len(data) < BUFFER_BYTES:
            self._buffer += data
        else:
            await self._flush()
            await self._entry.put(data)

    async def finish(self) -> str:
        """Returns the excerpt that a model is shown. If the output is longer, the excerpt names its id in the spool."""
        if self._inline:
            return clean(bytes(self._head)).decode()
        await self._flush()
        await self._entry.keep(bytes=self.bytes, lines=self.lines)
        if self._entry.lost:
            hint = f"the rest was not kept: {self._entry.lost}"
        else:
            hint = f"the full text is {self._entry.id}, read it with the tool output"
        head, tail = clean(bytes(self._head)), clean(bytes(self._tail))
        return excerpt(head, tail, self.bytes, self.lines, self._max_bytes, self._max_lines, hint=hint)

    async def _flush(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        if data:
            await self._entry.put(data)
