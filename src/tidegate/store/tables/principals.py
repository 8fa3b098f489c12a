"""Principals and their keys.

Keys are stored only as digests. A lookup is one exact match of 32 bytes that nobody can choose freely (the token has
240 random bits), so its timing reveals nothing. A code works only once. A revoked or expired key is treated as absent,
but its digest is kept. A browser's sign-in is one row with the digests of its cookie and its page token, each of which
is useless without the other. Every addition, revocation and sign-in is recorded in the audit log in the same
transaction; `by` is the acting principal, or None for the gateway itself.
"""

from typing import Literal

import msgspec

from tidegate.errors import Conflict
from tidegate.security import UserRole
from tidegate.store.interface import ConstraintError, Db
from tidegate.store.rows import AuditKind, KeyKind, KeyRow, PrincipalRow, encode
from tidegate.store.tables import audit
from tidegate.values import new_id

_agents = msgspec.json.Decoder(tuple[str, ...]).decode
_COLUMNS = "principals.id, name, role, agents, principals.created"
_KEY_COLUMNS = "id, principal, kind, label, created, expires, used, revoked"
_USED_EVERY = 60.0
"""The precision of `used`, in seconds. `used` shows operators whether a key is in use; a precision of one minute is
enough for this and saves a write per call."""


def add(
    db: Db,
    *,
    name: str,
    role: UserRole,
    agents: tuple[str, ...] | None,
    now: float,
    id: str | None = None,
    by: str | None = None,
) -> PrincipalRow:
    """Adds a principal; `agents=None` allows all agents."""
    row = PrincipalRow(id or new_id("p"), name, role, agents, now)
    allowed = None if agents is None else encode(agents).decode()
    try:
        db.insert_unique(
            "INSERT INTO principals(id, name, role, agents, created) VALUES(?, ?, ?, ?, ?)",
            (row.id, name, role, allowed, now),
        )
    except ConstraintError:
        raise Conflict(f"There is already a principal named {name!r}.") from None
    audit.append(db, "principal", "added", now, subject=f"{row.id} {role}", principal=by)
    return row


def get(db: Db, id: str) -> PrincipalRow | None:
    return _one(db, "principals.id = ?", id)


def by_name(db: Db, name: str) -> PrincipalRow | None:
    return _one(db, "name = ?", name)


def listing(db: Db) -> list[PrincipalRow]:
    rows = db.execute(f"SELECT {_COLUMNS} FROM principals ORDER BY created, id")
    return [_principal(*row) for row in rows]


def add_key(
    db: Db,
    principal: str,
    kind: KeyKind,
    digest: bytes,
    label: str,
    now: float,
    expires: float | None = None,
    page: bytes | None = None,
    *,
    by: str | None = None,
) -> str:
    """Records a key's digest. Returns the key's id, which is not secret. Cookies are added at sign-in; for them, `page`
    is the digest of the page token."""
    id = new_id("k")
    db.execute(
        "INSERT INTO keys(id, principal, kind, digest, label, created, expires, page_digest)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
        (id, principal, kind, digest, label, now, expires, page),
    )
    if kind == "cookie":
        audit.append(db, "sign_in", "done", now, subject=f"{kind} {id}", principal=principal)
    else:
        audit.append(db, "key", "added", now, subject=f"{kind} {id} {principal}", principal=by)
    return id


def authenticate(
    db: Db, digest: bytes, kind: KeyKind, now: float, page: bytes | None = None
) -> tuple[str, PrincipalRow] | None:
    """Returns a valid key's id and principal. Only reads, so it works even if nothing can be written."""
    row = db.execute(
        f"SELECT keys.id, {_COLUMNS} FROM keys JOIN principals ON principals.id = keys.principal WHERE digest = ?"
        " AND kind = ? AND page_digest IS NOT DISTINCT FROM ? AND revoked IS NULL AND (expires IS NULL OR expires > ?)",
        (digest, kind, page, now),
    ).get
    return None if row is None else (row[0], _principal(*row[1:]))


