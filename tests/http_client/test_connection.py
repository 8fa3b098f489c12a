"""The HTTP client byte by byte, against a server that sends exactly the given bytes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from hypothesis import given
from hypothesis import strategies as st

from tests.models.support import ask as said
from tests.models.support import configured
from tidegate.http_client import ConnectionFailed, HttpClient, IncomingResponse, Target, Timeouts

pytestmark = pytest.mark.anyio

WAIT = 20.0
HEADER_BYTES = 64 * 1024
"""More than any header line or chunk header may have."""
WHOLE_BYTES = 256 * 1024
"""Longer requests are sent in pieces."""
WAITS = Timeouts(connect=WAIT, first_byte=WAIT, idle=WAIT)
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Wire:
    """A server that reads a request and then sends the next of its answers; None closes the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self._answers = list(answers)
        self.accepted = 0
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.over = asyncio.Event()
        self.streams: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            self.over.set()
            server.close()
            for stream in self.streams:
                stream.close()
            await server.wait_closed()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.streams.append(writer)
        try:
            while self._answers:
                head = await reader.readuntil(b"\r\n\r\n")
                await self.hold.wait()
                self.heads.append(head)
                self.bodies.append(await self._body(reader, head))
                answer = self._answers.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except asyncio.LimitOverrunError:
            await self.over.wait()  # it does not read on, and does not hang up either
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _body(self, reader: asyncio.StreamReader, head: bytes) -> bytes:
        return await reader.readexactly(int(head.rpartition(b"Content-Length: ")[2].split()[0]))


class Deaf(Wire):
    """Responds as soon as it has seen the head, and reads no further."""

    async def _body(self, reader: asyncio.StreamReader, head: bytes) -> bytes:
        return b""


class Loopback(AbstractResolver):
    """Resolves every name to this machine, and every port to one."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host="127.0.0.1", port=self._port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing is open."""


async def until_open(clients: HttpClient, count: int) -> None:
    """Wait until the client has no more than so many open sockets."""
    with anyio.fail_after(WAIT):
        while clients.stats().open > count:
            await anyio.lowlevel.checkpoint()
    assert clients.stats().open == count


def pieces(body: bytes) -> list[bytes]:
    """The pieces of a request body, including empty ones."""
    third = len(body) // 3
    return [body[:third], b"", body[third:]]


async def ask(clients: HttpClient, origin: str, body: bytes = b"{}", waits: Timeouts = WAITS) -> IncomingResponse:
    with anyio.fail_after(WAIT):
        return await clients.request(Target("POST", f"{origin}/v1", {}), pieces(body), waits)


async def read_body(response: IncomingResponse) -> bytes:
    parts = []
    with anyio.fail_after(WAIT):
        while part := await response.read():
            parts.append(part)
    response.close()
    return b"".join(parts)


async def trouble(wire: Wire, waits: Timeouts = WAITS, then: Callable[[HttpClient], None] = lambda _: None) -> str:
    """The kind of failure of a request to this server, up to the end of its body."""
    async with wire.serve() as origin, HttpClient() as clients:
        with pytest.raises(ConnectionFailed) as caught:
            await read_body(await ask(clients, origin, waits=waits))
        await until_open(clients, 0)
        then(clients)
    return caught.value.trouble


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK + b"Content-Length: 3\r\n\r\nabc", b"abc"),
        (CHUNKED + b"3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nX-Late: 1\r\n\r\n", b"abcdefg"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + CHUNKED + b"1\r\nx\r\n0\r\n\r\n", b"x"),
        (OK + b"content-LENGTH: 0\r\n\r\n", b""),
        (OK + b"X-Empty:\r\nX-Empty: \r\nContent-Length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx", b"x"),
        (CHUNKED + b"1  \r\nx\r\n0\r\n\r\n", b"x"),
    ],
)
async def test_a_connection_is_reused_after_a_complete_response(answer: bytes, body: bytes) -> None:
    """L11: interim responses and trailers are not part of the headers."""
    wire = Wire(answer, answer)
    async with wire.serve() as origin, HttpClient() as clients:
        for _ in range(2):
            response = await ask(clients, origin)
            assert response.status in (200, 204)
            assert not {"link", "x-late"} & response.headers.keys()
            assert await read_body(response) == body
            assert (clients.stats().idle, clients.stats().busy) == (1, 0)
    assert wire.accepted == 1


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"\r\nabc",
        b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        OK + b"Connection: close\r\nContent-Length: 3\r\n\r\nabc",
    ],
)
async def test_a_connection_that_closes_after_its_response_is_not_reused(answer: bytes) -> None:
    wire = Wire(answer, *[answer] * (b"Content-Length" in answer))  # without a length, its end is the end of the body
    async with wire.serve() as origin, HttpClient() as clients:
        assert await read_body(await ask(clients, origin)) == b"abc"
        await until_open(clients, 0)


