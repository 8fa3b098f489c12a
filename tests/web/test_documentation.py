"""The examples of the documentation, run against a real gateway."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.in_process import WAIT, in_process_gateway
from tidegate.config import read

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "http.md"
README = (ROOT / "README.md").read_text()
BLOCKS = [
    (language, code)
    for language, code in re.findall(r"^```(sh|python)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    if language == "python" or shutil.which("curl")
]


async def test_every_example_of_the_documentation_works(home: Path) -> None:
    """H10, H18: run in order against one gateway, as a reader would."""
    assert len(BLOCKS) >= (8 if shutil.which("curl") else 2)
    async with in_process_gateway(home) as h:
        environment = {**os.environ, "TIDEGATE": h.url, "TIDEGATE_KEY": h.key}
        for language, code in BLOCKS:
            command = ["bash", "-euo", "pipefail", "-c", code.replace("curl -sS", "curl -sS --fail-with-body")]
            if language == "python":
                command = [sys.executable, "-c", code]
            with anyio.fail_after(3 * WAIT):
                done = await anyio.to_thread.run_sync(run, command, environment)
            assert done.returncode == 0, (code, done.stdout, done.stderr)
            assert done.stdout.strip(), code
        status = h.service.status().turns
        assert status.failed == 0 and status.running == 0


def run(command: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * WAIT, check=False)


async def test_the_readmes_program_talks_to_a_gateway(home: Path, tmp_path: Path) -> None:
    """H10, H02: only the home folder and the address are adapted."""
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    async with in_process_gateway(home) as h:
        folder = tmp_path / ".tidegate"
        folder.mkdir()
        (folder / "api-key").write_text(h.key + "\n")
        program = code.replace("http://127.0.0.1:8420", h.url)
        assert program != code
        environment = {**os.environ, "HOME": str(tmp_path)}
        with anyio.fail_after(3 * WAIT):
            done = await anyio.to_thread.run_sync(run, [sys.executable, "-c", program], environment)
        assert done.returncode == 0, done.stderr
        assert "UTC" in done.stdout


def test_the_readmes_configuration_is_valid(tmp_path: Path) -> None:
    """X22: every setting is known, and the model's key is a reference."""
    (toml,) = re.findall(r"^```toml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    config = read(toml, tmp_path)
    assert config.models["main"].key == "env:OPENAI_API_KEY" and not config.demo
