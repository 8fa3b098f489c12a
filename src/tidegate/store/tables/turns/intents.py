"""Intents: records of tool calls that are about to run.

An intent without a committed step of the same name means that the tool call was started but its result was not stored.
The intent also records whether the call can have had an effect and whether it may be repeated, since the process that
reads the intent may have different tools. It is cleared in the transaction that commits the result.
"""

from tidegate.store.interface import Db
from tidegate.store.rows import IntentRow


def begin(
    db: Db,
    turn: str,
    step: str,
    tool: str,
    now: float,
    *,
    read_only: bool = False,
    repeatable: bool = False,
    digest: bytes | None = None,
) -> None:
    """Records an intent. Raises Conflict if the step has already been started, since it must not run twice."""
    db.lock("turn", turn)
    db.execute(
        "INSERT INTO intents(turn, step, tool, at, read_only, repeatable, digest) VALUES(?, ?, ?, ?, ?, ?, ?)",
        (turn, step, tool, now, read_only, repeatable, digest),
    )


def clear(db: Db, turn: str, step: str) -> bool:
    """Removes the step's intent. Returns True if there was one."""
    db.lock("turn", turn)
    db.execute("DELETE FROM intents WHERE turn = ? AND step = ?", (turn, step))
    return db.changes() > 0


def clear_turn(db: Db, turn: str) -> None:
    db.lock("turn", turn)
    db.execute("DELETE FROM intents WHERE turn = ?", (turn,))


def open_of(db: Db, turn: str) -> dict[str, IntentRow]:
    """Returns the turn's intents without a result, by step."""
    rows = db.execute("SELECT step, tool, read_only, repeatable, digest FROM intents WHERE turn = ?", (turn,))
    return {
        step: IntentRow(tool, bool(read_only), None if repeatable is None else bool(repeatable), digest)
        for step, tool, read_only, repeatable, digest in rows
    }
