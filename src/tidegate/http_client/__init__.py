"""Outgoing HTTP: one client for the gateway's own requests, and the rules for the HTTP clients of libraries.

- `client.py`: `HttpClient`, the bounded pool of connections. It imports aiohttp when it is first used.
- `response.py`: a response that is read as it arrives, with timeouts; `decoding.py`: bounded decompression.
- `interface.py`: what callers of a client see, without the library.
- `network.py`: `Network`, which knows proxies and certificate authorities, for every client in the process.
- `address_guard.py`: which addresses agents may reach.

No request follows a redirect, keeps a cookie, or uses credentials that its caller did not give.
"""

from tidegate.http_client.address_guard import AddressGuard, ForbiddenAddress, resolved
from tidegate.http_client.client import HttpClient
from tidegate.http_client.interface import (
    ClientStats,
    ConnectionFailed,
    DeliveryByReading,
    IncomingResponse,
    Lease,
    Target,
    Timeouts,
    Transport,
    Trouble,
)
from tidegate.http_client.proxy_and_tls import Network

__all__ = [
    "AddressGuard",
    "ClientStats",
    "ConnectionFailed",
    "DeliveryByReading",
    "ForbiddenAddress",
    "HttpClient",
    "IncomingResponse",
    "Lease",
    "Network",
    "Target",
    "Timeouts",
    "Transport",
    "Trouble",
    "resolved",
]
