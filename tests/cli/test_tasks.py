"""A user at the terminal whose agent delegates a task sees its progress and is asked its questions."""

import re
import time
from collections.abc import Iterator

import pytest

from tests.cli.terminal import at_terminal
from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate
from tests.tasks import ASKING, ASKING_TASK


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("tasks") / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(ASKING)
    with gateway(home) as running:
        yield running


def test_a_user_who_follows_a_turn_sees_its_tasks_and_their_questions(running: GatewayProcess) -> None:
    """S29, H11: under the name of the agent that asks."""
    with at_terminal(running.home, "--new") as (terminal, process):
        terminal.until("> ")
        terminal.type(f"{ASKING_TASK}\r")
        shown = terminal.until("denies \\? ")
        assert "the agent helper asks for your approval" in shown and re.search(r"clock\s+zone: Europe/Paris", shown)
        [question] = running.call("GET", "/api/approvals")["approvals"]
        listed = tidegate("approvals", "list", home=running.home).stdout
        assert f"an approval in owner's conversation {question['conversation']}" in listed
        assert "1 waiting for a person, 1 waiting for other agents" in tidegate("status", home=running.home).stdout
        terminal.type("y\r")
        went_on = terminal.until("delegate gave me this:\\s+The answer from agent 'helper':\\s+The clock says")
        assert "[helper] is working on the task" in shown + went_on and "[helper] clock" in shown + went_on
        terminal.until("> ")
        assert terminal.leave(process) == 0


def test_a_user_who_joins_a_conversation_with_a_waiting_task_is_asked(running: GatewayProcess) -> None:
    """S29: and then sees how the turn continues."""
    begun = running.call("POST", "/api/messages", {"text": ASKING_TASK})
    deadline = time.monotonic() + WAIT
    while not (found := running.call("GET", f"/api/approvals?session={begun['session']}")["approvals"]):
        assert time.monotonic() < deadline
    assert found[0]["conversation"] == begun["session"] != found[0]["session"]
    with at_terminal(running.home, "--session", begun["session"]) as (terminal, process):
        terminal.until("the agent helper asks for your approval")
        terminal.until("denies \\? ")
        terminal.type("n too late\r")
        terminal.until("denied it, and said: too late")
        terminal.until("> ")
        assert terminal.leave(process) == 0
    assert running.call("GET", f"/api/turns/{begun['turn']}")["state"] == "answered"
