"""The interface between the tables and a database: a connection within a transaction.

Functions in `tables/` use a connection only through this interface. Their SQL is the common subset of SQLite and
PostgreSQL (docs/decisions/0035-one-dialect-module.md); `dialect` provides the fragments that differ. Statements have
positional parameters, either all `?` or all numbered (`?1`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

Lockable = Literal["session", "turn", "approval", "process"]
"""The kinds of ids by which a session can be locked: its own id, or the id of one of its turns, approvals or
processes."""


class ConstraintError(Exception):
    """A statement violates a constraint. Raised only by `Db.insert_unique`; the transaction continues."""


class Rows(Protocol):
    """A statement's result. Read it completely and only once, since a database may fetch all rows before it returns the
    first. If a loop can stop early, its statement should have a LIMIT."""

    @property
    def get(self) -> Any:
        """The only row, or just the value if the row has one column; None if there is no row."""

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Db(Protocol):
    """The connection that functions in the store receive as their first argument. It is valid until the function
    returns."""

    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> Rows: ...

    def insert_unique(self, sql: str, values: Sequence[Any], /) -> Rows:
        """Runs a statement that may violate a constraint. If it does, the statement is undone and ConstraintError is
        raised."""

    def executemany(self, sql: str, values: Iterable[Sequence[Any]], /) -> object:
        """Runs one statement once for each of these tuples of values. The statement must return no rows."""

    def batch(self, statements: Iterable[tuple[str, Sequence[Any]]], /) -> None:
        """Runs several statements in order and discards their results. With a database server, this takes one round
        trip."""

    def changes(self) -> int:
        """Returns the number of rows changed by the last `execute`."""

    def lock(self, kind: Lockable, key: str, /) -> None:
        """Locks a session until the end of the transaction, against other processes that write to the same database.
        Every function that changes a session's rows calls this first. Does nothing if the database has only one
        writer."""
