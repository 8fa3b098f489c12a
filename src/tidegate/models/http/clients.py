"""The pool of connections to models' endpoints.

All models share one bounded pool and one TLS context. Idle connections are closed when their keep-alive expires.
Nothing is read from the environment (no proxies, no .netrc), no cookies are kept and no redirects are followed, so
credentials are sent only where the configuration says. `Clients` owns the pool. The pool is opened on entering, and
closed together with all its connections on leaving.
"""

import asyncio
import socket
import ssl
from collections import Counter, deque
from collections.abc import Sequence
from ipaddress import ip_address
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
from aiohappyeyeballs import AddrInfoType, start_connection
from anyio import to_thread

from tidegate.models.http.connection import ConnectionFailed, EndpointConnection, Response, Timeouts
from tidegate.values import Frozen

# The defaults of the settings. To one host as many as running turns by default (64), so that no turn waits for a slot.
CONNECTIONS = 128
CONNECTIONS_PER_HOST = 64
# Shorter than the idle timeout of common servers and proxies (60 s and more), so that we close first.
KEEPALIVE_SECONDS = 30.0
# Memory of a connection: its socket, transport, parser and current request and response. Measured.
CONNECTION_BYTES = 4 * 1024
# The delay before the next address of a host is tried in parallel.
NEXT_ADDRESS_SECONDS = 0.25
# Time for aborted connections to close their sockets, which takes one iteration of the event loop.
CLOSE_SECONDS = 2.0


class Origin(Frozen, frozen=True):
    """Scheme, host and port of an endpoint."""

    secure: bool
    host: str
    port: int


class ClientStats(Frozen, frozen=True):
    """Statistics: connections by state, waiting requests, the memory of all connections, and leases by endpoint."""

    open: int = 0
    busy: int = 0
    idle: int = 0
    waiting: int = 0
    limit: int = 0
    bytes: int = 0
    leases: dict[str, int] = msgspec.field(default_factory=dict)


class Lease:
    """One user of an endpoint. Releasing it a second time has no effect."""

    __slots__ = ("_counts", "_held", "endpoint")

    def __init__(self, endpoint: str, counts: Counter[str]) -> None:
        self.endpoint = endpoint
        self._counts = counts
        self._held = True
        counts[endpoint] += 1

    def release(self) -> None:
        if not self._held:
            return
        self._held = False
        self._counts[self.endpoint] -= 1
        if self._counts[self.endpoint] <= 0:
            del self._counts[self.endpoint]


class _Waiter(NamedTuple):
    """A request that waits for a connection. The future's result is a freed connection, or None if a new one may be
    opened."""

    origin: Origin
    future: "asyncio.Future[EndpointConnection | None]"


