"""Principals and their keys.

Guarantee: a key is kept only as its digest; looking one up is one exact match of 32 bytes that nobody can choose freely
(the token behind them has 240 bits of chance), so its time tells nothing. A code works once. A revoked or expired key
is as if absent, but its digest stays known.
"""

import apsw
import msgspec

from tidegate.errors import Conflict
from tidegate.store.rows import Db as Db
from tidegate.store.rows import KeyKind, KeyRow, PrincipalRow, encode
from tidegate.values import new_id

_agents = msgspec.json.Decoder(tuple[str, ...]).decode
_COLUMNS = "principals.id, name, role, agents, principals.created"
_KEY_COLUMNS = "id, principal, kind, label, created, expires, used, revoked"
_USED_EVERY = 60.0
"""Seconds. `used` tells an operator whether a key is in use; to the minute is enough, and spares a write per call."""


def add(
    db: Db, *, name: str, role: str, agents: tuple[str, ...] | None, now: float, id: str | None = None
) -> PrincipalRow:
    """A new principal; `agents=None` allows all."""
    row = PrincipalRow(id or new_id("p"), name, role, agents, now)
    held = None if agents is None else encode(agents).decode()
    try:
        db.execute("INSERT INTO principals VALUES(?, ?, ?, ?, ?)", (row.id, name, role, held, now))
    except apsw.ConstraintError:
        raise Conflict(f"There is a principal named {name!r} already.") from None
    return row


def get(db: Db, id: str) -> PrincipalRow | None:
    return _one(db, "principals.id = ?", id)


def by_name(db: Db, name: str) -> PrincipalRow | None:
    return _one(db, "name = ?", name)


def listing(db: Db) -> list[PrincipalRow]:
    rows = db.execute(f"SELECT {_COLUMNS} FROM principals ORDER BY created, id")
    return [_principal(*row) for row in rows]


def add_key(
    db: Db, principal: str, kind: KeyKind, digest: bytes, label: str, now: float, expires: float | None = None
) -> str:
    """Records a key's digest; the key's id, which is no secret."""
    id = new_id("k")
    db.execute(
        "INSERT INTO keys(id, principal, kind, digest, label, created, expires) VALUES(?, ?, ?, ?, ?, ?, ?)",
        (id, principal, kind, digest, label, now, expires),
    )
    return id


def authenticate(db: Db, digest: bytes, kind: KeyKind, now: float) -> PrincipalRow | None:
    """Whose valid key of that kind it is. Reads only, so that it also works when nothing can be written."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM keys JOIN principals ON principals.id = keys.principal WHERE digest = ? AND kind = ?"
        " AND revoked IS NULL AND (expires IS NULL OR expires > ?)",
        (digest, kind, now),
    ).get
    return None if row is None else _principal(*row)


def mark_used(db: Db, digest: bytes, now: float) -> None:
    db.execute(
        "UPDATE keys SET used = ? WHERE digest = ? AND (used IS NULL OR used < ?)", (now, digest, now - _USED_EVERY)
    )


def knows(db: Db, digest: bytes) -> bool:
    """Whether that key was ever recorded, valid or not."""
    return db.execute("SELECT 1 FROM keys WHERE digest = ?", (digest,)).get is not None


def use_code(db: Db, digest: bytes, now: float) -> PrincipalRow | None:
    """Spends a one-time code: whose it was, once."""
    principal = db.execute(
        "UPDATE keys SET used = ?1, revoked = ?1 WHERE digest = ?2 AND kind = 'code' AND revoked IS NULL"
        " AND (expires IS NULL OR expires > ?1) RETURNING principal",
        (now, digest),
    ).get
    return None if principal is None else get(db, principal)


def list_keys(db: Db, principal: str | None = None, kind: KeyKind | None = None) -> list[KeyRow]:
    """Keys of a principal, or of all, the oldest first."""
    rows = db.execute(
        f"SELECT {_KEY_COLUMNS} FROM keys WHERE (?1 IS NULL OR principal = ?1) AND (?2 IS NULL OR kind = ?2)"
        " ORDER BY created, id",
        (principal, kind),
    )
    return [KeyRow(*row) for row in rows]


def revoke(db: Db, id: str, now: float) -> bool:
    """True when it was valid until now."""
    return (
        db.execute("UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL RETURNING 1", (now, id)).get
        is not None
    )


def revoke_digest(db: Db, digest: bytes, now: float) -> bool:
    """As `revoke`, for who holds the token itself (signing out)."""
    revoked = db.execute(
        "UPDATE keys SET revoked = ? WHERE digest = ? AND revoked IS NULL RETURNING 1", (now, digest)
    ).get
    return revoked is not None


def prune_keys(db: Db, before: float, limit: int) -> int:
    """Forgets up to `limit` codes and cookies that stopped working before that time; how many. Keys stay, so that they
    stay known."""
    db.execute(
        "DELETE FROM keys WHERE id IN (SELECT id FROM keys WHERE kind IN ('code', 'cookie')"
        " AND coalesce(revoked, expires) < ? LIMIT ?)",
        (before, limit),
    )
    return db.changes()


def _one(db: Db, condition: str, value: str) -> PrincipalRow | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM principals WHERE {condition}", (value,)).get
    return None if row is None else _principal(*row)


def _principal(id: str, name: str, role: str, agents: str | None, created: float) -> PrincipalRow:
    return PrincipalRow(id, name, role, None if agents is None else _agents(agents), created)
