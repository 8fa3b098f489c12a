"""One request over aiohttp's connections.

The parts of which aiohttp's session consists are used directly. A session costs a fifth more per request, for cookies,
redirects and tracing that are not needed here, and does not tell whether a connection was reused.
`tests/http_client/test_aiohttp_canary.py` checks each part that is used, so a new version cannot change it unnoticed.

`AiohttpTransport` owns the connections and counts their sockets.
"""

import asyncio
import socket
import ssl
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.helpers import TimerNoop
from aiohttp.http_writer import StreamWriter
from yarl import URL

from tidegate.http_client.address_guard import AddressGuard
from tidegate.http_client.interface import ConnectionFailed, Target, Timeouts
from tidegate.http_client.response import CompressedResponse, Response, failure_of

READ_AHEAD_BYTES = 32 * 1024
"""Reading from the socket stops when twice as many bytes of a body wait for their reader."""

PIECE_BYTES = 64 * 1024
"""The number of bytes of a long request that are written in one piece. The limit keeps the event loop from being
blocked."""

WHOLE_BYTES = 256 * 1024
"""Requests up to this size, in bytes, are written in one piece."""

LINE_BYTES = 16 * 1024
HEADERS = 256
"""The longest header line of a response, and the most headers and trailers: several times more than any endpoint
sends."""

NEXT_ADDRESS_SECONDS = 0.25
"""The delay before the next address of a host is tried in parallel."""

CLOSE_SECONDS = 2.0
"""Time for aborted connections to close their sockets, which takes one iteration of the event loop."""

_NO_TIMER = TimerNoop()


class _Socket(socket.socket):
    """A socket that calls `closing` when it is closed."""

    closing: Callable[[], None] | None = None

    def close(self) -> None:
        super().close()
        if self.closing is not None:
            self.closing()
            self.closing = None


class _Body(aiohttp.Payload):
    """The body of a request, in pieces. A long body is never joined into one piece, and is written as fast as the
    server reads it."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(pieces, content_type="application/json")
        self.pieces = pieces
        self._size = sum(map(len, pieces))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self.pieces).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for piece in self.pieces:
            view = memoryview(piece)
            for start in range(0, len(piece), PIECE_BYTES):
                await writer.write(view[start : start + PIECE_BYTES])


class _WholeRequest(aiohttp.ClientRequest):
    """A request that is written in one piece with its head. Before Python 3.12, aiohttp would write its body in a task
    of its own, which costs a plain turn a tenth of its CPU time."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        protocol, body = conn.protocol, self._body
        assert protocol is not None and self.response_class is not None
        if not isinstance(body, _Body) or (body.size or 0) > WHOLE_BYTES or protocol.writing_paused:
            return await super().send(conn)
        path = str(self.url) if self.proxy and not self.is_ssl() else self.url.raw_path_qs
        writer = StreamWriter(protocol, self.loop)
        await writer.write_headers(f"{self.method} {path} HTTP/1.1", self.headers)
        await writer.write(b"".join(body.pieces))
        writer.set_eof()
        response: aiohttp.ClientResponse = self.response_class(
            self.method,
            self.original_url,
            writer=None,
            continue100=None,
            timer=_NO_TIMER,
            request_info=self.request_info,
            traces=[],
            loop=self.loop,
            session=self._session,
            stream_writer=writer,
        )
        return response


