"""Workspaces: sessions' folders with their saved shells, and trust in project folders.

A session has at most one workspace. A workspace goes from live to trash to gone and never back, and a shell is saved
only while its workspace is live. A user's own folder is never due for removal. The rows say what should be on disk; the
component that owns the folders moves and removes them.

Project folders: a writer other than the owner is recorded before they can write, and stays recorded. A file that
becomes part of prompts is trusted with its path and the digest of its content: either the content before the first such
writer had access, or content that the owner has accepted.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tidegate.errors import Refused
from tidegate.store.dialect import ID_LIST, id_list
from tidegate.store.interface import Db
from tidegate.store.rows import WorkspaceRow, compress, decompress
from tidegate.store.tables.turns.turns import refusal

SHELL_BYTES = 1024 * 1024
"""Maximum size of a saved shell: its environment and functions. A process's environment cannot be much larger."""

_COLUMNS = "session, backend, folder, project, state, trashed_at"


def put(db: Db, *, session: str, backend: str, folder: str, project: bool) -> WorkspaceRow:
    """Sets a live session's workspace. A saved shell is kept."""
    db.lock("session", session)
    found = db.execute(
        "INSERT INTO workspaces(session, backend, folder, project, state)"
        " SELECT id, ?, ?, ?, 'live' FROM sessions WHERE id = ? AND ended IS NULL"
        " ON CONFLICT(session) DO UPDATE SET backend = excluded.backend, folder = excluded.folder,"
        f" project = excluded.project WHERE workspaces.state = 'live' RETURNING {_COLUMNS}",
        (backend, folder, project, session),
    ).get
    if found is None:
        raise refusal(db, session)
    return _row(found)


def get(db: Db, session: str) -> WorkspaceRow | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM workspaces WHERE session = ?", (session,)).get
    return None if row is None else _row(row)


def save_shell(db: Db, session: str, state: bytes) -> bool:
    """Saves the shell's state, which is opaque here. Returns False if there is no live workspace."""
    db.lock("session", session)
    if len(state) > SHELL_BYTES:
        raise Refused(
            f"The shell's environment and functions take up more than {SHELL_BYTES} bytes; unset some of them."
        )
    body, packed = compress(state)
    saved = db.execute(
        "UPDATE workspaces SET shell_state = ?, packed = ? WHERE session = ? AND state = 'live' RETURNING 1",
        (body, packed, session),
    ).get
    return saved is not None


def shell(db: Db, session: str) -> bytes | None:
    """Returns the last saved state of the shell, or None."""
    row = db.execute(
        "SELECT shell_state, packed FROM workspaces WHERE session = ? AND shell_state IS NOT NULL", (session,)
    ).get
    return None if row is None else decompress(*row)


def trash(db: Db, session: str, now: float) -> WorkspaceRow | None:
    """Deletes the saved shell and marks the folder as trash; a user's own folder is only released. Called when a
    session ends. Returns the current row, even if it has already been marked, or None if there is no workspace."""
    db.lock("session", session)
    db.execute(
        "UPDATE workspaces SET state = CASE WHEN project <> 0 THEN 'gone' ELSE 'trash' END, trashed_at = ?,"
        " shell_state = NULL, packed = 0 WHERE session = ? AND state = 'live'",
        (now, session),
    )
    return get(db, session)


