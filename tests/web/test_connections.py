"""HTTP connections: early responses, half-closed connections, HTTP/1.0 clients."""

import asyncio
import json
import shutil
import socket
import ssl
from pathlib import Path

import anyio
import anyio.abc
import pytest

from bench.scripted_model import ScriptedModel
from tests.in_process import WAIT, InProcessGateway, in_process_gateway
from tests.web.client import call, chat_body, raw
from tidegate.web.http1.protocol import HttpTimes

pytestmark = pytest.mark.anyio

UPLOAD = 20 * 1024 * 1024
STREAMED = [False, True]


async def connect(h: InProcessGateway) -> anyio.abc.SocketStream:
    return await anyio.connect_tcp("127.0.0.1", int(h.url.rpartition(":")[2]))


def request(
    h: InProcessGateway, text: str = "hello", *, version: str = "1.1", headers: str = "", stream: bool = False
) -> bytes:
    """A complete chat request as bytes."""
    body = json.dumps(chat_body(text, stream=stream)).encode()
    head = f"POST /v1/chat/completions HTTP/{version}\r\nHost: x\r\nAuthorization: Bearer {h.key}\r\n{headers}"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def upload(h: InProcessGateway, *, key: str, length: bool) -> bytes:
    """The head of an upload with `Connection: close`."""
    size = f"Content-Length: {UPLOAD}" if length else "Transfer-Encoding: chunked"
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n{size}"
        "\r\n\r\n"
    ).encode()


async def rest(stream: anyio.abc.SocketStream) -> bytes:
    """Read until the gateway hangs up."""
    data = b""
    try:
        while True:
            data += await stream.receive()
    except anyio.EndOfStream:
        return data


# -- requests that two readers could take in two ways ------------------------------------------------------------------

LOGIN = b"POST /api/login HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"2\r\n{}\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET /healthz HTTP/1.1\r\n\r\n", "invalid_host"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n", "invalid_host"),
        (b"GET /healthz HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n", "invalid_host"),
        (b"GET /healthz HTTP/1.1\r\nHost: a b\r\n\r\n", "invalid_host"),
        (b"GET /healthz HTTP/1.1\r\nHost: a/b\r\n\r\n", "invalid_host"),
        (b"GET /healthz HTTP/1.1\r\nHost: u@a\r\n\r\n", "invalid_host"),
        (b"GET /healthz HTTP/1.1\r\nHost: a:b\r\n\r\n", "invalid_host"),
        (b"GET /healthz HTTP/1.1\r\nHost:\r\n\r\n", "invalid_host"),
        (b"GET http://y/healthz HTTP/1.1\r\nHost: x\r\n\r\n", "invalid_host"),
        (b"GET http://u@x/healthz HTTP/1.1\r\nHost: x\r\n\r\n", "invalid_host"),
        (b"GET ftp://x/healthz HTTP/1.1\r\nHost: x\r\n\r\n", "invalid_host"),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n", "invalid_host"),
        (LOGIN + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "invalid_http"),
        (LOGIN + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "invalid_http"),
        (LOGIN + b"Content-Length: 2, 2\r\n\r\n{}", "invalid_http"),
        (LOGIN + b"Content-Length: +2\r\n\r\n{}", "invalid_http"),
        (LOGIN + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED, "invalid_http"),
        (LOGIN + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n" + CHUNKED, "invalid_http"),
        (LOGIN + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKED, "invalid_http"),
        (LOGIN + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED, "invalid_http"),
        (LOGIN.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED, "invalid_http"),
        (LOGIN + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n", "invalid_http"),
        (b"GET /healthz HTTP/1.1\nHost: x\n\n", "invalid_http"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", "invalid_http"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n", "invalid_http"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", "invalid_http"),
        (b"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n", "invalid_http"),
        (b"GET /healthz\r\n\r\n", "invalid_http"),
        (b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n", "invalid_http"),
    ],
    ids=lambda value: repr(value)[-40:],
)
async def test_an_ambiguous_request_is_refused_and_its_connection_closed(
    gateway: InProcessGateway, sent: bytes, code: str
) -> None:
    """H20: 400 in OpenAI's format: no host, two hosts, an invalid one, two lengths, invalid line endings."""
    head, body = await raw(gateway, sent)
    assert head.startswith(b"HTTP/1.1 400 "), head
    assert b"\r\nconnection: close" in head.lower()
    assert b"\r\nx-request-id: req_" in head.lower()
    error = json.loads(body)["error"]
    assert error["code"] == code
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz HTTP/1.0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: [::1]:8420\r\nConnection: close\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: my_box.example:80\r\nConnection: close\r\n\r\n",
        b"GET http://X:1/healthz HTTP/1.1\r\nHost: x:1\r\nConnection: close\r\n\r\n",
    ],
)
async def test_every_valid_form_of_a_host_is_accepted(gateway: InProcessGateway, sent: bytes) -> None:
    """H20: HTTP/1.0 does not need one; an absolute URL must have the same host."""
    head, body = await raw(gateway, sent)
    assert head.startswith(b"HTTP/1.1 200 "), head
    assert json.loads(body) == {"status": "ok"}


