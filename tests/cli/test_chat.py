"""The terminal client, through a pipe and through a terminal."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import CTRL_C, at_terminal
from tests.gateway.process import WAIT, GatewayProcess, environment, gateway, tidegate

TWO_AGENTS = """
[models.main]
api = "demo"
[agents.main]
model = "main"
[agents.writer]
model = "main"
"""
ARROW_UP = "\x1b[A"
PASTE = "\x1b[200~{}\x1b[201~"


def _without_prompt_toolkit(folder: Path) -> str:
    """A PYTHONPATH without prompt_toolkit."""
    (folder / "prompt_toolkit.py").write_text("raise ImportError('not installed')\n")
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def _live(running: GatewayProcess) -> dict[str, dict[str, object]]:
    return {view["id"]: view for view in running.call("GET", "/api/sessions")["sessions"]}


def test_each_line_of_a_pipe_is_a_message_of_one_conversation(running: GatewayProcess) -> None:
    """A12: the terminal client uses the common API, and only answers go to standard output."""
    before = set(_live(running))
    run = tidegate("chat", home=running.home, input="say alpha\n\nsay beta\n")
    assert run.returncode == 0, run.stderr
    assert [line for line in run.stdout.splitlines() if line] == ["alpha", "beta"]
    (session,) = set(_live(running)) - before
    assert _live(running)[session]["channel"] == "http"
    rows = running.call("GET", f"/api/sessions/{session}/messages?after=0")["messages"]
    assert [row["message"]["text"] for row in rows if row["message"]["role"] == "user"] == ["say alpha", "say beta"]


def test_a_pipe_can_continue_a_conversation_and_use_tools(running: GatewayProcess) -> None:
    """A12: only the answer goes to standard output."""
    tidegate("chat", "--new", home=running.home, input="say first\n")
    session = running.call("GET", "/api/sessions?limit=1")["sessions"][0]["id"]
    run = tidegate("chat", "--session", session, home=running.home, input="what time is it\n")
    assert run.returncode == 0, run.stderr
    assert re.search(r"\d\d:\d\d", run.stdout)
    rows = running.call("GET", f"/api/sessions/{session}/messages?after=0")["messages"]
    assert "say first" in [row["message"].get("text") for row in rows]


def test_slash_commands_go_to_the_gateway(running: GatewayProcess) -> None:
    """S13: they are the same as on the page; /new starts another conversation."""
    before = set(_live(running))
    run = tidegate("chat", home=running.home, input="/help\nsay one\n/title Tides\n/new\nsay two\n")
    assert run.returncode == 0, run.stderr
    assert "/retry" in run.stdout
    live = _live(running)
    assert len(set(live) - before) == 1
    ended = running.call("GET", "/api/sessions?ended=true")["sessions"]
    assert "Tides" in [view["title"] for view in ended]


def test_returning_to_a_conversation_shows_which_one_it_is(running: GatewayProcess) -> None:
    """S13: with its title, its agent and its last exchange, apart from the answers."""
    tidegate("chat", home=running.home, input="say neap tide\n/title Moon\n")
    session = running.call("GET", "/api/sessions?limit=1")["sessions"][0]["id"]
    run = tidegate("chat", home=running.home, input=f"say other\n/resume {session}\n")
    assert run.returncode == 0, run.stderr
    assert run.stderr.splitlines() == [
        f"Conversation “Moon”, {session}, with agent main (the built-in demo model).",
        "you: say neap tide",
        "answer: neap tide",
    ]


def test_a_failed_turn_is_reported_and_sets_the_exit_code_of_a_pipe(running: GatewayProcess) -> None:
    """F3: in one sentence on standard error; the next line is still sent."""
    run = tidegate("chat", home=running.home, input="fail\nsay after all\n")
    assert run.returncode == 1
    assert "after all" in run.stdout
    assert run.stderr.startswith("tidegate: ")
    unknown = tidegate("chat", "--session", "s_none", home=running.home, input="say hello\n")
    assert unknown.returncode == 1
    assert unknown.stderr.count("\n") == 1


def test_a_person_talks_stops_an_answer_and_leaves(running: GatewayProcess) -> None:
    """A12, S13: Ctrl-C stops the turn but not the client, Ctrl-D leaves, and typed lines are in the history next
    time."""
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


def test_without_the_extra_package_the_terminal_uses_readline(running: GatewayProcess, tmp_path: Path) -> None:
    """S13: the last conversation continues by default."""
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
        terminal.press(CTRL_C, "Ctrl-D exits")
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


def _latest(running: GatewayProcess) -> tuple[str, dict[str, object]]:
    """The conversation used last and its last message, once no turn is running there."""
    deadline = time.monotonic() + WAIT
    while (view := running.call("GET", "/api/sessions?limit=1")["sessions"][0]).get("running"):
        assert time.monotonic() < deadline
    rows = running.call("GET", f"/api/sessions/{view['id']}/messages")["messages"]
    return view["id"], rows[-1]["message"]


def test_ctrl_c_twice_leaves_at_once_and_the_gateway_stops_the_turn(running: GatewayProcess) -> None:
    """F4: the conversation stays open, with the text so far, and accepts the next message."""
    with at_terminal(running.home, "--new") as (terminal, process):
        terminal.until("> ")
        terminal.type("count to 100000\r")
        terminal.until("12 ")
        running.signal(signal.SIGSTOP)  # so that the turn cannot end between the two presses
        try:
            terminal.type(CTRL_C)
            _until_unread(running)
            assert process.poll() is None
            terminal.type(CTRL_C)
            assert process.wait(WAIT) == 130
        finally:
            running.signal(signal.SIGCONT)
    session, last = _latest(running)
    assert (last["role"], last["finish"]) == ("assistant", "stopped")
    assert str(last["text"]).startswith("1 2 3 ")
    again = tidegate("chat", "--session", session, home=running.home, input="say still here\n")
    assert (again.returncode, again.stdout.strip()) == (0, "still here")


def test_ctrl_c_at_a_pipe_stops_the_turn_and_not_the_client(running: GatewayProcess) -> None:
    """F4: the client continues to the end of its input."""
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
    assert _latest(running)[1]["finish"] == "stopped"


def test_a_models_answer_cannot_move_the_cursor(running: GatewayProcess) -> None:
    """X19: control characters in an answer are not sent to the terminal."""
    run = tidegate("chat", home=running.home, input="say red \x1b[31malert\x07\n")
    assert "\x1b" not in run.stdout
    assert "\x07" not in run.stdout
    assert "alert" in run.stdout


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with two agents."""
    home = tmp_path_factory.mktemp("two") / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(TWO_AGENTS)
    with gateway(home) as found:
        yield found


