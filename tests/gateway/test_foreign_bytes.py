"""Hostile web pages and bodies against a real gateway: while one caller's are read, another caller is answered."""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError

import pytest

from tests.gateway.process import GatewayProcess, gateway

ALLOWED = "127.0.0.2"
SETTINGS = f"""
[models.main]
api = "demo"
[agents.main]
model = "main"
tools = ["web"]
[web]
private = ["{ALLOWED}"]
"""

HALF_MIB = 512 * 1024
ATTEMPTS = 3
"""The machine may stop for a moment by itself, but not each time."""

STALL = 500
"""Times the usual turn: a gateway that decoded the first of these pages on its loop made it 9,000 times."""

PAGES = {
    "punycode": ("text/plain; charset=punycode", b"a-" + b"b" * HALF_MIB),
    "idna": ("text/plain; charset=idna", b"xn--" + b"b" * HALF_MIB),
    "undefined": ("text/plain; charset=undefined", b"b" * HALF_MIB),
    "utf-7": ("text/plain; charset=utf-7", b"+" * HALF_MIB),
    "unicode_escape": ("text/plain; charset=unicode_escape", b"\\N{" * (HALF_MIB // 3)),
    "page": ("text/html; charset=punycode", b"a-" + b"b" * HALF_MIB),
    "meta": ("text/html", b"<meta charset=punycode><p>a-" + b"b" * HALF_MIB),
    "parameters": ("text/plain; charset*=punycode''a", b"b" * HALF_MIB),
    "comments": ("text/plain " + "(" * 8000, b"b" * HALF_MIB),
    "digits": ("text/html", b"<title>&#" + b"9" * 5000 + b";</title><p>&#" + b"9" * HALF_MIB),
    "unclosed": ("text/html", b"<a" * (HALF_MIB // 32)),
}


@contextmanager
def site(content_type: str, page: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged."""

    with ThreadingHTTPServer((ALLOWED, 0), Handler) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://{ALLOWED}:{server.server_address[1]}/"
        finally:
            server.shutdown()
            serving.join()


def turn(running: GatewayProcess) -> float:
    began = time.monotonic()
    assert running.say("say here") == "here"
    return time.monotonic() - began


def longest_while(running: GatewayProcess, attack: Callable[[], None]) -> float:
    """The longest that another caller waits for an answer while an attack runs."""
    with ThreadPoolExecutor(1) as pool:
        attacking = pool.submit(attack)
        longest = turn(running)
        while not attacking.done():
            longest = max(longest, turn(running))
        attacking.result()
    return longest


def assert_keeps_nobody_waiting(running: GatewayProcess, attack: Callable[[], None]) -> None:
    usual = statistics.median(turn(running) for _ in range(20))
    assert min(longest_while(running, attack) for _ in range(ATTEMPTS)) < STALL * usual


@pytest.fixture
def running(tmp_path: Path) -> Iterator[GatewayProcess]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "tidegate.toml").write_text(SETTINGS)
    with gateway(home) as started:
        yield started


@pytest.mark.parametrize("attack", PAGES)
def test_no_page_keeps_another_caller_waiting(running: GatewayProcess, attack: str) -> None:
    """A charset that is decoded in quadratic time, or a page that is parsed in it, costs its own turn at most."""
    kind, page = PAGES[attack]
    with site(kind, page) as url:

        def fetch() -> None:
            said = running.say(f"call web_fetch {json.dumps({'url': url})}")
            assert f"{len(page)} bytes" in said

        assert_keeps_nobody_waiting(running, fetch)


def test_no_body_keeps_another_caller_waiting(running: GatewayProcess) -> None:
    """Millions of empty lists in a field that nobody reads."""
    crowd: list[list[object]] = [[]] * (15 * 1024 * 1024 // 4)
    body = {"model": "main", "messages": [{"role": "user", "content": "hello"}], "unknown": crowd}

    def send() -> None:
        with pytest.raises(HTTPError) as refused:
            running.call("POST", "/v1/chat/completions", body, **{"Idempotency-Key": "once"})
        with refused.value as answer:
            assert answer.code == 400
            assert json.load(answer)["error"]["code"] == "too_many_values"

    assert_keeps_nobody_waiting(running, send)
