"""The newest lines of an output."""

from collections import deque

from tidegate.safe_text import strip_controls

TAIL_BYTES = 16 * 1024
"""Bytes of a server's error output that are kept."""

TAIL_LINE_BYTES = 1000


class OutputTail:
    """The newest lines of an output, without control characters."""

    def __init__(self, most: int = TAIL_BYTES) -> None:
        self._most = most
        self._lines: deque[str] = deque(maxlen=max(1, most // 16))
        self._size = 0
        self._rest = b""
        self._skips = False

    def add(self, data: bytes) -> None:
        """Adds a piece of output. Only its end is examined."""
        if len(data) > self._most:
            self._rest, data = b"", data[-self._most :]
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._skips:
                self._skips = False
            else:
                self.add_line(line)
        self._rest = b"" if self._skips else rest
        if len(self._rest) > TAIL_LINE_BYTES:
            self.add_line(self._rest)
            self._rest, self._skips = b"", True

    def add_line(self, line: bytes) -> None:
        text = strip_controls(line[:TAIL_LINE_BYTES].decode(errors="replace"))
        self._lines.append(text)
        self._size += len(text)
        while self._size > self._most or len(self._lines) == self._lines.maxlen:
            self._size -= len(self._lines.popleft())

    @property
    def lines(self) -> tuple[str, ...]:
        rest = strip_controls(self._rest.decode(errors="replace"))
        return (*self._lines, rest) if rest else tuple(self._lines)

    @property
    def last(self) -> str:
        return next((line.strip() for line in reversed(self.lines) if line.strip()), "")
