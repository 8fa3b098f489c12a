"""The timers of a running gateway: each is started, watched and reported."""

import time
from pathlib import Path

import aiohttp
import anyio
import pytest

from tests.gateway.process import WAIT, gateway
from tidegate.gateway.gateway import Gateway
from tidegate.web.app.health import LAG_ALLOWED, LAG_EVERY

CHORES = {
    *("sweep", "expire", "recover", "index", "questions", "tidy", "learn"),
    *("workspaces", "folders", "spool"),
    *("trim", "memory", "core", "files", "integrity", "servers"),
}
"""All that a gateway does by itself: one that is missing here or there is noticed."""


def test_every_task_has_a_heartbeat_and_an_idle_resident_is_unloaded(tmp_path: Path) -> None:
    """A7, L16, L30: /readyz expects a beat of each, /api/status tells of each, and the sweep runs because a timer runs
    it, not because somebody asks."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text("[limits]\nidle_ttl = 1\n")
    with gateway(home) as running:
        running.say("say hello", "talk")
        checks = running.call("GET", "/readyz")["checks"]
        assert {f"timer {name}" for name in CHORES} | {"loop", "store"} <= set(checks)
        assert all(check["ok"] for check in checks.values())
        deadline = time.monotonic() + WAIT
        while (status := running.call("GET", "/api/status"))["sessions"]["unloads"] != {"idle": 1}:
            assert time.monotonic() < deadline, status["sessions"]
        assert (status["sessions"]["residents"], status["sessions"]["present"]) == (0, 0)
        maintenance_tasks = {chore["name"]: chore for chore in status["chores"]}
        assert set(maintenance_tasks) == CHORES
        assert {f"timer {name}" for name in maintenance_tasks} == {name for name in checks if name.startswith("timer ")}
        assert maintenance_tasks["sweep"]["runs"] > 0 and maintenance_tasks["sweep"]["last"] is not None


@pytest.mark.anyio
@pytest.mark.parametrize("late", [False, True])
async def test_a_blocked_loop_fails_the_readiness_check(tmp_path: Path, late: bool) -> None:
    """L30: the loop is measured from the moment the server runs; seen here by a clock that jumps between two ticks."""
    jump = 0.0
    server = Gateway(tmp_path / "home", port=0, say=lambda line: None, clock=lambda: time.monotonic() + jump)
    with anyio.fail_after(3 * WAIT):
        assert await server.build()
        try:
            key = (server.home / "api-key").read_text().strip()
            headers = {"Authorization": f"Bearer {key}"}
            async with aiohttp.ClientSession(server.address, headers=headers) as client:
                if late:
                    jump = LAG_EVERY + 2 * LAG_ALLOWED
                async with client.get("/readyz") as answer:
                    found = await answer.json()
            assert answer.status == (503 if late else 200)
            assert found["checks"]["loop"]["ok"] is not late
        finally:
            await server.close()
