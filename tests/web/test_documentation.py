"""The examples of docs/http.md, run against a real gateway."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.house import WAIT, house

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).resolve().parents[2] / "docs" / "http.md"
BLOCKS = [
    (language, code)
    for language, code in re.findall(r"^```(sh|python)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    if language == "python" or shutil.which("curl")
]


async def test_every_example_of_the_documentation_works(home: Path) -> None:
    """H10, H18: as a reader would run them, one after the other, against one gateway."""
    assert len(BLOCKS) >= (8 if shutil.which("curl") else 2)
    async with house(home) as h:
        environment = {**os.environ, "TIDEGATE": h.url, "TIDEGATE_KEY": h.key}
        for language, code in BLOCKS:
            command = ["bash", "-euo", "pipefail", "-c", code.replace("curl -sS", "curl -sS --fail-with-body")]
            if language == "python":
                command = [sys.executable, "-c", code]
            with anyio.fail_after(3 * WAIT):
                done = await anyio.to_thread.run_sync(run, command, environment)
            assert done.returncode == 0, (code, done.stdout, done.stderr)
            assert done.stdout.strip(), code
        status = h.door.status()["turns"]
        assert status["failed"] == 0 and status["running"] == 0


def run(command: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * WAIT, check=False)
