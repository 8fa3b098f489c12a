"""The gateway is killed while notes are extracted from an ended conversation."""

import signal
import time
from pathlib import Path
from typing import Any

from bench.subjects import ScriptedModel
from tests.gateway.process import WAIT, GatewayProcess, gateway
from tidegate.models import NOTES_TASK

HELD = """
[models.main]
api = "openai-chat"
base_url = "{url}/v1"
model = "scripted"
[agents.main]
model = "main"
tools = ["memory"]
"""
DEMO = '[models.main]\napi = "demo"\n[agents.main]\nmodel = "main"\ntools = ["memory"]\n'


def notes(running: GatewayProcess) -> list[Any]:
    found: list[Any] = running.call("GET", "/api/memory")["notes"]
    return found


def test_after_a_kill_the_notes_of_an_ended_conversation_are_saved_once(tmp_path: Path) -> None:
    """B6, F4, V14: the next process saves them, and the one after that does not save them again."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with ScriptedModel(tmp_path / "model") as model:
        model.call("POST", "/behaviour", {"marker": NOTES_TASK, "summary": "[hold gate]"})
        (home / "tidegate.toml").write_text(HELD.format(url=model.url.removesuffix("/v1")))
        with gateway(home) as running:
            for text in ("one", "please note: I like tea", "three"):
                running.say(text, session="talk")
            (session,) = running.call("GET", "/api/sessions")["sessions"]
            assert running.call("POST", f"/api/sessions/{session['id']}/end")["ended"]
            until(lambda: str(model.call("GET", "/requests")).count(NOTES_TASK) == 1)
            assert notes(running) == []
            running.signal(signal.SIGKILL)
            running.wait()
    (home / "tidegate.toml").write_text(DEMO)
    with gateway(home) as running:
        until(lambda: [note["text"] for note in notes(running)] == ["I like tea"])
        (note,) = notes(running)
        assert (note["source"], note["by"], note["session"]) == ("end", "owner", session["id"])
        running.signal(signal.SIGKILL)
        running.wait()
    with gateway(home) as running:
        assert notes(running) == [note]
        assert running.say("what do you remember", session="talk").endswith("(learnt from owner): I like tea")


def until(holds: Any) -> None:
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