def due_for_removal(db: Db, before: float, limit: int = 100) -> list[WorkspaceRow]:
    """Returns workspaces that were put into the trash before the given time, oldest first."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM workspaces WHERE state = 'trash' AND trashed_at < ? ORDER BY trashed_at NULLS FIRST"
        " LIMIT ?",
        (before, limit),
    )
    return [_row(row) for row in rows]


def unmeasured_trash(db: Db, limit: int) -> list[str]:
    """Returns sessions whose folder in the trash has not been measured."""
    rows = db.execute(
        "SELECT session FROM workspaces WHERE state = 'trash' AND trash_bytes IS NULL ORDER BY trashed_at NULLS FIRST"
        " LIMIT ?",
        (limit,),
    )
    return [session for (session,) in rows]


def set_trash_size(db: Db, session: str, bytes: int) -> None:
    db.lock("session", session)
    db.execute("UPDATE workspaces SET trash_bytes = ? WHERE session = ? AND state = 'trash'", (bytes, session))


def over_quota(db: Db, most: int, limit: int) -> list[str]:
    """Returns sessions whose folders in the trash, together with all newer ones, exceed the given total size, oldest
    first."""
    rows = db.execute(
        "SELECT session FROM (SELECT session, trashed_at, sum(trash_bytes) OVER (ORDER BY trashed_at DESC NULLS LAST,"
        " session DESC) AS with_later FROM workspaces WHERE state = 'trash') AS sizes WHERE with_later > ?"
        " ORDER BY trashed_at NULLS FIRST, session LIMIT ?",
        (most, limit),
    )
    return [session for (session,) in rows]


def remove(db: Db, session: str) -> bool:
    """Records that the folder no longer exists. Returns False if this has already been recorded."""
    db.lock("session", session)
    removed = db.execute(
        "UPDATE workspaces SET state = 'gone' WHERE session = ? AND state = 'trash' RETURNING 1", (session,)
    ).get
    return removed is not None


def existing(db: Db, sessions: Sequence[str]) -> set[str]:
    """Returns the sessions in the given set whose workspace still exists. Other folders belong to no session."""
    rows = db.execute(
        f"SELECT session FROM workspaces WHERE session IN {ID_LIST} AND state <> 'gone'",
        (id_list(sessions),),
    )
    return {row[0] for row in rows}


def _row(row: Any) -> WorkspaceRow:
    session, backend, folder, project, state, trashed_at = row
    return WorkspaceRow(session, backend, folder, bool(project), state, trashed_at)


# -- project folders: writers other than the owner, and files that prompts may contain --


class ProjectTrust(NamedTuple):
    """Trust in project files. `writers` contains pairs of a folder and a principal, and `trusted` contains pairs of a
    path and a digest."""

    writers: frozenset[tuple[str, str]]
    trusted: frozenset[tuple[str, bytes]]


def project_trust(db: Db) -> ProjectTrust:
    writers = frozenset(db.execute("SELECT folder, principal FROM project_writers"))
    return ProjectTrust(writers, frozenset(db.execute("SELECT path, digest FROM trusted_files")))


def project_writer(db: Db, session: str) -> str | None:
    """Returns a session's principal, or None if the principal is the gateway's owner."""
    found: str | None = db.execute(
        "SELECT sessions.principal FROM sessions LEFT JOIN principals ON principals.id = sessions.principal"
        " WHERE sessions.id = ? AND coalesce(principals.role, '') <> 'owner'",
        (session,),
    ).get
    return found


def add_project_writer(db: Db, folder: str, principal: str, files: Mapping[str, bytes], now: float) -> None:
    """Records that a session of this principal gets access to the folder. `files` maps the paths of the folder's files
    to their digests. The files become trusted unless another writer could have changed them."""
    before = [f"{folder}/" for (folder,) in db.execute("SELECT DISTINCT folder FROM project_writers")]
    trust_files(db, {path: digest for path, digest in files.items() if not path.startswith(tuple(before))}, now)
    db.execute(
        "INSERT INTO project_writers(folder, principal) VALUES(?, ?) ON CONFLICT(folder, principal) DO NOTHING",
        (folder, principal),
    )


def trust_files(db: Db, files: Mapping[str, bytes], now: float) -> None:
    db.executemany(
        "INSERT INTO trusted_files(path, digest, at) VALUES(?, ?, ?)"
        " ON CONFLICT(path) DO UPDATE SET digest = excluded.digest, at = excluded.at",
        [(path, digest, now) for path, digest in files.items()],
    )
