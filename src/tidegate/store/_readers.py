"""The readers: a fixed number of threads, each with its own read-only connection.

Guarantee: however many coroutines read, there are no more connections than the pool has; each function sees one
snapshot, and a snapshot lives no longer than its age allows: SQLite stops it, and its caller is told. A read whose
caller has gone is stopped too. Each thread opens and closes its own connection; `start` and `stop` own the threads.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from tidegate.errors import StoreFailed
from tidegate.log import Log
from tidegate.store._connections import connect_reader
from tidegate.store._problems import Problems
from tidegate.store._worker import Backlog, Job, Worker, ours
from tidegate.values import Frozen

CHECK_EVERY = 5000
"""SQLite instructions between two looks at the clock: well under a millisecond."""

log = Log("tidegate.store")


class Reading(Job):
    """One read on its way. `stop` is why it must stop, once it must."""

    __slots__ = ("age", "deadline", "stop")

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: "asyncio.Future[Any]",
        age: float,
    ) -> None:
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.future = future
        self.age = age
        self.deadline = 0.0
        self.stop: str | None = None


class ReaderStats(Frozen, frozen=True):
    connections: int = 0
    reads: int = 0
    waiting: int = 0
    refused: int = 0
    interrupted: int = 0


class Readers:
    def __init__(self, path: Path, *, readers: int, age: float, queue: int, problems: Problems) -> None:
        self._path = path
        self._problems = problems
        self._age = age
        self._backlog: Backlog[Reading] = Backlog(queue, "reads")
        self._workers = [self._worker(place) for place in range(readers)]
        self._current: list[Reading | None] = [None] * readers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reads = self._interrupted = 0

    # -- on the loop --

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._backlog.open()
        opened = [worker.start() for worker in self._workers]
        for failed in await asyncio.gather(*opened, return_exceptions=True):
            if isinstance(failed, BaseException):
                raise failed

    async def read(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], age: float | None = None
    ) -> Any:
        if self._loop is None:
            raise StoreFailed("The store is not open; nothing can be read.")
        reading = Reading(fn, args, kwargs, self._loop.create_future(), self._age if age is None else age)
        self._backlog.add(reading)
        try:
            return await reading.future
        except asyncio.CancelledError:
            reading.stop = "its caller has gone"
            raise

    def interrupt(self, why: str) -> None:
        """Stops every read that is under way. From any thread."""
        for reading in list(self._current):
            if reading is not None:
                reading.stop = why

    async def stop(self, within: float) -> bool:
        """Stops what is being read, refuses what waits, closes the connections, ends the threads. False when that took
        too long: a function of ours holds a connection without asking SQLite anything."""
        if self._backlog.closed is None:
            self._backlog.close(workers=len(self._workers))
            self.interrupt("the store is being closed")
        return await Worker.stop(self._workers, within)

    def stats(self) -> ReaderStats:
        return ReaderStats(
            connections=sum(worker.connected for worker in self._workers),
            reads=self._reads,
            waiting=self._backlog.waiting,
            refused=self._backlog.refused,
            interrupted=self._interrupted,
        )

    def _resolve(self, reading: Reading, value: Any, error: BaseException | None) -> None:
        self._backlog.waiting -= 1
        self._reads += 1
        reading.resolve(value, error)

    def _bury(self, dead: str | None) -> None:
        """A thread has ended. When it was the last, nothing waits for it any longer."""
        if not any(worker.alive for worker in self._workers):
            why = dead or "The store is closed; it takes no more reads."
            for reading in self._backlog.bury(why):
                self._resolve(reading, None, StoreFailed(why))

    # -- in the threads --

    def _worker(self, place: int) -> Worker:
        def work(db: apsw.Connection) -> None:
            while (reading := self._backlog.take()) is not None:
                self._serve(db, place, reading)
                del reading  # else what was read last stays in memory until somebody reads again

        return Worker(f"tidegate-store-reader-{place}", open=lambda: self._open(place), work=work, over=self._bury)

    def _open(self, place: int) -> apsw.Connection:
        db = connect_reader(self._path)
        db.set_progress_handler(lambda: self._must_stop(place), CHECK_EVERY)
        return db

    def _must_stop(self, place: int) -> bool:
        reading = self._current[place]
        if reading is None:
            return False
        if reading.stop is None and time.monotonic() > reading.deadline:
            reading.stop = f"it held its snapshot longer than {reading.age:g} s (limits.snapshot_seconds)"
        return reading.stop is not None

    def _serve(self, db: apsw.Connection, place: int, reading: Reading) -> None:
        value: Any = None
        error: BaseException | None = None
        if self._backlog.closed is not None:
            reading.stop = "the store is being closed"
        if reading.stop is not None or reading.future.cancelled():
            self._workers[place].call(self._resolve, reading, None, _stopped(reading))
            return
        reading.deadline = time.monotonic() + reading.age
        self._current[place] = reading
        try:
            db.execute("BEGIN")
            value = reading.fn(db, *reading.args, **reading.kwargs)
        except BaseException as failed:
            error = ours(failed, db)
            if isinstance(failed, apsw.InterruptError):
                self._interrupted += 1
                error = _stopped(reading)
        finally:
            self._current[place] = None
            _leave(db)
        if error is not None:
            self._problems.meet(error, "read", reading.fn)
        self._workers[place].call(self._resolve, reading, value, error)


def _leave(db: apsw.Connection) -> None:
    try:
        if db.in_transaction:
            db.execute("ROLLBACK")
    except apsw.Error as error:
        log.error("a snapshot could not be left", error=str(error))


def _stopped(reading: Reading) -> StoreFailed:
    return StoreFailed(f"The read was interrupted because {reading.stop}; ask for less at a time, or try again.")
