"""An HTTP/1.1 connection: uvicorn's protocol with limits and with Tidegate's error responses.

The size, number and arrival time of the request line and headers are limited. An idle connection is closed after its
keep-alive time. A connection that never sends a request is closed after `HttpTimes.head`. A client that stops reading
is dropped. A request that is not valid HTTP, or whose host or framing is missing or ambiguous (RFC 9112), gets an error
in OpenAI's format after the responses to the requests before it, and the connection is closed. A client gets its
response even while it is still sending, after it has closed its sending side (without TLS), and with HTTP/1.0.

Requests run as tasks of the server's scope. The connection owns its transport; `abort` drops it.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

import httptools
import msgspec
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tidegate.web.app.http_response import ErrorAnswer, ErrorBody, request_id
from tidegate.web.http1.transport import LINGER_SECONDS, BufferedTransport, HalfCloseWatch

HEADER_BYTES = 64 * 1024
"""Maximum size of the request line and headers together, in bytes. Only a browser's cookies for localhost can make them
large."""
HEADER_COUNT = 200
READ_BYTES = 256 * 1024
"""Maximum number of bytes returned by one read. They may contain the end of one request's body and the beginning of the
next request's head."""
ABORT = "tidegate.abort"
"""The scope key for the function that drops the request's connection."""
EXTRA = "tidegate.extra"
"""A scope key that is present if the request's connection exceeds the connection limit."""
EXTRA_HEAD_SECONDS = 5.0
"""Time limit, in seconds, for the request line and headers on a connection that exceeds the connection limit. There are
only a few such connections."""

