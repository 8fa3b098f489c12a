"""Compares HTTP clients in the gateway's own use: many streams of small pieces, short answers, and failures.

    python -m bench.http_clients [--client NAME …] [--repeats N]

Each case of each client runs in a process of its own, against a server that sends canned bytes in another process, over
plain HTTP and over TLS. Reports the CPU time of the client's process (user and system) and its memory. The clients are
`gateway` (the package that the gateway uses), `aiohttp` used plainly, and `httpx2` and `pyreqwest` if they are
installed.
"""

import argparse
import asyncio
import importlib
import json
import os
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"%s"}]}' % (b"word " * 40)
PIECE = b'data: {"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LINE_BYTES = 8 * 1024 * 1024
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer some-key", "Accept-Encoding": "identity"}

# name: (path, requests, at once, pieces per request or 0 to count requests)
CASES: dict[str, tuple[str, int, int, int]] = {
    "streams": ("/pieces/100/10", 192, 64, 100),
    "calls": ("/pieces/3/0", 2000, 16, 0),
    "cancelled": ("/endless", 1000, 16, 0),
    "cut": ("/cut", 1000, 16, 0),
    "slow bytes": ("/bytes/500", 128, 64, 500),
    "huge line": ("/line", 8, 1, 0),
}
UNITS = {"streams": "µs a piece", "slow bytes": "µs a byte", "huge line": "ms a line of 8 MiB"}

Ask = Callable[[str], AbstractAsyncContextManager[AsyncIterator[bytes]]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# -- the server --


async def answer(path: str, writer: asyncio.StreamWriter) -> None:
    kind, *numbers = path.strip("/").split("/")
    if kind == "pieces":
        count, pace = int(numbers[0]), int(numbers[1]) / 1000
        writer.write(HEAD)
        for _ in range(count):
            writer.write(chunk(PIECE))
            if pace:
                await asyncio.sleep(pace)
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    elif kind == "bytes":
        writer.write(HEAD)
        for _ in range(int(numbers[0])):
            writer.write(chunk(b"x"))
            await asyncio.sleep(0.004)
        writer.write(b"0\r\n\r\n")
    elif kind == "cut":
        writer.write(HEAD + chunk(PIECE))
        await writer.drain()
        raise ConnectionError
    elif kind == "endless":
        writer.write(HEAD)
        for _ in range(10_000):
            writer.write(chunk(PIECE))
            await writer.drain()
            await asyncio.sleep(0.02)
    else:
        writer.write(HEAD)
        line = b"data: " + b"x" * LINE_BYTES + b"\n\n"
        for start in range(0, len(line), 16 * 1024):
            writer.write(chunk(line[start : start + 16 * 1024]))
            await writer.drain()
        writer.write(b"0\r\n\r\n")


async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].split()[0]
            await reader.readexactly(int(length))
            await answer(head.split(b" ", 2)[1].decode(), writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve(folder: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "server.pem", folder / "server.key")
    plain = await asyncio.start_server(connected, "127.0.0.1", 0)
    secure = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    print(*(server.sockets[0].getsockname()[1] for server in (plain, secure)), flush=True)
    await asyncio.Event().wait()


# -- the clients --


@asynccontextmanager
async def gateway_client(ca: str) -> AsyncIterator[Ask]:
    """The client of the gateway itself, as its models use it."""
    from tidegate.http_client import HttpClient, Target, Timeouts

    waits = Timeouts(connect=10, first_byte=60, idle=60)
    async with HttpClient() as clients:

        @asynccontextmanager
        async def ask(url: str) -> AsyncIterator[AsyncIterator[bytes]]:
            response = await clients.request(Target("POST", url, HEADERS), (BODY,), waits)
            try:

                async def pieces() -> AsyncIterator[bytes]:
                    while piece := await response.read():
                        yield piece

                yield pieces()
            finally:
                response.close()

        yield ask


@asynccontextmanager
async def aiohttp_client(ca: str) -> AsyncIterator[Ask]:
    import aiohttp

    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca), limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        @asynccontextmanager
        async def ask(url: str) -> AsyncIterator[AsyncIterator[bytes]]:
            async with session.post(url, data=BODY, headers=HEADERS) as response:
                yield response.content.iter_any()

        yield ask


@asynccontextmanager
async def httpx2_client(ca: str) -> AsyncIterator[Ask]:
    import httpx2

    limits = httpx2.Limits(max_connections=None)
    context = ssl.create_default_context(cafile=ca)
    async with httpx2.AsyncClient(verify=context, timeout=60, limits=limits, trust_env=False) as client:

        @asynccontextmanager
        async def ask(url: str) -> AsyncIterator[AsyncIterator[bytes]]:
            async with client.stream("POST", url, content=BODY, headers=HEADERS) as response:
                yield response.aiter_raw()

        yield ask


