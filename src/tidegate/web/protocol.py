"""One HTTP/1.1 connection: uvicorn's, with bounds and with our errors.

Guarantee: a request line and headers are bounded in bytes, number and time; a connection that is not in a request is
closed after its keep-alive time, at its beginning too; what is not HTTP gets OpenAI's error shape as everything else;
requests run as tasks of the server's scope. The connection owns its transport; `abort` drops it.
"""

import asyncio
import logging
import re
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
ABORT = "tidegate.abort"
"""Where a request finds, in its scope, the way to drop its connection."""

_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)

StartTask = Callable[[Any, Any], "asyncio.Task[None]"]


class Connection(HttpToolsProtocol):
    def __init__(self, config: Config, state: ServerState, start: StartTask, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(config, state, {}, loop)
        self.logger = logging.getLogger("tidegate.web")
        self.access_log = False
        self._start = start
        self._head_bytes = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._refusal = (400, "This is not a valid HTTP request.", "invalid_http")

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    # -- time --

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
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
