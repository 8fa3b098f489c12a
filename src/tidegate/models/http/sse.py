"""A parser for server-sent events, on bytes.

The events are the same wherever the network splits the stream. The size of lines and events is bounded. Comments, empty
events and fields other than `data` are ignored. The parser holds at most one unfinished event, and its running time is
linear in the number of bytes, however small the pieces are.
"""

# A chunk of a model's answer has a few hundred bytes, but may contain complete tool arguments.
EVENT_BYTES = 1024 * 1024
# A stream may start with this; ignored.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """A line or event exceeds the size limit."""


class EventParser:
    """Parses a stream of server-sent events. `feed` takes bytes as they arrive and returns the data of each event that
    they complete."""

    __slots__ = ("_data", "_limit", "_opened", "_size", "_tail")

    def __init__(self, limit: int = EVENT_BYTES) -> None:
        self._limit = limit
        self._opened = False
        self._tail = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, received: bytes) -> list[bytes]:
        lines = received.split(b"\n")
        if len(lines) > 1 and self._tail:  # joined only once, however many pieces the line arrived in
            lines[0] = bytes(self._tail + lines[0])
            self._tail.clear()
        if tail := lines.pop():
            self._tail += tail
            if len(self._tail) > self._limit:
                raise EventTooLarge
        events: list[bytes] = []
        data = self._data
        if not self._opened and lines:
            self._opened = True
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        for line in lines:
            if line[-1:] == b"\r":
                line = line[:-1]
            if not line:
                if data:
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
                    self._size = 0
            elif line[:6] == b"data: ":
                self._keep(line[6:])
            elif line[:5] == b"data:":
                self._keep(line[5:])
        return events

    def _keep(self, value: bytes) -> None:
        self._size += len(value) + 1  # including the line feed before the next line
        if self._size > self._limit:
            raise EventTooLarge
        self._data.append(value)

    def finish(self) -> list[bytes]:
        """Returns the events completed by the end of the stream. Some servers omit the last empty line."""
        return self.feed(b"\n\n")