_TOO_LARGE = (431, f"The request line and headers are larger than {HEADER_BYTES} bytes.", "headers_too_large")
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[\w.~!$&'()*+,;=%-]+)(?::[0-9]{0,5})?", re.ASCII)
"""A pattern for hosts as defined in RFC 3986, with an optional port."""
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
_VERSIONS = ("1.0", "1.1")


class HttpTimes(NamedTuple):
    """The time limits for a connection, in seconds."""

    head: float = 20.0
    """The request line and headers must arrive within this time."""
    stall: float = 60.0
    """If a client reads nothing for this long, it is treated as disconnected."""
    idle: float = 1.0
    """A connection is not closed in favour of another if it was opened or used within this time."""
    linger: float = LINGER_SECONDS
    """A connection whose response was sent before its request had arrived is closed after this time."""


StartTask = Callable[[Any, Any], "asyncio.Task[None]"]


class HttpConnection(HttpToolsProtocol):
    _buffered: BufferedTransport

    def __init__(
        self,
        config: Config,
        state: ServerState,
        start: StartTask,
        loop: asyncio.AbstractEventLoop,
        *,
        extra: bool,
        lost: Callable[["HttpConnection"], None],
        times: HttpTimes,
    ) -> None:
        super().__init__(config, state, {}, loop)
        self.extra = extra
        self._times = times
        self._lost = lost
        self.since = loop.time()
        """The event loop's time at which the connection was opened or completed its last response."""
        self.logger = logging.getLogger("tidegate.web")
        self.access_log = False
        self._start = start
        self._head_bytes = 0
        self._unparsed = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._half_closed: HalfCloseWatch | None = None
        self._refusal = (400, "This is not a valid HTTP request.", "invalid_http")
        self._refused = False

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _is_unanswered(self) -> bool:
        """True if the only request is still arriving and no part of its response has been sent."""
        return bool(self.cycle.more_body) and not self.cycle.response_started and not self.pipeline

    # -- the connection and its timers --

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # asyncio sets this only on sockets whose protocol number is IPPROTO_TCP. Without it, the second small piece of
        # a stream waits for the acknowledgement of the first, which clients delay by 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffered = BufferedTransport(transport, self.loop, linger=self._times.linger)
        super().connection_made(self._buffered)
        seconds = EXTRA_HEAD_SECONDS if self.extra else self._times.head
        self._head_timer = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._half_closed is not None:
            self._half_closed.stop()
        self.resume_writing()
        super().connection_lost(exc)
        if exc is not None:
            self._unset_keepalive_if_required()
        self._lost(self)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Called when the peer has closed its sending side. The connection stays open while a complete request is
        waiting for its response."""
        cycle = self.cycle
        if self.is_idle or self._buffered.unread or self.scheme == "https":
            return False
        cycle.keep_alive = False
        if not self.pipeline:
            self._half_closed = HalfCloseWatch(self._buffered, self.loop)
            self._half_closed.start(response_started=cycle.response_started, chunked=bool(cycle.chunked_encoding))
        return True

    def data_received(self, data: bytes) -> None:
        if b"pgrade:" in data and (self._in_head or self.is_idle):
            data = _without_upgrade(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            # The parser reports a header only when it is complete, so an endless one would never be reported.
            self._unparsed += len(data)
            if self._unparsed > HEADER_BYTES + READ_BYTES:
                self._refusal = _TOO_LARGE
                self.send_400_response("")
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(self._times.head, self.timeout_keep_alive_handler)
        elif self.timeout_keep_alive_task is None and self.cycle.response_complete and not self.pipeline:
            # The rest of a body whose response was sent before it arrived: uvicorn does not restart its timer here.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self._times.stall, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # -- limits and checks of the head --

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._unparsed = 0
        self._in_head = True
        self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]
        if self.extra:
            self.scope[EXTRA] = True  # type: ignore[literal-required]

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)
        if len(self.headers) > HEADER_COUNT:
            self._refuse(431, f"The request has more than {HEADER_COUNT} headers.", "headers_too_large")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._buffered.unread = True
        self._stop_timer()
        self._check_head()
        super().on_headers_complete()
        if self.extra:
            self.cycle.keep_alive = False

    def _check_head(self) -> None:
        """Refuses requests that the parser accepts but RFC 9112 forbids."""
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            self._refuse(400, "This version of HTTP is not supported; use HTTP/1.1.", "invalid_http")
        hosts: list[bytes] = []
        coding: list[bytes] = []
        for name, value in self.headers:
            if name == b"host":
                hosts.append(value)
            elif name == b"transfer-encoding":
                coding.append(value)
        if len(hosts) > 1 or (not hosts and version != "1.0"):
            self._refuse(400, "A request must have exactly one Host header.", "invalid_host")
        if hosts and _HOST.fullmatch(hosts[0]) is None:
            self._refuse(
                400, "The Host header must be a host name or an address, with an optional port.", "invalid_host"
            )
        if not self.url.startswith(b"/") and self.url != b"*":
            named = _ABSOLUTE.match(self.url)
            if named is None or (hosts and named[1].lower() != hosts[0].lower()):
                self._refuse(
                    400, "The request target must be a path, or a URL with the same host as Host.", "invalid_host"
                )
        if coding and (version == "1.0" or coding[0].strip().lower() != b"chunked"):
            self._refuse(400, "The only supported Transfer-Encoding is chunked; it needs HTTP/1.1.", "invalid_http")

    def on_message_complete(self) -> None:
        self._buffered.unread = False
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEADER_BYTES:
            self._refuse(*_TOO_LARGE)

    def _refuse(self, status: int, message: str, code: str) -> None:
        self._refusal = (status, message, code)
        raise httptools.HttpParserError(message)

    def send_400_response(self, msg: str) -> None:
        if not self.is_idle and not self._is_unanswered:
            self._refused = (
                True  # the current response must come first, because the client would mistake this one for it
            )
            return
        status, message, code = self._refusal
        error = ErrorBody(message=message, type="invalid_request_error", param=None, code=code)
        body = msgspec.json.encode(ErrorAnswer(error=error))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        head += b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n"
        head += b"x-request-id: %b\r\n\r\n" % request_id()
        if not self.transport.is_closing():
            self._buffered.write(STATUS_LINE[status] + head + body)
            self._buffered.unread = self.is_idle
            self._buffered.close()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        self._buffered.flush()
        super().on_response_complete()
        if self._refused and self.is_idle:
            self.send_400_response("")

    # -- tasks --

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            cycle.send = Http10Response(cycle)  # type: ignore[method-assign]
        task = self._start(cycle, app)
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)


class Http10Response:
    """A request's `send` for HTTP/1.0 clients, which do not support chunked encoding.

    A response with a known length is sent unchanged. A streamed response is sent without chunks and ends when the
    connection closes.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._streams = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._streams = all(name.lower() != b"content-length" for name, _ in message["headers"])
            if self._streams:
                self._cycle.chunked_encoding = False
        elif self._streams:
            self._cycle.expected_content_length = len(message.get("body", b""))  # uvicorn checks each piece against it
        await self._send(message)


def _without_upgrade(data: bytes) -> bytes:
    """Renames a request's Upgrade header, since no other protocol is offered here. Otherwise, the parser would switch
    protocols and not read the body. Clients that offer h2c with an ordinary POST are common."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest
