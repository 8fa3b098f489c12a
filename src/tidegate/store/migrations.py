"""The store's schema, as a series of migrations.

Each function is applied to a file exactly once, in this order, in a transaction that also increases `user_version`. A
released migration is never edited, only corrected by a later one. A file whose version is above `CURRENT` was written
by a newer program and is not opened.
"""

import hashlib
import zlib
from collections.abc import Callable

import apsw
import msgspec

APPLICATION_ID = 0x54494447
"""Bytes 68 to 71 of the file, which identify it as a Tidegate store ("TIDG")."""


def v1_first_schema(db: apsw.Connection) -> None:
    for statement in _V1:
        db.execute(statement)


def v2_agent_resources(db: apsw.Connection) -> None:
    """Approvals record their step, their summary and who may answer. Processes, workspaces and spooled files get
    tables."""
    for statement in _V2:
        db.execute(statement)


def v3_prompts_stored_once(db: apsw.Connection) -> None:
    """A session's own part of the prompt was stored twice: in its row and, uncompressed, in its prefix. Now it is only
    the end of the prefix, with a known length and digest."""
    for statement in _V3:
        db.execute(statement)
    for (number,) in db.execute("SELECT rowid FROM sessions WHERE trim(extra) != ''").fetchall():
        extra, prefix = db.execute("SELECT extra, prefix FROM sessions WHERE rowid = ?", (number,)).get
        extra = extra.strip()
        if not extra:
            continue
        db.execute(
            "UPDATE sessions SET prefix = ?, extra_length = ?, extra_digest = ? WHERE rowid = ?",
            (
                _prefix_that_ends_with(db, prefix, extra),
                len(extra),
                hashlib.sha256(msgspec.json.encode(extra)).digest(),
                number,
            ),
        )
    db.execute("ALTER TABLE sessions DROP COLUMN extra")
    for (number,) in db.execute("SELECT rowid FROM prefixes WHERE length(body) > 1024").fetchall():
        body = db.execute("SELECT body FROM prefixes WHERE rowid = ?", (number,)).get
        packed = zlib.compress(body, 1)
        if len(packed) < len(body):
            db.execute("UPDATE prefixes SET body = ?, packed = 1 WHERE rowid = ?", (packed, number))


def v4_process_channels(db: apsw.Connection) -> None:
    """A process records the channel of the turn that started it, and the turn that reports its end uses this channel.
    Previously, such turns had a separate channel. The size of folders in the trash is measured once."""
    for statement in _V4:
        db.execute(statement)


def v5_costs(db: apsw.Connection) -> None:
    """A model call has a price and may belong to a job; spending is also summed up by the hour."""
    for statement in _V5:
        db.execute(statement)


def v6_summaries_and_notes(db: apsw.Connection) -> None:
    """Summaries replace old messages in requests; notes about people and agents' work are stored; a turn may be part of
    another one. The search index is rebuilt, with its entries numbered by conversation and principal."""
    for statement in _V6:
        db.execute(statement)


def v7_intent_effects(db: apsw.Connection) -> None:
    """An intent records whether its tool only reads and whether it may be run again. An intent in an older format
    counts as having effects, and its tool decides whether it may be run again."""
    for statement in _V7:
        db.execute(statement)


def v8_caller_tools(db: apsw.Connection) -> None:
    """A session's frozen prefix may contain tools that its caller runs."""
    db.execute("ALTER TABLE sessions ADD COLUMN caller_tools BLOB NOT NULL DEFAULT x''")


def v9_roles_and_audit(db: apsw.Connection) -> None:
    """Every principal has one of four roles; security events are recorded."""
    for statement in _V9:
        db.execute(statement)


def v10_append_only_audit(db: apsw.Connection) -> None:
    """A row in the audit log always gets the next number, since REPLACE would remove a row without firing a trigger."""
    db.execute(_V10)


def v11_receipt_tools(db: apsw.Connection) -> None:
    """A receipt stores what its response contained about the caller's tools, so that a replayed response is
    identical."""
    db.execute("ALTER TABLE receipts ADD COLUMN tools BLOB")


def v12_turn_fence(db: apsw.Connection) -> None:
    """A turn counts how often it has been taken, so that an earlier attempt can no longer write to the turn."""
    db.execute("ALTER TABLE turns ADD COLUMN fence INTEGER NOT NULL DEFAULT 0")


