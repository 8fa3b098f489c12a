"""What a model needs of whatever carries its requests: the connections to its endpoint, or what stands in their place.

Guarantee: these are the only ways by which a model reaches its endpoint, so that whoever satisfies them sees all of its
traffic. Nothing is held here.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tidegate.models.http.clients import Lease, Origin
from tidegate.models.http.connection import Timeouts


class IncomingResponse(Protocol):
    """A response of which status and headers are there. Close it, whatever became of it."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """By their names in small letters."""
        ...

    @property
    def content_type(self) -> str: ...

    @property
    def complete(self) -> bool:
        """Whether all of it has arrived."""
        ...

    async def read(self) -> bytes:
        """What has arrived of the body since the last time, waiting for some; nothing when it is at its end. Raises
        LinkFailed."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    async def request(self, origin: Origin, head: bytes, body: Sequence[bytes], waits: Timeouts) -> IncomingResponse:
        """The response, when its head has arrived. Raises LinkFailed."""
        ...

    def lease(self, endpoint: str) -> Lease: ...
