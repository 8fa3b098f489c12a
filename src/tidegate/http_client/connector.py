"""New connections, made by aiohttp: names and address families, proxies, TLS, and the sockets.

Of aiohttp, only the connector is used, with an aiohttp request that describes the connection and is never sent. The
connection's transport is then passed to the gateway's own protocol. `tests/http_client/test_aiohttp_canary.py` checks
each part that is used, so a new version cannot change it unnoticed.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import aiohttp
import aiohttp.connector
from yarl import URL

from tidegate.http_client.address_guard import NOT_PUBLIC, AddressGuard
from tidegate.http_client.connection import ClientConnection
from tidegate.http_client.interface import ConnectionFailed, Target

NEXT_ADDRESS_SECONDS = 0.25
"""The delay before the next address of a host is tried in parallel."""


class _Socket(socket.socket):
    """A socket that calls `closing` when it is closed."""

    closing: Callable[[], None] | None = None

    def close(self) -> None:
        super().close()
        if self.closing is not None:
            self.closing()
            self.closing = None


class Connector:
    """Makes connections, and counts their sockets."""

    def __init__(self, guard: AddressGuard | None, resolver: Any) -> None:
        self.open_sockets = 0
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._connector = aiohttp.TCPConnector(
            limit=0,  # requests wait in `HttpClient`
            force_close=True,  # connections wait in `Pool`
            use_dns_cache=False,
            happy_eyeballs_delay=NEXT_ADDRESS_SECONDS,
            socket_factory=self._socket,
            resolver=resolver or aiohttp.ThreadedResolver(),
        )

    async def connect(
        self,
        target: Target,
        context: ssl.SSLContext | None,
        seconds: float,
        idle: Callable[[ClientConnection], None],
        lost: Callable[[ClientConnection], None],
    ) -> ClientConnection:
        """Returns a new connection to a target. `idle` and `lost` are called as `ClientConnection` says. Raises
        ConnectionFailed."""
        try:
            request = aiohttp.ClientRequest(
                "GET",
                URL(target.url),
                loop=self._loop,
                proxy=None if target.proxy is None else URL(target.proxy.reveal()),
                ssl=context or True,
            )
            made = await self._connector.connect(request, [], _timeout(seconds))
        except TimeoutError:
            raise ConnectionFailed("late") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _failure(error) from None
        protocol, transport = made.protocol, made.transport
        assert protocol is not None and isinstance(transport, asyncio.Transport)
        if protocol.should_close:
            transport.abort()
            made.close()
            raise ConnectionFailed("foreign", "the server sent data before the request")

        def closed(connection: ClientConnection, error: Exception | None) -> None:
            protocol.connection_lost(error)
            made.close()
            lost(connection)

        connection = ClientConnection(transport, idle=idle, lost=closed)
        transport.set_protocol(connection)
        return connection

    async def close(self) -> None:
        """Waits until all connections are closed."""
        await self._connector.close(abort_ssl=True)

    def _socket(self, info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _name, address = info
        if self._guard is not None:
            self._guard.refuse(str(address[0]))
        made = _Socket(family, kind, protocol)
        # Detects a vanished peer in a stream that may be silent for minutes.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.open_sockets += 1
        made.closing = self._closed
        return made

    def _closed(self) -> None:
        self.open_sockets -= 1


@lru_cache(maxsize=64)
def _timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=seconds)


def _failure(error: Exception) -> ConnectionFailed:
    """Returns the failure for an error of the library. No message that may quote the request or a proxy's credentials
    is used."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            inner = error.certificate_error
            return ConnectionFailed("untrusted", getattr(inner, "verify_message", "") or "invalid certificate")
        case aiohttp.ClientConnectorSSLError():
            return ConnectionFailed("untrusted", getattr(error.os_error, "reason", "") or "TLS failed")
        case aiohttp.ClientProxyConnectionError():
            return ConnectionFailed("unconnected", error.os_error.strerror or "", proxy=True)
        case aiohttp.ClientHttpProxyError():
            return ConnectionFailed("unconnected", f"the proxy answered {error.status}", proxy=True)
        case aiohttp.ClientConnectorDNSError():
            return ConnectionFailed("unknown", error.os_error.strerror or "")
        case aiohttp.ClientConnectorError() if NOT_PUBLIC in str(error.os_error):
            return ConnectionFailed("forbidden", NOT_PUBLIC)
        case aiohttp.ClientConnectorError():
            return ConnectionFailed("unconnected", error.os_error.strerror or "")
        case aiohttp.InvalidURL():
            return ConnectionFailed("unconnected", "invalid host name")
        case _:
            return ConnectionFailed("broken")
