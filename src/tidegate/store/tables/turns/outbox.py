"""The outbox: answers to be delivered to a channel, each with a delivery id.

A prepared delivery is either sent or remains visible as unknown or dead. A row is claimed by only one sender at a time.
Each delivery has an expiry time and a limited number of attempts. After an unknown result, the channel decides whether
to try again.
"""

from collections.abc import Sequence

from tidegate.store.interface import Db
from tidegate.store.rows import DeliveryRow, DeliveryState

_COLUMNS = "id, session, turn, channel, target, body, state, attempts, created, due, expires, external, error"


def prepare(
    db: Db,
    *,
    id: str,
    session: str | None,
    turn: str | None,
    channel: str,
    target: str,
    body: bytes,
    now: float,
    expires: float,
) -> bool:
    """Creates a delivery that is due now. Returns False if the delivery id already exists."""
    db.execute(
        "INSERT INTO outbox(id, session, turn, channel, target, body, state, created, due, expires)"
        " VALUES(?, ?, ?, ?, ?, ?, 'prepared', ?, ?, ?) ON CONFLICT(id) DO NOTHING",
        (id, session, turn, channel, target, body, now, now, expires),
    )
    return db.changes() == 1


def claim_due(db: Db, now: float, limit: int, channels: Sequence[str] | None = None) -> list[DeliveryRow]:
    """Claims up to `limit` due deliveries for sending, longest overdue first. Also marks up to `limit` expired
    deliveries as dead. Further expired deliveries are not sent either."""
    db.execute(
        "UPDATE outbox SET state = 'dead', error = coalesce(error, 'expired') WHERE id IN (SELECT id FROM outbox"
        " WHERE state IN ('prepared', 'unknown') AND due <= ?1 AND expires <= ?1 ORDER BY due LIMIT ?2)",
        (now, limit),
    )
    chosen = "" if channels is None else f" AND channel IN ({', '.join('?' * len(channels))})"
    rows = db.execute(
        "UPDATE outbox SET state = 'sending', attempts = attempts + 1 WHERE id IN (SELECT id FROM outbox"
        f" WHERE state IN ('prepared', 'unknown') AND due <= ? AND expires > ?{chosen} ORDER BY due LIMIT ?)"
        f" RETURNING {_COLUMNS}",
        (now, now, *(channels or ()), limit),
    )
    return sorted((DeliveryRow(*row) for row in rows), key=lambda row: (row.due, row.id))


def get(db: Db, id: str) -> DeliveryRow | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM outbox WHERE id = ?", (id,)).get
    return None if row is None else DeliveryRow(*row)


def mark_sent(db: Db, id: str, external: str | None = None) -> bool:
    """Records that the channel has accepted the delivery; `external` is the id assigned by the channel."""
    return _leave_sending(db, id, "sent", "external = ?, error = NULL", (external,))


def mark_unknown(db: Db, id: str, error: str, due: float) -> bool:
    """Records that the delivery may have succeeded. The channel checks or repeats it at `due`."""
    return _leave_sending(db, id, "unknown", "error = ?, due = ?", (error, due))


def mark_failed(
    db: Db, id: str, *, error: str, due: float, attempts: int, permanent: bool = False
) -> DeliveryState | None:
    """Records that the delivery has definitely failed. The delivery is tried again at `due`, but becomes dead after
    `attempts` attempts, once it has expired, or immediately if the error is `permanent`. Returns its new state, or None
    if the delivery was not being sent."""
    row = db.execute(
        "UPDATE outbox SET error = ?1, due = ?2,"
        " state = CASE WHEN attempts >= ?3 OR ?2 >= expires THEN 'dead' ELSE 'prepared' END"
        " WHERE id = ?4 AND state = 'sending' RETURNING state",
        (error, due, 0 if permanent else attempts, id),
    ).get
    state: DeliveryState | None = row
    return state


def recover(db: Db, now: float, limit: int, channels: Sequence[str] | None = None) -> int:
    """Marks up to `limit` deliveries that were being sent when the process crashed as unknown. Called at startup.
    Returns their number."""
    chosen = "" if channels is None else f" AND channel IN ({', '.join('?' * len(channels))})"
    db.execute(
        "UPDATE outbox SET state = 'unknown', due = ?, error = 'interrupted while sending'"
        f" WHERE id IN (SELECT id FROM outbox WHERE state = 'sending'{chosen} LIMIT ?)",
        (now, *(channels or ()), limit),
    )
    return db.changes()


def counts(db: Db) -> dict[str, int]:
    return {state: number for state, number in db.execute("SELECT state, count(*) FROM outbox GROUP BY state")}


def purge(db: Db, before: float, limit: int) -> int:
    """Removes deliveries that have been sent or are dead and were created before the given time."""
    db.execute(
        "DELETE FROM outbox WHERE id IN"
        " (SELECT id FROM outbox WHERE state IN ('sent', 'dead') AND created < ? LIMIT ?)",
        (before, limit),
    )
    return db.changes()


def _leave_sending(db: Db, id: str, state: DeliveryState, rest: str, values: tuple[str | float | None, ...]) -> bool:
    left = db.execute(
        f"UPDATE outbox SET state = '{state}', {rest} WHERE id = ? AND state = 'sending' RETURNING 1", (*values, id)
    ).get
    return left is not None
