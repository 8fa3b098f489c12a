"""The page about subagents is correct: its configuration is loaded, and its examples are run in order."""

import re
import subprocess
import sys
from pathlib import Path

from tests.gateway.process import WAIT, environment, gateway
from tidegate.config import read
from tidegate.security.policy import parse

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "subagents.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SAID = [
    ["delegate gave me this:", "The answer from agent 'researcher':", "the tide is high"],
    ["The answer from agent 'researcher':", "high", "The answer from agent 'reviewer':", "low"],
    ["The answer from agent 'researcher':", "The answer from agent 'reviewer':", "all is well"],
]
"""The output of the commands, in order."""


def test_every_example_works(tmp_path: Path) -> None:
    """H10, F3: as a reader would run them."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    assert [language for language, _ in BLOCKS] == ["toml", "sh", "sh", "toml"]
    (home / "tidegate.toml").write_text(BLOCKS[0][1])
    commands = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()]
    with gateway(home):
        for command, expected in zip(commands, SAID, strict=True):
            shell = f'tidegate() {{ {sys.executable} -m tidegate "$@"; }}\n{command}'
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", shell],
                env=environment(TIDEGATE_HOME=str(home)),
                capture_output=True,
                text=True,
                timeout=WAIT,
                check=False,
            )
            assert done.returncode == 0, (command, done.stderr)
            for words in expected:
                assert words in done.stdout, (command, done.stdout)


def test_the_configuration_of_the_page_can_be_read(tmp_path: Path) -> None:
    """F3: including its rule."""
    (tmp_path / "tidegate.toml").write_text(BLOCKS[0][1])
    config = read(BLOCKS[0][1], tmp_path)
    assert config.agents["main"].delegates == ("researcher", "reviewer")
    [line] = re.findall(r'rules = \["(.*)"\]', BLOCKS[-1][1])
    assert str(parse(line)) == "ask delegate agent=researcher"
    assert all(f"`limits.{name}`" in PAGE for name in ("delegates", "delegate_depth", "turns", "turn_seconds"))
