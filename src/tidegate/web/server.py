"""The HTTP server: listens on a socket that it is given, in the scope that it is given.

Guarantee: it installs no signal handler, opens no port of its own and starts no task outside its scope. Stopping is
prompt and in order: no new connections, idle ones closed, event streams told to end, running answers given until the
scope's deadline; then what is left is dropped. When the scope is closed, no connection and no request is left.
"""

import asyncio
import resource
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
from tidegate.lifetimes import Holding, Scope
from tidegate.log import Log
from tidegate.web.app import App
from tidegate.web.protocol import Connection

BACKLOG = 1024
"""Connections that the kernel keeps for us while we are busy."""
KEEP_ALIVE_SECONDS = 75
"""How long an unused connection stays open: longer than common clients keep theirs, so that they close first."""
DESCRIPTOR_SHARE = 0.5
"""Part of the process's descriptors that callers' connections may take; the rest is for models, store and children."""
MOST_CONNECTIONS = 8192
CONNECTION_BYTES = 12 * 1024
"""A caller's connection: its socket, transport, parser and the request that it is in. Measured."""

log = Log(__name__)


class Server:
    def __init__(self, app: App, config: Config, sock: socket.socket) -> None:
        self._app = app
        self._config = config
        self._socket = sock
        self._state = ServerState()
        self._scope: Scope | None = None
        self._listener: asyncio.Server | None = None
        self._most = _most_connections()
        self._refused = 0

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    async def start(self, scope: Scope) -> None:
        """Serve until the scope closes."""
        uvicorn = UvicornConfig(
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
        uvicorn.load()
        loop = asyncio.get_running_loop()
        self._scope = scope.child("web")
        self._scope.account.ledger.view("caller connection", self._measure)
        self._scope.on_close(self._drop, name="connections")
        self._tick()
        self._listener = await loop.create_server(
            lambda: Connection(uvicorn, self._state, self._run, loop),
            sock=self._socket,
            ssl=self._tls(),
            backlog=BACKLOG,
        )
        self._scope.start(self._app.background, name="keep-alive")
        self._scope.start(self._conduct, name="server")

    def _run(self, cycle: Any, app: Any) -> "asyncio.Task[None]":
        assert self._scope is not None
        return self._scope.start(cycle.run_asgi, app, name="request", at_close="finish")

    async def _conduct(self) -> None:
        """Keeps the clock of the Date header; when it is told to end, everything begins to end."""
        try:
            while True:
                await asyncio.sleep(1)
                self._tick()
                if len(self._state.connections) > self._most:
                    self._shed()
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
            await self._listener.wait_closed()
        await asyncio.sleep(0)  # an aborted transport tells its connection in the next turn of the loop

    def _measure(self) -> Iterator[tuple[str, Holding]]:
        """Callers' connections, with what waits there to be sent."""
        count = len(self._state.connections)
        waiting = sum(each.transport.get_write_buffer_size() for each in self._state.connections)
        yield "process", Holding(count, count * CONNECTION_BYTES + waiting, fds=count)

    def _tick(self) -> None:
        self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]

    def _shed(self) -> None:
        """Too many connections: those that are idle go first."""
        idle = [c for c in self._state.connections if isinstance(c, Connection) and c.is_idle]
        for connection in idle[: len(self._state.connections) - self._most]:
            connection.shutdown()
        log.warning("too many connections", open=len(self._state.connections), most=self._most, closed=len(idle))

    def _tls(self) -> ssl.SSLContext | None:
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


def _most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(16, min(MOST_CONNECTIONS, int(soft * DESCRIPTOR_SHARE)))