@asynccontextmanager
async def pyreqwest_client(ca: str) -> AsyncIterator[Ask]:
    from datetime import timedelta

    from pyreqwest.client import ClientBuilder

    builder = ClientBuilder().add_root_certificate_pem(Path(ca).read_bytes()).timeout(timedelta(seconds=60))
    async with builder.build() as client:

        @asynccontextmanager
        async def ask(url: str) -> AsyncIterator[AsyncIterator[bytes]]:
            request = client.post(url).headers(HEADERS).body_bytes(BODY).build_streamed()
            async with request as response:

                async def pieces() -> AsyncIterator[bytes]:
                    while (piece := await response.body_reader.read_chunk()) is not None:
                        yield bytes(piece)

                yield pieces()

        yield ask


CLIENTS: dict[str, tuple[Callable[[str], AbstractAsyncContextManager[Ask]], str]] = {
    "gateway": (gateway_client, "tidegate.http_client.pool"),
    "aiohttp": (aiohttp_client, "aiohttp"),
    "httpx2": (httpx2_client, "httpx2"),
    "pyreqwest": (pyreqwest_client, "pyreqwest.client"),
}


# -- one case in one process --


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rss() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def run(client: str, case: str, url: str, ca: str) -> dict[str, float]:
    path, requests, at_once, pieces = CASES[case]
    before = rss()
    importlib.import_module(CLIENTS[client][1])
    imported = rss() - before
    async with CLIENTS[client][0](ca) as ask:

        async def one(index: int) -> None:
            try:
                async with ask(url + path) as body:
                    async for _ in body:
                        if case == "cancelled":
                            raise asyncio.CancelledError
            except asyncio.CancelledError:
                if case != "cancelled":
                    raise
            except Exception:
                if case != "cut":
                    raise
            else:
                if case == "cut":
                    raise AssertionError("the cut was not noticed")

        async def worker(numbers: Any) -> None:
            for number in numbers:
                await one(number)

        await asyncio.gather(*(worker(range(1)) for _ in range(at_once)))
        start, began = cpu(), time.perf_counter()
        await asyncio.gather(*(worker(range(number, requests, at_once)) for number in range(at_once)))
        used, took = cpu() - start, time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"cpu": used / (requests * (pieces or 1)), "imported": imported, "peak": peak, "took": took}


# -- all of them --


def certificates(folder: Path) -> None:
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    command = ["openssl", "req", "-x509", *key, "-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    command += ["-keyout", str(folder / "server.key"), "-out", str(folder / "server.pem")]
    subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.http_clients")
    parser.add_argument("--client", action="append", choices=sorted(CLIENTS))
    parser.add_argument("--case", action="append", choices=sorted(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=4, metavar=("CLIENT", "CASE", "URL", "CA"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
    elif options.one:
        print(json.dumps(asyncio.run(run(*options.one))))
    else:
        compare(options.client or list(CLIENTS), options.case or list(CASES), options.repeats)


def compare(clients: list[str], cases: list[str], repeats: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates(folder)
        command = [sys.executable, "-m", "bench.http_clients"]
        with subprocess.Popen([*command, "--serve", name], stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                plain, secure = server.stdout.readline().split()
                urls = {"HTTP": f"http://127.0.0.1:{plain}", "TLS": f"https://127.0.0.1:{secure}"}
                environment = {**os.environ, "SSL_CERT_FILE": str(folder / "server.pem")}
                print("| case | " + " | ".join(clients) + " |\n|---|" + "---|" * len(clients))
                for case in cases:
                    for over, url in urls.items():
                        taken: dict[str, list[dict[str, float]]] = {client: [] for client in clients}
                        for repeat in range(repeats):
                            for client in clients[:: -1 if repeat % 2 else 1]:
                                one = [*command, "--one", client, case, url, str(folder / "server.pem")]
                                ran = subprocess.run(one, capture_output=True, text=True, env=environment)
                                if ran.returncode == 0:
                                    taken[client].append(json.loads(ran.stdout))
                                elif not taken[client]:
                                    print(f"{client}: {ran.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
                        cells = [cell(case, taken[client]) for client in clients]
                        print(
                            f"| {case}, {over} ({UNITS.get(case, 'µs a call')}; peak RSS) | {' | '.join(cells)} |",
                            flush=True,
                        )
            finally:
                server.terminate()


def cell(case: str, runs: list[dict[str, float]]) -> str:
    if not runs:
        return "–"
    scale = 1e3 if case == "huge line" else 1e6
    costs = sorted(run["cpu"] * scale for run in runs)
    peak = statistics.median(run["peak"] for run in runs)
    return f"{costs[len(costs) // 2]:.0f} ({costs[0]:.0f}–{costs[-1]:.0f}); {peak:.0f} MB"


if __name__ == "__main__":
    main()
