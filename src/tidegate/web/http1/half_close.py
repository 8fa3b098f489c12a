"""A peer that will send nothing more: it waits for its answer, or it has gone.

Guarantee: a peer that has only closed its own half of the connection is left in peace; one that has hung up wholly is
noticed soon after, and its connection dropped. The wire tells both in the same way, so the first bytes of the answer
are sent ahead: who has gone refuses them. It owns its timer, until `stop`.
"""

import asyncio
import socket

from tidegate.web.http1.buffered_transport import BufferedTransport

HEAD_AHEAD = b"HTTP/1.1 "
"""What every answer begins with, whatever it will say."""
CHUNK_AHEAD = b"0"
"""The size of a chunk may begin with a zero, whatever it will be."""
FIRST_LOOK = 0.02
"""Seconds until the refusal of a near peer has come back; each later look waits twice as long, for farther ones."""
LONGEST_LOOK = 1.0


class HalfCloseWatch:
    def __init__(self, transport: BufferedTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._wait = FIRST_LOOK
        self._timer: asyncio.TimerHandle | None = None

    def start(self, *, begun: bool, chunked: bool) -> None:
        """`begun`: the answer's head is written; `chunked`: chunks follow it."""
        if not begun:
            self._transport.send_ahead(HEAD_AHEAD)
        elif chunked:
            self._transport.write(CHUNK_AHEAD)
        self._timer = self._loop.call_later(self._wait, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        # The loop does not read from such a connection any more, so that a reset has to be asked for.
        if self._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
            return
        self._wait = min(2 * self._wait, LONGEST_LOOK)
        self._timer = self._loop.call_later(self._wait, self._look)
