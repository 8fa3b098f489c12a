"""Tool servers of a real gateway: used by turns, changed by commands, and gone when the gateway is killed."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate
from tests.mcp.harness import BAD_SERVER, PYTHON
from tests.mcp.test_bad_servers import GRANDCHILD, processes_with
from tidegate.gateway import ask


def write_config(home: Path, servers: dict[str, dict[str, Any]], agent: str = 'approvals = "autonomous"') -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    lines = ['[models.main]\napi = "demo"\n[agents.main]\ntools = ["clock"]', agent]
    for name, server in servers.items():
        options = json.dumps(server.pop("options", {}))
        lines += [f"[mcp.{name}]", f"command = {json.dumps(PYTHON)}"]
        lines += [f"args = {json.dumps(['-c', BAD_SERVER.read_text(), options])}", "network = false"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in server.items()]
    (home / "tidegate.toml").write_text("\n".join(lines))


def call(running: GatewayProcess, tool: str, session: str = "one", **arguments: Any) -> str:
    return running.say(f"call {tool} {json.dumps(arguments)}", session)


def status(home: Path, name: str) -> Any:
    return next(each for each in ask(home, {"do": "status"})["mcp"] if each["name"] == name)


def until(condition: Any) -> None:
    limit = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.01)


def test_an_agent_uses_the_tools_of_a_server_with_unchanged_tools_over_a_restart(tmp_path: Path) -> None:
    """A4, E4, S33"""
    home = tmp_path / "home"
    write_config(home, {"good": {}})
    with gateway(home) as running:
        assert "hello" in call(running, "good__say", text="hello")
        shown = status(home, "good")
        assert (shown["state"], shown["revision"], shown["tools"]) == ("ready", "2025-11-25", 3)
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
    with gateway(home) as running:
        assert status(home, "good")["state"] == "stopped"
        assert "again" in call(running, "good__say", text="again")


@pytest.mark.parametrize("sandbox", [True, False], ids=["sandboxed", "unsandboxed"])
def test_a_killed_gateway_leaves_no_server_and_no_grandchild(tmp_path: Path, sandbox: bool) -> None:
    """E2, L12, L28: `kill -9` while some servers are ready and one is starting."""
    home, mark = tmp_path / "home", f"mark-{os.urandom(8).hex()}"
    options = {"mark": mark, "child": True, "ignores_sigterm": True, "ignores_input_end": True}
    servers: dict[str, dict[str, Any]] = {
        f"s{number}": {"sandbox": sandbox, "start": "eager", "options": dict(options)} for number in range(4)
    }
    servers["slow"] = {"sandbox": sandbox, "start": "eager", "options": {**options, "ignores": "initialize"}}
    write_config(home, servers)
    with gateway(home) as running:
        until(lambda: all(status(home, f"s{number}")["state"] == "ready" for number in range(4)))
        until(lambda: len(processes_with(mark)) >= 5 and len(processes_with(GRANDCHILD)) >= 5)
        running.signal(signal.SIGKILL)
        running.wait()
        until(lambda: processes_with(mark) == [])
    until(lambda: processes_with(GRANDCHILD) == [])


def test_stopping_the_gateway_ends_every_server(tmp_path: Path) -> None:
    """E3, F1, L28"""
    home, mark = tmp_path / "home", f"mark-{os.urandom(8).hex()}"
    stubborn = {"mark": mark, "ignores_sigterm": True, "ignores_input_end": True}
    write_config(
        home, {"a": {"start": "eager", "options": {"mark": mark}}, "b": {"start": "eager", "options": stubborn}}
    )
    with gateway(home) as running:
        until(lambda: all(status(home, name)["state"] == "ready" for name in "ab"))
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
        assert processes_with(mark) == []


def test_a_broken_server_neither_delays_the_start_nor_fails_a_turn(tmp_path: Path) -> None:
    """E4"""
    home = tmp_path / "home"
    write_config(home, {"bad": {"start": "eager", "list_timeout": 0.5, "options": {"exit": 3}}})
    with gateway(home) as running:
        assert running.say("say hello") != ""
        until(lambda: "no configuration found" in status(home, "bad")["error"])


def test_calls_ask_first_unless_the_server_marks_them_as_reading(tmp_path: Path) -> None:
    """X11, X14: and a server's `approve` decides otherwise in both directions."""
    home = tmp_path / "home"
    write_config(home, {"w": {}, "n": {"approve": "never"}, "a": {"approve": "always"}}, 'approvals = "balanced"')

    def refused(text: str) -> bool:
        return "needs a person's approval" in text

    with gateway(home) as running:
        assert "read" in call(running, "w__say", text="read")
        assert refused(call(running, "w__do", what="pid"))
        assert not refused(call(running, "n__do", what="pid"))
        assert refused(call(running, "a__say", text="read"))


