"""The store: one SQLite file, one writer, a few readers.

`write` returns when the function's changes are committed; the function completes even if its caller is cancelled.
`read` sees one consistent snapshot that includes every write acknowledged before it. Functions run in another thread
and may use the connection until they return. They must use only the connection and their arguments, and must not begin
or commit a transaction. A function may run more than once: a write is repeated if a full disk has rolled back its whole
group, and a read if its snapshot has kept the log from being emptied. The store owns its threads and connections. No
other process may open the file while the store has it open.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import anyio
import apsw

from tidegate.errors import DiskFailed, StoreDamaged, StoreFailed
from tidegate.log import Log
from tidegate.store.interface import Db
from tidegate.store.sqlite.connections import Durability
from tidegate.store.sqlite.integrity import check_table, tables_of
from tidegate.store.sqlite.problems import Problem, ProblemKind, Problems
from tidegate.store.sqlite.readers import Readers
from tidegate.store.sqlite.writer import Fault, Writer
from tidegate.values import Frozen

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

CLOSE_SECONDS = 8.0
"""Seconds that closing waits for reads and for queued writes. A disk that hangs for longer must not block the
shutdown."""
CHECK_SECONDS = 120.0
"""Maximum time, in seconds, that the check of one table may hold its snapshot."""
log = Log("tidegate.store")


class StoreStats(Frozen, frozen=True):
    """Statistics for the status and the metrics. Counters start when the store is opened; `bytes` is the file's size
    after the last checkpoint. `checked` is when the last full check ended."""

    path: str
    alive: bool
    durability: str
    full: bool
    problems: tuple[Problem, ...]
    problem_counts: dict[ProblemKind, int]
    checked: float | None
    bytes: int
    writes: int
    groups: int
    largest_group: int
    writes_failed: int
    writes_refused: int
    writes_waiting: int
    reads: int
    reads_waiting: int
    reads_refused: int
    reads_interrupted: int
    reads_repeated: int
    """The number of read attempts that were interrupted to empty the log and then repeated."""
    connections: int
    checkpoints: int
    wal_bytes: int
    wal_peak: int
    wal_overruns: int
    memory: int
    """Bytes of memory allocated by SQLite itself: page caches, statements, sort buffers."""


class Store:
    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = "process",
        readers: int = 2,
        snapshot_seconds: float = 10.0,
        wal_bytes: int = 64 * 1024 * 1024,
        queue: int = 4096,
        fault: Fault | None = None,
    ) -> None:
        self.path = path
        self._durability = durability
        self._problems = Problems()
        self._checking = asyncio.Lock()
        self._checked: float | None = None
        self._readers = Readers(path, readers=readers, age=snapshot_seconds, queue=queue, problems=self._problems)
        self._writer = Writer(
            path,
            durability=durability,
            wal_bytes=wal_bytes,
            queue=queue,
            fault=fault,
            readers=self._readers,
            problems=self._problems,
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: Path,
        *,
        durability: Durability = "process",
        readers: int = 2,
        snapshot_seconds: float = 10.0,
        wal_bytes: int = 64 * 1024 * 1024,
        queue: int = 4096,
        fault: Fault | None = None,
    ) -> AsyncIterator["Store"]:
        """Opens the store. At most `queue` writes and `queue` reads may wait; further calls raise `StoreBusy`. `fault`
        is for tests: it is called as fault(point, names of the group's functions) at the points before-write,
        before-commit and after-commit."""
        store = cls(
            path,
            durability=durability,
            readers=readers,
            snapshot_seconds=snapshot_seconds,
            wal_bytes=wal_bytes,
            queue=queue,
            fault=fault,
        )
        try:
            await store._writer.start()
            await store._readers.start()
            yield store
        finally:
            await store.close()

    async def write(self, fn: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `fn(db, …)` in the writer's current transaction. Returns its result after the commit."""
        result: T = await self._writer.submit(fn, args, kwargs)
        return result

    async def write_then(
        self, then: Callable[[T], U], fn: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> U:
        """Like `write`, followed by another step: `then(result)` is called on the event loop as soon as the write is
        committed, even if the caller has been cancelled. Returns the value of `then`."""
        result: U = await self._writer.submit(fn, args, kwargs, then)
        return result

    async def read(self, fn: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `fn(db, …)` on a snapshot. Raises `StoreBusy` if this takes longer than a snapshot may last."""
        result: T = await self._readers.read(fn, args, kwargs)
        return result

    async def integrity(self) -> list[str]:
        """Runs the full check and returns the problems found. The check works table by table, so that no snapshot is
        held for long. If a table cannot be checked in time, this is logged and the table is left out. The problems
        found stay in `problems` until a later check passes. Checks run one at a time, so that reads always have a
        connection."""
        async with self._checking:
            self._writer.files.touched = False
            found, complete = await self._check()
        self._checked = time.time()
        for problem in found:
            log.error("the database is damaged", problem=problem)
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            self._problems.record_damage(found[0] + more)
        elif complete:
            self._problems.resolve("damaged", "unreadable")
        return found

    async def _check(self) -> tuple[list[str], bool]:
        """Returns the problems found, and whether every table was checked."""
        found: list[str] = []
        complete = True
        try:
            tables = await self.read(tables_of)
        except (StoreDamaged, DiskFailed) as error:
            return [f"the list of tables: {error.__cause__ or error}"], False
        for table in tables:
            try:
                problems = await self._readers.read(check_table, (table,), {}, age=CHECK_SECONDS)
            except (StoreDamaged, DiskFailed) as error:
                problems = [str(error.__cause__ or error)]
            except StoreFailed as error:
                log.warning("the integrity of a table could not be checked", table=table, error=str(error))
                complete = False
                continue
            found.extend(f"{table}: {problem}" for problem in problems)
        return found, complete

    @property
    def alive(self) -> bool:
        """True while the writer thread is running."""
        return self._writer.alive

    @property
    def note(self) -> str | None:
        """A note for the operator about the file's state at startup, or None if there is nothing to report."""
        return self._writer.note

    @property
    def lost(self) -> str | None:
        """If the path no longer refers to the open file, a text with the reason and what to do, otherwise None. The
        store then accepts nothing more."""
        problem = self._problems.by_kind.get("lost")
        return None if problem is None else problem.text

    @property
    def touched(self) -> bool:
        """True if another program has written to the file since the last full check began."""
        return self._writer.files.touched

    @property
    def problems(self) -> Problems:
        """Current problems with the file or its disk. The spool, whose rows are in this store, also records its
        problems here."""
        return self._problems

    def stats(self) -> StoreStats:
        writer, readers = self._writer.stats(), self._readers.stats()
        return StoreStats(
            path=str(self.path),
            alive=self.alive,
            durability=self._durability,
            full=self._problems.is_current("full"),
            problems=self._problems.current(),
            problem_counts=dict(self._problems.counts),
            checked=self._checked,
            bytes=writer.bytes,
            writes=writer.writes,
            groups=writer.groups,
            largest_group=writer.largest_group,
            writes_failed=writer.failed,
            writes_refused=writer.refused,
            writes_waiting=writer.waiting,
            reads=readers.reads,
            reads_waiting=readers.waiting,
            reads_refused=readers.refused,
            reads_interrupted=readers.interrupted,
            reads_repeated=readers.repeated,
            connections=readers.connections + self._writer.connected,
            checkpoints=writer.checkpoints,
            wal_bytes=writer.wal_bytes,
            wal_peak=writer.wal_peak,
            wal_overruns=writer.wal_overruns,
            memory=apsw.memory_used(),
        )

    async def close(self) -> None:
        """Completes queued writes, stops reads, and closes the file. Idempotent. The readers close first, so that the
        writer closes last and leaves no log behind."""
        with anyio.CancelScope(shield=True):
            try:
                readers_closed = await self._readers.stop(CLOSE_SECONDS)
            finally:
                writer_closed = await self._writer.stop(CLOSE_SECONDS)
        if not (readers_closed and writer_closed):
            raise StoreFailed(f"The store did not close within {CLOSE_SECONDS:g} s; its last writes may be missing.")
