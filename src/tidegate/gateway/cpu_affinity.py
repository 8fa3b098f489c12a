"""CPU affinity: the gateway's threads run on one core at a time.

If that core is busy and another one is free, another core is chosen. `unpin` allows all cores again; it is also called
at exit.

Python threads run one at a time anyway, and a turn passes from the event loop to the store's writer thread and back
twice. Waking a thread on another core takes longer than the work done there: on a single core, a turn takes about a
fifth less time and CPU (docs/decisions/0008). Staying on a core that other programs keep busy would cost more than
pinning saves, so the scheduler chooses a core again if the gateway has to wait for its own.
"""

import os
from pathlib import Path

from tidegate.log import Log

log = Log(__name__)

CROWDED = 0.3
"""If the event loop's thread spends more than this share of its runnable time waiting, another core is considered."""

FREE = 0.5
"""The share of time that another core must have been idle to be worth moving to."""

CHECK_SECONDS = 5.0
"""The interval between two checks: long enough to measure crowding, short enough to react soon."""

_TASKS = Path("/proc/self/task")
_STAT = Path("/proc/self/stat")
_SCHEDULE = Path("/proc/self/schedstat")
_CORES = Path("/proc/stat")
_IDLE_FIELD = 3  # of a core's line in /proc/stat, after its name
_PROCESSOR_FIELD = 36  # of /proc/self/stat, counted from after the command's name


class CpuAffinity:
    """Pins the process's threads to one core. The constructor changes nothing. A timer calls `check` in a worker
    thread."""

    def __init__(self) -> None:
        self._all = os.sched_getaffinity(0)
        self._ran = self._waited = 0
        self._idle: dict[int, tuple[int, int]] = {}
        self._core = -1
        self._pinned = False

    def check(self) -> None:
        """Pins the threads to the core chosen by the scheduler, or unpins them if that core is busy and another one is
        free. Does nothing if the system does not provide the figures or does not allow pinning."""
        try:
            self._check()
        except OSError as error:
            if len(self._all) > 1:
                log.info("CPU pinning is off", error=str(error))
            self._all = set()

    def _check(self) -> None:
        ran, waited = _times()
        ran, self._ran = ran - self._ran, ran
        waited, self._waited = waited - self._waited, waited
        before, self._idle = self._idle, _idle_times()
        if len(self._all) < 2:
            return
        if not self._pinned:
            self._core = _processor()
            self._allow({self._core} & self._all or self._all)
            self._pinned = True
        elif waited > CROWDED * (ran + waited) and self._is_another_free(before):
            self.unpin()

    def _is_another_free(self, before: dict[int, tuple[int, int]]) -> bool:
        """True if another allowed core was idle most of the time."""
        for core in self._all - {self._core}:
            (idle, total), (idle_before, total_before) = self._idle.get(core, (0, 0)), before.get(core, (0, 0))
            if idle - idle_before > FREE * max(1, total - total_before):
                return True
        return False

    def unpin(self) -> None:
        if self._pinned:
            self._allow(self._all)
        self._pinned = False

    def _allow(self, cores: set[int]) -> None:
        for task in _TASKS.iterdir():
            try:
                os.sched_setaffinity(int(task.name), cores)
            except ProcessLookupError:
                continue  # a thread that has just ended needs no core


def _processor() -> int:
    """Returns the core on which the event loop's thread (the process's first) last ran."""
    return int(_STAT.read_text().rpartition(") ")[2].split()[_PROCESSOR_FIELD])


def _times() -> tuple[int, int]:
    """Returns how many nanoseconds the event loop's thread has been running, and how many it has waited to run."""
    ran, waited, _ = _SCHEDULE.read_text().split()
    return int(ran), int(waited)


def _idle_times() -> dict[int, tuple[int, int]]:
    """Returns the idle ticks and the total ticks of each core."""
    found: dict[int, tuple[int, int]] = {}
    for line in _CORES.read_text().splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name != "cpu":
            counts = [int(tick) for tick in ticks]
            found[int(name.removeprefix("cpu"))] = (counts[_IDLE_FIELD], sum(counts))
    return found
