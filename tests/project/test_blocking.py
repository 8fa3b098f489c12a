"""The guard finds calls that would block the event loop, in our own code only."""

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio.to_thread
import pytest

from tests.project.blocking import BlockingCallOnLoop, BlockingGuard

OURS = """
import os, socket, sqlite3, subprocess, time
from pathlib import Path
import apsw

def sleep(): time.sleep(0)
def read(path): return Path(path).read_text()
def plain_open(path): open(path).close()
def low_open(path): os.close(os.open(path, os.O_RDONLY))
def system(): os.system("true")
def run(): subprocess.run(["true"])
def connect(): socket.create_connection(("127.0.0.1", 9))
def resolve(): socket.getaddrinfo("localhost", 80)
def database(): sqlite3.connect(":memory:").close()
def open_apsw(): apsw.Connection(":memory:").close()
def execute(connection): return connection.execute("select 1").fetchall()
def make(): return apsw.Connection(":memory:")
def allowed(): time.sleep(0)  # lint: allow it is over at once
async def spawn(asyncio):
    process = await asyncio.create_subprocess_exec("true")
    return await process.wait()
"""

CALLS: dict[str, tuple[str, bool]] = {
    "sleep": ("time.sleep", False),
    "read": ("io.open", True),
    "plain_open": ("open", True),
    "low_open": ("os.open", True),
    "system": ("os.system", False),
    "run": ("subprocess.Popen", False),
    "connect": ("socket.create_connection", False),
    "resolve": ("socket.getaddrinfo", False),
    "database": ("sqlite3.connect", False),
    "open_apsw": ("apsw.Connection", False),
}


@pytest.fixture
def ours(tmp_path: Path) -> ModuleType:
    """A module that counts as our own code, since it is below the guarded root."""
    path = tmp_path / "ours.py"
    path.write_text(OURS)
    spec = importlib.util.spec_from_file_location("ours", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(name: str, tmp_path: Path) -> tuple[Any, ...]:
    return (str(tmp_path / "ours.py"),) if CALLS[name][1] else ()


@pytest.mark.anyio
@pytest.mark.parametrize("name", CALLS)
async def test_a_blocking_call_of_ours_on_the_loop_is_refused(name: str, ours: ModuleType, tmp_path: Path) -> None:
    """L20: the error names the call and its place."""
    call: Callable[..., object] = getattr(ours, name)
    with BlockingGuard(tmp_path).installed() as guard, pytest.raises(BlockingCallOnLoop) as caught:
        call(*arguments(name, tmp_path))
    line = next(number for number, text in enumerate(OURS.splitlines(), 1) if text.startswith(f"def {name}("))
    assert f"{CALLS[name][0]} blocks the event loop" in str(caught.value)
    assert f"ours.py:{line} in {name}" in str(caught.value)
    assert guard.seen == [caught.value]


@pytest.mark.anyio
async def test_a_statement_on_the_loop_is_refused(ours: ModuleType, tmp_path: Path) -> None:
    """L20: a connection that was opened in a thread is not used on the loop."""
    with BlockingGuard(tmp_path).installed():
        connection = await anyio.to_thread.run_sync(ours.make)
        with pytest.raises(BlockingCallOnLoop, match=r"Connection\.execute"):
            ours.execute(connection)
        assert await anyio.to_thread.run_sync(ours.execute, connection) == [(1,)]
        connection.close()


@pytest.mark.anyio
async def test_the_same_calls_in_a_thread_pass(ours: ModuleType, tmp_path: Path) -> None:
    """L20: that is where they belong."""
    with BlockingGuard(tmp_path).installed() as guard:
        for name in ("sleep", "read", "plain_open", "low_open", "run", "resolve", "database", "open_apsw"):
            await anyio.to_thread.run_sync(getattr(ours, name), *arguments(name, tmp_path))
    assert guard.seen == []


def test_without_a_loop_everything_passes(ours: ModuleType, tmp_path: Path) -> None:
    """L20: the command line may block."""
    with BlockingGuard(tmp_path).installed() as guard:
        ours.sleep()
        ours.read(str(tmp_path / "ours.py"))
        ours.open_apsw()
    assert guard.seen == []


@pytest.mark.anyio
async def test_calls_by_others_and_allowed_ones_pass(ours: ModuleType, tmp_path: Path) -> None:
    """L20: tests, asyncio's own way to start a process, and a line that gives its reason."""
    with BlockingGuard(tmp_path).installed() as guard:
        (tmp_path / "ours.py").read_text()
        assert await ours.spawn(asyncio) == 0
        ours.allowed()
    assert guard.seen == []


def test_the_guard_restores_all_functions(tmp_path: Path) -> None:
    """L07: the guard leaves no trace."""
    import builtins
    import subprocess
    import time

    import apsw

    before = (builtins.open, time.sleep, subprocess.Popen.__init__, apsw.Connection)
    with BlockingGuard(tmp_path).installed():
        assert builtins.open is not before[0]
    assert (builtins.open, time.sleep, subprocess.Popen.__init__, apsw.Connection) == before
