"""Chores on timers: the gateway's level-triggered upkeep, and the proof that it is alive.

Each chore runs again and again at its interval for as long as the gateway runs, one run at a time, with a deadline. A
chore that fails or hangs holds up no other and is logged with its name: once, until it fails in another way. Each
finished run is a heartbeat, so that a chore that stopped working turns `/readyz` red instead of going unnoticed. The
tasks belong to the scope that `start` is given.
"""

import random
import time
from collections.abc import Callable, Sequence

import anyio

from tidegate.errors import TidegateError
from tidegate.lifetimes import Scope
from tidegate.log import Log
from tidegate.sessions import MaintenanceTask
from tidegate.values import Frozen

_SPREAD = 0.2  # share of an interval by which first runs are spread, so that chores do not all run at once


class ChoreReport(Frozen, frozen=True):
    """What is known of a chore: for status and metrics. `last` is how many seconds ago it last finished well."""

    name: str
    interval: float
    runs: int
    failures: int
    last: float | None
    took: float
    error: str = ""


class _Record:
    __slots__ = ("chore", "error", "failures", "finished", "runs", "took")

    def __init__(self, chore: MaintenanceTask) -> None:
        self.chore = chore
        self.runs = 0
        self.failures = 0
        self.finished: float | None = None
        self.took = 0.0
        self.error = ""


class Maintenance:
    """Runs chores; `beat` is told the name of each that has finished a run well."""

    def __init__(
        self,
        maintenance_tasks: Sequence[MaintenanceTask],
        *,
        beat: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        names = [chore.name for chore in maintenance_tasks]
        if len(set(names)) != len(names):
            raise ValueError(f"two chores have one name: {sorted(names)}")
        self._records = tuple(_Record(chore) for chore in maintenance_tasks)
        self._beat = beat
        self._clock = clock
        self._log = Log("tidegate.maintenance")

    def start(self, scope: Scope) -> None:
        for record in self._records:
            scope.start(self._repeat, record, name=f"chore {record.chore.name}")

    def report(self) -> tuple[ChoreReport, ...]:
        now = self._clock()
        return tuple(
            ChoreReport(
                name=record.chore.name,
                interval=record.chore.interval,
                runs=record.runs,
                failures=record.failures,
                last=None if record.finished is None else round(now - record.finished, 3),
                took=round(record.took, 4),
                error=record.error,
            )
            for record in self._records
        )

    async def _repeat(self, record: _Record) -> None:
        interval = record.chore.interval
        await anyio.sleep(interval * (1 - _SPREAD * random.random()))
        while True:
            await self._once(record)
            await anyio.sleep(interval)

    async def _once(self, record: _Record) -> None:
        name, began = record.chore.name, self._clock()
        try:
            with anyio.fail_after(record.chore.within):
                await record.chore.run()
        except Exception as error:  # the top of a loop that must go on
            record.failures += 1
            before, record.error = record.error, str(error) or type(error).__name__
            if record.error != before:
                foreseen = isinstance(error, TidegateError)
                self._log.error("chore failed", chore=name, error=record.error, exc_info=None if foreseen else error)
            return
        record.runs += 1
        record.error = ""
        record.finished = self._clock()
        record.took = record.finished - began
        self._beat(name)
