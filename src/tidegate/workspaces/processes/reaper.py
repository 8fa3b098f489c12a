"""Processes without an owner: leftovers of a killed gateway with the same home, and orphans adopted by this one.

`marked_processes` finds the processes that carry an owner mark. `end` kills exactly these, never later processes with
the same pids. If the gateway is its system's first process, as in a container without an init, orphans become its
children, and `Reaper` reaps them after they have exited: a zombie remains for at most two checks. The code that waits
for one of the gateway's child processes reaps it immediately, through a descriptor, so a zombie that still exists at
the second check has no owner. This module owns nothing.
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from tidegate.log import Log
from tidegate.workspaces.backends import guardian
from tidegate.workspaces.backends.interface import OWNER
from tidegate.workspaces.kernel.process_table import ancestors, is_zombie, program_name, start_ticks

log = Log(__name__)

FIRST = 1
"""The pid of a system's first process."""

_LOOK_SECONDS = 0.01  # between two checks whether a killed process has exited


class Reaper:
    def __init__(self) -> None:
        self._seen: frozenset[tuple[int, int]] = frozenset()

    def reap(self) -> int:
        """Checks once; returns how many zombies were reaped. Does nothing unless the gateway is the system's first
        process."""
        if os.getpid() != FIRST or not _some():
            self._seen = frozenset()
            return 0
        found = frozenset(_zombies())
        again = found & self._seen
        for pid, _ in again:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._seen = found - again
        return len(again)


def _some() -> bool:
    """True if any child process has exited and not been reaped."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _zombies() -> Iterator[tuple[int, int]]:
    """Yields zombie child processes with their start times, since a pid alone may be reused before the next check."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                if is_zombie(int(child)) and (start := start_ticks(int(child))) is not None:
                    yield int(child), start


class MarkedProcess(NamedTuple):
    """A process with the gateway's owner mark: its pid, its start time, and the pids of its ancestors and itself."""

    pid: int
    start: int
    line: frozenset[int]


def marked_processes(owner: str) -> list[MarkedProcess]:
    """Returns the processes with this mark, except the current process and its ancestors, which carry the mark, too, if
    an agent has started this gateway."""
    own = ancestors(os.getpid())
    found = guardian.marked_processes(f"{OWNER}={owner}")
    return [MarkedProcess(pid, start, ancestors(pid)) for pid, start in found.items() if pid not in own]


def end(processes: Collection[MarkedProcess]) -> None:
    """Kills these processes and waits until they have exited; logs an error if some cannot be killed."""
    left = _living({process.pid: process.start for process in processes})
    for pid in left:
        log.warning("a process without an owner is killed", pid=pid, program=program_name(pid))
    until = time.monotonic() + guardian.KILLED_SECONDS
    while left and time.monotonic() < until:
        guardian.send(signal.SIGKILL, left)
        time.sleep(_LOOK_SECONDS)
        left = _living(left)
    if left:
        log.error("processes without an owner cannot be killed", pids=sorted(left))


def _living(processes: dict[int, int]) -> dict[int, int]:
    return {pid: start for pid, start in processes.items() if guardian.process_identity(pid) == f"{pid}:{start}"}
