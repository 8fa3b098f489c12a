"""Project folders: who other than the owner could write in them, and which of their files prompts may take.

Guarantee: a writer is recorded before they can write, and stays recorded. A file is trusted by its path and the digest
of its content: as it was before the first writer came, or as the owner accepted it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tidegate.store.rows import Db


class ProjectTrust(NamedTuple):
    """`writers` are pairs of a folder and a principal, `trusted` of a path and a digest."""

    writers: frozenset[tuple[str, str]]
    trusted: frozenset[tuple[str, bytes]]


def known(db: Db) -> ProjectTrust:
    writers = frozenset(db.execute("SELECT folder, principal FROM project_writers"))
    return ProjectTrust(writers, frozenset(db.execute("SELECT path, digest FROM trusted_files")))


def writer(db: Db, session: str) -> str | None:
    """The principal of a session, unless they are the owner."""
    found: str | None = db.execute(
        "SELECT sessions.principal FROM sessions LEFT JOIN principals ON principals.id = sessions.principal"
        " WHERE sessions.id = ? AND coalesce(principals.role, '') <> 'owner'",
        (session,),
    ).get
    return found


def add_writer(db: Db, folder: str, principal: str, files: Mapping[str, bytes], now: float) -> None:
    """A session of this principal gets the folder, in which there are these files, by path and digest. They are trusted
    unless another writer could have changed them."""
    before = [f"{folder}/" for (folder,) in db.execute("SELECT DISTINCT folder FROM project_writers")]
    trust(db, {path: digest for path, digest in files.items() if not path.startswith(tuple(before))}, now)
    db.execute("INSERT OR IGNORE INTO project_writers VALUES(?, ?)", (folder, principal))


def trust(db: Db, files: Mapping[str, bytes], now: float) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO trusted_files VALUES(?, ?, ?)", [(path, digest, now) for path, digest in files.items()]
    )
