"""Jobs in child processes: bounded, reaped, and without access to anything they do not need."""

import os
import sys
from pathlib import Path

import anyio
import pytest

from tests.spool.spools import WAIT
from tidegate.errors import ToolFailed
from tidegate.spool.jobs.runner import AT_ONCE, JobRunner

pytestmark = pytest.mark.anyio
MEMORY = 256 * 1024 * 1024


def children() -> list[int]:
    listed = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return [int(pid) for pid in " ".join(listed).split()]


def endless(path: Path) -> dict[str, object]:
    """An order that never finishes."""
    path.write_text("a" * 5000 + "!")
    rest = {"offset": 0, "byte": 0, "limit": 1, "bytes": 1000, "seconds": 60}
    return {"path": str(path), "pattern": "(a+)+$", "regex": True, **rest}


async def test_a_child_gets_an_empty_environment_no_descriptors_and_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D7, L26: the gateway's secrets never reach it; it may use all cores of the gateway."""
    monkeypatch.setenv("CANARY", "a secret")
    cores = frozenset(os.sched_getaffinity(0))
    order = endless(tmp_path / "file")
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: JobRunner(cores).run("search_job", order, within=WAIT, memory=MEMORY))
            while not (found := children()) or "(a+)+" not in Path(f"/proc/{found[0]}/cmdline").read_text():
                await anyio.sleep(0.01)
            proc = Path("/proc") / str(found[0])
            while "Max processes             0" not in (proc / "limits").read_text():
                await anyio.sleep(0.01)
            assert (proc / "environ").read_bytes() == b""
            assert f"Max address space         {MEMORY}" in (proc / "limits").read_text()
            assert {fd.name for fd in (proc / "fd").iterdir()} <= {"0", "1", "2", "3"}
            assert os.sched_getaffinity(found[0]) == cores
            group.cancel_scope.cancel()
    assert children() == []


async def test_few_jobs_run_at_once_and_all_end_at_their_deadline(tmp_path: Path) -> None:
    """D7, L15: further jobs wait; no process is left, even if the caller is cancelled."""
    workers = JobRunner()
    order = endless(tmp_path / "file")
    most = 0

    async def one() -> None:
        with pytest.raises(TimeoutError):
            await workers.run("search_job", order, within=0.5, memory=MEMORY)

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, len(children()))
            await anyio.sleep(0.01)

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(count)
            async with anyio.create_task_group() as jobs:
                for _ in range(AT_ONCE + 2):
                    jobs.start_soon(one)
            group.cancel_scope.cancel()
    assert most == AT_ONCE
    assert children() == []


async def test_a_child_that_cannot_start_or_crashes_is_reported_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L09: and leaves nothing behind."""
    order = endless(tmp_path / "file")
    with pytest.raises(ToolFailed, match="The search job crashed"):
        await JobRunner().run("search_job", order, within=WAIT, memory=1)
    with pytest.raises(ToolFailed, match="The nothing crashed"):
        await JobRunner().run("nothing", order, within=WAIT, memory=MEMORY)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(ToolFailed, match=r"could not be started \(No such file or directory\)"):
        await JobRunner().run("search_job", order, within=WAIT, memory=MEMORY)
    assert children() == []
