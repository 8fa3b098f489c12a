"""How much memory the process may take, and whether the system is short of it: asked of the kernel.

Guarantee: both are read anew each time, so that a limit that an operator moves is followed; the ceiling is never above
what the kernel would let this process have; what the kernel does not tell counts as no limit and no shortage. A look
costs a few small files that are the kernel's own memory.
"""

import os
from collections.abc import Iterator
from pathlib import Path

SHARE = 0.75
"""Of the memory that there is: the rest is for children, for cached files, and for what comes between two looks."""

_GROUPS = "sys/fs/cgroup"
_LIMITS = ("memory.max", "memory.high")
_OLD_LIMIT = "memory.limit_in_bytes"  # of the first version of control groups


class MemoryLimit:
    """`given` is limits.memory_bytes; without it the ceiling is a share of the machine's memory or, where that is less,
    of a control group's limit, whichever group above the process has the least. `root` and `machine` are for tests."""

    def __init__(self, given: int | None, *, root: Path = Path("/"), machine: int | None = None) -> None:
        self._given = given
        self._root = root
        self._machine = machine if machine is not None else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def bytes(self) -> int:
        if self._given is not None:
            return self._given
        found = [self._machine]
        for path in self._limits():
            found += [int(line) for line in self._lines(path) if line.isdigit()]
        return int(min(found) * SHARE)

    def stalled(self) -> float:
        """Per cent of the last ten seconds in which something had to wait for memory: in the process's own control
        group, or in the machine where there is none that tells."""
        own = [f"{_GROUPS}{path}/memory.pressure" for number, _, path in self._memberships() if number == "0"]
        for place in (*own, "proc/pressure/memory"):
            for line in self._lines(place):
                if line.startswith("some avg10="):
                    return float(line.split()[1].removeprefix("avg10="))
        return 0.0

    def _limits(self) -> Iterator[str]:
        """Files that may hold a limit: of the process's own group, and of every group above it."""
        for number, controllers, path in self._memberships():
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                group = "/".join(parts[:depth])
                if number == "0":
                    yield from (f"{_GROUPS}/{group}/{name}" for name in _LIMITS)
                elif "memory" in controllers.split(","):
                    yield f"{_GROUPS}/memory/{group}/{_OLD_LIMIT}"

    def _memberships(self) -> Iterator[tuple[str, str, str]]:
        """(number, controllers, path) of each hierarchy; the number of the second version's is 0."""
        for line in self._lines("proc/self/cgroup"):
            number, controllers, path = line.split(":", 2)
            yield number, controllers, path

    def _lines(self, path: str) -> list[str]:
        try:
            text = (self._root / path).read_text()  # lint: allow (the kernel's own memory, no disk)
        except OSError:  # what the kernel does not have, or does not show, it does not limit
            return []
        return text.splitlines()
