"""`tidegate models`, and the doctor's warnings about unknown models; both without a gateway."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.process import tidegate

SETTINGS = """
[models.main]
api = "anthropic"
base_url = "https://api.example.org/v1"
model = "claude-opus-5"
keys = ["env:TG_CANARY_ONE", "file:canary-two"]
[models.spare]
api = "openai-chat"
base_url = "https://models.example.org/v1"
model = "tide-9"
key = "env:TG_CANARY_THREE"
price_input = 0.1
price_output = 2
[models.toy]
api = "demo"
[agents.main]
model = "main"
fallback = ["spare", "toy"]
[agents.helper]
model = "spare"
"""


def listed(home: Path) -> dict[str, dict[str, Any]]:
    run = tidegate("models", "--json", home=home)
    assert run.returncode == 0, run.stderr
    return {row["name"]: row for row in json.loads(run.stdout)}


def test_models_are_listed_with_their_properties_and_agents(nobody: Path) -> None:
    """F3: from the configuration and the catalogue, without calling an endpoint."""
    (nobody / "tidegate.toml").write_text(SETTINGS)
    main, spare, toy = listed(nobody).values()
    assert (main["api"], main["model"], main["window"], main["known"]) == (
        "anthropic",
        "claude-opus-5",
        1_000_000,
        True,
    )
    assert (main["vision"], main["audio"], main["thinking"], main["efforts"][-1]) == (True, False, "adaptive", "max")
    assert main["prices"] == {"input": 5, "output": 25, "cached": 0.5, "written": 6.25}
    assert (main["agents"], main["fallback_of"]) == (["main"], [])
    assert (spare["window"], spare["vision"], spare["known"]) == (32_768, False, False)
    assert spare["prices"] == {"input": 0.1, "output": 2, "cached": None, "written": None}
    assert (spare["agents"], spare["fallback_of"]) == (["helper"], ["main"])
    assert (toy["keys"], toy["prices"]["input"], toy["fallback_of"]) == (0, 0, ["main"])
    table = tidegate("models", home=nobody).stdout
    heads, *rows = table.splitlines()
    assert heads.split()[:3] == ["name", "api", "model"]
    assert "5 in, 25 out, 0.5 cached" in rows[0] and "text, images" in rows[0] and "adaptive none…max" in rows[0]
    assert "helper, main (fallback)" in rows[1]
    assert "free" in rows[2]
    assert rows[-1] == (
        f"Not in the catalogue, so safe defaults apply: spare. `tidegate doctor --home {nobody}` shows which settings "
        "to add."
    )


def test_only_the_number_of_keys_is_shown(nobody: Path) -> None:
    """X15: neither the keys nor their sources."""
    (nobody / "tidegate.toml").write_text(SETTINGS)
    (nobody / "canary-two").write_text("canary-secret")
    rows = listed(nobody)
    assert [row["keys"] for row in rows.values()] == [2, 1, 0]
    said = json.dumps(rows) + tidegate("models", home=nobody).stdout
    assert "canary" not in said.lower()


def test_without_a_file_the_demo_model_is_listed(nobody: Path) -> None:
    (row,) = listed(nobody).values()
    assert (row["api"], row["agents"], row["known"]) == ("demo", ["main"], True)
    assert "Not in the catalogue" not in tidegate("models", home=nobody).stdout


def test_the_prices_of_long_requests_are_listed(nobody: Path) -> None:
    (nobody / "tidegate.toml").write_text(SETTINGS.replace("claude-opus-5", "claude-haiku-5-5"))
    assert listed(nobody)["main"]["prices"]["long"] == {"over": 100_000, "input_times": 5, "output_times": 5}


def test_an_invalid_configuration_is_reported(nobody: Path) -> None:
    """F3: one sentence with the file's path, exit code 1."""
    (nobody / "tidegate.toml").write_text("[models.main]\napi = 'anthropic'\nmodel = 'm'\n")
    run = tidegate("models", home=nobody)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (1, "", 1)
    assert f"{nobody}/tidegate.toml: [models.main] requires the key 'base_url'" in run.stderr


def findings(home: Path) -> dict[str, dict[str, str]]:
    return {finding["name"]: finding for finding in json.loads(tidegate("doctor", "--json", home=home).stdout)}


def test_the_doctor_shows_the_assumptions_about_an_unknown_model(nobody: Path) -> None:
    """F3: one line per model, with the assumed values and the settings for them, except those already set."""
    (nobody / "tidegate.toml").write_text(SETTINGS)
    found = findings(nobody)
    told = found["model spare"]
    assert told["state"] == "warn"
    assert "a window of 32,768 tokens, no images and no audio: set" in told["text"]
    assert told["text"].endswith("set context_window, vision and audio in [models.spare].")
    assert "model main" not in found and "model toy" not in found and "models" not in found
    free = SETTINGS.replace("price_input = 0.1\nprice_output = 2\n", "context_window = 8192\n")
    (nobody / "tidegate.toml").write_text(free)
    told = findings(nobody)["model spare"]
    assert told["text"].endswith(
        "no images, no audio and no price: set vision, audio, price_input and price_output in [models.spare]."
    )
    known = SETTINGS.replace("price_input", "vision = true\ncontext_window = 8192\nprice_input")
    (nobody / "tidegate.toml").write_text(known)
    assert findings(nobody)["models"]["state"] == "ok"


@pytest.mark.parametrize("model", ["qwen3:8b", "gpt-oss:20b"])
def test_the_doctor_suggests_setting_the_window_of_a_local_server(nobody: Path, model: str) -> None:
    """A local server's window depends on how it was started and not on the model."""
    text = f'[models.main]\napi = "openai-chat"\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "{model}"\n'
    (nobody / "tidegate.toml").write_text(text)
    assert "set context_window to the server's value" in findings(nobody)["model main"]["text"]
    (nobody / "tidegate.toml").write_text(text + "context_window = 4096\n")
    assert findings(nobody)["models"]["state"] == "ok"


def test_the_doctor_continues_if_the_configuration_is_invalid(nobody: Path) -> None:
    (nobody / "tidegate.toml").write_text("[models.main]\napi = 'telepathy'\n")
    found = findings(nobody)
    assert (found["configuration"]["state"], found["models"]["state"]) == ("fail", "warn")
