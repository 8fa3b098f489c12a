"""Sessions' background processes, each recorded before it is spawned.

A process's row is written before the process exists, so processes that survive a crash can be found by name. No two
live processes in a session have the same name. The end of a process is recorded once, and reported to the agent once.
The rows say which processes should be alive. The code that spawns and stops processes compares the rows with the
processes that are actually alive.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from tidegate.errors import Conflict
from tidegate.store.dialect import ID_LIST, id_list
from tidegate.store.interface import ConstraintError, Db
from tidegate.store.rows import LISTED, ProcessEnd, ProcessRow
from tidegate.store.tables.turns import open_turns, turns

_COLUMNS = (
    "processes.id, session, processes.name, command, backend, pid, start_ticks, state, exit_code, restart, notify,"
    " started, processes.ended, log, told, processes.channel"
)
_LIVE = "state IN ('starting', 'running')"
_FINISHED = "ended IS NOT NULL AND told = 1 AND NOT (state = 'lost' AND restart = 1)"


def begin(
    db: Db,
    *,
    id: str,
    session: str,
    name: str,
    command: str,
    backend: str,
    log: str,
    restart: bool,
    notify: bool,
    now: float,
) -> ProcessRow:
    """Records a process. Must be committed before the process is spawned. Raises Conflict if a live process in the
    session has this name. The process gets the running turn's channel."""
    db.lock("session", session)
    try:
        found = db.insert_unique(
            "INSERT INTO processes(id, session, name, command, backend, state, restart, notify, started, log, channel)"
            " SELECT ?, id, ?, ?, ?, 'starting', ?, ?, ?, ?, ? FROM sessions WHERE id = ? AND ended IS NULL"
            f" RETURNING {_COLUMNS}",
            (id, name, command, backend, restart, notify, now, log, _channel(db, session), session),
        ).get
    except ConstraintError:
        raise Conflict(
            f"A process named {name!r} is already running in this session; stop it first, or choose another name.",
            code="process_name",
        ) from None
    if found is None:
        raise turns.refusal(db, session)
    return _row(found)


def restart(db: Db, id: str, *, new_id: str, log: str, now: float) -> ProcessRow | None:
    """Restarts a lost process that is marked `restart`, once: the mark moves to the new row. Returns None if it has
    already been restarted, or if another live process has its name."""
    db.lock("process", id)
    old = db.execute(
        f"UPDATE processes SET restart = 0 WHERE id = ? AND state = 'lost' AND restart = 1 RETURNING {_COLUMNS}", (id,)
    ).get
    if old is None:
        return None
    row = _row(old)
    taken = db.execute(f"SELECT 1 FROM processes WHERE session = ? AND name = ? AND {_LIVE}", (row.session, row.name))
    if taken.get is not None:
        return None
    begun = begin(
        db,
        id=new_id,
        session=row.session,
        name=row.name,
        command=row.command,
        backend=row.backend,
        log=log,
        restart=True,
        notify=row.notify,
        now=now,
    )
    db.execute("UPDATE processes SET channel = ? WHERE id = ?", (row.channel, begun.id))
    return msgspec.structs.replace(begun, channel=row.channel)


def _channel(db: Db, session: str) -> str:
    found = open_turns.running(db, session)
    row = None if found is None else turns.get(db, found)
    return "" if row is None else row.channel


def mark_running(db: Db, id: str, *, pid: int, start_ticks: int | None) -> bool:
    """Records that the process is running, with its pid. Returns False if it should no longer be started; the caller
    must then stop it."""
    db.lock("process", id)
    running = db.execute(
        "UPDATE processes SET state = 'running', pid = ?, start_ticks = ? WHERE id = ? AND state = 'starting'"
        " RETURNING 1",
        (pid, start_ticks, id),
    ).get
    return running is not None


def mark_ended(
    db: Db, id: str, *, state: ProcessEnd, exit_code: int | None, now: float, end_reported: bool = False
) -> ProcessRow | None:
    """Records the end of a process: it exited (exited), was stopped (ended), or was lost with the gateway (lost).
    Returns the row, or None if the end is already recorded. `end_reported` is True if the agent already knows that the
    process has ended because it stopped the process itself."""
    db.lock("process", id)
    row = db.execute(
        f"UPDATE processes SET state = ?, exit_code = ?, ended = ?, told = ? WHERE id = ? AND {_LIVE}"
        f" RETURNING {_COLUMNS}",
        (state, exit_code, now, end_reported, id),
    ).get
    return None if row is None else _row(row)


