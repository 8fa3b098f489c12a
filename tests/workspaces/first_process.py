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

from tests.workspaces.making import Room, alive, room, token, until

SESSIONS = 4
LOOKS = 12
"""More than needed: reaping one process may let another end."""


def zombies() -> int:
    count = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            count += entry.name.isdecimal() and (entry / "stat").read_text().rpartition(") ")[2].startswith("Z")
    return count


async def come_and_go(rooms: Room, harm: Callable[[int | None], None]) -> None:
    session, mark = await rooms.new_session(), token()
    await rooms.said(session, f"(setsid env -i sleep {mark} &); sleep 0.01 & wait; true")
    await rooms.of(session).start("server", f"(setsid sleep {mark} &); trap '' TERM; sleep {mark}; :")
    command = asyncio.ensure_future(rooms.run(session, f"(setsid sleep {mark} &); sleep {mark}; :"))
    await until(lambda: len(alive(f"sleep\0{mark}")) >= 4)
    live_sandbox = rooms.live_sandbox(session)
    assert live_sandbox is not None and live_sandbox.sandbox is not None
    harm(live_sandbox.sandbox.pid)
    command.cancel()
    await asyncio.gather(command, return_exceptions=True)
    await rooms.end(session)
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
    async with room(home, backend=backend) as rooms:
        for _ in range(SESSIONS):
            await come_and_go(rooms, no_harm)
        plain = zombies()
        for harm in (kill_box, kill_between):
            await come_and_go(rooms, harm)
        harmed = zombies()
        for _ in range(LOOKS):
            await rooms.workspaces.reconcile()
        print("zombies", plain, harmed, zombies(), flush=True)


if __name__ == "__main__":
    assert os.getpid() == 1
    asyncio.run(live(Path(sys.argv[1]), sys.argv[2]))
