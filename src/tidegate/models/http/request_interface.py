"""The transport of a model's requests: the HTTP client, a recorder around it, or a replayer in its place.

A model reaches its endpoint only through these protocols, so an implementation sees all of its traffic.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tidegate.models.http.clients import Lease, Origin
from tidegate.models.http.connection import Timeouts


class IncomingResponse(Protocol):
    """A response whose status and headers have arrived. It must always be closed."""

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

    def close(self) -> None: ...


class Transport(Protocol):
    async def request(self, origin: Origin, head: bytes, body: Sequence[bytes], waits: Timeouts) -> IncomingResponse:
        """Send a request and return the response once its head has arrived. Raises ConnectionFailed."""
        ...

    def lease(self, endpoint: str) -> Lease: ...
