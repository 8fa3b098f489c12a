"""Server-sent events, taken apart by hand on bytes.

Guarantee: the same events come out wherever the network cuts the stream; no line and no event grows beyond its bound;
comments, empty events and other fields than `data` are passed over. Holds at most one unfinished event. The time
grows with the bytes, however small the pieces are that they come in.
"""

# One chunk of a model's answer is a few hundred bytes; whole tool arguments may come in one.
EVENT_BYTES = 1024 * 1024
# May open a stream, and means nothing.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """A line or event exceeds the bound."""


class EventParser:
    """`feed` takes what the network gave and returns the data of the events that are complete now."""

    __slots__ = ("_data", "_limit", "_opened", "_size", "_tail")

    def __init__(self, limit: int = EVENT_BYTES) -> None:
        self._limit = limit
        self._opened = False
        self._tail = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, received: bytes) -> list[bytes]:
        lines = received.split(b"\n")
        if len(lines) > 1 and self._tail:  # put together once, however many pieces a line came in
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
        self._size += len(value) + 1  # with the line feed between it and the next
        if self._size > self._limit:
            raise EventTooLarge
        self._data.append(value)

    def finish(self) -> list[bytes]:
        """At the end of the stream: some servers leave out the last empty line."""
        return self.feed(b"\n\n")
