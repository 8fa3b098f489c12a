"""Periodic maintenance tasks, and heartbeats that show that they are still running.

Each task runs at its interval for as long as the gateway runs, one run at a time, with a deadline. A task that fails or
hangs does not delay the others. Failures are logged with the task's name; identical failures that follow are not logged
again. Each successful run is a heartbeat, so `/readyz` fails when a task has stopped working. The scope passed to
`start` owns the asyncio tasks.
"""

import random
import time
from collections.abc import Callable, Sequence

import anyio

from tidegate.errors import TidegateError
from tidegate.lifetimes import Scope
from tidegate.log import Log
from tidegate.sessions import MaintenanceTask
from tidegate.status_report import MaintenanceStatus

_SPREAD = 0.2  # share of the interval over which first runs are spread, so that tasks do not all run at once


class _Record:
    __slots__ = ("error", "failures", "finished", "runs", "task", "took")

    def __init__(self, task: MaintenanceTask) -> None:
        self.task = task
        self.runs = 0
        self.failures = 0
        self.finished: float | None = None
        self.took = 0.0
        self.error = ""


class Maintenance:
    """Runs the tasks. `beat` is called with a task's name after each of its successful runs."""

    def __init__(
        self,
        maintenance_tasks: Sequence[MaintenanceTask],
        *,
        beat: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        names = [task.name for task in maintenance_tasks]
        if len(set(names)) != len(names):
            raise ValueError(f"two maintenance tasks have one name: {sorted(names)}")
        self._records = tuple(_Record(task) for task in maintenance_tasks)
        self._beat = beat
        self._clock = clock
        self._log = Log("tidegate.maintenance")

    def start(self, scope: Scope) -> None:
        for record in self._records:
            scope.start(self._repeat, record, name=f"maintenance {record.task.name}")

    def report(self) -> list[MaintenanceStatus]:
        now = self._clock()
        return [
            MaintenanceStatus(
                name=record.task.name,
                interval=record.task.interval,
                runs=record.runs,
                failures=record.failures,
                last=None if record.finished is None else round(now - record.finished, 3),
                took=round(record.took, 4),
                error=record.error,
            )
            for record in self._records
        ]

    async def _repeat(self, record: _Record) -> None:
        interval = record.task.interval
        await anyio.sleep(interval * (1 - _SPREAD * random.random()))
        while True:
            await self._once(record)
            await anyio.sleep(interval)

    async def _once(self, record: _Record) -> None:
        name, began = record.task.name, self._clock()
        try:
            with anyio.fail_after(record.task.within):
                await record.task.run()
        except Exception as error:  # the top level of a loop that must continue
            record.failures += 1
            before, record.error = record.error, str(error) or type(error).__name__
            if record.error != before:
                foreseen = isinstance(error, TidegateError)
                self._log.error(
                    "maintenance task failed", task=name, error=record.error, exc_info=None if foreseen else error
                )
            return
        record.runs += 1
        record.error = ""
        record.finished = self._clock()
        record.took = record.finished - began
        self._beat(name)
