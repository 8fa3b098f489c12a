"""The one writer: a thread that owns the connection that writes, and commits what is queued in groups.

Guarantee: what was submitted is run once it is its turn, even when nobody waits for it any more, and its future is
resolved only after its transaction is committed. A function that fails undoes its own writes and nothing else; when the
whole group is lost (a full disk at the commit), each of its functions is tried again by itself. The thread outlives
every `Exception`; should it die all the same, `alive` says so and nothing waits for ever. The thread opens and closes
its connection itself; `start` and `stop` own the thread.
"""

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple, TypeVar

import apsw

from tidegate.errors import StoreDamaged, StoreFailed, StoreFull
from tidegate.store import _files, migrations
from tidegate.store._errors import translate, translate_opening
from tidegate.store._waiting import outlast, tell
from tidegate.values import Frozen

Durability = Literal["process", "power"]
Fault = Callable[[str, tuple[str, ...]], None]
F = TypeVar("F", bound=Callable[..., object])

GROUP = 128
"""Functions in one transaction at most: bounds how long the first waits for the last, and what is tried again."""
CHECKPOINT_BYTES = 8 * 1024 * 1024
"""The log is moved into the file when it has grown by this much: often enough to stay small, seldom enough that a page
that many turns wrote is moved once."""
BUSY_SECONDS = 2.0
"""How long the emptying of a log that is too large waits for the readers it has just interrupted."""
STATEMENTS = 256
"""Prepared statements kept; more than there are in this room."""
CACHE_KIB = 4096

log = logging.getLogger("tidegate.store")


def outside(fn: F) -> F:
    """Marks a function that must run between transactions, by itself."""
    fn.outside_transaction = True  # type: ignore[attr-defined]
    return fn


class Job(NamedTuple):
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    future: "asyncio.Future[Any]"
    then: Callable[[Any], Any] | None = None


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
    full: bool = False
    bytes: int = 0


Done = tuple[Job, Any, BaseException | None]


