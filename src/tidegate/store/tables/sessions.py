"""Sessions: their creation, prompt, end and deletion, and pending end hooks.

A session ends once, in one transaction with everything that ends with it, and is never written to afterwards. A
principal has at most one live session with a given name. `get` is for internal use (recovery, turns); code that serves
a caller uses `owned`, `live_by_name` or `listing` with the caller's principal.

For each end hook, a row is added in the transaction that ends the session or marks it for deletion, and marked as done
once. Hooks that did not run because of a crash are found here at the next start.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from tidegate.errors import Conflict, NotFound
from tidegate.store.dialect import ID_LIST, id_list
from tidegate.store.interface import ConstraintError, Db
from tidegate.store.rows import (
    Row,
    SessionKind,
    SessionRow,
    compress,
    decode_prefix,
    decompress,
    encode,
)
from tidegate.store.tables import approval_rules, approvals, messages, usage, workspaces
from tidegate.store.tables.search import search_index
from tidegate.values import Failure, Prefix

_COLUMNS = (
    "id, principal, channel, name, kind, agent, title, prefix, extra_length, extra_digest, encoder, parent, created,"
    " active, version, ended, end_reason, memory_seen, caller_tools"
)
_NO_WORK = "NOT EXISTS(SELECT 1 FROM turns WHERE turns.session = sessions.id AND turns.state IN ('queued', 'running'))"
_IS_TASK = "EXISTS(SELECT 1 FROM turns WHERE turns.session = sessions.id AND turns.within IS NOT NULL)"
_SESSION_ENDED = encode(
    Failure(
        message="The conversation ended before this message was answered; send it again in a new one.",
        type="invalid_request_error",
        code="session_ended",
        status=409,
    )
)


DELETE_HOOK = "(delete)"
"""The name of the pending hook of a session that is to be deleted once all its other hooks are done. No real hook has
this name."""


class SessionEnd(Row, frozen=True):
    """What else ended with a session: the queued turns that were refused."""

    refused: tuple[str, ...]


def create(
    db: Db,
    *,
    id: str,
    principal: str,
    channel: str,
    name: str | None,
    kind: SessionKind,
    agent: str,
    extra: str,
    parent: str | None,
    now: float,
    prefix: Prefix,
    encoder: int,
    title: str = "",
    memory_seen: int = 0,
    caller_tools: bytes = b"",
) -> SessionRow:
    """Creates a session with a frozen prompt and tools. `extra` is the part at the end of the prompt that is specific
    to this session. It is stored only as part of the prompt. Raises Conflict if the principal has a live session with
    this name."""
    length, digest = _extra(extra)
    _check_extra(prefix, length, digest)
    frozen = _keep_prefix(db, prefix)
    row = SessionRow(
        id,
        principal,
        channel,
        name,
        kind,
        agent,
        title,
        frozen,
        length,
        digest,
        encoder,
        parent,
        now,
        now,
        0,
        None,
        None,
        memory_seen,
        caller_tools,
    )
    try:
        db.insert_unique(
            f"INSERT INTO sessions({_COLUMNS}) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            msgspec.structs.astuple(row),
        )
    except ConstraintError:
        raise Conflict("There is already a live session with that name or id.") from None
    if title or name:
        search_index.retitled(db, id)
    return row


def get(db: Db, id: str) -> SessionRow | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM sessions WHERE id = ?", (id,)).get
    return None if row is None else SessionRow(*row)


def is_live(db: Db, id: str) -> bool:
    """True if the session exists and has not ended."""
    return db.execute("SELECT 1 FROM sessions WHERE id = ? AND ended IS NULL", (id,)).get is not None


def existing(db: Db, ids: Sequence[str]) -> set[str]:
    """Returns the ids in `ids` that belong to existing sessions, ended or not. Files with other ids belong to no
    session."""
    rows = db.execute(f"SELECT id FROM sessions WHERE id IN {ID_LIST}", (id_list(ids),))
    return {row[0] for row in rows}


def version(db: Db, id: str) -> int:
    """Returns a counter that increases with every change to the content that models see and when the session ends, or
    -1 if the session does not exist."""
    found: int | None = db.execute("SELECT version FROM sessions WHERE id = ?", (id,)).get
    return -1 if found is None else found


def owned(db: Db, id: str, principal: str) -> SessionRow | None:
    """Returns the session if it belongs to this principal."""
    row = db.execute(f"SELECT {_COLUMNS} FROM sessions WHERE id = ? AND principal = ?", (id, principal)).get
    return None if row is None else SessionRow(*row)


def live_by_name(db: Db, principal: str, name: str) -> SessionRow | None:
    row = db.execute(
        f"SELECT {_COLUMNS} FROM sessions WHERE principal = ? AND name = ? AND ended IS NULL", (principal, name)
    ).get
    return None if row is None else SessionRow(*row)


def listing(
    db: Db,
    *,
    principal: str | None,
    ended: bool | None = None,
    kind: SessionKind | None = None,
    limit: int = 50,
    before: tuple[float, str] | None = None,
) -> list[SessionRow]:
    """Lists sessions, most recently active first. `before` is (active, id) of the last session seen. `principal=None`
    is the operator's view of all sessions. The sessions of delegated tasks belong to other sessions and are left
    out."""
    where = [f"(kind <> 'ephemeral' OR NOT {_IS_TASK})"]
    values: list[float | str | None] = []
    if principal is not None:
        where.append("principal = ?")
        values.append(principal)
    if ended is not None:
        where.append("ended IS NOT NULL" if ended else "ended IS NULL")
    if kind is not None:
        where.append("kind = ?")
        values.append(kind)
    if before is not None:
        where.append("(active, id) < (?, ?)")
        values.extend(before)
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM sessions WHERE {' AND '.join(where)} ORDER BY active DESC, id DESC LIMIT ?",
        (*values, limit),
    )
    return [SessionRow(*row) for row in rows]


def listed(db: Db, ids: Sequence[str]) -> list[SessionRow]:
    """Returns the existing sessions with these ids, in the order of the ids."""
    rows = (db.execute(f"SELECT {_COLUMNS} FROM sessions WHERE id = ?", (id,)).get for id in ids)
    return [SessionRow(*row) for row in rows if row is not None]


def refreeze(db: Db, id: str, prefix: Prefix, encoder: int, memory_seen: int = 0) -> bool:
    """Replaces the session's frozen prompt and tools, which never change otherwise. Returns True if the new ones differ
    from the old ones. Raises Conflict if the prompt does not end with the session's own part."""
    db.lock("session", id)
    row = get(db, id)
    if row is None or row.ended is not None:
        raise _refusal(db, id, "The session cannot be changed.")
    _check_extra(prefix, row.extra_length, row.extra_digest)
    if memory_seen != row.memory_seen:
        _change(db, id, "memory_seen = ?", (memory_seen,))
    digest = _keep_prefix(db, prefix)
    if digest == row.prefix:
        return False
    _change(db, id, "prefix = ?, encoder = ?, version = version + 1", (digest, encoder))
    if row.prefix is not None:
        drop_unused_prefix(db, row.prefix)
    return True