def v13_stop_requests(db: apsw.Connection) -> None:
    """A turn records the request to stop it, so that the request survives a crash and reaches another process. A
    running turn in a format without fences counts as taken once."""
    db.execute("ALTER TABLE turns ADD COLUMN stopping BLOB")
    db.execute("UPDATE turns SET fence = 1 WHERE state IN ('queued', 'running') AND state = 'running' AND fence = 0")


def v14_ranked_search(db: apsw.Connection) -> None:
    """The search index contains stems, and is numbered by session and position. It is filled in the background; until
    then, the former index is kept for messages up to the mark `former`. Titles get an index."""
    for statement in _V14:
        db.execute(statement)
    if db.execute("SELECT value FROM meta WHERE key = 'former'").get == 0:
        db.execute("DROP TABLE messages_text")


def v15_approval_rules(db: apsw.Connection) -> None:
    """An approval can be given for more than one call, and is then stored as a rule."""
    for statement in _V15:
        db.execute(statement)


def v16_index_words(db: apsw.Connection) -> None:
    """The terms of the search index have a table, in which the last word of a search is completed."""
    for statement in _V16:
        db.execute(statement)


def v17_mcp_listings(db: apsw.Connection) -> None:
    """What each MCP server offered last."""
    db.execute(
        """CREATE TABLE mcp_listings(
            server TEXT PRIMARY KEY, signature BLOB NOT NULL, body BLOB NOT NULL, packed INTEGER NOT NULL,
            at REAL NOT NULL) WITHOUT ROWID"""
    )


def v18_vectors(db: apsw.Connection) -> None:
    """Messages have vectors of an embeddings model, numbered like the entries of the search index."""
    for statement in _V18:
        db.execute(statement)


def _prefix_that_ends_with(db: apsw.Connection, prefix: bytes | None, extra: str) -> bytes:
    """Returns the session's existing prefix if it ends with `extra`, otherwise a new prefix that does."""
    body = None if prefix is None else db.execute("SELECT body FROM prefixes WHERE id = ?", (prefix,)).get
    parts = {} if body is None else msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    prompt = msgspec.json.decode(parts["prompt"], type=str) if "prompt" in parts else ""
    if prefix is not None and body is not None and prompt.endswith(extra):
        return prefix
    parts["prompt"] = msgspec.Raw(msgspec.json.encode(f"{prompt}\n\n{extra}".strip()))
    made = msgspec.json.encode(parts)
    digest = hashlib.sha256(made).digest()
    db.execute("INSERT OR IGNORE INTO prefixes(id, body) VALUES(?, ?)", (digest, made))
    return digest


MIGRATIONS: tuple[Callable[[apsw.Connection], None], ...] = (
    v1_first_schema,
    v2_agent_resources,
    v3_prompts_stored_once,
    v4_process_channels,
    v5_costs,
    v6_summaries_and_notes,
    v7_intent_effects,
    v8_caller_tools,
    v9_roles_and_audit,
    v10_append_only_audit,
    v11_receipt_tools,
    v12_turn_fence,
    v13_stop_requests,
    v14_ranked_search,
    v15_approval_rules,
    v16_index_words,
    v17_mcp_listings,
    v18_vectors,
)
CURRENT = len(MIGRATIONS)


def version(db: apsw.Connection) -> int:
    return int(db.execute("PRAGMA user_version").get)


def migrate(db: apsw.Connection) -> None:
    """Migrates the file to `CURRENT`. The caller has checked that the file is not newer."""
    for number, step in enumerate(MIGRATIONS, start=1):
        if number <= version(db):
            continue
        with db:
            step(db)
            db.execute(f"PRAGMA user_version = {number}")
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


