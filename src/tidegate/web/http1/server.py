"""The HTTP server, which uses a bound socket and a scope passed in by its owner.

It installs no signal handlers, opens no ports and starts no tasks outside its scope. The number of connections is
limited to a share of the process's file descriptors. At the limit, the connections that have been idle longest are
closed. If all are busy, a few more are accepted for health checks and get 503 for anything else; further ones wait in
the kernel's queue.

Stopping is prompt and graceful: no new connections are accepted, idle ones are closed, event streams end, running
requests may finish until the scope's deadline, and then the rest are dropped. When the scope is closed, no connections
or requests are left.
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
from tidegate.web.http1.protocol import HttpConnection, HttpTimes

BACKLOG = 1024
"""Maximum number of connections that the kernel queues while the gateway is busy."""
KEEP_ALIVE_SECONDS = 75
"""Seconds that an unused connection stays open: longer than common clients' timeouts, so that clients close first."""
DESCRIPTOR_SHARE = 0.5
"""The share of the process's descriptors that client connections may use. The rest is for models, the store and child
processes."""
MOST_CONNECTIONS = 8192
EXTRA_CONNECTIONS = 8
"""Number of connections accepted beyond the limit for health checks: fewer than the reserved descriptors."""
SHED_SHARE = 1 / 32
"""The share of connections that are closed together when there are too many. Several are closed at a time because
finding the idle ones requires scanning all connections."""
RECENT_SECONDS = 10.0
"""Seconds for which `/readyz` reports that a connection exceeded the limit or was not accepted."""
CONNECTION_BYTES = 12 * 1024
"""Measured memory of a connection: its socket, transport, parser and current request."""

log = Log(__name__)


class Server:
    def __init__(
        self, app: App, config: Config, sock: socket.socket, *, descriptors: Descriptors | None = None
    ) -> None:
        self.times = HttpTimes()
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

    @property
    def requests(self) -> int:
        """The number of requests being processed."""
        return len(self._state.tasks)

    async def start(self, scope: Scope) -> None:
        """Serves requests until the scope closes."""
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
        self._scope.start(self._keep_date, name="server")

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
        """Closes the connections that have been idle longest. Returns True if any were closed."""
        before = asyncio.get_running_loop().time() - self.times.idle
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
                lambda: HttpConnection(
                    self._uvicorn, self._state, self._run, loop, extra=extra, lost=self._lost, times=self.times
                ),
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self.times.head,
            )
        except OSError as error:
            log.debug("a connection could not be opened", error=str(error))
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
        """Checks for `/readyz` whether this server accepts connections."""
        recent = time.monotonic() - RECENT_SECONDS
        open, limit = self._descriptors.open, self._descriptors.limit
        failed = self._listener is not None and (self._listener.failed_at or 0) > recent
        if failed or (limit is not None and open >= limit):
            return Check(ok=False, detail=f"no file descriptors are left: {open} of {limit} are open")
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

    async def _keep_date(self) -> None:
        """Updates the Date header every second. When the scope closes, it first cancels this task, which starts the
        shutdown."""
        try:
            while True:
                await asyncio.sleep(1)
                self._tick()
        finally:
            self.stop_intake()

    def stop_intake(self) -> None:
        """Stops accepting new connections and requests. Running requests continue. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        self._app.stop()
        for connection in list(self._state.connections):
            connection.shutdown()

    async def _drop(self) -> None:
        """Drops the connections that are still open when every request has ended or the deadline has passed."""
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._listener is not None:
            self._listener.close()
        await asyncio.sleep(0)  # an aborted transport notifies its connection in the next iteration of the event loop

    def _measure(self) -> Iterator[tuple[str, Holding]]:
        """Measures client connections and the bytes that are waiting to be sent."""
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