def set_caller_tools(db: Db, row: SessionRow, prefix: Prefix, digest: bytes) -> SessionRow:
    """Replaces the session's frozen caller tools; `prefix` contains the new ones."""
    db.lock("session", row.id)
    frozen = _keep_prefix(db, prefix)
    _change(db, row.id, "prefix = ?, caller_tools = ?, version = version + 1", (frozen, digest))
    if row.prefix is not None and row.prefix != frozen:
        drop_unused_prefix(db, row.prefix)
    return msgspec.structs.replace(row, prefix=frozen, caller_tools=digest, version=row.version + 1)


def reencode(db: Db, id: str, encoder: int) -> bool:
    """Records the encoder version used for the session's requests from now on. Returns False if the version is
    unchanged, or if the session has ended."""
    db.lock("session", id)
    changed = db.execute(
        "UPDATE sessions SET encoder = ?1 WHERE id = ?2 AND ended IS NULL AND encoder <> ?1 RETURNING 1", (encoder, id)
    ).get
    return changed is not None


def identity(prefix: Prefix) -> bytes:
    """Returns the id under which a prefix is stored. Equal prefixes have equal ids."""
    return hashlib.sha256(encode(prefix)).digest()


def prefix(db: Db, prefix_id: bytes) -> Prefix:
    found = db.execute("SELECT body, packed FROM prefixes WHERE id = ?", (prefix_id,)).get
    if found is None:
        raise Conflict("This conversation has lost its frozen prompt; use /reload to give it a new one.")
    return decode_prefix(decompress(*found))


