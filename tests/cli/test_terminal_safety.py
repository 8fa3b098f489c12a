"""Untrusted text cannot control a terminal or change the direction of the text around it."""

import json
import re
import time

import pytest

from tests.cli.terminal import at_terminal
from tests.gateway.process import WAIT, GatewayProcess

CLIPBOARD, COLOUR, C1, BIDI = "\x1b]52;c;aGk=\x07", "\x1b[31;5m", "\x9b2J\x90\x85", "\u202e\u2066\u200f\u061c"
EVIL = f"tide{CLIPBOARD}{COLOUR}{C1}{BIDI}\x00\x08\x7f\u2028gate"
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def new_conversation(running: GatewayProcess, text: str) -> str:
    """A conversation in which the user has sent this text and the model has repeated it."""
    begun = running.call("POST", "/api/messages", {"text": f"say {text}", "attended": False})
    deadline = time.monotonic() + WAIT
    while running.call("GET", f"/api/turns/{begun['turn']}")["state"] in ("queued", "running"):
        assert time.monotonic() < deadline
    return str(begun["session"])


@pytest.mark.parametrize(
    "command",
    [
        ("sessions", "show", "SESSION"),
        ("sessions", "list"),
        ("sessions", "list", "--json"),
        ("sessions", "show", "SESSION", "--json"),
        ("sessions", "export", "SESSION"),
        ("sessions", "show", EVIL.replace("\x00", "")),
        ("keys", "add", EVIL.replace("\x00", "")),
        ("keys", "add", f"kim {BIDI}"),
        ("keys", "list"),
        ("keys", EVIL.replace("\x00", "")),
        ("approvals", "answer", EVIL.replace("\x00", ""), "approve"),
    ],
    ids=lambda command: " ".join(word for word in command if word.isprintable()),
)
def test_commands_print_no_control_characters(running: GatewayProcess, command: tuple[str, ...]) -> None:
    """X14: OSC 52, CSI, C1 and bidi characters from models, users and arguments are removed; newline and tab are
    kept."""
    session = new_conversation(running, EVIL)
    given = tuple(session if word == "SESSION" else word for word in command)
    with at_terminal(running.home, command=given, NO_COLOR="1") as (terminal, process):
        process.wait(WAIT)
        with pytest.raises(AssertionError):
            terminal.until("never said")
        assert terminal.seen.strip() and FORBIDDEN.search(terminal.seen) is None, terminal.seen


def test_the_chat_prints_no_control_characters(running: GatewayProcess) -> None:
    """X14: neither from the previous conversation nor from new messages."""
    session = new_conversation(running, EVIL)
    with at_terminal(running.home, "--session", session) as (terminal, process):
        shown = terminal.until("> ")
        evil = json.dumps(EVIL.replace("\x00", "")).replace(";", "\\u003b")  # which the demo model would divide
        terminal.type(f'call clock {{"zone": {evil}}}\r')
        shown += terminal.until("clock (gave me this|says)")
        shown += terminal.until("> ")
        assert terminal.leave(process) == 0
    for order in (CLIPBOARD, COLOUR, "\x9b", "\x90", "\x85", *BIDI, "\u2028"):
        assert order not in shown + terminal.seen
    assert "tide" in shown


def test_json_output_keeps_control_characters_as_escapes(running: GatewayProcess) -> None:
    """X14: as escape sequences with the same meaning."""
    session = new_conversation(running, EVIL)
    with at_terminal(running.home, command=("sessions", "export", session), NO_COLOR="1") as (terminal, process):
        process.wait(WAIT)
        with pytest.raises(AssertionError):
            terminal.until("never said")
        rows = [json.loads(line) for line in terminal.seen.splitlines() if line.startswith("{")]
    texts = [row["message"]["text"] for row in rows if "message" in row]
    assert f"say {EVIL}" in texts, rows
