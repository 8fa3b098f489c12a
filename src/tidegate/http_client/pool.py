"""The open connections of a client: those in use, and those that wait for the next request to the same server."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tidegate.http_client.address_guard import AddressGuard
from tidegate.http_client.connection import WHOLE_BYTES, ClientConnection, request_head
from tidegate.http_client.connector import Connector
from tidegate.http_client.interface import IncomingResponse, Target, Timeouts
from tidegate.http_client.response import CompressedResponse, Response

CLOSE_SECONDS = 2.0
"""Time for aborted connections to close their sockets, which takes one iteration of the event loop."""


class _Server(NamedTuple):
    """The destination of a connection. Only requests with the same values may use the connection."""

    scheme: str
    netloc: str
    proxy: str
    ca_file: str


class Pool:
    """The connections of one client. At most `limit` are open, including idle ones."""

    def __init__(
        self, *, keepalive: float, limit: int, upload_rate: int, guard: AddressGuard | None, resolver: Any
    ) -> None:
        self._keepalive = keepalive
        self._limit = limit
        self._upload_rate = upload_rate
        self._loop = asyncio.get_running_loop()
        self._connector = Connector(guard, resolver)
        self._open: set[ClientConnection] = set()
        self._idle: dict[_Server, list[ClientConnection]] = {}
        """The idle connections to each server, the one that was used last at the end."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def open_sockets(self) -> int:
        return self._connector.open_sockets

    async def close(self) -> None:
        """Closes all connections, even busy ones, and waits until their sockets are closed."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in tuple(self._open):
            connection.transport.abort()
        async with asyncio.timeout(CLOSE_SECONDS):
            await self._connector.close()

    async def request(
        self,
        target: Target,
        body: Sequence[bytes],
        waits: Timeouts,
        context: ssl.SSLContext | None,
        closed: Callable[[], None],
    ) -> IncomingResponse:
        """Sends a request and returns its response once the head has arrived. `closed` is called when the response is
        closed. Raises ConnectionFailed, and does not call it then."""
        size = sum(map(len, body))
        head = request_head(target, size, keeps_alive=self._keepalive > 0)
        # A long request may block until the other side reads, and no other timeout covers that.
        patience = waits.first_byte + (size / self._upload_rate if size > WHOLE_BYTES else 0)
        parts = urlsplit(target.url)
        server = _Server(
            parts.scheme, parts.netloc, "" if target.proxy is None else target.proxy.reveal(), target.ca_file
        )
        while True:
            connection = self._take(server) or await self._connect(server, target, context, waits.connect)
            reused = connection.used
            response = Response(connection, waits, patience)
            try:
                await connection.send(head, body, response)
                await response.head()
            except BaseException:
                # A server may close an idle connection at the moment of its reuse. It has not seen the request then.
                again = reused and response.untouched
                response.close()
                if not again:
                    raise
                continue
            response.on_close = closed
            encoding = response.headers.get("content-encoding", "").strip().lower()
            return response if encoding in ("", "identity") else CompressedResponse(response, encoding)

    def _take(self, server: _Server) -> ClientConnection | None:
        """Returns an idle connection to a server, or None."""
        while waiting := self._idle.get(server):
            connection = waiting.pop()
            if not waiting:
                del self._idle[server]
            if not connection.transport.is_closing():
                return connection
        return None

    async def _connect(
        self, server: _Server, target: Target, context: ssl.SSLContext | None, seconds: float
    ) -> ClientConnection:
        if self.open_sockets >= self._limit and self._idle:
            min((each[0] for each in self._idle.values()), key=lambda each: each.idle_since).transport.abort()
        connection = await self._connector.connect(
            target, context, seconds, partial(self._keep, server), partial(self._lost, server)
        )
        self._open.add(connection)
        return connection

    def _keep(self, server: _Server, connection: ClientConnection) -> None:
        if not self._keepalive or self.open_sockets > self._limit:
            connection.transport.abort()
            return
        connection.idle_since = self._loop.time()
        self._idle.setdefault(server, []).append(connection)
        if self._timer is None:
            self._timer = self._loop.call_later(self._keepalive, self._expire)

    def _expire(self) -> None:
        """Closes the connections that have been idle for too long. Called by the timer while there are any."""
        oldest = self._loop.time() - self._keepalive
        waiting = [each for connections in self._idle.values() for each in connections]
        for connection in waiting:
            if connection.idle_since <= oldest:
                connection.transport.abort()
        due = min((each.idle_since for each in waiting if each.idle_since > oldest), default=None)
        self._timer = None if due is None else self._loop.call_at(due + self._keepalive, self._expire)

    def _lost(self, server: _Server, connection: ClientConnection) -> None:
        self._open.discard(connection)
        if connection in (waiting := self._idle.get(server, [])):
            waiting.remove(connection)
            if not waiting:
                del self._idle[server]