def extra(db: Db, row: SessionRow) -> str:
    """Returns the end of the frozen prompt, which is specific to this session."""
    if not row.extra_length or row.prefix is None:
        return ""
    return prefix(db, row.prefix).prompt[-row.extra_length :]


def has_extra(row: SessionRow, extra: str) -> bool:
    """True if `extra` is the part of the prompt that is specific to this session, apart from surrounding whitespace."""
    return _extra(extra) == (row.extra_length, row.extra_digest)


def set_title(db: Db, id: str, title: str) -> None:
    """Sets the title. The session's version stays the same, since models do not see the title."""
    db.lock("session", id)
    _change(db, id, "title = ?", (title,))
    search_index.retitled(db, id)


def touch(db: Db, id: str, now: float) -> None:
    """Records activity, unless the session has ended."""
    db.lock("session", id)
    db.execute("UPDATE sessions SET active = ?1 WHERE id = ?2 AND ended IS NULL AND active < ?1", (now, id))


def end(
    db: Db, id: str, *, reason: str, hooks: Sequence[str], now: float, only_idle_since: float | None = None
) -> SessionEnd | None:
    """Ends the session permanently, exactly once. Returns None if the session has already ended or does not exist, and,
    with `only_idle_since`, also if `idle` would no longer return the session.

    In the same transaction, settings, stored approvals and the saved shell are deleted, open approvals are cancelled,
    the workspace becomes trash, and queued turns are refused. Their messages are added to the transcript as unanswered,
    either now or at the end of the running turn. Each hook gets a pending row.
    """
    db.lock("session", id)
    idle, since = ("", ()) if only_idle_since is None else (f" AND active < ? AND {_NO_WORK}", (only_idle_since,))
    ended = db.execute(
        "UPDATE sessions SET ended = ?, end_reason = ?, version = version + 1 WHERE id = ? AND ended IS NULL"
        f"{idle} RETURNING 1",
        (now, reason, id, *since),
    ).get
    if ended is None:
        return None
    db.execute("DELETE FROM settings WHERE session = ?", (id,))
    db.execute("DELETE FROM notices WHERE session = ?", (id,))
    approvals.cancel_session(db, id, now)
    approval_rules.end_session(db, id)
    workspaces.trash(db, id, now)
    refused: list[Any] = db.execute(
        "UPDATE turns SET state = 'refused', finish = 'error', finished = ?, error = ?"
        " WHERE session = ? AND state IN ('queued', 'running') AND state = 'queued' RETURNING id",
        (now, _SESSION_ENDED, id),
    ).fetchall()
    messages.close_inbox(db, id)
    for hook in hooks:
        owe_hook(db, id, hook)
    return SessionEnd(tuple(turn for (turn,) in refused))


def mark_for_deletion(db: Db, id: str) -> bool:
    """Marks an ended session for deletion as soon as no other hook is pending, whatever the reason for its end. Returns
    False if it does not exist or has not ended."""
    db.lock("session", id)
    found = db.execute(
        "UPDATE sessions SET end_reason = 'delete' WHERE id = ? AND ended IS NOT NULL RETURNING 1", (id,)
    )
    if found.get is None:
        return False
    owe_hook(db, id, DELETE_HOOK)
    return True


