"""Intents: that a tool with effects is about to run, written down before it runs.

Guarantee: after a crash, an intent without a committed step of the same name means "started, effect unknown". The
engine that begins an intent clears it in the transaction that commits the result.
"""

from tidegate.store.rows import Db


def begin(db: Db, turn: str, step: str, tool: str, now: float) -> None:
    """Conflict when that step has begun already: it must not be run a second time."""
    db.execute("INSERT INTO intents(turn, step, tool, at) VALUES(?, ?, ?, ?)", (turn, step, tool, now))


def clear(db: Db, turn: str, step: str) -> None:
    db.execute("DELETE FROM intents WHERE turn = ? AND step = ?", (turn, step))


def open_of(db: Db, turn: str) -> dict[str, str]:
    """Steps of the turn that began and left no result, with the tool's name."""
    return {step: tool for step, tool in db.execute("SELECT step, tool FROM intents WHERE turn = ?", (turn,))}
