"""The readers: a fixed number of threads, each with its own read-only connection.

Guarantee: however many coroutines read, there are no more connections than the pool has; each function sees one
snapshot, and a snapshot lives no longer than its age allows: SQLite stops it, and its caller is told. A read whose
caller has gone is stopped too. Each thread opens and closes its own connection; `start` and `stop` own the threads.
"""

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import apsw

from tidegate.errors import StoreFailed
from tidegate.store._errors import translate, translate_opening
from tidegate.store._waiting import outlast, tell
from tidegate.store._writer import keep_plans
from tidegate.values import Frozen

STATEMENTS = 128
CACHE_KIB = 1024
CHECK_EVERY = 5000
"""SQLite instructions between two looks at the clock: well under a millisecond."""
BUSY_SECONDS = 2.0

log = logging.getLogger("tidegate.store")


class Reading:
    """One read on its way. `stop` is why it must stop, once it must."""

    __slots__ = ("age", "args", "deadline", "fn", "future", "kwargs", "stop")

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
    def __init__(self, path: Path, *, readers: int, age: float, queue: int) -> None:
        self._path = path
        self._number = readers
        self._age = age
        self._bound = queue
        self._queue: SimpleQueue[Reading | None] = SimpleQueue()  # house: allow reads beyond the bound are refused
        self._threads: list[threading.Thread] = []
        self._current: list[Reading | None] = [None] * readers
        self._gone: list[asyncio.Future[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._connections = self._reads = self._waiting = self._refused = self._interrupted = 0
        self._lock = threading.Lock()

    # -- on the loop --

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        opened: list[asyncio.Future[None]] = []
        for place in range(self._number):
            opened.append(self._loop.create_future())
            self._gone.append(self._loop.create_future())
            thread = threading.Thread(
                target=self._run, args=(place, opened[place]), name=f"tidegate-store-reader-{place}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        for failed in await asyncio.gather(*opened, return_exceptions=True):
            if isinstance(failed, BaseException):
                raise failed

    async def read(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], age: float | None = None
    ) -> Any:
        if self._closing or self._loop is None:
            raise StoreFailed("The store is closed; nothing more can be read.")
        if self._waiting >= self._bound:
            self._refused += 1
            raise StoreFailed(f"The store has {self._bound} reads waiting and takes no more; try again in a moment.")
        reading = Reading(fn, args, kwargs, self._loop.create_future(), self._age if age is None else age)
        self._waiting += 1
        self._queue.put(reading)
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
        if not self._closing:
            self._closing = True
            self.interrupt("the store is being closed")
            for _ in self._threads:
                self._queue.put(None)
        if not await outlast(self._gone, within):
            return False
        for thread in self._threads:
            thread.join()
        return True

    def stats(self) -> ReaderStats:
        return ReaderStats(
            connections=self._connections,
            reads=self._reads,
            waiting=self._waiting,
            refused=self._refused,
            interrupted=self._interrupted,
        )

    def _resolve(self, reading: Reading, value: Any, error: BaseException | None) -> None:
        self._waiting -= 1
        self._reads += 1
        if reading.future.cancelled():
            return
        if error is None:
            reading.future.set_result(value)
        else:
            reading.future.set_exception(error)

    # -- in the threads --

    def _call(self, fn: Callable[..., object], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(fn, *args)
        except RuntimeError:
            log.error("the event loop was closed before the store")

    def _run(self, place: int, opened: "asyncio.Future[None]") -> None:
        db: apsw.Connection | None = None
        try:
            try:
                db = self._open(place)
            except Exception as error:
                self._call(tell, opened, translate_opening(error))
                return
            self._call(tell, opened, None)
            while (reading := self._queue.get()) is not None:
                self._serve(db, place, reading)
        finally:
            if db is not None:
                db.close()
                self._count_connection(-1)
            self._call(tell, self._gone[place], None)

    def _open(self, place: int) -> apsw.Connection:
        db = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=STATEMENTS)
        self._count_connection(1)
        db.set_busy_timeout(int(BUSY_SECONDS * 1000))
        db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        keep_plans(db)
        db.set_progress_handler(lambda: self._must_stop(place), CHECK_EVERY)
        return db

    def _count_connection(self, change: int) -> None:
        with self._lock:
            self._connections += change

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
        if self._closing:
            reading.stop = "the store is being closed"
        if reading.stop is not None or reading.future.cancelled():
            self._call(self._resolve, reading, None, _stopped(reading))
            return
        reading.deadline = time.monotonic() + reading.age
        self._current[place] = reading
        try:
            db.execute("BEGIN")
            value = reading.fn(db, *reading.args, **reading.kwargs)
        except apsw.InterruptError as stopped:
            traceback.clear_frames(stopped.__traceback__)
            self._interrupted += 1
            error = _stopped(reading)
        except BaseException as failed:
            traceback.clear_frames(failed.__traceback__)
            error = translate(failed)
            if not isinstance(error, Exception):
                error = StoreFailed(f"The read was broken off ({type(failed).__name__}).")
        finally:
            self._current[place] = None
            _leave(db)
        self._call(self._resolve, reading, value, error)


def _leave(db: apsw.Connection) -> None:
    try:
        if db.in_transaction:
            db.execute("ROLLBACK")
    except apsw.Error as error:
        log.error("a snapshot could not be left: %s", error)


def _stopped(reading: Reading) -> StoreFailed:
    return StoreFailed(f"The read was interrupted because {reading.stop}; ask for less at a time, or try again.")
