"""The gateway is killed while it indexes the messages of an earlier store again."""

import contextlib
import signal
import time
from pathlib import Path

import apsw

from tests.gateway.process import WAIT, GatewayProcess, gateway
from tidegate.store import migrations
from tidegate.store.rows import pack
from tidegate.store.sqlite.connections import connect
from tidegate.values import Message

DEMO = '[models.main]\napi = "demo"\n[agents.main]\nmodel = "main"\n'
SESSIONS, MESSAGES = 12, 350
"""About as many as one run of the background task indexes."""
EVERY = 50
"""One of so many messages mentions a heron."""
FORMAT = 12
"""The last format with the earlier index."""


def test_indexing_again_survives_kills_and_searches_find_everything_meanwhile(tmp_path: Path) -> None:
    """L18, F4, X06: before, between and after the kills; nothing is indexed twice or left out."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(DEMO)
    earlier_store(home / "tidegate.db")
    for _ in range(2):
        with gateway(home) as running:
            begun = left(home)
            assert begun > 0
            deadline = time.monotonic() + WAIT
            while (now := left(home)) == begun:
                check_searches(running)
                assert time.monotonic() < deadline, "nothing is indexed"
            assert now > 0, "all is indexed already"
            running.signal(signal.SIGKILL)
            running.wait()
    with gateway(home) as running:
        deadline = time.monotonic() + WAIT
        while left(home):
            check_searches(running)
            assert time.monotonic() < deadline, "not all is indexed"
        check_searches(running)
        running.signal(signal.SIGTERM)
        running.wait()
    with contextlib.closing(apsw.Connection(str(home / "tidegate.db"), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        assert db.execute("SELECT count(*) FROM message_terms").get == SESSIONS * MESSAGES
        assert db.execute("SELECT sum(entries) FROM indexed_extents").get == SESSIONS * MESSAGES
        found = db.execute("SELECT count(*) FROM message_terms WHERE message_terms MATCH 'heron'").get
        assert found == SESSIONS * MESSAGES // EVERY
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name LIKE 'messages_text%'").get == 0


def check_searches(running: GatewayProcess) -> None:
    """Every conversation is found by what was said at its beginning and at its end."""
    found = running.call("GET", "/api/sessions?q=heron&limit=50")["sessions"]
    assert len(found) == SESSIONS
    for word in (f"word{EVERY}x0", f"word{MESSAGES}x{SESSIONS - 1}"):
        assert len(running.call("GET", f"/api/sessions?q={word}")["sessions"]) == 1, word


def left(home: Path) -> int:
    """The messages that only the earlier index contains."""
    with contextlib.closing(apsw.Connection(str(home / "tidegate.db"), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        db.set_busy_timeout(5_000)
        return int(db.execute("SELECT value FROM meta WHERE key = 'former'").get or 0)


def earlier_store(path: Path) -> None:
    """A completely indexed store of the earlier format, with an owner."""
    with contextlib.closing(connect(path, "process", 1 << 20)) as db:
        for number, step in enumerate(migrations.MIGRATIONS[:FORMAT], start=1):
            with db:
                step(db)
                db.execute(f"PRAGMA user_version = {number}")
                db.execute(f"PRAGMA application_id = {migrations.APPLICATION_ID}")
        with db:
            db.execute("INSERT INTO principals(id, name, role, created) VALUES('p_owner', 'owner', 'owner', 1)")
            db.execute("INSERT INTO indexed_extents VALUES('p_owner', 0, 4096, ?)", (SESSIONS,))
            for session in range(SESSIONS):
                db.execute(
                    "INSERT INTO sessions(id, principal, channel, kind, agent, created, active)"
                    " VALUES(?, 'p_owner', 'http', 'named', 'main', 1, 1)",
                    (f"s_{session}",),
                )
                db.execute("INSERT INTO indexed_sessions VALUES(?, ?)", (f"s_{session}", session))
                for seq in range(1, MESSAGES + 1):
                    said = f"word{seq}x{session} {'saw a heron' if seq % EVERY == 0 else 'saw nothing'}"
                    body, packed = pack(Message(role="user", text=said))
                    id = db.execute(
                        "INSERT INTO messages(session, seq, role, body, packed, at) VALUES(?, ?, 'user', ?, ?, 1)"
                        " RETURNING id",
                        (f"s_{session}", seq, body, packed),
                    ).get
                    db.execute("INSERT INTO messages_text(rowid, text) VALUES(?, ?)", (session << 32 | id, said))
            db.execute("UPDATE meta SET value = ? WHERE key = 'indexed'", (SESSIONS * MESSAGES,))
