"""Receipts: the outer identities of accepted messages, by which a second delivery is recognised.

Guarantee: of one (principal, source, key) there is at most one that holds; one past its time is as if absent. They are
bounded in number by `prune`, which drops those of the principal that has most, so that nobody's retries are forgotten
because of another's.
"""

import msgspec

from tidegate.store.rows import Db, ReceiptRow, decode_outcome, encode
from tidegate.values import DELEGATED, Outcome, Receipt, ToolsNote

TASK_SECONDS = 30 * 86400.0
"""A turn that has given a task may wait for a person for long; it forgets the receipt itself when it ends."""

BATCH = 1000
"""Rows that one call of `prune` removes at most, so that no write waits long behind it."""

_NOTHING_TO_NOTE = ToolsNote()
_decode_note = msgspec.json.Decoder(ToolsNote).decode


def find(db: Db, principal: str, source: str, key: str, now: float) -> ReceiptRow | None:
    row = db.execute(
        "SELECT principal, source, key, digest, turn, at, expires, outcome, tools FROM receipts"
        " WHERE principal = ? AND source = ? AND key = ? AND expires > ?",
        (principal, source, key, now),
    ).get
    if row is None:
        return None
    owner, kind, name, digest, turn, at, expires, outcome, tools = row
    note = _NOTHING_TO_NOTE if tools is None else _decode_note(tools)
    return ReceiptRow(owner, kind, name, digest, turn, at, expires, decode_outcome(outcome), note)


def put(db: Db, principal: str, receipt: Receipt, turn: str, now: float, tools: ToolsNote = _NOTHING_TO_NOTE) -> None:
    """Records the receipt for a turn; an older one of the same identity gives way (its turn said "try again", or it
    has expired: who asks `find` first never replaces one that holds)."""
    db.execute(
        "INSERT INTO receipts(principal, source, key, digest, turn, at, expires, tools)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET digest = excluded.digest, turn = excluded.turn, at = excluded.at,"
        " expires = excluded.expires, outcome = NULL, tools = excluded.tools",
        (
            principal,
            receipt.source,
            receipt.key,
            receipt.digest,
            turn,
            now,
            now + receipt.keep,
            encode(tools) if tools != _NOTHING_TO_NOTE else None,
        ),
    )


def finish(db: Db, turn: str, outcome: Outcome) -> int:
    """Keeps the outcome with the turn's receipts, for a turn whose rows are about to go; how many there were."""
    if db.execute("SELECT 1 FROM receipts WHERE turn = ? LIMIT 1", (turn,)).get is None:
        return 0
    db.execute("UPDATE receipts SET outcome = ? WHERE turn = ?", (encode(outcome), turn))
    return db.changes()


def of_task(turn: str, step: str, digest: bytes) -> Receipt:
    """The identity of the task that a turn gives in this step."""
    return Receipt(source=DELEGATED, key=f"{turn}/{step}", digest=digest, keep=TASK_SECONDS)


def forget_tasks(db: Db, principal: str, turn: str) -> int:
    """The turn is over, and asks no more for the tasks that it gave; how many there were."""
    db.execute(
        "DELETE FROM receipts WHERE principal = ? AND source = ? AND key >= ? AND key < ?",
        (principal, DELEGATED, f"{turn}/", f"{turn}0"),  # what stands behind the slash
    )
    return db.changes()


def prune(db: Db, now: float, cap: int) -> int:
    """Removes what has expired; beyond `cap`, of the principal that has most, what expires soonest. A bounded number at
    a time."""
    db.execute(
        "DELETE FROM receipts WHERE (principal, source, key) IN"
        " (SELECT principal, source, key FROM receipts WHERE expires <= ? LIMIT ?)",
        (now, BATCH),
    )
    removed = db.changes()
    excess = int(db.execute("SELECT count(*) FROM receipts").get) - cap
    if removed == BATCH or excess <= 0:
        return removed
    largest = db.execute("SELECT principal FROM receipts GROUP BY principal ORDER BY count(*) DESC LIMIT 1").get
    db.execute(
        "DELETE FROM receipts WHERE (principal, source, key) IN"
        " (SELECT principal, source, key FROM receipts WHERE principal = ? ORDER BY expires LIMIT ?)",
        (largest, min(excess, BATCH - removed)),
    )
    return removed + db.changes()
