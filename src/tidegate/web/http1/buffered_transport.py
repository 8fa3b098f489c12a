"""The transport that a connection writes to.

Guarantee: what is written in one turn of the loop leaves together: a head and its body are one packet, one call of the
kernel instead of two. Closing while the peer is still sending does not take away what was written (`lingering`), and a
second `close` ends that too; a peer that does not take the rest is let go as any other that takes nothing. It owns
nothing: the connection has the transport.
"""

import asyncio
from typing import Any

from tidegate.web.http1.lingering_close import LingeringClose


class BufferedTransport(asyncio.Transport):
    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._ahead = b""
        self.unread = False
        """Whether the peer has begun a request that has not wholly arrived."""
        self.abort = transport.abort  # type: ignore[method-assign]
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]
        self.get_write_buffer_size = transport.get_write_buffer_size  # type: ignore[method-assign]
        self.pause_reading = transport.pause_reading  # type: ignore[method-assign]
        self.resume_reading = transport.resume_reading  # type: ignore[method-assign]
        self.get_write_buffer_size = transport.get_write_buffer_size  # type: ignore[method-assign]

    def write(self, data: Any) -> None:
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)

    def flush(self) -> None:
        if self._held:
            data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
            self._held.clear()
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        if self._transport.get_write_buffer_size():
            self._transport.set_write_buffer_limits(high=0)  # from now on any rest counts as a full buffer
        if self.is_closing() or (not self.unread and self._transport.is_reading()):
            self._transport.close()
            return
        self.is_closing = _yes  # type: ignore[method-assign]
        self.write = _dropped  # type: ignore[method-assign]
        receiver = self._transport.get_protocol()
        assert isinstance(receiver, asyncio.Protocol)
        LingeringClose(receiver, self._transport, self._loop).start()

    def send_ahead(self, data: bytes) -> None:
        """Send, now, the bytes that the next write will begin with."""
        self.flush()
        self._transport.write(data)
        self._ahead = data
        self.write = self._write_rest  # type: ignore[method-assign]

    def _write_rest(self, data: Any) -> None:
        del self.write
        if not data.startswith(self._ahead):
            self.abort()  # what was sent ahead is no part of this: nothing that follows would make sense
            return
        self.write(data[len(self._ahead) :])


def _yes() -> bool:
    return True


def _dropped(data: Any) -> None:
    """Nobody can be told any more."""
