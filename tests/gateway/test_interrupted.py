"""A real gateway, a real sandbox and a custom tool: a call that had an effect is never reported as not run."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.terminal import CTRL_C, at_terminal
from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate

SETTINGS = """
[models.main]
api = "demo"
[agents.main]
model = "main"
approvals = "autonomous"
tools = ["terminal", "own", "ask"]
[workspaces]
backend = "bubblewrap"
[limits]
resumes = {resumes}
"""

OWN = '''
import asyncio
from pathlib import Path

from tidegate.plugins import ToolContext, Toolset, plugin, tool


@tool(effect="network", timeout=None, owner="own")
async def transfer(ctx: ToolContext, *, to: str) -> str:
    """Transfers something."""
    Path(to).touch()
    await asyncio.Event().wait()
    return "transferred"


@plugin("toolset")
async def make(ctx):
    return Toolset([transfer])
'''

UNKNOWN = "Interrupted: its effect is unknown, and it was not run again."


class Deed(NamedTuple):
    """A call that has had its effect and is still under way."""

    session: str
    turn: str
    effect: Path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / "plugins").mkdir(parents=True)
    (folder / "plugins" / "own.py").write_text(OWN)
    configure(folder, resumes=0)
    return folder


def configure(home: Path, *, resumes: int) -> None:
    (home / "tidegate.toml").write_text(SETTINGS.format(resumes=resumes))


def begin(running: GatewayProcess) -> list[Deed]:
    """One command in a sandbox, and one call of a tool of one's own."""
    marks = running.home.parent / "marks"
    marks.mkdir(exist_ok=True)
    deeds = []
    for number, text in enumerate(("run echo x >> done; sleep 100000", 'call transfer {{"to": "{}"}}')):
        mark = marks / str(time.monotonic_ns())
        accepted = running.call("POST", "/api/messages", {"text": text.format(mark)})
        effect = mark if number else running.home / "workspaces" / accepted["session"] / "done"
        deeds.append(Deed(accepted["session"], accepted["turn"], effect))
    deadline = time.monotonic() + WAIT
    while not all(deed.effect.exists() for deed in deeds):
        assert time.monotonic() < deadline, "the tools did not start"
        time.sleep(0.005)
    return deeds


def ended(running: GatewayProcess, turn: str) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT
    while (outcome := running.call("GET", f"/api/turns/{turn}"))["state"] in ("queued", "running"):
        assert time.monotonic() < deadline, outcome
        time.sleep(0.005)
    return dict(outcome)


def check(running: GatewayProcess, deed: Deed) -> None:
    rows = running.call("GET", f"/api/sessions/{deed.session}/messages?after=0")["messages"]
    [result] = [row["message"] for row in rows if row["message"]["role"] == "tool"]
    assert result["text"].startswith(UNKNOWN) and result["interrupted"] and result["failed"]


def _stop(running: GatewayProcess, session: str) -> None:
    running.call("POST", f"/api/sessions/{session}/stop")


def _interrupt(running: GatewayProcess, session: str) -> None:
    running.call("POST", "/api/messages", {"text": "say hello", "session": session, "busy": "interrupt"})


def _new(running: GatewayProcess, session: str) -> None:
    running.call("POST", "/api/messages", {"text": "/new", "session": session})


def _end(running: GatewayProcess, session: str) -> None:
    running.call("POST", f"/api/sessions/{session}/end")


WAYS: tuple[Callable[[GatewayProcess, str], None], ...] = (_stop, _interrupt, _new, _end)


def test_a_stopped_command_and_a_stopped_tool_of_the_user_are_reported_as_interrupted(home: Path) -> None:
    """P05, B2: stopped, interrupted, left with /new, ended: the effect is on disk, and the row says unknown. What was
    said into an ended conversation stands in its transcript."""
    with gateway(home) as running:
        for way in WAYS:
            for deed in begin(running):
                late = {"text": "say and?", "session": deed.session, "busy": "steer"}
                assert running.call("POST", "/api/messages", late)["turn"] == deed.turn
                way(running, deed.session)
                outcome = ended(running, deed.turn)
                assert outcome["state"] == "stopped"
                check(running, deed)
                [notice] = outcome["notices"]
                rows = running.call("GET", f"/api/sessions/{deed.session}/messages?after=0")["messages"]
                unanswered = [row["message"]["text"] for row in rows if row["message"].get("unanswered")]
                if way in (_new, _end):
                    assert "not answered" in notice and unanswered == ["say and?"]
                else:
                    assert "came too late" in notice and unanswered == []


@pytest.mark.parametrize("resumes", [0, 3])
def test_a_command_and_a_tool_of_the_user_cut_off_by_a_kill_are_reported_as_interrupted(
    home: Path, resumes: int
) -> None:
    """P05, S17, F4: given up, or gone on with; never run again, and never told as not run."""
    configure(home, resumes=resumes)
    with gateway(home) as running:
        deeds = begin(running)
        running.process.kill()
        running.wait()
    with gateway(home) as running:
        for deed in deeds:
            outcome = ended(running, deed.turn)
            assert outcome["state"] == ("answered" if resumes else "failed")
            check(running, deed)
        assert deeds[0].effect.read_text() == "x\n"


@pytest.mark.parametrize("hows", ["KILL KILL", "TERM KILL TERM KILL", "KILL TERM KILL"])
def test_a_turn_that_waits_for_a_person_waits_through_any_number_of_kills(home: Path, hows: str) -> None:
    """S17, S29: nothing failed while it waited, so none of them counts towards limits.resumes."""
    with gateway(home) as running:
        text = 'call ask_user {"question": "Which one?", "choices": ["red", "blue"]}'
        turn = running.call("POST", "/api/messages", {"text": text})["turn"]
        asked = question(running)
        running.process.kill()
        running.wait()
    for how in hows.split():
        with gateway(home) as running:
            assert question(running)["id"] == asked["id"]
            running.signal(signal.Signals[f"SIG{how}"])
            running.wait()
    with gateway(home) as running:
        running.call("POST", f"/api/approvals/{asked['id']}", {"decision": "answered", "text": "red"})
        assert "red" in ended(running, turn)["text"]


def question(running: GatewayProcess) -> dict[str, Any]:
    """The one open question, of a turn that waits for its answer in this process."""
    deadline = time.monotonic() + WAIT
    while not running.call("GET", "/api/status")["turns"]["asking"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    [found] = running.call("GET", "/api/approvals")["approvals"]
    return dict(found)


def test_the_terminal_shows_a_stopped_command_as_interrupted(home: Path) -> None:
    """P05, S14, A12: with its unknown effect, as it is stopped; `sessions show` has it later too, and what was said
    into an ended conversation."""
    with gateway(home) as running:
        with at_terminal(home, "--new") as (terminal, process):
            terminal.until("> ")
            terminal.type("run echo begun; sleep 100000\r")
            terminal.until(r'100000"}[^>]*begun')
            terminal.type(CTRL_C)
            assert "terminal failed" not in terminal.until(r"terminal: Interrupted: its effect is unknown")
            terminal.until("> ")
            assert terminal.leave(process) == 0
        deed, _ = begin(running)
        running.call("POST", "/api/messages", {"text": "say and?", "session": deed.session, "busy": "steer"})
        _end(running, deed.session)
        shown = tidegate("sessions", "show", deed.session, home=home).stdout
        assert UNKNOWN in shown and "say and?\n(not answered: the conversation ended first)" in shown
