"""A response that is read while it arrives.

If the server sends nothing for longer than the timeouts of the request, reading fails; the time during which the reader
pauses does not count. Only a limited part of a body is buffered; the rest waits in the socket. Closing a response that
was not read to its end closes its connection. Every failure is a `ConnectionFailed`, which contains no part of the
request and no reference to the response.
"""

import asyncio
from collections.abc import Callable

import aiohttp
from aiohttp.http_exceptions import ContentLengthError, TransferEncodingError

from tidegate.http_client.address_guard import NOT_PUBLIC
from tidegate.http_client.decoding import BrokenEncoding, Decoder
from tidegate.http_client.interface import ConnectionFailed, Timeouts


class Response:
    """A response to a request. Read it to its end, then close it, so that its connection can be reused. `closed` is
    called once, when it is closed."""

    __slots__ = (
        "_closed", "_content", "_failure", "_headers", "_idle", "_loop", "_patience", "_response", "_since", "_timer",
        "status",
    )  # fmt: skip

    def __init__(self, response: aiohttp.ClientResponse, waits: Timeouts, closed: Callable[[], None]) -> None:
        self._response = response
        self._content = response.content
        self._closed: Callable[[], None] | None = closed
        self._loop = asyncio.get_running_loop()
        self._patience, self._idle = waits.first_byte, waits.idle
        self._since = 0.0
        """When the reader began to wait; 0 while it is not waiting."""
        self._timer: asyncio.TimerHandle | None = None
        self._failure: ConnectionFailed | None = None
        self._headers: dict[str, str] | None = None
        self.status = response.status

    @property
    def headers(self) -> dict[str, str]:
        if self._headers is None:
            known: dict[str, str] = {}
            for name, value in self._response.headers.items():
                key = name.lower()
                known[key] = f"{known[key]}, {value}" if key in known else value
            self._headers = known
        return self._headers

    @property
    def content_type(self) -> str:
        return self._response.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def complete(self) -> bool:
        return self._content.is_eof()

    async def read(self) -> bytes:
        """Returns the part of the body that arrived since the last read. If there is none, waits for more. Returns b""
        at the end."""
        received = b""
        if self._failure is None:
            try:
                received = self._content.read_nowait()
                if not received and not self._content.is_eof():
                    received = await self._next()
            except (aiohttp.ClientError, OSError, RuntimeError, ConnectionFailed) as error:
                self._failure = self._failure or failure_of(error)
                error.__traceback__ = None  # it is kept by the library, and would keep the frames of the reader
        if self._failure is not None:
            self.close()
            raise ConnectionFailed(self._failure.trouble, self._failure.said)
        if self._patience != self._idle:
            self._patience = self._idle
            self._quiet()
        return received

    async def _next(self) -> bytes:
        """Waits for the next part of the body, with a timer."""
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(self._since + self._patience, self._look)
        try:
            return await self._content.readany()
        finally:
            self._since = 0.0

    def close(self) -> None:
        """Returns the connection to the pool if the response is complete; otherwise closes it. A second call has no
        effect."""
        if self._closed is None:
            return
        if self.complete and self._failure is None:
            self._quiet()
            self._response.release()
        else:
            self._abort()
        self._closed()
        self._closed = None

    def _abort(self) -> None:
        """Closes the connection without waiting for data that is still to be sent."""
        self._quiet()
        if (connection := self._response.connection) is not None and connection.transport is not None:
            connection.transport.abort()
        if self._content.exception() is None:
            self._content.set_exception(ConnectionFailed("broken"))
        self._response.close()

    def _look(self) -> None:
        """Fails the response if nothing has arrived for too long. Called by a timer."""
        now = self._loop.time()
        due = (self._since or now) + self._patience
        if now < due:
            self._timer = self._loop.call_at(due, self._look)
        else:
            self._timer = None
            self._failure = ConnectionFailed("silent")
            self._abort()

    def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class CompressedResponse(Response):
    """A response whose body is decompressed while it is read, one piece at a time."""

    __slots__ = ("_decoder",)

    def __init__(
        self, response: aiohttp.ClientResponse, encoding: str, waits: Timeouts, closed: Callable[[], None]
    ) -> None:
        super().__init__(response, waits, closed)
        self._decoder = Decoder(encoding)

    async def read(self) -> bytes:
        try:
            while not (decoded := self._decoder.take()):
                if not (received := await super().read()):
                    self._decoder.finish()
                    return b""
                self._decoder.feed(received)
        except BrokenEncoding as error:
            self._failure = ConnectionFailed("foreign", str(error))
            self.close()
            raise ConnectionFailed("foreign", str(error)) from None
        await asyncio.sleep(0)  # decoding took time: let others go on
        return decoded


def failure_of(error: BaseException) -> ConnectionFailed:
    """Returns the failure for an error of the library. No message that may quote the request or a proxy's credentials
    is used."""
    match error:
        case ConnectionFailed():
            return error
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
        case aiohttp.ClientResponseError():
            return ConnectionFailed("foreign", _first_line(error.message))
        case aiohttp.ClientPayloadError() if not _is_cut(error):
            return ConnectionFailed("foreign", "invalid framing of the body")
        case _:
            return ConnectionFailed("broken")


def _is_cut(error: aiohttp.ClientPayloadError) -> bool:
    """True if the body ended too early, as opposed to being invalid."""
    return isinstance(error.__cause__, TransferEncodingError | ContentLengthError)


def _first_line(message: str) -> str:
    """Returns the parser's message without the received bytes, which it quotes in further lines."""
    return message.strip().partition("\n")[0].rstrip(": ")
