"""Servers over HTTP, of both revisions, with credentials by reference and limits on what they send."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.mcp.harness import WAIT, open_servers
from tests.mcp.http_server import http_server
from tests.mcp.test_bad_servers import memory
from tidegate.config import McpSettings
from tidegate.errors import ToolFailed
from tidegate.lifetimes import ServiceFailed
from tidegate.security import Secret

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])


def settings(url: str, **more: Any) -> McpSettings:
    return McpSettings(url=url, **{"call_timeout": WAIT, "list_timeout": WAIT, **more})


@BOTH
@pytest.mark.parametrize("events", [False, True], ids=["json", "events"])
async def test_tools_of_a_server_at_an_address_are_used(home: Path, revision: str, events: bool) -> None:
    """E1: sessions of the older revision, and stateless requests of the newer one."""
    async with http_server(revision) as server:
        server.events = events
        async with open_servers(home, {"web": settings(server.url)}) as servers:
            await servers.ready("web")
            assert servers.state("web").revision == revision
            assert (await servers.call("web__say", text="hello")).text == "hello"
            methods = [method for method, _ in server.requests]
            assert ("initialize" in methods) == (revision == "2025-11-25")
        assert server.sessions == set()


async def test_the_newer_revision_says_how_long_its_list_holds_and_has_instructions(home: Path) -> None:
    """A4"""
    async with http_server("2026-07-28") as server, open_servers(home, {"web": settings(server.url)}) as servers:
        await servers.ready("web")
        configured = servers.servers.configured("web")
        assert configured is not None and configured.listing is not None
        assert configured.listing.ttl == 60
        assert "> Be kind." in await servers.servers.part("main", "p_1")


async def test_a_pinned_revision_is_not_negotiated(home: Path) -> None:
    """E1"""
    async with http_server("2026-07-28") as server:
        async with open_servers(home, {"web": settings(server.url, revision="2025")}) as servers:
            with pytest.raises(ServiceFailed):
                await servers.ready("web")
        assert [method for method, _ in server.requests] == ["initialize"]
    async with (
        http_server("2025-11-25") as server,
        open_servers(home, {"web": settings(server.url, revision="2026")}) as servers,
    ):
        with pytest.raises(ServiceFailed, match="does not support protocol version 2026-07-28"):
            await servers.ready("web")


async def test_credentials_are_sent_only_to_their_server_and_shown_nowhere(home: Path) -> None:
    """X15"""
    secrets = {"env:TOKEN": Secret("swordfish-1"), "env:KEY": Secret("swordfish-2")}
    async with http_server("2025-11-25") as server, http_server("2025-11-25") as other:
        chosen = settings(server.url, token="env:TOKEN", headers={"x-key": "env:KEY", "x-plain": "yes"})
        async with open_servers(home, {"web": chosen, "other": settings(other.url)}, secrets=secrets) as servers:
            await servers.ready("web", "other")
            for _, headers in server.requests:
                assert headers["authorization"] == "Bearer swordfish-1"
                assert (headers["x-key"], headers["x-plain"]) == ("swordfish-2", "yes")
            for _, headers in other.requests:
                assert "authorization" not in headers and "x-key" not in headers
            assert "swordfish" not in repr(servers.servers.status())


async def test_credentials_do_not_follow_a_redirect_to_another_origin(home: Path) -> None:
    """X04"""
    async with http_server("2025-11-25") as server, http_server("2025-11-25") as other:
        server.redirect = other.url
        chosen = settings(server.url, token="env:TOKEN")
        async with open_servers(home, {"web": chosen}, secrets={"env:TOKEN": Secret("swordfish-1")}) as servers:
            with pytest.raises(ServiceFailed, match="not followed"):
                await servers.ready("web")
        assert other.requests == []


async def test_a_server_that_wants_a_sign_in_is_reported_as_such_and_not_tried_again(home: Path) -> None:
    """E1"""
    async with http_server("2025-11-25") as server:
        server.status = 401
        server.response_headers = {"www-authenticate": 'Bearer resource_metadata="https://x.example/"'}
        async with open_servers(home, {"web": settings(server.url)}) as servers:
            with pytest.raises(ServiceFailed, match="sign-in"):
                await servers.ready("web")
            assert servers.state("web").fault == "authorization-required"
            asked = len(server.requests)
            with pytest.raises(ServiceFailed, match="sign-in"):
                await servers.ready("web")
            assert len(server.requests) == asked


async def test_a_session_that_the_server_has_ended_is_begun_again_and_the_call_repeated(home: Path) -> None:
    """E4: the server refused the request, so it may be sent again whatever the tool does."""
    async with http_server("2025-11-25") as server, open_servers(home, {"web": settings(server.url)}) as servers:
        await servers.ready("web")
        server.sessions.clear()
        assert (await servers.call("web__say", text="hello")).text == "hello"
        assert servers.state("web").restarts == 1


async def test_a_server_that_is_down_fails_the_call_with_the_reason(home: Path) -> None:
    """E4"""
    async with http_server("2025-11-25") as server:
        url = server.url
        async with open_servers(home, {"web": settings(url)}) as servers:
            await servers.ready("web")
    async with open_servers(home, {"web": settings(url, list_timeout=2.0)}) as servers:
        with pytest.raises(ToolFailed, match="cannot be reached: unconnected"):
            await servers.call("web__say", text="hello")


async def test_a_cancelled_call_is_cancelled_at_the_server(home: Path) -> None:
    """S30"""
    async with http_server("2026-07-28") as server, open_servers(home, {"web": settings(server.url)}) as servers:
        await servers.ready("web")
        with anyio.move_on_after(0.2):
            await servers.call("web__say", text="never")
        with anyio.fail_after(WAIT):
            await server.cancelled.wait()
        assert (await servers.call("web__say", text="hello")).text == "hello"


async def test_a_body_beyond_the_limit_fails_its_call_only(home: Path) -> None:
    """D7, L24"""
    async with (
        http_server("2025-11-25") as server,
        open_servers(home, {"web": settings(server.url, message_bytes=64 * 1024)}) as servers,
    ):
        await servers.ready("web")
        before = memory()
        start = b'{"jsonrpc": "2.0", "id": 3, "result": {"content": [{"type": "text", "text": "'
        server.pieces = [start, *[b"x" * 2**20] * 100, b'"}]}}']
        with pytest.raises(ToolFailed, match="message_bytes"):
            await servers.call("web__say", text="big")
        assert memory() - before < 64 * 2**20
        server.pieces = None
        assert (await servers.call("web__say", text="hello")).text == "hello"
        assert servers.state("web").restarts == 0


async def test_a_small_body_that_would_become_a_large_object_fails_its_call_only(home: Path) -> None:
    """D7"""
    async with http_server("2025-11-25") as server, open_servers(home, {"web": settings(server.url)}) as servers:
        await servers.ready("web")
        before = memory()
        start = b'{"jsonrpc": "2.0", "id": 3, "result": {"content": [], "structuredContent": {"a": ['
        server.pieces = [start, *[b"{}," * 10_000] * 100, b"0]}}}"]
        with pytest.raises(ToolFailed, match="more than 200,000 values"):
            await servers.call("web__say", text="big")
        assert memory() - before < 64 * 2**20
        server.pieces = None
        assert (await servers.call("web__say", text="hello")).text == "hello"


async def test_a_server_of_the_newer_revision_asks_within_the_answer(home: Path) -> None:
    """S29"""
    async with http_server("2026-07-28") as server, open_servers(home, {"web": settings(server.url)}) as servers:
        await servers.ready("web")
        servers.answers = ["Anna"]
        found = await servers.call("web__ask")
        assert json.loads(found.text) == {"action": "accept", "content": {"name": "Anna"}}
        assert servers.asked[0][0].startswith("The server 'web' asks: \"Who?\"")