def _begun(running: GatewayProcess, **fields: str) -> str:
    """Starts a conversation with one answered turn; returns its id."""
    accepted = running.call("POST", "/api/messages", {"text": "say begun", **fields})
    deadline = time.monotonic() + WAIT
    while running.call("GET", f"/api/turns/{accepted['turn']}")["state"] != "answered":
        assert time.monotonic() < deadline
    return str(accepted["session"])


def _refused(running: GatewayProcess, *arguments: str, code: int = 1) -> str:
    """The error of `chat` if it refuses to start, which must be the same in a pipe and at a terminal."""
    run = tidegate("chat", *arguments, home=running.home, input="say hello\n")
    assert (run.returncode, run.stdout) == (code, "")
    with at_terminal(running.home, *arguments) as (terminal, process):
        terminal.until(re.escape(run.stderr.strip().splitlines()[-1][:60]))
        assert process.wait(WAIT) == code
        assert "> " not in terminal.seen
    return str(run.stderr)


def test_an_unknown_agent_is_reported_at_the_start(two: GatewayProcess) -> None:
    """F3: before anything is typed, with the closest name."""
    before = set(_live(two))
    said = _refused(two, "--agent", "writr")
    assert said == "tidegate: There is no agent 'writr'; did you mean 'writer'?\n"
    assert "main, writer" in _refused(two, "--agent", "zzz")
    assert set(_live(two)) == before
    run = tidegate("chat", "--agent", "writer", home=two.home, input="say hello\n")
    assert run.returncode == 0, run.stderr
    (made,) = set(_live(two)) - before
    assert _live(two)[made]["agent"] == "writer"


def test_a_conversation_that_accepts_no_messages_is_reported_at_the_start(two: GatewayProcess) -> None:
    """F3: if it does not exist, has ended, has another agent, or belongs to somebody else."""
    session = _begun(two)
    assert "There is no session" in _refused(two, "--session", "a/b?c")
    assert "is with agent main" in _refused(two, "--session", session, "--agent", "writer")
    assert "not both" in _refused(two, "--session", session, "--new", code=2)
    two.call("POST", f"/api/sessions/{session}/end")
    assert f"/resume {session}" in _refused(two, "--session", session)
    key = two.call("POST", "/api/keys", {"name": "anna"})["key"]
    theirs = two.call("POST", "/api/messages", {"text": "hi"}, Authorization=f"Bearer {key}")["session"]
    assert "another user's" in _refused(two, "--session", theirs)


