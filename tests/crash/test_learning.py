"""The gateway is killed while a conversation's end is being learnt from."""

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


def test_a_kill_between_the_end_and_its_effect_leaves_what_was_learnt_once(tmp_path: Path) -> None:
    """B6, F4, V14: the next process learns it, and the one after that does not learn it again."""
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
