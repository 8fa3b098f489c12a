"""Children of the gateway: owned, reaped, ended as a group."""

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tests.workspaces.harness import WAIT, alive, token, until
from tidegate.errors import ToolFailed
from tidegate.workspaces.processes.children import READ_BYTES, Spawner, find_program

pytestmark = pytest.mark.anyio

BASH = find_program("bash") or "/bin/bash"


@pytest.fixture
def spawner() -> Spawner:
    return Spawner(frozenset(os.sched_getaffinity(0)))


async def test_many_short_children_leave_no_zombie(spawner: Spawner) -> None:
    """L15: each one is reaped, by descriptor."""

    async def one() -> int:
        child = await spawner.spawn([BASH, "-c", "exit 3"], {})
        code = await child.wait()
        await child.end(0)
        child.close()
        return code

    with anyio.fail_after(WAIT):
        for _ in range(10):
            assert await asyncio.gather(*(one() for _ in range(20))) == [3] * 20
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    assert children == []


async def test_a_child_has_its_streams_and_no_other_descriptors(spawner: Spawner) -> None:
    """L06, X15: a child has three of the gateway's descriptors and those it was explicitly given."""
    read, write = os.pipe()
    os.write(write, b"given")
    os.close(write)
    try:
        child = await spawner.spawn(
            [BASH, "-c", "ls -l /proc/self/fd; cat <&7; echo said >&2; read x; echo $x; env"],
            {"ONLY": "this"},
            passing={read: 7},
        )
    finally:
        os.close(read)
    await child.write(b"heard\n")
    child.close_input()
    assert await child.wait() == 0
    printed = (await child.read()).decode()
    listed = [line.split(" -> ")[-1] for line in printed.partition("given")[0].splitlines()[1:]]
    assert len(listed) == 5 and sum(target.startswith("pipe:") for target in listed) == 4
    assert "given" in printed and "heard" in printed and "ONLY=this" in printed and "HOME=" not in printed
    assert await child.read_state() == b"said\n"
    child.close()


def test_descriptors_inherited_by_the_gateway_are_not_passed_on() -> None:
    """L06, X15: a supervisor may pass descriptors to the gateway, which are nobody else's."""
    read, write = os.pipe()
    look = (
        "import asyncio; from tidegate.workspaces.processes.children import Spawner\n"
        "async def main():\n"
        "    child = await Spawner(frozenset({0})).spawn(['/bin/bash', '-c', 'ls /proc/self/fd'], {})\n"
        "    print(await child.wait(), (await child.read()).decode().split())\n"
        "    child.close()\n"
        "asyncio.run(main())\n"
    )
    with contextlib.ExitStack() as opened:
        opened.callback(os.close, read)
        opened.callback(os.close, write)
        done = subprocess.run(
            [sys.executable, "-c", look],
            pass_fds=(read, write),
            capture_output=True,
            timeout=WAIT,
            check=True,
            text=True,
        )
    assert done.stdout.strip() == "0 ['0', '1', '2', '3']"  # the last one is the listed folder itself


async def test_unread_output_blocks_the_writer(spawner: Spawner) -> None:
    """L21: the writer waits; memory holds two buffers at most."""
    child = await spawner.spawn([BASH, "-c", "head -c 10000000 /dev/zero; echo done >&2"], {})
    with anyio.move_on_after(0.3):
        await child.wait()
    assert child.running
    total = 0
    while data := await child.read():
        assert len(data) <= 2 * READ_BYTES
        total += len(data)
    assert total == 10_000_000 and await child.wait() == 0
    child.close()


async def test_ending_a_child_signals_its_group_then_kills_it(spawner: Spawner) -> None:
    mark = token()
    child = await spawner.spawn(
        [BASH, "-c", f"trap 'echo asked' TERM; sleep {mark} & wait; trap '' TERM; sleep {mark}"], {}
    )
    await until(lambda: alive(f"sleep\0{mark}"))
    await child.end(0.3)
    assert await child.wait() == -9 and alive(mark) == []
    assert await child.read() == b"asked\n"
    child.close()
    await child.end(0)
    with pytest.raises(ToolFailed):
        await child.write(b"x")


async def test_starting_a_missing_program_leaves_nothing(spawner: Spawner) -> None:
    for _ in range(50):
        with pytest.raises(OSError):
            await spawner.spawn(["/no/such/program"], {})


async def test_without_free_descriptors_no_unowned_process_is_started(spawner: Spawner) -> None:
    """L09: whichever resource is missing."""
    mark = token()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A start copies descriptors to numbers above 64, so a small process needs a limit beyond that.
    highest = max(128, *(int(entry.name) for entry in Path("/proc/self/fd").iterdir()))
    gaps = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]  # every number below the limit must be in use
    while gaps[-1] < highest:
        gaps.append(os.dup(gaps[0]))
    free_enough = []
    try:
        for free in range(40):
            resource.setrlimit(resource.RLIMIT_NOFILE, (gaps[-1] + 1 + free, hard))
            try:
                child = await spawner.spawn(["/bin/sleep", mark], {})
            except OSError:
                continue
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            free_enough.append(free)
            await child.end(0)
            child.close()
    finally:
        for fd in gaps:
            os.close(fd)
    await until(lambda: alive(mark) == [])
    assert free_enough and free_enough[0] > 1, "the first starts are refused, and later ones are not"
