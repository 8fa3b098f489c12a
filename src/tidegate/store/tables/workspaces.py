"""Workspaces: where a session's commands and files live, and what its shell was like after the last command.

Guarantee: a session has at most one; it goes live → trash → gone and never back, and only while it is live is a shell
saved in it. A folder of the user's own is never due for removal. The rows say what should be on disk; who owns the
folders moves and removes them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tidegate.errors import Refused
from tidegate.store.rows import Db, WorkspaceRow, encode_ids, squeeze, unsqueeze
from tidegate.store.tables.turns import refusal

SHELL_BYTES = 1024 * 1024
"""Of a saved shell: its environment and functions. What a child can be given as environment is not much more."""

_COLUMNS = "session, backend, folder, project, state, trashed_at"


def put(db: Db, *, session: str, backend: str, folder: str, project: bool) -> WorkspaceRow:
    """The workspace of a live session, as it is from now on; its saved shell stays."""
    found = db.execute(
        "INSERT INTO workspaces(session, backend, folder, project, state)"
        " SELECT id, ?, ?, ?, 'live' FROM sessions WHERE id = ? AND ended IS NULL"
        " ON CONFLICT DO UPDATE SET backend = excluded.backend, folder = excluded.folder, project = excluded.project"
        f" WHERE state = 'live' RETURNING {_COLUMNS}",
        (backend, folder, project, session),
    ).get
    if found is None:
        raise refusal(db, session)
    return _row(found)


def get(db: Db, session: str) -> WorkspaceRow | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM workspaces WHERE session = ?", (session,)).get
    return None if row is None else _row(row)


def save_shell(db: Db, session: str, state: bytes) -> bool:
    """Keeps what the shell was like; the bytes are the caller's own. False when there is no live workspace."""
    if len(state) > SHELL_BYTES:
        raise Refused(f"The shell's environment and functions take more than {SHELL_BYTES} bytes; unset some of them.")
    body, packed = squeeze(state)
    saved = db.execute(
        "UPDATE workspaces SET shell_state = ?, packed = ? WHERE session = ? AND state = 'live' RETURNING 1",
        (body, packed, session),
    ).get
    return saved is not None


def shell(db: Db, session: str) -> bytes | None:
    """What was saved last; None when nothing was."""
    row = db.execute(
        "SELECT shell_state, packed FROM workspaces WHERE session = ? AND shell_state IS NOT NULL", (session,)
    ).get
    return None if row is None else unsqueeze(*row)


def trash(db: Db, session: str, now: float) -> WorkspaceRow | None:
    """The session is over: its shell is gone, its folder is to lie in the trash from now on; a folder of the user's
    own is only let go of. The row as it is now, also when that was done before; None when there is none."""
    db.execute(
        "UPDATE workspaces SET state = iif(project, 'gone', 'trash'), trashed_at = ?, shell_state = NULL, packed = 0"
        " WHERE session = ? AND state = 'live'",
        (now, session),
    )
    return get(db, session)


def due_for_removal(db: Db, before: float, limit: int = 100) -> list[WorkspaceRow]:
    """What has been in the trash since before that time, the longest first."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM workspaces WHERE state = 'trash' AND trashed_at < ? ORDER BY trashed_at LIMIT ?",
        (before, limit),
    )
    return [_row(row) for row in rows]


def unmeasured(db: Db, limit: int) -> list[str]:
    """Sessions of which it is not known what their folder takes in the trash."""
    rows = db.execute(
        "SELECT session FROM workspaces WHERE state = 'trash' AND trash_bytes IS NULL ORDER BY trashed_at LIMIT ?",
        (limit,),
    )
    return [session for (session,) in rows]


def measured(db: Db, session: str, bytes: int) -> None:
    db.execute("UPDATE workspaces SET trash_bytes = ? WHERE session = ? AND state = 'trash'", (bytes, session))


def beyond(db: Db, most: int, limit: int) -> list[str]:
    """Sessions whose folders do not fit into so many bytes of trash beside those that came later; the oldest first."""
    rows = db.execute(
        "SELECT session FROM (SELECT session, trashed_at, sum(trash_bytes) OVER (ORDER BY trashed_at DESC,"
        " session DESC) AS with_later FROM workspaces WHERE state = 'trash') WHERE with_later > ?"
        " ORDER BY trashed_at, session LIMIT ?",
        (most, limit),
    )
    return [session for (session,) in rows]


def remove(db: Db, session: str) -> bool:
    """Its folder is no longer there. True once."""
    removed = db.execute(
        "UPDATE workspaces SET state = 'gone' WHERE session = ? AND state = 'trash' RETURNING 1", (session,)
    ).get
    return removed is not None


def existing(db: Db, sessions: Sequence[str]) -> set[str]:
    """Which of these sessions have a workspace that is not gone: a folder of any other is nobody's."""
    rows = db.execute(
        "SELECT session FROM workspaces WHERE session IN (SELECT value FROM json_each(?)) AND state != 'gone'",
        (encode_ids(sessions),),
    )
    return {row[0] for row in rows}


def _row(row: Any) -> WorkspaceRow:
    session, backend, folder, project, state, trashed_at = row
    return WorkspaceRow(session, backend, folder, bool(project), state, trashed_at)


# -- project folders: writers other than the owner, and the files that prompts may take --


class ProjectTrust(NamedTuple):
    """`writers` are pairs of a folder and a principal, `trusted` of a path and a digest."""

    writers: frozenset[tuple[str, str]]
    trusted: frozenset[tuple[str, bytes]]


def project_trust(db: Db) -> ProjectTrust:
    writers = frozenset(db.execute("SELECT folder, principal FROM project_writers"))
    return ProjectTrust(writers, frozenset(db.execute("SELECT path, digest FROM trusted_files")))


def project_writer(db: Db, session: str) -> str | None:
    """The principal of a session, unless they are the owner."""
    found: str | None = db.execute(
        "SELECT sessions.principal FROM sessions LEFT JOIN principals ON principals.id = sessions.principal"
        " WHERE sessions.id = ? AND coalesce(principals.role, '') <> 'owner'",
        (session,),
    ).get
    return found


def add_project_writer(db: Db, folder: str, principal: str, files: Mapping[str, bytes], now: float) -> None:
    """Records that a session of this principal gets the folder. `files` are its files, by path and digest. They are
    trusted unless another writer could have changed them."""
    before = [f"{folder}/" for (folder,) in db.execute("SELECT DISTINCT folder FROM project_writers")]
    trust_files(db, {path: digest for path, digest in files.items() if not path.startswith(tuple(before))}, now)
    db.execute("INSERT OR IGNORE INTO project_writers VALUES(?, ?)", (folder, principal))


def trust_files(db: Db, files: Mapping[str, bytes], now: float) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO trusted_files VALUES(?, ?, ?)", [(path, digest, now) for path, digest in files.items()]
    )
