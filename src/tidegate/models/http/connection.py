"""An HTTP/1.1 connection to a model's endpoint, which is used for one request after another.

There is one response at a time; bytes that belong to no response close the connection. If the endpoint sends nothing
for longer than the request's timeouts, the request fails; the time during which the reader pauses does not count. Only
a limited part of a body is buffered; the rest waits in the socket. Closing a response that was not read to its end
closes the connection. Every failure is a `ConnectionFailed`, which contains no part of the request.

The pool owns connections; a connection owns its transport and its timer.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Literal

import httptools

from tidegate.values import Frozen

READ_AHEAD_BYTES = 64 * 1024
"""The number of bytes that are buffered if a body arrives faster than it is read."""

FRAME_BYTES = 64 * 1024
"""The maximum number of bytes in headers, trailers and chunk framing between two parts of a body. It is several times
more than any endpoint sends."""

PIECE_BYTES = 64 * 1024
"""The number of bytes of a long request that are written in one piece. The limit keeps the event loop from being
blocked."""

WHOLE_BYTES = 256 * 1024
"""Requests up to this size, in bytes, are written in one piece."""

Trouble = Literal["crowded", "unconnected", "late", "untrusted", "silent", "broken", "foreign"]


class ConnectionFailed(Exception):
    """A failed request. `trouble` is the kind of failure. `crowded`: all connections were in use. `unconnected` or
    `late`: no connection could be made, or not in time. `untrusted`: TLS was refused. `silent`: nothing arrived for too
    long. `broken`: the connection broke. `foreign`: the response is not the expected HTTP. `said` is the message of the
    system or the parser."""

    def __init__(self, trouble: Trouble, said: str = "") -> None:
        super().__init__(said or trouble)
        self.trouble = trouble
        self.said = said


class Timeouts(Frozen, frozen=True):
    """The seconds to wait for a connection, for the first byte of a body, and between later bytes."""

    connect: float
    first_byte: float
    idle: float


class Response:
    """A response to a request. Read it to its end, then close it, so that the connection can be reused. If it is closed
    earlier, its connection is closed too."""

    __slots__ = ("_connection", "_failure", "_pieces", "_waiter", "complete", "headers", "held", "status")

    def __init__(self, connection: "EndpointConnection") -> None:
        self._connection = connection
        self._pieces: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._failure: ConnectionFailed | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        """The header values by lower-case name."""
        self.held = 0
        """The number of bytes that have arrived but have not been read."""
        self.complete = False
        """True if the complete response has arrived."""

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def begin(self) -> None:
        """Wait until status and headers have arrived."""
        while not self.status:
            await self._more()

    async def read(self) -> bytes:
        """Returns the part of the body that arrived since the last read. If there is none, waits for more. Returns b""
        at the end."""
        while not self._pieces:
            if self.complete:
                return b""
            await self._more()
        pieces = self._pieces
        self._pieces = []
        self.held = 0
        self._connection.go_on()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        self._connection.finish(self)

    # -- called by the connection --

    def take(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.held += len(piece)
        self.wake()

    def fail(self, failure: ConnectionFailed) -> None:
        if self._failure is None and not self.complete:
            self._failure = failure
            self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _more(self) -> None:
        if self._failure is not None:
            # Raise a new one: a raised error holds the frames of the reader, and these hold this response.
            raise ConnectionFailed(self._failure.trouble, self._failure.said)
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class EndpointConnection(asyncio.Protocol):
    """A connection to an endpoint. `free` is called whenever the connection can carry another request. `gone` is called
    once, when the connection can carry no more requests."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        free: "Callable[[EndpointConnection], None]",
        gone: "Callable[[EndpointConnection], None]",
    ) -> None:
        self.loop = loop
        self.closed: asyncio.Future[None] = loop.create_future()
        """A future that is done when the socket is closed."""
        self.idle_since = 0.0
        self.has_received = False
        """True if any data arrived in response to the last request."""
        self._free = free
        self._gone = gone
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._writable: asyncio.Future[None] | None = None
        self._response: Response | None = None
        self._sent = self._paused = self._ended = False
        self._until_closed = self._head_done = self._reusable = False
        self._framed = 0
        self._last_heard = self._patience = self._idle_patience = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def usable(self) -> bool:
        """True if the connection can carry a request now."""
        return self._transport is not None and not self._ended and self._response is None

    # -- a request --

    async def request(self, head: bytes, body: Sequence[bytes], waits: Timeouts) -> Response:
        """Send a request and return the response once its head has arrived. A long `body` is sent piece by piece and
        never joined. If the caller is cancelled during this call, it must call `abort`."""
        if self._transport is None or not self.usable:
            raise ConnectionFailed("broken")
        response = self._response = Response(self)
        self._until_closed = self._head_done = self._sent = self._reusable = False
        self._framed = 0
        self.has_received = False
        self._patience, self._idle_patience = waits.first_byte, waits.idle
        if sum(map(len, body)) <= WHOLE_BYTES:
            self._transport.write(b"".join((head, *body)))
            self._sent = True
        else:
            self._sent = await self._upload(self._transport, head, body)
        if not self._ended and not response.complete:
            self._last_heard = self.loop.time()
            self._timer = self.loop.call_at(self._last_heard + min(waits.first_byte, waits.idle), self._look)
        await response.begin()
        return response

    async def _upload(self, transport: asyncio.Transport, head: bytes, body: Sequence[bytes]) -> bool:
        """Write the request as fast as the server reads it, and stop once the server responds. Returns True if the
        complete request was sent."""
        transport.write(head)
        for piece in body:
            view = memoryview(piece)
            for start in range(0, len(piece), PIECE_BYTES):
                if self._writable is not None:
                    await self._writable
                if self._ended or self._head_done or transport.is_closing():
                    return False
                transport.write(view[start : start + PIECE_BYTES])
        return True

    def finish(self, response: Response) -> None:
        """End a request whose response is closed. The connection is reused only if both request and response are
        complete."""
        if response is not self._response:
            return
        self._quiet()
        self._response = None
        if response.complete and self._sent and self._reusable and not self._ended:
            self.go_on()
            self.idle_since = self.loop.time()
            self._free(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            self._transport.abort()
        self._end(ConnectionFailed("broken"))

    def go_on(self) -> None:
        """Resume reading: the buffer has room for more of the body."""
        if self._paused and self._transport is not None and not self._ended:
            self._paused = False
            self._last_heard = self.loop.time()
            self._transport.resume_reading()

    # -- callbacks of asyncio --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        link: socket.socket | None = transport.get_extra_info("socket")
        if link is not None:  # keep-alive detects a vanished peer in a stream that may be silent for minutes
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._response is None:
            self.abort()  # there is no request to respond to
            return
        self.has_received = True
        self._framed += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserCallbackError, httptools.HttpParserUpgrade) as error:
            self._break(ConnectionFailed("foreign", str(error)))
            return
        if self._head_done:  # bytes of the head do not extend the first-byte timeout
            self._last_heard = self.loop.time()
        if self._framed > FRAME_BYTES:  # the parser buffers headers until they end
            self._break(ConnectionFailed("foreign", f"headers longer than {FRAME_BYTES} bytes"))

    def eof_received(self) -> None:
        if self._response is not None and self._until_closed:
            self._response.complete = True
            self._response.wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._end(ConnectionFailed("broken"))
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # -- callbacks of the parser --

    def on_message_begin(self) -> None:
        if self._response is None or self._response.complete:
            self._break(ConnectionFailed("foreign", "a second answer to one request"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_done or self._response is None:
            return  # trailers are ignored
        known = self._response.headers
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known[key] = f"{known[key]}, {text}" if key in known else text

    def on_headers_complete(self) -> None:
        response, status = self._response, self._parser.get_status_code()
        if response is None or self._ended:
            return
        if status < 100:
            self._break(ConnectionFailed("foreign", f"the status {status}"))
            return
        if status < 200:  # an interim response, such as `100 Continue`
            response.headers.clear()
            return
        if status == 200 and response.headers.get("content-encoding", "identity").lower() != "identity":
            self._break(ConnectionFailed("foreign", "the response is compressed, which was not requested"))
            return
        if response.headers.get("transfer-encoding", "chunked").lower() != "chunked":
            self._break(ConnectionFailed("foreign", "the response has a transfer encoding that was not requested"))
            return
        self._head_done = True
        self._last_heard = self.loop.time()
        self.resume_writing()  # an upload in progress stops: the server has responded
        self._until_closed = not {"content-length", "transfer-encoding"} & response.headers.keys()
        response.status = status
        response.wake()

    def on_body(self, piece: bytes) -> None:
        response = self._response
        if response is None or self._ended:
            return
        self._framed = 0
        if self._patience != self._idle_patience:
            self._patience = self._idle_patience
            if self._timer is not None and self._timer.when() > self._last_heard + self._patience:
                self._quiet()
                self._timer = self.loop.call_at(self._last_heard + self._patience, self._look)
        response.take(piece)
        if response.held > READ_AHEAD_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        response = self._response
        if response is not None and self._head_done and not self._ended:
            response.complete = True
            self._framed = 0
            self._reusable = self._parser.should_keep_alive()
            self._quiet()
            response.wake()

    # -- timeouts and closing --

    def _look(self) -> None:
        """Timer callback that fails the response if nothing arrived for too long."""
        now = self.loop.time()
        if self._paused:
            self._last_heard = now
        due = self._last_heard + self._patience
        if now < due:
            self._timer = self.loop.call_at(due, self._look)
        else:
            self._timer = None
            self._break(ConnectionFailed("silent"))

    def _break(self, failure: ConnectionFailed) -> None:
        self._end(failure)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, failure: ConnectionFailed) -> None:
        if self._ended:
            return
        self._ended = True
        self._quiet()
        self.resume_writing()
        if self._response is not None:
            self._response.fail(failure)
        self._gone(self)

    def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
