"""A gateway-like program that is the first process of its system: `unshare -p -f --mount-proc python -m
tests.workspaces.first_process HOME BACKEND`.

Sessions start commands and a process, are interrupted and end: first normally, then with their sandboxes and guardians
killed from outside. It prints the number of zombies after the first, after the second, and after reaping.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.workspaces.harness import WorkspaceHarness, alive, open_workspaces, token, until

SESSIONS = 4
LOOKS = 12
"""More than needed: reaping one process may let another end."""


def zombies() -> int:
    count = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            count += entry.name.isdecimal() and (entry / "stat").read_text().rpartition(") ")[2].startswith("Z")
    return count


async def come_and_go(harness: WorkspaceHarness, harm: Callable[[int | None], None]) -> None:
    session, mark = await harness.new_session(), token()
    await harness.output_of(session, f"(setsid env -i sleep {mark} &); sleep 0.01 & wait; true")
    await harness.of(session).start("server", f"(setsid sleep {mark} &); trap '' TERM; sleep {mark}; :")
    command = asyncio.ensure_future(harness.run(session, f"(setsid sleep {mark} &); sleep {mark}; :"))
    await until(lambda: len(alive(f"sleep\0{mark}")) >= 4)
    live_sandbox = harness.live_sandbox(session)
    assert live_sandbox is not None and live_sandbox.sandbox is not None
    harm(live_sandbox.sandbox.pid)
    command.cancel()
    await asyncio.gather(command, return_exceptions=True)
    await harness.end(session)
    assert alive(mark) == []


def no_harm(_: int | None) -> None:
    pass


def kill_box(sandbox: int | None) -> None:
    if sandbox is not None:
        os.kill(sandbox, signal.SIGKILL)


def kill_between(_: int | None) -> None:
    for pid in [*alive("nsenter"), *alive("guardian.py")]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def live(home: Path, backend: str) -> None:
    async with open_workspaces(home, backend=backend) as harness:
        for _ in range(SESSIONS):
            await come_and_go(harness, no_harm)
        plain = zombies()
        for harm in (kill_box, kill_between):
            await come_and_go(harness, harm)
        harmed = zombies()
        for _ in range(LOOKS):
            await harness.workspaces.reconcile()
        print("zombies", plain, harmed, zombies(), flush=True)


if __name__ == "__main__":
    assert os.getpid() == 1
    asyncio.run(live(Path(sys.argv[1]), sys.argv[2]))
