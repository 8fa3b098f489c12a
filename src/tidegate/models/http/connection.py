"""One connection to a model's endpoint: a request, its response, and then perhaps the next.

Guarantee: one response at a time; bytes that belong to none close the connection. Silence beyond the patience of a
request ends it, while what we do not read for reasons of our own does not count as silence. No more of a body waits
here than a bound, the rest waits in the socket. A response that was not read to its end takes its connection with it.
Whatever goes wrong is a `ConnectionFailed`, which holds nothing that was sent. The pool owns connections; a connection owns
its transport and its timer.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Literal

import httptools

from tidegate.values import Frozen

READ_AHEAD_BYTES = 64 * 1024
"""Of a body that arrives faster than it is read."""

FRAME_BYTES = 64 * 1024
"""Of headers, trailers and the like, without a byte of a body between: several times what any endpoint sends."""

PIECE_BYTES = 64 * 1024
"""Of a long request that is written at once, so that it does not hold up the loop."""

WHOLE_BYTES = 256 * 1024
"""A request up to this is written in one piece."""

Trouble = Literal["crowded", "unconnected", "late", "untrusted", "silent", "broken", "foreign"]


class ConnectionFailed(Exception):
    """`trouble` says what: all connections were in use; none could be made, or not in time; TLS was refused; nothing
    came for too long; the connection broke; what came is not HTTP. `said` is the system's or the parser's word for
    it."""

    def __init__(self, trouble: Trouble, said: str = "") -> None:
        super().__init__(said or trouble)
        self.trouble = trouble
        self.said = said


class Timeouts(Frozen, frozen=True):
    """How long a request is waited for: a connection, the first byte of a body, and the next byte after any."""

    connect: float
    first_byte: float
    idle: float


class Response:
    """Read it to its end, or close it: then its connection is free for the next, or gone."""

    __slots__ = ("_connection", "_failure", "_pieces", "_waiter", "complete", "headers", "held", "status")

    def __init__(self, connection: "EndpointConnection") -> None:
        self._connection = connection
        self._pieces: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._failure: ConnectionFailed | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        """By their names in small letters."""
        self.held = 0
        """Bytes that have arrived and are not read yet."""
        self.complete = False
        """Whether all of it has arrived."""

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def begin(self) -> None:
        """Until status and headers are there."""
        while not self.status:
            await self._more()

    async def read(self) -> bytes:
        """What has arrived of the body since the last time, waiting for some; nothing when it is at its end."""
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

    # -- from the connection --

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
            # A new one: what is raised holds the frames of whoever reads, and these hold this response.
            raise ConnectionFailed(self._failure.trouble, self._failure.said)
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class EndpointConnection(asyncio.Protocol):
    """`free` is called when it can carry another request, `gone`, once, when it never will."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        free: "Callable[[EndpointConnection], None]",
        gone: "Callable[[EndpointConnection], None]",
    ) -> None:
        self.loop = loop
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when its socket is closed."""
        self.idle_since = 0.0
        self.heard = False
        """Whether anything came in answer to the last request."""
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
        """Whether it can carry a request now."""
        return self._transport is not None and not self._ended and self._response is None

    # -- a request --

    async def request(self, head: bytes, body: Sequence[bytes], waits: Timeouts) -> Response:
        """Sends it; the response when its head has arrived. `body` is sent piece after piece and never put together
        when it is long. Whoever is cancelled here must `abort`."""
        if self._transport is None or not self.usable:
            raise ConnectionFailed("broken")
        response = self._response = Response(self)
        self._until_closed = self._head_done = self._sent = self._reusable = False
        self._framed = 0
        self.heard = False
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
        """Piece by piece, as fast as the other side takes it, and no further once it answers: it has heard enough.
        Whether all was sent."""
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
        """The response is not needed any more. What was not read, or not even sent, cannot be waited for."""
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
        """Over, at once and without another word."""
        if self._transport is not None:
            self._transport.abort()
        self._end(ConnectionFailed("broken"))

    def go_on(self) -> None:
        """There is room again for more of the body."""
        if self._paused and self._transport is not None and not self._ended:
            self._paused = False
            self._last_heard = self.loop.time()
            self._transport.resume_reading()

    # -- asyncio's side --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        link: socket.socket | None = transport.get_extra_info("socket")
        if link is not None:  # a peer that vanished is noticed in a stream that may be silent for minutes
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._response is None:
            self.abort()  # nobody asked for anything
            return
        self.heard = True
        self._framed += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserCallbackError, httptools.HttpParserUpgrade) as error:
            self._break(ConnectionFailed("foreign", str(error)))
            return
        if self._head_done:  # what comes before is no answer, however slowly it drips
            self._last_heard = self.loop.time()
        if self._framed > FRAME_BYTES:  # the parser keeps what it cannot tell the end of
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

    # -- the parser's side --

    def on_message_begin(self) -> None:
        if self._response is None or self._response.complete:
            self._break(ConnectionFailed("foreign", "a second answer to one request"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_done or self._response is None:
            return  # a trailer
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
        if status < 200:  # something to read before the answer, as `100 Continue`
            response.headers.clear()
            return
        if status == 200 and response.headers.get("content-encoding", "identity").lower() != "identity":
            self._break(ConnectionFailed("foreign", "the answer is compressed, which was not asked for"))
            return
        if response.headers.get("transfer-encoding", "chunked").lower() != "chunked":
            self._break(ConnectionFailed("foreign", "the answer is encoded in a way that was not asked for"))
            return
        self._head_done = True
        self._last_heard = self.loop.time()
        self.resume_writing()  # whoever still sends has been answered
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

    # -- ends --

    def _look(self) -> None:
        """On the timer: has there been silence for too long?"""
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
