"""The audit log of a real gateway: each event leaves its row, and no row holds content."""

import contextlib
import json
import socket
import threading
import time
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import apsw
import pytest

from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate
from tests.gateway.test_interrupted import OWN, begin, ended

SETTINGS = """
[models.main]
api = "demo"
[models.other]
api = "demo"
[agents.main]
model = "main"
tools = ["clock", "files", "terminal", "web", "own"]
[workspaces]
backend = "bubblewrap"
[web]
private = ["127.0.0.0/8"]
"""

CANARY = "canary7f3a"
"""Stands in every content of these tests, and in no row."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / "plugins").mkdir(parents=True)
    (folder / "plugins" / "own.py").write_text(OWN)
    (folder / "tidegate.toml").write_text(SETTINGS)
    return folder


@contextlib.contextmanager
def site() -> Iterator[int]:
    """A site at localhost that leads on to 127.0.0.1."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers["Host"].startswith("localhost"):
                self.send_response(302)
                self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/{CANARY}")  # type: ignore[attr-defined]
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(CANARY.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def events(running: GatewayProcess, **query: str) -> list[dict[str, Any]]:
    """What the log tells, the oldest first."""
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return list(reversed(running.call("GET", f"/api/audit?{asked}")["events"]))


def kinds_and_outcomes(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["kind"], event["outcome"]) for event in found]


