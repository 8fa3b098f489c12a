"""The terminal client, through a pipe and through a terminal."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.gateway.running import WAIT, Gateway, environment, tidegate

# The terminal becomes the controlling one, so that Ctrl-C is a signal, as it is for a person.
ON_A_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "tidegate", *sys.argv[1:]])
"""
CTRL_C = "\x03"
CTRL_D = "\x04"


class Terminal:
    """A person at a terminal."""

    def __init__(self, master: int) -> None:
        self._master = master
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def leave(self, process: "subprocess.Popen[bytes]") -> int:
        """Ctrl-D, again if it came while the terminal was between two prompts, as a person would."""
        deadline = time.monotonic() + WAIT
        while process.poll() is None and time.monotonic() < deadline:
            self.type(CTRL_D)
            ready, _, _ = select.select([self._master], [], [], 0.2)
            with contextlib.suppress(OSError):
                self.seen += os.read(self._master, 65536).decode(errors="replace") if ready else ""
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        return process.wait(WAIT)

    def until(self, pattern: str) -> str:
        """Read until what came since the last match matches."""
        deadline = time.monotonic() + WAIT
        while (found := re.search(pattern, self.seen)) is None:
            ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
            try:
                data = os.read(self._master, 65536) if ready else b""
            except OSError:  # the other side of a terminal has gone
                data = b""
            if not data:
                raise AssertionError(f"{pattern!r} did not come; this did: {self.seen[-2000:]!r}")
            self.seen += data.decode(errors="replace")
        text, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return text


@contextlib.contextmanager
def at_terminal(home: Path, *arguments: str, **env: str) -> Iterator[tuple[Terminal, "subprocess.Popen[bytes]"]]:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, "chat", "--home", str(home), *arguments],
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment(**env),
    )  # fmt: skip
    os.close(slave)
    try:
        yield Terminal(master), process
    finally:
        process.kill()
        process.wait(WAIT)
        os.close(master)


def _without_prompt_toolkit(folder: Path) -> str:
    (folder / "prompt_toolkit.py").write_text("raise ImportError('not installed')\n")
    return str(folder)


def _live(running: Gateway) -> dict[str, dict[str, object]]:
    return {view["id"]: view for view in running.call("GET", "/api/sessions")["sessions"]}


def test_each_line_of_a_pipe_is_a_message_of_one_conversation(running: Gateway) -> None:
    """A12: the terminal client enters by the door; answers go to standard output and nothing else does."""
    before = set(_live(running))
    run = tidegate("chat", home=running.home, input="say alpha\n\nsay beta\n")
    assert run.returncode == 0, run.stderr
    assert [line for line in run.stdout.splitlines() if line] == ["alpha", "beta"]
    (session,) = set(_live(running)) - before
    assert _live(running)[session]["channel"] == "terminal"
    rows = running.call("GET", f"/api/sessions/{session}/messages?after=0")["messages"]
    assert [row["message"]["text"] for row in rows if row["message"]["role"] == "user"] == ["say alpha", "say beta"]


def test_a_pipe_can_go_on_with_a_conversation_and_use_tools(running: Gateway) -> None:
    """A12: only the answer is on standard output."""
    tidegate("chat", "--new", home=running.home, input="say first\n")
    session = running.call("GET", "/api/sessions?limit=1")["sessions"][0]["id"]
    run = tidegate("chat", "--session", session, home=running.home, input="what time is it\n")
    assert run.returncode == 0, run.stderr
    assert re.search(r"\d\d:\d\d", run.stdout)
    rows = running.call("GET", f"/api/sessions/{session}/messages?after=0")["messages"]
    assert "say first" in [row["message"].get("text") for row in rows]


def test_slash_commands_go_to_the_gateway(running: Gateway) -> None:
    """S13: the same commands as on the page; /new begins another conversation."""
    before = set(_live(running))
    run = tidegate("chat", home=running.home, input="/help\nsay one\n/title Tides\n/new\nsay two\n")
    assert run.returncode == 0, run.stderr
    assert "/retry" in run.stdout
    live = _live(running)
    assert len(set(live) - before) == 1
    ended = running.call("GET", "/api/sessions?ended=true")["sessions"]
    assert "Tides" in [view["title"] for view in ended]


