"""The gateway on one core.

Guarantee: the threads of this process run on one core at a time, which is chosen anew when it is crowded and another
is free; at the end, and for whoever asks for `everywhere`, all cores are allowed again.

Python's threads take turns anyway, and a turn of ours passes from the loop to the store's writer and back twice. To
wake a thread on another core costs more than its work there: on one core a turn takes about a fifth less time and
processor (docs/decisions/0008). A core that others crowd would be a trap, so the scheduler is let in when we have to
wait for it.
"""

import os
from pathlib import Path

from tidegate.log import Log

log = Log(__name__)

CROWDED = 0.3
"""Share of the time that it wanted to run in which it had to wait: above this another core is looked for."""

FREE = 0.5
"""Share of the time that another core must have been idle to be worth going to."""

LOOK_SECONDS = 5.0
"""Between two looks: long enough to see a crowd, short enough not to suffer from one."""

_TASKS = Path("/proc/self/task")
_STAT = Path("/proc/self/stat")
_SCHEDULE = Path("/proc/self/schedstat")
_CORES = Path("/proc/stat")
_IDLE_FIELD = 3  # of a core's line there, behind its name
_PROCESSOR_FIELD = 36  # of /proc/self/stat, counted from behind the command's name


class CpuAffinity:
    """Owned by the process. Constructed it does nothing; `look` is called on the timer, off the loop."""

    def __init__(self) -> None:
        self._all = os.sched_getaffinity(0)
        self._ran = self._waited = 0
        self._idle: dict[int, tuple[int, int]] = {}
        self._core = -1
        self._settled = False

    def look(self) -> None:
        """Settle on the core that the scheduler has put us on, or let it choose anew when that one is crowded. Where
        the system does not tell or does not allow it, everything stays as it is."""
        try:
            self._look()
        except OSError as error:
            if len(self._all) > 1:
                log.info("the gateway does not choose its core", error=str(error))
            self._all = set()

    def _look(self) -> None:
        ran, waited = _times()
        ran, self._ran = ran - self._ran, ran
        waited, self._waited = waited - self._waited, waited
        before, self._idle = self._idle, _idle_times()
        if len(self._all) < 2:
            return
        if not self._settled:
            self._core = _processor()
            self._allow({self._core} & self._all or self._all)
            self._settled = True
        elif waited > CROWDED * (ran + waited) and self._is_another_free(before):
            self.everywhere()

    def _is_another_free(self, before: dict[int, tuple[int, int]]) -> bool:
        """Whether a core that we may use had nothing to do for most of the time: else there is nowhere better to go."""
        for core in self._all - {self._core}:
            (idle, total), (idle_before, total_before) = self._idle.get(core, (0, 0)), before.get(core, (0, 0))
            if idle - idle_before > FREE * max(1, total - total_before):
                return True
        return False

    def everywhere(self) -> None:
        if self._settled:
            self._allow(self._all)
        self._settled = False

    def _allow(self, cores: set[int]) -> None:
        for task in _TASKS.iterdir():
            try:
                os.sched_setaffinity(int(task.name), cores)
            except ProcessLookupError:
                continue  # a thread that has just ended needs no core


def _processor() -> int:
    """Where the loop's thread, the process's first, was last put."""
    return int(_STAT.read_text().rpartition(") ")[2].split()[_PROCESSOR_FIELD])


def _times() -> tuple[int, int]:
    """Nanoseconds that the loop's thread ran, and waited to run."""
    ran, waited, _ = _SCHEDULE.read_text().split()
    return int(ran), int(waited)


def _idle_times() -> dict[int, tuple[int, int]]:
    """Of each core: ticks that it was idle, and ticks in all."""
    found: dict[int, tuple[int, int]] = {}
    for line in _CORES.read_text().splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name != "cpu":
            counts = [int(tick) for tick in ticks]
            found[int(name.removeprefix("cpu"))] = (counts[_IDLE_FIELD], sum(counts))
    return found
