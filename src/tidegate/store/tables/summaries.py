"""Summaries: what stands for old messages in a conversation's request, as a tree over its transcript.

Guarantee: a summary covers a span of places, all messages in it or all summaries, and remembers which; nothing that it
covers is changed or removed. At any time the applied summaries that no other covers stand side by side, without a gap,
from the first place on; what a model is shown are these, and every message behind the last of them. A prepared summary
is not shown until it is applied. When a message is undone, every summary over it goes, and what that had covered is
shown again. Elisions say in which places long or unreadable things are shown by an excerpt.
"""

from collections.abc import Sequence
from typing import Any

from tidegate.store.rows import Db, ElisionRow, SummaryRow, squeeze, unsqueeze

_COLUMNS = "number, level, first, last, parent, state, how, model, at, body, packed"


def _row(row: Any) -> SummaryRow:
    number, level, first, last, parent, state, how, model, at, body, packed = row
    return SummaryRow(number, level, first, last, parent, state, how, model, at, unsqueeze(body, packed).decode())


def add(db: Db, session: str, row: SummaryRow, now: float) -> int:
    """Stores one, whatever number it has; the number that it has now."""
    body, packed = squeeze(row.text.encode(errors="replace"))
    number = db.execute("SELECT coalesce(max(number), 0) + 1 FROM summaries WHERE session = ?", (session,)).get
    db.execute(
        "INSERT INTO summaries(session, number, level, first, last, state, how, model, at, packed, body)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (session, number, row.level, row.first, row.last, row.state, row.how, row.model, now, packed, body),
    )
    return int(number)


def shown(db: Db, session: str) -> list[SummaryRow]:
    """Those that a request begins with, in order."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM summaries WHERE session = ? AND parent IS NULL AND state = 'applied' ORDER BY first",
        (session,),
    )
    return [_row(row) for row in rows]


def prepared(db: Db, session: str) -> list[SummaryRow]:
    """Those that wait to be applied, in order."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM summaries WHERE session = ? AND parent IS NULL AND state = 'prepared' ORDER BY first",
        (session,),
    )
    return [_row(row) for row in rows]


def get(db: Db, session: str, number: int) -> SummaryRow | None:
    found = db.execute(f"SELECT {_COLUMNS} FROM summaries WHERE session = ? AND number = ?", (session, number)).get
    return None if found is None else _row(found)


def children(db: Db, session: str, number: int) -> list[SummaryRow]:
    """The summaries that this one covers, in order; none when it covers messages."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM summaries WHERE session = ? AND parent = ? ORDER BY first", (session, number)
    )
    return [_row(row) for row in rows]


def apply(db: Db, session: str, numbers: Sequence[int]) -> None:
    """From now on these are shown. What lies in the span of one that covers summaries is covered by it."""
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
    """What was prepared and is of no use; how many."""
    db.execute("DELETE FROM summaries WHERE session = ? AND state = 'prepared'", (session,))
    return db.changes()


def uncover(db: Db, session: str, place: int) -> int:
    """No summary and no elision speaks of this place or one behind it any more; what they covered before it is shown
    again. How many summaries went."""
    gone: list[Any] = db.execute(
        "SELECT number FROM summaries WHERE session = ? AND last >= ?", (session, place)
    ).fetchall()
    for (number,) in gone:
        db.execute("UPDATE summaries SET parent = NULL WHERE session = ? AND parent = ?", (session, number))
        db.execute("DELETE FROM summaries WHERE session = ? AND number = ?", (session, number))
    db.execute("DELETE FROM elisions WHERE session = ? AND last >= ? AND first >= ?", (session, place, place))
    return len(gone)


def elide(db: Db, session: str, row: ElisionRow, now: float) -> None:
    """From now on things are left out in these places."""
    db.execute(
        "INSERT OR REPLACE INTO elisions(session, first, last, kind, characters, at) VALUES(?, ?, ?, ?, ?, ?)",
        (session, row.first, row.last, row.kind, row.characters, now),
    )


def elisions(db: Db, session: str, after: int = 0) -> list[ElisionRow]:
    """Those that speak of places behind that one."""
    rows = db.execute(
        "SELECT first, last, kind, characters FROM elisions WHERE session = ? AND last > ? ORDER BY last, first, kind",
        (session, after),
    )
    return [ElisionRow(*row) for row in rows]


def count(db: Db, session: str) -> int:
    """How many were ever applied and still stand."""
    return int(db.execute("SELECT count(*) FROM summaries WHERE session = ? AND state = 'applied'", (session,)).get)


def copy(db: Db, source: str, target: str) -> None:
    """The same tree over the transcript that `messages.copy` has made for `target`: places are counted anew there."""

    def until(place: int) -> int:
        """How many of the messages up to that place are there; what was undone is not copied."""
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
