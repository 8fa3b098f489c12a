"""The HTTP server: listens on a socket that it is given, in the scope that it is given.

Guarantee: it installs no signal handler, opens no port of its own and starts no task outside its scope. Connections are
bounded by a share of the process's descriptors. At the bound, those that have been idle longest are closed; if all are
busy, a few more are accepted that may ask how the gateway is and get 503 for anything else; further ones wait in the
kernel's queue. Stopping is prompt and in order: no new connections, idle ones closed, event streams told to end,
running answers given until the scope's deadline; then the rest is dropped. When the scope is closed, no connection and
no request is left.
"""

import asyncio
import heapq
import socket
import ssl
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

from uvicorn import Config as UvicornConfig
from uvicorn.server import ServerState

from tidegate.config import Config
from tidegate.errors import Misconfigured
from tidegate.lifetimes import Descriptors, Holding, Listener, Room, Scope
from tidegate.log import Log
from tidegate.status_report import Check, ConnectionStats
from tidegate.web.app.app import App
from tidegate.web.http1.protocol import HEAD_SECONDS, HttpConnection

BACKLOG = 1024
"""Connections that the kernel keeps for us while we are busy."""
KEEP_ALIVE_SECONDS = 75
"""How long an unused connection stays open: longer than common clients keep theirs, so that they close first."""
DESCRIPTOR_SHARE = 0.5
"""Part of the process's descriptors that callers' connections may take; the rest is for models, store and children."""
MOST_CONNECTIONS = 8192
EXTRA_CONNECTIONS = 8
"""Beyond the limit, for questions about the gateway itself: fewer than the reserve of descriptors."""
IDLE_SECONDS = 1.0
"""A connection that was used, or made, less long ago is not closed in favour of another."""
SHED_SHARE = 1 / 32
"""Part of the connections that is closed at once when they are too many: finding the idle ones takes a look at all."""
RECENT_SECONDS = 10.0
"""How long `/readyz` tells that a connection could not be taken as any other."""
CONNECTION_BYTES = 12 * 1024
"""A caller's connection: its socket, transport, parser and the request that it is in. Measured."""

log = Log(__name__)


