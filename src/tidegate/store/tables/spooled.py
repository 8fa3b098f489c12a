"""Spooled results and media, by session.

A row belongs to an existing session, and can be found only through that session or its principal. A file without a row
belongs to no session, and the spool may remove it. The spool owns the files.
"""

from collections.abc import Sequence

from tidegate.store.dialect import ID_LIST, id_list
from tidegate.store.interface import Db
from tidegate.store.rows import LISTED, SpooledKind, SpooledRow
from tidegate.store.tables.turns.turns import refusal

_LAST = 1e300
"""A time later than that of any row."""
_COLUMNS = "spooled.id, session, turn, spooled.kind, bytes, lines, media_type, spooled.name, spooled.created"

SHOWN = (
    "NOT EXISTS(SELECT 1 FROM messages WHERE messages.turn = spooled.turn AND step IS NOT NULL AND undone IS NOT NULL)"
)
"""An SQL condition: the result's turn has not been undone."""


def add(
    db: Db,
    *,
    id: str,
    session: str,
    turn: str | None,
    kind: SpooledKind,
    bytes: int,
    lines: int = 0,
    media_type: str = "text/plain",
    name: str = "",
    now: float,
) -> SpooledRow:
    """Adds a row. Must be committed after the file is complete and before anything refers to the file. Raises an error
    if the session has ended."""
    db.lock("session", session)
    added = db.execute(
        "INSERT INTO spooled(id, session, turn, kind, bytes, lines, media_type, name, created)"
        " SELECT ?, id, ?, ?, ?, ?, ?, ?, ? FROM sessions WHERE id = ? AND ended IS NULL RETURNING 1",
        (id, turn, kind, bytes, lines, media_type, name, now, session),
    ).get
    if added is None:
        raise refusal(db, session)
    return SpooledRow(id, session, turn, kind, bytes, lines, media_type, name, now)


def get(db: Db, id: str, session: str) -> SpooledRow | None:
    """Returns the result if it belongs to this session."""
    row = db.execute(f"SELECT {_COLUMNS} FROM spooled WHERE id = ? AND session = ?", (id, session)).get
    return None if row is None else SpooledRow(*row)


def owned(db: Db, id: str, principal: str) -> SpooledRow | None:
    """Returns the result if its session belongs to this principal."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM spooled JOIN sessions ON sessions.id = session WHERE spooled.id = ? AND principal = ?",
        (id, principal),
    ).get
    return None if row is None else SpooledRow(*row)


def is_shown(db: Db, row: SpooledRow) -> bool:
    """True if the result's turn has not been undone."""
    found = db.execute(f"SELECT 1 FROM spooled WHERE id = ? AND session = ? AND {SHOWN}", (row.id, row.session)).get
    return found is not None


def copy(db: Db, source: str, target: str) -> int:
    """Copies the rows of `source` that have not been undone to `target`, with the same names, for a session that begins
    with the transcript of `source`. Returns their number."""
    db.lock("session", target)
    db.execute(
        "INSERT INTO spooled(id, session, turn, kind, bytes, lines, media_type, name, created)"
        " SELECT id, ?2, NULL, kind, bytes, lines, media_type, name, created FROM spooled"
        f" WHERE session = ?1 AND {SHOWN}",
        (source, target),
    )
    return db.changes()


def total(db: Db, session: str) -> int:
    """Returns the number of bytes that the session uses in the spool."""
    return int(db.execute("SELECT coalesce(sum(bytes), 0) FROM spooled WHERE session = ?", (session,)).get)


def of_session(
    db: Db, session: str, *, principal: str | None, after: tuple[float, str] = (0.0, ""), limit: int = LISTED
) -> list[SpooledRow]:
    """Returns the session's results, oldest first; `after` is (created, id) of the last result seen. `principal=None`
    is for the gateway and its operator."""
    whose, values = ("", ()) if principal is None else (" AND principal = ?", (principal,))
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM spooled JOIN sessions ON sessions.id = session"
        f" WHERE session = ?{whose} AND (spooled.created, spooled.id) > (?, ?)"
        " ORDER BY spooled.created, spooled.id LIMIT ?",
        (session, *values, *after, limit),
    )
    return [SpooledRow(*row) for row in rows]


def latest_texts(
    db: Db, session: str, *, before: tuple[float, str] | None = None, limit: int = LISTED
) -> list[SpooledRow]:
    """Returns the session's text results that have not been undone, newest first; `before` is (created, id) of the last
    result seen."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM spooled WHERE session = ? AND (created, id) < (?, ?) AND kind = 'text'"
        f" AND {SHOWN} ORDER BY created DESC, id DESC LIMIT ?",
        (session, *(before or (_LAST, "")), limit),
    )
    return [SpooledRow(*row) for row in rows]


def existing(db: Db, ids: Sequence[str]) -> set[str]:
    """Returns the ids in the given set that have a row. Files with other ids belong to no session."""
    rows = db.execute(f"SELECT id FROM spooled WHERE id IN {ID_LIST}", (id_list(ids),))
    return {row[0] for row in rows}
