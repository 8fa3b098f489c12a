"""A recorder for streamed output.

However long the output is, only its beginning, its end and one buffer are in memory. Output that is short enough for a
model to see in full stays inline. Longer output is written to the session's spool in full, byte for byte. If the disk
refuses it or the session's quota is used up, recording continues, and the excerpt mentions the loss. A recorder that is
exited without `finish` leaves nothing behind. The result does not depend on the sizes of the pieces in which output
arrives.
"""

from types import TracebackType

from tidegate.spool.entry import EntryFolder, SpoolEntry
from tidegate.spool.excerpts import clean, excerpt

BUFFER_BYTES = 256 * 1024
"""Number of bytes written at a time: small enough to keep in memory, yet large enough that a gigabyte takes only 4,000
writes."""


class OutputRecorder:
    """Records one output. `bytes` and `lines` count the complete output."""

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
        """The id of the complete output, set by `finish`. Empty if the output is inline or was lost."""
        return self._entry.id

    async def __aenter__(self) -> "OutputRecorder":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entry.drop()

    @property
    def held(self) -> int:
        """The number of bytes kept in memory."""
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
        """Returns the text for the model: the complete output, or an excerpt with the id under which the full output
        can be read."""
        if self._inline:
            return clean(bytes(self._head)).decode()
        await self._flush()
        await self._entry.keep(bytes=self.bytes, lines=self.lines)
        if self._entry.lost:
            hint = f"the rest was not stored: {self._entry.lost}"
        else:
            hint = f"the full text is {self._entry.id}; read it with the output tool"
        head, tail = clean(bytes(self._head)), clean(bytes(self._tail))
        return excerpt(head, tail, self.bytes, self.lines, self._max_bytes, self._max_lines, hint=hint)

    async def _flush(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        if data:
            await self._entry.put(data)
