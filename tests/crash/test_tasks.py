"""A real gateway is killed with SIGKILL at each point of delegating a task: no task is lost, and none is done twice."""

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.process import WAIT, GatewayProcess, gateway

SETTINGS = """
[models.main]
api = "demo"
[agents.main]
model = "main"
approvals = "autonomous"
tools = ["delegate"]
delegates = ["helper"]
[agents.helper]
model = "main"
approvals = "autonomous"
tools = ["delegate"]
delegates = ["worker"]
[agents.worker]
model = "main"
approvals = "autonomous"
workspace = "project"
tools = ["files"]
[limits]
turns = 1
resumes = {resumes}
"""

SAID = 'delegate to helper: delegate to worker: call write_file {"path": "a.txt", "content": "done"}'

FAULT = """
import functools, os, pathlib

def dies(place, name, when, unless=lambda *a, **k: False):
    module, _, kind = place.rpartition(".")
    owner = getattr(__import__(module, fromlist=[kind]), kind)
    original = getattr(owner, name)
    mark = pathlib.Path(os.environ["DIES_ONCE"])

    def die(*given, **named):
        if not unless(*given, **named) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)

    @functools.wraps(original)
    async def call(*given, **named):
        if when == "before":
            die(*given, **named)
        value = await original(*given, **named)
        if when == "after":
            die(*given, **named)
        return value

    setattr(owner, name, call)
"""

WORKER = "lambda self, ctx, agent, *a, **k: agent != 'worker'"
HELPER = "lambda self, ctx, agent, *a, **k: agent != 'helper'"
RESULT = "lambda self, name, *a, **k: not name.startswith('tool-') or (self._live.parent is None) != {outer}"

POINTS = {
    "before the task is given": f"'tidegate.turns.delegation.Delegation', '_give', 'before', {HELPER}",
    "when it is given": f"'tidegate.turns.delegation.Delegation', '_give', 'after', {HELPER}",
    "when it gives one itself": f"'tidegate.turns.delegation.Delegation', '_give', 'after', {WORKER}",
    "when the innermost is about to act": "'tidegate.agent.tool_runner.ToolRunner', '_run_tool', 'before',"
    " lambda self, step, tool, *a, **k: tool.name != 'write_file'",
    "when the innermost has acted": "'tidegate.agent.tool_runner.ToolRunner', '_run_tool', 'after',"
    " lambda self, step, tool, *a, **k: tool.name != 'write_file'",
    "when the innermost has answered": f"'tidegate.turns.delegation.Delegation', '_outcome', 'after', {WORKER}",
    "when that answer is written down": "'tidegate.engine.journal.Journal', '_commit', 'after',"
    + RESULT.format(outer=False) + " or not self._live.parent.parent is None or not self._live.children == {}",
    "when the outer one has answered": f"'tidegate.turns.delegation.Delegation', '_outcome', 'after', {HELPER}",
    "when its answer is the result": "'tidegate.engine.journal.Journal', '_commit', 'after',"
    + RESULT.format(outer=True),
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    (home / "project").chmod(0o777)  # if root created it, agents are another user
    return home


def faulty(tmp_path: Path, point: str) -> dict[str, str]:
    """The environment of a gateway that dies at this point, once."""
    folder = tmp_path / "faulty"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"{FAULT}\ndies({POINTS[point]})\n")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "DIES_ONCE": str(tmp_path / "died")}


def say(running: GatewayProcess) -> str:
    """The turn of the one message, however often it is sent."""
    said = {"text": SAID}
    return str(running.call("POST", "/api/messages", said, **{"Idempotency-Key": "once"})["turn"])


def over(running: GatewayProcess, turn: str) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT
    while (found := running.call("GET", f"/api/turns/{turn}"))["state"] in ("queued", "running"):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return dict(found)


def left(home: Path) -> dict[str, Any]:
    """The contents of the store after the gateway has ended."""
    with closing(sqlite3.connect(home / "tidegate.db")) as db:
        tables = ("sessions", "turns", "receipts", "intents")
        counts = {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
        agents = dict(db.execute("SELECT agent, count(*) FROM usage GROUP BY agent").fetchall())
    return {**counts, "calls": agents}


@pytest.mark.parametrize("point", POINTS)
def test_after_a_kill_at_any_point_the_turn_continues_and_no_task_is_done_twice(
    home: Path, tmp_path: Path, point: str
) -> None:
    """F4, P01, P02, P05: each step of turn and tasks is stored once, even if a model call is repeated."""
    (home / "tidegate.toml").write_text(SETTINGS.format(resumes=3))
    with gateway(home, **faulty(tmp_path, point)) as running:
        with suppress(OSError):  # it may die before it acknowledges
            say(running)
        assert running.wait() == -9
    with gateway(home) as running:
        outcome = over(running, say(running))
        assert outcome["state"] == "answered", outcome
        answer = running.call("GET", f"/api/sessions/{outcome['session']}/messages")["messages"][-1]["message"]["text"]
        assert answer.count("The answer from agent") == 2, answer
        acted = point == "when the innermost is about to act"
        assert ("effect is unknown" in answer) == (acted or point == "when the innermost has acted"), answer
        assert running.call("GET", "/api/status")["census"]["turns_delegating"] == 0
        running.call("POST", f"/api/sessions/{outcome['session']}/end")
        running.process.terminate()
        assert running.wait() == 0
    assert (home / "project" / "a.txt").exists() != acted
    assert left(home) == {
        "sessions": 1, "turns": 1, "receipts": 1, "intents": 0, "calls": {"main": 2, "helper": 2, "worker": 2},
    }  # fmt: skip
    assert list((home / "workspaces").glob("*")) == [] and list((home / "spool").glob("s_*")) == []


def test_a_task_that_is_not_resumed_is_reported_to_the_turn_that_waits_for_it(home: Path, tmp_path: Path) -> None:
    """F4, S17: whoever only waited continues, and nothing is left of the tasks."""
    (home / "tidegate.toml").write_text(SETTINGS.format(resumes=0))
    with gateway(home, **faulty(tmp_path, "when the innermost is about to act")) as running:
        with suppress(OSError):
            say(running)
        assert running.wait() == -9
    with gateway(home) as running:
        outcome = over(running, say(running))
        assert outcome["state"] == "answered", outcome
        answer = running.call("GET", f"/api/sessions/{outcome['session']}/messages")["messages"][-1]["message"]["text"]
        assert "limits.resumes is 0" in answer, answer
        assert running.call("GET", "/api/status")["turns"]["running"] == 0
        running.process.terminate()
        assert running.wait() == 0
    assert left(home) == {
        "sessions": 1, "turns": 1, "receipts": 1, "intents": 0, "calls": {"main": 2, "helper": 2, "worker": 1},
    }  # fmt: skip
