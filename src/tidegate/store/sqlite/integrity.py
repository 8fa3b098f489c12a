"""The full database check: the structure, and the compressed content of rows.

It reads everything and changes nothing. It works on one table at a time, so that a running gateway need not hold a
snapshot for long. `check_file` checks a database that no process has open.
"""

import contextlib
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import apsw

from tidegate.store.interface import Db
from tidegate.store.rows import decompress
from tidegate.store.sqlite.connections import connect_reader

PROBLEMS = 20
"""Maximum number of problems reported per table."""


def tables_of(db: Db) -> list[str]:
    rows = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    return [row[0] for row in rows]


def check_table(db: Db, table: str) -> list[str]:
    """Returns the problems found in one table and its indexes."""
    quoted = table.replace('"', '""')
    # Otherwise, a full-text index that has been searched is checked with this connection's cached list of its segments,
    # which misses segments that have been merged since.
    db.execute(f'SELECT 1 FROM "{quoted}" LIMIT 1').fetchall()
    found: list[Any] = db.execute(f'PRAGMA integrity_check("{quoted}")').fetchall()[:PROBLEMS]
    problems = [str(row[0]) for row in found if row[0] != "ok"]
    columns = {row[1] for row in db.execute(f'PRAGMA table_info("{quoted}")')}
    if not problems and {"body", "packed"} <= columns:
        problems = list(islice(_broken_bodies(db, quoted), PROBLEMS))
    return problems


def check_file(path: Path, *, owned: bool) -> list[str]:
    """Returns the problems found in all tables of a database that no process has open. If `owned` is true, the absence
    of an owner in the database is also a problem. Blocks the calling thread."""
    found: list[str] = []
    try:
        with contextlib.closing(connect_reader(path)) as db:
            for table in tables_of(db):
                try:
                    found += [f"{table}: {problem}" for problem in check_table(db, table)]
                except apsw.Error as error:
                    found.append(f"{table}: {error}")
            if owned and not found and not db.execute("SELECT count(*) FROM principals").get:
                found.append("it has no owner")
    except apsw.Error as error:
        return [str(error)]
    return found


def _broken_bodies(db: Db, table: str) -> Iterator[str]:
    """Finds compressed bodies that cannot be decoded. SQLite checks only the structure of pages, not their content, but
    compressed bodies have their own checksum."""
    for (body,) in db.execute(f'SELECT body FROM "{table}" WHERE packed <> 0'):
        try:
            decompress(body, 1)
        except zlib.error as error:
            yield f"a row cannot be unpacked ({error})"
