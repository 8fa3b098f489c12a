"""Health, readiness and metrics."""

import random
import threading
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.in_process import InProcessGateway
from tests.web.client import call, chat
from tidegate.errors import StoreFull
from tidegate.status_report import SessionsStatus
from tidegate.web import Health

pytestmark = pytest.mark.anyio


async def test_healthz_needs_no_key_and_reveals_nothing(gateway: InProcessGateway) -> None:
    """X01: only that the process is running."""
    reply = await call(gateway, "GET", "/healthz", key="")
    assert reply.status == 200
    assert reply.json == {"status": "ok"}
    for path in ("/readyz", "/metrics", "/api/status"):
        assert (await call(gateway, "GET", path, key="")).status == 401


async def test_readyz_checks_end_to_end(gateway: InProcessGateway) -> None:
    """S19: loop, a store write, known problems, timers; each by name."""
    gateway.health.expect("sweep", 60)
    reply = await call(gateway, "GET", "/readyz")
    assert reply.status == 200
    assert reply.json["ready"] is True
    assert set(reply.json["checks"]) == {"loop", "store", "database", "timer sweep"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_readyz_fails_when_a_timer_stops(gateway: InProcessGateway) -> None:
    """L21: its next beat makes it pass again."""
    clock = Clock()
    health = Health(gateway.store, clock=clock)
    health.expect("sweep", 60)
    clock.now += 150
    assert (await health.check()).ready
    clock.now += 100
    found = await health.check()
    assert not found.ready
    assert not found.checks["timer sweep"].ok and found.checks["store"].ok
    health.beat("sweep")
    health.beat("somebody else")
    clock.now += 2
    assert (await health.check()).ready


async def test_readyz_fails_when_the_store_accepts_no_write(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L21: the check says why; requests without a write still work."""

    async def full(*_: Any) -> None:
        raise StoreFull("The disk is full.")

    monkeypatch.setattr(gateway.store, "write", full)
    reply = await call(gateway, "GET", "/readyz")
    assert reply.status == 503
    assert reply.json["checks"]["store"] == {"ok": False, "detail": "The disk is full."}
    assert (await call(gateway, "GET", "/v1/models")).status == 200


async def test_a_full_disk_is_507_and_reads_continue(gateway: InProcessGateway) -> None:
    """H20, L21: with a plain sentence; when there is space again, everything works again."""
    assert (await chat(gateway, session="n")).status == 200

    def limit(db: Any, pages: int) -> None:
        db.execute(f"PRAGMA max_page_count({pages or db.execute('PRAGMA page_count').get})").fetchall()

    await gateway.store.write(limit, 0)
    large = random.Random(7).randbytes(200_000).hex()
    refused = await chat(gateway, large, session="n")
    assert refused.status == 507
    assert refused.error["code"] == "store_full"
    assert int(refused.headers["Retry-After"]) >= 1
    assert (await call(gateway, "GET", "/v1/models")).status == 200
    assert len((await call(gateway, "GET", "/api/sessions")).json["sessions"]) == 1
    await gateway.store.write(limit, 1_000_000)
    assert (await chat(gateway, large, session="n")).status == 200


async def test_a_blocked_loop_is_reported(gateway: InProcessGateway) -> None:
    """L20: with the time by which it was late."""
    clock = Clock()
    health = Health(gateway.store, clock=clock)
    async with anyio.create_task_group() as group:
        group.start_soon(health.watch_loop)
        await anyio.sleep(0.01)
        assert health.lag == 0.0
        clock.now += 5
        assert health.lag >= 4
        assert not (await health.check()).checks["loop"].ok
        group.cancel_scope.cancel()


async def test_readyz_writes_to_the_store_at_most_once_a_second(gateway: InProcessGateway) -> None:
    """L21: frequent probes cost nothing."""
    before = gateway.store.stats().writes
    for _ in range(10):
        assert (await call(gateway, "GET", "/readyz")).status == 200
    assert gateway.store.stats().writes - before <= 3


async def test_metrics_are_read_from_the_packages(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """L04: every bound is visible; labels come from closed sets."""
    await chat(gateway, session="n")
    await chat(gateway, "x [status 500]")
    await call(gateway, "GET", "/some/unknown/path")
    await call(gateway, "GET", "/another/unknown/path")
    reply = await call(gateway, "GET", "/metrics")
    assert reply.headers["Content-Type"].startswith("text/plain")
    lines = reply.body.decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values['tidegate_turns_ended_total{state="answered"}'] == "1.0"
    assert values['tidegate_turns_ended_total{state="failed"}'] == "1.0"
    assert values['tidegate_http_requests_total{route="/v1/chat/completions",status="200"}'] == "1.0"
    assert values['tidegate_http_requests_total{route="other",status="404"}'] == "2.0"
    assert values["tidegate_chat_seconds_count"] == "2.0"
    assert float(values["tidegate_store_writes_total"]) > 0
    assert values["tidegate_sessions_residents"] == "1.0"
    assert not [line for line in lines if "unknown/path" in line]


async def test_metrics_are_read_on_the_loop_that_owns_what_they_read(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L04, H20: a scrape never reads a map while it is being changed."""
    threads: set[int] = set()
    status = gateway.service.status

    def noted() -> SessionsStatus:
        threads.add(threading.get_ident())
        return status()

    monkeypatch.setattr(gateway.service, "status", noted)
    statuses: list[int] = []

    async def talk(name: str) -> None:
        for _ in range(3):
            assert (await chat(gateway, session=name)).status == 200

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(talk, f"n{number}")
        for _ in range(10):
            statuses.append((await call(gateway, "GET", "/metrics")).status)
    assert set(statuses) == {200}
    assert threads == {threading.get_ident()}


async def test_metrics_show_every_cache_with_its_bytes_and_evictions(gateway: InProcessGateway) -> None:
    """L04: every cache of the sessions and web packages, by name."""
    await chat(gateway, session="n")
    assert (await call(gateway, "GET", "/", key="")).status == 200
    lines = (await call(gateway, "GET", "/metrics")).body.decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    for name in ("callers", "pages", "prefixes", "resolved toolsets", "prompt prefixes"):
        for kind in ("entries", "cap", "bytes", "hits_total", "misses_total", "evictions_total"):
            assert f'tidegate_cache_{kind}{{cache="{name}"}}' in values, (kind, name)
    assert values['tidegate_cache_entries{cache="prompt prefixes"}'] == "1.0"
    assert float(values['tidegate_cache_bytes{cache="pages"}']) > 0


async def test_status_is_what_the_gateway_reports(gateway: InProcessGateway) -> None:
    """S19: for the owner."""
    status = (await call(gateway, "GET", "/api/status")).json
    assert status["turns"]["running"] == 0
