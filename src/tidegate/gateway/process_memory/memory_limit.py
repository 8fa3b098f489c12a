"""The memory ceiling of the process, and whether the system is short of memory, as the kernel reports them.

Both are read each time, so a limit that an operator changes takes effect. The ceiling is never above what the
kernel allows this process. A figure that the kernel does not provide counts as no limit and no shortage. A reading
costs a few small files of procfs and cgroupfs.
"""

import os
from collections.abc import Iterator
from pathlib import Path

SHARE = 0.75
"""Of the available memory: the rest is for child processes, cached files, and growth between two checks."""

_GROUPS = "sys/fs/cgroup"
_LIMITS = ("memory.max", "memory.high")
_OLD_LIMIT = "memory.limit_in_bytes"  # of cgroup v1


class MemoryLimit:
    """`given` is limits.memory_bytes. Without it the ceiling is a share of the machine's memory or of the smallest
    limit of the process's control groups, whichever is less. `root` and `machine` are for tests."""

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
        """Percentage of the last ten seconds in which some task waited for memory: in the process's control group, or
        in the whole machine if the group has no such figure."""
        own = [f"{_GROUPS}{path}/memory.pressure" for number, _, path in self._memberships() if number == "0"]
        for place in (*own, "proc/pressure/memory"):
            for line in self._lines(place):
                if line.startswith("some avg10="):
                    return float(line.split()[1].removeprefix("avg10="))
        return 0.0

    def _limits(self) -> Iterator[str]:
        """Files that may hold a limit: of the process's control group and every group above it."""
        for number, controllers, path in self._memberships():
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                group = "/".join(parts[:depth])
                if number == "0":
                    yield from (f"{_GROUPS}/{group}/{name}" for name in _LIMITS)
                elif "memory" in controllers.split(","):
                    yield f"{_GROUPS}/memory/{group}/{_OLD_LIMIT}"

    def _memberships(self) -> Iterator[tuple[str, str, str]]:
        """(number, controllers, path) of each hierarchy; cgroup v2 has the number 0."""
        for line in self._lines("proc/self/cgroup"):
            number, controllers, path = line.split(":", 2)
            yield number, controllers, path

    def _lines(self, path: str) -> list[str]:
        try:
            text = (self._root / path).read_text()  # lint: allow (procfs, no disk access)
        except OSError:  # a file that is missing or unreadable sets no limit
            return []
        return text.splitlines()
