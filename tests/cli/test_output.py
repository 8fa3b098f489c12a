"""Output of commands on a full disk, a closed pipe or a limited terminal, and after mistyped commands."""

import contextlib
import os
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.terminal import at_terminal
from tests.gateway.process import WAIT, GatewayProcess, environment, tidegate


@pytest.mark.parametrize("command", [("status",), ("sessions", "list", "--json"), ("version",), ("--help",)])
def test_a_full_disk_behind_standard_output_is_one_sentence(running: GatewayProcess, command: tuple[str, ...]) -> None:
    """F3: and the exit code is not 0."""
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "tidegate", *command],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=WAIT, check=False,
            env=environment(TIDEGATE_HOME=str(running.home)),
        )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr == "tidegate: The output cannot be written (No space left on device): free some disk space.\n"


def test_a_closed_standard_output_causes_no_traceback(running: GatewayProcess) -> None:
    """F3: the command itself succeeds."""
    run = subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m tidegate status --home {running.home} >&-"],
        stderr=subprocess.PIPE, text=True, timeout=WAIT, check=False, env=environment(),
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")


def test_a_terminal_without_unicode_gets_escaped_characters(running: GatewayProcess) -> None:
    """F3: no input is lost, and no output fails."""
    run = subprocess.run(
        [sys.executable, "-m", "tidegate", "chat", "--home", str(running.home)],
        input="say Übergröße\n".encode(), capture_output=True, timeout=WAIT, check=False,
        env=environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii"),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == rb"\xdcbergr\xf6\xdfe"
    (view,) = running.call("GET", "/api/sessions?limit=1")["sessions"]
    assert view["title"] == "say Übergröße"


def test_a_mistyped_command_is_answered_with_the_closest_one() -> None:
    """F3: for commands, subcommands, and options in the wrong place."""
    assert "Did you mean 'status'?" in tidegate("statsu").stderr
    assert "Did you mean 'list'?" in tidegate("sessions", "lst").stderr
    early = tidegate("--home", "/tmp", "status")
    assert early.returncode == 2
    assert "after the command" in early.stderr


def test_status_is_aligned_whatever_the_agents_are_called(running: GatewayProcess) -> None:
    """F3: names are aligned in one column."""
    lines = tidegate("status", home=running.home).stdout.splitlines()
    assert len({line.index(": ") for line in lines}) == 1


def folded(columns: int, *arguments: str, home: Path) -> list[str]:
    """The output of a command on a terminal of this width."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    run = subprocess.Popen(
        [sys.executable, "-m", "tidegate", *arguments, "--home", str(home)], stdout=theirs, env=environment()
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # which is how a terminal says that nobody writes any more
        while part := os.read(ours, 65536):
            seen += part
    os.close(ours)
    assert run.wait(WAIT) == 0
    return seen.decode().splitlines()


@pytest.mark.parametrize("columns", [80, 130])
def test_a_table_fits_the_terminal_and_breaks_no_word(nobody: Path, columns: int) -> None:
    """F3: cells wrap, or each row becomes a list; nothing is lost."""
    (nobody / "tidegate.toml").write_text(
        '[models.main]\napi = "openai-responses"\nbase_url = "https://models.example.org/v1"\n'
        'model = "gpt-5-mini"\nkey = "env:NOT_NEEDED"\n[agents.main]\n[agents.another]\n[agents.third]\n'
    )
    lines = folded(columns, "models", home=nobody)
    assert max(map(len, lines)) <= columns
    words = " ".join(lines).split()
    whole = tidegate("models", home=nobody).stdout
    assert max(map(len, whole.splitlines())) > 130  # into a pipe a row is one line
    assert sorted(words) == sorted(whole.split())


def test_a_long_line_of_a_reply_wraps_in_its_column(running: GatewayProcess) -> None:
    """F3: lines wrap between words."""
    with at_terminal(running.home, "--new", COLUMNS="80") as (terminal, process):
        terminal.until("> ")
        terminal.type("/help\r")
        terminal.until(
            r"\n/compact {32}Replace older messages with summaries\r?\n"
            r" {40}for the model; the transcript stays\r?\n {40}complete\.\r?\n"
        )
        terminal.until("> ")
        assert terminal.leave(process) == 0
