"""The transport of an HTTP connection: buffered writes, a lingering close and checks of half-closed peers.

`BufferedTransport` wraps asyncio's transport. Everything written in one iteration of the event loop is sent in one
system call, so a response head and its body share a packet. If `close` is called while the peer is still sending,
everything already written is still delivered (`LingeringClose`); a second `close` gives up on that, too. A peer that
does not read the rest of its response is dropped like any other peer that stops reading.

`HalfCloseWatch` distinguishes a peer that has only closed its sending side, which stays connected, from one that has
hung up, which is dropped soon after.

The connection owns the transport. Each helper owns only its timer.
"""

import asyncio
import socket
from typing import Any

LINGER_BYTES = 64 * 1024 * 1024
"""Maximum number of bytes that a lingering close reads and discards: four times the default body limit, which is more
than a client sends by mistake."""
LINGER_SECONDS = 30.0
"""Maximum duration of a lingering close in seconds: enough to receive the rest of a body and deliver the response over
a slow connection."""

HEAD_START = b"HTTP/1.1 "
"""The first bytes of every response, whatever its status."""
CHUNK_START = b"0"
"""The start of a chunk's size, which may always be written with a leading zero."""
FIRST_PROBE_SECONDS = 0.02
"""Seconds to wait for a TCP reset from a nearby peer. Each later probe waits twice as long, for more distant peers."""
LONGEST_PROBE_SECONDS = 1.0


class BufferedTransport(asyncio.Transport):
    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, *, linger: float = LINGER_SECONDS
    ) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._linger = linger
        self._buffer: list[bytes] = []
        self._sent_ahead = b""
        self.unread = False
        """True if the peer has started sending a request that has not arrived completely."""
        self.abort = transport.abort  # type: ignore[method-assign]
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]
        self.get_write_buffer_size = transport.get_write_buffer_size  # type: ignore[method-assign]
        self.pause_reading = transport.pause_reading  # type: ignore[method-assign]
        self.resume_reading = transport.resume_reading  # type: ignore[method-assign]

    def write(self, data: Any) -> None:
        if not self._buffer:
            self._loop.call_soon(self.flush)
        self._buffer.append(data)

    def flush(self) -> None:
        if self._buffer:
            data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
            self._buffer.clear()
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        if self._transport.get_write_buffer_size():
            self._transport.set_write_buffer_limits(high=0)  # from now on any remaining byte counts as a full buffer
        if self.is_closing() or (not self.unread and self._transport.is_reading()):
            self._transport.close()
            return
        self.is_closing = _always_closing  # type: ignore[method-assign]
        self.write = _discard  # type: ignore[method-assign]
        receiver = self._transport.get_protocol()
        assert isinstance(receiver, asyncio.Protocol)
        LingeringClose(receiver, self._transport, self._loop).start(self._linger)

    def send_ahead(self, data: bytes) -> None:
        """Sends the first bytes of the next write immediately."""
        self.flush()
        self._transport.write(data)
        self._sent_ahead = data
        self.write = self._write_rest  # type: ignore[method-assign]

    def _write_rest(self, data: Any) -> None:
        del self.write
        if not data.startswith(self._sent_ahead):
            self.abort()  # the bytes sent ahead do not belong to this response, so nothing after them would make sense
            return
        self.write(data[len(self._sent_ahead) :])


def _always_closing() -> bool:
    return True


def _discard(data: Any) -> None:
    """Discards data written after the connection was closed."""


class LingeringClose(asyncio.Protocol):
    """Closes a connection whose response was sent before its request had arrived completely.

    Reads and discards what the peer is still sending until it hangs up, so that no TCP reset overtakes the response.
    Gives up after `LINGER_BYTES`, or after the number of seconds passed to `start`, which is called once. It replaces
    the connection as the transport's protocol and reports the connection's loss to it.
    """

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

    def start(self, seconds: float) -> None:
        self._transport.set_protocol(self)
        self._timer = self._loop.call_later(seconds, self._transport.close)
        if self._transport.can_write_eof():  # not with TLS, where the response's own length marks its end
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


class HalfCloseWatch:
    """Drops peers that have hung up, and keeps those that have only closed their sending side.

    Both look the same on the wire, so the first bytes of the response are sent ahead: a peer that has hung up resets
    the connection. `stop` cancels the timer.
    """

    def __init__(self, transport: BufferedTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._wait = FIRST_PROBE_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def start(self, *, response_started: bool, chunked: bool) -> None:
        """Starts the watch. If `chunked` is true, the head has already been written and chunks follow."""
        if not response_started:
            self._transport.send_ahead(HEAD_START)
        elif chunked:
            self._transport.write(CHUNK_START)
        self._timer = self._loop.call_later(self._wait, self._probe)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _probe(self) -> None:
        # The event loop no longer reads from this connection, so poll for a reset.
        if self._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
            return
        self._wait = min(2 * self._wait, LONGEST_PROBE_SECONDS)
        self._timer = self._loop.call_later(self._wait, self._probe)
