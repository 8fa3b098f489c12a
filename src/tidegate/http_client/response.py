"""A response that is parsed and read while it arrives.

If the server sends nothing for longer than the timeouts of the request, reading fails; the time during which the reader
pauses does not count. Only a limited part of a body is buffered; the rest waits in the socket. Closing a response that
was not read to its end closes its connection. Every failure is a `ConnectionFailed`, which contains no part of the
request and no reference to the response.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import httptools

from tidegate.http_client.decoding import BrokenEncoding, Decoder
from tidegate.http_client.interface import ConnectionFailed, DeliveryByReading, Timeouts, Trouble

if TYPE_CHECKING:
    from tidegate.http_client.connection import ClientConnection

READ_AHEAD_BYTES = 64 * 1024
"""Reading from the socket stops when more bytes of a body wait for their reader."""

LINE_BYTES = 16 * 1024
HEADERS = 256
"""The longest header line of a response, and the most headers and trailers: several times more than any endpoint
sends."""

FRAMING_BYTES = 64 * 1024
"""The most bytes, beside those of one read from the socket, that may arrive before a head is complete, or between two
pieces of a body."""

_CONTINUE, _OK = 100, 200


class Response(DeliveryByReading):
    """The response to one request. Read it to its end, then close it, so that its connection can be reused. `on_close`
    is called once, when it is closed. httptools calls the methods `on_…`."""

    __slots__ = (
        "_arrived", "_bytes", "_closed", "_connection", "_consume", "_count", "_due", "_failure", "_framing", "_idle",
        "_loop", "_parser", "_patience", "_paused", "_pieces", "_reusable", "_timer", "_waiter",
        "begun", "complete", "headers", "on_close", "sent", "status",
    )  # fmt: skip

    def __init__(self, connection: "ClientConnection", waits: Timeouts, patience: float) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.begun = self.complete = False
        """True once the head, and the whole response, has arrived."""
        self.sent = False
        """True once the whole request has been sent."""
        self._connection = connection
        self.on_close: Callable[[], None] | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)
        self._arrived = False
        self._count = 0
        self._framing = 0
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._paused = False
        self._reusable = False
        self._failure: ConnectionFailed | None = None
        self._patience, self._idle = waits.first_byte, waits.idle
        self._waiter: asyncio.Future[bool | Exception] | None = None
        self._consume: Callable[[bytes], bool] | None = None
        self._due = self._loop.time() + patience
        """The time at which the server will have been silent for too long; 0 while nobody is waiting."""
        self._timer: asyncio.TimerHandle | None = self._loop.call_at(self._due, self._look)

    # For the reader.

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def untouched(self) -> bool:
        """True if the connection broke before anything of the response arrived."""
        return self._failure is not None and self._failure.trouble == "broken" and not self._arrived

    async def head(self) -> None:
        """Waits for the status and the headers. Raises ConnectionFailed."""
        if not self.begun and self._failure is None:
            await self._wait()
        if not self.begun:
            raise self._error()

    async def read(self) -> bytes:
        """Returns the part of the body that arrived since the last read. If there is none, waits for more. Returns b""
        at the end."""
        if not self._pieces and not self.complete and self._failure is None:
            self._expect(self._patience)
            await self._wait()
        if self._pieces:
            return self._take()
        if self._failure is None:
            return b""
        self.close()
        raise self._error()

    async def deliver(self, consume: Callable[[bytes], bool]) -> None:
        if self._pieces and consume(self._take()):
            return
        if not self.complete and self._failure is None:
            self._expect(self._patience)
            self._consume = consume
            ended = await self._wait()
            if isinstance(ended, Exception):
                raise ended
            if ended:
                return
        await super().deliver(consume)

    def _take(self) -> bytes:
        received = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._bytes = 0
        if self._paused:
            self._paused = False
            self._connection.transport.resume_reading()
        self._patience = self._idle
        return received

    def close(self) -> None:
        """Returns the connection to the pool if the response is complete; otherwise closes it. A second call has no
        effect."""
        if self._closed:
            return
        self._closed = True
        self._stop_timer()
        self._pieces.clear()
        del self._parser  # it refers to this response
        if not self.complete and self._failure is None:
            self._failure = ConnectionFailed("broken")
        self._connection.finish(reusable=self._reusable and self.sent)
        if self.on_close is not None:
            self.on_close()

    def discard(self) -> None:
        """Closes the response and its connection."""
        self._reusable = False
        self.close()

    async def _wait(self) -> bool | Exception:
        """Waits until there is something for the reader. Returns True if its consumer wants no more, or the consumer's
        error."""
        self._waiter = self._loop.create_future()
        try:
            return await self._waiter
        finally:
            self._waiter = self._consume = None
            self._due = 0.0

    def _wake(self, ended: bool | Exception = False) -> None:
        self._consume = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(ended)

    def _pass_on(self, consume: Callable[[bytes], bool]) -> None:
        """Passes what has arrived to the consumer."""
        try:
            ended: bool | Exception = bool(self._pieces) and consume(self._take())
        except Exception as error:  # `deliver` raises it
            ended = error
        if ended or self.complete:
            self._wake(ended)
        else:
            self._expect(self._patience)

    def _expect(self, patience: float) -> None:
        """Sets how long the server may be silent from now on."""
        self._due = self._loop.time() + patience
        if self._timer is None or self._timer.when() > self._due:
            self._start_timer()

    def _error(self) -> ConnectionFailed:
        """Returns a new error: the one that is kept must not refer to frames of a reader."""
        assert self._failure is not None
        return ConnectionFailed(self._failure.trouble, self._failure.said)

    def _look(self) -> None:
        """Fails the response if nothing has arrived for too long. Called by the timer."""
        self._timer = None
        if self._due and self._loop.time() < self._due:
            self._start_timer()
        elif self._due:
            self._fail("silent")

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self._loop.call_at(self._due, self._look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # For the connection.

    def receive(self, data: bytes) -> None:
        if self._failure is not None:
            return
        self._arrived = True
        before = self._bytes
        begun = self.begun
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("foreign", f"the status {self._parser.get_status_code()}")
        except httptools.HttpParserError as error:
            self._reusable = False
            if not self.complete:
                self._fail("foreign", str(error))
        if self._bytes > before or self.begun != begun or self.complete:
            self._framing = 0
            if self._consume is None:
                self._wake()
            else:
                self._pass_on(self._consume)
        else:
            self._framing += len(data)
            if self._framing > FRAMING_BYTES:
                self._fail("foreign", "the framing of the body is too long" if begun else "the head is too long")

    def connection_lost(self, error: Exception | None) -> None:
        """Ends a body that has no length. Any other response that is not complete has failed."""
        if error is None and self.begun and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self.complete = True
        if not self.complete:
            self._fail("broken")
        self._reusable = False
        self._wake()

    def _fail(self, trouble: Trouble, said: str = "") -> None:
        """Closes the connection. The first failure counts."""
        if self._failure is None and not self.complete:
            self._failure = ConnectionFailed(trouble, said)
            self._connection.transport.abort()
            self._wake()

    # For the parser.

    def on_message_begin(self) -> None:
        if self.complete:
            self._reusable = False  # a response that nobody asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count += 1
        if len(name) + len(value) > LINE_BYTES or self._count > HEADERS:
            self._fail("foreign", "a header is too long" if self._count <= HEADERS else "too many headers")
        elif not self.begun:
            key, text = name.decode("ascii").lower(), value.decode("utf-8", "surrogateescape")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status = self._parser.get_status_code()
        if _CONTINUE <= status < _OK:
            return
        if why := _refusal(status, self.headers):
            self._fail("foreign", why)
            return
        self.status = status
        self.begun = True
        self._connection.wake_sender()

    def on_body(self, data: bytes) -> None:
        if self.complete:
            return
        self._pieces.append(data)
        self._bytes += len(data)
        if self._bytes > READ_AHEAD_BYTES and not self._paused and self._consume is None:
            self._paused = True
            self._connection.transport.pause_reading()

    def on_message_complete(self) -> None:
        if not self.begun:
            self.headers.clear()  # an interim response
        elif not self.complete and self._failure is None:
            self.complete = True
            self._reusable = self._parser.should_keep_alive()


def _refusal(status: int, headers: dict[str, str]) -> str:
    """Returns the reason why a response is not valid for the request, or an empty string."""
    if status < _CONTINUE:
        return f"the status {status}"
    if "transfer-encoding" in headers and "content-length" in headers:
        return "the response has two lengths"
    if headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
        return "the response has a transfer encoding that was not requested"
    return ""


class CompressedResponse(DeliveryByReading):
    """A response whose body is decompressed while it is read, one piece at a time."""

    __slots__ = ("_broken", "_decoder", "_response")

    def __init__(self, response: Response, encoding: str) -> None:
        self._response = response
        self._decoder = Decoder(encoding)
        self._broken = ""

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> dict[str, str]:
        return self._response.headers

    @property
    def content_type(self) -> str:
        return self._response.content_type

    @property
    def complete(self) -> bool:
        return self._response.complete

    async def read(self) -> bytes:
        try:
            while not self._broken and not (decoded := self._decoder.take()):
                if not (received := await self._response.read()):
                    self._decoder.finish()
                    return b""
                self._decoder.feed(received)
        except BrokenEncoding as error:
            self._broken = str(error)
        if self._broken:
            self._response.discard()
            raise ConnectionFailed("foreign", self._broken)
        await asyncio.sleep(0)  # decoding took time: let others go on
        return decoded

    def close(self) -> None:
        self._response.close()
