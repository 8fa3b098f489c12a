"""The leak watch finds each kind of leak and names its origin."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.project.leaks import LoopWatch, ProcessWatch
from tidegate.lifetimes import Scope

ROOT = Path(__file__).resolve().parent.parent.parent
SHORT = 0.02
"""A short wait for things that are known to stay."""


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessWatch]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    watch = ProcessWatch(tmp_path)
    yield watch
    assert watch.end() == [], "the planted fault was not cleaned up"


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


@pytest.mark.anyio
async def test_a_task_left_behind_is_named_with_its_maker() -> None:
    """L31: coroutine, name, position and origin."""
    watch = LoopWatch()
    task = asyncio.create_task(wait_for_ever(), name="forgotten")
    await asyncio.sleep(0)
    (left,) = await watch.end(SHORT)
    assert "'forgotten' (wait_for_ever)" in left and "test_leaks.py:" in left
    assert "made at" in left and "in test_a_task_left_behind_is_named_with_its_maker" in left
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.anyio
async def test_a_task_of_a_scope_is_named_with_who_started_it() -> None:
    """L31: not with the scope's own line."""
    watch = LoopWatch()
    async with Scope("process") as scope:
        scope.start(wait_for_ever, name="pump")
        (left,) = await watch.end(SHORT)
    assert "'pump'" in left and "made at" in left and "scope.py" not in left.partition("made at")[2]


@pytest.mark.anyio
async def test_a_timer_left_behind_is_named_with_what_it_calls() -> None:
    """L31: a call that is still to come."""

    def ring() -> None: ...

    watch = LoopWatch()
    timer = asyncio.get_running_loop().call_later(1000, ring)
    (left,) = await watch.end(SHORT)
    assert "ring" in left and "test_leaks.py:" in left
    timer.cancel()
    assert await LoopWatch().end() == []


@pytest.mark.anyio
async def test_an_ending_task_is_waited_for() -> None:
    """L31: neither it nor an earlier task is a leak."""
    before = asyncio.create_task(wait_for_ever())
    watch = LoopWatch()
    task = asyncio.create_task(asyncio.sleep(0.02))
    assert await watch.end(5) == []
    assert task.done()
    before.cancel()
    await asyncio.wait({before})


def test_a_thread_left_behind_is_named_with_its_position(watch: ProcessWatch) -> None:
    """L31: name, target and line."""
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="forgotten thread")
    thread.start()
    (left,) = watch.end(SHORT)
    assert "'forgotten thread' (Event.wait)" in left and "threading.py:" in left
    go.set()
    thread.join(10)


@pytest.mark.anyio
async def test_an_idle_worker_of_a_pool_is_no_leak(tmp_path: Path) -> None:
    """L08: pools keep their threads on purpose."""
    watch = ProcessWatch(tmp_path)
    await anyio.to_thread.run_sync(int)
    assert watch.end() == []


def test_a_child_left_behind_is_named_with_its_command(watch: ProcessWatch) -> None:
    """L12, L15: while it runs, and as a zombie."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    left = watch.end(SHORT)
    assert any(f"child process {child.pid} (" in line and "-c input()" in line for line in left)
    assert any(line.startswith("descriptor ") and "pipe:" in line for line in left)
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    (left_as_zombie,) = watch.end(SHORT)
    assert "zombie" in left_as_zombie
    child.wait(10)


def test_a_descriptor_left_behind_is_named_with_what_it_points_at(watch: ProcessWatch, tmp_path: Path) -> None:
    """L06: a file by its path, a socket by its number."""
    path = tmp_path.parent / f"{tmp_path.name}.open"
    with path.open("w"), socket.socket() as connection:
        left = watch.end(SHORT)
        assert any(line.endswith(f"-> {path}") for line in left)
        assert any(f"descriptor {connection.fileno()} -> socket:" in line for line in left)


def test_a_temporary_file_left_behind_is_named_and_removed(watch: ProcessWatch, tmp_path: Path) -> None:
    """L19: by its path; a folder with its contents."""
    folder = Path(tempfile.mkdtemp(prefix="forgotten-"))
    (folder / "inside").write_text("x")
    (left,) = watch.end(SHORT)
    assert left == f"temporary file {folder}" and folder.parent == tmp_path and not folder.exists()


PLANTED = """
import asyncio, tempfile
import pytest

def test_leaves_a_file(): tempfile.mkstemp(prefix="planted-")

@pytest.mark.anyio
async def test_leaves_a_task():
    test_leaves_a_task.kept = asyncio.create_task(asyncio.Event().wait(), name="planted")

def test_is_clean(tmp_path): (tmp_path / "x").write_text("x")
"""


def test_the_fixture_is_on_for_every_test(tmp_path: Path) -> None:
    """L06, L31: complete runs of pytest with the suite's own conftest fail if something is left."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "__init__.py").touch()
    (tests / "project").symlink_to(ROOT / "tests" / "project")
    (tests / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tests / "test_planted.py").write_text(PLANTED)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_planted.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 1
    assert "3 passed, 2 errors" in run.stdout
    assert "temporary file" in run.stdout and "planted-" in run.stdout and "descriptor" in run.stdout
    assert "task 'planted' (Event.wait)" in run.stdout and "test_planted.py:9 in test_leaves_a_task" in run.stdout
