"""The limits of a workspace, and what happens when they are exceeded."""

import asyncio
from pathlib import Path

import pytest

from tests.workspaces.harness import WorkspaceHarness, alive, open_workspaces, token, until
from tidegate.workspaces.bounds import WorkspaceBounds

pytestmark = pytest.mark.anyio

MIB = 1 << 20
EAT = "dd if=/dev/zero bs={0} count=1 2>/dev/null | sleep 1000"
"""Reads this much into its memory and then waits."""


async def memory(harness: WorkspaceHarness, session: str) -> int:
    live_sandbox = harness.live_sandbox(session)
    return (
        0 if live_sandbox is None or live_sandbox.sandbox is None else (await live_sandbox.sandbox.load()).memory_bytes
    )


async def test_processes_that_exceed_the_memory_limit_together_are_ended_and_reported(home: Path) -> None:
    """L14, L24: each is below the limit of a process, together they exceed the session's."""
    async with open_workspaces(home, polled=True, memory_bytes=100 * MIB) as harness:
        session = await harness.new_session()
        for number in range(1, 4):
            await harness.of(session).start(f"eater{number}", EAT.format(40 * MIB))
            while await memory(harness, session) < number * 40 * MIB:
                await asyncio.sleep(0.01)
            if number < 3:
                await harness.workspaces.reconcile()
                assert len(harness.live_sandbox(session).running) == number  # type: ignore[union-attr]
        await harness.workspaces.reconcile()
        await until(lambda: harness.live_sandbox(session).running == {})  # type: ignore[union-attr]
        told = await harness.take_notices(session)
        assert "workspaces.memory_bytes" in told and "eater1, eater2, eater3" in told
        assert {view.state for view in await harness.of(session).list()} == {"ended"}
        assert await harness.output_of(session, "echo fine") == "fine"


async def test_memory_shared_by_forks_counts_once(home: Path) -> None:
    """L03: a process that has forked does not count as all its children together."""
    mark = token()
    async with open_workspaces(home, polled=True, memory_bytes=200 * MIB) as harness:
        session = await harness.new_session()
        children = f"for i in 1 2 3 4; do (sleep {mark}; : $x) & done; wait"
        await harness.of(session).start("forker", f"printf -v x '%{60 * MIB}s' ' '; {children}")
        await until(lambda: len(alive(f"sleep\0{mark}")) == 4)
        await harness.workspaces.reconcile()
        assert set(harness.live_sandbox(session).running) == {"forker"}  # type: ignore[union-attr]
        assert 50 * MIB < await memory(harness, session) < 200 * MIB


async def test_file_systems_in_memory_count_as_memory(home: Path) -> None:
    """L24: although it belongs to no process; and it never exceeds the session's memory."""
    async with open_workspaces(home, polled=True, memory_bytes=60 * MIB) as harness:
        session = await harness.new_session()
        sizes = await harness.output_of(session, "df --output=size -B1 /dev/shm /run | tail -n +2")
        assert [int(size) for size in sizes.split()] == [30 * MIB] * 2
        eat = EAT.format(25 * MIB)
        await harness.output_of(
            session, f"head -c {25 * MIB} /dev/zero > /dev/shm/x; head -c {20 * MIB} /dev/zero > /run/x"
        )
        assert await memory(harness, session) >= 45 * MIB
        done, _ = await harness.run(session, eat)
        assert done.code != 0 and "workspaces.memory_bytes" in done.note
        assert await harness.output_of(session, "ls /dev/shm /run") == "/dev/shm:\n\n/run:"


async def test_file_systems_in_memory_are_bounded(home: Path) -> None:
    async with open_workspaces(home, memory_bytes=1 << 40) as harness:
        sizes = await harness.output_of(await harness.new_session(), "df --output=size -B1 /dev/shm /run | tail -n +2")
        assert sizes.split() == [str(64 * MIB)] * 2


async def test_the_process_limit_is_passed_to_the_kernel(home: Path) -> None:
    """L14: without control groups; the test of a killed gateway shows that the kernel counts them."""
    async with open_workspaces(home, polled=True, processes=77) as harness:
        assert await harness.output_of(await harness.new_session(), "ulimit -u; ulimit -Hu") == "77\n77"