def get(db: Db, id: str) -> ProcessRow | None:
    """Returns the process with this id, whoever it belongs to. For internal use."""
    row = db.execute(f"SELECT {_COLUMNS} FROM processes WHERE id = ?", (id,)).get
    return None if row is None else _row(row)


def by_name(db: Db, session: str, name: str) -> ProcessRow | None:
    """Returns the session's latest process with this name."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM processes WHERE session = ? AND name = ? ORDER BY started DESC, id DESC LIMIT 1",
        (session, name),
    ).get
    return None if row is None else _row(row)


def of_session(db: Db, session: str, *, principal: str | None, limit: int = LISTED) -> list[ProcessRow]:
    """Returns the session's processes, latest first. With `principal=None`, which only the gateway and its operator may
    use, ownership is not checked."""
    whose, values = ("", ()) if principal is None else (" AND principal = ?", (principal,))
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM processes JOIN sessions ON sessions.id = session"
        f" WHERE session = ?{whose} ORDER BY started DESC, processes.id DESC LIMIT ?",
        (session, *values, limit),
    )
    return [_row(row) for row in rows]


def live(db: Db, *, after: str = "", limit: int = 1000) -> list[ProcessRow]:
    """Returns all sessions' processes that should be alive, ordered by id. `after` is the last id seen."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM processes WHERE {_LIVE} AND id > ? ORDER BY id LIMIT ?", (after, limit))
    return [_row(row) for row in rows]


def restartable(db: Db, *, after: str = "", limit: int = 1000) -> list[ProcessRow]:
    """Returns live sessions' processes that were lost with the gateway and are marked `restart`, ordered by id."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM processes JOIN sessions ON sessions.id = session WHERE state = 'lost' AND restart = 1"
        " AND processes.id > ? AND sessions.ended IS NULL ORDER BY processes.id LIMIT ?",
        (after, limit),
    )
    return [_row(row) for row in rows]


def unreported(db: Db, *, after: str = "", limit: int = 1000) -> list[ProcessRow]:
    """Returns live sessions' ended processes whose end has not been reported to the agent yet, ordered by id."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM processes JOIN sessions ON sessions.id = session WHERE processes.ended IS NOT NULL"
        " AND told = 0 AND processes.id > ? AND sessions.ended IS NULL ORDER BY processes.id LIMIT ?",
        (after, limit),
    )
    return [_row(row) for row in rows]


def mark_reported(db: Db, id: str) -> bool:
    """Records that the end of this process has been reported to the agent by another write in the same transaction.
    Returns False if that was already recorded."""
    db.lock("process", id)
    marked = db.execute(
        "UPDATE processes SET told = 1 WHERE id = ? AND ended IS NOT NULL AND told = 0 RETURNING 1", (id,)
    ).get
    return marked is not None


def prune(db: Db, session: str, keep: int, limit: int = LISTED) -> list[ProcessRow]:
    """Deletes up to `limit` ended processes, oldest first, except the last `keep` and those that are still to be
    reported or restarted. Returns them, so that their logs can be removed."""
    db.lock("session", session)
    over = int(db.execute(f"SELECT count(*) FROM processes WHERE session = ? AND {_FINISHED}", (session,)).get) - keep
    if over <= 0:
        return []
    rows = db.execute(
        f"DELETE FROM processes WHERE id IN (SELECT id FROM processes WHERE session = ? AND {_FINISHED}"
        f" ORDER BY ended NULLS FIRST, started, id LIMIT ?) RETURNING {_COLUMNS}",
        (session, min(over, limit)),
    )
    return [_row(row) for row in rows]


def existing(db: Db, ids: Sequence[str]) -> set[str]:
    """Returns the ids in the given set that have a row. A live process without a row belongs to no session."""
    rows = db.execute(f"SELECT id FROM processes WHERE id IN {ID_LIST}", (id_list(ids),))
    return {row[0] for row in rows}


def _row(row: Any) -> ProcessRow:
    id, session, name, command, backend, pid, ticks, state, code, restart, notify = row[:11]
    started, ended, log, end_reported, channel = row[11:]
    return ProcessRow(
        id,
        session,
        name,
        command,
        backend,
        pid,
        ticks,
        state,
        code,
        bool(restart),
        bool(notify),
        started,
        ended,
        log,
        bool(end_reported),
        channel,
    )
