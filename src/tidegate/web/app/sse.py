"""Server-sent events: a writer that begins its response late, and the pulse that keeps quiet ones alive.

Guarantee: the response begins with the first thing that is said, so that a failure before it still gets its own status;
what is written arrives in the order written; a stream that says nothing gets a comment before `interval` seconds have
passed; a reader that takes nothing delays nobody but itself (and its connection lets it go). A stream belongs to its
request; the pulse holds it only while it is open.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import anyio

Send = Callable[[Any], Awaitable[None]]

KEEP_ALIVE_SECONDS = 15.0
BEATS = 5
"""Looks at the open streams per interval."""
_PULSE_PATIENCE = 0.05  # the pulse passes by a stream whose reader is slow: such a reader has enough to read

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


class Pulse:
    """Knows the open streams and speaks for those that are silent."""

    def __init__(self, interval: float = KEEP_ALIVE_SECONDS, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.every = interval / BEATS
        """Seconds between two looks."""
        self._quiet = interval - self.every
        self.clock = clock
        self.open: set[Stream] = set()

    async def run(self) -> None:
        while True:
            await anyio.sleep(self.every)
            await self.beat()

    async def beat(self) -> None:
        """One look at the open streams."""
        now = self.clock()
        for stream in [stream for stream in self.open if now - stream.spoke >= self._quiet]:
            await stream.keep_alive()


class Stream:
    """One response of server-sent events."""

    __slots__ = ("__weakref__", "_headers", "_lock", "_pulse", "_send", "spoke", "started")

    def __init__(self, send: Send, pulse: Pulse, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._pulse = pulse
        self._headers = headers
        self._lock = asyncio.Lock()
        self.spoke = pulse.clock()
        self.started = False

    @property
    def speaks(self) -> bool:
        """Whether the response has begun and not ended."""
        return self.started and self in self._pulse.open

    async def __aenter__(self) -> "Stream":
        self._pulse.open.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pulse.open.discard(self)

    async def write(self, data: bytes) -> None:
        """Send whole events."""
        async with self._lock:
            await self._say(data, more=True)

    async def finish(self, data: bytes = b"") -> None:
        """Send the last events and end the response."""
        self._pulse.open.discard(self)
        async with self._lock:
            await self._say(data, more=False)

    async def keep_alive(self) -> None:
        if self._lock.locked() or self not in self._pulse.open:
            return
        async with self._lock:
            with anyio.move_on_after(_PULSE_PATIENCE):
                await self._say(b": keep-alive\n\n", more=True)

    async def _say(self, data: bytes, *, more: bool) -> None:
        self.spoke = self._pulse.clock()
        if not self.started:
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS + self._headers})
            self.started = True
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


def event(name: str, data: bytes, *, id: int | None = None) -> bytes:
    """A named event; `data` is JSON, which has no line breaks of its own."""
    head = b"id: %d\n" % id if id is not None else b""
    return b"%bevent: %b\ndata: %b\n\n" % (head, name.encode(), data)


def comment(text: str) -> bytes:
    """A line that every client passes over."""
    return b": " + " ".join(text.split()).encode() + b"\n\n"
