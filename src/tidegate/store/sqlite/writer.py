"""The writer: a thread that owns the writing connection and commits queued functions in groups.

A submitted function runs even if its caller has been cancelled, and its future is resolved only after its transaction
is committed. If a function fails, only its own writes are rolled back. If a whole group is rolled back (because the
disk is full at the commit), each of its functions is tried again on its own. The thread survives every `Exception`. If
it ends anyway, `alive` is False and all waiting callers get an error. While the path does not lead to the open file,
all writes are refused, and everything committed so far is copied to a file next to the path. The thread opens and
closes its connection itself; `start` and `stop` own the thread.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import apsw

from tidegate.errors import StoreDamaged, StoreFailed, StoreLost
from tidegate.log import Log
from tidegate.store import migrations
from tidegate.store.sqlite import files as _files
from tidegate.store.sqlite.connections import BUSY_SECONDS, CHECKPOINT_BYTES, Connection, Durability, connect
from tidegate.store.sqlite.files import Loss, OpenFiles, rescue
from tidegate.store.sqlite.problems import Problems
from tidegate.store.sqlite.readers import Readers
from tidegate.store.sqlite.worker import Backlog, Job, Worker, store_error
from tidegate.values import Frozen

Fault = Callable[[str, tuple[str, ...]], None]
F = TypeVar("F", bound=Callable[..., object])

GROUP = 128
"""Maximum number of functions in one transaction. This bounds how long the first function waits for the last, and how
many are retried after a failure."""

RESCUE_SECONDS = 30.0
"""Number of seconds between two attempts to copy a database whose path is lost."""
_LOG_HEADER, _FRAME_HEADER = 32, 24

log = Log("tidegate.store")


def outside(fn: F) -> F:
    """Marks a function that runs alone, between transactions. A decorator."""
    fn.outside_transaction = True  # type: ignore[attr-defined]
    return fn


class WriteJob(Job):
    """A submitted write. `then` is called on the event loop with its result."""

    __slots__ = ("then",)

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: "asyncio.Future[Any]",
        then: Callable[[Any], Any] | None,
    ) -> None:
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.future = future
        self.then = then


class WriterStats(Frozen, frozen=True):
    writes: int = 0
    groups: int = 0
    largest_group: int = 0
    failed: int = 0
    refused: int = 0
    waiting: int = 0
    checkpoints: int = 0
    wal_bytes: int = 0
    wal_peak: int = 0
    wal_overruns: int = 0
    bytes: int = 0


Done = tuple[WriteJob, Any, BaseException | None]


class Writer:
    def __init__(
        self,
        path: Path,
        *,
        durability: Durability,
        wal_bytes: int,
        queue: int,
        fault: Fault | None,
        readers: Readers,
        problems: Problems,
    ) -> None:
        self._path = path
        self._problems = problems
        self._files = OpenFiles(path)
        self._loss: Loss | None = None
        self._rescued: Path | None = None
        self._next_rescue = 0.0
        self._durability = durability
        self._wal_limit = wal_bytes
        self._fault = fault
        self._readers = readers
        self._backlog: Backlog[WriteJob] = Backlog(queue, "writes")
        self._worker = Worker("tidegate-store-writer", open=self._open, work=self._work, over=self._ended)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._group: list[WriteJob] = []
        self._held: list[WriteJob | None] = []
        self._writes = self._groups = self._largest = self._failed = 0
        self._page_size = 4096
        self._wal_pages = self._wal_peak = self._checkpoints = self._overruns = 0
        self._step_pages = self._next_checkpoint = 1
        self.note: str | None = None

    # -- on the loop --

    @property
    def alive(self) -> bool:
        return self._worker.alive and self._backlog.closed is None

    @property
    def connected(self) -> bool:
        """True while the connection is open, including while it is being closed."""
        return self._worker.connected

    @property
    def files(self) -> OpenFiles:
        return self._files

    async def start(self) -> None:
        """Starts the thread and waits until the file is open and has the current schema."""
        self._loop = asyncio.get_running_loop()
        self._backlog.open()
        await self._worker.start()

    def submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        then: Callable[[Any], Any] | None = None,
    ) -> "asyncio.Future[Any]":
        if self._loop is None:
            raise StoreFailed("The store is not open; nothing can be written.")
        future = self._loop.create_future()
        self._backlog.add(WriteJob(fn, args, kwargs, future, then))
        return future

    async def stop(self, within: float) -> bool:
        """Completes queued writes, closes the file, and stops the thread. Later writes are refused. Returns False if
        this took too long."""
        self._backlog.close(workers=1)
        return await Worker.stop([self._worker], within)

    def stats(self) -> WriterStats:
        return WriterStats(
            writes=self._writes,
            groups=self._groups,
            largest_group=self._largest,
            failed=self._failed,
            refused=self._backlog.refused,
            waiting=self._backlog.waiting,
            checkpoints=self._checkpoints,
            wal_bytes=self._wal_pages * self._page_size,
            wal_peak=self._wal_peak * self._page_size,
            wal_overruns=self._overruns,
            bytes=self._files.bytes,
        )

    def _resolve(self, done: list[Done]) -> None:
        self._backlog.waiting -= len(done)
        for job, value, error in done:
            if error is None and job.then is not None:
                try:
                    value = job.then(value)
                except Exception as failure:
                    error = failure
            if not job.resolve(value, error) and error is not None:
                log.warning("a write failed after its caller was cancelled", error=str(error))

    def _ended(self, dead: str | None) -> None:
        """Fails all waiting writes and refuses new ones. Called on the event loop when the thread has ended."""
        why = dead or "The store is closed; it accepts no more writes."
        lost = [*self._group, *(job for job in self._held if job is not None), *self._backlog.abandon(why)]
        self._resolve([(job, None, StoreFailed(why)) for job in lost])

    # -- in the thread --

    def _work(self, db: apsw.Connection) -> None:
        while self._next():
            alone = getattr(self._group[0].fn, "outside_transaction", False)
            if (alone or self._loss is not None) and self._is_lost():
                self._finish([(job, None, self._refusal(db)) for job in self._group])
            elif alone:
                self._run_outside(db, self._group[0])
            else:
                self._commit(db, self._group)
            self._group.clear()
            if self._loss is None:
                self._bound_log(db)
        if self._is_lost():
            self._next_rescue = 0.0
            self._refusal(db)

    def _open(self) -> Connection:
        _files.refuse_unsafe_library()
        self.note = _files.examine(self._path)
        db = connect(self._path, self._durability, self._wal_limit)
        try:
            migrations.migrate(db)
            self._page_size = int(db.execute("PRAGMA page_size").get)
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            db.set_wal_hook(self._committed)
            self._files.remember()
        except (apsw.CorruptError, apsw.NotADBError) as error:
            db.close()
            raise StoreDamaged(_files.quarantine(self._path, str(error))) from None
        except BaseException:
            db.close()
            raise
        self._step_pages = max(1, min(CHECKPOINT_BYTES, self._wal_limit // 4) // self._page_size)
        self._next_checkpoint = self._step_pages
        return db

    def _next(self) -> bool:
        """Waits for a job, then takes the other queued jobs, too. Returns False to stop."""
        job = self._held.pop() if self._held else self._backlog.take()
        if job is None:
            return False
        self._group.append(job)
        if getattr(job.fn, "outside_transaction", False):
            return True
        for _ in range(min(self._backlog.peek(), GROUP - 1)):
            job = self._backlog.take()
            if job is None or getattr(job.fn, "outside_transaction", False):
                self._held.append(job)
                break
            self._group.append(job)
        return True

    def _commit(self, db: apsw.Connection, group: list[WriteJob]) -> None:
        done: list[Done] = []
        try:
            self._inject_fault("before-write", group)
            db.execute("BEGIN IMMEDIATE")
            for job in group:
                done.append(_run_one(db, job) if len(group) > 1 else (job, job.fn(db, *job.args, **job.kwargs), None))
            self._inject_fault("before-commit", group)
            if self._is_lost(index=False):
                raise StoreLost("The database is not in its place.")
            db.execute("COMMIT")
        except Exception as error:
            found = store_error(error, db)
            if db.in_transaction:
                db.execute("ROLLBACK")
            if self._loss is not None:
                self._finish([(job, None, self._refusal(db)) for job in group])
                return
            if len(group) > 1:
                for job in group:
                    self._commit(db, [job])
                return
            done = [(group[0], None, found)]
        self._inject_fault("after-commit", group)
        self._finish(done)

    def _finish(self, done: list[Done]) -> None:
        self._account(done)
        self._worker.call(self._resolve, done)

    def _account(self, done: list[Done]) -> None:
        self._groups += 1
        self._writes += len(done)
        self._largest = max(self._largest, len(done))
        failed = [(job, error) for job, _, error in done if error is not None]
        self._failed += len(failed)
        if self._problems.by_kind and len(failed) < len(done):
            self._problems.resolve("full", "unwritable")
        for job, error in failed:
            self._problems.record_error(error, "write", job.fn)

    def _is_lost(self, *, index: bool = True) -> bool:
        """True if the path does not lead to the open file. A later call may return False, for example after a folder
        has been moved back."""
        log_bytes = _LOG_HEADER + self._wal_pages * (_FRAME_HEADER + self._page_size) if self._wal_pages else 0
        found = self._files.lost(log_bytes, index=index)
        if found is None and self._loss is not None and self._loss.intact:
            self._loss = self._rescued = None
            self._problems.resolve("lost")
        self._loss = self._loss or found
        return self._loss is not None

    def _refusal(self, db: apsw.Connection) -> StoreLost:
        """Returns the error for writes while the path is lost. Copies the committed data once. If copying fails, it is
        retried after a while."""
        assert self._loss is not None, "only while the path is lost"
        text = self._problems.text("lost")
        if not text or time.monotonic() >= self._next_rescue:
            text = f"{self._loss.text}, so nothing more is accepted: {self._advice(db, self._loss)}"
            self._next_rescue = time.monotonic() + RESCUE_SECONDS
        self._problems.record("lost", text)
        return StoreLost(text)

    def _advice(self, db: apsw.Connection, loss: Loss) -> str:
        if not loss.intact:
            return "stop the gateway and restore a backup."
        failed = ""
        try:
            if self._rescued is None:
                self._rescued = rescue(db, self._path)
        except (OSError, apsw.Error) as error:
            failed = str(error)
        if self._rescued is not None:
            return (
                f"all acknowledged data is saved in {self._rescued}; stop the gateway, remove what is left of"
                f" {self._path} with its -wal and -shm, give the saved file that name, and start the gateway again."
            )
        if (where := self._files.current_path()) is not None:
            return f"the open file is now {where}; move it back, or stop the gateway and start it on that folder."
        return (
            f"acknowledged data could not be saved ({failed}) and is lost when the gateway stops; make sure that"
            f" files can be created in {self._path.parent}, where a copy is tried again every {RESCUE_SECONDS:g} s."
        )

    def _run_outside(self, db: apsw.Connection, job: WriteJob) -> None:
        try:
            done: Done = (job, job.fn(db, *job.args, **job.kwargs), None)
        except Exception as error:
            done = (job, None, store_error(error, db))
        if done[2] is not None:
            self._problems.record_error(done[2], "checkpoint", job.fn)
        self._measure(db)
        self._worker.call(self._resolve, [done])

    def _inject_fault(self, point: str, group: list[WriteJob]) -> None:
        if self._fault is not None:
            self._fault(point, tuple(job.fn.__name__ for job in group))

    def _committed(self, db: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        self._wal_peak = max(self._wal_peak, pages)
        return apsw.SQLITE_OK

    def _bound_log(self, db: apsw.Connection) -> None:
        """Keeps the log small. Runs after the group has been acknowledged, so only the next group has to wait."""
        if self._wal_pages < self._next_checkpoint or self._is_lost(index=False):
            return
        try:
            pages, moved = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if pages * self._page_size >= self._wal_limit:
                pages, moved = self._empty_log(db)
        except apsw.Error as error:
            self._problems.record_error(store_error(error, db), "checkpoint", self._bound_log)
            self._measure(db)
            self._next_checkpoint = self._wal_pages + self._step_pages
            return
        self._problems.resolve("log")
        self._checkpoints += 1
        self._measure(db)
        if moved >= pages:
            self._wal_pages = 0
        self._next_checkpoint = self._wal_pages + self._step_pages

    def _measure(self, db: apsw.Connection) -> None:
        with contextlib.suppress(apsw.Error):  # the length of an unreadable database is unknown
            self._files.measure(int(db.execute("PRAGMA page_count").get) * self._page_size)

    def _empty_log(self, db: apsw.Connection) -> tuple[int, int]:
        """Empties a log that has reached its bound. Waits for active reads, and interrupts those that take too long.
        Nothing is written in the meantime, so the log does not grow further."""
        try:
            db.set_busy_timeout(int(self._readers.leeway() * 1000))
            return db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            self._overruns += 1
            self._readers.make_way()
            db.set_busy_timeout(int(BUSY_SECONDS * 1000))
            return db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            db.set_busy_timeout(int(BUSY_SECONDS * 1000))
            self._readers.log_emptied()


def _run_one(db: apsw.Connection, job: WriteJob) -> Done:
    """Runs one of several functions in a savepoint. Raises an error only if the whole transaction has been rolled
    back."""
    db.execute("SAVEPOINT one")
    try:
        value = job.fn(db, *job.args, **job.kwargs)
    except Exception as error:
        found = store_error(error, db)
        if not db.in_transaction:
            raise
        db.execute("ROLLBACK TO one")
        db.execute("RELEASE one")
        return job, None, found
    db.execute("RELEASE one")
    return job, value, None
