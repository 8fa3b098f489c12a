"""A server that answers every request with bytes given by the test, for responses that no real server makes on
purpose."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from bench.scripted_model import ScriptedModel

Answering = Callable[[asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WAIT = 20.0


@asynccontextmanager
async def answering(answer: Answering) -> AsyncIterator[str]:
    """The base URL of a server that sends these bytes once on each connection and then closes it."""
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await asyncio.wait_for(_request(reader), WAIT)
            await answer(writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client may have left
        finally:
            writer.close()
            serving.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        for task in tuple(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await server.wait_closed()


async def _request(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.partition(b":")[2]))


def pieces(data: bytes, size: int) -> Iterable[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


async def spoken(server: ScriptedModel) -> bytes:
    """All bytes that the scripted server sends in response to the request that it recorded last."""
    asked = server.recorded[-1]
    host, _, port = server.root.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    headers = {**asked.headers, "connection": "close"}
    lines = [f"POST {asked.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    writer.write("\r\n".join(lines).encode() + asked.body)
    said = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), WAIT)
    writer.close()
    return said
