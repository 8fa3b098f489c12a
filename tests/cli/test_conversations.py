"""`tidegate sessions`: confirmations before deletion, and exports that are complete or absent."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import at_terminal
from tests.gateway.process import WAIT, GatewayProcess, tidegate
from tidegate.gateway import HomeLock


def conversation(running: GatewayProcess, text: str = "say hello") -> str:
    accepted = running.call("POST", "/api/messages", {"text": text})
    return str(accepted["session"])


def is_there(running: GatewayProcess, session: str) -> bool:
    return tidegate("sessions", "show", session, home=running.home).returncode == 0


def one_sentence(run: Any) -> str:
    """The error of a command that failed with one sentence and no other output."""
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.startswith("tidegate: ")
    assert run.stderr.count("\n") == 1, run.stderr
    return str(run.stderr)


def test_nothing_is_deleted_without_a_terminal_unless_yes_is_given(running: GatewayProcess) -> None:
    """F3: scripts have to use --yes."""
    session = conversation(running)
    for options in ((), ("--json",)):
        said = one_sentence(tidegate("sessions", "delete", session, *options, home=running.home, input="y\n"))
        assert "--yes" in said and session in said
        assert is_there(running, session)
    assert tidegate("sessions", "delete", session, "--yes", home=running.home, input="").returncode == 0
    assert not is_there(running, session)


def test_deleting_a_conversation_requires_confirmation(running: GatewayProcess) -> None:
    """F3: the prompt shows its title; any answer except yes keeps it."""
    session = conversation(running, "say low water")
    command = ("sessions", "delete", session)
    for answer, code in (("n\r", 1), ("\r", 1), ("y\r", 0)):
        assert is_there(running, session)
        with at_terminal(running.home, command=command) as (terminal, process):
            terminal.until("“say low water”.*" + session)
            terminal.type(answer)
            terminal.until("Deleted" if code == 0 else "Nothing was deleted")
            assert process.wait(WAIT) == code
    assert not is_there(running, session)
    with at_terminal(running.home, command=command) as (terminal, process):
        terminal.until("There is no session")
        assert process.wait(WAIT) == 1


def test_end_says_if_the_conversation_had_already_ended(running: GatewayProcess) -> None:
    """S02: ending a conversation again changes nothing."""
    session = conversation(running)
    run = tidegate("sessions", "end", session, "--json", home=running.home)
    assert json.loads(run.stdout) == {"ended": session, "changed": True}
    run = tidegate("sessions", "end", session, "--json", home=running.home)
    assert json.loads(run.stdout) == {"ended": session, "changed": False}
    assert "had already ended" in tidegate("sessions", "end", session, home=running.home).stdout


NOT_THERE = [
    *(((command,), "s_none") for command in ("show", "end", "export", "reload")),
    (("delete", "--yes"), "s_none"),
    (("clear",), "s_none"),
    *((("show",), session) for session in ("a/b", "..", "", "a b?c#d", "ü")),
]


@pytest.mark.parametrize(("arguments", "session"), NOT_THERE)
def test_an_unknown_conversation_is_reported_with_the_command_that_lists_them(
    running: GatewayProcess, arguments: tuple[str, ...], session: str
) -> None:
    """F3: for any text as its id."""
    more = ("model",) if arguments == ("clear",) else ()
    said = one_sentence(tidegate("sessions", *arguments, session, *more, home=running.home))
    assert "There is no session" in said
    assert f"`tidegate sessions list --all --home {running.home}`" in said


def test_an_export_overwrites_a_file_only_with_force(running: GatewayProcess, tmp_path: Path) -> None:
    """F3: the existing file is left unchanged."""
    session = conversation(running)
    target = tmp_path / "talk.jsonl"
    target.write_text("mine")
    export = ("sessions", "export", session, "-o", str(target))
    said = one_sentence(tidegate(*export, home=running.home))
    assert str(target) in said and "--force" in said
    assert target.read_text() == "mine"
    assert tidegate(*export, "--force", home=running.home).returncode == 0
    assert json.loads(target.read_text().splitlines()[0])["id"] == session
    assert target.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_an_export_to_an_invalid_target_is_reported_in_one_sentence(running: GatewayProcess, tmp_path: Path) -> None:
    """F3: into a missing folder, onto a folder or device, or below a file."""
    session = conversation(running)
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for place in ("none/talk", "", ".", "file/talk", "pipe"):
        target = tmp_path / place
        for force in ((), ("--force",)):
            said = one_sentence(tidegate("sessions", "export", session, "-o", str(target), *force, home=running.home))
            assert str(target) in said
    assert {path.name for path in tmp_path.iterdir()} == {"file", "pipe"}


def test_a_forced_export_follows_a_link(running: GatewayProcess, tmp_path: Path) -> None:
    """F3: the link itself is kept."""
    session = conversation(running)
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    run = tidegate("sessions", "export", session, "--force", "-o", str(tmp_path / "link"), home=running.home)
    assert run.returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert session in (tmp_path / "real").read_text()


@contextmanager
def half_an_answer(home: Path, answer: bytes) -> Iterator[None]:
    """A server at the gateway's address that sends this response to the first request and breaks off."""
    lock = HomeLock(home)
    lock.take()
    (home / "api-key").write_text("tg_x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT)
        lock.write_address(f"http://127.0.0.1:{server.getsockname()[1]}")

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(WAIT)
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            thread.join(WAIT)
            lock.release()


def test_an_export_that_breaks_off_leaves_no_file(nobody: Path, tmp_path: Path) -> None:
    """F3, E1: a file is complete or absent, and the failure is reported."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    target = tmp_path / "out" / "talk.jsonl"
    target.parent.mkdir()
    with half_an_answer(nobody, head + b'9\r\n{"id":1}\n\r\n9\r\n{"id'):
        said = one_sentence(tidegate("sessions", "export", "s_x", "-o", str(target), home=nobody))
    assert "is not responding" in said
    assert list(target.parent.iterdir()) == []
    with half_an_answer(nobody, head + b'9\r\n{"id":1}\n\r\n'):
        run = tidegate("sessions", "export", "s_x", home=nobody)
    assert run.returncode == 1 and run.stderr.count("\n") == 1


def test_the_operator_sees_when_a_setting_expires_and_can_clear_it(running: GatewayProcess) -> None:
    """S06: in the list, as JSON, and with the conversation."""
    home, session = running.home, conversation(running)
    running.call("POST", "/api/messages", {"text": "/reasoning high for 2h", "session": session})
    listed = json.loads(tidegate("sessions", "settings", "--json", home=home).stdout)
    row = next(row for row in listed if row["session"] == session)
    assert (row["key"], row["value"], row["source"]) == ("reasoning", "high", "command")
    assert row["expires"] > running.call("GET", f"/api/sessions/{session}")["created"] + 7000
    (line,) = [line for line in tidegate("sessions", "settings", home=home).stdout.splitlines() if session in line]
    assert "reasoning" in line and "with the conversation" not in line
    assert "reasoning: high (command, until " in tidegate("sessions", "show", session, home=home).stdout
    assert tidegate("sessions", "clear", session, "reasoning", home=home).returncode == 0
    assert "reasoning" not in tidegate("sessions", "show", session, home=home).stdout
    said = one_sentence(tidegate("sessions", "clear", session, "reasoning", home=home))
    assert "`tidegate sessions settings" in said


def test_context_shows_what_fills_the_window_by_part(running: GatewayProcess) -> None:
    """F3: as a table and as JSON; an unknown conversation is reported in one sentence."""
    running.say("say hello", "full of water")
    (session,) = (
        view["id"] for view in running.call("GET", "/api/sessions")["sessions"] if view["name"] == "full of water"
    )
    found = json.loads(tidegate("sessions", "context", session, "--json", home=running.home).stdout)
    assert found["window"] == 1_000_000 and found["tokens"] > 0
    assert {part["part"] for part in found["parts"]} >= {"prompt", "people", "answers"}
    lines = tidegate("sessions", "context", session, home=running.home).stdout.splitlines()
    assert lines[0].split() == ["part", "tokens", "share", "number"]
    assert any(line.startswith("messages from people") for line in lines)
    assert any(line.startswith("total") for line in lines)
    assert "There is no session" in one_sentence(tidegate("sessions", "context", "s_none", home=running.home))
