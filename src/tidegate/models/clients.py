"""The one HTTP client of the process.

Guarantee: every model shares one bounded pool of connections and one TLS context; idle connections are closed when
their keep-alive expires; nothing is taken from the environment (no proxies, no .netrc), no cookie is kept and no
redirect followed, so that a credential goes only where the configuration says. Clients owns the pool: it opens on
entering and is closed, with every connection, on leaving.
"""

from collections import Counter
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from tidegate.values import Frozen

# More than the default of running turns (64), so that the pool is never what a turn waits for.
CONNECTIONS = 256
CONNECTIONS_PER_HOST = 192
# Shorter than the idle time after which common servers and proxies hang up (60 s and more), so that we close first.
KEEPALIVE_SECONDS = 30.0
# Larger than aiohttp's 64 KiB would only buffer more of a stream that the turn has not read yet.
READ_BUFFER_BYTES = 65536
# A connection with its socket, transport, parser and, while one is under way, request and response. Measured.
CONNECTION_BYTES = 12 * 1024


class ClientStats(Frozen, frozen=True):
    """Connections by what they do, what they take together, and holders by endpoint."""

    open: int = 0
    busy: int = 0
    idle: int = 0
    limit: int = 0
    bytes: int = 0
    leases: dict[str, int] = msgspec.field(default_factory=dict)


class Lease:
    """One holder of an endpoint. Releasing twice counts once."""

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


class Clients:
    """Process lifetime. The endpoints that can be leased are those of the configuration, so the counts are bounded."""

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
        self._session: aiohttp.ClientSession | None = None
        self._leases: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        if self._session is not None:
            raise RuntimeError("These clients are open already.")
        # No ssl argument: the connector then uses the one verified context that aiohttp makes per process.
        connector = aiohttp.TCPConnector(
            limit=self._connections, limit_per_host=self._per_host, keepalive_timeout=self._keepalive
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            read_bufsize=READ_BUFFER_BYTES,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("The clients are not open; enter them with `async with` first.")
        return self._session

    def lease(self, endpoint: str) -> Lease:
        return Lease(endpoint, self._leases)

    def stats(self) -> ClientStats:
        leases = dict(self._leases)
        if self._session is None:
            return ClientStats(limit=self._connections, leases=leases)
        connector = self._session.connector
        # aiohttp has no public count of its pool; these two containers are all that it holds.
        busy = len(connector._acquired) if connector is not None else 0
        idle = sum(len(pool) for pool in connector._conns.values()) if connector is not None else 0
        return ClientStats(
            open=busy + idle,
            busy=busy,
            idle=idle,
            limit=self._connections,
            bytes=(busy + idle) * CONNECTION_BYTES,
            leases=leases,
        )
