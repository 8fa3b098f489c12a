"""Processes that became the gateway's children without being started by it.

Guarantee: where the gateway is the first process of its system, as in a container without an init, whatever is orphaned
there becomes its child, and is reaped here when it has ended: no zombie stays for longer than from one look to the next
but one. What the gateway has started itself is left to who waits for it, by descriptor and at once: what is still there
at a second look is nobody's. It owns nothing.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tidegate.workspaces.proc import ended, start_ticks

FIRST = 1
"""The number of a system's first process."""


class Strays:
    def __init__(self) -> None:
        self._seen: frozenset[tuple[int, int]] = frozenset()

    def reap(self) -> int:
        """One look; how many were reaped. Anywhere but in a first process there is somebody else to do it."""
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
    """Whether any child has ended and is not reaped."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _zombies() -> Iterator[tuple[int, int]]:
    """Children that have ended, each with the time of its start: a number alone may be another's by the next look."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                if ended(int(child)) and (start := start_ticks(int(child))) is not None:
                    yield int(child), start
