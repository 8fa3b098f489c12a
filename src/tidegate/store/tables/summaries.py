"""Summaries that replace old messages in a conversation's requests, as a tree over its transcript.

A summary covers a recorded span of positions that contains either messages or other summaries. Nothing that it covers
is changed or removed. At any time, the applied summaries that are not covered by other summaries follow one another
without gaps, starting at the first position. Models see these summaries, and every message after the last one. A
prepared summary is not shown until it is applied. When a message is undone, every summary that covers the message is
deleted, and the content of these summaries is shown again. Elisions record the positions at which long or unreadable
content is shown as an excerpt.
"""

from collections.abc import Sequence
from typing import Any

from tidegate.store.interface import Db
from tidegate.store.rows import ElisionRow, SummaryRow, compress, decompress

_COLUMNS = "number, level, first, last, parent, state, how, model, at, body, packed"


def _row(row: Any) -> SummaryRow:
    number, level, first, last, parent, state, how, model, at, body, packed = row
    return SummaryRow(number, level, first, last, parent, state, how, model, at, decompress(body, packed).decode())


def add(db: Db, session: str, row: SummaryRow, now: float) -> int:
    """Stores a summary under a new number. Returns the number."""
    db.lock("session", session)
    body, packed = compress(row.text.encode(errors="replace"))
    number = db.execute("SELECT coalesce(max(number), 0) + 1 FROM summaries WHERE session = ?", (session,)).get
    db.execute(
        "INSERT INTO summaries(session, number, level, first, last, state, how, model, at, packed, body)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (session, number, row.level, row.first, row.last, row.state, row.how, row.model, now, packed, body),
    )
    return int(number)


def shown(db: Db, session: str) -> list[SummaryRow]:
    """Returns the summaries that form the beginning of a request, in order."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM summaries WHERE session = ? AND parent IS NULL AND state = 'applied' ORDER BY first",
        (session,),
    )
    return [_row(row) for row in rows]


def prepared(db: Db, session: str) -> list[SummaryRow]:
    """Returns summaries that are waiting to be applied, in order."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM summaries WHERE session = ? AND parent IS NULL AND state = 'prepared' ORDER BY first",
        (session,),
    )
    return [_row(row) for row in rows]


def get(db: Db, session: str, number: int) -> SummaryRow | None:
    found = db.execute(f"SELECT {_COLUMNS} FROM summaries WHERE session = ? AND number = ?", (session, number)).get
    return None if found is None else _row(found)


def children(db: Db, session: str, number: int) -> list[SummaryRow]:
    """Returns the summaries that this summary covers, in order. Empty if it covers messages."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM summaries WHERE session = ? AND parent = ? ORDER BY first", (session, number)
    )
    return [_row(row) for row in rows]


def apply(db: Db, session: str, numbers: Sequence[int]) -> None:
    """Shows these summaries from now on. Each covers the lower-level summaries in its span."""
    db.lock("session", session)
    for number in numbers:
        row = get(db, session, number)
        if row is None:
            continue
        db.execute(
            "UPDATE summaries SET state = 'applied' WHERE session = ? AND number = ?",
            (session, number),
        )
        db.execute(
            "UPDATE summaries SET parent = ?1 WHERE session = ?2 AND number <> ?1 AND parent IS NULL"
            " AND state = 'applied' AND level < ?3 AND first >= ?4 AND last <= ?5",
            (number, session, row.level, row.first, row.last),
        )


def drop_prepared(db: Db, session: str) -> int:
    """Deletes prepared summaries. Returns their number."""
    db.lock("session", session)
    db.execute("DELETE FROM summaries WHERE session = ? AND state = 'prepared'", (session,))
    return db.changes()


def uncover(db: Db, session: str, place: int) -> int:
    """Deletes every summary and elision that covers this position or a later one. Content before this position that
    they covered is shown again. Returns the number of summaries deleted."""
    db.lock("session", session)
    gone: list[Any] = db.execute(
        "SELECT number FROM summaries WHERE session = ? AND last >= ?", (session, place)
    ).fetchall()
    for (number,) in gone:
        db.execute("UPDATE summaries SET parent = NULL WHERE session = ? AND parent = ?", (session, number))
        db.execute("DELETE FROM summaries WHERE session = ? AND number = ?", (session, number))
    db.execute("DELETE FROM elisions WHERE session = ? AND last >= ? AND first >= ?", (session, place, place))
    return len(gone)


def elide(db: Db, session: str, row: ElisionRow, now: float) -> None:
    """Records an elision, which applies from now on."""
    db.lock("session", session)
    db.execute(
        "INSERT INTO elisions(session, first, last, kind, characters, at) VALUES(?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(session, last, first, kind) DO UPDATE SET characters = excluded.characters, at = excluded.at",
        (session, row.first, row.last, row.kind, row.characters, now),
    )


def elisions(db: Db, session: str, after: int = 0) -> list[ElisionRow]:
    """Returns elisions that cover positions after `after`."""
    rows = db.execute(
        "SELECT first, last, kind, characters FROM elisions WHERE session = ? AND last > ? ORDER BY last, first, kind",
        (session, after),
    )
    return [ElisionRow(*row) for row in rows]


def count(db: Db, session: str) -> int:
    """Returns the number of applied summaries."""
    return int(db.execute("SELECT count(*) FROM summaries WHERE session = ? AND state = 'applied'", (session,)).get)


def copy(db: Db, source: str, target: str) -> None:
    """Copies the summaries and elisions of `source` to the transcript that `messages.copy` has created for `target`,
    which has new positions."""
    db.lock("session", target)

    def until(place: int) -> int:
        """Returns the number of messages up to this position. Undone messages are not counted, since they are not
        copied."""
        counted = "SELECT count(*) FROM messages WHERE session = ? AND seq <= ? AND undone IS NULL"
        return int(db.execute(counted, (source, place)).get)

    rows: list[Any] = db.execute(
        f"SELECT {_COLUMNS} FROM summaries WHERE session = ? AND state = 'applied'", (source,)
    ).fetchall()
    for number, level, first, last, parent, state, how, model, at, body, packed in rows:
        db.execute(
            "INSERT INTO summaries(session, number, level, first, last, parent, state, how, model, at, packed, body)"
            " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (target, number, level, until(first - 1) + 1, until(last), parent, state, how, model, at, packed, body),
        )
    spans: list[Any] = db.execute(
        "SELECT first, last, kind, characters, at FROM elisions WHERE session = ?", (source,)
    ).fetchall()
    for first, last, kind, characters, at in spans:
        elide(db, target, ElisionRow(until(first - 1) + 1, until(last), kind, characters), at)
