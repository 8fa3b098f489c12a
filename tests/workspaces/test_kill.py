"""A gateway that is killed takes everything with it that it had started, whoever it ran as."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.workspaces.making import WAIT, Room, alive, room, token, until
from tidegate.store import processes
from tidegate.workspaces.bubblewrap import Sandbox

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "65534"


@contextmanager
def gateway(home: Path, mark: str, *user: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Such a process when it is ready, and what it said."""
    arguments = [sys.executable, "-m", "tests.workspaces.gateway_like", str(home), mark, *user]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


async def test_a_killed_gateway_leaves_nothing_running(tmp_path: Path) -> None:
    """L14, V09, V11, V12: the kernel ends it, by whatever it was started and wherever it has gone. The next
    start knows what was lost, and has the shell and the folder as they were."""
    mark = token()
    with gateway(tmp_path, mark) as (process, (ready, _, session)):
        assert ready == "ready" and len(alive(f"sleep\0{mark}")) == 6
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT)
    await until(lambda: alive(mark) == [])
    async with room(tmp_path / "home") as rooms:
        [row] = await rooms.store.read(processes.of_session, session, principal=None)
        assert (row.name, row.state) == ("server", "lost")
        assert "'server'" in await rooms.told(session)
        assert await rooms.said(session, "pwd; echo $KEPT; cat /workspace/file") == "/tmp\nyes\ntext"


async def test_a_sandbox_ends_with_its_gateway_though_somebody_holds_its_input(tmp_path: Path) -> None:
    """L14: the kernel's signal is enough alone."""
    mark = token()
    with gateway(tmp_path, mark) as (process, (ready, *_)), contextlib.ExitStack() as held:
        assert ready == "ready"
        tasks = Path(f"/proc/{process.pid}/task").iterdir()
        children = [pid for task in tasks for pid in (task / "children").read_text().split()]
        for pid in children:
            held.callback(os.close, os.open(f"/proc/{pid}/fd/0", os.O_WRONLY))
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT)
        await until(lambda: alive(mark) == [])


async def test_a_sandbox_ends_with_its_input(rooms: Room, session: str) -> None:
    """L14: and so is that: its gateway lives, and nobody sends a signal."""
    mark = token()
    tree = f"(setsid env -i sleep {mark} &); (setsid bash -c 'trap \"\" TERM; sleep {mark}; :' &); sleep {mark}; :"
    await rooms.of(session).start("server", tree)
    await until(lambda: len(alive(f"sleep\0{mark}")) == 3)
    site = rooms.site(session)
    assert site is not None and isinstance(site.box, Sandbox)
    site.box._holder.close_input()
    await until(lambda: alive(mark) == [])


async def test_all_of_it_holds_for_a_gateway_that_is_a_plain_user(tmp_path: Path) -> None:
    """L14: commands, trees, stop, end, and the kill, without any privilege."""
    if os.geteuid() != 0:
        pytest.skip("the whole room has just been tested as a plain user")
    mark = token()
    home = Path(tempfile.mkdtemp(prefix="tg-plain-", dir="/tmp"))
    try:
        os.chown(home, int(NOBODY), int(NOBODY))
        with gateway(home, mark, NOBODY) as (process, said):
            assert said[:2] == ["ready", NOBODY] and len(alive(f"sleep\0{mark}")) == 6
            process.send_signal(signal.SIGKILL)
            process.wait(WAIT)
        await until(lambda: alive(mark) == [])
    finally:
        shutil.rmtree(home)
