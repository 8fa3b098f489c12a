"""A real gateway under load: its memory is accounted for, and idle conversations are unloaded when memory is short."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import aiohttp
import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests import core
from tests.fixtures import home, model  # noqa: F401
from tests.gateway.process import WAIT, GatewayProcess, gateway
from tidegate.gateway import ask

pytestmark = pytest.mark.anyio

SESSIONS = 200
TEXT = "x" * 100_000
PARALLEL = 16
HELD = 40
WORDS = 3000


class LoadedGateway:
    """A gateway in a process of its own, and a client for it."""

    def __init__(self, running: GatewayProcess, client: aiohttp.ClientSession) -> None:
        self.running = running
        self.client = client

    async def status(self) -> dict[str, Any]:
        request = {"do": "status", "memory": True}
        return dict(await anyio.to_thread.run_sync(ask, self.running.home, request))

    async def say(self, text: str, name: str | None) -> None:
        headers = {"X-Session-Id": name} if name is not None else {}
        body = {"model": "main", "messages": [{"role": "user", "content": text}]}
        async with self.client.post("/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            await response.read()

    async def fill(self, sessions: int) -> None:
        """Conversations with a sizeable history."""
        room = anyio.CapacityLimiter(PARALLEL)

        async def one(number: int) -> None:
            async with room:
                await self.say(TEXT, f"s{number}")

        async with anyio.create_task_group() as group:
            for number in range(sessions):
                group.start_soon(one, number)

    async def begin(self, text: str, name: str | None, said: bytes, stack: contextlib.AsyncExitStack) -> None:
        """Begin to read an answer, up to where it says this; its turn goes on for as long as the stack is open."""
        headers = {"X-Session-Id": name} if name is not None else {}
        body = {"model": "main", "stream": True, "messages": [{"role": "user", "content": text}]}
        response = await stack.enter_async_context(self.client.post("/v1/chat/completions", json=body, headers=headers))
        seen = b""
        while said not in seen:
            piece = await response.content.readany()
            assert piece, seen
            seen = seen[-1000:] + piece

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        with anyio.fail_after(WAIT):
            while not holds(status := await self.status()):
                await anyio.sleep(0.05)
        return status


@contextlib.asynccontextmanager
async def loaded(home: Path, model: ScriptedModel, limits: str) -> AsyncIterator[LoadedGateway]:  # noqa: F811
    home.mkdir()
    (home / "tidegate.toml").write_text(core.settings(model, f"[limits]\n{limits}"))
    with gateway(home) as running:
        headers = {"Authorization": f"Bearer {(home / 'api-key').read_text().strip()}"}
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=WAIT)
        async with aiohttp.ClientSession(
            running.address, headers=headers, connector=connector, timeout=timeout
        ) as client:
            yield LoadedGateway(running, client)


def _metrics(running: GatewayProcess) -> dict[str, float]:
    key = (running.home / "api-key").read_text().strip()
    request = Request(f"{running.address}/metrics", headers={"Authorization": f"Bearer {key}"})
    with urlopen(request, timeout=WAIT) as response:
        lines = response.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


async def test_the_accounting_explains_the_memory_of_a_loaded_gateway(home: Path, model: ScriptedModel) -> None:  # noqa: F811
    """L99: of what came since the start at least nine tenths, by kind and by session, in one command."""
    limits = f'residents = 1000\nresident_bytes = "256 MiB"\nturns = {HELD}\n'
    async with loaded(home, model, limits) as load, contextlib.AsyncExitStack() as stack:
        await load.fill(SESSIONS)
        await load.say(TEXT * 9, "a long one")
        for number in range(HELD):
            script = f"[words {WORDS}] [hang after={WORDS - 10}] {TEXT}"
            await load.begin(script, f"s{number}" if number % 4 else None, f"w{WORDS - 20}".encode(), stack)
        memory = (await load.status())["memory"]
        assert memory["growth"] > SESSIONS * len(TEXT)
        assert memory["growth_explained"] >= 0.9, memory
        assert memory["explained"] >= 0.9
        kinds = memory["kinds"]
        assert kinds["resident"]["count"] == SESSIONS + 1
        assert kinds["one-shot"]["count"] == HELD / 4
        assert kinds["turn"]["count"] == kinds["turn log"]["count"] == kinds["model request"]["count"] == HELD
        assert kinds["turn log"]["bytes"] > HELD * (len(TEXT) + 4 * WORDS)
        assert kinds["model request"]["bytes"] < HELD * len(TEXT)  # it is made of what the conversation holds
        assert kinds["model connection"]["fds"] >= HELD <= kinds["caller connection"]["fds"]
        assert kinds["store"]["bytes"] > 0
        assert abs(sum(kind["fds"] for kind in kinds.values()) - memory["descriptors"]) <= 5
        assert (kinds["history file"]["count"], kinds["history file"]["fds"]) == (1, 1)
        first, *others = (owner for owner in memory["owners"] if owner["owner"].startswith("session "))
        assert {"resident", "turn", "turn log", "model request"} == first["kinds"].keys()
        assert first["bytes"] > 2 * len(TEXT)
        assert others


async def test_status_and_metrics_agree(home: Path, model: ScriptedModel) -> None:  # noqa: F811
    """L99: HTTP, metrics and the command line report the same numbers."""
    async with loaded(home, model, 'memory_bytes = "1 GiB"\n') as load:
        await load.fill(3)
        asked = (await load.status())["memory"]
        told = (await anyio.to_thread.run_sync(load.running.call, "GET", "/api/status"))["memory"]
        metrics = await anyio.to_thread.run_sync(_metrics, load.running)
        assert asked.keys() == told.keys()
        assert asked["kinds"]["resident"] == told["kinds"]["resident"]
        for name, figure in (("held", "count"), ("held_bytes", "bytes"), ("held_descriptors", "fds")):
            assert metrics[f'tidegate_{name}{{kind="resident"}}'] == asked["kinds"]["resident"][figure]
            assert metrics[f'tidegate_{name}{{kind="base"}}'] == asked["kinds"]["base"][figure]
        assert metrics["tidegate_memory_ceiling_bytes"] == asked["ceiling"] == 1 << 30
        assert metrics["tidegate_memory_private_bytes"] > asked["kinds"]["base"]["bytes"]
        assert metrics["tidegate_memory_short"] == 0


async def test_a_gateway_above_its_ceiling_unloads_idle_conversations(home: Path, model: ScriptedModel) -> None:  # noqa: F811
    """A6, A8, P15: the memory comes back, the running turn is not touched, and one line of the log says so."""
    limits = 'residents = 1000\nresident_bytes = "256 MiB"\nmemory_bytes = "48 MiB"\n'
    async with loaded(home, model, limits) as load, contextlib.AsyncExitStack() as stack:
        await load.begin(f"[words 20] [hang after=10] {TEXT}", "busy", b"w5", stack)
        await load.fill(SESSIONS)
        status = await load.until(lambda status: "pressure" in status["sessions"]["unloads"])
        assert status["memory"]["spells"] >= 1
        status = await load.until(lambda status: status["memory"]["private"] < status["memory"]["ceiling"])
        assert 0 < status["sessions"]["residents"] < SESSIONS
        assert status["turns"]["running"] == 1
        await load.say("[say still here]", "s0")
        metrics = await anyio.to_thread.run_sync(_metrics, load.running)
        assert metrics['tidegate_unloads_total{reason="pressure"}'] >= status["sessions"]["unloads"]["pressure"]
        spells = (await load.status())["memory"]["spells"]
        assert load.running.log.read_text().count("memory is short") == spells
