"""The store: one SQLite file, one writer, a few readers.

Guarantee: `write` returns when what the function did is committed, and the function is completed even if its caller is
cancelled; `read` sees one consistent snapshot that holds every write acknowledged before it. Functions sent in run in
another thread and get the connection for the length of the call: they touch nothing but it and their arguments, neither
begin nor commit, and may be run again: a write when a full disk took the whole group with it, a read when its snapshot
kept the log from being emptied. The store owns its threads and connections, and no other process may open the file
while it is open.
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
from tidegate.store.rows import Db
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
"""How long closing waits for the reads, and for the writes that are queued; a disk that hangs longer must not hang the
shutdown."""
CHECK_SECONDS = 120.0
"""How long the check of one table may hold its snapshot."""
log = Log("tidegate.store")


class StoreStats(Frozen, frozen=True):
    """What the store is doing, for status and metrics. Counters count since the store was opened; `bytes` is the size
    of the file when its log was last moved into it. `checked` is when the last full check ended."""

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
    """Attempts that had to make way for the log and were made again."""
    connections: int
    checkpoints: int
    wal_bytes: int
    wal_peak: int
    wal_overruns: int
    memory: int
    """Bytes that SQLite holds itself: page caches, statements, what a query sorts."""


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
        """`queue` bounds the writes, and the reads, that may wait; more are refused with StoreFailed. `fault` is for
        tests: called as fault(point, names of the group's functions) at before-write, before-commit, after-commit."""
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
        """Runs `fn(db, …)` in the writer's current transaction; its result, once that is committed."""
        result: T = await self._writer.submit(fn, args, kwargs)
        return result

    async def write_then(
        self, then: Callable[[T], U], fn: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> U:
        """As `write`, for what must not be committed and forgotten: `then(result)` is called on the loop as soon as
        the write is committed, whether or not the caller is still there; its value is the caller's."""
        result: U = await self._writer.submit(fn, args, kwargs, then)
        return result

    async def read(self, fn: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `fn(db, …)` on a snapshot. StoreBusy when that takes longer than a snapshot may live."""
        result: T = await self._readers.read(fn, args, kwargs)
        return result

    async def integrity(self) -> list[str]:
        """The full check, table by table, so that no snapshot is held for long. What is wrong; empty when all is well.
        A table that could not be checked in time is logged and left out. The result stands as a problem of the store
        until a later check passes. Checks run one at a time, so that reads always have a connection."""
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
        """What is wrong, and whether everything could be looked at."""
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
        """Whether writes are being worked on."""
        return self._writer.alive

    @property
    def note(self) -> str | None:
        """What an operator should know about how the file was found at start."""
        return self._writer.note

    @property
    def lost(self) -> str | None:
        """Why nothing is accepted any more, with what to do, once the path is no longer the open file."""
        return self._problems.text("lost") or None

    @property
    def touched(self) -> bool:
        """Whether another program has written to the file since the last full check began."""
        return self._writer.files.touched

    @property
    def problems(self) -> Problems:
        """What stands wrong with the file or its disk. The spool, whose rows are here, records its own with them."""
        return self._problems

    def stats(self) -> StoreStats:
        writer, readers = self._writer.stats(), self._readers.stats()
        return StoreStats(
            path=str(self.path),
            alive=self.alive,
            durability=self._durability,
            full=self._problems.stands("full"),
            problems=self._problems.standing(),
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
        """Completes the writes that are queued, stops the reads, and closes the file: the readers first, so that the
        writer is the last to close and leaves no log behind. Idempotent."""
        with anyio.CancelScope(shield=True):
            try:
                whole = await self._readers.stop(CLOSE_SECONDS)
            finally:
                written = await self._writer.stop(CLOSE_SECONDS)
        if not (whole and written):
            raise StoreFailed(f"The store did not close within {CLOSE_SECONDS:g} s; its last writes may be missing.")