@given(cuts=st.sets(st.integers(1, 200), max_size=20))
def test_a_response_is_the_same_wherever_the_network_splits_it(cuts: set[int]) -> None:
    answer = CHUNKED + b"5\r\nhello\r\n1\r\n \r\na\r\nwide world\r\n0\r\n\r\n"
    places = [0, *sorted(cut for cut in cuts if cut < len(answer)), len(answer)]
    pieces = [answer[start:end] for start, end in pairwise(places)]

    async def run() -> bytes:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"{}")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        async with server, HttpClient() as clients:
            origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await read_body(await ask(clients, origin))

    assert asyncio.run(run()) == b"hello wide world"


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (None, "broken"),
        (b"HTTP/1.1 2", "broken"),
        (OK + b"Content-Length: 5\r\nConnection: close\r\n\r\nabc", "broken"),
        (CHUNKED + b"5\r\nhello\r\n", "broken"),
        (b"SSH-2.0-gate\r\n\r\n", "foreign"),
        (OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "foreign"),
        (CHUNKED + b"zz\r\n", "foreign"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "foreign"),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", "foreign"),
        (b"HTTP/1.1 000 Nothing\r\nContent-Length: 3\r\n\r\nabc", "foreign"),
        (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "foreign"),
        (OK + b"X: " + b"x" * 8 * HEADER_BYTES, "foreign"),
        (OK + b"X: x\r\n" * HEADER_BYTES, "foreign"),
        (CHUNKED + b"1\r\nx\r\n0\r\nX: " + b"x" * 8 * HEADER_BYTES, "foreign"),
        (CHUNKED + b"1\r\nx\r\n1;" + b"x" * 8 * HEADER_BYTES, "foreign"),
        (CHUNKED + b"1\r\nx\r\n0\r\n" + b"X: x\r\n" * HEADER_BYTES, "foreign"),
    ],
)
async def test_a_truncated_or_invalid_response_fails_and_closes_the_connection(answer: bytes | None, what: str) -> None:
    """L11: a response counts only when its end has arrived."""
    assert await trouble(Wire(answer, *[b""] * (what == "foreign"))) == what


async def test_a_client_that_keeps_no_connection_tells_the_server() -> None:
    one = OK + b"Content-Length: 3\r\n\r\nabc"
    wire = Wire(one, one)
    async with wire.serve() as origin, HttpClient(keepalive=0) as clients:
        assert await read_body(await ask(clients, origin)) == b"abc"
        await until_open(clients, 0)
    assert b"\r\nConnection: close\r\n" in wire.heads[0]


async def test_extra_bytes_after_a_response_close_the_connection() -> None:
    """A second response would be taken for the next request's."""
    one = OK + b"Content-Length: 3\r\n\r\nabc"
    wire = Wire(one + one, one)  # it would answer a further request
    async with wire.serve() as origin, HttpClient() as clients:
        assert await read_body(await ask(clients, origin)) == b"abc"
        await until_open(clients, 0)


async def test_a_reused_connection_that_breaks_at_once_is_replaced() -> None:
    """L11: the server closed it at the moment of its reuse. There is one attempt with a new connection, and its failure
    is reported."""
    one = OK + b"Content-Length: 3\r\n\r\nabc"
    wire = Wire(one, None, one, None, None)
    async with wire.serve() as origin, HttpClient() as clients:
        assert await read_body(await ask(clients, origin)) == b"abc"
        assert await read_body(await ask(clients, origin)) == b"abc"
        assert wire.accepted == 2
        with pytest.raises(ConnectionFailed) as caught:
            await ask(clients, origin)
        assert (caught.value.trouble, wire.accepted) == ("broken", 3)


async def test_a_response_that_breaks_off_is_not_requested_again() -> None:
    """The caller decides about a partial response, because it may have been shown."""
    one = OK + b"Content-Length: 3\r\n\r\nabc"
    wire = Wire(one, b"HTTP/1.1 200 OK\r\n")
    async with wire.serve() as origin, HttpClient() as clients:
        assert await read_body(await ask(clients, origin)) == b"abc"
        with pytest.raises(ConnectionFailed):
            await ask(clients, origin)
        assert wire.accepted == 1


