"""The HTTP server: limits of a connection, and an orderly stop."""

import asyncio
import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec
import pytest

from bench.scripted_model import ScriptedModel
from tests.in_process import WAIT, InProcessGateway, in_process_gateway
from tests.web.client import CHAT, Reply, call, chat, chat_body, raw
from tidegate.web.app.http_request import BODIES_AT_ONCE
from tidegate.web.http1.protocol import HEADER_BYTES, HEADER_COUNT, HttpTimes

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"nonsense\r\n\r\n", b"400", b"invalid_http"),
        (b"GET / HTTP/9.9\r\n\r\n", b"400", b"invalid_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400", b"invalid_http"),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", b"400", b"invalid_http"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * (HEADER_BYTES + 10) + b"\r\n\r\n", b"431", b"headers_too_large"),
        (b"GET /" + b"x" * (HEADER_BYTES + 10) + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"431", b"headers_too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * (HEADER_COUNT + 1) + b"\r\n", b"431", b"headers_too_large"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", b"400", b"invalid_http"),
    ],
    ids=lambda value: repr(value[:30]),
)
async def test_invalid_and_oversized_heads_are_refused(
    gateway: InProcessGateway, request_bytes: bytes, status: bytes, code: bytes
) -> None:
    """H20, L21: with an error in OpenAI's format, and the connection is closed."""
    head, body = await raw(gateway, request_bytes)
    assert head.split(b" ")[1] == status, head
    assert b'"code":"%b"' % code in body
    assert b"connection: close" in head
    assert (await chat(gateway)).status == 200


async def test_an_unsupported_upgrade_is_an_ordinary_request(gateway: InProcessGateway) -> None:
    """H20: some clients offer h2c or websockets with a request that must still be answered."""
    body = b'{"model":"main","messages":[{"role":"user","content":"x"}]}'
    for upgrade in (b"h2c", b"websocket"):
        head, _ = await raw(
            gateway,
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n"
            b"Connection: Upgrade, close\r\nUpgrade: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (gateway.key.encode(), upgrade, len(body), body),
        )
        assert head.startswith(b"HTTP/1.1 200"), head


async def test_a_connection_without_a_request_is_closed(gateway: InProcessGateway) -> None:
    """L11, L21: whether it sends nothing or sends its headers byte by byte."""
    gateway.server.times = HttpTimes(head=0.1)
    head, _ = await raw(gateway, b"")
    assert head == b""
    with anyio.fail_after(WAIT):
        async with await anyio.connect_tcp("127.0.0.1", int(gateway.url.rpartition(":")[2])) as stream:
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                while True:
                    await stream.send(b"G")
                    with anyio.move_on_after(0.02):
                        await stream.receive()


async def test_a_body_that_stops_arriving_is_refused(gateway: InProcessGateway) -> None:
    """L21: 408, and none of it is kept."""
    gateway.app.bodies.seconds = 0.1
    head, body = await raw(
        gateway,
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nContent-Length: 500\r\n"
        b"Connection: close\r\n\r\n{" % gateway.key.encode(),
    )
    assert head.startswith(b"HTTP/1.1 408")
    assert b"body_timeout" in body


async def test_large_bodies_that_arrive_together_are_bounded(home: Path, model: ScriptedModel) -> None:
    """L21, L22: bodies being received are counted; beyond the budget a client is told to retry."""
    async with in_process_gateway(home, "[limits]\nbody_bytes = 131072\nmessage_bytes = 65536", model=model) as h:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n" % h.key.encode()
        streams: list[anyio.abc.SocketStream] = []
        bodies = h.app.bodies
        with anyio.fail_after(WAIT):
            for _ in range(4):
                stream = await anyio.connect_tcp("127.0.0.1", int(h.url.rpartition(":")[2]))
                streams.append(stream)
                await stream.send(head + b"Content-Length: 131072\r\n\r\n" + b"x" * 131000)
                while bodies.held < 131000 * len(streams):
                    await anyio.sleep(0.005)
            refused = await call(h, "POST", CHAT, data=b"x" * 131000)
            assert refused.status == 429
            assert refused.error["code"] == "bodies_busy"
            assert (await chat(h)).status == 200
            for stream in streams:
                await stream.aclose()
            while bodies.held:
                await anyio.sleep(0.005)


