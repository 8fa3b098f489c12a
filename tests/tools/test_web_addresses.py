"""web_fetch reaches public addresses and those that the operator allows, however they are asked for."""

from pathlib import Path

import pytest
from aiohttp import web

from tests.tools.sites import ALLOWED, FORBIDDEN, Agent, ScriptedResolver, SystemResolver, agent, refuse, site
from tidegate.errors import ToolFailed

pytestmark = pytest.mark.anyio


async def hello(request: web.Request) -> web.StreamResponse:
    return web.Response(text="hello")


async def refusal(agent: Agent, url: str) -> str:
    with pytest.raises(ToolFailed) as caught:
        await agent.fetch(url)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "[::1]",
        "[::]",
        "0.0.0.0",
        "127。0。0。1",
        "2130706433",
        "127.1",
        "0177.0.0.1",
        "0x7f000001",
        "0x7f.0.0.1",
        "017700000001",
        "localhost",
        "localhost.",
        "LOCALHOST",
    ],
)
async def test_no_way_of_writing_an_address_that_is_not_public_reaches_it(tmp_path: Path, host: str) -> None:
    """X09: whatever the resolver of the system makes of it."""
    async with site(refuse, FORBIDDEN) as forbidden, agent(tmp_path, resolver=SystemResolver()) as mine:
        message = await refusal(mine, f"http://{host}:{forbidden.port}/")
        assert "not public" in message or "malformed" in message or "not found" in message
        assert forbidden.connections == 0


@pytest.mark.parametrize("address", ["169.254.169.254", "10.0.0.1", "192.168.0.1", "100.64.0.1", "[fd00:ec2::254]"])
async def test_metadata_and_private_networks_are_refused(tmp_path: Path, address: str) -> None:
    """X09: without a packet being sent there."""
    async with agent(tmp_path) as mine:
        assert "not public" in await refusal(mine, f"http://{address}/latest/meta-data/")


async def test_a_name_whose_address_changes_is_checked_at_the_connection(tmp_path: Path) -> None:
    """X09: the first answer may be reached, the second may not."""
    async with site(hello) as allowed, site(refuse, FORBIDDEN, allowed.port) as forbidden:
        resolver = ScriptedResolver([ALLOWED], [FORBIDDEN])
        async with agent(tmp_path, resolver=resolver) as mine:
            url = f"http://rebinding.example:{allowed.port}/"
            assert "hello" in (await mine.fetch(url)).text
            assert "not public" in await refusal(mine, url)
            assert resolver.asked == ["rebinding.example"] * 2
            assert forbidden.connections == 0


@pytest.mark.parametrize("answer", [[FORBIDDEN, ALLOWED], [ALLOWED, FORBIDDEN], ["::1", ALLOWED, FORBIDDEN]])
async def test_only_the_allowed_addresses_of_a_name_are_used(tmp_path: Path, answer: list[str]) -> None:
    """X09: a name with a public and a private address."""
    async with site(hello) as allowed, site(refuse, FORBIDDEN, allowed.port) as forbidden:
        async with agent(tmp_path, resolver=ScriptedResolver(answer)) as mine:
            assert "hello" in (await mine.fetch(f"http://both.example:{allowed.port}/")).text
        assert forbidden.connections == 0


async def test_a_name_with_private_addresses_only_is_refused_with_the_reason(tmp_path: Path) -> None:
    """X09: also when they are of several kinds."""
    async with agent(tmp_path, resolver=ScriptedResolver(["::1", "10.0.0.1", "169.254.169.254"])) as mine:
        assert "not public" in await refusal(mine, "https://several.example/")


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:{port}/", "//127.0.0.1:{port}/", "http://[::ffff:7f00:1]:{port}/"]
)
async def test_a_redirect_to_an_address_that_is_not_public_is_refused(tmp_path: Path, target: str) -> None:
    """X09: each step is judged like the first."""
    async with site(refuse, FORBIDDEN) as forbidden:

        async def lead(request: web.Request) -> web.StreamResponse:
            return web.Response(status=302, headers={"Location": target.format(port=forbidden.port)})

        async with site(lead) as leading, agent(tmp_path) as mine:
            assert "not public" in await refusal(mine, leading.url)
        assert forbidden.connections == 0


async def test_a_redirect_to_metadata_is_refused(tmp_path: Path) -> None:
    """X09: the classic."""

    async def lead(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": "http://169.254.169.254/latest/meta-data/iam/"})

    async with site(lead) as leading, agent(tmp_path) as mine:
        assert "not public" in await refusal(mine, leading.url)


async def test_a_redirect_to_a_name_that_means_the_machine_itself_is_refused(tmp_path: Path) -> None:
    """X09: by way of the resolver."""
    async with site(refuse, FORBIDDEN) as forbidden:

        async def lead(request: web.Request) -> web.StreamResponse:
            return web.Response(status=301, headers={"Location": f"http://inside.example:{forbidden.port}/"})

        async with site(lead) as leading, agent(tmp_path, resolver=ScriptedResolver([FORBIDDEN])) as mine:
            assert "not public" in await refusal(mine, leading.url)
        assert forbidden.connections == 0


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://example.org/", "javascript:alert(1)", "http://", "http:"]
)
async def test_only_http_is_followed(tmp_path: Path, target: str) -> None:
    async def lead(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": target})

    async with site(lead) as leading, agent(tmp_path) as mine:
        assert "http://" in await refusal(mine, leading.url)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "gopher://example.org",
        "example.org",
        "/x",
        "",
        " ",
        "http://",
        "http://a:99999/",
        "x" * 9000,
    ],
)
async def test_addresses_that_are_not_http_are_refused(tmp_path: Path, url: str) -> None:
    async with agent(tmp_path) as mine:
        message = await refusal(mine, url)
        assert len(message) < 600


async def test_a_password_in_an_address_is_refused_and_not_repeated(tmp_path: Path) -> None:
    """X09: neither in what is asked for nor in a redirect."""

    async def lead(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": f"http://user:hunter2@{ALLOWED}/"})

    async with site(lead) as leading, agent(tmp_path) as mine:
        for url in (f"http://user:hunter2@{ALLOWED}/", f"http://hunter2@{ALLOWED}/", leading.url):
            message = await refusal(mine, url)
            assert "password" in message
            assert "hunter2" not in message


async def test_proxy_variables_of_the_environment_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X09: a proxy would connect for us."""
    async with site(refuse, FORBIDDEN) as proxy, site(hello) as allowed:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        async with agent(tmp_path) as mine:
            assert "hello" in (await mine.fetch(allowed.url)).text
        assert proxy.connections == 0


async def test_a_context_without_web_access_fails() -> None:
    from tests.tools.contexts import bare

    mine = Agent(bare(), Path("/nowhere"))
    assert await refusal(mine, "http://example.org/") == "Web access is not available here."
