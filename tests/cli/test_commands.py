"""Commands that query a running gateway, or report that there is none."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.gateway.process import WAIT, GatewayProcess, environment, gateway, tidegate
from tidegate import __version__
from tidegate.cli.root import COMMANDS, root


def _json(*arguments: str, home: Path) -> Any:
    run = tidegate(*arguments, "--json", home=home)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def _session(running: GatewayProcess, name: str, text: str = "say hello") -> str:
    running.say(text, name)
    found = running.call("GET", "/api/sessions")["sessions"]
    return next(str(view["id"]) for view in found if view["name"] == name)


def test_version_is_light(nobody: Path) -> None:
    """L22: a simple command imports no large module."""
    assert tidegate("version").stdout == f"tidegate {__version__}\n"
    assert json.loads(tidegate("version", "--json").stdout) == {"version": __version__}
    program = "import sys, tidegate.cli.root; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT, env=environment(), check=True
    )
    assert not set(run.stdout.split()) & {"asyncio", "msgspec", "aiohttp", "anyio", "tidegate.config"}


def test_help_names_every_command_and_wrong_usage_is_exit_code_2() -> None:
    """F3: help lists every command, and wrong usage is reported."""
    text = tidegate("--help").stdout
    for name in COMMANDS:
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
        ("sessions", "settings"),
        ("sessions", "clear", "s_x", "model"),
        ("sessions", "reload", "s_x"),
        ("sessions", "reload", "--all"),
        ("approvals", "list"),
        ("approvals", "answer", "ap_x", "approve"),
        ("keys", "list"),
        ("keys", "add", "anna"),
        ("keys", "revoke", "k_x"),
    ],
)
def test_without_a_gateway_each_command_says_how_to_start_one(nobody: Path, arguments: tuple[str, ...]) -> None:
    """F3: in one sentence, with exit code 1."""
    run = tidegate(*arguments, home=nobody, input="")
    assert run.returncode == 1
    assert run.stdout == ""
    assert (
        run.stderr == f"tidegate: No gateway is running for {nobody}: start one with `tidegate up --home {nobody}`.\n"
    )


def test_status_shows_activity_and_memory(running: GatewayProcess) -> None:
    """L99: one command explains memory by kind and by owner."""
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
    for word in (running.address, "RssAnon + VmSwap", "explained", "unexplained", "ceiling", "kind", "session"):
        assert word in text
    held = sum(kind["bytes"] for kind in memory["kinds"].values())
    assert held + memory["unexplained"] == memory["private"]
    assert memory["kinds"]["base"]["bytes"] > 0
    session = next(owner for owner in memory["owners"] if owner["owner"].startswith("session "))
    assert session["kinds"]["resident"]["bytes"] == session["bytes"] > 0


def test_status_makes_a_new_link_that_signs_in_once(running: GatewayProcess) -> None:
    """X04: the code is in the fragment and is used up by the first sign-in."""
    run = tidegate("status", "--link", home=running.home)
    address, _, code = run.stdout.strip().partition("/#code=")
    assert address == running.address
    assert re.fullmatch(r"The link works once, until \d{4}-\d\d-\d\d \d\d:\d\d\.\n", run.stderr)
    assert running.call("POST", "/api/login", {"code": code})["signed_in"]
    made = _json("status", "--link", home=running.home)
    assert set(made) == {"link", "expires"} and made["expires"] > time.time()
    with pytest.raises(OSError, match="401"):
        running.call("POST", "/api/login", {"code": code})


def test_sessions_are_listed_shown_exported_ended_and_deleted(running: GatewayProcess, tmp_path: Path) -> None:
    """X06: by the owner, as tables and as JSON."""
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
    assert _json("sessions", "end", session, home=home) == {"ended": session, "changed": True}
    assert session in [view["id"] for view in _json("sessions", "list", "--ended", home=home)]
    assert _json("sessions", "delete", session, "--yes", home=home) == {"deleted": session}
    gone = tidegate("sessions", "show", session, home=home)
    assert gone.returncode == 1
    assert gone.stderr.count("\n") == 1
    assert session in gone.stderr


def test_the_owner_can_list_the_conversations_of_all_users(running: GatewayProcess) -> None:
    """X06: by default only the owner's own; with --all those of all users, with their names."""
    home = running.home
    made = _json("keys", "add", "carla", home=home)
    accepted = running.call("POST", "/api/messages", {"text": "hi"}, Authorization=f"Bearer {made['key']}")
    assert accepted["session"] not in [view["id"] for view in _json("sessions", "list", home=home)]
    found = {view["id"]: view["principal"] for view in _json("sessions", "list", "--all", home=home)}
    assert found[accepted["session"]] == made["principal"]
    assert "principal" not in tidegate("sessions", "list", home=home).stdout.splitlines()[0]
    heads, *rows = tidegate("sessions", "list", "--all", home=home).stdout.splitlines()
    assert "principal" in heads
    assert "carla" in next(row for row in rows if row.startswith(accepted["session"]))