@pytest.mark.parametrize("path", [CHAT, "/api/messages"])
async def test_large_bodies_that_wait_for_the_store_are_bounded(home: Path, model: ScriptedModel, path: str) -> None:
    """L21, L22: bodies that are received and not yet durable are counted too; beyond the budget a client is told to
    retry."""
    size = 1024 * 1024
    free = threading.Event()

    def fault(point: str, names: tuple[str, ...]) -> None:
        if point == "before-write" and "admit" in names:
            assert free.wait(WAIT)

    text = "x" * (size - 200)
    body = chat_body(text) if path == CHAT else {"text": text}
    limits = f"[limits]\nbody_bytes = {size}\nmessage_bytes = {size}"
    replies: list[Reply] = []
    async with in_process_gateway(home, limits, model=model, fault=fault) as h:
        bodies = h.app.bodies
        try:
            with anyio.fail_after(WAIT):
                assert (await call(h, "GET", "/api/sessions")).status == 200  # the key is known from now on
                async with anyio.create_task_group() as group:
                    for number in range(10):
                        group.start_soon(_say, h, path, body, number, replies)
                    while len(replies) < 6 or h.store.stats().writes_waiting < BODIES_AT_ONCE:
                        await anyio.sleep(0.005)
                        assert bodies.held <= BODIES_AT_ONCE * size
                    assert h.store.stats().writes_waiting == BODIES_AT_ONCE
                    assert bodies.held > (BODIES_AT_ONCE - 1) * size
                    free.set()
        finally:
            free.set()
        assert sorted(reply.status for reply in replies[6:]) == [200 if path == CHAT else 202] * BODIES_AT_ONCE
        for refused in replies[:6]:
            assert refused.status == 429
            assert refused.error["code"] == "bodies_busy"
            assert "limits.body_bytes" in refused.error["message"] and str(4 * size) in refused.error["message"]
            assert int(refused.headers["Retry-After"]) >= 1
        assert bodies.held == 0


async def _say(h: InProcessGateway, path: str, body: Any, number: int, replies: list[Reply]) -> None:
    headers = {"X-Session-Id": f"n{number}"} if path == CHAT else {}
    replies.append(await call(h, "POST", path, json=body, headers=headers))


async def test_a_refused_large_body_is_no_longer_counted(home: Path, model: ScriptedModel) -> None:
    """L21, L23: whatever the reason of the refusal."""
    async with in_process_gateway(home, "[limits]\nbody_bytes = 262144\nmessage_bytes = 131072", model=model) as h:
        for data in (
            b"x" * 200_000,
            msgspec.json.encode(chat_body("x" * 200_000)),
            msgspec.json.encode({"text": [0] * 99_999}),
        ):
            for path in (CHAT, "/api/messages"):
                assert (await call(h, "POST", path, data=data)).status in (400, 413)
                assert h.app.bodies.held == 0