def mark_used(db: Db, digest: bytes, now: float) -> None:
    db.execute(
        "UPDATE keys SET used = ? WHERE digest = ? AND (used IS NULL OR used < ?)", (now, digest, now - _USED_EVERY)
    )


def key_exists(db: Db, digest: bytes) -> bool:
    """True if this key has ever been recorded, whether or not it is still valid."""
    return db.execute("SELECT 1 FROM keys WHERE digest = ?", (digest,)).get is not None


def use_code(db: Db, digest: bytes, now: float) -> PrincipalRow | None:
    """Redeems a one-time code. Returns its principal the first time, and None afterwards."""
    principal = db.execute(
        "UPDATE keys SET used = ?1, revoked = ?1 WHERE digest = ?2 AND kind = 'code' AND revoked IS NULL"
        " AND (expires IS NULL OR expires > ?1) RETURNING principal",
        (now, digest),
    ).get
    if principal is None:
        audit.append_failed_sign_in(db, now)
        return None
    return get(db, principal)


def code_state(db: Db, digest: bytes) -> Literal["used", "expired", "unknown"]:
    """Returns the reason why a code was refused. A code that no longer works is deleted after a while and is unknown
    from then on."""
    rows = db.execute("SELECT used FROM keys WHERE digest = ? AND kind = 'code'", (digest,)).fetchall()
    return "unknown" if not rows else "expired" if rows[0][0] is None else "used"


def holder(db: Db, key: str) -> PrincipalRow | None:
    """Returns the principal who owns the key with this id."""
    principal = db.execute("SELECT principal FROM keys WHERE id = ?", (key,)).get
    return None if principal is None else get(db, principal)


def list_keys(db: Db, principal: str | None = None, kind: KeyKind | None = None) -> list[KeyRow]:
    """Returns the keys of one or all principals, oldest first."""
    where, values = _matching(principal=principal, kind=kind)
    rows = db.execute(f"SELECT {_KEY_COLUMNS} FROM keys WHERE {where} ORDER BY created, id", values)
    return [KeyRow(*row) for row in rows]


def revoke(
    db: Db,
    kind: KeyKind,
    now: float,
    *,
    id: str | None = None,
    principal: str | None = None,
    by: str | None = None,
) -> list[str]:
    """Revokes valid keys of this kind: all of them, only the one with this id, or one principal's keys. Returns their
    ids."""
    where, values = _matching(kind=kind, id=id, principal=principal)
    rows = db.execute(
        "UPDATE keys SET revoked = ? WHERE revoked IS NULL AND (expires IS NULL OR expires > ?)"
        f" AND {where} RETURNING id, principal",
        (now, now, *values),
    ).fetchall()
    event: AuditKind = "sign_out" if kind == "cookie" else "key"
    for revoked, holder in rows:
        audit.append(db, event, "revoked", now, subject=f"{kind} {revoked} {holder}", principal=by)
    return [str(revoked) for revoked, _ in rows]


def prune_keys(db: Db, before: float, limit: int) -> int:
    """Deletes up to `limit` codes and cookies that stopped working before the given time. Returns their number. Other
    kinds of keys are never deleted, so `key_exists` still recognises them."""
    db.execute(
        "DELETE FROM keys WHERE id IN (SELECT id FROM keys WHERE kind IN ('code', 'cookie')"
        " AND coalesce(revoked, expires) < ? LIMIT ?)",
        (before, limit),
    )
    return db.changes()


def _matching(**columns: str | None) -> tuple[str, list[str]]:
    """Returns the SQL condition for these columns, and its parameters. A column with the value None is not
    restricted."""
    chosen = {column: value for column, value in columns.items() if value is not None}
    return " AND ".join(f"{column} = ?" for column in chosen) or "TRUE", list(chosen.values())


def _one(db: Db, condition: str, value: str) -> PrincipalRow | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM principals WHERE {condition}", (value,)).get
    return None if row is None else _principal(*row)


def _principal(id: str, name: str, role: UserRole, agents: str | None, created: float) -> PrincipalRow:
    return PrincipalRow(id, name, role, None if agents is None else _agents(agents), created)
