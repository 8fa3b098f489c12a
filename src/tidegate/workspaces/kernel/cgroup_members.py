"""The processes in a control group: listed, counted and signalled through the kernel's files.

A signal reaches exactly the process that was found in the group, or none; it is not an error if the process has exited
by then. Zombies are not counted. All functions block, if only on the kernel, and belong in worker threads.
"""

import contextlib
import os
import signal
from pathlib import Path

from tidegate.workspaces.kernel.cgroup_hierarchy import PROCESSES

_COUNTS_BYTES = 4096  # more than such a file contains


def write(path: Path, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def count(folder: Path, file: str, word: str) -> int:
    """Returns the number that follows a key in a file; 0 if there is none."""
    try:
        fd = os.open(folder / file, os.O_RDONLY | os.O_CLOEXEC)  # lint: allow this is in the kernel's memory
        try:
            lines = os.read(fd, _COUNTS_BYTES).decode().splitlines()
        finally:
            os.close(fd)
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == word), 0)


def members(folder: Path) -> list[int]:
    """Returns the processes in this group, without those in the groups below it."""
    try:
        # 0 stands for a process in another namespace
        return [int(pid) for pid in (folder / PROCESSES).read_text().split() if pid != "0"]
    except OSError:
        return []


def send(folder: Path, number: int, besides: int | None = None) -> int:
    """Signals every process in a group and in the groups below it, except `besides`. Returns how many were
    signalled."""
    found = [pid for here, _, _ in os.walk(folder) for pid in members(Path(here)) if pid != besides]
    return sum(_send(pid, number, folder.name) for pid in found)


def kill(folder: Path) -> None:
    try:
        write(folder / "cgroup.kill", "1")
    except OSError:  # version 1, or a kernel before 5.14
        send(folder, signal.SIGKILL)


def block_new(folder: Path) -> None:
    """Where possible, prevents new processes from starting in the group, so that the existing ones can be killed one by
    one."""
    with contextlib.suppress(OSError):
        write(folder / "pids.max", "0")


def try_remove(folder: Path) -> bool:
    """Tries to remove a group and the groups below it; returns true if the group no longer exists."""
    for here, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # killed processes are still exiting
            Path(here).rmdir()
    return not folder.exists()


def _send(pid: int, number: int, name: str) -> bool:
    """Signals a member of a group with this name, but not another process that has since been given the same pid."""
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
        return False  # it has exited, or we may not signal it
    finally:
        os.close(process)
    return True
