"""Requests through a real proxy: models, web tools, and clients that libraries bring.

The names end in `.test`, which no resolver knows: what arrives was resolved by the proxy.
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import httpx2
import pytest
from aiohttp import web
from anyio import to_thread

from bench.scripted_model import ScriptedModel
from tests.http_client.authority import Authority, needs_openssl
from tests.http_client.proxies import PASSWORD, proxy
from tests.models.support import ANSWER_BYTES, Slept, ask, settings
from tests.tools.sites import ALLOWED, FORBIDDEN, ScriptedResolver, agent, refuse, site
from tidegate.config import NetworkSettings
from tidegate.errors import ModelFailed, ToolFailed
from tidegate.http_client import HttpClient, Network
from tidegate.models import Model, Models, RetryPolicy
from tidegate.security import Secret

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def model_of(network: Network, base_url: str, **given: Any) -> AsyncIterator[Model]:
    async with (
        HttpClient(network) as client,
        Models(
            {"main": settings(base_url, retries=0, **given)},
            client,
            Secret,
            ANSWER_BYTES,
            retry_policy=RetryPolicy(sleep=Slept()),
            network=network,
        ) as models,
    ):
        yield models.get("main")


def named(server: ScriptedModel, host: str = "model.test") -> str:
    """The address of a model by a name that only the proxy resolves."""
    return server.base_url.replace("127.0.0.1", host)


async def test_a_model_is_reached_through_the_proxy_of_the_environment() -> None:
    """And one that NO_PROXY names is not."""
    async with ScriptedModel() as server, proxy() as between:
        environment = {"HTTP_PROXY": between.url, "NO_PROXY": "direct.test"}
        async with model_of(Network(environment=environment), named(server)) as model:
            assert (await ask(model, "hello")).text.startswith("The tide")
            assert (await ask(model, "again")).text.startswith("The tide")
        assert server.recorded[0].headers["host"].startswith("model.test:")
        assert await between.carried("model.test:")
        async with model_of(Network(environment=environment), named(server, "direct.test")) as model:
            with pytest.raises(ModelFailed) as caught:
                await ask(model, "hello")
        assert caught.value.kind == "network" and "proxy" not in caught.value.message


async def test_a_model_of_this_machine_needs_no_exception() -> None:
    async with ScriptedModel() as server, proxy() as between:
        async with model_of(Network(environment={"ALL_PROXY": between.url}), server.base_url) as model:
            assert (await ask(model, "hello")).text.startswith("The tide")
        assert between.carried_nothing()


@needs_openssl
async def test_tls_reaches_through_the_proxy_to_the_model(tmp_path: Path) -> None:
    """H22, X22: the proxy carries bytes that it cannot read, and the certificate is checked as without it. The password
    is sent to the proxy alone."""
    authority = await to_thread.run_sync(Authority, tmp_path / "ca")
    context = await to_thread.run_sync(authority.context, "DNS:model.test")
    async with ScriptedModel(tls=context) as server, proxy(password=True) as between:
        network = Network(resolve=lambda _: Secret(between.with_password))
        own = {"proxy": "env:P", "ca_file": str(authority.certificate)}
        async with model_of(network, named(server), **own) as model:
            assert (await ask(model, "hello")).text.startswith("The tide")
            assert "proxy-authorization" not in server.recorded[0].headers
        assert await between.carried("CONNECT model.test:")
        async with model_of(network, named(server, "other.test"), **own) as model:
            with pytest.raises(ModelFailed, match="the server's certificate"):
                await ask(model, "hello")
        async with model_of(network, named(server), proxy="env:P") as model:
            with pytest.raises(ModelFailed, match="the server's certificate"):
                await ask(model, "hello")
        assert len(server.recorded) == 1


@pytest.mark.parametrize("tls", [False, True])
async def test_a_proxy_that_refuses_is_named_without_its_password(tls: bool) -> None:
    """X22: a wrong password, in the failure as in the representation of everything that is logged."""
    async with ScriptedModel() as server, proxy(password=True) as between:
        wrong = between.with_password.replace(PASSWORD, "wrong-canary-99")
        network = Network(environment={"ALL_PROXY": wrong})
        url = named(server).replace("http:", "https:") if tls else named(server)
        async with model_of(network, url) as model:
            with pytest.raises(ModelFailed) as caught:
                await ask(model, "hello")
        shown = f"{caught.value.message} {caught.value.endpoint_message} {caught.value!r} {caught.value.__cause__!r}"
        assert "canary" not in shown
        assert "proxy" in caught.value.message if tls else caught.value.upstream_status == 407
        assert not server.recorded


async def test_a_proxy_that_is_not_there_is_reported() -> None:
    async with (
        ScriptedModel() as server,
        model_of(Network(NetworkSettings(proxy="http://127.0.0.1:9")), named(server)) as model,
    ):
        with pytest.raises(ModelFailed, match="check `proxy`"):
            await ask(model, "hello")


async def test_a_cancelled_request_through_a_proxy_releases_its_connection() -> None:
    """L11."""
    async with ScriptedModel() as server, proxy() as between, HttpClient() as client:
        network = Network(NetworkSettings(proxy=between.url))
        async with Models(
            {"main": settings(named(server), retries=0)}, client, Secret, ANSWER_BYTES, network=network
        ) as models:
            async with anyio.create_task_group() as group:
                group.start_soon(ask, models.get("main"), "[hold it]")
                with anyio.fail_after(20):
                    await server.held("it")
                group.cancel_scope.cancel()
            assert client.stats().busy == 0
            with anyio.fail_after(20):
                while client.stats().open:
                    await anyio.lowlevel.checkpoint()


# -- web tools --


async def hello(_request: web.Request) -> web.StreamResponse:
    return web.Response(text="hello from behind the proxy")


async def test_a_page_is_fetched_through_the_proxy(tmp_path: Path) -> None:
    """Only if the operator says so, although the proxy itself is at an address that agents may not reach."""
    async with site(hello) as page, proxy() as between:
        url = f"http://page.test:{page.url.rpartition(':')[2]}/"
        async with agent(tmp_path, proxy=between.url) as mine:
            for address in (url, page.url):
                assert "hello from behind" in (await mine.fetch(address)).text
        assert await between.carried("page.test:")
        async with agent(tmp_path) as mine:
            with pytest.raises(ToolFailed, match="not found"):
                await mine.fetch(url)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "127.1", "0x7f000001", "169.254.169.254"]
)
async def test_a_forbidden_address_is_refused_before_the_proxy_is_asked(tmp_path: Path, host: str) -> None:
    """X09: also where the proxy could reach it."""
    async with site(refuse, FORBIDDEN) as forbidden, proxy() as between:
        async with agent(tmp_path, proxy=between.url) as mine:
            with pytest.raises(ToolFailed, match=r"not public|malformed"):
                await mine.fetch(f"http://{host}:{forbidden.port}/")
        assert forbidden.connections == 0
        assert between.carried_nothing()


async def test_a_name_with_a_forbidden_address_is_refused_before_the_proxy_is_asked(tmp_path: Path) -> None:
    """X09: and so is a redirect to one, or to a forbidden address."""
    async with site(refuse, FORBIDDEN) as forbidden, proxy() as between:

        async def away(_request: web.Request) -> web.StreamResponse:
            raise web.HTTPFound(f"http://{FORBIDDEN}:{forbidden.port}/")

        async with site(away) as leading:
            resolver = ScriptedResolver([FORBIDDEN, ALLOWED])
            async with agent(tmp_path, proxy=between.url, resolver=resolver) as mine:
                for url in (f"http://inside.test:{forbidden.port}/", leading.url):
                    with pytest.raises(ToolFailed, match="not public"):
                        await mine.fetch(url)
        assert forbidden.connections == 0


# -- clients that libraries bring --


@needs_openssl
async def test_clients_of_libraries_obey_the_same_rules(tmp_path: Path) -> None:
    """aiohttp's, which also stands for discord.py, slack-sdk and matrix-nio, and httpx2's, which stands for mcp."""
    authority = await to_thread.run_sync(Authority, tmp_path / "ca")
    context = await to_thread.run_sync(authority.context, "DNS:model.test")
    async with ScriptedModel(tls=context) as server, proxy(password=True) as between:
        settings = NetworkSettings(ca_file=str(authority.certificate))
        network = Network(settings, environment={"HTTPS_PROXY": between.with_password})
        url = named(server) + "/models"
        tls = await network.tls_context()
        assert isinstance(tls, ssl.SSLContext)
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, proxy=network.proxy_for(url), ssl=tls) as response,
        ):
            assert response.status < 500
        async with httpx2.AsyncClient(proxy=network.proxy_for(url), verify=tls, trust_env=False) as client:
            assert (await client.get(url)).status_code < 500
        assert await between.carried("CONNECT model.test:")
