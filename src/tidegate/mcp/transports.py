"""The transports by which a connection reaches its server: the standard streams of a process, or HTTP.

Entering a transport opens it; leaving it closes everything that belongs to it. A process's transport ends when the
process ends, even if another process still has the output open.
"""

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import anyio
import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from tidegate.errors import ToolFailed
from tidegate.http_client import ConnectionFailed, HttpClient, Target, Timeouts
from tidegate.lifetimes import Scope, ServiceFailed
from tidegate.mcp.connection import LOST, NOT_SENT
from tidegate.mcp.message_limits import MessageRefused, RateLimit, ValueCount
from tidegate.mcp.stdio import StdioStreams, complete, ended_by, keep_tail
from tidegate.mcp.tail import OutputTail
from tidegate.security import Secret
from tidegate.workspaces.server_process import ProcessSpec, ServerProcess, ServerProcesses

DRAIN_SECONDS = 0.5
"""Time limit for reading the rest of the output after a process has ended."""

CONNECT_SECONDS = 10.0
SILENT_SECONDS = 24 * 3600.0
"""Time limit for silence on an event stream, which may be silent for a long time. Calls have their own time limit."""


class StdioTransport(AbstractAsyncContextManager["StdioTransport"]):
    """The standard streams of a process."""

    def __init__(
        self, processes: ServerProcesses, spec: ProcessSpec, scope: Scope, tail: OutputTail, *, message_bytes: int
    ) -> None:
        self.tail = tail
        self.process: ServerProcess | None = None
        self._processes = processes
        self._spec = spec
        self._parent = scope
        self._message_bytes = message_bytes

    async def __aenter__(self) -> "StdioTransport":
        try:
            self.process = process = await self._processes.open(self._spec)
        except ToolFailed as error:
            raise ServiceFailed(error.message, "unavailable") from None
        try:
            self._scope = self._parent.child("streams")
            self._scope.start(keep_tail, process, self.tail, name="error output")
            self._scope.start(self._follow_end, process, name="end of the process")
        except BaseException:
            await process.close()
            raise
        self.read = self.write = StdioStreams(process, self.tail, message_bytes=self._message_bytes, rate=RateLimit())
        self.ended = self.read.ended
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self.process = self.process, None
        if process is not None:
            try:
                await process.close()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._scope.close()

    async def _follow_end(self, process: ServerProcess) -> None:
        await process.wait()
        await asyncio.wait({self.ended}, timeout=DRAIN_SECONDS)
        process.close_streams()

    async def failure(self) -> ServiceFailed | None:
        assert self.process is not None, "asked before the transport is left"
        if (error := self.ended.result()) is not None:
            return error
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                code = await self.process.wait()
        except TimeoutError:
            return ServiceFailed("The server closed its output.", "crashed")
        await asyncio.sleep(0)  # what it wrote last is read
        return ended_by(code, self.process, self.tail)

    def refused(self) -> ServiceFailed | None:
        return None


class HttpTransport(AbstractAsyncContextManager["HttpTransport"]):
    """HTTP to a remote server. Values in `headers` may be secrets."""

    tail = None
    process = None

    def __init__(
        self, clients: HttpClient, url: str, headers: dict[str, Secret | str], *, sse: bool, message_bytes: int
    ) -> None:
        self._url = url
        self._sse = sse
        self._requests = LimitedRequests(clients, headers, message_bytes)
        self._message_bytes = message_bytes
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "HttpTransport":
        self.ended: asyncio.Future[ServiceFailed | None] = asyncio.get_running_loop().create_future()
        self._requests.on_lost = self._lose
        async with self._stack as stack:
            if self._sse:
                streams: Any = sse_client(self._url, httpx_client_factory=self._client)
            else:
                client = await stack.enter_async_context(self._client())
                streams = streamable_http_client(self._url, http_client=client, max_sse_event_size=self._message_bytes)
            read, self.write = await stack.enter_async_context(streams)
            self.read = _Noticed(read, self.ended)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    def _client(self, *_: Any, **__: Any) -> httpx2.AsyncClient:
        """Returns a client whose requests the gateway sends itself. The SDK's own headers and timeouts are ignored."""
        return httpx2.AsyncClient(transport=self._requests, timeout=None, trust_env=False)

    def _lose(self, error: ServiceFailed) -> None:
        if not self.ended.done():
            self.ended.set_result(error)

    async def failure(self) -> ServiceFailed | None:
        return self.ended.result()

    def refused(self) -> ServiceFailed | None:
        return self._requests.refused