class AiohttpTransport:
    def __init__(
        self, *, keepalive: float, limit: int, upload_rate: int, guard: AddressGuard | None, resolver: Any
    ) -> None:
        self.open_sockets = 0
        self._limit = limit
        self._upload_rate = upload_rate
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._keeps_alive = keepalive > 0
        options = {"keepalive_timeout": keepalive} if self._keeps_alive else {"force_close": True}
        self._connector = aiohttp.TCPConnector(
            limit=0,  # requests wait in `HttpClient`
            use_dns_cache=False,
            happy_eyeballs_delay=NEXT_ADDRESS_SECONDS,
            socket_factory=self._socket,
            resolver=resolver or aiohttp.ThreadedResolver(),
            **options,
        )
        self._used: weakref.WeakSet[ResponseHandler] = weakref.WeakSet()
        """The connections that have carried a request."""

    async def close(self) -> None:
        """Closes all connections, even busy ones, and waits until their sockets are closed."""
        for protocol in tuple(self._used):
            if protocol.transport is not None:
                protocol.transport.abort()
        async with asyncio.timeout(CLOSE_SECONDS):
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

    async def request(
        self,
        target: Target,
        body: Sequence[bytes],
        waits: Timeouts,
        context: ssl.SSLContext | None,
        closed: Callable[[], None],
    ) -> Response:
        failure: ConnectionFailed | None = None
        while failure is None:
            request = self._request(target, body, context)
            connection, reused = await self._connect(request, waits)
            try:
                response = await _ask(request, connection, self._patience(body, waits))
            except (aiohttp.ClientError, OSError, ConnectionFailed) as error:
                if not (reused and _is_untouched(error)):
                    failure = failure_of(error)
                error.__traceback__ = None  # the library keeps it, and it would keep these frames
                continue
            if not (why := _refusal(response)):
                encoding = response.headers.get("Content-Encoding", "").strip().lower()
                if encoding in ("", "identity"):
                    return Response(response, waits, closed)
                return CompressedResponse(response, encoding, waits, closed)
            _abort(connection)
            response.close()
            failure = ConnectionFailed("foreign", why)
        raise failure

    def _request(self, target: Target, body: Sequence[bytes], context: ssl.SSLContext | None) -> aiohttp.ClientRequest:
        try:
            return _WholeRequest(
                target.method,
                URL(target.url),
                headers=target.headers if self._keeps_alive else {**target.headers, "Connection": "close"},
                data=_Body(body) if body else None,
                loop=self._loop,
                response_class=aiohttp.ClientResponse,
                proxy=None if target.proxy is None else URL(target.proxy.reveal()),
                ssl=context or True,
            )
        except aiohttp.InvalidURL:
            raise ConnectionFailed("unconnected", "invalid host name") from None

    def _patience(self, body: Sequence[bytes], waits: Timeouts) -> float:
        """Returns how long to wait for the head of a response. A long request may block until the other side reads, and
        no other timeout covers that."""
        size = sum(map(len, body))
        return waits.first_byte + (size / self._upload_rate if size > WHOLE_BYTES else 0)

    async def _connect(self, request: aiohttp.ClientRequest, waits: Timeouts) -> tuple[Connection, bool]:
        """Returns a connection, and whether it was used before."""
        failure = None
        while failure is None:
            try:
                connection = await self._connector.connect(request, [], _connect_timeout(waits.connect))
            except TimeoutError:
                failure = ConnectionFailed("late")
            except (aiohttp.ClientError, OSError) as error:
                failure = failure_of(error)
            else:
                protocol = connection.protocol
                assert protocol is not None
                reused = protocol in self._used
                if reused and protocol.should_close:
                    _abort(connection)  # it received bytes that belong to no request
                    continue
                self._used.add(protocol)
                if self.open_sockets > self._limit:
                    protocol.force_close()  # idle connections to other hosts leave no room to keep this one
                return connection, reused
        raise failure


async def _ask(request: aiohttp.ClientRequest, connection: Connection, patience: float) -> aiohttp.ClientResponse:
    """Sends a request and waits for the head of its response. On any failure, the connection is closed."""
    protocol = connection.protocol
    assert protocol is not None
    protocol.set_response_params(
        timer=_NO_TIMER,
        read_until_eof=True,
        auto_decompress=False,
        read_bufsize=READ_AHEAD_BYTES,
        max_line_size=LINE_BYTES,
        max_field_size=LINE_BYTES,
        max_headers=HEADERS,
    )
    assert connection.transport is not None
    loop = asyncio.get_running_loop()
    late = loop.call_later(patience, connection.transport.abort)
    response: aiohttp.ClientResponse | None = None
    try:
        response = await request.send(connection)
        return await response.start(connection)
    except BaseException as error:
        _abort(connection)
        if response is not None:
            response.close()
        if loop.time() >= late.when() and isinstance(error, Exception):
            raise ConnectionFailed("silent") from None
        raise
    finally:
        late.cancel()


def _abort(connection: Connection) -> None:
    """Closes a connection without waiting for data that is still to be sent."""
    if connection.transport is not None:
        connection.transport.abort()
    connection.close()


@lru_cache(maxsize=64)
def _connect_timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=seconds)


def _is_untouched(error: Exception) -> bool:
    """True if the server closed a connection without having sent anything."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return not isinstance(error.message, aiohttp.http.RawResponseMessage)
    return isinstance(error, aiohttp.ClientOSError)


def _refusal(response: aiohttp.ClientResponse) -> str:
    """Returns why a response is not the HTTP that was asked for; empty if it is."""
    headers = response.headers
    if not 200 <= response.status <= 999:
        return f"the status {response.status}"
    if "Transfer-Encoding" in headers and "Content-Length" in headers:
        return "the response has two lengths"
    if headers.get("Transfer-Encoding", "chunked").strip().lower() != "chunked":
        return "the response has a transfer encoding that was not requested"
    return ""
