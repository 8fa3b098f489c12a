"""The SQL fragments that differ between databases, in SQLite's dialect.

All other statements in `tables/` are written in the common subset of SQLite and PostgreSQL. Support for a second
database would need a module with the same names.
"""

from collections.abc import Callable, Sequence
from typing import cast

import apsw
import msgspec

from tidegate.store.interface import Db

# -- lists of ids --

ID_LIST = "(SELECT value FROM json_each(?))"
"""For `id IN {ID_LIST}`, with one parameter for any number of ids, so that the statement is prepared only once."""


def id_list(ids: Sequence[str]) -> str:
    """Returns the parameter for `ID_LIST`."""
    return msgspec.json.encode(tuple(ids)).decode()


# -- times and sizes --


def hour_key(column: str) -> str:
    """Returns an expression for the UTC hour of a Unix time, as `2026-01-31 09:00`."""
    return f"strftime('%Y-%m-%d %H:00', {column}, 'unixepoch')"


def day_key(column: str) -> str:
    return f"strftime('%Y-%m-%d', {column}, 'unixepoch')"


def month_key(column: str) -> str:
    return f"strftime('%Y-%m', {column}, 'unixepoch')"


def byte_length(column: str) -> str:
    """Returns an expression for the length of a string in bytes of UTF-8."""
    return f"length(CAST({column} AS BLOB))"


# -- hints for the query planner --

JOIN_IN_ORDER = "CROSS JOIN"
"""A join whose tables are read in the order in which they are written."""
BY_PRIMARY_KEY = "NOT INDEXED"
"""Placed after a table's name, it makes the database read the rows in the order of the primary key, not by another
index."""

# -- full-text search --
#
# `messages_text` has one entry per message, whose number is chosen by the caller and ordered.

INSERT_ENTRY = "INSERT INTO messages_text(rowid, text) VALUES(?, ?)"
FIND_ENTRIES = (
    "SELECT rowid AS entry FROM messages_text WHERE messages_text MATCH ? AND rowid >= ? AND rowid < ?"
    " ORDER BY rowid DESC LIMIT ?"
)
"""Selects the entries that match the first parameter and whose numbers are at least the second and below the third, the
highest first. Only as much of the index is read as is needed, and nothing is sorted."""


def delete_entries(numbers: str) -> str:
    """Returns a statement that deletes the entries whose numbers the subquery selects."""
    return f"DELETE FROM messages_text WHERE rowid IN ({numbers})"


def match_words(words: Sequence[str]) -> str:
    """Returns the query for entries that contain all these words. A word that ends in * is a prefix."""
    return " ".join(f'"{word[:-1]}"*' if word.endswith("*") else f'"{word}"' for word in words)


def tokenizer(db: Db) -> Callable[[str], list[str]]:
    """Returns a function that splits text into words as the index does. The words never contain query syntax, and are
    equal to those in the index."""
    split = cast(apsw.Connection, db).fts5_tokenizer("unicode61", ["remove_diacritics", "2"])
    only_words = {"include_offsets": False, "include_colocated": False}

    def tokens(text: str) -> list[str]:
        plain = text.encode(errors="ignore")
        return list(map(str, split(plain, apsw.FTS5_TOKENIZE_QUERY, None, **only_words)))

    return tokens


# -- upkeep --


def checkpoint(db: Db) -> tuple[int, int]:
    """Moves the log's pages into the file as far as possible without waiting for readers. Returns (pages in the log,
    pages moved)."""
    return cast(apsw.Connection, db).wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)


def return_free_pages(db: Db, pages: int) -> int:
    """Returns up to `pages` free pages to the file system. Returns the number of pages that are still free."""
    db.execute(f"PRAGMA incremental_vacuum({int(pages)})").fetchall()
    return int(db.execute("PRAGMA freelist_count").get)