def test_going_back_to_a_conversation_says_which_one(running: Gateway) -> None:
    """S13: its title, its agent and its last exchange, beside the answers."""
    tidegate("chat", home=running.home, input="say neap tide\n/title Moon\n")
    session = running.call("GET", "/api/sessions?limit=1")["sessions"][0]["id"]
    run = tidegate("chat", home=running.home, input=f"say other\n/resume {session}\n")
    assert run.returncode == 0, run.stderr
    assert run.stderr.splitlines() == [
        f"Conversation “Moon”, {session}, with agent main (the built-in demo model).",
        "you: say neap tide",
        "answer: neap tide",
    ]


def test_a_turn_that_fails_is_told_and_is_the_exit_code_of_a_pipe(running: Gateway) -> None:
    """F3: one sentence on standard error; the next line still goes."""
    run = tidegate("chat", home=running.home, input="fail\nsay after all\n")
    assert run.returncode == 1
    assert "after all" in run.stdout
    assert run.stderr.startswith("tidegate: ")
    unknown = tidegate("chat", "--session", "s_none", home=running.home, input="say hello\n")
    assert unknown.returncode == 1
    assert unknown.stderr.count("\n") == 1


def test_a_person_talks_stops_an_answer_and_leaves(running: Gateway) -> None:
    """A12, S13: Ctrl-C stops the turn and not the client; Ctrl-D leaves; what was typed is there the next time."""
    with at_terminal(running.home, "--new") as (terminal, process):
        terminal.until("> ")
        terminal.type("say good tide\r")
        terminal.until("good tide[^>]*good tide")
        terminal.until("> ")
        terminal.type("count to 100000\r")
        terminal.until("12 ")
        terminal.type(CTRL_C)
        terminal.until("stopped")
        terminal.until("> ")
        terminal.type("say still here\r")
        terminal.until("still here[^>]*still here")
        terminal.until("> ")
        assert terminal.leave(process) == 0
    outcomes = running.call("GET", "/api/sessions?limit=1")["sessions"][0]
    assert not outcomes.get("running")
    history = running.home / "chat-history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+count to 100000" in history.read_text()


def test_without_the_extra_package_the_terminal_works_by_readline(running: Gateway, tmp_path: Path) -> None:
    """S13: and the last conversation goes on without being asked for."""
    bare = _without_prompt_toolkit(tmp_path)
    with at_terminal(running.home, "--new", PYTHONPATH=bare) as (terminal, process):
        terminal.until("> ")
        terminal.type("say slack water\r")
        terminal.until("slack water\r?\n")
        terminal.until("> ")
        terminal.type("count to 100000\r")
        terminal.until("12 ")
        terminal.type(CTRL_C)
        terminal.until("stopped")
        terminal.until("> ")
        terminal.type(CTRL_C)
        terminal.until("Ctrl-D leaves")
        terminal.until("> ")
        assert terminal.leave(process) == 0
    session = running.call("GET", "/api/sessions?limit=1")["sessions"][0]["id"]
    with at_terminal(running.home, PYTHONPATH=bare) as (terminal, process):
        terminal.until(session + r", with agent main \(the built-in demo model\)")
        terminal.until("you: count to 100000")
        terminal.until("answer: 1 2 3")
        terminal.until("> ")
        terminal.type("/stop\r")
        terminal.until("> ")
        assert terminal.leave(process) == 0


def test_ctrl_c_twice_leaves_and_the_turn_goes_on_or_is_stopped_by_the_gateway(running: Gateway) -> None:
    """F4: the client's end is not the conversation's."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "chat", "--home", str(running.home)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"count to 100000\n")
    process.stdin.flush()
    assert process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=WAIT)
    assert process.returncode == 0
    assert complaint.count(b"stopped") == 1


def test_what_a_model_says_cannot_move_the_cursor(running: Gateway) -> None:
    """X19: control characters of an answer are not passed on to the terminal."""
    run = tidegate("chat", home=running.home, input="say red \x1b[31malert\x07\n")
    assert "\x1b" not in run.stdout
    assert "\x07" not in run.stdout
    assert "alert" in run.stdout
