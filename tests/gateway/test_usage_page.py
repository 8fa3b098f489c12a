"""The page about usage and budgets: its commands run, its settings are valid, what it names is there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.gateway.process import WAIT, environment, gateway
from tidegate.config import BudgetSettings, read
from tidegate.config.tables.declarations import settings_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "usage.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_every_documented_command_works(tmp_path: Path) -> None:
    """F3, H20: as a reader would type them, against a gateway that has answered something."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text("\n".join(blocks("toml")))
    assert len(blocks("sh")) == 2
    with gateway(home) as running:
        running.say("say hello")
        env = environment(
            TIDEGATE_HOME=str(home),
            TIDEGATE=running.address,
            TIDEGATE_KEY=(home / "api-key").read_text().strip(),
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        )
        for line in "".join(blocks("sh")).splitlines():
            if line.startswith("curl") and not shutil.which("curl"):
                continue
            line = line.replace("curl -sS", "curl -sS --fail-with-body")
            done = subprocess.run(
                ["bash", "-c", line], env=env, capture_output=True, text=True, timeout=WAIT, check=False
            )
            assert done.returncode == 0 and done.stdout.strip(), (line, done.stdout, done.stderr)
        example = json.loads(*blocks("json"))
        answer = running.call("GET", "/api/usage?by=day")
        assert set(example) == set(answer) and set(example["total"]) == set(answer["total"])
        assert set(example["rows"][0]) == set(answer["rows"][0])
        metrics = [line.split("{")[0] for line in _metrics(running.address, env["TIDEGATE_KEY"]).splitlines()]
        for name in re.findall(r"tidegate_\w+(?=\{)", PAGE):
            assert name in metrics


def _metrics(address: str, key: str) -> str:
    from urllib.request import Request, urlopen

    with urlopen(Request(f"{address}/metrics", headers={"Authorization": f"Bearer {key}"}), timeout=WAIT) as response:
        return str(response.read().decode())


def test_the_pages_budgets_are_valid_and_every_key_is_explained() -> None:
    """X22: the examples are what they are said to be."""
    config = read("\n".join(blocks("toml")), Path("/srv/gate"))
    assert config.budgets["everybody"] == BudgetSettings(per="gateway", each="month", money=50.0)
    assert set(config.budgets) == {"everybody", "guests", "talk", "turn"}
    for name in settings_of(BudgetSettings):
        assert f"`{name}`" in PAGE
    assert f"{config.limits.day_tokens // 1_000_000} million" in PAGE
