"""Signed-in browsers: listing them and signing them out, one by one or everywhere."""

import os
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest

from tests.in_process import WAIT, InProcessGateway
from tests.web.client import Reply, call, chat_body, signed_in
from tidegate.security import digest, make_code
from tidegate.store import messages, principals
from tidegate.values import Message

pytestmark = pytest.mark.anyio


async def signed_in_as(h: InProcessGateway, name: str) -> dict[str, str]:
    """Sign in a browser as an existing user."""
    code = make_code()

    def add(db: principals.Db) -> None:
        found = principals.by_name(db, name)
        assert found is not None
        principals.add_key(db, found.id, "code", digest(code), "", 1.0, None)

    await h.store.write(add)
    body = {"code": code, "browser": f"Browser of {name}"}
    reply = await call(h, "POST", "/api/login", json=body, headers={"Origin": h.url}, key="")
    return {
        "Cookie": reply.headers["Set-Cookie"].split(";")[0],
        "X-Page-Token": reply.json["page_token"],
        "Origin": h.url,
    }


async def ask(h: InProcessGateway, method: str, path: str, browser: dict[str, str]) -> Reply:
    return await call(h, method, path, headers=browser, key="")


async def browsers(h: InProcessGateway, browser: dict[str, str]) -> list[tuple[str, bool]]:
    listed = (await ask(h, "GET", "/api/browsers", browser)).json["browsers"]
    return [(each["browser"], each["current"]) for each in listed]


async def test_users_see_and_sign_out_their_own_browsers_and_the_owner_all(gateway: InProcessGateway) -> None:
    """X05, X06: another user's browser is 404; no secrets are shown."""
    await gateway.add_key("dora")
    dora, owner = await signed_in_as(gateway, "dora"), await signed_in_as(gateway, "owner")
    assert await browsers(gateway, dora) == [("Browser of dora", True)]
    assert await browsers(gateway, owner) == [("Browser of dora", False), ("Browser of owner", True)]
    listed = await call(gateway, "GET", "/api/browsers")
    hers, his = (each["id"] for each in listed.json["browsers"])
    for secret in (*dora["Cookie"].split("="), dora["X-Page-Token"]):
        assert secret.encode() not in listed.body
    refused = await ask(gateway, "DELETE", f"/api/browsers/{his}", dora)
    assert (refused.status, refused.error["code"]) == (404, "browser_not_found")
    assert (await ask(gateway, "DELETE", "/api/browsers?everyone=true", dora)).status == 403
    assert (await ask(gateway, "DELETE", f"/api/browsers/{hers}", owner)).status == 204
    assert (await ask(gateway, "GET", "/api/agents", dora)).status == 401
    assert (await ask(gateway, "DELETE", f"/api/browsers/{hers}", owner)).status == 404
    assert await browsers(gateway, owner) == [("Browser of owner", True)]


async def test_signing_out_everywhere_ends_all_of_a_users_sign_ins_and_no_key(gateway: InProcessGateway) -> None:
    """X05: for the owner, everyone's sign-ins on request."""
    key = await gateway.add_key("dora")
    doras = [await signed_in_as(gateway, "dora") for _ in range(2)]
    owner = await signed_in_as(gateway, "owner")
    assert (await ask(gateway, "DELETE", "/api/browsers", doras[0])).json == {"signed_out": 2}
    for browser in doras:
        assert (await ask(gateway, "GET", "/api/agents", browser)).status == 401
    assert (await ask(gateway, "GET", "/api/agents", owner)).status == 200
    assert (await call(gateway, "GET", "/api/agents", key=key)).status == 200
    await signed_in_as(gateway, "dora")
    assert (await call(gateway, "DELETE", "/api/browsers?everyone=true")).json == {"signed_out": 2}
    assert (await ask(gateway, "GET", "/api/agents", owner)).status == 401
    assert (await call(gateway, "GET", "/api/browsers")).json == {"browsers": []}


async def test_the_event_streams_of_a_browser_or_key_end_with_it(gateway: InProcessGateway) -> None:
    """X05: other streams continue."""
    session = (await call(gateway, "POST", "/api/messages", json={"text": "hello"})).json["session"]
    first, other = await signed_in(gateway), await signed_in(gateway)
    made = (await call(gateway, "POST", "/api/keys", json={"name": "owner"})).json
    browser = (await call(gateway, "GET", "/api/browsers")).json["browsers"][0]["id"]
    by_key = {"Authorization": f"Bearer {made['key']}"}
    events = f"/api/sessions/{session}/events"
    with anyio.fail_after(WAIT):
        async with (
            aiohttp.ClientSession(gateway.url) as client,
            client.get(events, headers=first) as of_browser,
            client.get(events, headers=by_key) as of_key,
            client.get(events, headers=other) as going_on,
        ):
            for stream in (of_browser, of_key, going_on):
                assert await stream.content.readline() == b": open\n"
            await call(gateway, "DELETE", f"/api/browsers/{browser}")
            await call(gateway, "DELETE", f"/api/keys/{made['id']}")
            for stream in (of_browser, of_key):
                assert (await stream.content.read()).endswith(b": signed out\n\n")
            await call(gateway, "POST", "/api/messages", json={"text": "hello again", "session": session})
            async for line in going_on.content:
                if b"hello again" in line:
                    break
            else:
                raise AssertionError("this stream was to go on")