def test_a_refused_line_does_not_stop_the_following_lines_of_a_pipe(running: GatewayProcess) -> None:
    """F3: each refusal is reported in one sentence with its line number, and sets the exit code."""
    lines = b"/nope\nsay one\nsay \xff\xfe\nsay two\n"
    run = subprocess.run(
        [sys.executable, "-m", "tidegate", "chat", "--home", str(running.home)],
        input=lines, capture_output=True, timeout=WAIT, env=environment(), check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert run.stdout.split() == [b"one", b"two"]
    first, second = run.stderr.decode().splitlines()
    assert first.startswith("tidegate: line 1: There is no command /nope")
    assert second.startswith("tidegate: line 3: ") and "UTF-8" in second


@pytest.mark.parametrize("bare", [False, True])
def test_a_paste_of_several_lines_is_one_message_and_one_entry_of_the_history(
    running: GatewayProcess, tmp_path: Path, bare: bool
) -> None:
    """A12, S13: with both line readers; the next time, the entry is complete."""
    path = _without_prompt_toolkit(tmp_path) if bare else os.environ.get("PYTHONPATH", "")
    (running.home / "chat-history").unlink(missing_ok=True)
    for keys in (PASTE.format("say first\nsecond\nthird"), ARROW_UP):
        with at_terminal(running.home, "--new", TERM="xterm", PYTHONPATH=path) as (terminal, process):
            terminal.until("Ctrl-D exits[^>]*>")
            terminal.type(keys)
            terminal.until("third")
            terminal.type("\r")
            terminal.until(r"2004l\r?first\r\nsecond\r\nthird\r\n[^>]*>")
            assert terminal.leave(process) == 0
        session = running.call("GET", "/api/sessions?limit=1")["sessions"][0]["id"]
        rows = running.call("GET", f"/api/sessions/{session}/messages?after=0")["messages"]
        said = [row["message"]["text"] for row in rows if row["message"]["role"] == "user"]
        assert said == ["say first\nsecond\nthird"]
    assert (running.home / "chat-history").read_text().count("\n+say first\n+second\n+third\n") >= 1


def _until_unread(running: GatewayProcess) -> None:
    """Waits until a request has arrived at a gateway that was paused."""
    deadline = time.monotonic() + WAIT
    while not _unread(int(running.address.rpartition(":")[2])):
        assert time.monotonic() < deadline


def _unread(port: int) -> bool:
    """True if a request at this port has not been read yet."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, queues, *_ = line.split()
        if int(local.split(":")[1], 16) == port and state == "01" and int(queues.split(":")[1], 16):
            return True
    return False


def test_ctrl_c_before_the_gateway_has_answered_stops_the_turn_and_not_the_client(running: GatewayProcess) -> None:
    """A12, S13: while the message is being sent; the turn is stopped as soon as its id is known."""
    with at_terminal(running.home, "--new") as (terminal, process):
        terminal.until("> ")
        running.signal(signal.SIGSTOP)
        try:
            terminal.type("count to 100000\r")
            _until_unread(running)
            terminal.type(CTRL_C)
            terminal.until(r"\^C")
        finally:
            running.signal(signal.SIGCONT)
        terminal.until("stopped")
        terminal.until("> ")
        terminal.type("say still here\r")
        terminal.until("still here[^>]*still here")
        terminal.until("> ")
        assert terminal.leave(process) == 0


def test_a_chat_continues_after_the_gateway_restarts_on_another_port(tmp_path: Path) -> None:
    """E1: the next message reaches it at its new address; while no gateway is running, the client says so."""
    home = tmp_path / "home"
    with gateway(home) as first, at_terminal(home, "--new") as (terminal, process):
        terminal.until("> ")
        terminal.type("say one\r")
        terminal.until("one[^>]*one")
        terminal.until("> ")
        first.end()
        terminal.type("say two\r")
        terminal.until("No gateway is running for")
        terminal.until("> ")
        with gateway(home) as second:
            terminal.type("say three\r")
            terminal.until("three[^>]*three")
            terminal.until("> ")
            (view,) = second.call("GET", "/api/sessions")["sessions"]
            assert view["title"] == "say one"
            assert terminal.leave(process) == 0
