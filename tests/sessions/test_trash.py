"""Files of ended sessions: kept for a time and up to a size, and then removed."""

import json
from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, Core, core
from tests.sessions.test_maintenance import run
from tidegate.store import workspaces
from tidegate.workspaces.session_folders import disk_usage_bytes

pytestmark = pytest.mark.anyio

DAY = 86400.0
SMALL = '[workspaces]\nbackend = "none"\ntrash = "7d"\ntrash_bytes = "1 MiB"'


async def worked(gateway: Core, name: str, size: int) -> str:
    """A session that wrote a file of this many bytes, and has ended."""
    call = {"path": "made.txt", "content": "x" * size}
    outcome = await gateway.say(f"[tool write_file {json.dumps(call)}] [say done]", name=name)
    assert await gateway.service.end(outcome.session, ANNA, "new")
    return outcome.session


def trash_names(home: Path) -> set[str]:
    return {path.name for path in (home / "trash").iterdir() if "." not in path.name}


async def test_beyond_its_quota_the_oldest_leave_the_trash_first(home: Path, model: ScriptedModel) -> None:
    """L19: the others stay for their time; removed ones are removed in the store too."""
    now = [1e9]
    async with core(home, SMALL, model=model, clock=lambda: now[0]) as gateway:
        made = []
        for number in range(4):
            now[0] += 60
            made.append(await worked(gateway, f"n{number}", 300_000))
        assert trash_names(home) == set(made)
        for _ in range(2):
            await run(gateway, "folders")
            assert trash_names(home) == set(made[1:])
        row = await gateway.store.read(workspaces.get, made[0])
        assert row is not None and row.state == "gone"
        alone = await worked(gateway, "alone", 1_200_000)
        assert alone in trash_names(home)
        await run(gateway, "folders")
        assert trash_names(home) == set()


async def test_a_folder_in_the_trash_is_measured_once(home: Path, model: ScriptedModel) -> None:
    """L19: its size no longer changes, and scanning everything every few minutes would be expensive."""
    async with core(home, SMALL, model=model) as gateway:
        session = await worked(gateway, "one", 1000)
        await run(gateway, "folders")
        (home / "trash" / session / "more").write_bytes(b"x" * 2_000_000)
        await run(gateway, "folders")
        assert trash_names(home) == {session}


async def test_ninety_days_leave_no_more_than_a_week_and_a_quota(home: Path, model: ScriptedModel) -> None:
    """L19: at the end of each day, however busy it was."""
    now = [1e9]
    async with core(home, SMALL, model=model, clock=lambda: now[0]) as gateway:
        for day in range(90):
            size = 400_000 if day % 10 == 0 else 20_000
            await worked(gateway, f"day {day}", size)
            now[0] += DAY
            await run(gateway, "folders")
            assert disk_usage_bytes([home / "trash"], 1 << 30) <= 1 << 20
            assert len(trash_names(home)) <= 7
            assert not any(path.name.startswith("s_") for path in (home / "workspaces").iterdir())
        assert trash_names(home)
