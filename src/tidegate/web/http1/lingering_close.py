"""The end of a connection whose peer is still sending: an answer came before its request had arrived.

Guarantee: what the peer sends is read and dropped until it hangs up, so that no reset overtakes the answer; it ends by
itself after `LINGER_BYTES` or `LINGER_SECONDS`. The transport is owned by the connection that lingers, which is told
when it is lost.
"""

import asyncio

LINGER_BYTES = 64 * 1024 * 1024
"""Four bodies of the default limit: more than a client sends by mistake."""
LINGER_SECONDS = 30.0
"""Long enough for a slow line to bring the rest of a body, and to take the answer."""


class LingeringClose(asyncio.Protocol):
    """Takes the place of the connection as the receiver of what comes in; `start` once."""

    def __init__(
        self, connection: asyncio.Protocol, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._connection = connection
        self._transport = transport
        self._loop = loop
        self._left = LINGER_BYTES
        self._timer: asyncio.TimerHandle | None = None
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def start(self) -> None:
        self._transport.set_protocol(self)
        self._timer = self._loop.call_later(LINGER_SECONDS, self._transport.close)
        if self._transport.can_write_eof():  # not over TLS: there the answer's own length says where it ends
            self._transport.write_eof()
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._connection.connection_lost(exc)