@pytest.mark.parametrize("how", ["browser", "key"])
async def test_a_download_is_cut_off_when_its_sign_in_or_key_ends(gateway: InProcessGateway, how: str) -> None:
    """X05: a thief who reads slowly gets no more than what is already on its way; other downloads continue."""
    session = (await call(gateway, "POST", "/api/messages", json={"text": "hello"})).json["session"]

    def fill(db: principals.Db) -> None:
        for number in range(32):
            text = Message(role="user", text=os.urandom(1 << 19).hex())
            messages.append(db, session=session, turn=None, step=None, message=text, now=float(number))

    await gateway.store.write(fill)
    thief = await signed_in(gateway)
    if how == "key":
        made = (await call(gateway, "POST", "/api/keys", json={"name": "owner"})).json
        thief = {"Authorization": f"Bearer {made['key']}"}
    owner = {"Authorization": f"Bearer {gateway.key}"}
    path = f"/api/sessions/{session}/export"
    complete = len((await call(gateway, "GET", path)).body)
    with anyio.fail_after(WAIT):
        async with (
            aiohttp.ClientSession(gateway.url) as client,
            client.get(path, headers=thief) as stolen,
            client.get(path, headers=owner) as own,
        ):
            begun = len(await stolen.content.readexactly(1000))
            await own.content.readexactly(1000)
            revoked = "/api/browsers" if how == "browser" else f"/api/keys/{made['id']}"
            assert (await call(gateway, "DELETE", revoked)).status in (200, 204)
            with pytest.raises(aiohttp.ClientError):
                while piece := await stolen.content.readany():
                    begun += len(piece)
            assert begun < complete // 2
            assert len(await own.content.read()) == complete - 1000


async def test_no_stream_outlives_a_sign_in_that_ends_while_the_stream_begins(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X05: whichever await the sign-in ends at, repeated attempts do not help."""
    session = (await call(gateway, "POST", "/api/messages", json={"text": "hello"})).json["session"]
    events = f"/api/sessions/{session}/events"

    async def read_while_signed_out(await_of: str, sign_in: dict[str, str]) -> tuple[int, bytes]:
        """The response with that sign-in if all sign-ins end at this await of the request."""
        whose, name = (gateway.service, "session") if await_of == "session" else (gateway.store, "write")
        original = getattr(whose, name)

        async def ended(*args: Any, **kwargs: Any) -> Any:
            if await_of == "session" or args[0] is principals.mark_used:
                monkeypatch.setattr(whose, name, original)
                await call(gateway, "DELETE", "/api/browsers")
            return await original(*args, **kwargs)

        monkeypatch.setattr(whose, name, ended)
        async with aiohttp.ClientSession(gateway.url) as client, client.get(events, headers=sign_in) as stream:
            return stream.status, await stream.content.read()

    with anyio.fail_after(WAIT):
        known = await signed_in(gateway)
        assert (await call(gateway, "GET", "/api/agents", headers=known, key="")).status == 200  # now it is remembered
        status, body = await read_while_signed_out("session", known)
        assert status == 401 or body.endswith(b": signed out\n\n")
        status, body = await read_while_signed_out("use", await signed_in(gateway))
        assert status == 401 and b"signed_out" in body


@pytest.mark.parametrize("path", ["/api/keys", "/api/messages", "/v1/chat/completions"])
async def test_a_request_has_no_effect_if_its_sign_in_ends_while_its_body_arrives(
    gateway: InProcessGateway, path: str
) -> None:
    """X05: an attacker with a stolen sign-in delays the last byte until its user has signed out everywhere."""
    thief = {**await signed_in(gateway), "Origin": gateway.url}
    body = msgspec.json.encode({"name": "owner", "text": "hello", **chat_body()})
    head = "".join(f"{name}: {value}\r\n" for name, value in {**thief, "Content-Length": str(len(body))}.items())
    start = (
        f"POST {path} HTTP/1.1\r\nHost: {gateway.url[7:]}\r\nConnection: close\r\nExpect: 100-continue\r\n{head}\r\n"
    )
    before = await call(gateway, "GET", "/api/keys"), await call(gateway, "GET", "/api/sessions")
    with anyio.fail_after(WAIT):
        async with await anyio.connect_tcp("127.0.0.1", int(gateway.url.rpartition(":")[2])) as stream:
            await stream.send(start.encode())
            assert (await stream.receive()).startswith(b"HTTP/1.1 100")  # the caller is authenticated
            await stream.send(body[:-1])
            assert (await call(gateway, "DELETE", "/api/browsers")).json == {"signed_out": 1}
            await stream.send(body[-1:])
            assert (await stream.receive()).startswith(b"HTTP/1.1 401")
    after = await call(gateway, "GET", "/api/keys"), await call(gateway, "GET", "/api/sessions")
    assert [each.json for each in after] == [each.json for each in before]
