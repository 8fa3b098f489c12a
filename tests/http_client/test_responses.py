"""What a server can do to a response: unsolicited bytes, resets, compression, redirects, endless framing."""

import asyncio
import gzip
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from tests.http_client.test_connection import CHUNKED, OK, WAIT, WAITS, Wire, ask, read_body, until_open
from tests.models.raw_server import HEAD, answering
from tests.models.support import ask as said
from tests.models.support import configured
from tidegate.errors import ModelFailed
from tidegate.http_client import ConnectionFailed, HttpClient, Target, Timeouts

pytestmark = pytest.mark.anyio

THREE = OK + b"Content-Length: 3\r\n\r\n"


async def test_a_response_that_nobody_asked_for_is_not_taken_for_the_next_one() -> None:
    """L11: it arrives on an idle connection, which is then not used again."""
    wire = Wire(THREE + b"abc", THREE + b"def", THREE + b"ghi")
    async with wire.serve() as origin, HttpClient() as client:
        assert await read_body(await ask(client, origin)) == b"abc"
        wire.streams[0].write(THREE + b"bad")
        await wire.streams[0].drain()
        loop = asyncio.get_running_loop()
        until = loop.time() + 0.2
        while loop.time() < until:
            await anyio.lowlevel.checkpoint()
        assert await read_body(await ask(client, origin)) == b"def"
        assert wire.accepted == 2
        await until_open(client, 1)


@pytest.mark.parametrize("reused", [False, True])
async def test_a_reset_before_the_first_byte_is_sent_again_only_on_a_reused_connection(reused: bool) -> None:
    """L11: a new connection that is reset may have processed the request: the caller decides about a retry."""
    asked: list[bytes] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked.append(await reader.readuntil(b"{}"))
                if len(asked) != 1 + reused:
                    writer.write(THREE + b"abc")
                    continue
                link = writer.get_extra_info("socket")
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset instead of FIN
                break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, HttpClient() as client:
        if reused:
            assert await read_body(await ask(client, origin)) == b"abc"
            assert await read_body(await ask(client, origin)) == b"abc"
            assert len(asked) == 3
        else:
            with pytest.raises(ConnectionFailed) as caught:
                await ask(client, origin)
            assert (caught.value.trouble, len(asked)) == ("broken", 1)


async def test_a_redirect_is_not_followed_and_carries_no_key_to_another_host() -> None:
    """X22."""
    other = Wire(THREE + b"abc")
    async with other.serve() as elsewhere:
        wire = Wire(b"HTTP/1.1 307 Away\r\nLocation: %b/\r\nContent-Length: 0\r\n\r\n" % elsewhere.encode())
        async with wire.serve() as origin, HttpClient() as client:
            target = Target("POST", origin, {"Authorization": "Bearer key"})
            response = await client.request(target, [b"{}"], WAITS)
            assert response.status == 307
            await read_body(response)
    assert other.accepted == 0


async def test_no_cookie_is_kept() -> None:
    """X22."""
    cookie = OK + b"Set-Cookie: session=1\r\nContent-Length: 3\r\n\r\nabc"
    wire = Wire(cookie, cookie)
    async with wire.serve() as origin, HttpClient() as client:
        for _ in range(2):
            await read_body(await ask(client, origin))
    assert b"session" not in wire.heads[1]