CAPTURE = """
import ctypes, os, pathlib, sys, time
ptrace, seize, detach = ctypes.CDLL(None, use_errno=True).ptrace, 0x4206, 17
captured = set()
print("waiting", flush=True)
while True:
    newest = int(pathlib.Path("/proc/loadavg").read_text().split()[-1])
    for pid in [newest + 1, newest, newest - 1] * 20:
        if pid in captured or pid == os.getpid():
            continue
        if ptrace(seize, pid, None, None) == 0:
            limits = pathlib.Path(f"/proc/{pid}/limits").read_text()
            ptrace(0x4207, pid, None, None)
            os.waitpid(pid, 0x40000000)
            ptrace(detach, pid, None, None)
            print(*(line for line in limits.splitlines() if line[:12] in sys.argv[1:]), sep="\\n", flush=True)
            captured.add(pid)
            break
"""
"""Attaches to every process as soon as the kernel allows it, and prints its limits."""

LIMITED = ("Max processes", "Max data size", "Max file size")


async def test_a_command_cannot_capture_the_next_one_before_its_limits_are_set(home: Path) -> None:
    """P14: a debugger sees a process of its own session only with all limits."""
    async with open_workspaces(home, polled=True, processes=77, memory_bytes=300 * MIB) as harness:
        session = await harness.new_session()
        wanted = " ".join(f"'{name[:12]}'" for name in LIMITED)
        await harness.of(session).start("debugger", f"exec python3 -c '{CAPTURE}' {wanted} > /tmp/seen")
        while "waiting" not in await harness.output_of(session, "cat /tmp/seen 2>/dev/null || true"):
            pass
        for _ in range(30):
            await harness.output_of(session, ":")
        seen = (await harness.output_of(session, "cat /tmp/seen")).splitlines()
    assert len(seen) > 3, seen
    assert not [line for line in seen if "unlimited" in line], seen


async def test_an_ended_command_is_told_which_limit_it_exceeded(home: Path) -> None:
    async with open_workspaces(home, polled=True, memory_bytes=64 * MIB) as harness:
        session = await harness.new_session()
        eat = EAT.format(30 * MIB)
        done, _ = await harness.run(session, f"({eat}) & ({eat}) & ({eat}) & wait")
        assert done.code != 0 and "workspaces.memory_bytes" in done.note


async def test_too_many_background_processes_are_ended(home: Path) -> None:
    """L14: where the kernel does not count them, the timer does."""
    mark = token()
    async with open_workspaces(home, polled=True, processes=30) as harness:
        session = await harness.new_session()
        await harness.of(session).start("crowd", f"for i in $(seq 60); do sleep {mark} & done; wait")
        await until(lambda: len(alive(f"sleep\0{mark}")) >= 25)
        for _ in range(100):
            await harness.workspaces.reconcile()
            if len(alive(f"sleep\0{mark}")) <= 30:
                break
        live_sandbox = harness.live_sandbox(session)
        assert (
            live_sandbox is None or live_sandbox.sandbox is None or (await live_sandbox.sandbox.load()).processes <= 30
        )


async def test_too_many_files_end_writers_but_not_removers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L19: the disk of a workspace is bounded and measured while something runs."""
    bounds = WorkspaceBounds(measure_again=0)
    async with open_workspaces(home, disk_bytes=4 * MIB, bounds=bounds) as harness:
        session = await harness.new_session()
        writer = "for i in $(seq 100); do head -c 1000000 /dev/zero > f$i; sleep 0.05; done; sleep 1000"
        done, _ = await harness.run(session, writer)
        assert done.code != 0 and "workspaces.disk_bytes" in done.note
        assert "workspaces.disk_bytes" in await harness.take_notices(session)
        assert await harness.output_of(session, "rm f*; sleep 1; echo removed") == "removed"


async def test_a_project_has_no_disk_limit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_workspaces(home, disk_bytes=MIB) as harness:
        (home / "project").mkdir()
        (home / "project" / "large").write_bytes(b"x" * 3 * MIB)
        session = await harness.new_session()
        await harness.of(session, "project").start("server", "sleep 1000")
        await harness.workspaces.reconcile()
        assert set(harness.live_sandbox(session).running) == {"server"}  # type: ignore[union-attr]
