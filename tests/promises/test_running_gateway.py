"""Promises that need a running gateway with its timers, its log and other processes."""

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import anyio
import pytest
from anyio import to_thread

from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate
from tidegate.gateway import ask, holder_of
from tidegate.gateway.gateway import Gateway


def _until(running: GatewayProcess, true: Callable[[Any], bool]) -> None:
    """Waits until the status satisfies the condition. Each check is a round trip, so this does not spin."""
    deadline = time.monotonic() + WAIT
    while not true(status := ask(running.home, {"do": "status"})):
        assert time.monotonic() < deadline, status


def _home(tmp_path: Path, toml: str) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(toml)
    return home


def test_the_maintenance_timer_unloads_idle_residents_and_spares_a_running_turn(tmp_path: Path) -> None:
    """A7, B5: automatically; a turn that takes longer than the idle time keeps its resident."""
    home = _home(tmp_path, "[limits]\nidle_ttl = 1\nshutdown_seconds = 1\n")
    with gateway(home) as running:
        running.say("say one", "idle")
        slow = threading.Thread(target=_say, args=(running, "slow " + "tide " * 5000, "busy"))
        slow.start()
        _until(running, lambda now: now["turns"]["running"] == 1 and now["sessions"]["residents"] == 2)
        _until(running, lambda now: now["sessions"]["unloads"].get("idle") == 1)
        now = ask(home, {"do": "status"})
        assert (now["sessions"]["residents"], now["sessions"]["present"], now["turns"]["running"]) == (1, 1, 1)
        assert running.say("say again", "idle") != ""
        _until(running, lambda now: now["sessions"]["unloads"].get("idle") == 2)
        assert ask(home, {"do": "status"})["turns"]["running"] == 1
        running.signal(signal.SIGTERM)
        running.wait()
        slow.join()


def _say(running: GatewayProcess, text: str, session: str | None) -> None:
    try:
        running.say(text, session)
    except OSError:
        return


def _locks(pid: int, path: Path) -> set[str]:
    """The locks that the process holds on a file, from the kernel."""
    inode = f":{path.stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return {" ".join(line.split()[1:4]) for line in lines if f" {pid} " in line and inode in line}


def test_other_commands_take_neither_the_gateways_lock_nor_its_database_log(tmp_path: Path) -> None:
    """L18: after doctor, status, listings, exports, checks and a refused start the database is the same file with the
    same log, still locked by the gateway, and still works."""
    home = _home(tmp_path, "")
    database, log = home / "tidegate.db", home / "tidegate.db-wal"
    with gateway(home) as running:
        running.say("say one", "talk")
        before = (database.stat().st_ino, log.stat().st_ino, _locks(running.pid, home / "lock"))
        (session,) = running.call("GET", "/api/sessions")["sessions"]
        for words in (
            ("doctor",),
            ("status", "--memory"),
            ("sessions", "list"),
            ("sessions", "show", session["id"]),
            ("sessions", "export", session["id"]),
            ("keys", "list"),
            ("config", "check"),
            ("config", "show"),
            ("up", "--port", "0"),
            ("doctor",),
        ):
            run = tidegate(*words, home=home)
            assert run.returncode == (1 if words[0] == "up" else 0), (words, run.stderr)
            opened = {str(entry.readlink()) for entry in Path(f"/proc/{running.pid}/fd").iterdir()}
            assert not [path for path in opened if "deleted" in path and "tidegate.db" in path], words
            assert (database.stat().st_ino, log.stat().st_ino, _locks(running.pid, home / "lock")) == before, words
            assert running.say(f"say {words[0]}", "talk") != ""
        assert ask(home, {"do": "check"}, within=30)["problems"] == []
        rows = running.call("GET", f"/api/sessions/{session['id']}/messages")["messages"]
        assert len(rows) == 2 * 11
        running.process.kill()
        running.wait()
    with gateway(home) as running:
        assert len(running.call("GET", f"/api/sessions/{session['id']}/messages")["messages"]) == 2 * 11


