"""A session's settings (model, reasoning, …) as chosen by a person, with source and expiry, and model switches.

A setting lasts until its session ends, it expires, or it is cleared. An ended session has no settings, and none can be
added. A setting expires exactly at its expiry time, even if its row is removed later. The operator can see all settings
except those that are internal to the gateway.

The model is told about a switch once, with the next message, in the transaction that takes that message's turn. Until
then, the notice survives restarts. A choice that is undone before the next message is not mentioned. A temporary choice
is mentioned when it begins and when it ends. Pending switches are stored as one of the session's settings, so a turn
without a switch needs no extra read.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from tidegate.store.interface import Db
from tidegate.store.rows import SettingRow, encode
from tidegate.store.tables import messages
from tidegate.store.tables.turns.turns import refusal

OWN = "_"
"""Prefix for keys that are internal to the gateway. They are not listed, since no person chose them."""

SWITCH_KEY = f"{OWN}switch"
"""The key of the setting with the switches that the model has not been told about yet."""

SWITCH_TEXT = (
    "The user switched this conversation from model {before} to model {after}; earlier answers are {before}'s."
)

_decode = msgspec.json.Decoder().decode
_COLUMNS = "session, key, value, source, at, expires"


def put(db: Db, session: str, key: str, value: Any, source: str, now: float, expires: float | None = None) -> None:
    """Sets `key` (any JSON value) for a live session."""
    db.lock("session", session)
    put_one = db.execute(
        "INSERT INTO settings(session, key, value, source, at, expires)"
        " SELECT id, ?, ?, ?, ?, ? FROM sessions WHERE id = ? AND ended IS NULL"
        " ON CONFLICT(session, key) DO UPDATE SET value = excluded.value, source = excluded.source, at = excluded.at,"
        " expires = excluded.expires RETURNING 1",
        (key, encode(value), source, now, expires, session),
    ).get
    if put_one is None:
        raise refusal(db, session)


def get_all(db: Db, session: str, now: float) -> list[SettingRow]:
    """Returns the session's current settings, by key."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM settings WHERE session = ? AND (expires IS NULL OR expires > ?) ORDER BY key",
        (session, now),
    )
    return [_row(*row) for row in rows]


def clear(db: Db, session: str, key: str | None = None) -> int:
    """Removes one or all of the session's settings. Returns the number removed."""
    db.lock("session", session)
    only, values = ("", (session,)) if key is None else (" AND key = ?", (session, key))
    db.execute(f"DELETE FROM settings WHERE session = ?{only}", values)
    return db.changes()


def list_all(db: Db, now: float, limit: int = 200, before: tuple[float, str, str] | None = None) -> list[SettingRow]:
    """Lists all sessions' current settings for the operator, latest first. `before` is (at, session, key) of the last
    setting seen."""
    earlier = "" if before is None else " AND (at, session, key) < (?, ?, ?)"
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM settings WHERE (expires IS NULL OR expires > ?)"
        f" AND substr(key, 1, 1) <> '{OWN}'{earlier} ORDER BY at DESC, session DESC, key DESC LIMIT ?",
        (now, *(before or ()), limit),
    )
    return [_row(*row) for row in rows]


def expire(db: Db, now: float, limit: int) -> int:
    """Removes up to `limit` expired settings. Returns their number. May be called at any time, since expired settings
    are not read."""
    db.execute(
        "DELETE FROM settings WHERE (session, key) IN (SELECT session, key FROM settings WHERE expires <= ? LIMIT ?)",
        (now, limit),
    )
    return db.changes()


def _row(session: str, key: str, value: bytes, source: str, at: float, expires: float | None) -> SettingRow:
    return SettingRow(session, key, _decode(value), source, at, expires)


# -- switches of a session's model with /model, which the next model is told about --


class ModelSwitch(msgspec.Struct, frozen=True, array_like=True):
    """A switch from one model to another, by their configured names."""

    before: str
    after: str
    at: float


def note_switch(db: Db, session: str, *, before: str, after: str, own: str, ends: float | None, now: float) -> None:
    """Records that the user has chosen another model. If the choice expires, a switch back to the agent's `own` model
    at that time is recorded too."""
    db.lock("session", session)
    pending = _switches(get_all(db, session, now))
    last_told = pending[0].before if pending else before
    switches: list[ModelSwitch] = []
    if last_told != after and messages.last_turn(db, session) is not None:
        switches.append(ModelSwitch(last_told, after, now))
    if ends is not None and after != own:
        switches.append(ModelSwitch(after, own, ends))
    if switches:
        put(db, session, SWITCH_KEY, switches, "model", now)
    elif pending:
        clear(db, session, SWITCH_KEY)


def take_switches(db: Db, session: str, rows: Sequence[SettingRow], now: float) -> str:
    """Returns the text about switches that are due, and marks them as reported. The text is nearly always empty. `rows`
    are the session's settings."""
    switches = _switches(rows)
    due = [switch for switch in switches if switch.at <= now]
    if not due:
        return ""
    if left := switches[len(due) :]:
        put(db, session, SWITCH_KEY, left, "model", now)
    else:
        clear(db, session, SWITCH_KEY)
    before, after = due[0].before, due[-1].after
    return "" if before == after else SWITCH_TEXT.format(before=before, after=after)


def _switches(rows: Sequence[SettingRow]) -> list[ModelSwitch]:
    for setting in rows:
        if setting.key == SWITCH_KEY:
            return msgspec.convert(setting.value, list[ModelSwitch])
    return []