async def test_unexpected_bytes_close_an_idle_connection() -> None:
    wire = Wire(OK + b"Content-Length: 3\r\n\r\nabc", b"")
    async with wire.serve() as origin, HttpClient() as clients:
        assert await read_body(await ask(clients, origin)) == b"abc"
        assert clients.stats().idle == 1
        wire.streams[0].write(OK)
        with anyio.fail_after(WAIT):
            while clients.stats().open:
                await anyio.lowlevel.checkpoint()


async def test_silence_is_measured_from_the_last_byte_with_the_timeout_of_that_phase() -> None:
    """L11: a long first-byte timeout does not apply to pauses after the first byte."""
    begun = CHUNKED + b"3\r\nabc\r\n"
    assert await trouble(Wire(b"", None), Timeouts(WAIT, 0.05, WAIT)) == "silent"
    assert await trouble(Wire(begun, None), Timeouts(WAIT, WAIT, 0.05)) == "silent"


async def test_slow_headers_do_not_extend_the_first_byte_timeout() -> None:
    """L11: the first-byte timeout covers the headers."""
    stopped = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(OK)
            while not stopped.is_set():
                writer.write(b"X: y\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server, HttpClient() as clients:
        origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionFailed) as caught:
            await ask(clients, origin, waits=Timeouts(connect=WAIT, first_byte=0.2, idle=WAIT))
        stopped.set()
    assert caught.value.trouble == "silent"


async def test_unread_data_waits_in_the_socket_and_is_not_silence() -> None:
    """L18: a response of many megabytes to a slow reader uses bounded memory and does not time out."""
    size = 64 * 1024 * 1024  # more than the kernel holds
    wire = Wire(OK + b"Content-Length: %d\r\n\r\n" % size + b"x" * size)
    async with wire.serve() as origin, HttpClient() as clients:
        response = await ask(clients, origin, waits=Timeouts(WAIT, WAIT, 0.3))
        assert await response.read()
        loop = asyncio.get_running_loop()
        until = loop.time() + 0.5  # longer than the patience
        while loop.time() < until:
            await anyio.sleep(0.01)
        unsent = wire.streams[0].transport.get_write_buffer_size()
        assert unsent > size / 2, "the client reads no further than its buffer"
        assert len(await read_body(response)) > size / 2


