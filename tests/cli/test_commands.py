"""The commands that ask a running gateway, or say that there is none."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.gateway.running import WAIT, Gateway, environment, gateway, tidegate
from tidegate import __version__
from tidegate.cli.root import root


def _json(*arguments: str, home: Path) -> Any:
    run = tidegate(*arguments, "--json", home=home)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def _session(running: Gateway, name: str, text: str = "say hello") -> str:
    running.say(text, name)
    found = running.call("GET", "/api/sessions")["sessions"]
    return next(str(view["id"]) for view in found if view["name"] == name)


def test_version_is_light(nobody: Path) -> None:
    """L22: a light question loads nothing heavy."""
    assert tidegate("version").stdout == f"tidegate {__version__}\n"
    assert json.loads(tidegate("version", "--json").stdout) == {"version": __version__}
    program = "import sys, tidegate.cli.version; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT, env=environment(), check=True
    )
    assert not set(run.stdout.split()) & {"asyncio", "msgspec", "aiohttp", "anyio", "structlog", "tidegate.config"}


def test_help_names_every_command_and_wrong_usage_is_exit_code_2() -> None:
    """F3: what one can say is found, and what one cannot is told."""
    text = tidegate("--help").stdout
    for name in ("up", "stop", "status", "chat", "sessions", "keys", "config", "doctor", "version"):
        assert f"\n  {name} " in text
        assert CliRunner().invoke(root, [name, "--help"]).exit_code == 0
    wrong = tidegate("fly")
    assert wrong.returncode == 2
    assert "No such command 'fly'" in wrong.stderr
    assert tidegate("up", "--port", "70000").returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("chat",),
        ("sessions", "list"),
        ("sessions", "show", "s_x"),
        ("sessions", "end", "s_x"),
        ("sessions", "delete", "s_x", "--yes"),
        ("sessions", "export", "s_x"),
        ("keys", "list"),
        ("keys", "add", "anna"),
        ("keys", "revoke", "k_x"),
    ],
)
def test_without_a_gateway_each_says_so_and_how_to_start_one(nobody: Path, arguments: tuple[str, ...]) -> None:
    """F3: one sentence, exit code 1."""
    run = tidegate(*arguments, home=nobody, input="")
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr == f"tidegate: No gateway runs for {nobody}: start one with `tidegate up --home {nobody}`.\n"


def test_status_says_what_it_does_and_what_it_holds(running: Gateway) -> None:
    """L99: memory is explained by kind and by owner, from one command."""
    _session(running, "status")
    status = _json("status", "--memory", home=running.home)
    assert status["pid"] == running.pid
    assert status["address"] == running.address
    assert status["turns"]["answered"] >= 1
    memory = status["memory"]
    assert memory["private"] == memory["anonymous"] + memory["swap"]
    assert memory["explained"] >= 0.9
    assert memory["kinds"]
    assert memory["owners"]
    text = tidegate("status", "--memory", home=running.home).stdout
    for word in (running.address, "RssAnon + VmSwap", "explained", "kind", "owner"):
        assert word in text


def test_status_makes_a_new_link_that_signs_in_once(running: Gateway) -> None:
    """X04: the code stands in the fragment and dies at first use."""
    link = tidegate("status", "--link", home=running.home).stdout.strip()
    address, _, code = link.partition("/#code=")
    assert address == running.address
    assert running.call("POST", "/api/login", {"code": code}) == {"signed_in": True}
    with pytest.raises(OSError, match="401"):
        running.call("POST", "/api/login", {"code": code})


def test_sessions_are_listed_shown_exported_ended_and_deleted(running: Gateway, tmp_path: Path) -> None:
    """X06: the owner's own way to conversations, in tables and in JSON."""
    home = running.home
    session = _session(running, "kept", "say a word that is rare: bramble")
    assert session in [view["id"] for view in _json("sessions", "list", home=home)]
    assert session in tidegate("sessions", "list", home=home).stdout
    assert [view["id"] for view in _json("sessions", "list", "-q", "bramble", home=home)] == [session]
    shown = _json("sessions", "show", session, home=home)
    assert [row["message"]["role"] for row in shown["messages"]][:2] == ["user", "assistant"]
    assert "bramble" in tidegate("sessions", "show", session, home=home).stdout
    lines = tidegate("sessions", "export", session, home=home).stdout.splitlines()
    assert len(lines) >= 3
    assert all(json.loads(line) for line in lines)
    target = tmp_path / "talk.jsonl"
    assert tidegate("sessions", "export", session, "-o", str(target), home=home).returncode == 0
    assert target.read_text().splitlines() == lines
    assert _json("sessions", "end", session, home=home) == {"ended": session}
    assert session in [view["id"] for view in _json("sessions", "list", "--ended", home=home)]
    assert _json("sessions", "delete", session, "--yes", home=home) == {"deleted": session}
    gone = tidegate("sessions", "show", session, home=home)
    assert gone.returncode == 1
    assert gone.stderr.count("\n") == 1
    assert session in gone.stderr


def test_an_export_of_nothing_makes_no_file(running: Gateway, tmp_path: Path) -> None:
    """F3: a refusal comes before the file."""
    target = tmp_path / "none.jsonl"
    assert tidegate("sessions", "export", "s_none", "-o", str(target), home=running.home).returncode == 1
    assert not target.exists()


