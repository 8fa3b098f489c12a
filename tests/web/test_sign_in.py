"""The page: signing in, the cookie, where requests come from, and its files."""

from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.house import House, house
from tests.web.asking import CHAT, call, chat, raw

pytestmark = pytest.mark.anyio


async def signed_in(h: House) -> str:
    """A cookie, as a browser would send it."""
    reply = await call(h, "POST", "/api/login", json={"code": await h.code()}, headers={"Origin": h.url}, key="")
    assert reply.status == 200, reply.body
    return reply.headers["Set-Cookie"].split(";")[0]


async def test_a_code_becomes_a_cookie_and_dies(gateway: House) -> None:
    """H23, X04: same-site, http-only, by POST; the code works once and is not the key."""
    code = await gateway.code()
    reply = await call(gateway, "POST", "/api/login", json={"code": code}, headers={"Origin": gateway.url}, key="")
    assert reply.status == 200
    cookie = reply.headers["Set-Cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="):
        assert part in cookie
    assert code not in cookie and gateway.key not in cookie
    assert reply.headers["Cache-Control"] == "no-store"
    again = await call(gateway, "POST", "/api/login", json={"code": code}, headers={"Origin": gateway.url}, key="")
    assert again.status == 401
    assert again.error["code"] == "invalid_code"
    assert (await call(gateway, "GET", "/api/agents", key=code)).status == 401
    value = cookie.split(";")[0]
    shown = await call(gateway, "GET", "/api/agents", headers={"Cookie": f"a=b; {value}; c=d"}, key="")
    assert shown.status == 200


async def test_a_code_expires_and_a_key_or_cookie_is_no_code(gateway: House) -> None:
    """H23, X05: each token is for its own purpose."""
    token = (await signed_in(gateway)).partition("=")[2]
    for code in (await gateway.code(seconds=-1), gateway.key, token, "", "x" * 501):
        reply = await call(gateway, "POST", "/api/login", json={"code": code}, headers={"Origin": gateway.url}, key="")
        assert reply.status in (400, 401)
    assert (await call(gateway, "GET", "/api/agents", key=token)).status == 401


async def test_signing_out_ends_the_cookie(gateway: House) -> None:
    """H23: in the store, not only in the browser."""
    cookie = await signed_in(gateway)
    headers = {"Cookie": cookie, "Origin": gateway.url}
    out = await call(gateway, "POST", "/api/logout", json={}, headers=headers, key="")
    assert out.status == 200
    assert "Max-Age=0" in out.headers["Set-Cookie"]
    assert (await call(gateway, "GET", "/api/agents", headers={"Cookie": cookie}, key="")).status == 401


async def test_another_page_cannot_use_the_cookie(gateway: House) -> None:
    """H23, X04: the origin is checked on what changes something, and wherever a browser tells it."""
    cookie = await signed_in(gateway)
    message = {"text": "hello"}
    for origin in ("https://evil.example", "null", gateway.url.replace("http:", "https:"), gateway.url + "0", ""):
        headers = {"Cookie": cookie, "Origin": origin}
        for method, path in (("POST", "/api/messages"), ("GET", "/api/sessions"), ("DELETE", "/api/sessions/s_x")):
            reply = await call(gateway, method, path, json=message, headers=headers, key="")
            assert reply.status == 403, (origin, path)
            assert reply.error["code"] == "origin_not_allowed"
    silent = await call(gateway, "POST", "/api/messages", json=message, headers={"Cookie": cookie}, key="")
    assert silent.status == 403
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        headers = {"Cookie": cookie, "Sec-Fetch-Site": site}
        assert (await call(gateway, "GET", "/api/sessions", headers=headers, key="")).status == status
    ours = {"Cookie": cookie, "Origin": gateway.url}
    assert (await call(gateway, "POST", "/api/messages", json=message, headers=ours, key="")).status == 202


