"""Settings reach the packages that use them: a gateway with unusual values, and the effect of each."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tidegate.errors import StoreFailed
from tidegate.gateway import examine
from tidegate.gateway.gateway import Gateway
from tidegate.store import Db

pytestmark = pytest.mark.anyio

WAIT = 20

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@asynccontextmanager
async def built(home: Path, settings: str, model: ScriptedModel | None = None) -> AsyncIterator[Gateway]:
    """A gateway with these settings, closed afterwards."""
    home.mkdir(mode=0o700)
    text = settings
    if model is not None:
        text += f'\n[models.main]\napi = "openai-chat"\nbase_url = "{model.base_url}"\nmodel = "m"\nretries = 0\n'
    (home / "tidegate.toml").write_text(text)
    gateway = Gateway(home, port=0, say=lambda line: None)
    with anyio.fail_after(3 * WAIT):
        assert await gateway.build()
        try:
            yield gateway
        finally:
            await gateway.close()


async def say(gateway: Gateway, text: str, session: str) -> dict[str, Any]:
    """One message over HTTP, and the whole answer."""
    key = (gateway.home / "api-key").read_text().strip()
    headers = {"Authorization": f"Bearer {key}", "X-Session-Id": session}
    body = {"model": "main", "messages": [{"role": "user", "content": text}]}
    timeout = aiohttp.ClientTimeout(total=WAIT)
    async with (
        aiohttp.ClientSession(gateway.address, headers=headers, timeout=timeout) as client,
        client.post("/v1/chat/completions", json=body) as answer,
    ):
        found: dict[str, Any] = json.loads(await answer.read())
        assert answer.status == 200, found
        return found


async def status(gateway: Gateway) -> dict[str, Any]:
    key = (gateway.home / "api-key").read_text().strip()
    async with (
        aiohttp.ClientSession(gateway.address, headers={"Authorization": f"Bearer {key}"}) as client,
        client.get("/api/status") as answer,
    ):
        found: dict[str, Any] = await answer.json()
        return found


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(WAIT):
        while not true():
            await anyio.sleep(0.005)


async def read_without_end(gateway: Gateway, begun: threading.Event) -> str:
    """Holds a snapshot until somebody ends it; why it was ended."""

    def read(db: Db) -> None:
        db.execute("SELECT count(*) FROM sessions").fetchall()
        begun.set()
        db.execute(ENDLESS).fetchall()

    try:
        await gateway.store.read(read)
    except StoreFailed as error:
        return error.message
    raise AssertionError("it came to an end")


@pytest.mark.parametrize(("durability", "synchronous"), [("process", 1), ("power", 2)])
async def test_durability_decides_whether_a_commit_waits_for_the_disk(
    tmp_path: Path, durability: str, synchronous: int
) -> None:
    """F4: as SQLite itself says of the connection that writes (1 NORMAL, 2 FULL)."""
    async with built(tmp_path / "home", f'[store]\ndurability = "{durability}"') as gateway:
        found = await gateway.store.write(lambda db: db.execute("PRAGMA synchronous").get)
        assert (found, gateway.store.stats().durability) == (synchronous, durability)


async def test_the_number_of_concurrent_readers_is_the_configured_one(tmp_path: Path) -> None:
    """L08: five reads meet, each on a connection of its own; one fewer and they would wait for ever."""
    meeting = threading.Barrier(5, timeout=WAIT)
    async with built(tmp_path / "home", "[limits]\nreaders = 5") as gateway, anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(gateway.store.read, lambda db: meeting.wait())
    assert not meeting.broken


async def test_a_read_ends_after_the_configured_seconds(tmp_path: Path) -> None:
    """L17: and its reader is told which limit it was."""
    async with built(tmp_path / "home", "[limits]\nsnapshot_seconds = 0.1") as gateway:
        assert "0.1 s (limits.snapshot_seconds)" in await read_without_end(gateway, threading.Event())


async def test_the_log_of_the_store_is_truncated_to_the_configured_bytes(tmp_path: Path) -> None:
    """L17: a read that is in the way begins again on a fresh snapshot."""
    settings = '[limits]\nwal_bytes = "64 KiB"\nsnapshot_seconds = 600'
    async with built(tmp_path / "home", settings) as gateway:
        begun = threading.Event()

        def write(db: Db) -> None:
            db.execute("CREATE TABLE IF NOT EXISTS odd(body BLOB)")
            db.execute("INSERT INTO odd VALUES(zeroblob(100000))")

        async with anyio.create_task_group() as group:
            group.start_soon(read_without_end, gateway, begun)
            await until(begun.is_set)
            begun.clear()
            await gateway.store.write(write)
            await until(begun.is_set)
            group.cancel_scope.cancel()
        assert gateway.store.stats().wal_overruns == 1
        assert await gateway.store.write(lambda db: db.execute("PRAGMA journal_size_limit").get) == 64 * 1024


@pytest.mark.parametrize("limit", ["connections = 1", "connections_per_host = 1"])
async def test_turns_share_the_configured_number_of_connections_to_a_model(tmp_path: Path, limit: str) -> None:
    """L11: a second turn waits for the one connection, and is answered over it."""
    async with ScriptedModel() as model, built(tmp_path / "home", f"[limits]\n{limit}", model) as gateway:
        async with anyio.create_task_group() as group:
            group.start_soon(say, gateway, "[hold gate]", "first")
            with anyio.fail_after(WAIT):
                await model.held("gate")
            group.start_soon(say, gateway, "hello", "second")
            with anyio.fail_after(WAIT):
                while (await status(gateway))["clients"].get("waiting") != 1:
                    await anyio.sleep(0.005)
            assert model.stats()["requests"] == 1
            model.release("gate")
        assert (model.stats()["requests"], model.stats()["accepted_connections"]) == (2, 1)


async def test_an_unused_connection_to_a_model_is_closed_after_the_configured_time(tmp_path: Path) -> None:
    """L11: seen from the other side."""
    async with ScriptedModel() as model, built(tmp_path / "home", "[limits]\nconnection_idle = 0.1", model) as gateway:
        await say(gateway, "hello", "talk")
        assert model.stats()["accepted_connections"] == 1
        await until(lambda: model.stats()["connections"] == 0)


async def test_residents_beyond_the_configured_bytes_are_unloaded(tmp_path: Path) -> None:
    """A6, L03: far below their number, and the conversation goes on from the store."""
    settings = '[limits]\nresident_bytes = "64 KiB"\n[models.main]\napi = "demo"'
    async with built(tmp_path / "home", settings) as gateway:
        for number in range(4):
            await say(gateway, "say yes " + "tide " * 6000, f"talk {number}")
        await until(lambda: gateway.sessions.status().sessions.unloads.get("bytes", 0) > 0)
        held = gateway.sessions.status().sessions
        assert 0 < held.resident_bytes <= 64 * 1024
        assert held.residents < 4
        await asyncio.gather(*(say(gateway, "say again", f"talk {number}") for number in range(4)))


@pytest.mark.parametrize(
    ("agent", "words"),
    [('delegates = ["other"]', "delegates has no effect"), ('tools = ["delegate"]', "delegates names no agent")],
)
def test_delegates_without_the_toolset_and_the_toolset_without_delegates_are_warnings(
    tmp_path: Path, agent: str, words: str
) -> None:
    """F1: it starts all the same."""
    (tmp_path / "tidegate.toml").write_text(f"[agents.main]\n{agent}\n[agents.other]\n")
    (warning,) = examine(tmp_path).warnings
    assert words in warning and "[agents.main]" in warning