def log_in(running: GatewayProcess, code: str) -> dict[str, str]:
    """The headers of a browser that signs in: its cookie and its page token."""
    request = Request(f"{running.address}/api/login", json.dumps({"code": code}).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    request.add_header("Origin", running.address)
    with urlopen(request, timeout=WAIT) as response:
        token = json.load(response)["page_token"]
        return {"Cookie": str(response.headers["Set-Cookie"]).split(";")[0], "X-Page-Token": token}


def refuse_login(running: GatewayProcess) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        log_in(running, CANARY)
    refused.value.close()
    assert refused.value.code == 401


def log_out(running: GatewayProcess, browser: dict[str, str]) -> None:
    headers = {**browser, "Origin": running.address, "Content-Type": "application/json"}
    urlopen(Request(f"{running.address}/api/logout", b"{}", headers, method="POST"), timeout=WAIT).close()


def stored(home: Path) -> list[tuple[Any, ...]]:
    """The rows as they lie in the file of a gateway that has ended."""
    with contextlib.closing(apsw.Connection(str(home / "tidegate.db"))) as db:
        return db.execute("SELECT * FROM audit ORDER BY id").fetchall()


def approve(running: GatewayProcess, decision: str) -> str:
    """Answers the one thing that is asked, once it is; its id."""
    deadline = time.monotonic() + WAIT
    while not (open_ := running.call("GET", "/api/approvals")["approvals"]):
        assert time.monotonic() < deadline, "nothing was asked"
        time.sleep(0.005)
    id = str(open_[0]["id"])
    running.call("POST", f"/api/approvals/{id}", {"decision": decision, "text": CANARY})
    return id


def test_each_event_leaves_a_row_and_none_holds_content(home: Path) -> None:
    """X24: sign-in, sign-out, keys, people, approvals, tool calls with effect, hosts, settings, configuration. The
    canary is in every message, command, address, file, label, answer and code, and in no column of any row."""
    with gateway(home) as running, site() as port:
        assert kinds_and_outcomes(events(running)) == [
            ("principal", "added"), ("key", "added"), ("configuration", "changed"), ("key", "added"),
        ]  # fmt: skip
        seen = len(events(running))

        def since() -> list[tuple[str, str]]:
            nonlocal seen
            found = kinds_and_outcomes(events(running))[seen:]
            seen += len(found)
            return found

        running.say(f"say {CANARY}", CANARY)
        running.say("what time is it", CANARY)
        assert since() == [], "a plain turn and a tool that only reads leave none"

        browser = log_in(running, running.link.partition("#code=")[2])
        refuse_login(running)
        log_out(running, browser)
        assert since() == [("sign_in", "done"), ("sign_in", "failed"), ("sign_out", "revoked")]

        made = running.call("POST", "/api/keys", {"name": f"anna {CANARY}", "label": CANARY})
        running.call("DELETE", f"/api/keys/{made['id']}")
        assert since() == [("principal", "added"), ("key", "added"), ("key", "revoked")]

        running.say(f"run echo {CANARY} > {CANARY}", CANARY)
        running.say(f'call write_file {{"path": "{CANARY}", "content": "{CANARY}"}}', CANARY)
        running.say(f'call read_file {{"path": "{CANARY}"}}', CANARY)
        running.say(f'call edit_file {{"path": "{CANARY}", "old": "nothing", "new": "{CANARY}"}}', CANARY)
        assert since() == [("tool", "begun"), ("tool", "done")] * 2 + [("tool", "begun"), ("tool", "failed")]

        running.say(f'call web_fetch {{"url": "http://localhost:{port}/?q={CANARY}"}}', CANARY)
        assert since() == [("tool", "begun"), ("tool", "done"), ("egress", "done"), ("egress", "done")]
        for host in ("localhost", "127.0.0.1", "LOCALHOST."):
            assert len(events(running, host=host)) == 1
        assert events(running, host=f"{CANARY}.example") == []

        text = f'call transfer {{"to": "{home.parent / CANARY}"}}'
        refused = running.call("POST", "/api/messages", {"text": text, "attended": True})
        id = approve(running, "denied")
        ended(running, refused["turn"])
        assert since() == [("approval", "asked"), ("approval", "denied"), ("tool", "denied")]
        asked, answered, call = events(running)[-3:]
        assert asked["subject"] == answered["subject"] == f"{id} {call['subject']}"
        assert asked["digest"] == answered["digest"] == call["digest"], "it is the same action"
        assert asked["session"] == call["session"] == refused["session"]
        assert {event["name"] for event in (asked, answered, call)} == {"owner"}

        running.call("POST", "/api/messages", {"text": "/model other", "session": refused["session"]})
        running.call("DELETE", f"/api/sessions/{refused['session']}/settings/model")
        (home / "tidegate.toml").write_text(
            SETTINGS.replace('model = "main"\n', f'model = "main"\nprompt = "{CANARY}"\n')
        )
        assert since() == [("setting", "set"), ("setting", "cleared")]

        running.call("DELETE", f"/api/sessions/{refused['session']}")
        assert events(running, session=refused["session"])[0] == asked, "they outlive the conversation"
        running.process.kill()
        running.wait()
    with gateway(home) as running:
        assert kinds_and_outcomes(events(running))[-2:] == [("configuration", "changed"), ("key", "added")]
        running.call("POST", f"/api/sessions/{named(running, CANARY)}/reload")
        assert kinds_and_outcomes(events(running))[-1] == ("configuration", "reloaded")
        running.process.kill()
        running.wait()
    with gateway(home) as running:
        assert kinds_and_outcomes(events(running, kind="configuration"))[-1] == ("configuration", "reloaded"), (
            "nothing changed"
        )
    rows = stored(home)
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        for value in row:
            raw = value if isinstance(value, bytes) else str(value).encode()
            assert CANARY.encode() not in raw and b"localhost" not in raw and b"127.0.0.1" not in raw, row


def named(running: GatewayProcess, name: str) -> str:
    views = running.call("GET", "/api/sessions?limit=200")["sessions"]
    return str(next(view["id"] for view in views if view["name"] == name))


def test_kill_9_loses_no_row_of_a_call_that_has_begun(home: Path) -> None:
    """X24, F4: the effect is on disk, and so is its row; the next start records that it was interrupted."""
    (home / "tidegate.toml").write_text(SETTINGS.replace("[workspaces]", 'approvals = "autonomous"\n[workspaces]'))
    with gateway(home) as running:
        deeds = begin(running)
        running.process.kill()
        running.wait()
    begun = {(row[3], row[4], row[5], row[6]) for row in stored(home) if row[2] == "tool"}
    assert {(session, outcome) for _, session, _, outcome in begun} == {(deed.session, "begun") for deed in deeds}
    with gateway(home) as running:
        for deed in deeds:
            ended(running, deed.turn)
            first, second = events(running, session=deed.session, kind="tool")
            assert (first["outcome"], second["outcome"]) == ("begun", "interrupted")
            assert (first["digest"], first["subject"]) == (second["digest"], second["subject"])


def test_a_stopped_call_is_recorded_as_interrupted(home: Path) -> None:
    """X24, P05: in the transaction that ends its turn."""
    (home / "tidegate.toml").write_text(SETTINGS.replace("[workspaces]", 'approvals = "autonomous"\n[workspaces]'))
    with gateway(home) as running:
        for deed in begin(running):
            running.call("POST", f"/api/sessions/{deed.session}/stop")
            ended(running, deed.turn)
            first, second = events(running, session=deed.session)
            assert (first["outcome"], second["outcome"]) == ("begun", "interrupted")
            assert first["digest"] == second["digest"] is not None


def test_hosts_that_a_stopped_call_had_contacted_are_recorded(home: Path) -> None:
    """X24: a stop hides nothing."""
    with gateway(home) as running, socket.create_server(("127.0.0.1", 0)) as silent:
        text = f'call web_fetch {{"url": "http://localhost:{silent.getsockname()[1]}/"}}'
        accepted = running.call("POST", "/api/messages", {"text": text})
        silent.settimeout(WAIT)
        connection, _ = silent.accept()
        with connection:
            running.call("POST", f"/api/sessions/{accepted['session']}/stop")
            ended(running, accepted["turn"])
        assert kinds_and_outcomes(events(running, session=accepted["session"])) == [
            ("tool", "begun"), ("tool", "interrupted"), ("egress", "interrupted"),
        ]  # fmt: skip
        assert len(events(running, host="localhost")) == 1


def test_wrong_codes_do_not_fill_the_log(home: Path) -> None:
    """X24: twenty in an hour leave a row each (an hour may end meanwhile); the rest are counted."""
    with gateway(home) as running:
        for _ in range(60):
            refuse_login(running)
        failed = events(running, kind="sign_in")
        assert len(failed) in range(20, 42) and {event["outcome"] for event in failed} == {"failed"}


def test_only_the_owner_reads_the_log(home: Path) -> None:
    """X24, X06: a member is refused, whatever they ask for."""
    with gateway(home) as running:
        key = running.call("POST", "/api/keys", {"name": "anna"})["key"]
        with pytest.raises(urllib.error.HTTPError) as refused:
            running.call("GET", "/api/audit", Authorization=f"Bearer {key}")
        refused.value.close()
        assert refused.value.code == 403
        assert running.call("GET", "/api/status")["audit"] == {"rows": 3}, "when the sessions were opened"
        assert "tidegate_audit_rows" in running.read("GET", "/metrics").decode()
        assert "audit log:" in tidegate("status", home=home).stdout