async def test_a_foreign_page_cannot_sign_in_either(gateway: House) -> None:
    """H23, X04: and the code it tried is not spent."""
    code = await gateway.code()
    headers = {"Origin": "https://evil.example"}
    assert (await call(gateway, "POST", "/api/login", json={"code": code}, headers=headers, key="")).status == 403
    assert (await call(gateway, "POST", "/api/login", json={"code": code}, key="")).status == 200


async def test_an_allowed_origin_may(home: Path, model: ScriptedModel) -> None:
    """H23: server.origins, for a gateway behind a proxy; the cookie is then for https only."""
    async with house(home, '[server]\norigins = ["https://chat.example"]', model=model) as h:
        headers = {"Origin": "https://chat.example", "Host": "chat.example"}
        reply = await call(h, "POST", "/api/login", json={"code": await h.code()}, headers=headers, key="")
        assert reply.status == 200
        assert "; Secure" in reply.headers["Set-Cookie"]
        cookie = reply.headers["Set-Cookie"].split(";")[0]
        shown = await call(
            h, "POST", "/api/messages", json={"text": "x"}, headers={**headers, "Cookie": cookie}, key=""
        )
        assert shown.status == 202


async def test_a_listed_page_may_call_with_a_key_and_no_other(home: Path, model: ScriptedModel) -> None:
    """H23, X04: browsers are told so for server.origins, never with the cookie; without them no page is."""
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with house(home, '[server]\norigins = ["https://app.example"]', model=model) as h:
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


@pytest.mark.parametrize("host", [b"evil.example", b"evil.example:8420", b"127.0.0.1.evil.example"])
async def test_a_rebound_name_gets_neither_page_nor_cookie(gateway: House, host: bytes) -> None:
    """H23, X04: on loopback only the gateway's own names count; a key needs no name."""
    cookie = (await signed_in(gateway)).encode()
    for line in (b"GET / HTTP/1.1", b"GET /api/sessions HTTP/1.1\r\nCookie: " + cookie):
        head, body = await raw(gateway, line + b"\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        assert head.split(b" ")[1] in (b"403", b"401"), head
        assert b'"error"' in body
    with_key = b"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer " + gateway.key.encode()
    head, _ = await raw(gateway, with_key + b"\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")


async def test_a_rebound_name_with_our_port_cannot_use_the_cookie(gateway: House) -> None:
    """H23, X04: there the cookie has its right name, and the name of the host is what gives it away."""
    headers = {"Cookie": await signed_in(gateway), "Host": f"evil.example:{gateway.url.rpartition(':')[2]}"}
    reply = await call(gateway, "GET", "/api/sessions", headers=headers, key="")
    assert (reply.status, reply.error["code"]) == (403, "host_not_allowed")


async def test_two_gateways_on_one_machine_do_not_share_a_cookie(gateway: House) -> None:
    """H23: cookies know no ports, so the name has it."""
    name = (await signed_in(gateway)).partition("=")[0]
    assert name == f"tidegate_{gateway.url.rpartition(':')[2]}"


async def test_nothing_takes_a_credential_from_the_address(gateway: House) -> None:
    """H23, X04: neither key nor code nor cookie."""
    code = await gateway.code()
    for query in (f"key={gateway.key}", f"api_key={gateway.key}", f"code={code}", f"token={gateway.key}"):
        assert (await call(gateway, "GET", f"/api/sessions?{query}", key="")).status == 401
    assert (await call(gateway, "GET", f"/api/login?code={code}", key="")).status == 405


async def test_the_page_comes_with_its_types_and_its_walls(gateway: House) -> None:
    """H23, X04: no foreign script, no frame, no sniffing; and it is revalidated, not loaded again."""
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
async def test_no_path_leads_out_of_the_pages_folder(gateway: House, path: bytes) -> None:
    """H23, X07: names are compared with what lies there, never joined to a path."""
    head, body = await raw(gateway, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert head.split(b" ")[1] in (b"404", b"400"), head
    assert b'"error"' in body
