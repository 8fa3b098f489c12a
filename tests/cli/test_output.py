"""What a command says when the place it says it to is a poor one, and when it was not understood."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway.running import WAIT, Gateway, environment, tidegate


@pytest.mark.parametrize("command", [("status",), ("sessions", "list", "--json"), ("version",), ("--help",)])
def test_a_full_disk_behind_standard_output_is_one_sentence(running: Gateway, command: tuple[str, ...]) -> None:
    """F3: and no success."""
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "tidegate", *command],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=WAIT, check=False,
            env=environment(TIDEGATE_HOME=str(running.home)),
        )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr == "tidegate: Nothing more can be written (No space left on device): make room for it.\n"


def test_a_closed_standard_output_is_no_reason_for_a_traceback(running: Gateway) -> None:
    """F3: what was asked for is done."""
    run = subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m tidegate status --home {running.home} >&-"],
        stderr=subprocess.PIPE, text=True, timeout=WAIT, check=False, env=environment(),
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")


def test_a_terminal_without_unicode_gets_what_it_can_show(running: Gateway) -> None:
    """F3: nothing is lost on the way in, and nothing fails on the way out."""
    run = subprocess.run(
        [sys.executable, "-m", "tidegate", "chat", "--home", str(running.home)],
        input="say Übergröße\n".encode(), capture_output=True, timeout=WAIT, check=False,
        env=environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii"),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == rb"\xdcbergr\xf6\xdfe"
    (view,) = running.call("GET", "/api/sessions?limit=1")["sessions"]
    assert view["title"] == "say Übergröße"


def test_what_was_not_understood_is_answered_with_the_nearest() -> None:
    """F3: commands, commands of commands, and an option that stands too early."""
    assert "Did you mean 'status'?" in tidegate("statsu").stderr
    assert "Did you mean 'list'?" in tidegate("sessions", "lst").stderr
    early = tidegate("--home", "/tmp", "status")
    assert early.returncode == 2
    assert "after the command" in early.stderr


def test_facts_of_status_stand_under_each_other_whatever_agents_are_called(running: Gateway) -> None:
    """F3: the names end at one column."""
    lines = tidegate("status", home=running.home).stdout.splitlines()
    assert len({line.index(": ") for line in lines}) == 1
