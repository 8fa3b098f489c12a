"""A killed gateway leaves none of its processes behind, whatever user it ran as."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from anyio import to_thread

from bench import orphans
from tests.workspaces.conformance import spec_of
from tests.workspaces.harness import WAIT, WorkspaceHarness, alive, open_workspaces, token, until
from tidegate.errors import ToolFailed
from tidegate.store import processes
from tidegate.workspaces.backends import guardian
from tidegate.workspaces.backends.bubblewrap import BubblewrapBackend
from tidegate.workspaces.backends.bubblewrap_sandbox import BubblewrapSandbox
from tidegate.workspaces.backends.interface import OWNER, owner_of
from tidegate.workspaces.processes.children import Spawner

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "65534"
KILLS = {"sandbox": 40, "network": 25, "command": 15, "local": 10, "check": 10, "job": 3}
"""How often each kind of start is killed: for a sandbox, often enough to find a leak in one of ten kills."""


@contextmanager
def gateway(home: Path, mark: str, *user: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Such a process, once it is ready, and its output."""
    arguments = [sys.executable, "-m", "tests.workspaces.killed_gateway", str(home), mark, *user]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


@contextmanager
def left_behind(home: Path, user: int | None = None) -> Iterator[tuple[str, str]]:
    """Possible leftovers of a home's killed gateway: a process of a bwrap whose other process died during set-up, and a
    command. Each is identified by a text in its command line. Leftovers are killed at the end."""
    stuck, command = token(), token()
    info = broken_pipe()
    bwrap = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--setenv", "X", stuck, "--info-fd", str(info), "true"]
    try:
        for arguments, fds in ((bwrap, (info,)), (["sh", "-c", f"sleep {command} &"], ())):
            subprocess.run(arguments, env=environment_of(home), pass_fds=fds, user=user, group=user, check=False)
        os.close(info)
        assert all(len(alive(mark)) == 1 for mark in (stuck, command))
        yield stuck, command
    finally:
        for mark in (stuck, command):
            for pid in alive(mark):
                os.kill(pid, signal.SIGKILL)


def broken_pipe() -> int:
    """The write end of a pipe that nobody reads."""
    out, into = os.pipe()
    os.close(out)
    return into


def environment_of(home: Path) -> dict[str, str]:
    """The environment of the processes of this home's gateway."""
    return {"PATH": "/usr/bin:/bin", OWNER: owner_of(home)}


def children(pid: int) -> list[int]:
    """The children of all its threads."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def _is_first(pid: int) -> bool:
    """Whether it is the first process of its own namespace."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return any(line.startswith("NSpid:") and line.endswith("\t1") for line in status.splitlines())
    return False


async def test_a_killed_gateway_leaves_nothing_running(tmp_path: Path) -> None:
    """L14, V09, V11, V12: the kernel ends everything, however it was started and wherever it went. The next start knows
    what was lost, and finds the shell and the folder unchanged."""
    mark = token()
    with gateway(tmp_path, mark) as (process, (ready, _, session)):
        assert ready == "ready" and len(alive(f"sleep\0{mark}")) == 6
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT)
    await until(lambda: alive(mark) == [])
    async with open_workspaces(tmp_path / "home") as harness:
        [row] = await harness.store.read(processes.of_session, session, principal=None)
        assert (row.name, row.state) == ("server", "lost")
        assert "'server'" in await harness.take_notices(session)
        assert await harness.output_of(session, "pwd; echo $KEPT; cat /workspace/file") == "/tmp\nyes\ntext"


async def test_a_sandbox_whose_first_process_is_stopped_ends_with_its_gateway(tmp_path: Path) -> None:
    """L14: the kernel kills it, even if it was stopped while reading; nothing in the sandbox has to run for that."""
    mark = token()
    with gateway(tmp_path, mark) as (process, (ready, *_)):
        assert ready == "ready"
        [first] = [pid for child in children(process.pid) for pid in children(child) if _is_first(pid)]
        os.kill(first, signal.SIGSTOP)
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT)
        await until(lambda: alive(mark) == [])