def delete(db: Db, id: str) -> bool:
    """Deletes the session and everything that belongs only to it. Returns False if it does not exist.

    For an ephemeral session, receipts that contain their outcome are kept until they expire, and the usage rows keep
    their principal. For a named session, its principal's hourly spending is kept. An ephemeral session's prompt is
    deleted later by `maintenance.tidy`, since the next session usually has the same one.
    """
    db.lock("session", id)
    found = db.execute("SELECT prefix, kind FROM sessions WHERE id = ?", (id,)).get
    if found is None:
        return False
    prefix_id, kind = found
    ephemeral = kind == "ephemeral"
    mine = "(SELECT id FROM turns WHERE session = ?)"
    search_index.unindex(db, id)
    usage.anonymise(db, id, named=not ephemeral)
    unfinished = " AND outcome IS NULL" if ephemeral else ""
    db.batch(
        (sql, (id,))
        for sql in (
            f"DELETE FROM intents WHERE turn IN {mine}",
            f"DELETE FROM receipts WHERE turn IN {mine}{unfinished}",
            "DELETE FROM endings WHERE session = ?",
            "DELETE FROM outbox WHERE session = ?",
            "DELETE FROM sessions WHERE id = ?",
        )
    )
    _lower_mark(db)
    if prefix_id is not None and not ephemeral:
        drop_unused_prefix(db, prefix_id)
    return True


def delete_messages(db: Db, id: str, limit: int) -> int:
    """Deletes the first `limit` messages of an ended session, in preparation for `delete`, which would take too long
    with all messages. Returns the number of deleted rows, which is 0 while any hook other than the deletion is
    pending."""
    db.lock("session", id)
    over = db.execute(
        "SELECT 1 FROM sessions WHERE id = ?1 AND ended IS NOT NULL"
        " AND NOT EXISTS(SELECT 1 FROM endings WHERE session = ?1 AND done IS NULL AND hook <> ?2)",
        (id, DELETE_HOOK),
    ).get
    if over is None:
        return 0
    first = "SELECT id FROM messages WHERE session = ? ORDER BY seq NULLS FIRST LIMIT ?"
    last = db.execute(f"SELECT max(seq) FROM messages WHERE id IN ({first})", (id, limit)).get
    search_index.unindex(db, id, last=last or 0)
    db.execute(f"DELETE FROM messages WHERE id IN ({first})", (id, limit))
    removed = db.changes()
    _lower_mark(db)
    return removed


def idle(db: Db, *, kind: SessionKind, before: float, limit: int) -> list[str]:
    """Returns live sessions without activity since `before` and without a queued or running turn, longest idle
    first."""
    rows = db.execute(
        f"SELECT id FROM sessions WHERE kind = ? AND ended IS NULL AND active < ? AND {_NO_WORK}"
        " ORDER BY active LIMIT ?",
        (kind, before, limit),
    )
    return [row[0] for row in rows]


def ended_before(db: Db, before: float, limit: int) -> list[str]:
    """Returns sessions that ended before the given time and whose hooks have all run, oldest first."""
    rows = db.execute(
        "SELECT id FROM sessions WHERE ended IS NOT NULL AND ended < ? AND NOT EXISTS("
        "SELECT 1 FROM endings WHERE endings.session = sessions.id AND done IS NULL) ORDER BY ended NULLS FIRST"
        " LIMIT ?",
        (before, limit),
    )
    return [row[0] for row in rows]


def _lower_mark(db: Db) -> None:
    """Lowers the search indexes' marks to the highest row id. Row ids are reused once the highest row is deleted, and a
    mark must not be above the id of a future row."""
    db.execute(
        "UPDATE meta SET value = (SELECT coalesce(max(id), 0) FROM messages)"
        " WHERE (key IN ('indexed', 'former') OR key LIKE 'indexed:%')"
        " AND value > (SELECT coalesce(max(id), 0) FROM messages)"
    )


