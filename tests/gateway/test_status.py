"""The status of a gateway: one typed value with one JSON form."""

import json
from pathlib import Path
from typing import Any

from bench.subjects import ScriptedModel
from tests.gateway.process import gateway, tidegate
from tidegate.gateway import ask

RECORDED = Path(__file__).with_name("status_keys.txt")
OPEN_MAPS = {"kinds", "unloads", "leases", "enforced", "failures"}
"""Maps whose keys depend on what the gateway has done."""
SETTINGS = """
[models.main]
api = "openai-chat"
base_url = "{url}/v1"
model = "scripted"
[agents.main]
model = "main"
"""


def key_paths(value: Any, path: str = "") -> set[str]:
    """Each key in a JSON value with the keys above it; items of a list and keys of an open map share one path."""
    if isinstance(value, list):
        return set().union(*(key_paths(item, f"{path}[]") for item in value))
    if not isinstance(value, dict):
        return set()
    is_open = path.rpartition(".")[2] in OPEN_MAPS
    found: set[str] = set()
    for key, inner in value.items():
        inner_path = f"{path}.{'*' if is_open else key}"
        found |= {inner_path} | key_paths(inner, inner_path)
    return found


def recorded(*kinds: str) -> set[str]:
    """The recorded paths of these kinds of key."""
    lines = [line.split(maxsplit=1) for line in RECORDED.read_text().splitlines() if not line.startswith("#")]
    return {path for kind, path in lines if kind in kinds}


def check(status: dict[str, Any], *kinds: str) -> None:
    found = key_paths(status) - recorded("sometimes")
    assert sorted(found) == sorted(recorded("always", *kinds))


def test_the_json_form_of_the_status_has_the_recorded_keys(tmp_path: Path) -> None:
    """F3: programs read `tidegate status --json`, GET /api/status and the control socket: no key is added, lost or
    renamed unnoticed."""
    recording = tmp_path / "recording.jsonl"
    modes = {"plain": (), "records": ("--record", str(recording)), "replays": ("--replay", str(recording))}
    with ScriptedModel(tmp_path / "model") as model:
        for mode, arguments in modes.items():
            home = tmp_path / mode
            home.mkdir(mode=0o700)
            (home / "tidegate.toml").write_text(SETTINGS.format(url=model.url))
            with gateway(home, *arguments) as running:
                running.say("hello")
                check(running.call("GET", "/api/status"), mode, "memory")
                check(ask(home, {"do": "status", "memory": True}), mode, "memory")
                check(ask(home, {"do": "status"}), mode)
                check(json.loads(tidegate("status", "--json", home=home).stdout), mode)