async def test_a_refusal_waits_for_the_answers_to_the_requests_before_it(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H20: a client matches responses to requests by their order, so none may overtake another."""
    with anyio.fail_after(WAIT):
        async with await connect(gateway) as wire:
            await wire.send(request(gateway, "one [hold there] [say whole]") + b"GET / HTTP/1.1\r\n\r\n")
            await model.held("there")
            model.release("there")
            answers = await rest(wire)
    first, _, second = answers.partition(b"HTTP/1.1 400 ")
    assert first.startswith(b"HTTP/1.1 200 ") and b"whole" in first
    assert b"invalid_host" in second


# -- an answer before the request has arrived --------------------------------------------------------------------------


@pytest.mark.parametrize(("known", "status"), [(True, b"413"), (False, b"401")])
async def test_a_client_that_sends_everything_first_still_reads_an_early_refusal(
    gateway: InProcessGateway, known: bool, status: bytes
) -> None:
    """H20, H21: with Connection: close; the rest of the request is read and discarded, so that no reset destroys the
    response."""
    with anyio.fail_after(WAIT):
        for _ in range(3):
            async with await connect(gateway) as stream:
                await stream.send(upload(gateway, key=gateway.key if known else "no", length=True))
                await stream.send(b"x" * UPLOAD)
                answer = await rest(stream)
            assert answer.split(b" ")[1] == status, answer
            assert b"connection: close" in answer
            assert answer.endswith(b"}}")


async def test_an_upload_without_a_length_that_turns_out_too_large_is_refused_readably(
    home: Path, model: ScriptedModel
) -> None:
    """H20: 413 in the middle of the upload."""
    async with in_process_gateway(home, "[limits]\nbody_bytes = 8192\nmessage_bytes = 2048", model=model) as h:
        with anyio.fail_after(WAIT):
            async with await connect(h) as stream:
                await stream.send(upload(h, key=h.key, length=False))
                piece = b"x" * 65536
                for _ in range(UPLOAD // len(piece)):
                    await stream.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                await stream.send(b"0\r\n\r\n")
                answer = await rest(stream)
        assert answer.split(b" ")[1] == b"413"
        assert b"limits.body_bytes" in answer


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
async def test_an_early_refusal_is_readable_over_tls_too(home: Path, model: ScriptedModel) -> None:
    """H20, H21: TLS has no half-close, so the response's length marks its end."""
    home.mkdir(mode=0o700)
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    await anyio.run_process([*made, "-keyout", str(home / "key.pem"), "-out", str(home / "cert.pem")])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(home / "cert.pem")
    async with in_process_gateway(home, '[server]\ntls_cert = "cert.pem"\ntls_key = "key.pem"', model=model) as h:
        port = int(h.url.rpartition(":")[2])
        with anyio.fail_after(WAIT):
            async with await anyio.connect_tcp("127.0.0.1", port, ssl_context=context, tls_hostname="localhost") as tls:
                await tls.send(upload(h, key="no", length=True) + b"x" * UPLOAD)
                answer = b""
                while not answer.endswith(b"}}"):
                    answer += await tls.receive()
            assert answer.split(b" ")[1] == b"401"
            while h.server.connections:
                await anyio.sleep(0.005)


async def test_endless_headers_are_refused_readably(gateway: InProcessGateway) -> None:
    """H20, L21: 431, however much the client sends."""
    with anyio.fail_after(WAIT):
        async with await connect(gateway) as stream:
            await stream.send(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * UPLOAD)
            answer = await rest(stream)
    assert answer.split(b" ")[1] == b"431"


async def test_the_rest_of_a_request_after_an_early_response_is_bounded_in_bytes(gateway: InProcessGateway) -> None:
    """L21: a client that sends forever is cut off."""
    with anyio.fail_after(WAIT):
        async with await connect(gateway) as stream:
            await stream.send(upload(gateway, key="no", length=False))
            with pytest.raises(anyio.BrokenResourceError):
                while True:
                    await stream.send(b"x" * 65536)
        while gateway.server.connections:
            await anyio.sleep(0.005)


async def test_the_rest_of_a_request_after_an_early_response_is_bounded_in_time(
    gateway: InProcessGateway,
) -> None:
    """L11, L21: a client that neither sends nor hangs up is dropped."""
    gateway.server.times = HttpTimes(linger=0.1)
    with anyio.fail_after(WAIT):
        async with await connect(gateway) as stream:
            await stream.send(upload(gateway, key="no", length=True))
            assert b"401" in await rest(stream)
            while gateway.server.connections:
                await anyio.sleep(0.005)


async def test_a_lingering_connection_does_not_delay_the_stop(home: Path, model: ScriptedModel) -> None:
    """F1: no connection is left when the server has stopped."""
    with anyio.fail_after(WAIT):
        async with in_process_gateway(home, model=model) as h:
            stream = await connect(h)
            await stream.send(upload(h, key="no", length=True))
            assert b"401" in await rest(stream)
            assert h.server.connections == 1
        assert h.server.connections == 0
        await stream.aclose()


# -- a client that says that it will send no more ----------------------------------------------------------------------


@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("headers", ["", "X-Session-Id: n\r\n"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_half_closed_connection_gets_its_answer(
    gateway: InProcessGateway, model: ScriptedModel, stream: bool, headers: str, version: str
) -> None:
    """H15, H16: only a client that hangs up completely has left; the answer is complete, then the gateway hangs up
    too."""
    with anyio.fail_after(WAIT):
        async with await connect(gateway) as wire:
            text = "one [hold there] [say whole]"
            await wire.send(request(gateway, text, version=version, headers=headers, stream=stream))
            await wire.send_eof()
            await model.held("there")
            answer = await wire.receive()  # the gateway has seen the end, and its first bytes ask whether we are there
            model.release("there")
            answer += await rest(wire)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n"), answer
    assert head.count(b"HTTP/") == 1
    assert b"whole" in body
    if stream and version == "1.1":
        assert unchunked(body).endswith(b"data: [DONE]\n\n")
    assert gateway.service.status().turns.answered == 1


async def test_a_stream_continues_after_its_reader_half_closes(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H16: even when it has already begun."""
    with anyio.fail_after(WAIT):
        async with await connect(gateway) as wire:
            await wire.send(request(gateway, "one [words 5] [tool clock {}] [hold there step=1]", stream=True))
            answer = await wire.receive()
            await model.held("there")
            await wire.send_eof()
            while not answer.endswith(b"\r\n0"):
                answer += await wire.receive()
            model.release("there")
            answer += await rest(wire)
    _, _, body = answer.partition(b"\r\n\r\n")
    assert unchunked(body).endswith(b"data: [DONE]\n\n")


def unchunked(body: bytes) -> bytes:
    """The content of a chunked body, which must be complete."""
    found = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            assert body == b"\r\n"
            return found
        assert body[length : length + 2] == b"\r\n"
        found, body = found + body[:length], body[length + 2 :]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_hangs_up_has_left_however_it_does_so(
    gateway: InProcessGateway, model: ScriptedModel, begun: bool
) -> None:
    """H16: first its sending side, then the other; before the response has begun and in the middle of it."""
    text = "one [tool clock {}] [hold there step=1]" if begun else "one [hold there]"
    with anyio.fail_after(WAIT):
        async with await connect(gateway) as wire:
            await wire.send(request(gateway, text, stream=True))
            if begun:
                await wire.receive()
            await model.held("there")
            await wire.send_eof()
        while gateway.service.census()["turns_running"]:
            await anyio.sleep(0.005)
    assert gateway.service.status().turns.stopped == 1
    with anyio.fail_after(WAIT):
        while gateway.server.connections:
            await anyio.sleep(0.005)


async def test_an_incomplete_request_is_not_processed(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """L11: nothing more can arrive; the connection is closed and nothing runs."""
    whole = request(gateway)
    with anyio.fail_after(WAIT):
        for cut in (20, len(whole) - 5):
            async with await connect(gateway) as wire:
                await wire.send(whole[:cut])
                await wire.send_eof()
                assert await rest(wire) == b""
        while gateway.server.connections:
            await anyio.sleep(0.005)
    assert not model.recorded


async def test_a_reset_connection_is_a_reader_that_left(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H16: it counts as a disconnect."""
    with anyio.fail_after(WAIT):
        sock = socket.socket()
        sock.setblocking(False)
        with sock:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", int(gateway.url.rpartition(":")[2])))
            await loop.sock_sendall(sock, request(gateway, "one [hold there]"))
            await model.held("there")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        while gateway.service.census()["turns_running"]:
            await anyio.sleep(0.005)
    assert gateway.service.status().turns.stopped == 1


# -- HTTP/1.0 ----------------------------------------------------------------------------------------------------------


async def test_a_stream_over_http_1_0_is_not_chunked_and_ends_with_the_connection(gateway: InProcessGateway) -> None:
    """H10, H11: HTTP/1.0 clients do not know chunks."""
    with anyio.fail_after(WAIT):
        async with await connect(gateway) as wire:
            await wire.send(request(gateway, "x [words 50]", version="1.0", stream=True))
            head, _, body = (await rest(wire)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"transfer-encoding" not in head and b"content-length" not in head
    assert b"connection: close" in head
    assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n")
    assert all(block.startswith((b"data: ", b": ")) for block in body.split(b"\n\n")[:-1])


async def test_a_complete_response_over_http_1_0_has_a_length(gateway: InProcessGateway) -> None:
    """H10: an error too."""
    with anyio.fail_after(WAIT):
        for headers, status in (("", b"200"), ("X-Busy: never\r\n", b"400")):
            async with await connect(gateway) as wire:
                await wire.send(request(gateway, version="1.0", headers=headers))
                head, _, body = (await rest(wire)).partition(b"\r\n\r\n")
            assert head.split(b" ")[1] == status
            assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
            assert json.loads(body)


async def test_an_export_over_http_1_0_is_not_chunked(gateway: InProcessGateway) -> None:
    """H10: like every streamed response."""
    await gateway.chat("hello", "n")
    [view] = (await call(gateway, "GET", "/api/sessions")).json["sessions"]
    head = f"GET /api/sessions/{view['id']}/export HTTP/1.0\r\nAuthorization: Bearer {gateway.key}\r\n\r\n"
    with anyio.fail_after(WAIT):
        async with await connect(gateway) as wire:
            await wire.send(head.encode())
            answered, _, body = (await rest(wire)).partition(b"\r\n\r\n")
    assert answered.startswith(b"HTTP/1.1 200") and b"transfer-encoding" not in answered
    assert [json.loads(line) for line in body.splitlines()]
