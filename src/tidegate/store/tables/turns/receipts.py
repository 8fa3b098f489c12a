"""Receipts: external identities of accepted messages, which are used to recognise repeated deliveries.

There is at most one valid receipt for each (principal, source, key). An expired receipt is treated as absent. `prune`
limits their number by dropping receipts of the principal who has the most, so nobody's retries are forgotten because of
another principal.
"""

import msgspec

from tidegate.store.interface import Db
from tidegate.store.rows import ReceiptRow, decode_outcome, encode
from tidegate.values import DELEGATED, Outcome, Receipt, ToolsNote

TASK_SECONDS = 30 * 86400.0
"""Seconds for which a delegated task's receipt is kept. The turn that delegated the task may wait for a person for a
long time. When it ends, the receipt is deleted."""

UNFOLLOWED_SECONDS = 86400.0
"""Seconds for which a one-shot call's outcome can be fetched if nobody followed the call to its end: as long as with an
idempotency key."""

FOLLOWED_SECONDS = 300.0
"""The same if somebody followed the call. The process may be killed before they receive the outcome, so it is kept long
enough for a restart and a second attempt, but no longer, since most callers have already received it."""

_OUTCOME = "outcome"
"""The source of receipts that only store an outcome. Callers cannot send one, since its key is the turn's id."""

BATCH = 1000
"""Maximum number of rows removed by one call of `prune`, so that no write has to wait long for it."""

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
    """Records a turn's receipt. Replaces an older receipt with the same identity, which must have expired or have an
    outcome that asked the caller to retry. Callers that use `find` first never replace a valid receipt."""
    db.execute(
        "INSERT INTO receipts(principal, source, key, digest, turn, at, expires, tools)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(principal, source, key) DO UPDATE SET digest = excluded.digest, turn = excluded.turn,"
        " at = excluded.at, expires = excluded.expires, outcome = NULL, tools = excluded.tools",
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


def finish(db: Db, turn: str, outcome: Outcome) -> float:
    """Stores the outcome in the turn's receipts. Used for a turn whose rows are about to be deleted. Returns the time
    at which the last of these receipts expires, or 0 if there are none."""
    until = db.execute("SELECT max(expires) FROM receipts WHERE turn = ?", (turn,)).get
    if until is None:
        return 0.0
    db.execute("UPDATE receipts SET outcome = ? WHERE turn = ?", (encode(outcome), turn))
    return float(until)


def keep_outcome(db: Db, principal: str, outcome: Outcome, now: float, until: float) -> None:
    """Stores the outcome of a turn whose rows are about to be deleted, in a separate receipt. Only `prune` deletes it,
    since the outcome may be lost on its way to the caller, who then asks again."""
    db.execute(
        "INSERT INTO receipts(principal, source, key, digest, turn, at, expires, outcome)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
        (principal, _OUTCOME, outcome.turn, b"", outcome.turn, now, until, encode(outcome)),
    )


def of_task(turn: str, step: str, digest: bytes) -> Receipt:
    """Returns the receipt that identifies the task delegated by a turn in this step."""
    return Receipt(source=DELEGATED, key=f"{turn}/{step}", digest=digest, keep=TASK_SECONDS)


def forget_tasks(db: Db, principal: str, turn: str) -> int:
    """Deletes the receipts of an ended turn's tasks. Returns their number."""
    db.execute(
        "DELETE FROM receipts WHERE principal = ? AND source = ? AND key >= ? AND key < ?",
        (principal, DELEGATED, f"{turn}/", f"{turn}0"),  # "0" follows "/"
    )
    return db.changes()


def prune(db: Db, now: float, cap: int) -> int:
    """Removes expired receipts. If more than `cap` are left, also removes receipts of the principal who has the most,
    in order of expiry. Each call removes a limited number."""
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
