"""A minimal HTTP/1.1 client for loopback: one connection, one request at a time, with the times of the response.

It does little and costs little, so that the load driver uses as little as possible of the cores that it shares with the
measured process. The caller that opens a `Connection` owns and closes it. Deadlines are up to the caller
(`asyncio.timeout` around a whole run), because a timer per request would be part of the measurement.
"""

import asyncio
import json
import time
from typing import Any
from urllib.parse import urlsplit

import httptools


class Broken(Exception):
    """The connection ended before the response did. `reply` holds the part that arrived."""

    def __init__(self, reply: "Reply") -> None:
        super().__init__("the connection ended before the answer did")
        self.reply = reply


class Reply:
    """A response, filled in as it arrives. `head` is set after the headers, `end` after the body."""

    __slots__ = ("body", "end", "ended", "first", "head", "headers", "sent", "status")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.sent = 0.0
        self.first = 0.0
        self.ended = 0.0
        self.head: asyncio.Future[None] = loop.create_future()
        self.end: asyncio.Future[None] = loop.create_future()


def events(body: bytes | bytearray) -> list[dict[str, Any]]:
    """The complete JSON events of a streamed answer, without comments and the end mark."""
    lines = bytes(body).split(b"\n")[:-1]
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def streamed_text(body: bytes | bytearray) -> str:
    """The text of a streamed answer."""
    pieces = [choice["delta"].get("content") for event in events(body) for choice in event.get("choices", ())]
    return "".join(piece for piece in pieces if piece)


class Connection(asyncio.Protocol):
    """A keep-alive connection to one server."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.reply: Reply | None = None
        self.parser: Any = None

    @classmethod
    async def open(cls, url: str) -> "Connection":
        parts = urlsplit(url)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(parts.netloc), parts.hostname or "", parts.port or 80)
        return connection

    @property
    def alive(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def begin(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Reply:
        """Send a request. The response arrives in the returned Reply."""
        if self.transport is None or self.reply is not None:
            raise RuntimeError("a connection carries one request at a time")
        reply = self.reply = Reply(self.loop)
        self.parser = httptools.HttpResponseParser(self)
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        reply.sent = time.perf_counter()
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return reply

    async def ask(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Reply:
        """Send a request and wait for the complete response."""
        reply = self.begin(method, path, headers, body)
        await reply.end
        return reply

    # -- asyncio.Protocol and httptools callbacks ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.parser is not None:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserError:
                self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        reply, self.reply, self.parser = self.reply, None, None
        if reply is None:
            return
        for waiting in (reply.head, reply.end):
            if not waiting.done():
                waiting.set_exception(Broken(reply))
                waiting.exception()  # mark as retrieved: a caller may wait for only one of the two

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.reply is not None:
            self.reply.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.reply is not None:
            self.reply.status = self.parser.get_status_code()
            if not self.reply.head.done():
                self.reply.head.set_result(None)

    def on_body(self, data: bytes) -> None:
        if self.reply is not None:
            if not self.reply.body:
                self.reply.first = time.perf_counter()
            self.reply.body += data

    def on_message_complete(self) -> None:
        reply, self.reply, self.parser = self.reply, None, None
        if reply is not None:
            reply.ended = time.perf_counter()
            if not reply.end.done():
                reply.end.set_result(None)
