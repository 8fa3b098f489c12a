"""One HTTP/1.1 connection: uvicorn's, with bounds and with our errors.

Guarantee: a request line and headers are bounded in bytes, number and time; a connection that is not in a request is
closed after its keep-alive time, at its beginning too; a reader whose buffers stay full is let go; what is not HTTP
gets OpenAI's error shape as everything else; requests run as tasks of the server's scope. What is written in one turn
of the loop leaves in one piece. The connection owns its transport; `abort` drops it.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Callable
from typing import Any

import httptools
import msgspec
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tidegate.web.errors import ErrorAnswer, ErrorBody

HEADER_BYTES = 64 * 1024
"""Request line and headers together: a cookie jar of a browser on localhost can be large, nothing else is."""
HEADER_COUNT = 200
HEAD_SECONDS = 20.0
"""How long the request line and headers may take to arrive."""
STALL_SECONDS = 60.0
"""A reader that takes nothing for so long is gone, or might as well be."""
ABORT = "tidegate.abort"
"""Where a request finds, in its scope, the way to drop its connection."""

_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)

StartTask = Callable[[Any, Any], "asyncio.Task[None]"]


class Corked(asyncio.Transport):
    """A transport whose writes of one turn of the loop leave together: a head and its body are one packet, one call of
    the kernel instead of two."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self.abort = transport.abort  # type: ignore[method-assign]
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]
        self.pause_reading = transport.pause_reading  # type: ignore[method-assign]
        self.resume_reading = transport.resume_reading  # type: ignore[method-assign]

    def write(self, data: Any) -> None:
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)

    def flush(self) -> None:
        if self._held:
            data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
            self._held.clear()
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()


class Connection(HttpToolsProtocol):
    def __init__(self, config: Config, state: ServerState, start: StartTask, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(config, state, {}, loop)
        self.logger = logging.getLogger("tidegate.web")
        self.access_log = False
        self._start = start
        self._head_bytes = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._refusal = (400, "This is not a valid HTTP request.", "invalid_http")

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    # -- time --

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # asyncio does this only for a listener that was made with its protocol named; without it a second small piece
        # of a stream waits for the acknowledgement of the first, which clients delay by 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(Corked(transport, self.loop))
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.resume_writing()
        super().connection_lost(exc)
        if exc is not None:
            self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if b"pgrade:" in data and (self._in_head or self.is_idle):
            data = _without_upgrade(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)
        elif self.timeout_keep_alive_task is None and self.cycle.response_complete and not self.pipeline:
            # The rest of a body that was answered before it had arrived: uvicorn forgets the time here.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # -- bounds --

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._in_head = True
        self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)
        if len(self.headers) > HEADER_COUNT:
            self._refuse(f"The request has more than {HEADER_COUNT} headers.")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEADER_BYTES:
            self._refuse(f"The request line and headers are larger than {HEADER_BYTES} bytes.")

    def _refuse(self, message: str) -> None:
        self._refusal = (431, message, "headers_too_large")
        raise httptools.HttpParserError(message)

    def send_400_response(self, msg: str) -> None:
        status, message, code = self._refusal
        error = ErrorBody(message=message, type="invalid_request_error", param=None, code=code)
        body = msgspec.json.encode(ErrorAnswer(error=error))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        if not self.transport.is_closing():
            self.transport.write(STATUS_LINE[status] + head + body)
            self.transport.close()

    def on_response_complete(self) -> None:
        if isinstance(self.transport, Corked):
            self.transport.flush()
        super().on_response_complete()

    # -- tasks --

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        task = self._start(cycle, app)
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)


def _without_upgrade(data: bytes) -> bytes:
    """An offer of another protocol, which we never take. The parser would: it reads no body after one, and clients
    that offer h2c along with an ordinary POST are common."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest
