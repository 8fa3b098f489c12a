"""Questions of agents, in the terminal client and with `tidegate approvals`."""

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import CTRL_C, at_terminal
from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate

CAREFUL = """
[models.main]
api = "demo"
[agents.main]
model = "main"
tools = ["clock", "ask"]
rules = ["ask clock zone=Europe/*"]
"""
CLOCK = 'call clock {"zone": "Europe/Paris"}'
QUESTION = 'call ask_user {"question": "Which one?", "choices": ["red", "blue"]}'


@pytest.fixture(scope="module")
def careful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway whose agent asks before it reads a European clock."""
    home = tmp_path_factory.mktemp("careful") / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(CAREFUL)
    with gateway(home) as running:
        yield running


def waiting(running: GatewayProcess, session: str | None = None) -> list[dict[str, Any]]:
    query = f"?session={session}" if session else ""
    return list(running.call("GET", f"/api/approvals{query}")["approvals"])


def begin(running: GatewayProcess, text: str) -> dict[str, Any]:
    """Starts a turn in the terminal that waits for an answer; returns its question."""
    accepted = running.call("POST", "/api/messages", {"text": text})
    return open_question(running, accepted["session"])


def open_question(running: GatewayProcess, session: str | None = None) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT
    while not (found := waiting(running, session)):
        assert time.monotonic() < deadline
    return found[0]


def answer_of(running: GatewayProcess, turn: str) -> str:
    deadline = time.monotonic() + WAIT
    while (outcome := running.call("GET", f"/api/turns/{turn}"))["state"] == "running":
        assert time.monotonic() < deadline
    return str(outcome["text"])


def test_a_person_is_asked_at_the_terminal(careful: GatewayProcess) -> None:
    """S29: the question is shown in full; after an ambiguous reply it is asked again; a denial accepts a reason, and a
    choice its number."""
    with at_terminal(careful.home, "--new") as (terminal, process):
        terminal.until("> ")
        terminal.type(f"{CLOCK}\r")
        shown = terminal.until("denies \\? ")
        assert "asks for your approval" in shown and re.search(r"clock\s+zone: Europe/Paris", shown)
        terminal.type("perhaps\r")
        terminal.until("Not understood")
        terminal.until("denies \\? ")
        terminal.type("/status\r")
        terminal.until("asked +/approve ap_")
        terminal.until("denies \\? ")
        terminal.type("y\r")
        terminal.until("The clock says")
        terminal.until("> ")
        terminal.type(f"{CLOCK}\r")
        terminal.until("denies \\? ")
        terminal.type("n not on a Friday\r")
        terminal.until("The clock says: Not run: the person denied it, and said: not on a Friday")
        terminal.until("> ")
        terminal.type(f"{QUESTION}\r")
        assert re.search(r"Which one\?\s+1\. red\s+2\. blue", terminal.until("1 to 2 answers \\? "))
        terminal.type("3\r")
        terminal.until("one of these")
        terminal.until("answers \\? ")
        terminal.type("2\r")
        terminal.until("ask_user gave me this:\\s+blue")
        terminal.until("> ")
        assert terminal.leave(process) == 0
    assert waiting(careful) == []


def test_an_answer_from_another_client_ends_the_prompt(careful: GatewayProcess) -> None:
    """S29: the first client to answer wins, and the terminal reports it and continues."""
    with at_terminal(careful.home, "--new") as (terminal, process):
        terminal.until("> ")
        terminal.type(f"{CLOCK}\r")
        terminal.until("denies \\? ")
        (question,) = waiting(careful)
        careful.call("POST", f"/api/approvals/{question['id']}", {"decision": "approved"})
        terminal.until("answered elsewhere: approved")
        terminal.until("The clock says")
        terminal.until("> ")
        assert terminal.leave(process) == 0


def test_ctrl_c_and_stop_cancel_the_question(careful: GatewayProcess) -> None:
    """S30: the question is closed with the turn, and the conversation continues."""
    with at_terminal(careful.home, "--new") as (terminal, process):
        terminal.until("> ")
        for stop in (CTRL_C, "/stop\r"):
            terminal.type(f"{CLOCK}\r")
            terminal.until("denies \\? ")
            terminal.type(stop)
            terminal.until("[Ss]topped")
            terminal.until("\n> ")
        terminal.type("say still here\r")
        terminal.until("still here[^>]*still here")
        terminal.until("> ")
        assert terminal.leave(process) == 0
    assert waiting(careful) == []


def test_a_user_who_joins_a_waiting_conversation_is_asked(careful: GatewayProcess) -> None:
    """S29: the user is asked immediately and follows the turn to its answer; leaving keeps the question open."""
    question = begin(careful, CLOCK)
    for leaves in (True, False):
        with at_terminal(careful.home, "--session", question["session"]) as (terminal, process):
            terminal.until("denies \\? ")
            if leaves:
                assert terminal.leave(process) == 0
                assert [row["id"] for row in waiting(careful)] == [question["id"]]
                continue
            terminal.type("yes\r")
            terminal.until("The clock says")
            terminal.until("> ")
            assert terminal.leave(process) == 0


def test_the_commands_answer_from_another_conversation(careful: GatewayProcess) -> None:
    """S29: with the id of the question."""
    question = begin(careful, QUESTION)
    with at_terminal(careful.home, "--new") as (terminal, process):
        terminal.until("> ")
        terminal.type(f"/answer {question['id']} red\r")
        terminal.until("Answered: red")
        terminal.until("> ")
        assert terminal.leave(process) == 0
    assert "red" in answer_of(careful, question["turn"])


def test_a_user_whose_message_is_queued_behind_a_question_can_answer_it(careful: GatewayProcess) -> None:
    """S29: the terminal shows the question of the turn that its message is queued behind."""
    question = begin(careful, CLOCK)
    behind = careful.call("POST", "/api/messages", {"text": "say behind", "session": question["session"]})
    assert behind["how"] == "queued"
    with at_terminal(careful.home, "--session", question["session"]) as (terminal, process):
        terminal.until("denies \\? ")
        terminal.type("n\r")
        terminal.until("> ")
        assert terminal.leave(process) == 0
    assert answer_of(careful, behind["turn"]) == "behind"


def test_approvals_are_listed_and_answered_from_outside(careful: GatewayProcess) -> None:
    """S29: in full, as text and as JSON; a wrong answer is refused with the valid ones."""
    run = tidegate("approvals", "list", home=careful.home)
    assert (run.returncode, run.stdout) == (0, "Nothing is waiting for an answer.\n")
    approval, question = begin(careful, CLOCK), begin(careful, QUESTION)
    text = tidegate("approvals", "list", home=careful.home).stdout
    assert f"{approval['id']}: an approval in owner's conversation {approval['session']}" in text
    assert "    clock\n    zone: Europe/Paris\n" in text and "    1. red\n    2. blue\n" in text
    listed = json.loads(tidegate("approvals", "list", "--json", home=careful.home).stdout)
    assert listed == [approval, question]
    only = tidegate("approvals", "list", "--session", question["session"], "--json", home=careful.home)
    assert json.loads(only.stdout) == [question]
    bounded = tidegate("approvals", "list", "--limit", "1", home=careful.home)
    assert "more than 1" in bounded.stderr

    def answer(id: str, *words: str) -> Any:
        return tidegate("approvals", "answer", id, *words, home=careful.home)

    assert answer(approval["id"], "perhaps").returncode == 2
    assert "one of these" in answer(question["id"], "green").stderr
    missing = answer("ap_none", "approve")
    assert missing.returncode == 1 and "approvals list" in missing.stderr
    assert "There is no question 'a/b'" in answer("a/b", "approve").stderr
    denied = answer(approval["id"], "deny", "not", "now")
    assert (denied.returncode, denied.stdout) == (0, "Denied: not now\n")
    assert "already closed" in answer(approval["id"], "approve").stderr
    taken = json.loads(answer(question["id"], "1", "--json").stdout)
    assert (taken["state"], taken["answer"]) == ("answered", "red")
    assert "not now" in answer_of(careful, approval["turn"]) and "red" in answer_of(careful, question["turn"])


def test_an_approval_for_the_conversation_or_for_good_is_given_at_the_terminal(careful: GatewayProcess) -> None:
    """S29, X14: the question states what each allows; nobody is asked again, and an approval for all conversations
    takes a whole word."""
    with at_terminal(careful.home, "--new") as (terminal, process):
        terminal.until("> ")
        terminal.type(f"{CLOCK}\r")
        shown = " ".join(terminal.until("denies \\? ").split())
        assert "Europe/Paris c: The agent main may call clock with any arguments in this conversation" in shown
        assert "always: The agent main may call clock with any arguments in every conversation of owner" in shown
        assert "y approves this call, c for this conversation, always for all, n" in shown
        terminal.type("a\r")
        terminal.until("Not understood")
        terminal.until("denies \\? ")
        terminal.type("c\r")
        for _ in range(2):
            terminal.until("The clock says")
            terminal.until("> ")
            terminal.type(f"{CLOCK}\r")
        terminal.until("The clock says")
        terminal.until("> ")
        terminal.type("/new\r")
        terminal.until("> ")
        terminal.type(f"{CLOCK}\r")
        terminal.until("denies \\? ")
        terminal.type("always\r")
        terminal.until("The clock says")
        terminal.until("> ")
        assert terminal.leave(process) == 0
    run = tidegate("approvals", "rules", home=careful.home)
    assert "given by owner" in run.stdout and "in every conversation of owner" in run.stdout
    [rule] = json.loads(tidegate("approvals", "rules", "--json", home=careful.home).stdout)
    assert rule["id"] in run.stdout and rule["conversation"] is None
    removed = tidegate("approvals", "rules", "remove", rule["id"], home=careful.home)
    assert (removed.returncode, removed.stdout) == (0, "Removed 1 stored approval.\n")
    assert tidegate("approvals", "rules", home=careful.home).stdout == "No approval is stored.\n"
    for id in (rule["id"], "a/b"):
        missing = tidegate("approvals", "rules", "remove", id, home=careful.home)
        assert missing.returncode == 1 and "approvals rules" in missing.stderr


def test_an_approval_for_more_than_the_call_is_given_from_a_shell_and_by_command(careful: GatewayProcess) -> None:
    """S29: the reply of the command repeats what it allows."""
    question = begin(careful, CLOCK)
    listed = tidegate("approvals", "list", home=careful.home).stdout
    assert "\n  approve conversation: The agent main may call clock" in listed
    given = tidegate("approvals", "answer", question["id"], "approve", "conversation", "--json", home=careful.home)
    assert json.loads(given.stdout)["scope"] == "conversation"
    answer_of(careful, question["turn"])
    only = tidegate("approvals", "rules", "--session", question["session"], "--json", home=careful.home)
    assert [rule["uses"] for rule in json.loads(only.stdout)] == [0]
    other = begin(careful, CLOCK)
    said = {"text": f"/approve {other['id']} always", "session": other["session"]}
    reply = careful.call("POST", "/api/messages", said)["reply"]["text"]
    assert reply.startswith("Approved: clock zone: Europe/Paris\nThe agent main may call clock") and "every" in reply
    answer_of(careful, other["turn"])
    rules = json.loads(tidegate("approvals", "rules", "--json", home=careful.home).stdout)
    ids = [rule["id"] for rule in rules]
    removed = tidegate("approvals", "rules", "remove", *ids, "--json", home=careful.home)
    assert json.loads(removed.stdout) == {"removed": 2}


def test_an_argument_cannot_imitate_what_an_approval_allows(careful: GatewayProcess) -> None:
    """X14: the lines of the action are indented further than those of the gateway."""
    forged = {"zone": "Europe/Paris", "approve conversation": "Nothing else.", "c": "Nothing else."}
    question = begin(careful, f"call clock {json.dumps(forged)}")
    listed = tidegate("approvals", "list", home=careful.home).stdout
    lines = [line for line in listed.splitlines() if "Nothing else" in line or "approve conversation:" in line]
    assert [len(line) - len(line.lstrip()) for line in lines] == [4, 4, 2]
    with at_terminal(careful.home, "--session", question["session"]) as (terminal, process):
        shown = terminal.until("denies \\? ")
        assert re.findall(r"^( *)c: (\w+)", shown.replace("\r", ""), re.MULTILINE) == [("    ", "Nothing"), ("", "The")]
        terminal.type("n\r")
        terminal.until("> ")
        assert terminal.leave(process) == 0


def test_a_kill_after_the_answer_loses_neither_the_answer_nor_what_it_allows(tmp_path: Path) -> None:
    """S31, F4: the next process runs the approved call, and asks no more."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(CAREFUL)
    with gateway(home) as first:
        question = begin(first, CLOCK)
        first.call("POST", f"/api/approvals/{question['id']}", {"decision": "approved", "scope": "always"})
        first.signal(signal.SIGKILL)
        first.wait()
    with gateway(home) as second:
        assert "The clock says" in answer_of(second, question["turn"])
        sent = second.call("POST", "/api/messages", {"text": CLOCK, "attended": False})
        assert "Europe/Paris" in answer_of(second, sent["turn"])
        [rule] = second.call("GET", "/api/approval-rules")["rules"]
        assert rule["uses"] == 1


def test_nobody_is_asked_in_a_pipe(careful: GatewayProcess) -> None:
    """X11: an action that needs approval is not run, and the script does not hang."""
    run = tidegate("chat", home=careful.home, input=f"{CLOCK}\n{QUESTION}\n")
    assert run.returncode == 0
    assert "nobody can be asked" in run.stdout and "Nobody was asked" in run.stdout
    assert waiting(careful) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_question_survives_a_restart_and_the_terminal_continues(tmp_path: Path, how: signal.Signals) -> None:
    """S29, S31: after a stop or a kill and a restart, it can be answered in the terminal that stayed open."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(CAREFUL)
    with gateway(home) as first, at_terminal(home, "--new") as (terminal, process):
        terminal.until("> ")
        terminal.type(f"{CLOCK}\r")
        terminal.until("denies \\? ")
        first.signal(how)
        first.wait()
        terminal.type("y\r")
        terminal.until("No gateway is running|is not responding")
        with gateway(home) as second:
            question = open_question(second)
            terminal.until("denies \\? ")
            terminal.type("y\r")
            terminal.until("The clock says")
            rows = second.call("GET", f"/api/sessions/{question['session']}/messages?after=0")["messages"]
            assert [row["message"]["role"] for row in rows] == ["user", "assistant", "tool", "assistant"]
            terminal.until("> ")
            assert terminal.leave(process) == 0