def test_settings_of_conversations_are_listed_and_cleared(running: GatewayProcess) -> None:
    """S06: by the operator, as a table and as JSON."""
    home = running.home
    session = _session(running, "thinking")
    running.call("POST", "/api/messages", {"text": "/reasoning high", "session": session})
    row = next(row for row in _json("sessions", "settings", home=home) if row["session"] == session)
    assert (row["key"], row["value"], row["source"], row["expires"]) == ("reasoning", "high", "command", None)
    assert session in tidegate("sessions", "settings", home=home).stdout
    assert _json("sessions", "clear", session, "reasoning", home=home) == {"session": session, "cleared": "reasoning"}
    assert session not in tidegate("sessions", "settings", home=home).stdout
    again = tidegate("sessions", "clear", session, "reasoning", home=home)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)


def test_reload_applies_the_current_configuration_to_conversations(tmp_path: Path) -> None:
    """A4, P18: one conversation or all live ones; the result says how many changed and which could not; one of the two
    options is required."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    settings = '[models.main]\napi = "demo"\n[agents.main]\nmodel = "main"\nprompt = "You are old."\n'
    (home / "tidegate.toml").write_text(settings + '[agents.writer]\nmodel = "main"\nprompt = "Write."\n')
    with gateway(home) as running:
        first, *_ = [_session(running, name) for name in ("a", "b", "c")]
        written = running.call("POST", "/api/messages", {"text": "say yes", "agent": "writer"})["session"]
        assert _json("sessions", "reload", first, home=home) == {"session": first, "changed": False}
        assert tidegate("stop", home=home).returncode == 0
        running.wait()
    (home / "tidegate.toml").write_text(settings.replace("old", "new"))
    with gateway(home) as running:
        assert "were updated" in tidegate("sessions", "reload", first, home=home).stdout
        told, left = tidegate("sessions", "reload", "--all", home=home).stdout.splitlines()
        assert told == "Reloaded 2 of 4 conversations; 1 had not changed."
        assert written in left and "writer" in left
        answer = _json("sessions", "reload", "--all", home=home)
        assert (answer["changed"], answer["unchanged"]) == ([], 3)
        assert [row["session"] for row in answer["left"]] == [written]
        assert tidegate("sessions", "reload", home=home).returncode == 2
        assert tidegate("sessions", "reload", first, "--all", home=home).returncode == 2


def test_an_export_of_an_unknown_conversation_creates_no_file(running: GatewayProcess, tmp_path: Path) -> None:
    """F3: the request is refused before the file is created."""
    target = tmp_path / "none.jsonl"
    assert tidegate("sessions", "export", "s_none", "-o", str(target), home=running.home).returncode == 1
    assert not target.exists()


def test_a_key_is_created_listed_used_and_revoked(running: GatewayProcess) -> None:
    """X01, X06: a second user has separate conversations, and a revoked key has access to none."""
    home = running.home
    made = _json("keys", "add", "anna", "--label", "phone", home=home)
    assert made["key"].startswith("tg_")
    _session(running, "owners-own")
    headers = {"Authorization": f"Bearer {made['key']}"}
    assert running.call("GET", "/api/sessions", None, **headers)["sessions"] == []
    row = next(key for key in _json("keys", "list", home=home) if key["id"] == made["id"])
    assert (row["name"], row["label"], row["role"]) == ("anna", "phone", "member")
    assert "anna" in tidegate("keys", "list", home=home).stdout
    assert made["key"] not in tidegate("keys", "list", home=home).stdout
    assert _json("keys", "revoke", made["id"], home=home) == {"revoked": made["id"], "changed": True}
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
    shown = tidegate("config", "show", home=nobody).stdout
    assert 'key = "env:TG_SECRET"' in shown
    assert _json("config", "show", home=nobody)["limits"]["residents"] == 128
    (nobody / "tidegate.toml").write_text("[limits]\nresidnts = 1\n")
    wrong = tidegate("config", "check", home=nobody)
    assert wrong.returncode == 1
    assert wrong.stderr.count("\n") == 1
    assert "residents" in wrong.stderr
    assert f"{nobody}/tidegate.toml: " in wrong.stderr
    (nobody / "tidegate.toml").write_text('[agents.main]\ntools = ["flies"]\n')
    assert "files" in tidegate("config", "check", home=nobody).stderr


MODEL = '[models.main]\napi = "openai-chat"\nbase_url = "https://models.example.org/v1"\nmodel = "tide-9"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MODEL + 'key = "env:TG_NOT_THERE"\n', "[models.main] key = env:TG_NOT_THERE"),
        (MODEL + 'key = "file:not-there"\n', "[models.main] key = file:not-there"),
        ('[agents.main]\ntools = ["flies"]\n', "[agents.main] tools"),
        ("[limits]\nresidnts = 1\n", "residents"),
    ],
)
def test_config_check_and_doctor_find_what_prevents_a_start(nobody: Path, text: str, words: str) -> None:
    """F3, X22: `config check` and `doctor` check the same things as the start, with the same messages."""
    (nobody / "tidegate.toml").write_text(text)
    start = tidegate("up", "--port", "0", home=nobody)
    check = tidegate("config", "check", home=nobody)
    assert (start.returncode, check.returncode) == (1, 1)
    assert start.stderr == check.stderr
    assert start.stderr.startswith(f"tidegate: {nobody}/tidegate.toml: ")
    assert words in check.stderr
    told = tidegate("config", "check", "--json", home=nobody)
    assert told.returncode == 1
    answer = json.loads(told.stdout)
    assert answer["ok"] is False
    assert [f"tidegate: {error}\n" for error in answer["errors"]] == [check.stderr]
    doctor = tidegate("doctor", home=nobody)
    assert doctor.returncode == 1
    assert f"fail  configuration: {answer['errors'][0]}" in doctor.stdout
    assert "sandbox" not in doctor.stdout


def test_a_configured_workspace_that_is_missing_is_a_warning_everywhere(nobody: Path) -> None:
    """F3: the gateway still starts, and the folder is not created."""
    (nobody / "tidegate.toml").write_text('[agents.main]\nworkspace = "papers"\n')
    folder = nobody / "papers"
    check = tidegate("config", "check", home=nobody)
    assert check.returncode == 0
    assert f"the folder {folder} does not exist" in check.stdout
    assert str(folder) in _json("config", "check", home=nobody)["warnings"][0]
    assert (
        f"warn  configuration: {nobody}/tidegate.toml: [agents.main] workspace"
        in tidegate("doctor", home=nobody).stdout
    )
    with gateway(nobody) as running:
        assert any(line.startswith("WARNING ") and str(folder) in line for line in running.said)
    assert not folder.exists()


def test_the_start_and_status_show_the_model_of_each_agent(nobody: Path) -> None:
    """F3: for each agent, with the host of the endpoint."""
    (nobody / "tidegate.toml").write_text(
        MODEL + '[models.toy]\napi = "demo"\n[agents.main]\n[agents.test]\nmodel = "toy"\n'
    )
    with gateway(nobody) as running:
        assert "agent main: tide-9 at models.example.org" in running.said
        assert "agent test: the built-in demo model" in running.said
        text = tidegate("status", home=nobody).stdout
        assert "agent main: tide-9 at models.example.org" in text
        assert "agent test: the built-in demo model" in text


def test_commands_in_hints_can_be_copied(nobody: Path) -> None:
    """F2: they contain the home folder unless it is the default."""
    with gateway(nobody) as running:
        running.until("Ctrl-C stops")
        assert running.link == next(line for line in running.said if "#code=" in line).removeprefix("chat ")
        again = f"`tidegate status --link --home {nobody}` prints a new one."
        [told] = [line for line in running.said if line.endswith(again)]
        assert re.fullmatch(r"The link works once, until \d\d:\d\d; ", told.removesuffix(again))
        refused = tidegate("up", "--port", "0", home=nobody).stderr
        assert f"`tidegate stop --home {nobody}`" in refused
        assert f"`tidegate up --replace --home {nobody}`" in refused


def test_the_home_folder_can_be_set_in_the_environment(running: GatewayProcess) -> None:
    """F3: first `--home`, then TIDEGATE_HOME, then the default."""
    run = subprocess.run(
        [sys.executable, "-m", "tidegate", "status", "--json"],
        capture_output=True, text=True, timeout=WAIT, check=True, env=environment(TIDEGATE_HOME=str(running.home)),
    )  # fmt: skip
    assert json.loads(run.stdout)["pid"] == running.pid


def test_the_doctor_finds_nothing_wrong_with_a_running_gateway(running: GatewayProcess) -> None:
    """L18: the gateway that has the database open checks it."""
    findings = {finding["name"]: finding for finding in _json("doctor", home=running.home)}
    assert {finding["state"] for finding in findings.values()} <= {"ok", "warn"}
    assert str(running.pid) in findings["gateway"]["text"]
    assert "by the running gateway" in findings["database"]["text"]
    assert (
        "limits are determined when the first command runs" in findings["commands"]["text"]
    )  # nobody has used any yet
    assert running.say("say well") != ""


def test_status_and_doctor_warn_if_the_gateway_runs_as_root(running: GatewayProcess) -> None:
    """X12: with the level of isolation."""
    [finding] = [finding for finding in _json("doctor", home=running.home) if finding["name"] == "commands"]
    shown = tidegate("status", home=running.home).stdout
    for text in (finding["text"], shown):
        assert ("The gateway runs as root" in text) == (os.geteuid() == 0)
    assert os.geteuid() != 0 or finding["state"] == "warn"


def test_the_doctor_checks_the_database_itself_if_no_gateway_is_running(tmp_path: Path) -> None:
    """L18: it leaves the folder unchanged, and finds damage and wrong permissions."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text("[server]\nport = 0\n")  # whatever else runs on this machine
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