class Writer:
    def __init__(
        self,
        path: Path,
        *,
        durability: Durability,
        wal_bytes: int,
        queue: int,
        fault: Fault | None,
        cancel_readers: Callable[[], None],
    ) -> None:
        self._path = path
        self._durability = durability
        self._wal_limit = wal_bytes
        self._bound = queue
        self._fault = fault
        self._cancel_readers = cancel_readers
        self._queue: SimpleQueue[Job | None] = SimpleQueue()  # house: allow writes beyond the bound are refused
        self._held: list[Job | None] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gone: asyncio.Future[None] | None = None
        self._closing = False
        self._dead: str | None = None
        self._waiting = 0
        self._refused = 0
        self._writes = self._groups = self._largest = self._failed = 0
        self._full = False
        self._page_size = 4096
        self._bytes = 0
        self._wal_pages = self._wal_peak = self._checkpoints = self._overruns = 0
        self._step_pages = self._next_checkpoint = 1
        self.note: str | None = None

    # -- on the loop --

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and self._dead is None and not self._closing

    async def start(self) -> None:
        """Starts the thread and waits until the file is open and has today's shape."""
        self._loop = asyncio.get_running_loop()
        self._gone = self._loop.create_future()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="tidegate-store-writer", daemon=True)
        self._thread.start()
        await opened

    def submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        then: Callable[[Any], Any] | None = None,
    ) -> "asyncio.Future[Any]":
        if self._closing or self._dead is not None or self._loop is None:
            raise StoreFailed(self._dead or "The store is closed; nothing more can be written.")
        if self._waiting >= self._bound:
            self._refused += 1
            raise StoreFailed(f"The store has {self._bound} writes waiting and takes no more; try again in a moment.")
        future = self._loop.create_future()
        self._waiting += 1
        self._queue.put(Job(fn, args, kwargs, future, then))
        return future

    async def stop(self, within: float) -> bool:
        """Completes what is queued, closes the file, ends the thread. Refuses what comes after the call. False when
        that took too long."""
        if self._thread is None or self._gone is None:
            return True
        if not self._closing:
            self._closing = True
            self._queue.put(None)
        if not await outlast([self._gone], within):
            return False
        self._thread.join()
        return True

    def stats(self) -> WriterStats:
        return WriterStats(
            writes=self._writes,
            groups=self._groups,
            largest_group=self._largest,
            failed=self._failed,
            refused=self._refused,
            waiting=self._waiting,
            checkpoints=self._checkpoints,
            wal_bytes=self._wal_pages * self._page_size,
            wal_peak=self._wal_peak * self._page_size,
            wal_overruns=self._overruns,
            full=self._full,
            bytes=self._bytes,
        )

    def _resolve(self, done: list[Done]) -> None:
        self._waiting -= len(done)
        for job, value, error in done:
            if error is None and job.then is not None:
                try:
                    value = job.then(value)
                except Exception as failure:
                    error = failure
            if job.future.cancelled():
                if error is not None:
                    log.warning("a write failed that nobody waits for any more: %s", error)
            elif error is None:
                job.future.set_result(value)
            else:
                job.future.set_exception(error)

    def _bury(self, lost: list[Job]) -> None:
        """The thread died: on the loop, so that no job can slip in behind."""
        while not self._queue.empty():
            job = self._queue.get_nowait()
            if job is not None:
                lost.append(job)
        words = self._dead or "The store's writer has ended."
        self._resolve([(job, None, StoreFailed(words)) for job in lost])
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    # -- in the thread --

    def _call(self, fn: Callable[..., object], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(fn, *args)
        except RuntimeError:
            log.error("the event loop was closed before the store")

    def _run(self, opened: "asyncio.Future[None]") -> None:
        group: list[Job] | None = []
        db: apsw.Connection | None = None
        try:
            try:
                db = self._open()
            except Exception as error:
                self._call(tell, opened, translate_opening(error))
                return
            self._call(tell, opened, None)
            while (group := self._next()) is not None:
                if getattr(group[0].fn, "outside_transaction", False):
                    self._run_outside(db, group[0])
                else:
                    self._commit(db, group)
                group.clear()
                self._bound_log(db)
        except BaseException as error:
            self._dead = f"The store's writer has died ({type(error).__name__}: {error}); restart the gateway."
            log.critical(self._dead, exc_info=error)
        finally:
            self._close(db)
            self._call(self._bury, [*(group or ()), *(job for job in self._held if job is not None)])

    def _open(self) -> apsw.Connection:
        _files.refuse_unsafe_library(apsw.sqlite_lib_version())
        self.note = _files.examine(self._path)
        db = connect(self._path, self._durability, self._wal_limit)
        try:
            migrations.migrate(db)
            self._page_size = int(db.execute("PRAGMA page_size").get)
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._bytes = self._path.stat().st_size
            db.set_wal_hook(self._committed)
        except (apsw.CorruptError, apsw.NotADBError) as error:
            db.close()
            raise StoreDamaged(_files.quarantine(self._path, str(error))) from None
        except BaseException:
            db.close()
            raise
        self._step_pages = max(1, min(CHECKPOINT_BYTES, self._wal_limit // 4) // self._page_size)
        self._next_checkpoint = self._step_pages
        return db

    def _close(self, db: apsw.Connection | None) -> None:
        if db is None:
            return
        try:
            db.close()
        except apsw.Error as error:
            log.error("the store's file could not be closed properly: %s", error)

    def _next(self) -> list[Job] | None:
        """Waits for a job, then takes whatever else is queued; None when it is time to stop."""
        job = self._held.pop() if self._held else self._queue.get()
        if job is None:
            return None
        group = [job]
        if getattr(job.fn, "outside_transaction", False):
            return group
        for _ in range(min(self._queue.qsize(), GROUP - 1)):
            job = self._queue.get_nowait()
            if job is None or getattr(job.fn, "outside_transaction", False):
                self._held.append(job)
                break
            group.append(job)
        return group

    def _commit(self, db: apsw.Connection, group: list[Job]) -> None:
        done: list[Done] = []
        try:
            self._strike("before-write", group)
            db.execute("BEGIN IMMEDIATE")
            for job in group:
                done.append(_run_one(db, job) if len(group) > 1 else (job, job.fn(db, *job.args, **job.kwargs), None))
            self._strike("before-commit", group)
            db.execute("COMMIT")
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            if db.in_transaction:
                db.execute("ROLLBACK")
            if len(group) > 1:
                for job in group:
                    self._commit(db, [job])
                return
            done = [(group[0], None, _ours(error))]
        self._strike("after-commit", group)
        self._account(done)
        self._call(self._resolve, done)

    def _account(self, done: list[Done]) -> None:
        self._groups += 1
        self._writes += len(done)
        self._largest = max(self._largest, len(done))
        errors = [error for _, _, error in done if error is not None]
        self._failed += len(errors)
        self._full = any(isinstance(error, StoreFull) for error in errors) or (self._full and len(errors) == len(done))

    def _run_outside(self, db: apsw.Connection, job: Job) -> None:
        try:
            done: Done = (job, job.fn(db, *job.args, **job.kwargs), None)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            done = (job, None, _ours(error))
        self._call(self._resolve, [done])

    def _strike(self, point: str, group: list[Job]) -> None:
        if self._fault is not None:
            self._fault(point, tuple(job.fn.__name__ for job in group))

    def _committed(self, db: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        self._wal_peak = max(self._wal_peak, pages)
        return apsw.SQLITE_OK

    def _bound_log(self, db: apsw.Connection) -> None:
        """Keeps the log small: after the acknowledgements, so that only the next group waits for it."""
        if self._wal_pages < self._next_checkpoint:
            return
        try:
            pages, moved = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if moved < pages and pages * self._page_size >= self._wal_limit:
                self._overruns += 1
                self._cancel_readers()
                pages, moved = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            log.warning("the store's log could not be moved into the file: %s", error)
            self._next_checkpoint = self._wal_pages + self._step_pages
            return
        self._checkpoints += 1
        self._bytes = self._path.stat().st_size
        if moved >= pages:
            self._wal_pages = 0
        self._next_checkpoint = self._wal_pages + self._step_pages


def connect(path: Path, durability: Durability, wal_bytes: int) -> apsw.Connection:
    """The connection that writes. A new file is readable by its owner only."""
    if not path.exists():
        path.touch(mode=0o600)
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=STATEMENTS)
    try:
        db.set_busy_timeout(int(BUSY_SECONDS * 1000))
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode = db.execute("PRAGMA journal_mode = WAL").get
        if mode != "wal":
            raise StoreFailed(f"The file system of {path} cannot hold a write-ahead log (SQLite says {mode}).")
        db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'power' else 'NORMAL'}")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute(f"PRAGMA journal_size_limit = {min(wal_bytes, 2 * CHECKPOINT_BYTES)}")
        db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        db.wal_autocheckpoint(0)
        keep_plans(db)
    except BaseException:
        db.close()
        raise
    return db


def keep_plans(db: apsw.Connection) -> None:
    """Plans do not depend on bound values. Without this, a library built with STAT4 prepares a statement again each
    time other values are bound to it, which costs ten times as much as running it."""
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def _run_one(db: apsw.Connection, job: Job) -> Done:
    """One function of several, inside its own savepoint. Raises only when the whole transaction is gone."""
    db.execute("SAVEPOINT one")
    try:
        value = job.fn(db, *job.args, **job.kwargs)
    except Exception as error:
        # A cursor that a failed function left open would keep the savepoint from being undone.
        traceback.clear_frames(error.__traceback__)
        if not db.in_transaction:
            raise
        db.execute("ROLLBACK TO one")
        db.execute("RELEASE one")
        return job, None, _ours(error)
    db.execute("RELEASE one")
    return job, value, None


def _ours(error: Exception) -> BaseException:
    found = translate(error)
    if found is not error:
        found.__cause__ = error
    return found
