"""The private parts of uvicorn that `web/http1` relies on.

`HttpConnection` extends uvicorn's `HttpToolsProtocol` beyond its public interface. Each private name, signature and
behaviour that it needs is listed here. If a new version of uvicorn changes one, a test fails with a sentence that says
what changed and what depends on it. Adapt `src/tidegate/web/http1/` and this list together.
"""

import asyncio
import inspect
import socket
from collections import deque
from typing import Any

import anyio
import httptools
import pytest
import uvicorn
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tests.in_process import WAIT

pytestmark = pytest.mark.anyio

METHODS: dict[tuple[type, str], tuple[list[str], str]] = {
    (HttpToolsProtocol, "__init__"): (["config", "server_state", "app_state", "_loop"], "HttpConnection calls it"),
    (HttpToolsProtocol, "connection_made"): (["transport"], "HttpConnection passes a BufferedTransport to it"),
    (HttpToolsProtocol, "connection_lost"): (["exc"], "HttpConnection stops its timers around it"),
    (HttpToolsProtocol, "eof_received"): ([], "HttpConnection replaces it, to answer half-closed connections"),
    (HttpToolsProtocol, "data_received"): (["data"], "HttpConnection bounds an unfinished head after it"),
    (HttpToolsProtocol, "pause_writing"): ([], "HttpConnection starts the timer for stalled readers there"),
    (HttpToolsProtocol, "resume_writing"): ([], "HttpConnection stops the timer for stalled readers there"),
    (HttpToolsProtocol, "on_message_begin"): ([], "HttpConnection adds its keys to the scope there"),
    (HttpToolsProtocol, "on_url"): (["url"], "HttpConnection counts the head's bytes there"),
    (HttpToolsProtocol, "on_header"): (["name", "value"], "HttpConnection counts the head's bytes there"),
    (HttpToolsProtocol, "on_headers_complete"): ([], "HttpConnection checks host and framing before it"),
    (HttpToolsProtocol, "on_message_complete"): ([], "HttpConnection notes there that the body has arrived"),
    (HttpToolsProtocol, "on_response_complete"): ([], "HttpConnection flushes the response there"),
    (HttpToolsProtocol, "send_400_response"): (["msg"], "HttpConnection replaces it with Tidegate's error format"),
    (HttpToolsProtocol, "_start_asgi_task"): (["cycle", "app"], "HttpConnection starts the task in its scope instead"),
    (HttpToolsProtocol, "_unset_keepalive_if_required"): ([], "HttpConnection cancels the keep-alive timer with it"),
    (HttpToolsProtocol, "timeout_keep_alive_handler"): ([], "HttpConnection's timer for the head calls it"),
    (HttpToolsProtocol, "shutdown"): ([], "Server closes idle connections with it"),
    (RequestResponseCycle, "run_asgi"): (["app"], "Server runs each request with it"),
    (RequestResponseCycle, "send"): (["message"], "Http10Response wraps it"),
    (ServerState, "__init__"): ([], "Server makes one"),
    (Config, "load"): ([], "Server prepares uvicorn with it"),
}
"""The parameters of each method that is overridden, replaced or called, and its use."""

CONNECTION_ATTRIBUTES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "app": (object, "it is the application that requests are passed to"),
    "access_log": (bool, "HttpConnection switches uvicorn's access log off"),
    "cycle": (type(None), "HttpConnection is idle while it is None or its response is complete"),
    "flow": (type(None), "connection_made sets it"),
    "headers": (type(None), "HttpConnection counts and checks the request's headers"),
    "logger": (object, "HttpConnection replaces it"),
    "loop": (asyncio.AbstractEventLoop, "HttpConnection's timers run on it"),
    "parser": (httptools.HttpRequestParser, "HttpConnection asks it for the HTTP version"),
    "pipeline": (deque, "HttpConnection must know whether requests wait behind the current one"),
    "scheme": (type(None), "HttpConnection treats TLS connections differently"),
    "scope": (type(None), "HttpConnection adds its keys to it"),
    "tasks": (set, "HttpConnection registers its tasks in it"),
    "timeout_keep_alive": ((int, float), "HttpConnection restarts the keep-alive timer with it"),
    "timeout_keep_alive_task": (type(None), "HttpConnection restarts the keep-alive timer if it is None"),
    "transport": (type(None), "Server aborts connections through it"),
}
"""The attributes of a new HttpToolsProtocol, their types and their use."""