def _keep_prefix(db: Db, prefix: Prefix) -> bytes:
    """Stores a prefix only once, however many sessions use it. Returns its id."""
    digest = identity(prefix)
    if db.execute("SELECT 1 FROM prefixes WHERE id = ?", (digest,)).get is None:
        db.execute("INSERT INTO prefixes(id, body, packed) VALUES(?, ?, ?)", (digest, *compress(encode(prefix))))
    return digest


def _extra(text: str) -> tuple[int, bytes]:
    """Returns the length and digest of the session-specific part of the prompt, without surrounding whitespace."""
    text = text.strip()
    return len(text), hashlib.sha256(encode(text)).digest() if text else b""


def _check_extra(prefix: Prefix, length: int, digest: bytes) -> None:
    if length and _extra(prefix.prompt[-length:]) != (length, digest):
        raise Conflict("The prompt does not end with the session's own part.")


def _change(db: Db, id: str, assignment: str, values: tuple[str | float | bytes, ...]) -> None:
    changed = db.execute(
        f"UPDATE sessions SET {assignment} WHERE id = ? AND ended IS NULL RETURNING 1",
        (*values, id),
    ).get
    if changed is None:
        raise _refusal(db, id, "The session cannot be changed.")


def _refusal(db: Db, id: str, otherwise: str) -> Conflict | NotFound:
    ended = db.execute("SELECT ended FROM sessions WHERE id = ?", (id,)).fetchall()
    if not ended:
        return NotFound("There is no such session.")
    if ended[0][0] is not None:
        return Conflict("The session has ended; start a new one.", code="session_ended")
    return Conflict(otherwise)


def drop_unused_prefix(db: Db, prefix_id: bytes) -> int:
    """Deletes the prefix unless a session uses it. Returns the number of deleted prefixes."""
    db.execute(
        "DELETE FROM prefixes WHERE id = ? AND NOT EXISTS(SELECT 1 FROM sessions WHERE prefix = ?)",
        (prefix_id, prefix_id),
    )
    return db.changes()


# -- end hooks: work that remains to be done for ended sessions --


def owe_hook(db: Db, session: str, hook: str) -> None:
    """Records that the hook must run. Idempotent."""
    db.lock("session", session)
    db.execute("INSERT INTO endings(session, hook) VALUES(?, ?) ON CONFLICT(session, hook) DO NOTHING", (session, hook))


def pending_hooks(db: Db, limit: int = 1000, after: tuple[str, str] = ("", "")) -> list[tuple[str, str]]:
    """Returns (session, hook) for all hooks that are still to run, ordered by session and hook. `after` is the last
    pair seen."""
    rows = db.execute(
        "SELECT session, hook FROM endings WHERE done IS NULL AND (session, hook) > (?, ?)"
        " ORDER BY session, hook LIMIT ?",
        (*after, limit),
    )
    return [(session, hook) for session, hook in rows]


def owed_hooks(db: Db, session: str) -> list[str]:
    """Returns the session's hooks that are still to run."""
    rows = db.execute("SELECT hook FROM endings WHERE session = ? AND done IS NULL ORDER BY hook", (session,))
    return [row[0] for row in rows]


def attempt_hook(db: Db, session: str, hook: str) -> int:
    """Counts an attempt that is about to begin. Returns the number of attempts so far, across restarts; 0 if the hook
    is not pending."""
    db.lock("session", session)
    tries: int | None = db.execute(
        "UPDATE endings SET tries = tries + 1 WHERE session = ? AND hook = ? AND done IS NULL RETURNING tries",
        (session, hook),
    ).get
    return tries or 0


def finish_hook(db: Db, session: str, hook: str, now: float) -> bool:
    """Marks the hook as done. Returns True only the first time, so a hook's effect happens exactly once if it is part
    of the same transaction."""
    db.lock("session", session)
    first = db.execute(
        "UPDATE endings SET done = ? WHERE session = ? AND hook = ? AND done IS NULL RETURNING 1", (now, session, hook)
    ).get
    return first is not None
