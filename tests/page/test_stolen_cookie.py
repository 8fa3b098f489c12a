"""A hostile server on another port of the gateway's host: browsers send it the cookie, because cookies ignore ports."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.page.browser import PATIENCE
from tests.page.gateway import START_SECONDS, Gateway


class Preview(ThreadingHTTPServer):
    """A server that an agent might start as a "preview". It records the cookies of its visitors."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Visitor)
        self.cookies: list[str] = []
        self.origin = f"http://127.0.0.1:{self.server_port}"


class _Visitor(BaseHTTPRequestHandler):
    server: Preview

    def do_GET(self) -> None:
        self.server.cookies += self.headers.get_all("Cookie", [])
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Preview</title>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def preview() -> Iterator[Preview]:
    with Preview() as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()


@pytest.fixture
def stolen(browser: Browser, gateway: Gateway, preview: Preview) -> Iterator[str]:
    """The cookie of a signed-in user, sent to the preview by a real browser."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(gateway.new_link())
    expect(page.locator("#composer")).to_be_visible()
    page.goto(preview.origin)
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0
    yield preview.cookies[-1]
    page.goto(gateway.origin)
    expect(page.locator("#composer")).to_be_visible()  # what was tried with it has not signed them out
    context.close()


EVERYTHING = (
    ("GET", "/api/agents", None),
    ("GET", "/api/sessions", None),
    ("GET", "/api/status", None),
    ("GET", "/api/keys", None),
    ("GET", "/api/browsers", None),
    ("GET", "/v1/models", None),
    ("GET", "/metrics", None),
    ("POST", "/api/messages", {"text": "say hello"}),
    ("POST", "/v1/chat/completions", {"model": "main", "messages": [{"role": "user", "content": "say hello"}]}),
    ("POST", "/api/keys", {"name": "owner", "label": "stolen"}),
    ("POST", "/api/logout", {}),
    ("DELETE", "/api/browsers", None),
)


def replayed(gateway: Gateway, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(gateway.origin + path, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.loads(refusal.read())


def test_a_server_on_another_port_gets_the_cookie_and_can_do_nothing_with_it(gateway: Gateway, stolen: str) -> None:
    """X04, X05: it can read nothing and create no key, whatever it sends along."""
    name, _, value = stolen.partition("=")
    assert name == f"tidegate_{gateway.port}"  # or there would be nothing to be tested
    before = gateway.call("GET", "/api/keys")
    disguise = {"Cookie": stolen, "Origin": gateway.origin, "Sec-Fetch-Site": "same-origin"}
    for token in ({}, {"X-Page-Token": ""}, {"X-Page-Token": value}, {"X-Page-Token": "tgp_" + "a" * 40}):
        for method, path, body in EVERYTHING:
            status, told = replayed(gateway, method, path, body, {**disguise, **token})
            assert status == 401, (method, path, token)
            assert "`tidegate status --link`" in told["error"]["message"]
    assert gateway.call("GET", "/api/keys") == before