async def test_a_sandbox_ends_with_its_lifeline_which_no_command_can_keep_open(
    harness: WorkspaceHarness, session: str
) -> None:
    """L14, X12: including processes that left their group and session, cleared their environment or ignore signals."""
    mark = token()
    tree = f"(setsid env -i sleep {mark} &); (setsid bash -c 'trap \"\" TERM; sleep {mark}; :' &); sleep {mark}; :"
    hold = "for fd in 0 1 2 6; do exec 7<>/proc/1/fd/$fd; done; ls -l /proc/1/fd/6 | sed 's/.*-> //; s/:.*//'"
    _, printed = await harness.run(session, hold)
    assert "/proc/1/fd/6: No such device or address" in printed and printed.endswith("socket\n")
    await harness.of(session).start("server", tree)
    await until(lambda: len(alive(f"sleep\0{mark}")) == 3)
    live_sandbox = harness.live_sandbox(session)
    assert live_sandbox is not None and isinstance(live_sandbox.sandbox, BubblewrapSandbox)
    live_sandbox.sandbox._lifeline.close()  # lint: allow what the kernel does when the gateway is killed
    await until(lambda: alive(mark) == [])


@pytest.mark.parametrize(
    ("kind", "user"),
    [*((kind, None) for kind in KILLS), *((kind, NOBODY) for kind in ("sandbox", "network", "command"))],
)
def test_nothing_outlives_a_gateway_that_is_killed_while_it_starts_something(kind: str, user: str | None) -> None:
    """L14, L09: at random moments of the start of a sandbox, of a command in one, of a helper. The next start finds no
    control group that it cannot remove."""
    if user is not None and os.geteuid() != 0:
        pytest.skip("all of it has just been tested as a plain user")
    seed = int(os.environ.get("TIDEGATE_SEED") or random.SystemRandom().randrange(1_000_000))
    result = orphans.run(kind, KILLS[kind], seed, None if user is None else int(user))
    assert (result.left, result.groups) == (0, 0), result
    assert result.kills == KILLS[kind]


async def test_a_sandbox_whose_bwrap_is_killed_while_it_starts_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L09: its gateway keeps running. Here bwrap is killed by a pipe that nobody reads, while its second process waits
    for it."""
    monkeypatch.setattr(os, "memfd_create", lambda _: broken_pipe())
    own = owner_of(tmp_path)
    backend = BubblewrapBackend(Spawner(frozenset(os.sched_getaffinity(0)), own), open_seconds=0.2)
    with pytest.raises(ToolFailed, match="The sandbox did not start"):
        await backend.open(spec_of(tmp_path))
    assert await to_thread.run_sync(guardian.marked_processes, f"{OWNER}={own}") == {}


# -- what is left all the same ---------------------------------------------------------------------------------------


async def test_a_starting_gateway_ends_leftovers_of_its_own_home_only(tmp_path: Path) -> None:
    """L14, L16: a bwrap that waits for ever, and a command whose guardian was killed with the gateway."""
    home, other = tmp_path / "home", tmp_path / "other"
    with left_behind(home) as own, left_behind(other) as foreign:
        async with open_workspaces(home):
            assert [alive(mark) for mark in own] == [[], []]
            assert all(len(alive(mark)) == 1 for mark in foreign)


async def test_the_timer_ends_only_processes_without_an_owner(harness: WorkspaceHarness, session: str) -> None:
    """L14, L16: processes in a sandbox continue."""
    kept = token()
    await harness.of(session).start("server", f"(setsid sleep {kept} &); sleep {kept}; :")
    await until(lambda: len(alive(f"sleep\0{kept}")) == 2)
    with left_behind(harness.home) as own:
        await harness.workspaces.tidy()
        assert [alive(mark) for mark in own] == [[], []]
    assert len(alive(f"sleep\0{kept}")) == 2
    assert [view.state for view in await harness.of(session).list()] == ["running"]


async def test_a_gateway_of_an_ordinary_user_leaves_nothing_running_either(tmp_path: Path) -> None:
    """L14: commands, process trees, stop, end, and the kill, without any privilege."""
    if os.geteuid() != 0:
        pytest.skip("everything has just been tested as an ordinary user")
    mark = token()
    home = Path(tempfile.mkdtemp(prefix="tg-plain-", dir="/tmp"))
    try:
        os.chown(home, int(NOBODY), int(NOBODY))
        with left_behind(home / "home", int(NOBODY)) as left, gateway(home, mark, NOBODY) as (process, said):
            assert said[:2] == ["ready", NOBODY] and len(alive(f"sleep\0{mark}")) == 6
            assert [alive(own) for own in left] == [[], []]
            process.send_signal(signal.SIGKILL)
            process.wait(WAIT)
        await until(lambda: alive(mark) == [])
    finally:
        shutil.rmtree(home)
