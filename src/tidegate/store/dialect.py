"""SQL fragments that differ between databases, in SQLite's dialect.

All other statements in `tables/` use the common subset of SQLite and PostgreSQL. Supporting a second database would
require another module with the same names.
"""

import contextlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import apsw
import msgspec

from tidegate.store.interface import Db

# -- lists of ids --

ID_LIST = "(SELECT value FROM json_each(?))"
"""For `id IN {ID_LIST}`, with one parameter for any number of ids, so that the statement is prepared only once."""


def id_list(ids: Sequence[str]) -> str:
    """Returns the parameter for `ID_LIST`."""
    return msgspec.json.encode(tuple(ids)).decode()


NUMBER_LIST = ID_LIST


def number_list(numbers: Sequence[int]) -> str:
    """Returns the parameter for `NUMBER_LIST`."""
    return msgspec.json.encode(tuple(numbers)).decode()


# -- times and sizes --


def hour_key(column: str) -> str:
    """Returns an expression for the UTC hour of a Unix time, in the form `2026-01-31 09:00`."""
    return f"strftime('%Y-%m-%d %H:00', {column}, 'unixepoch')"


def day_key(column: str) -> str:
    return f"strftime('%Y-%m-%d', {column}, 'unixepoch')"


def month_key(column: str) -> str:
    return f"strftime('%Y-%m', {column}, 'unixepoch')"


def byte_length(column: str) -> str:
    """Returns an expression for the length of a string in UTF-8, in bytes."""
    return f"length(CAST({column} AS BLOB))"


# -- hints for the query planner --

JOIN_IN_ORDER = "CROSS JOIN"
"""A join whose tables are read in the order in which they are listed."""
BY_PRIMARY_KEY = "NOT INDEXED"
"""Placed after a table's name, it makes the database read the rows in primary key order and not with another index."""

# -- full-text search --
#
# `message_terms` has one entry per message and `session_titles` one per session. The caller chooses their numbers,
# which are ordered. `messages_text` is the index in an earlier format.

INSERT_ENTRY = "INSERT OR REPLACE INTO message_terms(rowid, terms) VALUES(?, ?)"
INSERT_TITLE = "INSERT INTO session_titles(rowid, words) VALUES(?, ?)"
DELETE_TITLE = "DELETE FROM session_titles WHERE rowid = ?"
DELETE_ENTRIES = "DELETE FROM message_terms WHERE rowid >= ? AND rowid < ?"


def _finder(table: str) -> str:
    return (
        f"SELECT rowid AS entry FROM {table} WHERE {table} MATCH ? AND rowid >= ? AND rowid < ?"
        " ORDER BY rowid DESC LIMIT ?"
    )


FIND_ENTRIES = _finder("message_terms")
"""Selects the entries that match the first parameter and whose numbers are at least the second and below the third
parameter, highest first. Only as much of the index is read as necessary, and nothing is sorted."""
FIND_TITLES = _finder("session_titles")
FIND_FORMER = _finder("messages_text")


def clear_index(db: Db) -> None:
    """Empties the message index."""
    db.execute("INSERT INTO message_terms(message_terms) VALUES('delete-all')")


def delete_former_entries(db: Db, number: int, session: str, first: int, last: int) -> None:
    """Deletes the messages at these positions in a session from the index in the earlier format."""
    db.execute(
        "DELETE FROM messages_text WHERE rowid IN (SELECT ? | id FROM messages WHERE session = ? AND"
        " (seq IS NULL OR seq >= ? AND seq <= ?) AND id <= (SELECT value FROM meta WHERE key = 'former'))",
        (number, session, first, last),
    )


def drop_former_index(db: Db) -> None:
    db.execute("DROP TABLE IF EXISTS messages_text")


def match_all(parts: Sequence[str]) -> str:
    """Returns the query for entries that match all of these queries."""
    return " AND ".join(parts)


def match_any(words: Sequence[str]) -> str:
    """Returns the query for entries that contain any of these words. A word that ends in * is a prefix."""
    return "(" + " OR ".join(map(match_word, words)) + ")"


def match_word(word: str) -> str:
    return f'"{word[:-1]}"*' if word.endswith("*") else f'"{word}"'


class Tokenizer:
    """Splits a text into words in the same way as the index. The words never contain query syntax, and are equal to
    those in the index."""

    def __init__(self, db: Db) -> None:
        self._split = cast(apsw.Connection, db).fts5_tokenizer("unicode61", ["remove_diacritics", "2"])

    def words(self, text: str) -> list[str]:
        found: Any = self._split(
            text.encode(errors="replace"),
            apsw.FTS5_TOKENIZE_QUERY,
            None,
            include_offsets=False,
            include_colocated=False,
        )
        return cast(list[str], found)

    def spans(self, text: str) -> list[tuple[int, int, str]]:
        """Returns the words with the byte offsets of their beginnings and ends in UTF-8."""
        found: Any = self._split(text.encode(errors="replace"), apsw.FTS5_TOKENIZE_QUERY, None, include_colocated=False)
        return cast(list[tuple[int, int, str]], found)


# -- vectors --
#
# The functions are those of the SQLite extension sqlite-vec. Vectors consist of signed bytes.

NEAREST = (
    "SELECT entry, vec_distance_cosine(vec_int8(vector), vec_int8(?)) AS distance FROM (SELECT entry, vector FROM"
    " message_vectors WHERE entry >= ? AND entry < ? AND model = ? AND length(vector) = ? ORDER BY entry DESC LIMIT ?)"
    " AS compared ORDER BY distance, entry DESC LIMIT ?"
)
"""Selects the vectors with these numbers, of this model and length, that are the nearest to a vector. At most as many
as the first limit says are compared, the highest numbers first."""


def load_vectors(db: Db) -> None:
    """Loads the functions for vectors into this connection, unless it has them."""
    connection = cast(apsw.Connection, db)
    try:
        connection.execute("SELECT vec_length(x'00000000')").fetchall()
    except apsw.SQLError:
        _load(connection)


def vectors_fault() -> str | None:
    """Returns why vectors cannot be compared here, or None if they can."""
    try:
        with contextlib.closing(apsw.Connection(":memory:")) as connection:
            _load(connection)
    except (ImportError, apsw.Error) as error:
        return str(error)
    return None


def _load(connection: apsw.Connection) -> None:
    # The package is not imported: it would import another database library for one path.
    found = importlib.util.find_spec("sqlite_vec")
    if found is None or not found.submodule_search_locations:
        raise ImportError("the package sqlite-vec is not installed")
    connection.enable_load_extension(True)
    try:
        connection.load_extension(str(Path(found.submodule_search_locations[0]) / "vec0"))
    finally:
        connection.enable_load_extension(False)


# -- upkeep --


def checkpoint(db: Db) -> tuple[int, int]:
    """Moves the log's pages into the file as far as possible without waiting for readers. Returns (pages in the log,
    pages moved)."""
    return cast(apsw.Connection, db).wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)


def return_free_pages(db: Db, pages: int) -> int:
    """Returns up to `pages` free pages to the file system. Returns the number of pages that are still free."""
    db.execute(f"PRAGMA incremental_vacuum({int(pages)})").fetchall()
    return int(db.execute("PRAGMA freelist_count").get)
