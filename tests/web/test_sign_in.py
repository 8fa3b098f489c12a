"""Signing in to the page: its two parts, allowed origins, and the page's files."""

import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.in_process import InProcessGateway, in_process_gateway
from tests.web.client import CHAT, call, chat, raw, signed_in

pytestmark = pytest.mark.anyio


async def test_a_code_is_exchanged_for_a_cookie_once(gateway: InProcessGateway) -> None:
    """H23, X04: same-site, http-only, by POST; the code works once and is not the key."""
    code = await gateway.code()
    reply = await call(gateway, "POST", "/api/login", json={"code": code}, headers={"Origin": gateway.url}, key="")
    assert reply.status == 200
    cookie = reply.headers["Set-Cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="):
        assert part in cookie
    assert code not in cookie and gateway.key not in cookie and reply.json["page_token"] not in cookie
    again = await call(gateway, "POST", "/api/login", json={"code": code}, headers={"Origin": gateway.url}, key="")
    assert again.status == 401
    assert again.error["code"] == "invalid_code"
    assert (await call(gateway, "GET", "/api/agents", key=code)).status == 401
    sent = {"Cookie": f"a=b; {cookie.split(';')[0]}; c=d", "X-Page-Token": reply.json["page_token"]}
    assert (await call(gateway, "GET", "/api/agents", headers=sent, key="")).status == 200


async def test_neither_part_of_a_sign_in_is_enough_alone(gateway: InProcessGateway) -> None:
    """H23, X05: nor with a part of another sign-in; each error says what to do."""
    ours, other = await signed_in(gateway), await signed_in(gateway)
    cookie, token = {"Cookie": ours["Cookie"]}, {"X-Page-Token": ours["X-Page-Token"]}
    for given in (cookie, token, {**ours, "X-Page-Token": other["X-Page-Token"]}, {**token, "Cookie": "a=b"}):
        for method, path in (("GET", "/api/sessions"), ("GET", "/v1/models"), ("POST", "/api/keys")):
            headers = {**given, "Origin": gateway.url}
            reply = await call(gateway, method, path, json={"name": "owner"}, headers=headers, key="")
            assert (reply.status, reply.error["code"]) == (401, "signed_out")
            assert "`tidegate status --link`" in reply.error["message"]
    made = await call(gateway, "POST", "/api/keys", json={"name": "x"}, headers={**ours, "Origin": gateway.url}, key="")
    assert made.status == 201
    assert (await call(gateway, "GET", "/api/agents", key=ours["X-Page-Token"])).status == 401


OPEN = {"/", "/static/{name}", "/healthz", "/openapi.json", "/api/login"}