async def test_an_early_response_to_a_long_request_stops_the_upload() -> None:
    """A 413 arrives early: nothing more is sent, and the connection is not reused."""
    wire = Deaf(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nabc", None)
    async with wire.serve() as origin, HttpClient() as clients:
        response = await ask(clients, origin, b"x" * (64 * WHOLE_BYTES))
        assert response.status == 413
        assert await read_body(response) == b"abc"
        await until_open(clients, 0)


@pytest.mark.parametrize("size", [0, 1, WHOLE_BYTES, WHOLE_BYTES + 1, 5 * WHOLE_BYTES + 7])
async def test_requests_of_any_length_arrive_unchanged(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    wire = Wire(OK + b"Content-Length: 0\r\n\r\n")
    async with wire.serve() as origin, HttpClient() as clients:
        await read_body(await ask(clients, origin, body[:size]))
    assert wire.bodies == [body[:size]]
    assert wire.heads[0].startswith(b"POST /v1 HTTP/1.1\r\nHost: %b\r\n" % origin.removeprefix("http://").encode())


async def test_closing_a_response_early_closes_its_connection() -> None:
    """L11: the rest of it would precede the next response."""
    wire = Wire(CHUNKED + b"3\r\nabc\r\n", b"")
    async with wire.serve() as origin, HttpClient() as clients:
        response = await ask(clients, origin)
        response.close()
        await until_open(clients, 0)
        response.close()
        assert clients.stats().open == 0


async def test_a_request_waits_for_a_connection_of_a_full_pool_with_a_deadline() -> None:
    """L11, A1: there are never more connections than the limit; a freed one goes to a waiting request."""
    one = OK + b"Content-Length: 3\r\n\r\nabc"
    wire = Wire(*[one] * 5)
    wire.hold.clear()
    async with wire.serve() as origin, HttpClient(connections=4, per_host=2) as clients:
        async with anyio.create_task_group() as group:
            answers: list[bytes] = []

            async def one_ask() -> None:
                answers.append(await read_body(await ask(clients, origin)))

            for _ in range(4):
                group.start_soon(one_ask)
            with anyio.fail_after(WAIT):
                while wire.accepted < 2:
                    await anyio.lowlevel.checkpoint()
            with pytest.raises(ConnectionFailed) as caught:
                await ask(clients, origin, waits=Timeouts(connect=WAIT, first_byte=0.02, idle=WAIT))
            assert caught.value.trouble == "crowded"
            await until_open(clients, 2)
            wire.hold.set()
        assert answers == [b"abc"] * 4
        assert wire.accepted == 2


async def test_an_idle_connection_to_another_endpoint_is_closed_to_make_room() -> None:
    """L11: the limit of the whole pool does not lock out an endpoint."""
    one = OK + b"Content-Length: 3\r\n\r\nabc"
    left, right = Wire(one, None), Wire(one, None)
    async with left.serve() as here, right.serve() as there, HttpClient(connections=1, per_host=1) as clients:
        assert await read_body(await ask(clients, here)) == b"abc"
        response = await ask(clients, there)
        assert clients.stats().open == 1
        assert await read_body(response) == b"abc"
        await until_open(clients, 1)


async def test_a_failed_connection_frees_its_slot() -> None:
    """L11: it is refused, and then another endpoint uses the only slot."""
    wire = Wire(OK + b"Content-Length: 3\r\n\r\nabc")
    async with wire.serve() as origin, HttpClient(connections=1, per_host=1) as clients:
        async with Wire().serve() as nobody:
            pass
        for _ in range(3):
            with pytest.raises(ConnectionFailed) as caught:
                await ask(clients, nobody)
            assert caught.value.trouble == "unconnected"
        assert await read_body(await ask(clients, origin)) == b"abc"


async def test_a_freed_connection_goes_to_the_first_request_that_waits_for_its_endpoint() -> None:
    """L11: with requests waiting for two endpoints, a slot wakes one that can use it; later requests wait behind."""
    one = OK + b"Content-Length: 3\r\n\r\nabc"
    here, there = Wire(*[one] * 50, None), Wire(*[one] * 50, None)
    order: list[str] = []
    async with here.serve() as near, there.serve() as far, HttpClient(connections=2, per_host=1) as clients:
        first, second = await ask(clients, near), await ask(clients, far)

        async def wait_for(origin: str, name: str) -> None:
            response = await ask(clients, origin)
            order.append(name)
            await read_body(response)

        async with anyio.create_task_group() as group:
            for origin, name in ((near, "near"), (far, "far")):
                group.start_soon(wait_for, origin, name)
                with anyio.fail_after(WAIT):
                    while clients.stats().waiting < 1 + (name == "far"):
                        await anyio.lowlevel.checkpoint()
            await read_body(second)
            group.start_soon(wait_for, far, "late")
            with anyio.fail_after(WAIT):
                while "far" not in order:
                    await anyio.lowlevel.checkpoint()
            assert "near" not in order
            await read_body(first)
    assert order.index("far") < order.index("late") and "near" in order


async def test_a_cancelled_wait_passes_its_slot_on() -> None:
    """L11: a request that just got a slot and is cancelled does not keep it."""
    one = OK + b"Content-Length: 3\r\n\r\nabc"
    wire = Wire(*[one] * 3)
    async with wire.serve() as origin, HttpClient(connections=1, per_host=1) as clients:
        first = await ask(clients, origin)
        second = asyncio.ensure_future(ask(clients, origin))
        third = asyncio.ensure_future(ask(clients, origin))
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        while await first.read():
            pass
        first.close()  # the second is woken
        second.cancel()
        with anyio.fail_after(WAIT):
            assert await read_body(await third) == b"abc"
            with pytest.raises(asyncio.CancelledError):
                await second


async def test_a_configured_header_replaces_a_built_in_one() -> None:
    """X22: in any spelling, and never in addition: endpoints differ in which of two they use."""
    body = b'{"choices":[{"message":{"content":"hi"}}]}'
    wire = Wire(OK + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    own = {"authorization": "env:CANARY", "HOST": "front.example", "user-agent": "me"}
    async with (
        wire.serve() as origin,
        configured(f"{origin}/v1", key="env:CANARY", headers=own, retries=0) as model,
    ):
        await said(model, "hello")
    lines = wire.heads[0].split(b"\r\n")
    for name in (b"authorization", b"host", b"user-agent", b"content-length"):
        assert sum(line.lower().startswith(name + b":") for line in lines) == 1
    assert b"HOST: front.example" in lines and b"user-agent: me" in lines


@pytest.mark.parametrize(
    ("url", "host", "target"),
    [
        ("http://api.example.org/v1", b"api.example.org", b"/v1"),
        ("http://api.example.org:80/v1", b"api.example.org", b"/v1"),
        ("http://api.example.org:8080/v1", b"api.example.org:8080", b"/v1"),
        ("http://bücher.example/v1/ü%20x", b"xn--bcher-kva.example", b"/v1/%C3%BC%20x"),
    ],
)
async def test_addresses_are_sent_as_valid_http(url: str, host: bytes, target: bytes) -> None:
    """In any script; to a server that stands for every host."""
    wire = Wire(OK + b"Content-Length: 0\r\n\r\n")
    async with wire.serve() as origin, HttpClient(resolver=Loopback(int(origin.rpartition(":")[2]))) as clients:
        await read_body(await clients.request(Target("POST", url, {"X-Title": "tide"}), [b"{}"], WAITS))
    first, *lines = wire.heads[0].split(b"\r\n")
    assert first == b"POST %b HTTP/1.1" % target
    assert b"Host: %b" % host in lines and b"X-Title: tide" in lines


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\rb", "a\0b"])
async def test_a_header_with_a_line_break_is_never_sent(value: str) -> None:
    """X22: it could begin another header, or another request."""
    wire = Wire(OK + b"Content-Length: 0\r\n\r\n")
    async with wire.serve() as origin, HttpClient() as clients:
        with pytest.raises(ConnectionFailed, match="line break"):
            await clients.request(Target("POST", origin, {"X-Title": value}), [b"{}"], WAITS)
        assert (wire.accepted, clients.stats().busy) == (0, 0)


async def test_framing_that_is_configured_as_a_header_is_not_sent() -> None:
    """The client frames its requests itself, and two lengths would be ambiguous."""
    wire = Wire(OK + b"Content-Length: 0\r\n\r\n")
    headers = {"content-length": "7", "Transfer-Encoding": "chunked"}
    async with wire.serve() as origin, HttpClient() as clients:
        await read_body(await clients.request(Target("POST", origin, headers), [b"{}"], WAITS))
    lines = wire.heads[0].lower().split(b"\r\n")
    assert b"content-length: 2" in lines
    assert not any(line.startswith(b"transfer-encoding") or line == b"content-length: 7" for line in lines)


async def test_credentials_in_an_address_are_sent_as_a_header() -> None:
    """And nowhere else; a configured header of that name comes first."""
    wire = Wire(*[OK + b"Content-Length: 0\r\n\r\n"] * 2)
    async with wire.serve() as origin, HttpClient() as clients:
        url = origin.replace("://", "://me:p%40ss@")
        await read_body(await clients.request(Target("POST", url, {}), [b"{}"], WAITS))
        await read_body(await clients.request(Target("POST", url, {"authorization": "Bearer x"}), [b"{}"], WAITS))
    first, second = wire.heads
    assert b"Authorization: Basic bWU6cEBzcw==\r\n" in first and b"@" not in first
    assert b"authorization: Bearer x\r\n" in second and b"Basic" not in second


async def test_a_finished_response_is_freed_without_the_collector() -> None:
    """A2: garbage that only the collector finds would pile up between its runs."""
    import gc

    from tidegate.http_client.response import Response

    wire = Wire(*[OK + b"Content-Length: 3\r\n\r\nabc"] * 20)
    async with wire.serve() as origin, HttpClient() as clients:
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                assert await read_body(await ask(clients, origin)) == b"abc"
            left = sum(isinstance(each, Response) for each in gc.get_objects())
        finally:
            gc.enable()
    assert left == 0


async def test_cancellation_at_any_step_leaves_nothing_behind() -> None:
    """L11: while connecting, sending or waiting for the response."""
    one = OK + b"Content-Length: 3\r\n\r\nabc"
    wire = Wire(*[one] * 60)
    async with wire.serve() as origin, HttpClient() as clients:
        for steps in [*range(12), *range(12)]:
            asking = asyncio.ensure_future(ask(clients, origin))
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled():
                await read_body(asking.result())
            assert clients.stats().busy == 0
            assert clients.stats().open <= 1
        assert await read_body(await ask(clients, origin)) == b"abc"


async def test_a_host_with_several_addresses_is_reached_at_one_that_answers() -> None:
    """The name of this machine has addresses of both families, and the server listens on one."""
    wire = Wire(OK + b"Content-Length: 3\r\n\r\nabc")
    async with wire.serve() as origin, HttpClient() as clients:
        named = origin.replace("127.0.0.1", "localhost")
        assert await read_body(await ask(clients, named)) == b"abc"


async def test_an_unknown_host_is_reported() -> None:
    async with HttpClient() as clients:
        with pytest.raises(ConnectionFailed) as caught:
            await ask(clients, "http://nowhere.invalid")
    assert caught.value.trouble == "unknown"
