"""The process's memory ceiling and the system's memory shortage, as reported by the kernel.

Both are read again each time, so a limit takes effect when the operator changes it. If no ceiling is configured, it is
set below what the kernel allows this process. If the kernel does not provide a figure, no limit and no shortage are
assumed. A reading opens a few small files in procfs and cgroupfs.
"""

import os
from collections.abc import Iterator
from pathlib import Path

SHARE = 0.75
"""The share of the available memory that this process may use. The rest is for child processes, cached files and growth
between two checks."""

_GROUPS = "sys/fs/cgroup"
_LIMITS = ("memory.max", "memory.high")
_OLD_LIMIT = "memory.limit_in_bytes"  # of cgroup v1


class MemoryLimit:
    """The memory ceiling. `given` is limits.memory_bytes. If it is None, the ceiling is a share of the machine's memory
    or, if lower, of the smallest limit set by the process's control groups. `root` and `machine` are for tests."""

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
        """Returns the percentage of the last ten seconds during which some task waited for memory, in the process's
        control group or, if there is no figure for the group, on the whole machine."""
        own = [f"{_GROUPS}{path}/memory.pressure" for number, _, path in self._memberships() if number == "0"]
        for place in (*own, "proc/pressure/memory"):
            for line in self._lines(place):
                if line.startswith("some avg10="):
                    return float(line.split()[1].removeprefix("avg10="))
        return 0.0

    def _limits(self) -> Iterator[str]:
        """Yields the files that may contain a limit for the process's control group or a group above it."""
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
        except OSError:  # a missing or unreadable file sets no limit
            return []
        return text.splitlines()