def test_servers_are_managed_by_commands_without_a_restart(tmp_path: Path) -> None:
    """E2: added, tested, restarted, removed, imported; the file keeps its comments."""
    home = tmp_path / "home"
    write_config(home, {})
    file = home / "tidegate.toml"
    file.write_text(f"# my gateway\n{file.read_text()}\n")

    def run(*arguments: str) -> str:
        done = tidegate("mcp", arguments[0], "--home", str(home), *arguments[1:])
        assert done.returncode == 0, done.stderr
        return done.stdout

    with gateway(home) as running:
        added = run("add", "--no-network", "--json", "good", "--", PYTHON, "-c", BAD_SERVER.read_text(), "{}")
        assert json.loads(added)["applied"]["added"] == ["good"]
        assert file.read_text().startswith("# my gateway\n")
        tools = json.loads(run("test", "good", "--json"))["tools"]
        assert [tool["name"] for tool in tools] == ["good__do", "good__do_again", "good__say"]
        assert "hello" in call(running, "good__say", text="hello")
        pid = status(home, "good")["pid"]
        run("restart", "good")
        assert status(home, "good")["pid"] != pid
        assert run("logs", "good") == ""
        assert "ready" in run("list")

        other = tmp_path / "servers.json"
        entry = {"command": PYTHON, "args": ["-c", "x"], "env": {"API_KEY": "sk-0123456789abcdef0123", "MODE": "fast"}}
        remote = {"url": "https://mcp.example.org/mcp", "headers": {"Authorization": "Bearer abcdefgh12345678"}}
        document = {"mcpServers": {"my server!": entry, "remote": remote, "off": {"disabled": True}, "good": entry}}
        other.write_text(json.dumps(document))
        imported = json.loads(run("import", str(other), "--json"))
        assert imported["added"] == ["my-server", "remote"]
        assert set(imported["skipped"]) == {"off", "good"}
        text = file.read_text()
        assert "sk-0123456789abcdef0123" not in text and "abcdefgh12345678" not in text
        kept = home / "secrets" / "mcp-my-server-API_KEY"
        assert (kept.read_text(), kept.stat().st_mode & 0o777) == ("sk-0123456789abcdef0123", 0o600)

        run("remove", "good")
        assert "no longer exists" in call(running, "good__say", text="hello")
        assert not (home / "mcp" / "good").exists()
        unknown = tidegate("mcp", "test", "nothing", home=home)
        assert (unknown.returncode, "no MCP server" in unknown.stderr) == (1, True)
        bad = tidegate("mcp", "add", "a__b", "--url", "https://x.example", home=home)
        assert (bad.returncode, "without '__'" in bad.stderr) == (1, True)
        assert file.read_text().count("[mcp.") == 2


def test_metrics_and_the_page_of_commands_show_servers(tmp_path: Path) -> None:
    """L30"""
    home = tmp_path / "home"
    write_config(home, {"good": {}})
    with gateway(home) as running:
        call(running, "good__say", text="hello")
        metrics = running.read("GET", "/metrics").decode()
        assert 'tidegate_mcp_ready{server="good"} 1.0' in metrics
        assert 'tidegate_mcp_calls_total{server="good"} 1.0' in metrics


def test_a_conversation_lists_servers_sends_prompts_and_takes_its_own_server_with_it(tmp_path: Path) -> None:
    """B3, B6: `/mcp`, `/prompt`, `/reload`, and `/new`, which ends the server of scope `session`."""
    home, mark = tmp_path / "home", f"mark-{os.urandom(8).hex()}"
    prompts = [{"name": "greet", "description": "Greets.", "arguments": [{"name": "who", "required": True}]}]
    write_config(home, {"mine": {"scope": "session", "options": {"mark": mark, "prompts": prompts}}})

    def say(text: str, **fields: Any) -> Any:
        return running.call("POST", "/api/messages", {"text": text, **fields})

    with gateway(home) as running:
        first = say('call mine__do {"what": "pid"}')
        session = first["session"]
        until(lambda: not ask(home, {"do": "status"})["turns"]["running"])
        until(lambda: status(home, "mine")["running"] >= 1)
        assert "/prompt mine.greet  Greets." in say("/mcp", session=session)["reply"]["text"]
        sent = say('/prompt mine.greet who="Anna B"', session=session)["reply"]
        assert sent["turn"] is not None
        until(lambda: not ask(home, {"do": "status"})["turns"]["running"])
        text = json.dumps(running.call("GET", f"/api/sessions/{session}/messages"))
        assert "greet {" in text and "Anna B" in text
        before = len(processes_with(mark))
        say("/new", session=session)
        until(lambda: len(processes_with(mark)) < before)


def test_reload_gives_a_conversation_the_tools_of_servers_that_were_added(tmp_path: Path) -> None:
    """A4"""
    home = tmp_path / "home"
    write_config(home, {})
    with gateway(home) as running:
        session = running.call("POST", "/api/messages", {"text": "say hello"})["session"]
        write_config(home, {"good": {}})
        assert ask(home, {"do": "mcp", "what": "apply"}, within=WAIT)["added"] == ["good"]
        assert ask(home, {"do": "mcp", "what": "test", "name": "good"}, within=WAIT)["tools"]

        def answer(text: str) -> str:
            running.call("POST", "/api/messages", {"text": text, "session": session})
            until(lambda: not ask(home, {"do": "status"})["turns"]["running"])
            return json.dumps(running.call("GET", f"/api/sessions/{session}/messages"))

        answer("say hello again")
        assert "no tool named" in answer('call good__say {"text": "one two three"}')
        running.call("POST", "/api/messages", {"text": "/reload", "session": session})
        assert "four five six" in answer('call good__say {"text": "four five six"}').replace('\\"text\\": \\"four', "")
