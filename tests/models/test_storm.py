"""Stress tests: thousands of cancelled TLS requests next to a store under write load, and a network that keeps dropping
connections."""

import hashlib
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from bench.scripted_model import ScriptedModel
from tests.http_client.authority import Authority
from tests.models.support import Listener, Slept, ask, configured
from tests.models.test_clients import FEW, sockets, until_idle
from tidegate.errors import ModelFailed
from tidegate.http_client import HttpClient
from tidegate.models import Model
from tidegate.store import Store

pytestmark = pytest.mark.anyio

CANCELLED = 2000
AT_ONCE = 50
ROUNDS = 40
SEED = 20240117


@pytest.fixture
async def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedModel]:
    """A model behind https, signed by an authority that this process trusts during the test."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    authority = await to_thread.run_sync(Authority, tmp_path / "ca")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    async with ScriptedModel(tls=await to_thread.run_sync(authority.context, "IP:127.0.0.1")) as server:
        yield server


def descriptors() -> dict[str, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except FileNotFoundError:
            continue  # the descriptor of this listing
    return found


def _write(db: Any, number: int) -> None:
    page = hashlib.sha256(b"%d" % number).digest() * 128
    db.execute("INSERT INTO storm VALUES (?, ?, ?)", (number, page, hashlib.sha256(page).hexdigest()))


def _wrong(db: Any) -> list[int]:
    """Rows that differ from what was written."""
    rows = db.execute("SELECT number, page, digest FROM storm")
    return [number for number, page, digest in rows if hashlib.sha256(page).hexdigest() != digest]


async def test_two_thousand_cancelled_tls_requests_damage_no_file(trusted: ScriptedModel, tmp_path: Path) -> None:
    """L10: cancelled while connecting, in the TLS handshake, waiting and reading, while a store is written. Every page
    stays intact, no descriptor is left over or mixed up, and the pool still works."""
    chance = random.Random(SEED)
    path = tmp_path / "t.db"
    written = 0
    async with Store.open(path) as store, HttpClient() as clients:
        await store.write(lambda db: db.execute("CREATE TABLE storm(number, page, digest)"))
        async with configured(trusted.base_url, clients=clients, retries=0) as model:
            await ask(model, "hello")
            before = descriptors()
            stop = anyio.Event()

            async def writing() -> None:
                nonlocal written
                while not stop.is_set():
                    await store.write(_write, written)
                    written += 1

            async def cancelled(number: int) -> None:
                """Half of them when they have heard the first words, the others at any moment before."""
                with anyio.CancelScope() as scope:
                    if number % 2:
                        text, listener = f"{number} [words 60] [slow ms=2]", Hasty(scope)
                    else:
                        text, listener = f"{number} [hang]", Listener()
                        scope.deadline = anyio.current_time() + chance.random() * 0.12
                    await ask(model, text, listener)
                assert scope.cancelled_caught

            with anyio.fail_after(120):
                async with anyio.create_task_group() as group:
                    group.start_soon(writing)
                    for first in range(0, CANCELLED, AT_ONCE):
                        async with anyio.create_task_group() as wave:
                            for number in range(first, first + AT_ONCE):
                                wave.start_soon(cancelled, number)
                    stop.set()
            await until_idle(trusted)
            assert clients.stats().busy == 0
            assert (await ask(model, "still there?")).text.startswith("The tide")
            kept = {fd: name for fd, name in descriptors().items() if not name.startswith("socket:")}
            assert kept == {fd: name for fd, name in before.items() if not name.startswith("socket:")}
            assert sockets(trusted).get("CLOSE_WAIT", 0) == 0
        assert written > 0
        assert await store.read(_wrong) == []
        assert list(await store.integrity()) == []
    assert path.read_bytes()[:16] == b"SQLite format 3\0"
    assert trusted.counts["requests"] >= CANCELLED / 2, "half of them at least came as far as an answer"


class Hasty(Listener):
    """Stops at the first text."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        super().__init__()
        self.pieces = _Enough(scope)


class _Enough(list[str]):
    def __init__(self, scope: anyio.CancelScope) -> None:
        super().__init__()
        self._scope = scope

    def append(self, text: str) -> None:
        super().append(text)
        self._scope.cancel()


async def test_repeatedly_dropped_connections_leave_none_half_closed(server: ScriptedModel) -> None:
    """L11: idle connections are half-closed or reset, busy ones break in the middle, again and again. Every message is
    still answered, and the number of open connections stays bounded."""
    chance = random.Random(SEED)
    scripts = ("hello", "[close times=1]", "[cut after=0 times=1]", "[cut after=3 times=1]", "[status 503 times=1]")
    async with (
        HttpClient(per_host=16) as clients,
        configured(server.base_url, clients=clients, sleep=Slept(), retries=3) as model,
    ):
        for round in range(ROUNDS):
            async with anyio.create_task_group() as group:
                for number in range(16):
                    group.start_soon(_answered, model, f"{round} {number} {chance.choice(scripts)}")
            if chance.random() < 0.5:
                server.close_idle()
            else:
                for connection in tuple(server.connections):
                    connection.end()
            with anyio.fail_after(20):
                while server.connections or clients.stats().open:
                    await anyio.lowlevel.checkpoint()
            states = sockets(server)
            assert states.get("CLOSE_WAIT", 0) <= FEW
            assert states.get("ESTABLISHED", 0) <= FEW
    assert server.stats()["accepted_connections"] > ROUNDS


async def _answered(model: Model, text: str) -> None:
    with anyio.fail_after(20):
        try:
            assert (await ask(model, text)).text.startswith("The tide")
        except ModelFailed as failure:
            raise AssertionError(f"{text}: {failure.message}") from failure
