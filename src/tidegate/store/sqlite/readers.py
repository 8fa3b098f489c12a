"""The readers: a fixed number of threads, each with its own read-only connection.

The number of connections is fixed, however many coroutines read. Each function sees one snapshot. A snapshot that
exceeds its maximum age is closed, and the caller gets an error. A snapshot that keeps the write-ahead log from being
emptied is also closed, but the function is run again on a fresh one; the caller gets an error only if the last attempt
is interrupted as well. If its caller is cancelled, a read is stopped.

Each thread opens and closes its own connection; `start` and `stop` own the threads.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from tidegate.errors import StoreBusy, StoreFailed
from tidegate.log import Log
from tidegate.store.sqlite.connections import Connection, connect_reader
from tidegate.store.sqlite.problems import Problems
from tidegate.store.sqlite.worker import Backlog, Job, Worker, store_error
from tidegate.values import Frozen

CHECK_EVERY = 5000
"""Number of SQLite instructions between two deadline checks. They take well under a millisecond."""

LEEWAYS = (0.25, 1.0, 2.0)
"""Seconds that writes wait for a read before interrupting it to empty the log. There is one attempt per entry, so a
read that takes less time than the last leeway always succeeds, whatever is written in the meantime."""

REPEAT_WITHIN = 5.0
"""Seconds after which the next attempt begins even if another process's snapshot has kept the log from being
emptied."""

CLOSING = "the store is being closed"

log = Log("tidegate.store")


class ReadJob(Job):
    """A submitted read. `stop` is the reason for stopping it permanently. If `make_way` is True, only the current
    attempt is stopped."""

    __slots__ = ("age", "attempt", "deadline", "make_way", "stop")

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
        self.attempt = 0
        self.deadline = 0.0
        self.make_way = False
        self.stop: str | None = None


class ReaderStats(Frozen, frozen=True):
    connections: int = 0
    reads: int = 0
    waiting: int = 0
    refused: int = 0
    interrupted: int = 0
    repeated: int = 0


class Readers:
    def __init__(self, path: Path, *, readers: int, age: float, queue: int, problems: Problems) -> None:
        self._path = path
        self._problems = problems
        self._age = age
        self._backlog: Backlog[ReadJob] = Backlog(queue, "reads")
        self._workers = [self._worker(place) for place in range(readers)]
        self._current: list[ReadJob | None] = [None] * readers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._log_free = threading.Event()
        self._log_free.set()
        self._reads = self._interrupted = self._repeated = 0

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
        reading = ReadJob(fn, args, kwargs, self._loop.create_future(), self._age if age is None else age)
        self._backlog.add(reading)
        try:
            return await reading.future
        except asyncio.CancelledError:
            reading.stop = "its caller was cancelled"
            raise

    # -- for the writer, in its thread --

    def leeway(self) -> float:
        """Seconds that the writer should wait for active reads before interrupting them."""
        return max((LEEWAYS[reading.attempt] for reading in self._active()), default=LEEWAYS[0])

    def make_way(self) -> None:
        """Closes all current snapshots. Their reads start again after `log_emptied`."""
        self._log_free.clear()
        for reading in self._active():
            reading.make_way = True

    def log_emptied(self) -> None:
        """Lets interrupted reads start again, once the log has been emptied or cannot be emptied."""
        self._log_free.set()

    def _active(self) -> list[ReadJob]:
        return [reading for reading in list(self._current) if reading is not None]

    # -- on the loop --

    async def stop(self, within: float) -> bool:
        """Stops active reads, refuses waiting ones, closes the connections, and stops the threads. Returns False if
        this took too long because a function is holding a connection without running any SQL."""
        if self._backlog.closed is None:
            self._backlog.close(workers=len(self._workers))
            for reading in self._active():
                reading.stop = CLOSING
        return await Worker.stop(self._workers, within)

    def stats(self) -> ReaderStats:
        return ReaderStats(
            connections=sum(worker.connected for worker in self._workers),
            reads=self._reads,
            waiting=self._backlog.waiting,
            refused=self._backlog.refused,
            interrupted=self._interrupted,
            repeated=self._repeated,
        )

    def _resolve(self, reading: ReadJob, value: Any, error: BaseException | None) -> None:
        self._backlog.waiting -= 1
        self._reads += 1
        reading.resolve(value, error)

    def _ended(self, dead: str | None) -> None:
        """Fails all waiting reads if this was the last thread."""
        if not any(worker.alive for worker in self._workers):
            why = dead or "The store is closed; it accepts no more reads."
            for reading in self._backlog.abandon(why):
                self._resolve(reading, None, StoreFailed(why))

    # -- in the threads --

    def _worker(self, place: int) -> Worker:
        def work(db: apsw.Connection) -> None:
            while (reading := self._backlog.take()) is not None:
                self._serve(db, place, reading)
                del reading  # otherwise, the last result would stay in memory until the next read

        return Worker(f"tidegate-store-reader-{place}", open=lambda: self._open(place), work=work, over=self._ended)

    def _open(self, place: int) -> Connection:
        db = connect_reader(self._path)
        db.set_progress_handler(lambda: self._must_stop(place), CHECK_EVERY)
        return db

    def _must_stop(self, place: int) -> bool:
        reading = self._current[place]
        if reading is None:
            return False
        if reading.stop is None and time.monotonic() > reading.deadline:
            reading.stop = f"it held its snapshot longer than {reading.age:g} s (limits.snapshot_seconds)"
        return reading.make_way or reading.stop is not None

    def _serve(self, db: apsw.Connection, place: int, reading: ReadJob) -> None:
        value: Any = None
        error: BaseException | None = None
        while True:
            if self._backlog.closed is not None:
                reading.stop = CLOSING
            if reading.stop is not None or reading.future.cancelled():
                error = _stopped(reading)
                break
            value, error = self._attempt(db, place, reading)
            if not isinstance(error, apsw.InterruptError):
                break
            self._interrupted += 1
            if reading.stop is None and reading.attempt == len(LEEWAYS) - 1:
                reading.stop = "the write-ahead log had reached limits.wal_bytes, as in all earlier attempts"
            elif reading.stop is None:
                reading.attempt += 1
                self._repeated += 1
                self._log_free.wait(REPEAT_WITHIN)
        if error is not None:
            self._problems.record_error(error, "read", reading.fn)
        self._workers[place].call(self._resolve, reading, value, error)

    def _attempt(self, db: apsw.Connection, place: int, reading: ReadJob) -> tuple[Any, BaseException | None]:
        """Runs the function on a fresh snapshot. Returns its value or its error."""
        reading.make_way = False
        reading.deadline = time.monotonic() + reading.age
        self._current[place] = reading
        try:
            db.execute("BEGIN")
            return reading.fn(db, *reading.args, **reading.kwargs), None
        except BaseException as failed:
            error = store_error(failed, db)
            return None, failed if isinstance(failed, apsw.InterruptError) else error
        finally:
            self._current[place] = None
            _end_snapshot(db)


def _end_snapshot(db: apsw.Connection) -> None:
    try:
        if db.in_transaction:
            db.execute("ROLLBACK")
    except apsw.Error as error:
        log.error("a snapshot could not be closed", error=str(error))


def _stopped(reading: ReadJob) -> StoreFailed:
    kind = StoreFailed if reading.stop == CLOSING else StoreBusy
    return kind(f"The read was interrupted because {reading.stop}; request less at a time, or try again.")