def test_a_key_is_made_listed_used_and_revoked(running: Gateway) -> None:
    """X01, X06: a second principal has its own conversations, and none with a revoked key."""
    home = running.home
    made = _json("keys", "add", "anna", "--label", "phone", home=home)
    assert made["key"].startswith("tg_")
    _session(running, "owners-own")
    headers = {"Authorization": f"Bearer {made['key']}"}
    assert running.call("GET", "/api/sessions", None, **headers)["sessions"] == []
    row = next(key for key in _json("keys", "list", home=home) if key["id"] == made["id"])
    assert (row["name"], row["label"], row["role"]) == ("anna", "phone", "user")
    assert "anna" in tidegate("keys", "list", home=home).stdout
    assert made["key"] not in tidegate("keys", "list", home=home).stdout
    assert _json("keys", "revoke", made["id"], home=home) == {"revoked": made["id"]}
    with pytest.raises(OSError, match="401"):
        running.call("GET", "/api/sessions", None, **headers)
    assert tidegate("keys", "revoke", "k_none", home=home).returncode == 1
    assert tidegate("keys", "add", "bert", "--agent", "nobody", home=home).returncode == 1


def test_config_is_checked_and_shown_without_a_gateway(nobody: Path) -> None:
    """X15: secrets appear only as references."""
    assert _json("config", "check", home=nobody)["demo"] is True
    (nobody / "tidegate.toml").write_text(
        '[models.main]\napi = "openai-chat"\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\nkey = "env:TG_SECRET"\n'
    )
    assert tidegate("config", "check", home=nobody).returncode == 0
    shown = tidegate("config", "show", home=nobody).stdout
    assert 'key = "env:TG_SECRET"' in shown
    assert _json("config", "show", home=nobody)["limits"]["residents"] == 128
    (nobody / "tidegate.toml").write_text("[limits]\nresidnts = 1\n")
    wrong = tidegate("config", "check", home=nobody)
    assert wrong.returncode == 1
    assert wrong.stderr.count("\n") == 1
    assert "residents" in wrong.stderr
    (nobody / "tidegate.toml").write_text('[agents.main]\ntools = ["flies"]\n')
    assert "files" in tidegate("config", "check", home=nobody).stderr


def test_the_home_folder_comes_from_the_environment_too(running: Gateway) -> None:
    """F3: `--home`, then TIDEGATE_HOME, then the default."""
    run = subprocess.run(
        [sys.executable, "-m", "tidegate", "status", "--json"],
        capture_output=True, text=True, timeout=WAIT, check=True, env=environment(TIDEGATE_HOME=str(running.home)),
    )  # fmt: skip
    assert json.loads(run.stdout)["pid"] == running.pid


def test_the_doctor_finds_nothing_wrong_with_a_running_gateway(running: Gateway) -> None:
    """L18: the database is checked by the gateway that holds it."""
    findings = {finding["name"]: finding for finding in _json("doctor", home=running.home)}
    assert {finding["state"] for finding in findings.values()} <= {"ok", "warn"}
    assert str(running.pid) in findings["gateway"]["text"]
    assert "by the running gateway" in findings["database"]["text"]
    assert running.say("say well") != ""


def test_the_doctor_looks_at_a_database_itself_when_no_gateway_runs(tmp_path: Path) -> None:
    """L18: and it leaves the folder as it found it; damage and wrong rights are found."""
    home = tmp_path / "home"
    with gateway(home) as running:
        running.say("say something", "talk")
        running.process.kill()
        running.wait()
    before = sorted(path.name for path in home.iterdir())
    findings = {finding["name"]: finding for finding in _json("doctor", home=home)}
    assert findings["database"]["state"] == "ok"
    assert "directly" in findings["database"]["text"]
    assert set(before) >= {path.name for path in home.iterdir()}
    with gateway(home) as running:
        (view,) = running.call("GET", "/api/sessions")["sessions"]
        assert view["name"] == "talk"
        assert tidegate("stop", home=home).returncode == 0
        assert running.wait() == 0
    (home / "api-key").chmod(0o644)
    (home / "tidegate.toml").write_text("[limits]\nresidnts = 1\n")
    with (home / "tidegate.db").open("r+b") as file:
        file.write(b"not a database at all")
    run = tidegate("doctor", home=home)
    assert run.returncode == 1
    for name in ("key", "configuration", "database"):
        assert f"fail  {name}: " in run.stdout


def test_stop_waits_until_the_gateway_is_gone(tmp_path: Path) -> None:
    """F1: when it returns, the folder is free; with no gateway it says so."""
    home = tmp_path / "home"
    with gateway(home) as running:
        answer = _json("stop", home=home)
        assert answer["stopped"] is True
        assert answer["pid"] == running.pid
        assert running.wait() == 0
    assert _json("stop", home=home) == {"stopped": False, "pid": None}
    assert "No gateway runs" in tidegate("stop", home=home).stdout


def test_output_that_nobody_reads_is_no_error_worth_a_traceback(running: Gateway) -> None:
    """F3: `tidegate … | head -0` ends quietly."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "status", "--json", "--home", str(running.home)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, complaint = process.communicate(timeout=WAIT)
    assert complaint == b""


def test_a_gateway_that_starts_is_told_apart_from_one_that_is_not_there(nobody: Path) -> None:
    """F2: the holder of the lock that has no address yet is starting."""
    from tidegate.gateway import HomeLock

    lock = HomeLock(nobody)
    lock.take()
    try:
        run = tidegate("sessions", "list", home=nobody)
        assert run.returncode == 1
        assert f"pid {os.getpid()}" in run.stderr
        assert "still starting" in run.stderr
    finally:
        lock.release()
