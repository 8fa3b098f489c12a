"""Vectors of messages in a running gateway: made by its timer, kept over a kill, gone with their conversation."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.subjects import ScriptedModel
from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate
from tidegate.gateway.preflight import PreflightFailed
from tidegate.gateway.preflight.preflight import examine

SETTINGS = """
[models.main]
api = "demo"
[models.near]
api = "openai-embeddings"
base_url = "{url}/v1"
model = "text-embedding-3-small"
[agents.main]
tools = ["context"]
[context]
embeddings = "near"
"""


def until(running: GatewayProcess, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT
    while not holds(found := running.call("GET", "/api/status")["search"]["vectors"]):
        assert time.monotonic() < deadline, found
    return dict(found)


def test_a_conversation_is_found_by_meaning_also_after_a_kill(tmp_path: Path) -> None:
    """F4: every message is sent once for each run that ends, and nothing is sent again after a kill."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with ScriptedModel(tmp_path / "model") as model:
        (home / "tidegate.toml").write_text(SETTINGS.format(url=model.url))
        model.call("POST", "/behaviour", {"synonyms": [["vessel", "boat"], ["crimson", "red"]]})
        with gateway(home) as running:
            running.say("my boat is red", "talk")
            found = until(running, lambda vectors: bool(vectors["bytes"]) and not vectors["waiting"])
            assert (found["model"], found["dimensions"], found["bytes"]) == ("near", 256, 512)
            assert "| my boat is red\n" in running.say("search for crimson vessel", "talk")
            usage = running.call("GET", "/api/usage?by=model")["rows"]
            assert {row["key"] for row in usage} == {"demo", "text-embedding-3-small"}
            assert b"tidegate_vectors_bytes " in running.read("GET", "/metrics")
            assert "by near" in tidegate("status", home=home).stdout
            running.signal(signal.SIGKILL)
            running.wait()
        sent = model.call("GET", "/stats")["texts"]
        with gateway(home) as running:
            (log,) = running.call("GET", "/api/sessions")["sessions"]
            before = until(running, lambda vectors: not vectors["waiting"])
            assert before["bytes"] >= 512
            assert model.call("GET", "/stats")["texts"] - sent <= 2, "those of the search itself"
            model.call("POST", "/behaviour", {"services": {"embeddings": "status 500"}})
            running.say("and it is fast", "talk")
            assert "| my boat is red\n" in running.say("search for red boats", "talk")
            running.call("DELETE", f"/api/sessions/{log['id']}")
            assert until(running, lambda vectors: not vectors["bytes"])["waiting"] == 0


def test_vectors_that_cannot_be_compared_are_reported_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence that says what to install; and a setting without effect is a warning."""
    settings = SETTINGS.format(url="http://127.0.0.1:1")
    (tmp_path / "tidegate.toml").write_text(settings.replace('["context"]', "[]"))
    assert any("embeddings has no effect" in warning for warning in examine(tmp_path, {}).warnings)
    (tmp_path / "tidegate.toml").write_text(settings)
    assert examine(tmp_path, {}).warnings == ()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(PreflightFailed) as caught:
        examine(tmp_path, {})
    (error,) = caught.value.errors
    assert error.endswith("is not installed; install it with pip install 'tidegate[vectors]'")


def test_a_gateway_without_embeddings_loads_nothing_for_them(tmp_path: Path) -> None:
    """The idle memory does not grow: neither the models of other kinds nor the extension are loaded."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with gateway(home) as running:
        running.say("hello", "talk")
        assert running.call("GET", "/api/status")["search"]["vectors"] is None
        maps = Path(f"/proc/{running.pid}/maps").read_text()
        assert "apsw" in maps and "vec0" not in maps and "numpy" not in maps
