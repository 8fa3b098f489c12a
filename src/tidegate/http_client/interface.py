"""The values and protocols for callers of the HTTP client: targets, responses, timeouts and failures.

A caller reaches a server only through the `Transport` protocol, so an implementation sees all of its traffic. Nothing
here needs an HTTP library.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from tidegate.security import Secret
from tidegate.values import Frozen

Trouble = Literal["crowded", "unknown", "forbidden", "unconnected", "late", "untrusted", "silent", "broken", "foreign"]


class ConnectionFailed(Exception):
    """A failed request. `trouble` is the kind of failure. `crowded`: all connections were in use. `unknown`: the
    host was not found. `forbidden`: its address must not be reached. `unconnected` or `late`: no connection could be
    made, or not in time. `untrusted`: TLS was refused. `silent`: nothing arrived for too long. `broken`: the connection
    broke. `foreign`: the response is not the expected HTTP. `said` is the message of the system or the parser; `proxy`
    is true if the proxy caused the failure."""

    def __init__(self, trouble: Trouble, said: str = "", *, proxy: bool = False) -> None:
        super().__init__(said or trouble)
        self.trouble = trouble
        self.said = said
        self.proxy = proxy


class Timeouts(Frozen, frozen=True):
    """The seconds to wait for a connection, for the first byte of a body, and between later bytes."""

    connect: float
    first_byte: float
    idle: float


class Target(NamedTuple):
    """The destination of a request. `headers` may contain credentials, so the headers are not shown. `proxy` is the
    address of a proxy with its credentials, or None. `ca_file` names a file with certificates that are trusted in
    addition to the usual ones."""

    method: str
    url: str
    headers: Mapping[str, str]
    proxy: Secret | None = None
    ca_file: str = ""

    def __repr__(self) -> str:
        return f"Target({self.method} {self.url})"


class IncomingResponse(Protocol):
    """A response whose status and headers have arrived. The caller must always close it."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The header values by lower-case name."""
        ...

    @property
    def content_type(self) -> str: ...

    @property
    def complete(self) -> bool:
        """True if the complete response has arrived."""
        ...

    async def read(self) -> bytes:
        """Returns the part of the body that arrived since the last read. If there is none, waits for more. Returns b""
        at the end. Raises ConnectionFailed."""
        ...

    async def deliver(self, consume: Callable[[bytes], bool]) -> None:
        """Passes each part of the body to `consume` when it arrives, until `consume` returns True or the body ends.
        Raises ConnectionFailed, and what `consume` raises. `consume` may be called outside of the caller's task, which
        costs less than waking the task for each part."""
        ...

    def close(self) -> None: ...


class DeliveryByReading(ABC):
    """`deliver` for a response that can only be read."""

    __slots__ = ()

    @abstractmethod
    async def read(self) -> bytes: ...

    async def deliver(self, consume: Callable[[bytes], bool]) -> None:
        while part := await self.read():
            if consume(part):
                return


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


class Transport(Protocol):
    async def request(self, target: Target, body: Sequence[bytes], waits: Timeouts) -> IncomingResponse:
        """Sends a request and returns the response once its head has arrived. Raises ConnectionFailed."""
        ...

    def lease(self, endpoint: str) -> Lease: ...


class ClientStats(Frozen, frozen=True):
    """Statistics: connections by state, waiting requests, the memory of all connections, and leases by endpoint."""

    open: int = 0
    busy: int = 0
    idle: int = 0
    waiting: int = 0
    limit: int = 0
    bytes: int = 0
    leases: dict[str, int] = msgspec.field(default_factory=dict)
