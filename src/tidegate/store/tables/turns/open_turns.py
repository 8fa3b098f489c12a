"""Open turns: queries about turns that are queued or running.

They read a partial index that contains only open turns, so settled turns cost nothing. Each statement repeats that
index's condition, `state IN ('queued', 'running')`.
"""

from collections.abc import Sequence

from tidegate.store.dialect import ID_LIST, id_list
from tidegate.store.interface import Db
from tidegate.store.rows import OpenTurns, TurnRow, decode_call
from tidegate.store.tables.turns.turns import COLUMNS, row_of
from tidegate.values import Call


def listing(db: Db) -> list[TurnRow]:
    """Returns all open turns, which the gateway continues at startup. Running turns come before queued ones, and each
    session's turns are in order."""
    rows = db.execute(
        f"SELECT {COLUMNS} FROM turns WHERE state IN ('queued', 'running') ORDER BY state = 'queued', session, number"
    )
    return [row_of(row) for row in rows]


def of_session(db: Db, session: str) -> OpenTurns:
    running: tuple[str, ...] = ()
    waiting = 0
    for id, state in db.execute(
        "SELECT id, state FROM turns WHERE session = ? AND state IN ('queued', 'running') ORDER BY number", (session,)
    ):
        if state == "running":
            running += (id,)
        else:
            waiting += 1
    return OpenTurns(running, waiting)


def of_sessions(db: Db, sessions: Sequence[str]) -> dict[str, OpenTurns]:
    """Returns the open turns of these sessions. Sessions that have none are left out."""
    rows = db.execute(
        f"SELECT DISTINCT session FROM turns WHERE session IN {ID_LIST} AND state IN ('queued', 'running')",
        (id_list(sessions),),
    ).fetchall()
    return {session: of_session(db, session) for (session,) in rows}


def ids(db: Db, session: str) -> list[str]:
    """Returns the ids of the session's open turns, in order."""
    rows = db.execute(
        "SELECT id FROM turns WHERE session = ? AND state IN ('queued', 'running') ORDER BY number", (session,)
    )
    return [id for (id,) in rows]


def tasks_of(db: Db, turn: str) -> list[tuple[str, str]]:
    """Returns the open turns of this turn's tasks, each with its session."""
    rows = db.execute("SELECT id, session FROM turns WHERE within = ? AND state IN ('queued', 'running')", (turn,))
    return [(id, session) for id, session in rows]


def running(db: Db, session: str) -> str | None:
    """Returns the id of the session's running turn."""
    id: str | None = db.execute(
        "SELECT id FROM turns WHERE session = ? AND state IN ('queued', 'running') AND state = 'running'"
        " ORDER BY number LIMIT 1",
        (session,),
    ).get
    return id


def is_idle(db: Db, session: str) -> bool:
    """True if the session has no open turn."""
    open_one = db.execute(
        "SELECT 1 FROM turns WHERE session = ? AND state IN ('queued', 'running') LIMIT 1", (session,)
    ).get
    return open_one is None


def waiting_calls(db: Db, session: str) -> list[Call]:
    """Returns the `Call` of each queued turn, latest first."""
    rows = db.execute(
        "SELECT call FROM turns WHERE id IN (SELECT id FROM turns WHERE session = ?"
        " AND state IN ('queued', 'running') AND state = 'queued') ORDER BY number DESC",
        (session,),
    )
    return [decode_call(call) for (call,) in rows]


def waiting(db: Db) -> int:
    """Returns the number of queued turns in all sessions."""
    count = "SELECT count(*) FROM turns WHERE state IN ('queued', 'running') AND state = 'queued'"
    return int(db.execute(count).get)


def waiting_of(db: Db, principal: str) -> int:
    """Returns the number of one principal's queued turns."""
    count = (
        "SELECT count(*) FROM turns JOIN sessions ON sessions.id = turns.session"
        " WHERE turns.state IN ('queued', 'running') AND turns.state = 'queued' AND sessions.principal = ?"
    )
    return int(db.execute(count, (principal,)).get)
