"""Settings of a session (model, reasoning, …): what a person chose for it, with source and expiry.

Guarantee: a setting lives exactly as long as its session, or until its expiry or `clear`; an ended session has none and
gets none. It is over at its time to the moment, whenever its row is removed. The operator can see all of them, but
those that the gateway keeps for itself.
"""

from typing import Any

import msgspec

from tidegate.store.rows import Db, SettingRow, encode
from tidegate.store.tables.turns import refusal

OWN = "_"
"""Begins the keys of what the gateway keeps for itself: nobody chose it, so nobody is shown it."""

_decode = msgspec.json.Decoder().decode
_COLUMNS = "session, key, value, source, at, expires"


def put(db: Db, session: str, key: str, value: Any, source: str, now: float, expires: float | None = None) -> None:
    """Sets `key` (any JSON value) for a live session."""
    put_one = db.execute(
        "INSERT INTO settings(session, key, value, source, at, expires)"
        " SELECT id, ?, ?, ?, ?, ? FROM sessions WHERE id = ? AND ended IS NULL"
        " ON CONFLICT DO UPDATE SET value = excluded.value, source = excluded.source, at = excluded.at,"
        " expires = excluded.expires RETURNING 1",
        (key, encode(value), source, now, expires, session),
    ).get
    if put_one is None:
        raise refusal(db, session)


def get_all(db: Db, session: str, now: float) -> list[SettingRow]:
    """The session's settings that hold now, by key."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM settings WHERE session = ? AND (expires IS NULL OR expires > ?) ORDER BY key",
        (session, now),
    )
    return [_row(*row) for row in rows]


def clear(db: Db, session: str, key: str | None = None) -> int:
    """Removes one setting, or all of the session; how many."""
    db.execute("DELETE FROM settings WHERE session = ?1 AND (?2 IS NULL OR key = ?2)", (session, key))
    return db.changes()


def list_all(db: Db, now: float, limit: int = 200, before: tuple[float, str, str] | None = None) -> list[SettingRow]:
    """The operator's view: every session's that hold now, the latest first; `before` is (at, session, key) of the last
    one seen."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM settings WHERE (expires IS NULL OR expires > ?1)"
        f" AND substr(key, 1, 1) <> '{OWN}'"
        " AND (?2 IS NULL OR (at, session, key) < (?2, ?3, ?4)) ORDER BY at DESC, session DESC, key DESC LIMIT ?5",
        (now, *(before or (None, None, None)), limit),
    )
    return [_row(*row) for row in rows]


def expire(db: Db, now: float, limit: int) -> int:
    """Removes up to `limit` of what no longer holds; how many. Nothing depends on when: what is over is not read."""
    db.execute(
        "DELETE FROM settings WHERE (session, key) IN (SELECT session, key FROM settings WHERE expires <= ? LIMIT ?)",
        (now, limit),
    )
    return db.changes()


def _row(session: str, key: str, value: bytes, source: str, at: float, expires: float | None) -> SettingRow:
    return SettingRow(session, key, _decode(value), source, at, expires)