async def test_no_route_accepts_half_a_sign_in(gateway: InProcessGateway) -> None:
    """H23, X05: every described route, including event streams and downloads, even with the page's own headers; routes
    without a sign-in are listed by name."""
    ours = await signed_in(gateway)
    session = (await call(gateway, "POST", "/api/messages", json={"text": "hello"})).json["session"]
    paths = (await call(gateway, "GET", "/openapi.json", key="")).json["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods if path not in OPEN]
    assert {"/api/sessions/{id}/events", "/api/sessions/{id}/export", "/v1/chat/completions"} <= {p for _, p in routes}
    for half in ("Cookie", "X-Page-Token"):
        sent = {half: ours[half], "Origin": gateway.url, "Sec-Fetch-Site": "same-origin"}
        for method, path in routes:
            there = re.sub(r"{\w+}", session, path)
            reply = await call(gateway, method, there, json={"name": "owner"}, headers=sent, key="")
            assert (reply.status, reply.error["code"]) == (401, "signed_out"), (half, method, path)
            if method == "GET":
                assert (await call(gateway, "HEAD", there, headers=sent, key="")).status == 401


async def test_a_refused_code_says_why_and_how_long_links_work(gateway: InProcessGateway) -> None:
    """H23: a user should know that a link was already used."""
    used, expired = await gateway.code(), await gateway.code(seconds=-1)
    await call(gateway, "POST", "/api/login", json={"code": used}, key="")
    for code, why in ((used, "has already been used"), (expired, "for 15 minutes"), ("tgc_x", "for 15 minutes")):
        reply = await call(gateway, "POST", "/api/login", json={"code": code}, key="")
        assert reply.status == 401
        assert why in reply.error["message"] and "`tidegate status --link`" in reply.error["message"]


async def test_signing_in_again_replaces_the_sign_in_of_that_browser(gateway: InProcessGateway) -> None:
    """H23: so that the list has each browser once."""
    before = await signed_in(gateway)
    headers = {**before, "Origin": gateway.url}
    await call(gateway, "POST", "/api/login", json={"code": await gateway.code()}, headers=headers, key="")
    assert (await call(gateway, "GET", "/api/agents", headers=before, key="")).status == 401
    assert len((await call(gateway, "GET", "/api/browsers")).json["browsers"]) == 1


async def test_a_code_expires_and_a_key_or_cookie_is_no_code(gateway: InProcessGateway) -> None:
    """H23, X05: each token has its own purpose."""
    sent = await signed_in(gateway)
    token = sent["Cookie"].partition("=")[2]
    for code in (await gateway.code(seconds=-1), gateway.key, token, sent["X-Page-Token"], "", "x" * 501):
        reply = await call(gateway, "POST", "/api/login", json={"code": code}, headers={"Origin": gateway.url}, key="")
        assert reply.status in (400, 401)
    assert (await call(gateway, "GET", "/api/agents", key=token)).status == 401


async def test_signing_out_ends_the_cookie(gateway: InProcessGateway) -> None:
    """H23: in the store, not only in the browser."""
    sent = await signed_in(gateway)
    out = await call(gateway, "POST", "/api/logout", json={}, headers={**sent, "Origin": gateway.url}, key="")
    assert out.status == 200
    assert "Max-Age=0" in out.headers["Set-Cookie"]
    assert (await call(gateway, "GET", "/api/agents", headers=sent, key="")).status == 401


async def test_another_page_cannot_use_the_cookie(gateway: InProcessGateway) -> None:
    """H23, X04: the origin is checked on every change, and wherever a browser sends it."""
    sent = await signed_in(gateway)
    message = {"text": "hello"}
    for origin in ("https://evil.example", "null", gateway.url.replace("http:", "https:"), gateway.url + "0", ""):
        headers = {**sent, "Origin": origin}
        for method, path in (("POST", "/api/messages"), ("GET", "/api/sessions"), ("DELETE", "/api/sessions/s_x")):
            reply = await call(gateway, method, path, json=message, headers=headers, key="")
            assert reply.status == 403, (origin, path)
            assert reply.error["code"] == "origin_not_allowed"
    silent = await call(gateway, "POST", "/api/messages", json=message, headers=sent, key="")
    assert silent.status == 403
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        headers = {**sent, "Sec-Fetch-Site": site}
        assert (await call(gateway, "GET", "/api/sessions", headers=headers, key="")).status == status
    ours = {**sent, "Origin": gateway.url}
    assert (await call(gateway, "POST", "/api/messages", json=message, headers=ours, key="")).status == 202


async def test_another_origins_page_cannot_sign_in(gateway: InProcessGateway) -> None:
    """H23, X04: the code it tried is not used up."""
    code = await gateway.code()
    headers = {"Origin": "https://evil.example"}
    assert (await call(gateway, "POST", "/api/login", json={"code": code}, headers=headers, key="")).status == 403
    assert (await call(gateway, "POST", "/api/login", json={"code": code}, key="")).status == 200


async def test_another_origins_page_is_refused_before_its_body_is_read(gateway: InProcessGateway) -> None:
    """H23, X04: the response comes although no part of the body was sent."""
    head = b"POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\nConnection: close\r\n"
    refused, body = await raw(gateway, head + b"Origin: https://evil.example\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 403") and b"origin_not_allowed" in body


async def test_the_body_of_a_sign_in_is_limited_to_4_kib(gateway: InProcessGateway) -> None:
    """H21: anyone may send one; with and without Content-Length."""
    code = await gateway.code()
    fits = b'{"code": "%b"%b}' % (code.encode(), b" " * (4096 - len(code) - 12))
    assert len(fits) == 4096
    headers = {"Origin": gateway.url, "Content-Type": "application/json"}

    async def in_pieces() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b" " * 1000

    for body in (fits + b" ", in_pieces()):
        reply = await call(gateway, "POST", "/api/login", data=body, headers=headers, key="")
        assert (reply.status, reply.error["code"]) == (413, "too_large")
        assert "4096" in reply.error["message"]
    assert (await call(gateway, "POST", "/api/login", data=fits, headers=headers, key="")).status == 200
    head = b"POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    refused, _ = await raw(gateway, head + b"1001\r\n" + b" " * 4097 + b"\r\n")  # and what follows never comes
    assert refused.startswith(b"HTTP/1.1 413")


async def test_no_response_of_the_apis_health_or_metrics_is_stored_or_sniffed(gateway: InProcessGateway) -> None:
    """X04: including errors of every kind."""
    await chat(gateway, "hello", session="one")
    (session,) = (await call(gateway, "GET", "/api/sessions")).json["sessions"]
    for method, path, key in (
        ("GET", "/api/sessions", None),
        ("GET", "/api/status", None),
        ("HEAD", f"/api/sessions/{session['id']}/events", None),
        ("GET", f"/api/sessions/{session['id']}/export", None),
        ("GET", "/api/sessions/s_nothing", None),
        ("GET", "/api/nothing", None),
        ("PUT", "/api/sessions", None),
        ("GET", "/api/keys", ""),
        ("POST", "/api/login", ""),
        ("POST", "/api/logout", None),
        ("GET", "/v1/models", None),
        ("POST", CHAT, ""),
        ("GET", "/metrics", None),
        ("GET", "/metrics", ""),
        ("GET", "/healthz", ""),
        ("GET", "/readyz", ""),
    ):
        reply = await call(gateway, method, path, key=key)
        found = [reply.headers.getall(name, []) for name in ("Cache-Control", "X-Content-Type-Options")]
        assert found == [["no-store"], ["nosniff"]], (method, path)
    head, _ = await raw(gateway, b"GET /api/sessions HTTP/1.1\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"cache-control: no-store" in head and b"x-content-type-options: nosniff" in head


async def test_an_allowed_origin_may_use_the_cookie(home: Path, model: ScriptedModel) -> None:
    """H23: server.origins, for a gateway behind a proxy; the cookie is then for https only."""
    async with in_process_gateway(home, '[server]\norigins = ["https://chat.example"]', model=model) as h:
        headers = {"Origin": "https://chat.example", "Host": "chat.example"}
        reply = await call(h, "POST", "/api/login", json={"code": await h.code()}, headers=headers, key="")
        assert reply.status == 200
        assert "; Secure" in reply.headers["Set-Cookie"]
        headers |= {"Cookie": reply.headers["Set-Cookie"].split(";")[0], "X-Page-Token": reply.json["page_token"]}
        shown = await call(h, "POST", "/api/messages", json={"text": "x"}, headers=headers, key="")
        assert shown.status == 202


async def test_a_page_of_a_listed_origin_may_call_with_a_key(home: Path, model: ScriptedModel) -> None:
    """H23, X04: CORS headers are sent for server.origins only, and never allow the cookie."""
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with in_process_gateway(home, '[server]\norigins = ["https://app.example"]', model=model) as h:
        for origin, allowed in (("https://app.example", True), ("https://evil.example", False)):
            before = await call(h, "OPTIONS", CHAT, headers={"Origin": origin, **asking}, key="")
            assert before.status == (204 if allowed else 405)
            reply = await chat(h, headers={"Origin": origin})
            assert reply.status == 200
            for answer in (before, reply):
                assert answer.headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)
                assert "Access-Control-Allow-Credentials" not in answer.headers
                assert answer.headers["Vary"] == "Origin"
            assert ("X-Turn-Id" in reply.headers.get("Access-Control-Expose-Headers", "")) is allowed
        names = "authorization, x-stainless-helper-method,x-something-new"
        wanted = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        echoed = await call(h, "OPTIONS", CHAT, headers={**wanted, "Access-Control-Request-Headers": names}, key="")
        assert echoed.headers["Access-Control-Allow-Headers"] == names
        strange = await call(h, "OPTIONS", CHAT, headers={**wanted, "Access-Control-Request-Headers": "a b;c"}, key="")
        assert strange.headers["Access-Control-Allow-Headers"].startswith("Authorization")
        assert "X-Page-Token" in strange.headers["Access-Control-Allow-Headers"]


@pytest.mark.parametrize("host", [b"evil.example", b"evil.example:8420", b"127.0.0.1.evil.example"])
async def test_a_rebound_name_gets_neither_page_nor_cookie(gateway: InProcessGateway, host: bytes) -> None:
    """H23, X04: on loopback only the gateway's own host names are accepted; a key works with any name."""
    sent = "".join(f"\r\n{name}: {value}" for name, value in (await signed_in(gateway)).items()).encode()
    for line in (b"GET / HTTP/1.1", b"GET /api/sessions HTTP/1.1" + sent):
        head, body = await raw(gateway, line + b"\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        assert head.split(b" ")[1] in (b"403", b"401"), head
        assert b'"error"' in body
    with_key = b"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer " + gateway.key.encode()
    head, _ = await raw(gateway, with_key + b"\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")


async def test_a_rebound_name_with_our_port_cannot_use_the_cookie(gateway: InProcessGateway) -> None:
    """H23, X04: the cookie's name matches there, but the host name is refused."""
    headers = {**await signed_in(gateway), "Host": f"evil.example:{gateway.url.rpartition(':')[2]}"}
    reply = await call(gateway, "GET", "/api/sessions", headers=headers, key="")
    assert (reply.status, reply.error["code"]) == (403, "host_not_allowed")


async def test_two_gateways_on_one_machine_do_not_share_a_cookie(gateway: InProcessGateway) -> None:
    """H23: cookies ignore ports, so the name contains it."""
    name = (await signed_in(gateway))["Cookie"].partition("=")[0]
    assert name == f"tidegate_{gateway.url.rpartition(':')[2]}"


async def test_credentials_in_the_url_are_ignored(gateway: InProcessGateway) -> None:
    """H23, X04: neither key nor code nor cookie."""
    code = await gateway.code()
    for query in (f"key={gateway.key}", f"api_key={gateway.key}", f"code={code}", f"token={gateway.key}"):
        assert (await call(gateway, "GET", f"/api/sessions?{query}", key="")).status == 401
    assert (await call(gateway, "GET", f"/api/login?code={code}", key="")).status == 405


async def test_page_files_have_content_types_and_security_headers(gateway: InProcessGateway) -> None:
    """H23, X04: no foreign script, no frame, no sniffing; files are revalidated, not loaded again."""
    page = await call(gateway, "GET", "/", key="")
    assert page.status == 200
    assert page.headers["Content-Type"].startswith("text/html")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "no-cache"
    assert b"<script>" not in page.body
    for path, kind in (("/static/app.js", "text/javascript"), ("/static/style.css", "text/css")):
        file = await call(gateway, "GET", path, key="")
        assert file.status == 200
        assert file.headers["Content-Type"].startswith(kind)
        same = await call(gateway, "GET", path, headers={"If-None-Match": file.headers["ETag"]}, key="")
        assert same.status == 304 and same.body == b""
        head = await call(gateway, "HEAD", path, key="")
        assert head.status == 200 and head.body == b""


async def test_page_files_are_compressed_for_clients_that_accept_it(gateway: InProcessGateway) -> None:
    """H23: the same content, a tag of its own, and the file as it is for all other clients."""
    path = "/static/vendor/markdown-it.js"
    plain = await raw_file(gateway, path, b"")
    packed = await raw_file(gateway, path, b"Accept-Encoding: br, GZIP;q=0.5\r\n")
    assert b"content-encoding" not in plain[0].lower() and b"content-encoding: gzip" in packed[0].lower()
    assert gzip.decompress(packed[1]) == plain[1] and len(packed[1]) < len(plain[1]) / 2
    assert all(b"vary: accept-encoding" in head.lower() for head, _ in (plain, packed))
    tags = [re.search(rb'(?i)etag: ("[^"]+")', head)[1] for head, _ in (plain, packed)]  # type: ignore[index]
    assert tags[0] != tags[1]
    fresh = await raw_file(gateway, path, b"Accept-Encoding: gzip\r\nIf-None-Match: " + tags[1] + b"\r\n")
    assert fresh[0].startswith(b"HTTP/1.1 304") and fresh[1] == b""
    refused = await raw_file(gateway, path, b"Accept-Encoding: gzip;q=0.0, identity\r\n")
    assert b"content-encoding" not in refused[0].lower()


async def raw_file(gateway: InProcessGateway, path: str, headers: bytes) -> tuple[bytes, bytes]:
    request = b"GET " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers + b"\r\n"
    return await raw(gateway, request)


@pytest.mark.parametrize(
    "path",
    [
        b"/static/../app.py",
        b"/static/%2e%2e/app.py",
        b"/static/..%2fapp.py",
        b"/static//etc/passwd",
        b"/static/%2Fetc%2Fpasswd",
        b"/static/",
        b"/static/vendor",
        b"/static/app.js%00.css",
        b"/static/....//app.py",
        b"/static/\xff",
        b"/static/%ff",
    ],
)
async def test_no_path_leads_out_of_the_static_folder(gateway: InProcessGateway, path: bytes) -> None:
    """H23, X07: names are compared with the folder's files, never joined to a path."""
    head, body = await raw(gateway, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert head.split(b" ")[1] in (b"404", b"400"), head
    assert b'"error"' in body
