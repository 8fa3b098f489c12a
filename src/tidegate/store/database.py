"""The store: one SQLite file, one writer, a few readers.

Guarantee: `write` returns when what the function did is committed, and the function is completed even if its caller is
cancelled; `read` sees one consistent snapshot that holds every write acknowledged before it. Functions sent in run in
another thread and get the connection for the length of the call: they touch nothing but it and their arguments, neither
begin nor commit, and may be run again: a write when a full disk took the whole group with it, a read when its snapshot
kept the log from being emptied. The store owns its threads and connections, and no other process may open the file
while it is open.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
import apsw

from tidegate.errors import StoreDamaged, StoreFailed
from tidegate.log import Log
from tidegate.store._connections import Durability
from tidegate.store._readers import Readers
from tidegate.store._writer import Fault, Writer
from tidegate.store.rows import Db
from tidegate.values import Frozen

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

CLOSE_SECONDS = 8.0
"""How long closing waits for the reads, and for the writes that are queued; a disk that hangs longer must not hang the
shutdown."""
CHECK_SECONDS = 120.0
"""How long the check of one table may hold its snapshot."""
PROBLEMS = 20
"""Problems that an integrity check reports per table."""

log = Log("tidegate.store")


class StoreStats(Frozen, frozen=True):
    """What the store is doing, for status and metrics. Counters count since the store was opened; `bytes` is the size
    of the file when its log was last moved into it."""

    path: str
    alive: bool
    durability: str
    full: bool
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
        self._readers = Readers(path, readers=readers, age=snapshot_seconds, queue=queue)
        self._writer = Writer(
            path,
            durability=durability,
            wal_bytes=wal_bytes,
            queue=queue,
            fault=fault,
            readers=self._readers,
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
        A table that could not be checked in time is logged and left out."""
        problems: list[str] = []
        for table in await self.read(_tables):
            try:
                found = await self._readers.read(_check, (table,), {}, age=CHECK_SECONDS)
            except StoreDamaged as error:
                found = [error.message]
            except StoreFailed as error:
                log.warning("the integrity of a table could not be checked", table=table, error=str(error))
                continue
            problems.extend(f"{table}: {problem}" for problem in found)
        return problems

    @property
    def alive(self) -> bool:
        """Whether writes are being worked on."""
        return self._writer.alive

    @property
    def note(self) -> str | None:
        """What an operator should know about how the file was found at start."""
        return self._writer.note

    def stats(self) -> StoreStats:
        writer, readers = self._writer.stats(), self._readers.stats()
        return StoreStats(
            path=str(self.path),
            alive=self.alive,
            durability=self._durability,
            full=writer.full,
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
            connections=readers.connections + (1 if self.alive else 0),
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


def _tables(db: Db) -> list[str]:
    rows = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    return [row[0] for row in rows]


def _check(db: Db, table: str) -> list[str]:
    quoted = table.replace('"', '""')
    found: list[Any] = db.execute(f'PRAGMA integrity_check("{quoted}")').fetchall()[:PROBLEMS]
    return [str(row[0]) for row in found if row[0] != "ok"]
