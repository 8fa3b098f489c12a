"""The latest lines of a program's output."""

from collections import deque
from collections.abc import Iterable

from tidegate.safe_text import strip_controls

TAIL_BYTES = 16 * 1024
"""Number of bytes of a server's error output that are kept."""

TAIL_LINE_BYTES = 1000

HIDDEN = "[secret]"


class OutputTail:
    """The latest lines of an output, without control characters."""

    def __init__(self, most: int = TAIL_BYTES, hidden: Iterable[str] = ()) -> None:
        """The texts in `hidden` are secrets, and are replaced in the output."""
        self._hidden = tuple(text for text in hidden if text)
        self._most = most
        self._lines: deque[str] = deque(maxlen=max(1, most // 16))
        self._size = 0
        self._rest = b""
        self._skips = False

    def add(self, data: bytes) -> None:
        """Adds a piece of output. Only the end of the piece is examined."""
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
        text = self._shown(line[:TAIL_LINE_BYTES])
        self._lines.append(text)
        self._size += len(text)
        while self._size > self._most or len(self._lines) == self._lines.maxlen:
            self._size -= len(self._lines.popleft())

    def _shown(self, line: bytes) -> str:
        text = strip_controls(line.decode(errors="replace"))
        for secret in self._hidden:
            text = text.replace(secret, HIDDEN)
        return text

    @property
    def lines(self) -> tuple[str, ...]:
        rest = self._shown(self._rest)
        return (*self._lines, rest) if rest else tuple(self._lines)

    @property
    def last(self) -> str:
        return next((line.strip() for line in reversed(self.lines) if line.strip()), "")