class _Noticed:
    """The SDK's stream of messages; `ended` is done when it ends."""

    def __init__(self, stream: Any, ended: "asyncio.Future[ServiceFailed | None]") -> None:
        self.assumes_complete = False
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Any:
        return self._stream.last_context

    def __aiter__(self) -> "_Noticed":
        return self

    async def __anext__(self) -> Any:
        try:
            item = await anext(self._stream)
            if self.assumes_complete:
                complete(item)
            return item
        except StopAsyncIteration:
            if not self._ended.done():
                self._ended.set_result(None)
            raise

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> "_Noticed":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class LimitedRequests(httpx2.AsyncBaseTransport):
    """Sends the SDK's requests through the gateway's HTTP client: with its proxies, its certificate authorities and the
    limits for MCP. Redirects are left to the SDK, which follows them only to the same origin.

    If a request was not sent or its connection broke, the SDK gets an error response, so that only this request fails.
    """

    def __init__(self, clients: HttpClient, headers: dict[str, Secret | str], message_bytes: int) -> None:
        self.refused: ServiceFailed | None = None
        """Set when the server has demanded authorisation."""
        self.on_lost: Any = None
        self._clients = clients
        self._headers = headers
        self._limit = message_bytes
        self._rate = RateLimit()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OURS} | {
            name: value if isinstance(value, str) else value.reveal() for name, value in self._headers.items()
        }
        url = str(request.url)
        proxy = self._clients.network.secret_proxy_for(url)
        target = Target(request.method, url, headers, proxy=proxy)
        waits = Timeouts(connect=CONNECT_SECONDS, first_byte=SILENT_SECONDS, idle=SILENT_SECONDS)
        body = await request.aread()
        try:
            response = await self._clients.request(target, (body,) if body else (), waits)
        except ConnectionFailed as error:
            sent = error.trouble in ("broken", "silent", "foreign")
            return _error_response(request, body, LOST if sent else NOT_SENT, _words(error))
        if response.status in (401, 403):
            self.refused = ServiceFailed(_demand(response.status, response.headers), "authorization-required")
        elif response.status == 404 and "mcp-session-id" in request.headers and self.on_lost is not None:
            response.close()
            self.on_lost(ServiceFailed("The server has ended the session.", "crashed"))
            return _error_response(request, body, NOT_SENT, "The server has ended the session.")
        return httpx2.Response(
            response.status,
            headers={name: value for name, value in response.headers.items() if name not in _FRAMING},
            stream=_Body(response, self._limit, self._rate),
            request=request,
        )


_OURS = frozenset({"host", "connection", "accept-encoding", "user-agent", "content-length"})
_FRAMING = frozenset({"content-length", "content-encoding", "transfer-encoding", "connection"})


class BodyRefused(httpx2.StreamError):
    """A body exceeds a limit. The SDK then fails the request with this error."""


class _Body(httpx2.AsyncByteStream):
    """The body of a response, with limits. In an event stream, the limits apply to each event."""

    def __init__(self, response: Any, limit: int, rate: RateLimit) -> None:
        self._response = response
        self._limit = limit
        self._rate = rate

    async def __aiter__(self) -> Any:
        is_stream = self._response.content_type == "text/event-stream"
        count, size = ValueCount(events=is_stream), 0
        try:
            while data := await self._response.read():
                size = 0 if is_stream else size + len(data)
                if size > self._limit:
                    raise BodyRefused(f"The server's message has more than {self._limit:,} bytes (message_bytes).")
                for _ in range(count.add(data)):
                    await self._rate.admit()
                yield data
        except MessageRefused as error:
            raise BodyRefused(f"The server's message {error}.") from None
        except ConnectionFailed as error:
            raise httpx2.ReadError(_words(error)) from None

    async def aclose(self) -> None:
        self._response.close()


def _error_response(request: httpx2.Request, body: bytes, code: int, message: str) -> httpx2.Response:
    """Returns a response with a JSON-RPC error. The SDK replaces its id."""
    content = {"jsonrpc": "2.0", "id": 0, "error": {"code": code, "message": message}}
    return httpx2.Response(503, json=content, request=request)


def _words(error: ConnectionFailed) -> str:
    said = f" ({error.said})" if error.said else ""
    return f"The server cannot be reached: {error.trouble}{said}."


def _demand(status: int, headers: Any) -> str:
    wanted = headers.get("www-authenticate", "").lower()
    if status == 401 and ("resource_metadata" in wanted or wanted.startswith("bearer")):
        return "The server requires a sign-in (OAuth), or the bearer token is not valid."
    return f"The server refused the credentials (HTTP {status})."