def test_the_doctor_reports_a_port_that_another_program_uses(nobody: Path) -> None:
    """F3: before a start would fail; port 0 is always fine."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (nobody / "tidegate.toml").write_text(f"[server]\nport = {port}\n")
        run = tidegate("doctor", home=nobody)
        assert run.returncode == 1
        assert f"fail  port: 127.0.0.1 port {port} cannot be used (Address already in use)" in run.stdout
        (nobody / "tidegate.toml").write_text("[server]\nport = 0\n")
        assert "ok    port: any free port on 127.0.0.1" in tidegate("doctor", home=nobody).stdout


def test_the_doctor_reports_a_home_folder_that_cannot_be_created(tmp_path: Path) -> None:
    """F3: before a start would fail."""
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    run = tidegate("doctor", home=home)
    assert run.returncode == 1
    assert f"fail  home folder: {home} cannot be created in {tmp_path}/file" in run.stdout


def test_stop_waits_until_the_gateway_is_gone(tmp_path: Path) -> None:
    """F1: when it returns, the folder is free; without a gateway, it says so."""
    home = tmp_path / "home"
    with gateway(home) as running:
        answer = _json("stop", home=home)
        assert answer["stopped"] is True
        assert answer["pid"] == running.pid
        assert running.wait() == 0
    assert _json("stop", home=home) == {"stopped": False, "pid": None}
    assert "No gateway is running" in tidegate("stop", home=home).stdout


def test_a_closed_pipe_causes_no_traceback(running: GatewayProcess) -> None:
    """F3: `tidegate … | head -0` ends without a traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "status", "--json", "--home", str(running.home)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, complaint = process.communicate(timeout=WAIT)
    assert complaint == b""


def test_a_starting_gateway_is_distinguished_from_a_missing_one(nobody: Path) -> None:
    """F2: a process that holds the lock but has no address yet is still starting."""
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