CYCLE_ATTRIBUTES: dict[str, tuple[object, str]] = {
    "chunked_encoding": (None, "Http10Response sets it to False before a stream's head"),
    "expected_content_length": (0, "Http10Response sets it for each piece of a stream"),
    "keep_alive": (True, "HttpConnection sets it to False for connections beyond the limit and half-closed ones"),
    "more_body": (True, "HttpConnection must know whether the request is still arriving"),
    "response_complete": (False, "HttpConnection is idle when it is True"),
    "response_started": (False, "HttpConnection must know whether an error can still be sent"),
}
"""The attributes of a new RequestResponseCycle, their first values and their use."""


def changed(what: str, use: str) -> str:
    return f"uvicorn {uvicorn.__version__} has changed: {what}. {use} (src/tidegate/web/http1)."


def method_change(owner: type, name: str, expected: list[str], use: str) -> str | None:
    """The change of a method, as a sentence; None if there is none."""
    method = getattr(owner, name, None)
    if method is None:
        return changed(f"{owner.__name__}.{name} is gone", use)
    found = [each for each in inspect.signature(method).parameters if each != "self"]
    if found != expected:
        return changed(f"the parameters of {owner.__name__}.{name} are {found}, not {expected}", use)
    return None


async def serve_nothing(scope: Any, receive: Any, send: Any) -> None:
    """The smallest application: an empty response."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def loaded(app: Any) -> Config:
    config = Config(app, http="httptools", ws="none", lifespan="off", interface="asgi3", log_config=None)
    config.load()
    return config


class RecordingTransport(asyncio.Transport):
    """Forwards everything and records each write."""

    def __init__(self, transport: asyncio.Transport, writes: list[bytes]) -> None:
        super().__init__()
        self._transport = transport
        self._writes = writes

    def __getattribute__(self, name: str) -> Any:
        if name in ("write", "_transport", "_writes"):
            return super().__getattribute__(name)
        return getattr(self._transport, name)

    def write(self, data: Any) -> None:
        self._writes.append(bytes(data))
        self._transport.write(data)


class RecordingProtocol(HttpToolsProtocol):
    """uvicorn's protocol; records what it calls and writes."""

    def __init__(self, config: Config, state: ServerState, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(config, state, {}, loop)
        self.calls: list[str] = []
        self.writes: list[bytes] = []
        self.cycles: list[RequestResponseCycle] = []
        self.response = b""
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(RecordingTransport(transport, self.writes))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set()

    def send_400_response(self, msg: str) -> None:
        self.calls.append("send_400_response")
        super().send_400_response(msg)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.calls.append("_start_asgi_task")
        self.cycles.append(cycle)
        self.prepare(cycle)
        super()._start_asgi_task(cycle, app)  # lint: allow what uvicorn calls is the subject

    def prepare(self, cycle: RequestResponseCycle) -> None:
        """For subclasses: called before the application is."""

    def on_response_complete(self) -> None:
        self.calls.append("on_response_complete")
        super().on_response_complete()


async def exchange(app: Any, *requests: bytes, kind: type[RecordingProtocol] = RecordingProtocol) -> RecordingProtocol:
    """Sends requests over a real connection to uvicorn's own protocol and reads until the server hangs up."""
    loop = asyncio.get_running_loop()
    made: list[RecordingProtocol] = []

    def make() -> RecordingProtocol:
        made.append(kind(loaded(app), ServerState(), loop))
        return made[0]

    with anyio.fail_after(WAIT):
        server = await loop.create_server(make, "127.0.0.1", 0)
        async with server:
            async with await anyio.connect_tcp("127.0.0.1", server.sockets[0].getsockname()[1]) as client:
                await client.send(b"".join(requests))
                try:
                    while True:
                        made[0].response += await client.receive()
                except anyio.EndOfStream:
                    pass
            await made[0].lost.wait()
    return made[0]


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST_GET = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(("owner", "name"), METHODS, ids=lambda value: getattr(value, "__name__", value))
def test_each_method_that_http1_relies_on_has_the_expected_parameters(owner: type, name: str) -> None:
    """H20: the limits and error responses of http1 are built on these methods."""
    problem = method_change(owner, name, *METHODS[owner, name])
    assert problem is None, problem


@pytest.mark.parametrize("name", CONNECTION_ATTRIBUTES)
async def test_each_attribute_of_a_connection_that_http1_relies_on_is_there(name: str) -> None:
    """H20: a connection's limits and state are read from these attributes."""
    kind, use = CONNECTION_ATTRIBUTES[name]
    protocol = HttpToolsProtocol(loaded(serve_nothing), ServerState(), {}, asyncio.get_running_loop())
    assert hasattr(protocol, name), changed(f"HttpToolsProtocol has no attribute {name}", use)
    value = getattr(protocol, name)
    assert isinstance(value, kind), changed(f"HttpToolsProtocol.{name} is first a {type(value).__name__}", use)


@pytest.mark.parametrize("name", CYCLE_ATTRIBUTES)
async def test_each_attribute_of_a_request_that_http1_relies_on_has_the_expected_first_value(name: str) -> None:
    """H20: whether an error can still be sent is read from these attributes."""
    expected, use = CYCLE_ATTRIBUTES[name]
    cycle = (await exchange(serve_nothing, LAST_GET)).cycles[0]
    fresh = RequestResponseCycle(
        scope=cycle.scope,
        transport=cycle.transport,
        flow=cycle.flow,
        logger=cycle.logger,
        access_logger=cycle.access_logger,
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )
    assert hasattr(fresh, name), changed(f"RequestResponseCycle has no attribute {name}", use)
    assert getattr(fresh, name) == expected, changed(f"RequestResponseCycle.{name} is first not {expected}", use)


def test_a_status_line_is_a_complete_line_for_each_status_that_http1_sends() -> None:
    """H20: errors in the head are written without uvicorn's response cycle."""
    for status in (400, 431):
        line = STATUS_LINE.get(status, b"")
        use = "HttpConnection.send_400_response begins its response with it"
        assert line.startswith(b"HTTP/1.1 %d " % status) and line.endswith(b"\r\n"), changed(
            f"STATUS_LINE[{status}] is {line!r}", use
        )


async def test_a_head_is_one_write_that_begins_with_the_protocol_and_a_chunk_one_that_begins_with_its_size() -> None:
    """H16: a client that has gone is found by sending the first bytes of its response ahead."""

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"0123456789abcdef", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    use = "HalfCloseWatch sends HEAD_START or CHUNK_START ahead of these writes"
    head, chunk, last = (await exchange(stream, LAST_GET)).writes
    assert head.startswith(b"HTTP/1.1 ") and head.endswith(b"\r\n\r\n"), changed(f"a head is written as {head!r}", use)
    assert chunk == b"10\r\n0123456789abcdef\r\n", changed(f"a chunk is written as {chunk!r}", use)
    assert last == b"0\r\n\r\n", changed(f"the last chunk is written as {last!r}", use)


async def test_requests_of_one_connection_are_started_one_after_the_other() -> None:
    """H12: each request is started by `_start_asgi_task`, a pipelined one when the response before it is complete."""
    protocol = await exchange(serve_nothing, GET, LAST_GET)
    use = "HttpConnection starts requests in _start_asgi_task and flushes responses in on_response_complete"
    assert protocol.calls == ["_start_asgi_task", "on_response_complete"] * 2, changed(
        f"two pipelined requests make the calls {protocol.calls}", use
    )


async def test_an_application_is_called_with_the_send_of_its_cycle() -> None:
    """H10: HTTP/1.0 clients get streams without chunks through a `send` that is replaced on the cycle."""
    sent: list[Any] = []

    class Replaced(RecordingProtocol):
        def prepare(self, cycle: RequestResponseCycle) -> None:
            before = cycle.send

            async def send(message: Any) -> None:
                sent.append(message["type"])
                cycle.chunked_encoding = False
                await before(message)

            cycle.send = send  # type: ignore[method-assign]

    async def respond(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    response = (await exchange(respond, LAST_GET, kind=Replaced)).response
    use = "Http10Response replaces cycle.send and sets cycle.chunked_encoding"
    assert sent == ["http.response.start", "http.response.body"], changed("cycle.send is not what is called", use)
    assert b"transfer-encoding" not in response, changed("chunked_encoding = False does not prevent chunks", use)


async def test_an_error_in_a_parser_callback_is_answered_by_send_400_response() -> None:
    """H20: `_refuse` raises in the parser's callbacks and `send_400_response` writes the error."""

    class Refusing(RecordingProtocol):
        def on_header(self, name: bytes, value: bytes) -> None:
            raise httptools.HttpParserError("refused")

    protocol = await exchange(serve_nothing, GET, kind=Refusing)
    use = "HttpConnection refuses a head by raising HttpParserError from a callback"
    assert protocol.calls == ["send_400_response"], changed(f"a refused head makes the calls {protocol.calls}", use)


async def test_an_idle_connection_has_a_keep_alive_timer_and_is_closed_by_shutdown() -> None:
    """L04: idle connections are closed when the gateway stops."""
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    state = ServerState()
    with anyio.fail_after(WAIT):
        _, protocol = await loop.connect_accepted_socket(
            lambda: RecordingProtocol(loaded(serve_nothing), state, loop), left
        )
        reader, writer = await asyncio.open_connection(sock=right)
        assert state.connections == {protocol}, changed("connection_made does not register", "Server counts them")
        assert isinstance(protocol.flow, FlowControl), changed("flow is no FlowControl", "HttpConnection extends it")
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        assert protocol.cycle.response_complete, changed("response_complete stays False", "HttpConnection reads it")
        assert protocol.timeout_keep_alive_task is not None, changed(
            "no keep-alive timer runs after a response", "HttpConnection restarts only the timers that are missing"
        )
        protocol.shutdown()
        assert await reader.read() == b"", changed("shutdown leaves idle connections open", "Server.stop_intake")
        writer.close()
        await writer.wait_closed()
        await protocol.lost.wait()
    assert not state.connections, changed("connection_lost does not unregister", "Server counts them")


async def test_the_headers_of_the_server_state_are_read_for_each_request() -> None:
    """H10: the Date header is replaced every second."""

    class Dated(RecordingProtocol):
        def on_message_begin(self) -> None:
            self.server_state.default_headers = [(b"date", b"noon")]
            super().on_message_begin()

    response = (await exchange(serve_nothing, LAST_GET, kind=Dated)).response
    assert b"date: noon\r\n" in response, changed("default_headers are read only once", "Server sets the Date header")


def test_a_changed_method_is_described_in_a_sentence() -> None:
    """H20: the canary says what changed and what depends on it."""

    class Other:
        def run(self, app: object, more: object) -> None: ...

    assert "Other.stop is gone. Server calls it" in str(method_change(Other, "stop", [], "Server calls it"))
    assert "the parameters of Other.run are ['app', 'more'], not ['app']" in str(
        method_change(Other, "run", ["app"], "Server calls it")
    )