async def test_a_client_is_left_at_once_while_a_server_reads_nothing() -> None:
    """L11: a long request is on its way, and a response has begun on another connection."""
    done = asyncio.Event()

    async def deaf(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    wire = Wire(CHUNKED + b"3\r\nabc\r\n", None)
    async with server, wire.serve() as origin:
        with anyio.fail_after(WAIT):
            async with HttpClient() as client:
                begun = await ask(client, origin)
                port = server.sockets[0].getsockname()[1]
                body = [b"x" * (32 << 20)]
                asking = asyncio.ensure_future(
                    client.request(Target("POST", f"http://127.0.0.1:{port}", {}), body, WAITS)
                )
                while client.stats().open < 2:
                    await anyio.lowlevel.checkpoint()
            with pytest.raises(ConnectionFailed):
                await asking
            with pytest.raises(ConnectionFailed):
                while await begun.read():
                    pass
        assert client.stats().busy == 0
        done.set()


@pytest.mark.parametrize("pieces", [1, 7])
async def test_a_compressed_answer_is_decoded_as_it_arrives(pieces: int) -> None:
    """Although no compression was requested: some gateways in between compress anyway."""
    text = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n'
    packed = gzip.compress(text)
    size = -(-len(packed) // pieces)

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"))
        for start in range(0, len(packed), size):
            part = packed[start : start + size]
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with answering(answer) as url, configured(url, retries=0) as model:
        assert (await said(model, "hello")).text == "hi"


@pytest.mark.parametrize("kind", [b"text/event-stream", b"application/json"])
async def test_a_decompression_bomb_is_refused_with_the_name_of_the_limit(kind: bytes) -> None:
    """A1: a few kilobytes of it are decoded, and the loop goes on meanwhile."""
    bomb = gzip.compress((b": still here\n\n" if b"event" in kind else b" ") * 10_000_000, 1)

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = HEAD.replace(b"text/event-stream", kind)
        writer.write(head.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"))
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(bomb), bomb))

    async with answering(answer) as url, configured(url, retries=0, answer_bytes=4096) as model:
        with pytest.raises(ModelFailed, match=r"limits\.answer_bytes"):
            await said(model, "hello")


async def test_an_error_with_an_invalid_compression_keeps_its_status() -> None:
    wire = Wire(b"HTTP/1.1 429 Slow\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\nabc", b"")
    async with wire.serve() as origin, HttpClient() as client:
        response = await ask(client, origin)
        assert response.status == 429
        with pytest.raises(ConnectionFailed, match="compression"):
            await response.read()
        await until_open(client, 0)


@asynccontextmanager
async def dripping(piece: bytes, pause: float) -> AsyncIterator[str]:
    """A server that sends the head of a response, and then a piece again and again."""
    stopped = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"{}")
            writer.write(CHUNKED)
            while not stopped.is_set():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        stopped.set()
        server.close()
        await server.wait_closed()


async def test_slow_bytes_are_not_silence() -> None:
    """L11: as long as they come more often than the timeout."""
    async with dripping(b"1\r\nx\r\n", 0.05) as origin, HttpClient() as client:
        response = await ask(client, origin, waits=Timeouts(WAIT, WAIT, 2.0))
        for _ in range(60):
            assert await response.read()
        response.close()
        assert client.stats().busy == 0


async def test_endless_interim_answers_do_not_extend_the_first_byte_timeout() -> None:
    """L11."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with answering(answer) as url, HttpClient() as client:
        with pytest.raises(ConnectionFailed) as caught:
            await client.request(Target("POST", url, {}), [b"{}"], Timeouts(WAIT, 0.3, WAIT))
        assert caught.value.trouble == "silent"


async def test_a_server_of_the_other_address_family_is_reached() -> None:
    """IPv6, by its address."""
    wire = Wire(THREE + b"abc")
    server = await asyncio.start_server(wire.connected, "::1", 0)
    async with server, HttpClient() as client:
        origin = f"http://[::1]:{server.sockets[0].getsockname()[1]}"
        assert await read_body(await ask(client, origin)) == b"abc"
        for stream in wire.streams:
            stream.close()


async def test_a_failed_response_keeps_nothing_of_its_reader() -> None:
    """A reader's frame holds its request: the library keeps the error, which must not hold the frame."""
    import gc
    import weakref

    class Large:
        pass

    wire = Wire(CHUNKED + b"3\r\nabc\r\n")
    async with wire.serve() as origin, HttpClient() as client:

        async def read(kept: list[weakref.ref[Large]]) -> None:
            large = Large()
            kept.append(weakref.ref(large))
            response = await ask(client, origin)
            with pytest.raises(ConnectionFailed):
                while await response.read():
                    pass

        kept: list[weakref.ref[Large]] = []
        gc.disable()
        try:
            await read(kept)
            await anyio.lowlevel.checkpoint()
        finally:
            gc.enable()
        gc.collect()
        assert kept[0]() is None
