"""One connection to the scripted server, with one request after the other.

A request that arrives while another is being answered waits. The task of an answer ends with its connection.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import httptools
import msgspec

from bench.scripted.behaviour import Behaviour
from bench.scripted.services import path_of
from bench.scripted.wire import reply_of

if TYPE_CHECKING:
    from bench.scripted.server import ScriptedModel

BODY_BYTES = 64 * 1024 * 1024
LONGEST_WAIT = 600.0
# Requests that may wait on one connection.
PIPELINED = 64


def _error(message: str) -> bytes:
    """An error body for a request whose format is not known."""
    return msgspec.json.encode({"error": {"message": message, "type": "invalid_request_error"}})


class Connection(asyncio.Protocol):
    def __init__(self, server: "ScriptedModel") -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._waiting: deque[tuple[str, str, dict[str, str], bytes]] = deque()
        self.on_message_begin()

    @property
    def busy(self) -> bool:
        return self._task is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)
        self._server.counts["connections"] += 1

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._transport = None
        self._room.set()
        if self._task is not None:
            self._server.counts["disconnects"] += 1
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.write(reply_of(400, _error("This is not HTTP."), close=True))
            self.hang_up()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower().decode("latin-1")] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > BODY_BYTES:
            self.write(reply_of(413, _error("The body is too large."), close=True))
            self.hang_up()
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("latin-1")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        if len(self._waiting) >= PIPELINED:
            self.hang_up()
        elif self._task is not None:
            self._waiting.append((method, self._url.decode("latin-1"), self._headers, body))
        else:
            self._route(method, self._url.decode("latin-1"), self._headers, body)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def writable(self) -> None:
        await asyncio.wait_for(self._room.wait(), LONGEST_WAIT) if not self._room.is_set() else None

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def half_close(self) -> None:
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def play(self, performance: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(performance, name="scripted answer")
        self._task.add_done_callback(self._played)

    def _played(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._server.refusals.append(f"the script failed: {error!r}")
            self.write(reply_of(500, _error(f"The script failed: {error!r}"), close=True))
            self.hang_up()
        if self._waiting and self._transport is not None:
            self._route(*self._waiting.popleft())

    def end(self) -> asyncio.Task[None] | None:
        task = self._task
        if task is not None:
            task.cancel()
        if self._transport is not None:
            self._transport.abort()
        return task

    def _temper(self, body: bytes) -> None:
        try:
            self._server.behave(msgspec.json.decode(body, type=Behaviour))
        except msgspec.ValidationError as error:
            self.write(reply_of(400, _error(str(error))))
        else:
            self.write(reply_of(200, b"{}"))

    def _route(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        server = self._server
        address = path.partition("?")[0]
        form = next((one for one in server.formats if address.endswith(one.path)), None) if method == "POST" else None
        if form is not None:
            server.record(path, headers, body)
            server.answer(self, form, headers, body)
        elif method == "POST" and (name := path_of(address)):
            server.record(path, headers, body)
            server.serve(self, name, headers, body)
        elif method == "GET" and path == "/stats":
            self.write(reply_of(200, msgspec.json.encode(server.stats())))
        elif method == "GET" and path == "/requests":
            shown = [
                {"path": one.path, "authorised": bool(one.authorization), "body": one.body.decode("utf-8", "replace")}
                for one in server.recorded
            ]
            self.write(reply_of(200, msgspec.json.encode(shown)))
        elif method == "GET" and path == "/trace":
            self.write(reply_of(200, msgspec.json.encode(list(server.trace))))
        elif method == "POST" and path == "/behaviour":
            self._temper(body)
        elif method == "GET" and path.endswith("/models"):
            self.write(reply_of(200, b'{"object":"list","data":[{"id":"scripted","object":"model"}]}'))
        elif method == "POST" and path == "/reset":
            server.reset()
            self.write(reply_of(200, b"{}"))
        elif method == "POST" and path.startswith("/release/"):
            server.release(path.removeprefix("/release/"))
            self.write(reply_of(200, b"{}"))
        elif method == "POST" and path == "/close-idle":
            self.write(reply_of(200, b'{"closed":%d}' % server.close_idle()))
        else:
            self.write(reply_of(404, _error(f"There is no {method} {path}.")))
