"""The audit log: the actor, action, subject and outcome of each security event. It contains ids and digests, never
content.

Each row is appended in the same transaction as the event that it records, so neither is committed without the other.
Rows are never changed, and are removed only after their retention period; triggers on the table enforce both. They
outlive the sessions to which they refer, and their ids are consecutive. Digests use a random key specific to this
database: equal inputs have equal digests, and an input cannot be guessed from its digest.
"""

import hashlib

from tidegate.store.interface import Db
from tidegate.store.rows import LISTED, AuditKind, AuditRow

FAILURES_EACH_HOUR = 20
"""Number of failed sign-ins per hour that get a separate row. Further failures in that hour are counted in a single
row, so that nobody can fill the disk with wrong codes."""
HOUR = 3600

_DIGEST_BYTES = 16


def append(
    db: Db,
    kind: AuditKind,
    outcome: str,
    now: float,
    *,
    subject: str = "",
    principal: str | None = None,
    session: str | None = None,
    of: bytes | None = None,
) -> None:
    """Records an event. `subject` contains the ids that the event concerns, separated by spaces. `principal` is the
    actor, or None for the gateway itself. Only a digest of the content `of` is stored."""
    db.execute(
        "INSERT INTO audit(at, kind, principal, session, subject, outcome, digest) VALUES(?, ?, ?, ?, ?, ?, ?)",
        (now, kind, principal, session, subject, outcome, None if of is None else digest(db, of)),
    )


def digest(db: Db, of: bytes) -> bytes:
    """Returns the digest that represents this content in this database's rows."""
    key: bytes = db.execute("SELECT key FROM audit_state").get
    return hashlib.blake2b(of, key=key, digest_size=_DIGEST_BYTES).digest()


def host_name(host: str) -> bytes:
    """Returns the content whose digest represents a contacted host."""
    return host.lower().rstrip(".").encode("utf-8", "surrogatepass")


def append_failed_sign_in(db: Db, now: float) -> None:
    append_further_failures(db, now)
    failed: int = db.execute("UPDATE audit_state SET failed = failed + 1 RETURNING failed").get
    if failed <= FAILURES_EACH_HOUR:
        append(db, "sign_in", "failed", now)


def append_further_failures(db: Db, now: float) -> None:
    """Appends one row for the failed sign-ins in a past hour that did not get a separate row."""
    hour, failed = db.execute("SELECT failed_hour, failed FROM audit_state").get
    if hour == now // HOUR:
        return
    if failed > FAILURES_EACH_HOUR:
        append(db, "sign_in", "failed", now, subject=f"{failed - FAILURES_EACH_HOUR} more")
    db.execute("UPDATE audit_state SET failed_hour = ?, failed = 0", (now // HOUR,))


def append_configuration(db: Db, text: bytes, now: float) -> bool:
    """Records the configuration at startup if it differs from the last recorded one. Returns True if it was
    recorded."""
    last = db.execute(
        "SELECT digest FROM audit WHERE kind = 'configuration' AND session IS NULL ORDER BY id DESC LIMIT 1"
    ).get
    if last == digest(db, text):
        return False
    append(db, "configuration", "changed", now, of=text)
    return True


def listing(
    db: Db,
    *,
    since: float = 0.0,
    kind: AuditKind | None = None,
    principal: str | None = None,
    session: str | None = None,
    of: bytes | None = None,
    before: tuple[float, int] | None = None,
    limit: int = LISTED,
) -> list[AuditRow]:
    """Returns events, latest first. `principal` selects the events of which they are the actor or the subject. `before`
    is (at, id) of the last row seen."""
    where = ["at >= ?"]
    values: list[float | str | bytes] = [since]
    if before is not None:
        where.append("at <= ? AND (at, id) < (?, ?)")
        values += (before[0], *before)
    wanted = {"kind": kind, "session": session, "digest": None if of is None else digest(db, of)}
    for column, value in wanted.items():
        if value is not None:
            where.append(f"{column} = ?")
            values.append(value)
    if principal is not None:
        where.append("(principal = ? OR replace(' ' || subject || ' ', ' ' || ? || ' ', '') <> ' ' || subject || ' ')")
        values += (principal, principal)
    rows = db.execute(
        "SELECT id, at, kind, principal, session, subject, outcome, digest FROM audit"
        f" WHERE {' AND '.join(where)} ORDER BY at DESC, id DESC LIMIT ?",
        (*values, limit),
    )
    return [AuditRow(*row) for row in rows]


def count(db: Db) -> int:
    """Returns the number of rows, computed from the ids, which are consecutive because the oldest rows are removed
    first."""
    first, last = db.execute("SELECT (SELECT min(id) FROM audit), (SELECT max(id) FROM audit)").get
    return 0 if first is None else int(last - first + 1)


def prune(db: Db, before: float, limit: int) -> int:
    """Removes up to `limit` rows older than `before`, oldest first. Returns their number."""
    first = db.execute("SELECT id FROM audit WHERE id = (SELECT min(id) FROM audit) AND at < ?", (before,)).get
    if first is None:
        return 0
    db.execute("UPDATE audit_state SET kept_since = ?", (before,))
    db.execute("DELETE FROM audit WHERE id < ? AND at < ?", (first + limit, before))
    return db.changes()