# Tables with a text key and short rows have no rowid, which saves a second tree per insertion. Rows that are looked up
# only while something is open (waiting messages, open turns, live sessions) have a partial index, which contains only
# the open rows. Indexes that begin with `session` also serve the cascades: without them, a delete would scan the table.
_V1 = (
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO meta VALUES('indexed', 0)",
    """CREATE TABLE principals(
        id TEXT PRIMARY KEY, name TEXT UNIQUE NOT NULL, role TEXT NOT NULL, agents TEXT, created REAL NOT NULL)""",
    """CREATE TABLE keys(
        id TEXT PRIMARY KEY, principal TEXT NOT NULL REFERENCES principals(id) ON DELETE CASCADE, kind TEXT NOT NULL,
        digest BLOB UNIQUE NOT NULL, label TEXT NOT NULL DEFAULT '', created REAL NOT NULL, expires REAL, used REAL,
        revoked REAL)""",
    "CREATE INDEX keys_principal ON keys(principal)",
    "CREATE TABLE prefixes(id BLOB PRIMARY KEY, body BLOB NOT NULL)",
    """CREATE TABLE sessions(
        id TEXT PRIMARY KEY, principal TEXT NOT NULL, channel TEXT NOT NULL, name TEXT, kind TEXT NOT NULL,
        agent TEXT NOT NULL, title TEXT NOT NULL DEFAULT '', extra TEXT NOT NULL DEFAULT '', prefix BLOB,
        encoder INTEGER NOT NULL DEFAULT 0, parent TEXT, created REAL NOT NULL, active REAL NOT NULL,
        version INTEGER NOT NULL DEFAULT 0, ended REAL, end_reason TEXT)""",
    "CREATE UNIQUE INDEX sessions_name ON sessions(principal, name) WHERE ended IS NULL AND name IS NOT NULL",
    "CREATE INDEX sessions_activity ON sessions(principal, active)",
    "CREATE INDEX sessions_live ON sessions(kind, active) WHERE ended IS NULL",
    "CREATE INDEX sessions_ended ON sessions(ended) WHERE ended IS NOT NULL",
    "CREATE INDEX sessions_prefix ON sessions(prefix) WHERE prefix IS NOT NULL",
    """CREATE TABLE turns(
        id TEXT PRIMARY KEY, session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, number INTEGER NOT NULL,
        state TEXT NOT NULL, channel TEXT NOT NULL, call BLOB NOT NULL, on_disconnect TEXT NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0, accepted REAL NOT NULL, started REAL, finished REAL,
        finish TEXT NOT NULL DEFAULT '', error BLOB, input INTEGER NOT NULL DEFAULT 0,
        cached INTEGER NOT NULL DEFAULT 0, output INTEGER NOT NULL DEFAULT 0,
        steps INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX turns_number ON turns(session, number)",
    "CREATE INDEX turns_open ON turns(session, number, state) WHERE state IN ('queued', 'running')",
    """CREATE TABLE messages(
        id INTEGER PRIMARY KEY, session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, turn TEXT, seq INTEGER,
        step TEXT, role TEXT NOT NULL, packed INTEGER NOT NULL DEFAULT 0, undone REAL, at REAL NOT NULL,
        body BLOB NOT NULL)""",
    "CREATE UNIQUE INDEX messages_seq ON messages(session, seq)",
    "CREATE UNIQUE INDEX messages_step ON messages(turn, step) WHERE step IS NOT NULL",
    "CREATE INDEX messages_waiting ON messages(turn) WHERE seq IS NULL",
    """CREATE TABLE intents(
        turn TEXT NOT NULL, step TEXT NOT NULL, tool TEXT NOT NULL, at REAL NOT NULL,
        PRIMARY KEY(turn, step)) WITHOUT ROWID""",
    """CREATE TABLE receipts(
        principal TEXT NOT NULL, source TEXT NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL, turn TEXT NOT NULL,
        at REAL NOT NULL, expires REAL NOT NULL, outcome BLOB, PRIMARY KEY(principal, source, key)) WITHOUT ROWID""",
    "CREATE INDEX receipts_turn ON receipts(turn)",
    "CREATE INDEX receipts_expires ON receipts(expires)",
    """CREATE TABLE settings(
        session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, key TEXT NOT NULL, value BLOB NOT NULL,
        source TEXT NOT NULL, at REAL NOT NULL, expires REAL, PRIMARY KEY(session, key)) WITHOUT ROWID""",
    """CREATE TABLE approvals(
        id TEXT PRIMARY KEY, session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, turn TEXT,
        digest BLOB NOT NULL, action BLOB NOT NULL, state TEXT NOT NULL, asked REAL NOT NULL, expires REAL,
        answered REAL, answered_by TEXT)""",
    "CREATE INDEX approvals_session ON approvals(session, state)",
    "CREATE INDEX approvals_pending ON approvals(expires) WHERE state = 'pending'",
    """CREATE TABLE endings(
        session TEXT NOT NULL, hook TEXT NOT NULL, done REAL, PRIMARY KEY(session, hook)) WITHOUT ROWID""",
    "CREATE INDEX endings_pending ON endings(session, hook) WHERE done IS NULL",
    """CREATE TABLE outbox(
        id TEXT PRIMARY KEY, session TEXT, turn TEXT, channel TEXT NOT NULL, target TEXT NOT NULL, body BLOB NOT NULL,
        state TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, created REAL NOT NULL, due REAL NOT NULL,
        expires REAL NOT NULL, external TEXT, error TEXT)""",
    "CREATE INDEX outbox_due ON outbox(due) WHERE state IN ('prepared', 'unknown')",
    "CREATE INDEX outbox_session ON outbox(session)",
    """CREATE TABLE usage(
        id INTEGER PRIMARY KEY, session TEXT, principal TEXT, agent TEXT NOT NULL, channel TEXT NOT NULL,
        model TEXT NOT NULL, turn TEXT, at REAL NOT NULL, input INTEGER NOT NULL, cached INTEGER NOT NULL,
        output INTEGER NOT NULL)""",
    "CREATE INDEX usage_session ON usage(session) WHERE session IS NOT NULL",
    """CREATE VIRTUAL TABLE messages_text USING fts5(
        text, content='', contentless_delete=1, detail=none, tokenize='unicode61 remove_diacritics 2')""",
)

# An approval of the first format has no step. Its unique id is used instead.
_V2 = (
    """CREATE TABLE notices(
        id INTEGER PRIMARY KEY, session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, text TEXT NOT NULL,
        at REAL NOT NULL)""",
    "CREATE INDEX notices_session ON notices(session)",
    "ALTER TABLE approvals RENAME TO approvals_1",
    "DROP INDEX approvals_session",
    "DROP INDEX approvals_pending",
    """CREATE TABLE approvals(
        id TEXT PRIMARY KEY, session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, turn TEXT NOT NULL,
        step TEXT NOT NULL, kind TEXT NOT NULL, tool TEXT NOT NULL, digest BLOB NOT NULL, summary TEXT NOT NULL,
        choices BLOB, may_answer TEXT NOT NULL, state TEXT NOT NULL, asked REAL NOT NULL, expires REAL, answer TEXT,
        answered_by TEXT, answered_at REAL)""",
    """INSERT INTO approvals
        SELECT a.id, session, coalesce(turn, ''), a.id, 'approval', '', digest, CAST(action AS TEXT), NULL, principal,
            iif(state = 'pending', 'open', state), asked, expires, NULL, answered_by, answered
        FROM approvals_1 AS a JOIN sessions ON sessions.id = session""",
    "DROP TABLE approvals_1",
    "CREATE UNIQUE INDEX approvals_step ON approvals(turn, step)",
    "CREATE INDEX approvals_session ON approvals(session, asked)",
    "CREATE INDEX approvals_open ON approvals(session) WHERE state = 'open'",
    "CREATE INDEX approvals_answerer ON approvals(may_answer, asked) WHERE state = 'open'",
    "CREATE INDEX approvals_expires ON approvals(expires) WHERE state = 'open'",
    """CREATE TABLE processes(
        id TEXT PRIMARY KEY, session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, name TEXT NOT NULL,
        command TEXT NOT NULL, backend TEXT NOT NULL, pid INTEGER, start_ticks INTEGER, state TEXT NOT NULL,
        exit_code INTEGER, restart INTEGER NOT NULL, notify INTEGER NOT NULL, started REAL NOT NULL, ended REAL,
        log TEXT NOT NULL, told INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID""",
    "CREATE INDEX processes_session ON processes(session, started)",
    "CREATE UNIQUE INDEX processes_name ON processes(session, name) WHERE state IN ('starting', 'running')",
    "CREATE INDEX processes_live ON processes(id) WHERE state IN ('starting', 'running')",
    "CREATE INDEX processes_untold ON processes(session, ended) WHERE ended IS NOT NULL AND told = 0",
    "CREATE INDEX processes_restart ON processes(id) WHERE state = 'lost' AND restart = 1",
    """CREATE TABLE workspaces(
        session TEXT PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE, backend TEXT NOT NULL, folder TEXT NOT NULL,
        project INTEGER NOT NULL, state TEXT NOT NULL, trashed_at REAL, packed INTEGER NOT NULL DEFAULT 0,
        shell_state BLOB)""",
    "CREATE INDEX workspaces_trash ON workspaces(trashed_at) WHERE state = 'trash'",
    """CREATE TABLE spooled(
        id TEXT NOT NULL, session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, turn TEXT,
        kind TEXT NOT NULL, bytes INTEGER NOT NULL, lines INTEGER NOT NULL, media_type TEXT NOT NULL,
        name TEXT NOT NULL, created REAL NOT NULL, PRIMARY KEY(id, session)) WITHOUT ROWID""",
    "CREATE INDEX spooled_session ON spooled(session, created, id, bytes)",
)

# These indexes are for the maintenance timer. Each contains only rows that will be due, so a lookup costs no more than
# what it finds.
_V3 = (
    "ALTER TABLE prefixes ADD COLUMN packed INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE sessions ADD COLUMN extra_length INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE sessions ADD COLUMN extra_digest BLOB NOT NULL DEFAULT X''",
    "CREATE INDEX settings_expires ON settings(expires) WHERE expires IS NOT NULL",
    "CREATE INDEX keys_passing ON keys(kind, coalesce(revoked, expires)) WHERE kind IN ('code', 'cookie')",
    "CREATE INDEX outbox_over ON outbox(created) WHERE state IN ('sent', 'dead')",
    "CREATE INDEX outbox_sending ON outbox(id) WHERE state = 'sending'",
)

_V4 = (
    "ALTER TABLE processes ADD COLUMN channel TEXT NOT NULL DEFAULT ''",
    "UPDATE turns SET channel = (SELECT channel FROM sessions WHERE sessions.id = turns.session)"
    " WHERE state IN ('queued', 'running') AND channel = 'process'",
    "DROP INDEX processes_untold",
    "CREATE INDEX processes_untold ON processes(id) WHERE ended IS NOT NULL AND told = 0",
    "ALTER TABLE workspaces ADD COLUMN trash_bytes INTEGER",
)

_V5 = (
    *(
        f"ALTER TABLE {table} ADD COLUMN {column}"
        for table in ("usage", "turns")
        for column in (
            "written INTEGER NOT NULL DEFAULT 0",
            "reasoning INTEGER NOT NULL DEFAULT 0",
            "cost INTEGER NOT NULL DEFAULT 0",
            "job TEXT NOT NULL DEFAULT ''",
        )
    ),
    "ALTER TABLE usage ADD COLUMN estimated INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE turns ADD COLUMN notices BLOB",
    """CREATE TABLE spent(
        hour INTEGER NOT NULL, principal TEXT NOT NULL, agent TEXT NOT NULL, job TEXT NOT NULL, tokens INTEGER NOT NULL,
        cost INTEGER NOT NULL, PRIMARY KEY(hour, principal, agent, job)) WITHOUT ROWID""",
    "CREATE INDEX spent_principal ON spent(principal, hour) WHERE principal <> ''",
    "CREATE INDEX spent_agent ON spent(agent, hour) WHERE agent <> ''",
    "CREATE INDEX spent_job ON spent(job, hour) WHERE job <> ''",
    """INSERT INTO spent(hour, principal, agent, job, tokens, cost)
        SELECT CAST(at / 3600 AS INTEGER), coalesce(principal, ''), agent, '', sum(input + output), 0 FROM usage
        WHERE model <> 'demo' GROUP BY 1, 2, 3""",
    "INSERT INTO meta VALUES('spent', (SELECT coalesce(max(id), 0) FROM usage))",
)

# A summary covers the positions `first` to `last`, and is itself covered by the summary with number `parent`. At the
# positions of an elision, long content (`payload`) or content without text (`media`) is shown as an excerpt. The search
# index numbers the sessions; one principal's sessions have adjacent numbers (`store/tables/search/search.py`).
_V6 = (
    """CREATE TABLE summaries(
        session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, number INTEGER NOT NULL,
        level INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, parent INTEGER, state TEXT NOT NULL,
        how TEXT NOT NULL, model TEXT NOT NULL, at REAL NOT NULL, packed INTEGER NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY(session, number)) WITHOUT ROWID""",
    "CREATE INDEX summaries_shown ON summaries(session, first) WHERE parent IS NULL",
    """CREATE TABLE elisions(
        session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, first INTEGER NOT NULL, last INTEGER NOT NULL,
        kind TEXT NOT NULL, characters INTEGER NOT NULL, at REAL NOT NULL,
        PRIMARY KEY(session, last, first, kind)) WITHOUT ROWID""",
    """CREATE TABLE notes(
        id INTEGER PRIMARY KEY AUTOINCREMENT, about TEXT NOT NULL, whose TEXT NOT NULL, text TEXT NOT NULL,
        author TEXT NOT NULL, source TEXT NOT NULL, session TEXT, at REAL NOT NULL)""",
    "CREATE INDEX notes_whose ON notes(about, whose, id)",
    """CREATE TABLE note_changes(
        id INTEGER PRIMARY KEY AUTOINCREMENT, about TEXT NOT NULL, whose TEXT NOT NULL, text TEXT NOT NULL,
        session TEXT, at REAL NOT NULL)""",
    "CREATE INDEX note_changes_whose ON note_changes(about, whose, id)",
    "ALTER TABLE sessions ADD COLUMN memory_seen INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE endings ADD COLUMN tries INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE turns ADD COLUMN within TEXT",
    "ALTER TABLE turns ADD COLUMN depth INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE turns ADD COLUMN conversation TEXT",
    "ALTER TABLE turns ADD COLUMN estimated INTEGER",
    "CREATE INDEX turns_within ON turns(within) WHERE within IS NOT NULL",
    """CREATE TABLE indexed_extents(
        principal TEXT NOT NULL, first INTEGER NOT NULL UNIQUE, size INTEGER NOT NULL, used INTEGER NOT NULL,
        PRIMARY KEY(principal, first)) WITHOUT ROWID""",
    """CREATE TABLE indexed_sessions(
        session TEXT PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE, number INTEGER NOT NULL UNIQUE)
        WITHOUT ROWID""",
    "INSERT INTO messages_text(messages_text) VALUES('delete-all')",
    "UPDATE meta SET value = 0 WHERE key = 'indexed'",
)

_V7 = (
    "ALTER TABLE intents ADD COLUMN read_only INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE intents ADD COLUMN repeatable INTEGER",
)

_V9 = (
    "UPDATE principals SET role = 'member' WHERE role = 'user'",
    """CREATE TABLE audit(
        id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL, principal TEXT, session TEXT,
        subject TEXT NOT NULL, outcome TEXT NOT NULL, digest BLOB)""",
    "CREATE INDEX audit_at ON audit(at)",
    "ALTER TABLE keys ADD COLUMN page_digest BLOB",
    "DELETE FROM keys WHERE kind = 'cookie'",
    "CREATE INDEX audit_configuration ON audit(id) WHERE kind = 'configuration' AND session IS NULL",
    """CREATE TABLE audit_state(
        key BLOB NOT NULL, kept_since REAL NOT NULL, failed_hour INTEGER NOT NULL, failed INTEGER NOT NULL)""",
    "INSERT INTO audit_state VALUES(randomblob(32), 0, 0, 0)",
    """CREATE TRIGGER audit_unchanged BEFORE UPDATE ON audit
        BEGIN SELECT RAISE(ABORT, 'rows of the audit log are never changed'); END""",
    """CREATE TRIGGER audit_retained BEFORE DELETE ON audit WHEN old.at >= (SELECT kept_since FROM audit_state)
        BEGIN SELECT RAISE(ABORT, 'rows of the audit log are kept for their retention'); END""",
    "ALTER TABLE intents ADD COLUMN digest BLOB",
    # Principals other than the owner whose sessions could write to a project folder, and the files in such folders that
    # may be included in prompts.
    "CREATE TABLE project_writers(folder TEXT NOT NULL, principal TEXT NOT NULL, PRIMARY KEY(folder, principal))"
    " WITHOUT ROWID",
    "CREATE TABLE trusted_files(path TEXT PRIMARY KEY, digest BLOB NOT NULL, at REAL NOT NULL) WITHOUT ROWID",
    """INSERT INTO project_writers SELECT DISTINCT folder, sessions.principal FROM workspaces
        JOIN sessions ON sessions.id = workspaces.session LEFT JOIN principals ON principals.id = sessions.principal
        WHERE project AND backend <> 'ssh' AND coalesce(principals.role, '') <> 'owner'""",
)

# Before an insert without a number, `new.id` is -1.
_V10 = """CREATE TRIGGER audit_appended BEFORE INSERT ON audit WHEN new.id <> -1
    BEGIN SELECT RAISE(ABORT, 'rows of the audit log are appended'); END"""

# A language is a number in `store/analysis.py`; 1 is English. Blocks keep the numbers that the sessions had.
_V14 = (
    """CREATE TABLE index_blocks(
        number INTEGER PRIMARY KEY, session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        part INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX index_blocks_session ON index_blocks(session, part)",
    "INSERT INTO index_blocks SELECT number, session, 0 FROM indexed_sessions",
    "DROP TABLE indexed_sessions",
    "ALTER TABLE indexed_extents ADD COLUMN entries INTEGER NOT NULL DEFAULT 0",
    """CREATE VIRTUAL TABLE message_terms USING fts5(
        terms, content='', contentless_delete=1, detail=none, tokenize='unicode61 remove_diacritics 2')""",
    """CREATE VIRTUAL TABLE session_titles USING fts5(
        words, content='', contentless_delete=1, detail=none, tokenize='unicode61 remove_diacritics 2')""",
    "CREATE TABLE index_unplaced(message INTEGER PRIMARY KEY REFERENCES messages(id) ON DELETE CASCADE)",
    """CREATE TABLE index_retitled(
        session TEXT PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE) WITHOUT ROWID""",
    "INSERT INTO index_retitled SELECT id FROM sessions WHERE title <> '' OR name IS NOT NULL",
    "INSERT INTO meta SELECT 'former', value FROM meta WHERE key = 'indexed'",
    "INSERT INTO meta VALUES('index_language', 1)",
)

_V15 = (
    "ALTER TABLE approvals ADD COLUMN offer BLOB",
    "ALTER TABLE approvals ADD COLUMN scope TEXT NOT NULL DEFAULT 'call'",
    """CREATE TABLE approval_rules(
        id TEXT PRIMARY KEY, session TEXT REFERENCES sessions(id) ON DELETE CASCADE, principal TEXT NOT NULL,
        agent TEXT NOT NULL, tool TEXT NOT NULL, fingerprint BLOB NOT NULL, digest BLOB, offer BLOB NOT NULL,
        summary TEXT NOT NULL, approval TEXT NOT NULL, given_by TEXT NOT NULL, given REAL NOT NULL, used REAL,
        uses INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID""",
    "CREATE INDEX approval_rules_tool ON approval_rules(principal, agent, tool)",
    "CREATE INDEX approval_rules_session ON approval_rules(session) WHERE session IS NOT NULL",
)

_V16 = (
    "CREATE TABLE index_words(term TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE index_sweep(term TEXT NOT NULL, again INTEGER NOT NULL)",
    "CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, message_terms, row)",
    "INSERT INTO index_words SELECT term FROM temp.vocabulary",
    "DROP TABLE temp.vocabulary",
)

# A block is in `vector_blocks` once it has messages to embed; `upto` is the last position that has been embedded.
_V18 = (
    "CREATE TABLE message_vectors(entry INTEGER PRIMARY KEY, model INTEGER NOT NULL, vector BLOB NOT NULL)",
    """CREATE TABLE vector_blocks(
        block INTEGER PRIMARY KEY REFERENCES index_blocks(number) ON DELETE CASCADE, upto INTEGER NOT NULL,
        due REAL)""",
    "CREATE INDEX vector_blocks_due ON vector_blocks(due) WHERE due IS NOT NULL",
    """CREATE TABLE vector_models(
        number INTEGER NOT NULL, identity TEXT NOT NULL, dimensions INTEGER NOT NULL, bytes INTEGER NOT NULL)""",
    "INSERT INTO vector_models VALUES(0, '', 0, 0)",
)