class Server:
    def __init__(
        self, app: App, config: Config, sock: socket.socket, *, descriptors: Descriptors | None = None
    ) -> None:
        self._app = app
        self._config = config
        self._socket = sock
        self._descriptors = descriptors or Descriptors()
        self._state = ServerState()
        self._scope: Scope | None = None
        self._listener: Listener | None = None
        self._most = _most_connections(self._descriptors.limit)
        self._opening = 0
        self._extra = 0
        self._over = 0
        self._over_at: float | None = None

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    async def start(self, scope: Scope) -> None:
        """Serve until the scope closes."""
        self._uvicorn = UvicornConfig(
            self._app,
            http="httptools",
            ws="none",
            lifespan="off",
            loop="none",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        self._uvicorn.load()
        self._tls = self._load_tls()
        self._scope = scope.child("web")
        self._scope.account.ledger.view("caller connection", self._measure)
        self._scope.on_close(self._drop, name="connections")
        self._tick()
        self._listener = Listener(self._socket, room=self._room, accepted=self._accepted, descriptors=self._descriptors)
        self._listener.start(BACKLOG)
        self._scope.start(self._app.background, name="keep-alive")
        self._scope.start(self._conduct, name="server")

    # -- connections --

    def _room(self, short: bool) -> Room:
        if not short and self.connections + self._opening < self._most:
            return "free"
        if self._shed():
            return "soon"
        now = time.monotonic()
        if self._over_at is None or self._over_at < now - RECENT_SECONDS:
            log.warning("all connections are in use: new ones are refused or wait", limit=self._most)
        self._over_at = now
        return "reserve" if self._extra < EXTRA_CONNECTIONS else "none"

    def _shed(self) -> bool:
        """Close the connections that have been idle longest; whether there were any."""
        before = asyncio.get_running_loop().time() - IDLE_SECONDS
        idle = [
            each
            for each in self._state.connections
            if isinstance(each, HttpConnection)
            and each.is_idle
            and each.since <= before
            and not each.transport.is_closing()
        ]
        for connection in heapq.nsmallest(max(1, int(self._most * SHED_SHARE)), idle, key=lambda each: each.since):
            connection.shutdown()
        return bool(idle)

    def _accepted(self, sock: socket.socket, extra: bool) -> None:
        if self._scope is None or not self._scope.open:
            sock.close()
            return
        self._opening += 1
        self._extra += extra
        self._over += extra
        self._scope.start(self._open, sock, extra, name="connection")

    async def _open(self, sock: socket.socket, extra: bool) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: HttpConnection(self._uvicorn, self._state, self._run, loop, extra=extra, lost=self._lost),
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HEAD_SECONDS,
            )
        except OSError as error:
            log.debug("a connection was not made", error=str(error))
            self._extra -= extra
        finally:
            self._opening -= 1
            self._resume()

    def _lost(self, connection: HttpConnection) -> None:
        self._extra -= connection.extra
        self._resume()

    def _resume(self) -> None:
        if self._listener is not None:
            self._listener.resume()

    def check(self) -> Check:
        """Whether connections are taken, for `/readyz`."""
        recent = time.monotonic() - RECENT_SECONDS
        open, limit = self._descriptors.open, self._descriptors.limit
        failed = self._listener is not None and (self._listener.failed_at or 0) > recent
        if failed or (limit is not None and open >= limit):
            return Check(ok=False, detail=f"no file descriptor is left: {open} of {limit} are open")
        if (self._over_at or 0) > recent:
            return Check(ok=False, detail=f"all {self._most} connections are in use; new ones are refused or wait")
        return Check(ok=True, detail=f"{self.connections} of {self._most} connections are open")

    def report(self) -> ConnectionStats:
        return ConnectionStats(
            open=self.connections,
            limit=self._most,
            over_limit=self._over,
            not_accepted=self._listener.failures if self._listener is not None else 0,
            descriptors=self._descriptors.open,
            descriptors_limit=self._descriptors.limit or 0,
        )

    # -- requests --

    def _run(self, cycle: Any, app: Any) -> "asyncio.Task[None]":
        assert self._scope is not None
        return self._scope.start(cycle.run_asgi, app, name="request", at_close="finish")

    async def _conduct(self) -> None:
        """Keeps the clock of the Date header; when it is told to end, everything begins to end."""
        try:
            while True:
                await asyncio.sleep(1)
                self._tick()
        finally:
            self.stop_intake()

    def stop_intake(self) -> None:
        """No new connection, no new request; what runs goes on. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        self._app.stop()
        for connection in list(self._state.connections):
            connection.shutdown()

    async def _drop(self) -> None:
        """What is still open when every request has ended or the deadline has passed."""
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._listener is not None:
            self._listener.close()
        await asyncio.sleep(0)  # an aborted transport tells its connection in the next turn of the loop

    def _measure(self) -> Iterator[tuple[str, Holding]]:
        """Callers' connections, with what waits there to be sent."""
        count = len(self._state.connections)
        waiting = sum(each.transport.get_write_buffer_size() for each in self._state.connections)
        yield "process", Holding(count, count * CONNECTION_BYTES + waiting, fds=count)

    def _tick(self) -> None:
        self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]

    def _load_tls(self) -> ssl.SSLContext | None:
        server = self._config.server
        if server.tls_cert is None or server.tls_key is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._config.path(server.tls_cert), self._config.path(server.tls_key))
        except (OSError, ssl.SSLError) as error:
            raise Misconfigured(f"server.tls_cert and server.tls_key cannot be used: {error}.") from None
        return context


def _most_connections(descriptors: int | None) -> int:
    if descriptors is None:
        return MOST_CONNECTIONS
    return max(16, min(MOST_CONNECTIONS, int(descriptors * DESCRIPTOR_SHARE)))
