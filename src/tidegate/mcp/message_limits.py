"""Limits for the messages that a server sends, applied before the messages are decoded.

A message has a limited size and a limited number of JSON values, so that a small text cannot become a large object.
Messages that do not answer a request are read at a limited rate; if a server keeps exceeding this rate for several
seconds, its connection fails. All checks take linear time.
"""

import asyncio
import re

from tidegate.lifetimes import ServiceFailed

VALUES_AT_MOST = 200_000
"""Maximum number of JSON values in one message. Each value takes up to about a hundred bytes of memory."""

MESSAGES_PER_SECOND = 200.0
"""Maximum rate of messages that do not answer a request, such as notifications and log output."""

MESSAGES_AT_ONCE = 1000.0
"""Maximum number of such messages in a burst."""

THROTTLED_SECONDS = 5.0
"""Seconds of continuous throttling after which the connection fails."""

_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class MessageRefused(Exception):
    """A message exceeds a limit. The exception's text is a sentence without its subject."""


def check_values(data: bytes, most: int = VALUES_AT_MOST) -> None:
    """Raises MessageRefused if a JSON text has more values than `most`."""
    if _values(data) > most and _values(_STRING.sub(b"", data)) > most:
        raise MessageRefused(f"has more than {most:,} values")


def _values(data: bytes) -> int:
    return data.count(b",") + data.count(b"{") + data.count(b"[")


class RateLimit:
    """The rate limit of one connection. Responses to requests do not count."""

    def __init__(
        self,
        *,
        per_second: float = MESSAGES_PER_SECOND,
        at_once: float = MESSAGES_AT_ONCE,
        patience: float = THROTTLED_SECONDS,
    ) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._patience = patience
        self._left = at_once
        self._at = asyncio.get_running_loop().time()
        self._throttled = 0.0
        self.throttled_messages = 0

    async def admit(self) -> None:
        """Waits until the next message may be handled. Raises ServiceFailed if the server has exceeded the rate for too
        long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._left = min(self._at_once, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left >= self._at_once / 2:
            self._throttled = 0.0
        self._left -= 1
        if self._left >= 0:
            return
        self.throttled_messages += 1
        pause = -self._left / self._per_second
        self._throttled += pause
        if self._throttled > self._patience:
            raise ServiceFailed(
                f"The server sent more than {self._per_second:g} messages per second for {self._patience:g} s.",
                "crashed",
            )
        await asyncio.sleep(pause)


class ValueCount:
    """Counts the JSON values of a body that arrives in pieces. If `events` is true, each event of a stream is counted
    separately."""

    def __init__(self, *, events: bool, most: int = VALUES_AT_MOST) -> None:
        self._events = events
        self._most = most
        self.count = 0
        self._in_string = False
        self._is_escaped = False
        self._end = b""

    def add(self, data: bytes) -> int:
        """Counts the values in a piece. Returns the number of events that end in this piece. Raises MessageRefused."""
        if not self._events:
            self._add(data)
            return 0
        joined = self._end + data
        ends = list(_BLANK_LINE.finditer(joined))
        start = len(self._end)
        for found in ends:
            self._add(joined[start : found.end()])
            self.count, self._in_string, self._is_escaped = 0, False, False
            start = max(start, found.end())
        self._add(joined[start:])
        self._end = joined[-3:] if not joined.endswith(b"\n\n") else b""
        return len(ends)

    def _add(self, data: bytes) -> None:
        if self._is_escaped:
            data, self._is_escaped = data[1:], not data
        if self._in_string:
            data = b'"' + data
        rest = _STRING.sub(b"", data)
        opened = rest.find(b'"')
        self._in_string = opened >= 0
        if self._in_string:
            tail = rest[opened:]
            self._is_escaped = (len(tail) - len(tail.rstrip(b"\\"))) % 2 == 1
            rest = rest[:opened]
        self.count += _values(rest)
        if self.count > self._most:
            raise MessageRefused(f"has more than {self._most:,} values")
