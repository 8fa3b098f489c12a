"""A gateway that is the first process of its system, as in a container without an init."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workspaces.harness import WAIT
from tidegate.workspaces.processes.reaper import Reaper

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
def test_a_gateway_that_is_the_first_process_reaps_all_zombies(tmp_path: Path, backend: str) -> None:
    """L15: a normal end leaves no zombie; processes killed from outside are reaped on the timer."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a first process without a sandbox, in which there can be no other")
    command = [sys.executable, "-m", "tests.workspaces.first_process", str(tmp_path / "home"), backend]
    done = subprocess.run(
        ["unshare", "-p", "-f", "--mount-proc", "--kill-child", *command],
        cwd=ROOT, capture_output=True, text=True, timeout=2 * WAIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    word, plain, harmed, left = done.stdout.split()
    assert (word, plain, left) == ("zombies", "0", "0")
    assert int(harmed) > 0  # otherwise nothing was tested


def test_a_gateway_that_is_not_the_first_process_reaps_only_its_own_children() -> None:
    with subprocess.Popen(["/bin/sh", "-c", "exit 7"]) as child:
        assert os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT) is not None
        strays = Reaper()
        assert [strays.reap() for _ in range(3)] == [0, 0, 0]
        assert child.wait() == 7