CANARIES = ("cormorant", "kittiwake", "guillemot", "razorbill", "whimbrel", "turnstone", "dunlin", "sanderling")


@pytest.mark.parametrize("format", ["text", "json"])
def test_the_log_contains_no_message_content(tmp_path: Path, format: str) -> None:
    """X16, X15: neither messages nor answers nor names, titles, settings and arguments, through every entry point, in
    success and failure, at the most verbose level; nor the key."""
    model = '[models.gone]\napi = "openai-chat"\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\nretries = 0\n'
    main = '[models.main]\napi = "demo"\n[agents.main]\nmodel = "main"\ntools = ["clock", "files"]\n'
    broken = '[agents.broken]\nmodel = "gone"\n'
    home = _home(tmp_path, f'{model}{main}{broken}[log]\nlevel = "debug"\nformat = "{format}"\n')
    with gateway(home) as running:
        chat = "/v1/chat/completions"

        def post(path: str, body: Any, **headers: str) -> None:
            try:
                running.call("POST", path, body, **headers)
            except HTTPError as refused:
                refused.close()
            except json.JSONDecodeError:  # a stream
                return

        said = [{"role": "user", "content": "say cormorant"}]
        post(chat, {"model": "main", "messages": said})
        post(chat, {"model": "main", "messages": said, "stream": True}, **{"X-Session-Id": "kittiwake"})
        post(chat, {"model": "main", "messages": [{"role": "system", "content": "guillemot"}, *said]})
        post(chat, {"model": "broken", "messages": said}, **{"X-Session-Id": "kittiwake 2"})
        post(chat, {"model": "cormorant", "messages": said})
        post(chat, {"model": "main", "messages": "cormorant"})
        post(chat, {"model": "main", "messages": [{"role": "cormorant", "content": "cormorant"}]})
        post(chat, {"model": "main", "messages": said, "metadata": {"razorbill": "razorbill"}})
        post(chat, {"model": "main", "messages": said}, **{"Idempotency-Key": "whimbrel"})
        post(
            chat,
            {"model": "main", "messages": [{"role": "user", "content": "other"}]},
            **{"Idempotency-Key": "whimbrel"},
        )
        post("/api/messages", {"text": "read file turnstone.txt"})
        (session, *_) = running.call("GET", "/api/sessions")["sessions"]
        post("/api/messages", {"text": "/title dunlin", "session": session["id"]})
        post("/api/messages", {"text": "/model dunlin", "session": session["id"]})
        post("/api/messages", {"text": "/dunlin", "session": session["id"]})
        post("/api/login", {"code": "sanderling"})
        with pytest.raises(HTTPError) as refused:
            running.call("GET", "/api/sessions/sanderling?query=sanderling")
        refused.value.close()
        key = (home / "api-key").read_text().strip()
        assert running.call("GET", "/api/status")["turns"]["failed"] == 1
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
    text = running.log.read_text()
    assert "a turn failed" in text and "stopping" in text
    assert [word for word in CANARIES if word in text] == []
    assert key not in text


@pytest.mark.anyio
async def test_a_failure_to_close_one_part_keeps_nothing_else_open(tmp_path: Path) -> None:
    """F2, F1: callbacks, tasks and parts fail while the gateway is closed; the store and the lock are still released,
    and each failure is logged."""

    async def stubborn() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("a task would not end well")

    def fail() -> None:
        raise RuntimeError("a callback failed")

    home = tmp_path / "home"
    for _ in range(2):
        running = Gateway(home, port=0, say=lambda line: None)
        with anyio.fail_after(30):
            assert await running.build()
            scope = running._scope  # lint: allow the failures are planted
            scope.on_close(fail, name="the first to be closed")
            scope.child("doomed").on_close(fail, name="a part")
            scope.start(stubborn, name="stubborn")
            await anyio.lowlevel.checkpoint()
            await running.close()
        assert await to_thread.run_sync(holder_of, home) is None
        assert not (home / "tidegate.db-wal").exists()
        assert not (home / "control.sock").exists()
