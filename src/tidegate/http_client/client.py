"""The HTTP client: a bounded pool of connections, in which requests wait for their turn.

A request waits for a place, for its connection and for the head of its response, each with a deadline, and is sent
once. It is sent again, on a new connection, only if the server closed an idle connection at the moment of its reuse and
has therefore not processed it. No redirect is followed, no cookie is kept, and only the caller's target names the
proxy, so credentials are sent only to the servers that the caller names. A cancelled request closes its connection.

`HttpClient` owns its connections. They are closed when its block ends. The library is imported by the first request, or
by `load`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from tidegate.errors import Misconfigured
from tidegate.http_client.address_guard import AddressGuard
from tidegate.http_client.interface import ClientStats, ConnectionFailed, IncomingResponse, Lease, Target, Timeouts
from tidegate.http_client.proxy_and_tls import Network

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from tidegate.http_client.pool import Pool

# The defaults of the settings. To one host as many as running turns by default (64), so that no turn waits for a place.
CONNECTIONS = 128
CONNECTIONS_PER_HOST = 64
# Shorter than the idle timeout of common servers and proxies (60 s and more), so that we close first.
KEEPALIVE_SECONDS = 30.0
# The slowest upload of a long request that is tolerated, in addition to the timeout of the first byte.
UPLOAD_BYTES_PER_SECOND = 64 * 1024
# Memory of a connection: its socket, transport, parser and current request and response. Measured.
CONNECTION_BYTES = 8 * 1024


class _Places:
    """The places for concurrent requests to one origin, and the number of requests that use or await one."""

    __slots__ = ("free", "users")

    def __init__(self, count: int) -> None:
        self.free = asyncio.Semaphore(count)
        self.users = 0


class HttpClient:
    """A client with its own connections. `keepalive` is the number of seconds for which an unused one stays open; with
    0, each request has its own. A `guard` makes the sockets. `resolver` replaces aiohttp's own, for tests."""

    def __init__(
        self,
        network: Network | None = None,
        *,
        connections: int = CONNECTIONS,
        per_host: int = CONNECTIONS_PER_HOST,
        keepalive: float = KEEPALIVE_SECONDS,
        upload_rate: int = UPLOAD_BYTES_PER_SECOND,
        guard: AddressGuard | None = None,
        resolver: Any = None,
    ) -> None:
        self.network = network or Network()
        self._limit = connections
        self._per_host = per_host
        self._keepalive = keepalive
        self._upload_rate = upload_rate
        self._guard = guard
        self._resolver = resolver
        self._entered = False
        self._pool: Pool | None = None
        self._all = asyncio.Semaphore(connections)
        self._origins: dict[tuple[str, str], _Places] = {}
        self._busy = self._waiting = 0
        self._leases: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError("The client is already open.")
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    @staticmethod
    def load() -> None:
        """Imports the library ahead of the first request. The import takes a tenth of a second."""
        import tidegate.http_client.pool  # noqa: F401

    def lease(self, endpoint: str) -> Lease:
        return Lease(endpoint, self._leases)

    def stats(self) -> ClientStats:
        count = 0 if self._pool is None else self._pool.open_sockets
        return ClientStats(
            open=count,
            busy=self._busy,
            idle=max(0, count - self._busy),
            waiting=self._waiting,
            limit=self._limit,
            bytes=count * CONNECTION_BYTES,
            leases=dict(self._leases),
        )

    async def request(self, target: Target, body: Sequence[bytes], waits: Timeouts) -> IncomingResponse:
        """Sends a request and returns the response once its head has arrived. Closing the response returns its
        connection to the pool, or closes it."""
        pool = self._opened()
        leave = await self._place(target.url, waits.first_byte)
        try:
            context = await self._tls_context(target)
            return await pool.request(target, body, waits, context, leave)
        except BaseException:
            leave()
            raise

    async def _tls_context(self, target: Target) -> "ssl.SSLContext | None":
        if not target.url.startswith("https:"):
            return None
        try:
            return await self.network.tls_context(target.ca_file)
        except Misconfigured as error:  # the file was changed since the start
            raise ConnectionFailed("untrusted", error.message) from None

    def _opened(self) -> "Pool":
        if self._pool is None:
            if not self._entered:
                raise RuntimeError("The client is not open; enter it with `async with` first.")
            from tidegate.http_client.pool import Pool  # its library is large

            self._pool = Pool(
                keepalive=self._keepalive,
                limit=self._limit,
                upload_rate=self._upload_rate,
                guard=self._guard,
                resolver=self._resolver,
            )
        return self._pool

    async def _place(self, url: str, within: float) -> Callable[[], None]:
        """Waits for a free place, in order of arrival. Returns the function that frees the place."""
        parts = urlsplit(url)
        origin = parts.scheme, parts.netloc
        places = self._origins.get(origin)
        if places is None:
            places = self._origins[origin] = _Places(self._per_host)
        places.users += 1
        try:
            if places.free.locked() or self._all.locked():
                async with self._counted_wait(within):
                    await _both(places.free, self._all)
            else:
                await _both(places.free, self._all)
        except BaseException:
            self._left(origin, places)
            raise
        self._busy += 1

        def leave() -> None:
            self._busy -= 1
            places.free.release()
            self._all.release()
            self._left(origin, places)

        return leave

    @asynccontextmanager
    async def _counted_wait(self, within: float) -> "AsyncIterator[None]":
        self._waiting += 1
        try:
            async with asyncio.timeout(within):
                yield
        except TimeoutError:
            raise ConnectionFailed("crowded") from None
        finally:
            self._waiting -= 1

    def _left(self, origin: tuple[str, str], places: _Places) -> None:
        places.users -= 1
        if not places.users:
            del self._origins[origin]


async def _both(first: asyncio.Semaphore, second: asyncio.Semaphore) -> None:
    await first.acquire()
    try:
        await second.acquire()
    except BaseException:
        first.release()
        raise
