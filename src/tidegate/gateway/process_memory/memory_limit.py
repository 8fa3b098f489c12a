"""The memory ceiling of the process and the system's shortage of memory, as the kernel reports them.

Both are read each time, so a limit that an operator changes takes effect. A ceiling that is not configured stays below
what the kernel allows this process. If the kernel does not provide a figure, no limit and no shortage are assumed. A
reading opens a few small files of procfs and cgroupfs.
"""

import os
from collections.abc import Iterator
from pathlib import Path

SHARE = 0.75
"""The share of the available memory that this process may use. The rest is for child processes, cached files, and
growth between two checks."""

_GROUPS = "sys/fs/cgroup"
_LIMITS = ("memory.max", "memory.high")
_OLD_LIMIT = "memory.limit_in_bytes"  # of cgroup v1


class MemoryLimit:
    """`given` is limits.memory_bytes. If it is None, the ceiling is a share of the machine's memory, or of the smallest
    limit of the process's control groups if that is less. `root` and `machine` are for tests."""

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
        """Returns the percentage of the last ten seconds in which some task waited for memory. The figure is for the
        process's control group or, if the group has none, for the whole machine."""
        own = [f"{_GROUPS}{path}/memory.pressure" for number, _, path in self._memberships() if number == "0"]
        for place in (*own, "proc/pressure/memory"):
            for line in self._lines(place):
                if line.startswith("some avg10="):
                    return float(line.split()[1].removeprefix("avg10="))
        return 0.0

    def _limits(self) -> Iterator[str]:
        """Yields the files that may hold a limit of the process's control group or of a group above it."""
        for number, controllers, path in self._memberships():
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                group = "/".join(parts[:depth])
                if number == "0":
                    yield from (f"{_GROUPS}/{group}/{name}" for name in _LIMITS)
                elif "memory" in controllers.split(","):
                    yield f"{_GROUPS}/memory/{group}/{_OLD_LIMIT}"

    def _memberships(self) -> Iterator[tuple[str, str, str]]:
        """Yields (number, controllers, path) for each hierarchy. The number of cgroup v2 is 0."""
        for line in self._lines("proc/self/cgroup"):
            number, controllers, path = line.split(":", 2)
            yield number, controllers, path

    def _lines(self, path: str) -> list[str]:
        try:
            text = (self._root / path).read_text()  # lint: allow (procfs, no disk access)
        except OSError:  # a file that is missing or unreadable sets no limit
            return []
        return text.splitlines()
