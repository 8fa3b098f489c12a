"""Server-sent events: response streams and their keep-alive comments.

A stream's response begins with its first event, so a failure before that still gets its own status. Events arrive in
the order in which they were written. An idle stream gets a comment before `interval` seconds have passed. A slow reader
delays nobody else, and is disconnected if it stops reading.

A stream belongs to its request. `OpenStreams` keeps a reference only while the stream is open.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import anyio

Send = Callable[[Any], Awaitable[None]]

KEEP_ALIVE_SECONDS = 15.0
CHECKS_PER_INTERVAL = 5
_KEEP_ALIVE_PATIENCE = 0.05  # streams with a slow reader are skipped, since data is already waiting for them

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


class OpenStreams:
    """The gateway's open streams. `run` sends keep-alive comments to the idle ones."""

    def __init__(self, interval: float = KEEP_ALIVE_SECONDS, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.check_interval = interval / CHECKS_PER_INTERVAL
        """The number of seconds between two checks for idle streams."""
        self._idle_seconds = interval - self.check_interval
        self.clock = clock
        self.open: set[Stream] = set()

    async def run(self) -> None:
        while True:
            await anyio.sleep(self.check_interval)
            await self.send_keep_alives()

    async def send_keep_alives(self) -> None:
        """Sends a comment to each idle stream."""
        now = self.clock()
        for stream in [stream for stream in self.open if now - stream.last_write >= self._idle_seconds]:
            await stream.keep_alive()


class Stream:
    """A response with server-sent events."""

    __slots__ = ("__weakref__", "_headers", "_lock", "_send", "_streams", "last_write", "started")

    def __init__(self, send: Send, streams: OpenStreams, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._streams = streams
        self._headers = headers
        self._lock = asyncio.Lock()
        self.last_write = streams.clock()
        self.started = False

    @property
    def is_active(self) -> bool:
        """True if the response has begun and not ended."""
        return self.started and self in self._streams.open

    async def __aenter__(self) -> "Stream":
        self._streams.open.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._streams.open.discard(self)

    async def write(self, data: bytes) -> None:
        """Sends complete events."""
        async with self._lock:
            await self._send_body(data, more=True)

    async def finish(self, data: bytes = b"") -> None:
        """Sends the last events and ends the response."""
        self._streams.open.discard(self)
        async with self._lock:
            await self._send_body(data, more=False)

    async def keep_alive(self) -> None:
        if self._lock.locked() or self not in self._streams.open:
            return
        async with self._lock:
            with anyio.move_on_after(_KEEP_ALIVE_PATIENCE):
                await self._send_body(b": keep-alive\n\n", more=True)

    async def _send_body(self, data: bytes, *, more: bool) -> None:
        self.last_write = self._streams.clock()
        if not self.started:
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS + self._headers})
            self.started = True
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


def event(name: str, data: bytes, *, id: int | None = None) -> bytes:
    """Returns a named event. `data` is JSON, which contains no line breaks."""
    head = b"id: %d\n" % id if id is not None else b""
    return b"%bevent: %b\ndata: %b\n\n" % (head, name.encode(), data)


def comment(text: str) -> bytes:
    """Returns a comment: a line that all clients ignore."""
    return b": " + " ".join(text.split()).encode() + b"\n\n"
