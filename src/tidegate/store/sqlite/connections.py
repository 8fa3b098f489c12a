"""Connections to the store's file: one for writing, several for reading.

All of them are set up here, so that they use the same query plans and wait equally long for a lock. The thread that
opens a connection owns it, is the only one to use it, and closes it.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import apsw

from tidegate.errors import StoreFailed
from tidegate.store.interface import ConstraintError, Lockable

Durability = Literal["process", "power"]

CHECKPOINT_BYTES = 8 * 1024 * 1024
"""The log is moved into the file whenever it has grown by this much. This keeps the log small, yet a page that many
turns have written is moved only once."""
BUSY_SECONDS = 2.0
"""Seconds that emptying an oversized log waits for the reads that have just been interrupted."""
WRITER_STATEMENTS = 256
"""Number of prepared statements to cache: more than there are in this package."""
READER_STATEMENTS = 128
WRITER_CACHE_KIB = 4096
READER_CACHE_KIB = 1024


class Connection(apsw.Connection):
    """An apsw connection, extended with the methods of `interface.Db` that apsw lacks."""

    __slots__ = ()

    def insert_unique(self, sql: str, values: Sequence[Any], /) -> apsw.Cursor:
        try:
            return self.execute(sql, values)
        except apsw.ConstraintError as error:
            raise ConstraintError(str(error)) from None

    def batch(self, statements: Iterable[tuple[str, Sequence[Any]]], /) -> None:
        for sql, values in statements:
            self.execute(sql, values)

    def lock(self, kind: Lockable, key: str, /) -> None:
        """Does nothing, since only one connection writes."""


def connect(path: Path, durability: Durability, wal_bytes: int) -> Connection:
    """Opens the writing connection. A new file is readable by its owner only."""
    if not path.exists():
        path.touch(mode=0o600)
    db = Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=WRITER_STATEMENTS)
    try:
        _set_up(db, WRITER_CACHE_KIB)
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode = db.execute("PRAGMA journal_mode = WAL").get
        if mode != "wal":
            raise StoreFailed(f"The file system of {path} does not support a write-ahead log (SQLite says {mode}).")
        db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'power' else 'NORMAL'}")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute(f"PRAGMA journal_size_limit = {min(wal_bytes, 2 * CHECKPOINT_BYTES)}")
        db.wal_autocheckpoint(0)
    except BaseException:
        db.close()
        raise
    return db


def connect_reader(path: Path) -> Connection:
    db = Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=READER_STATEMENTS)
    try:
        _set_up(db, READER_CACHE_KIB)
    except BaseException:
        db.close()
        raise
    return db


def _set_up(db: apsw.Connection, cache_kib: int) -> None:
    db.set_busy_timeout(int(BUSY_SECONDS * 1000))
    db.execute(f"PRAGMA cache_size = -{cache_kib}")
    # Plans must not depend on bound values. Without this setting, a library built with STAT4 prepares a statement again
    # whenever other values are bound to it, which costs ten times as much as running it.
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
