"""What is in a control group: read, counted and signalled by the kernel's files.

Guarantee: a signal reaches the very process that was found in the group, or none; what has gone meanwhile is no error.
What only waits to be reaped is not counted. All of it blocks, if only for the kernel: for threads.
"""

import contextlib
import os
import signal
from pathlib import Path

from tidegate.workspaces.kernel.cgroup_hierarchy import PROCESSES

_COUNTS_BYTES = 4096  # more than there is in a file that counts


def write(path: Path, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def count(folder: Path, file: str, word: str) -> int:
    """The number that stands behind a word; 0 where there is none."""
    try:
        fd = os.open(folder / file, os.O_RDONLY | os.O_CLOEXEC)  # lint: allow it is in the kernel's memory
        try:
            lines = os.read(fd, _COUNTS_BYTES).decode().splitlines()
        finally:
            os.close(fd)
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == word), 0)


def members(folder: Path) -> list[int]:
    """Of this group alone, not of those below it."""
    try:
        return [int(pid) for pid in (folder / PROCESSES).read_text().split() if pid != "0"]  # of another namespace
    except OSError:
        return []


def send(folder: Path, number: int, besides: int | None = None) -> int:
    """A signal to all that is in a group, and in those below it, but one. To how many."""
    found = [pid for here, _, _ in os.walk(folder) for pid in members(Path(here)) if pid != besides]
    return sum(_send(pid, number, folder.name) for pid in found)


def kill(folder: Path) -> None:
    try:
        write(folder / "cgroup.kill", "1")
    except OSError:  # version 1, or a kernel before 5.14
        send(folder, signal.SIGKILL)


def shut(folder: Path) -> None:
    """Nothing new begins in it any more, where that can be had: so that what is there can be killed, one by one."""
    with contextlib.suppress(OSError):
        write(folder / "pids.max", "0")


def removed(folder: Path) -> bool:
    """Whether it is gone, with those below it; else that is tried."""
    for here, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # what was killed is still ending
            Path(here).rmdir()
    return not folder.exists()


def _send(pid: int, number: int, name: str) -> bool:
    """To a member of a group of this name, and to no other process that has got its number since."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        if not any(name in line.split("/") for line in groups):
            return False
        signal.pidfd_send_signal(process, number)
    except OSError:
        return False  # it has gone by itself, or is not ours to signal
    finally:
        os.close(process)
    return True