async def test_a_client_that_stops_reading_is_dropped(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """L21, L31: when its buffers stay full; the turn itself continues."""
    gateway.server.times = HttpTimes(stall=0.2)
    body = b'{"model":"main","stream":true,"messages":[{"role":"user","content":"x [words 100000]"}]}'
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    with anyio.fail_after(WAIT), sock:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", int(gateway.url.rpartition(":")[2])))
        await loop.sock_sendall(
            sock,
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nX-Session-Id: n\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (gateway.key.encode(), len(body), body),
        )
        while not gateway.app.streams.open:
            await anyio.sleep(0.01)
        while gateway.app.streams.open:
            await anyio.sleep(0.01)
        while gateway.service.census()["turns_running"]:
            await anyio.sleep(0.01)
    assert gateway.service.status().turns.answered == 1


async def test_a_client_that_does_not_read_the_rest_is_dropped(gateway: InProcessGateway) -> None:
    """L11, L21: even when the answer is complete and the rest would not fill the buffers."""
    gateway.server.times = HttpTimes(stall=0.2)
    gateway.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    body = b'{"model":"main","messages":[{"role":"user","content":"x [words 9000]"}]}'
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    with anyio.fail_after(WAIT), sock:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", int(gateway.url.rpartition(":")[2])))
        await loop.sock_sendall(
            sock,
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (gateway.key.encode(), len(body), body),
        )
        while not gateway.service.status().turns.answered:
            await anyio.sleep(0.01)
        while gateway.server.connections:
            await anyio.sleep(0.01)
    assert gateway.service.status().turns.answered == 1


async def test_running_answers_are_finished_when_the_server_stops(home: Path, model: ScriptedModel) -> None:
    """F1: no new connections and requests; running requests get their answers, event streams end."""
    replies: list[Any] = []
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group, in_process_gateway(home, model=model) as h:

            async def ask() -> None:
                replies.append(await chat(h, "x [words 5] [hold there]", session="n", stream=True))

            group.start_soon(ask)
            await model.held("there")
            [view] = (await call(h, "GET", "/api/sessions")).json["sessions"]
            async with h.client.get(f"/api/sessions/{view['id']}/events") as events:
                await events.content.readline()
                h.server.stop_intake()
                assert (await events.content.read()).endswith(b": the gateway is stopping\n\n")
            with pytest.raises(OSError):
                await anyio.connect_tcp("127.0.0.1", int(h.url.rpartition(":")[2]))
            model.release("there")
            while not replies:
                await anyio.sleep(0.005)
    [reply] = replies
    assert reply.streamed.split()[-1] == "w4"
    assert reply.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_cannot_finish_before_the_stop_gets_an_error(
    home: Path, model: ScriptedModel, stream: bool
) -> None:
    """F1, H20: 503 with a retry time; the turn continues after the next start and its answer is available."""
    replies: list[Reply] = []
    headers = {"X-Session-Id": "n"}
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            async with in_process_gateway(home, model=model, drain=0.05) as h:
                body = chat_body("x [tool clock {}] [hold there step=1]", stream=stream)
                group.start_soon(_ask, h, body, headers, replies)
                await model.held("there")
            assert len(replies) == 1
        [reply] = replies
        if stream:
            assert reply.chunks[-1]["error"]["code"] == "stopping"
        else:
            assert reply.status == 503
            assert reply.error["code"] == "stopping"
            assert int(reply.headers["Retry-After"]) >= 1
        model.release("there")
        async with in_process_gateway(home, model=model) as h:
            outcome = await h.service.wait(reply.headers["X-Turn-Id"])
            assert outcome.state == "answered"


async def _ask(h: InProcessGateway, body: Any, headers: dict[str, str], replies: list[Reply]) -> None:
    replies.append(await call(h, "POST", CHAT, json=body, headers=headers))


async def test_a_request_during_a_stop_gets_the_advice_to_retry(home: Path, model: ScriptedModel) -> None:
    """F1, H20: on a connection that is still open."""
    async with in_process_gateway(home, model=model) as h:
        assert (await chat(h)).status == 200
        h.app.stop()
        reply = await chat(h)
        assert reply.status == 503
        assert reply.error["code"] == "stopping"
        assert int(reply.headers["Retry-After"]) >= 1


async def test_connections_beyond_the_share_are_shed_idle_first(
    home: Path, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L11, L21: the connection that has been idle longest is closed for a new one; recently used ones are kept."""
    async with in_process_gateway(home, model=model) as h:
        monkeypatch.setattr(h.server, "_most", 2)
        h.server.times = HttpTimes(idle=0)
        ask = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        port = int(h.url.rpartition(":")[2])
        with anyio.fail_after(WAIT):
            async with (
                await anyio.connect_tcp("127.0.0.1", port) as first,
                await anyio.connect_tcp("127.0.0.1", port) as second,
            ):
                for stream in (first, second):
                    await stream.send(ask)
                    assert b" 200 " in await stream.receive()
                async with await anyio.connect_tcp("127.0.0.1", port) as third:
                    await third.send(ask)
                    assert b" 200 " in await third.receive()
                    with pytest.raises(anyio.EndOfStream):
                        await first.receive()
                    await second.send(ask)
                    assert b" 200 " in await second.receive()
                    assert h.server.connections == 2


async def test_small_pieces_of_a_stream_are_sent_immediately(gateway: InProcessGateway) -> None:
    """H11: no piece waits for the acknowledgement of the previous one."""
    assert (await chat(gateway, stream=True)).status == 200
    accepted = accepted_connections(gateway.socket.getsockname())
    assert accepted
    for sock in accepted:
        with sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def accepted_connections(address: tuple[str, int]) -> list[socket.socket]:
    """Copies of the sockets of this process that were accepted at this address."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if not str(descriptor.readlink()).startswith("socket:"):
                continue
            sock = socket.socket(fileno=os.dup(int(descriptor.name)))
            with contextlib.suppress(OSError):
                if sock.getsockname() == address and sock.getpeername():
                    found.append(sock)
                    continue
            sock.close()
    return found
