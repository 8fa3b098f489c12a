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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the job `endless`, which never finishes."""
    (tmp_path / "endless.py").write_text("def work(order):\n    while True:\n        pass\n")
    return tmp_path


async def test_a_child_gets_an_empty_environment_no_descriptors_and_limits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D7, L26: the gateway's secrets never reach it; it may use all cores of the gateway."""
    monkeypatch.setenv("CANARY", "a secret")
    cores = frozenset(os.sched_getaffinity(0))
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: JobRunner(cores).run("endless", {}, within=WAIT, memory=MEMORY, folder=folder))
            while not (found := children()) or "endless" not in Path(f"/proc/{found[0]}/cmdline").read_text():
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


async def test_few_jobs_run_at_once_and_all_end_at_their_deadline(folder: Path) -> None:
    """D7, L15: further jobs wait; no process is left, even if the caller is cancelled."""
    workers = JobRunner()
    most = 0

    async def one() -> None:
        with pytest.raises(TimeoutError):
            await workers.run("endless", {}, within=0.5, memory=MEMORY, folder=folder)

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
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L09: and leaves nothing behind."""
    with pytest.raises(ToolFailed, match="The image job crashed"):
        await JobRunner().run("image_job", {}, within=WAIT, memory=1)
    with pytest.raises(ToolFailed, match="The nothing crashed"):
        await JobRunner().run("nothing", {}, within=WAIT, memory=MEMORY)
    monkeypatch.setattr(sys, "executable", str(folder / "missing"))
    with pytest.raises(ToolFailed, match=r"could not be started \(No such file or directory\)"):
        await JobRunner().run("image_job", {}, within=WAIT, memory=MEMORY)
    assert children() == []
