"""A thread that owns one connection, and a bounded queue of jobs. The writer and the readers are based on these.

A worker opens its connection in its own thread, reports the result on the event loop, and closes the connection in the
same thread, however the thread ends. `stop` returns when the thread has ended or the time is up. A `Backlog` never
holds more jobs than its bound. Further jobs are refused, and so are all jobs once the backlog has been closed. A worker
owns its thread and connection.
"""

import asyncio
import threading
import traceback
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import apsw

from tidegate.errors import StoreBusy, StoreFailed
from tidegate.log import Log
from tidegate.store.sqlite.errors import translate, translate_opening

log = Log("tidegate.store")


class Job:
    """A function that is waiting for a connection, and the future that its caller is awaiting."""

    __slots__ = ("args", "fn", "future", "kwargs")

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], future: "asyncio.Future[Any]"
    ) -> None:
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.future = future

    def resolve(self, value: Any, error: BaseException | None) -> bool:
        """Resolves the future. Returns False if the caller has been cancelled."""
        if self.future.cancelled():
            return False
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)
        return True


J = TypeVar("J", bound=Job)


class Backlog(Generic[J]):
    """Waiting and running jobs. Workers call `take` and `peek`; all other methods are called on the event loop."""

    __slots__ = ("_bound", "_queue", "_what", "closed", "refused", "take", "waiting")

    def __init__(self, bound: int, what: str) -> None:
        self._bound = bound
        self._what = what
        self._queue: SimpleQueue[J | None] = SimpleQueue()  # lint: allow `add` refuses jobs beyond the bound
        self.take = self._queue.get
        """Waits for the next job; None means stop."""
        self.waiting = 0
        self.refused = 0
        self.closed: str | None = f"The store is not open; no {what} are accepted."

    def open(self) -> None:
        self.closed = None

    def add(self, job: J) -> None:
        if self.closed is not None:
            raise StoreFailed(self.closed)
        if self.waiting >= self._bound:
            self.refused += 1
            raise StoreBusy(
                f"The store has {self._bound} {self._what} waiting and accepts no more; try again in a moment."
            )
        self.waiting += 1
        self._queue.put(job)

    def peek(self) -> int:
        """Returns the number of jobs that can be taken without waiting."""
        return self._queue.qsize()

    def close(self, workers: int) -> None:
        """Refuses new jobs from now on. Each worker stops when the queued jobs are done."""
        if self.closed is None:
            self.closed = f"The store is closed; it accepts no more {self._what}."
            for _ in range(workers):
                self._queue.put(None)

    def abandon(self, why: str) -> list[J]:
        """Refuses new jobs and returns the waiting ones. Called when no worker is left."""
        self.closed = why
        left: list[J] = []
        while not self._queue.empty():
            job = self._queue.get_nowait()
            if job is not None:
                left.append(job)
        return left


class Worker:
    """A thread and its connection. `open` and `work` are called in the thread. When the thread has ended, `over` is
    called on the event loop, with the reason if the thread died unexpectedly."""

    def __init__(
        self,
        name: str,
        *,
        open: Callable[[], apsw.Connection],
        work: Callable[[apsw.Connection], None],
        over: Callable[[str | None], None],
    ) -> None:
        self._name = name
        self._open = open
        self._work = work
        self._over = over
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._finished: asyncio.Future[None] | None = None
        self._dead: str | None = None
        self.connected = False

    # -- on the loop --

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and self._dead is None

    def start(self) -> "asyncio.Future[None]":
        """Starts the thread. The future resolves when its connection is open, or fails with the reason."""
        self._loop = asyncio.get_running_loop()
        self._finished = self._loop.create_future()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name=self._name, daemon=True)
        self._thread.start()
        return opened

    @staticmethod
    async def stop(workers: "Sequence[Worker]", within: float) -> bool:
        """Waits for threads that have been signalled to stop. Returns False if this took too long."""
        started = [worker for worker in workers if worker._thread is not None]
        if not await _wait_for([worker._finished for worker in started if worker._finished is not None], within):
            return False
        for worker in started:
            if worker._thread is not None:
                worker._thread.join()
        return True

    def _end(self) -> None:
        self._over(self._dead)
        if self._finished is not None:
            _settle(self._finished, None)

    # -- in the thread --

    def call(self, fn: Callable[..., object], *args: object) -> None:
        """Calls `fn` on the event loop."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(fn, *args)
        except RuntimeError:
            log.error("the event loop was closed before the store")

    def _run(self, opened: "asyncio.Future[None]") -> None:
        db: apsw.Connection | None = None
        try:
            try:
                db = self._open()
            except Exception as error:
                self.call(_settle, opened, translate_opening(error))
                return
            self.connected = True
            self.call(_settle, opened, None)
            self._work(db)
        except BaseException as error:
            self._dead = f"The thread {self._name} has died ({type(error).__name__}: {error}); restart the gateway."
            log.error(self._dead, exc_info=error)
        finally:
            self._close(db)
            self.connected = False
            self.call(self._end)

    def _close(self, db: apsw.Connection | None) -> None:
        if db is None:
            return
        try:
            db.close()
        except apsw.Error as error:
            log.error("the store's file could not be closed properly", error=str(error))


def store_error(error: BaseException, db: apsw.Connection) -> BaseException:
    """Returns the error to raise in the caller of a failed function. Clears the traceback's frames, since a cursor that
    is still open in one of them would prevent the rollback."""
    traceback.clear_frames(error.__traceback__)
    found = translate(error, db)
    if not isinstance(found, Exception):
        found = StoreFailed(f"The operation was aborted ({type(error).__name__}).")
    if found is not error:
        found.__cause__ = error
    return found


async def _wait_for(futures: "Sequence[asyncio.Future[None]]", seconds: float) -> bool:
    """Waits for all futures. Returns True if they are done in time. A cancellation in the meantime is raised only
    afterwards, since nothing may be left half-closed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    cancelled: asyncio.CancelledError | None = None
    while (waiting := [future for future in futures if not future.done()]) and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait(waiting, timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return not waiting


def _settle(future: "asyncio.Future[None]", error: BaseException | None) -> None:
    """Resolves the future, unless it has been cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
