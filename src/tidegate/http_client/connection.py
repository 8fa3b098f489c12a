"""A connection that carries one request at a time.

aiohttp's session, request and response would cost more per request than the rest of a plain turn's HTTP, so a request
is written here and its response is parsed with httptools (`response.py`). aiohttp makes the connection
(`connector.py`).
"""

import asyncio
import base64
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from yarl import URL

from tidegate.http_client.interface import ConnectionFailed, Target
from tidegate.http_client.response import Response

PIECE_BYTES = 64 * 1024
"""Maximum number of bytes of a long request that are written in one piece, so that the event loop is not blocked."""

WHOLE_BYTES = 256 * 1024
"""Requests up to this size, in bytes, are written in one piece."""

_FRAMING = frozenset({"content-length", "transfer-encoding"})
_REFUSED = 300
"""From this status on, a response that arrives early means that the server does not want the rest of the request."""


class ClientConnection(asyncio.Protocol):
    """An open connection. `idle` is called when it can carry another request, and `lost` when it is closed."""

    __slots__ = ("_drained", "_idle", "_lost", "_paused", "_response", "idle_since", "transport", "used")

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        idle: Callable[["ClientConnection"], None],
        lost: Callable[["ClientConnection", Exception | None], None],
    ) -> None:
        self.transport = transport
        self.used = False
        self.idle_since = 0.0
        self._idle = idle
        self._lost = lost
        self._response: Response | None = None
        """The response that is awaited or read."""
        self._paused = False
        self._drained: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        if self._response is None:
            self.transport.abort()  # nobody asked for these bytes; they must not be taken for the next response
        else:
            self._response.receive(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._response is not None:
            self._response.connection_lost(error)
        self.resume_writing()
        self._lost(self, error)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.wake_sender()

    def wake_sender(self) -> None:
        """Makes `send` check whether the rest of the request is still wanted."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def send(self, head: bytes, body: Sequence[bytes], response: Response) -> None:
        """Sends a request. A long one is never joined into one piece, and is sent as fast as the server reads it, until
        the response shows that it is refused."""
        self.used = True
        self._response = response
        if sum(map(len, body)) <= WHOLE_BYTES:
            self.transport.write(b"".join((head, *body)))
        else:
            self.transport.write(head)
            for piece in body:
                view = memoryview(piece)
                for start in range(0, len(piece), PIECE_BYTES):
                    if response.status >= _REFUSED or self.transport.is_closing():
                        return
                    self.transport.write(view[start : start + PIECE_BYTES])
                    if self._paused:
                        self._drained = asyncio.get_running_loop().create_future()
                        await self._drained
        response.sent = True

    def finish(self, *, reusable: bool) -> None:
        """Ends the use of this connection by a response."""
        self._response = None
        if reusable and not self.transport.is_closing():
            self.transport.resume_reading()
            self._idle(self)
        else:
            self.transport.abort()


def request_head(target: Target, size: int, *, keeps_alive: bool) -> bytes:
    """Returns the request line and the headers, with the blank line after them. Raises ConnectionFailed if they would
    not be valid HTTP."""
    address = _address(target.url)
    proxy = target.proxy if address.scheme == "http" else None
    names = {name.lower() for name in target.headers}
    lines = [f"{target.method} {address.target if proxy is None else address.absolute} HTTP/1.1"]
    if "host" not in names:
        lines.append(f"Host: {address.host}")
    if address.credentials and "authorization" not in names:
        lines.append(f"Authorization: {address.credentials}")
    lines += [f"{name}: {value}" for name, value in target.headers.items() if name.lower() not in _FRAMING]
    if size or target.method != "GET":
        lines.append(f"Content-Length: {size}")
    if not keeps_alive:
        lines.append("Connection: close")
    if proxy is not None and (credentials := _basic(URL(proxy.reveal()))):
        lines.append(f"Proxy-Authorization: {credentials}")
    text = "\r\n".join(lines)
    if not text.count("\r") == text.count("\n") == len(lines) - 1 or "\0" in text:
        raise ConnectionFailed("unconnected", "a header contains a line break")
    return f"{text}\r\n\r\n".encode()


class _Address(NamedTuple):
    """An address as a request names it. `host` is the value of the header, and `absolute` the form for a proxy."""

    scheme: str
    host: str
    target: str
    absolute: str
    credentials: str


@lru_cache(maxsize=64)
def _address(text: str) -> _Address:
    url = URL(text)
    if not url.raw_host:
        raise ConnectionFailed("unconnected", "invalid host name")
    bare = url.with_user(None).with_fragment(None)
    return _Address(url.scheme, bare.host_port_subcomponent or "", bare.raw_path_qs, str(bare), _basic(url))


def _basic(url: URL) -> str:
    """Returns the value of the header for the credentials in an address; empty if it has none."""
    if url.user is None and url.password is None:
        return ""
    return "Basic " + base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()