class Clients:
    """The pool of connections, which lives as long as the process. Only endpoints in the configuration are used, so the
    number of counters is limited."""

    def __init__(
        self,
        *,
        connections: int = CONNECTIONS,
        per_host: int = CONNECTIONS_PER_HOST,
        keepalive: float = KEEPALIVE_SECONDS,
    ) -> None:
        self._connections = connections
        self._per_host = per_host
        self._keepalive = keepalive
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tls: ssl.SSLContext | None = None
        self._origins: dict[EndpointConnection, Origin] = {}
        self._idle: dict[Origin, list[EndpointConnection]] = {}
        self._counts: Counter[Origin] = Counter()  # open or being opened
        self._waiting: deque[_Waiter] = deque()  # lint: allow as many as there are running turns
        self._expiry: asyncio.TimerHandle | None = None
        self._leases: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise RuntimeError("These clients are open already.")
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop = None
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        closing = list(self._origins)
        for connection in closing:
            connection.abort()
        if closing:
            await asyncio.wait({connection.closed for connection in closing}, timeout=CLOSE_SECONDS)

    def lease(self, endpoint: str) -> Lease:
        return Lease(endpoint, self._leases)

    def stats(self) -> ClientStats:
        count, idle = len(self._origins), sum(len(group) for group in self._idle.values())
        return ClientStats(
            open=count,
            busy=count - idle,
            idle=idle,
            waiting=len(self._waiting),
            limit=self._connections,
            bytes=count * CONNECTION_BYTES,
            leases=dict(self._leases),
        )

    async def request(self, origin: Origin, head: bytes, body: Sequence[bytes], waits: Timeouts) -> Response:
        """Send a request and return the response once its head has arrived. Closing the response returns its connection
        to the pool, or closes it."""
        while (used := self._take_idle(origin)) is not None:
            try:
                return await _ask(used, head, body, waits)
            except ConnectionFailed as error:
                if error.trouble != "broken" or used.has_received:
                    raise
                # The server closed the idle connection just as it was reused, so the request was not processed.
        return await _ask(await self._obtain(origin, waits), head, body, waits)

    # -- connections --

    def _take_idle(self, origin: Origin) -> EndpointConnection | None:
        """Returns the most recently used connection, so that the others expire when fewer are needed. Returns None if
        no connection is idle."""
        group = self._idle.get(origin)
        if not group:
            return None
        connection = group.pop()
        if not group:
            del self._idle[origin]
        return connection

    async def _obtain(self, origin: Origin, waits: Timeouts) -> EndpointConnection:
        """Returns a connection that was freed for this request, or a new one if the pool has space."""
        overtaken = False
        while not self._has_room(origin):
            try:
                async with asyncio.timeout(waits.first_byte):
                    connection = await self._wait_for_slot(origin, overtaken)
            except TimeoutError:
                raise ConnectionFailed("crowded") from None
            if connection is not None and connection.usable:
                return connection
            overtaken = True
        try:
            async with asyncio.timeout(waits.connect):
                return await self._connect(origin)
        except TimeoutError:
            raise ConnectionFailed("late") from None

    def _has_room(self, origin: Origin) -> bool:
        if self._counts[origin] >= self._per_host:
            return False
        if self._counts.total() >= self._connections and self._idle:
            next(iter(self._idle.values()))[0].abort()  # the longest idle one of another endpoint
        return self._counts.total() < self._connections

    async def _wait_for_slot(self, origin: Origin, overtaken: bool) -> EndpointConnection | None:
        """Wait for a freed connection. Returns None if there is space for a new one instead. A request that was
        overtaken waits at the front of the queue."""
        waiter = _Waiter(origin, asyncio.get_running_loop().create_future())
        (self._waiting.appendleft if overtaken else self._waiting.append)(waiter)
        try:
            return await waiter.future
        except BaseException:
            if waiter.future.done() and not waiter.future.cancelled():  # pass it on to the next waiter
                connection = waiter.future.result()
                if connection is not None and connection.usable:
                    self._free(connection)
                else:
                    self._next()
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _next(self) -> None:
        """Wake the first waiter that can continue. Other waiters are skipped, because a slot for one endpoint is of no
        use to a waiter for another."""
        spare = self._counts.total() < self._connections or bool(self._idle)
        for waiter in self._waiting:
            if spare and self._counts[waiter.origin] < self._per_host:
                self._give(waiter, None)
                return

    def _give(self, waiter: "_Waiter", connection: EndpointConnection | None) -> None:
        self._waiting.remove(waiter)
        if not waiter.future.done():
            waiter.future.set_result(connection)

    async def _connect(self, origin: Origin) -> EndpointConnection:
        loop = self._loop
        if loop is None:
            raise RuntimeError("The clients are not open; enter them with `async with` first.")
        self._counts[origin] += 1
        connection: EndpointConnection | None = None
        try:
            context = await self._context() if origin.secure else None
            link = await start_connection(
                await _addresses(origin), happy_eyeballs_delay=NEXT_ADDRESS_SECONDS, interleave=1, loop=loop
            )
            _, connection = await loop.create_connection(
                lambda: EndpointConnection(loop, free=self._free, gone=self._gone),
                sock=link,
                ssl=context,
                server_hostname=origin.host if origin.secure else None,
            )
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or str(error)
            raise ConnectionFailed("untrusted", why) from None
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionFailed("unconnected", error.strerror or "") from None
        except UnicodeError:
            raise ConnectionFailed("unconnected", "invalid host name") from None
        finally:
            if connection is None:
                self._forget(origin)
        if not connection.usable or self._loop is None:  # it broke at once, or the pool is being closed
            self._forget(origin)
            connection.abort()
            raise ConnectionFailed("broken")
        self._origins[connection] = origin
        return connection

    async def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            made = await to_thread.run_sync(ssl.create_default_context)  # reads all certificates of the system
            self._tls = self._tls or made
        return self._tls

    def _free(self, connection: EndpointConnection) -> None:
        origin = self._origins[connection]
        for waiter in self._waiting:
            if waiter.origin == origin and not waiter.future.done():
                self._give(waiter, connection)
                return
        self._idle.setdefault(origin, []).append(connection)
        if self._expiry is None and self._loop is not None:
            self._expiry = self._loop.call_later(self._keepalive, self._expire)
        self._next()

    def _gone(self, connection: EndpointConnection) -> None:
        origin = self._origins.pop(connection, None)
        if origin is None:
            return
        group = self._idle.get(origin, [])
        if connection in group:
            group.remove(connection)
            if not group:
                del self._idle[origin]
        self._forget(origin)

    def _forget(self, origin: Origin) -> None:
        self._counts[origin] -= 1
        if not self._counts[origin]:
            del self._counts[origin]
        self._next()

    def _expire(self) -> None:
        """Timer callback that closes connections whose keep-alive has expired. It is scheduled while connections are
        idle."""
        assert self._loop is not None
        self._expiry = None
        late = self._loop.time() - self._keepalive
        for group in list(self._idle.values()):
            for connection in [one for one in group if one.idle_since <= late]:
                connection.abort()
        if self._idle:
            soonest = min(group[0].idle_since for group in self._idle.values())
            self._expiry = self._loop.call_at(soonest + self._keepalive, self._expire)


async def _ask(connection: EndpointConnection, head: bytes, body: Sequence[bytes], waits: Timeouts) -> Response:
    try:
        return await connection.request(head, body, waits)
    except BaseException:
        connection.abort()
        raise


async def _addresses(origin: Origin) -> Sequence[AddrInfoType]:
    """Returns the addresses of the origin's host. An IP address is used unchanged, without a resolver thread."""
    stream, tcp = socket.SOCK_STREAM, socket.IPPROTO_TCP
    try:
        number = ip_address(origin.host)
    except ValueError:
        return await asyncio.get_running_loop().getaddrinfo(origin.host, origin.port, type=stream, proto=tcp)
    if number.version == 6:
        return [(socket.AF_INET6, stream, tcp, "", (origin.host, origin.port, 0, 0))]
    return [(socket.AF_INET, stream, tcp, "", (origin.host, origin.port))]
