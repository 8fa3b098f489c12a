"""Background processes: which of them a session owns, written down before each is spawned.

Guarantee: a process has its row before it exists, so that whatever a crash leaves alive is known by name; a live name
leads to one process of its session; an end is recorded once and told to the agent once. The rows say what should be
alive; who spawns and ends processes compares them with what is.
"""

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from tidegate.errors import Conflict
from tidegate.store.rows import LISTED, Db, ProcessEnd, ProcessRow, encode_ids
from tidegate.store.tables import turns

_COLUMNS = (
    "processes.id, session, processes.name, command, backend, pid, start_ticks, state, exit_code, restart, notify,"
    " started, processes.ended, log, told, processes.channel"
)
_LIVE = "state IN ('starting', 'running')"


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
    """To be committed before the spawn. Conflict when a live process of the session has that name. Its channel is that
    of the session's running turn."""
    try:
        found = db.execute(
            "INSERT INTO processes(id, session, name, command, backend, state, restart, notify, started, log, channel)"
            " SELECT ?, id, ?, ?, ?, 'starting', ?, ?, ?, ?, ? FROM sessions WHERE id = ? AND ended IS NULL"
            f" RETURNING {_COLUMNS}",
            (id, name, command, backend, restart, notify, now, log, _channel(db, session), session),
        ).get
    except apsw.ConstraintError:
        raise Conflict(
            f"A process named {name!r} runs in this session already; end it first, or choose another name.",
            code="process_name",
        ) from None
    if found is None:
        raise turns.refusal(db, session)
    return _row(found)


def again(db: Db, id: str, *, new_id: str, log: str, now: float) -> ProcessRow | None:
    """Begins anew what was lost and is marked `restart`, once: the mark goes over to the new row. None when that was
    done, or is no longer to be done because another live process has its name."""
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
    found = turns.running(db, session)
    row = None if found is None else turns.get(db, found)
    return "" if row is None else row.channel


def spawned(db: Db, id: str, *, pid: int, start_ticks: int | None) -> bool:
    """It runs, as this process of the kernel's. False when it is no longer to start: whoever spawned it ends it."""
    running = db.execute(
        "UPDATE processes SET state = 'running', pid = ?, start_ticks = ? WHERE id = ? AND state = 'starting'"
        " RETURNING 1",
        (pid, start_ticks, id),
    ).get
    return running is not None


def finished(
    db: Db, id: str, *, state: ProcessEnd, exit_code: int | None, now: float, told: bool = False
) -> ProcessRow | None:
    """It is over: by itself (exited), because it was ended (ended), or with the gateway (lost). The row, once; None
    when that is known already. `told` says that the agent knows, because it asked for the end."""
    row = db.execute(
        f"UPDATE processes SET state = ?, exit_code = ?, ended = ?, told = ? WHERE id = ? AND {_LIVE}"
        f" RETURNING {_COLUMNS}",
        (state, exit_code, now, told, id),
    ).get
    return None if row is None else _row(row)


def get(db: Db, id: str) -> ProcessRow | None:
    """The process, whoever's it is: for the gateway's own work."""
    row = db.execute(f"SELECT {_COLUMNS} FROM processes WHERE id = ?", (id,)).get
    return None if row is None else _row(row)


def by_name(db: Db, session: str, name: str) -> ProcessRow | None:
    """The session's latest process of that name."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM processes WHERE session = ? AND name = ? ORDER BY started DESC, id DESC LIMIT 1",
        (session, name),
    ).get
    return None if row is None else _row(row)


def of_session(db: Db, session: str, *, principal: str | None, limit: int = LISTED) -> list[ProcessRow]:
    """The session's processes, the latest first; `principal=None` is the view of the gateway and its operator."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM processes JOIN sessions ON sessions.id = session"
        " WHERE session = ?1 AND (?2 IS NULL OR principal = ?2) ORDER BY started DESC, processes.id DESC LIMIT ?3",
        (session, principal, limit),
    )
    return [_row(row) for row in rows]


def live(db: Db, *, after: str = "", limit: int = 1000) -> list[ProcessRow]:
    """What should be alive, of all sessions, by id; `after` is the last one seen."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM processes WHERE {_LIVE} AND id > ? ORDER BY id LIMIT ?", (after, limit))
    return [_row(row) for row in rows]


def restartable(db: Db, *, after: str = "", limit: int = 1000) -> list[ProcessRow]:
    """What was lost with the gateway, is marked `restart`, and belongs to a live session; by id."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM processes JOIN sessions ON sessions.id = session WHERE state = 'lost' AND restart = 1"
        " AND processes.id > ? AND sessions.ended IS NULL ORDER BY processes.id LIMIT ?",
        (after, limit),
    )
    return [_row(row) for row in rows]


def untold(db: Db, *, after: str = "", limit: int = 1000) -> list[ProcessRow]:
    """What is over and the agent does not know yet, in sessions that are still there; by id."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM processes JOIN sessions ON sessions.id = session WHERE processes.ended IS NOT NULL"
        " AND told = 0 AND processes.id > ? AND sessions.ended IS NULL ORDER BY processes.id LIMIT ?",
        (after, limit),
    )
    return [_row(row) for row in rows]


def mark_told(db: Db, id: str) -> bool:
    """The agent is told of this end, by what is written in the same transaction. True once."""
    told = db.execute(
        "UPDATE processes SET told = 1 WHERE id = ? AND ended IS NOT NULL AND told = 0 RETURNING 1", (id,)
    ).get
    return told is not None


def prune(db: Db, session: str, keep: int, limit: int = LISTED) -> list[ProcessRow]:
    """Forgets what is over, but for the `keep` that ended last and what is still to be told or started again; at most
    `limit` at a time, the oldest first. What was forgotten, so that its log can go."""
    rows = db.execute(
        "DELETE FROM processes WHERE id IN (SELECT id FROM processes WHERE session = ?1 AND ended IS NOT NULL"
        " AND told = 1 AND NOT (state = 'lost' AND restart = 1) ORDER BY ended, started, id LIMIT min(?3, max(0,"
        " (SELECT count(*) FROM processes WHERE session = ?1 AND ended IS NOT NULL AND told = 1"
        " AND NOT (state = 'lost' AND restart = 1)) - ?2)))"
        f" RETURNING {_COLUMNS}",
        (session, keep, limit),
    )
    return [_row(row) for row in rows]


def existing(db: Db, ids: Sequence[str]) -> set[str]:
    """Which of these have a row: what is found alive and has none belongs to nobody."""
    rows = db.execute("SELECT id FROM processes WHERE id IN (SELECT value FROM json_each(?))", (encode_ids(ids),))
    return {row[0] for row in rows}


def _row(row: Any) -> ProcessRow:
    id, session, name, command, backend, pid, ticks, state, code, restart, notify = row[:11]
    started, ended, log, told, channel = row[11:]
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
        bool(told),
        channel,
    )
