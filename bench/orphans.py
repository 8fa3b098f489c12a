"""Processes that outlive a gateway killed while it starts something.

    python -m bench.orphans KIND KILLS SEED UID [OPTION …]        prints the `Result` as JSON

For each kill a process is forked that starts one thing of a kind (a sandbox, a command in one, …) as the gateway does.
It is killed with SIGKILL at a random moment of that start. This program is the subreaper of all its descendants, so the
kernel tells it when none is left: there is no child to wait for any more. The forked processes run as the user UID; `-`
is the current user. Processes that outlive a kill are counted, described and ended, by their id.
"""

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

from bench.children import ROOT, TAIL, Failed
from tidegate.spool.jobs.runner import JobRunner
from tidegate.workspaces.backends.bubblewrap import BubblewrapBackend
from tidegate.workspaces.backends.interface import Backend, SandboxLimits, SandboxSpec, owner_of
from tidegate.workspaces.backends.local import LocalBackend
from tidegate.workspaces.backends.shell_script import background
from tidegate.workspaces.backends.ssh import SshBackend
from tidegate.workspaces.kernel.cgroups import Cgroups
from tidegate.workspaces.kernel.users import user_of
from tidegate.workspaces.processes.children import Spawner

STARTS = 3
"""Starts that are measured before the first kill; their median determines the times of kills."""
SPREAD = 1.1
"""Kills happen within this many times the median start, so that some come right after it."""
GONE_WITHIN = 10.0
"""Seconds. A process that still exists after them has outlived the kill."""
RUN_WITHIN = 1800.0
SECONDS = 10**12
"""Seconds that commands sleep, plus the seed: a number that no other process uses, so that they can be found."""
MIB = 1024 * 1024
_LOOK_SECONDS = 0.002
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36


class Result(msgspec.Struct, kw_only=True):
    kind: str
    kills: int
    left: int
    """Kills that some process outlived."""
    start: float
    """Median seconds of undisturbed starts."""
    groups: int = 0
    """Control groups that the next start did not remove."""
    seed: int
    found: list[str] = []


# -- starts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """One start. `begin` reports that it starts now. Commands sleep for `seconds`, by which they are found again.
    `options` are for `ssh`."""

    home: Path
    begin: Callable[[], None]
    seconds: int
    options: Sequence[str]


async def sandbox(start: Start) -> None:
    """The second sandbox of a gateway, so that nothing has to be loaded first."""
    backend, spec = _bubblewrap(start.home), _spec(start.home)
    await (await backend.open(spec)).close()
    start.begin()
    await backend.open(spec)


async def network(start: Start) -> None:
    """A sandbox with its own network."""
    backend, spec = _bubblewrap(start.home), msgspec.structs.replace(_spec(start.home), network=True)
    await (await backend.open(spec)).close()
    start.begin()
    await backend.open(spec)


async def command(start: Start) -> None:
    await _command(_bubblewrap(start.home), start)


async def local(start: Start) -> None:
    await _command(LocalBackend(_spawner(), Cgroups(start.home)), start)


async def ssh(start: Start) -> None:
    """A connection and a command over it."""
    start.begin()
    await _command(SshBackend(_spawner(), "127.0.0.1", start.options), start, begun=True)


async def check(start: Start) -> None:
    """The trial start that decides whether sandboxes are available."""
    start.begin()
    await _bubblewrap(start.home).check()


async def job(start: Start) -> None:
    """A job that only its limit on CPU time ends."""
    (start.home / "endless.py").write_text("def work(order):\n    while True:\n        pass\n")
    start.begin()
    with contextlib.suppress(TimeoutError):
        await JobRunner().run("endless", {}, within=1, memory=256 * MIB, folder=start.home)


KINDS: Mapping[str, Callable[[Start], Awaitable[None]]] = MappingProxyType(
    {kind.__name__: kind for kind in (sandbox, network, command, local, ssh, check, job)}
)


async def _command(backend: Backend, start: Start, *, begun: bool = False) -> None:
    spec = _spec(start.home)
    sandbox = await backend.open(spec)
    text = f"(setsid env -i sleep {start.seconds} &); sleep {start.seconds}; :"
    if not begun:
        start.begin()
    await sandbox.spawn(background(text, mark="m_1", folder=backend.inner(spec.folder), shell=None), "m_1")


def _spawner() -> Spawner:
    return Spawner(frozenset(os.sched_getaffinity(0)))


def _bubblewrap(home: Path) -> BubblewrapBackend:
    return BubblewrapBackend(_spawner(), Cgroups(home))


def _spec(home: Path) -> SandboxSpec:
    limits = SandboxLimits(
        memory_bytes=1024 * MIB, processes=200, disk_bytes=64 * MIB, file_bytes=2 * MIB, cpu_seconds=100
    )
    user = user_of("", None, owner_of(home))
    spec = SandboxSpec(session="s_1", folder=home / "work", private=home / "private", limits=limits, user=user)
    for folder in (spec.folder, spec.private, spec.home, spec.temporary):
        folder.mkdir(exist_ok=True)
        if user is not None:
            os.chown(folder, *user)
    return spec


# -- kills -------------------------------------------------------------------------------------------------------------


class Starts:
    """Forks processes that start one thing each, and report when they begin and when it is ready."""

    def __init__(self, kind: str, home: Path, user: int | None, seconds: int, options: Sequence[str]) -> None:
        self._kind = kind
        self._home = home
        self._user = user
        self._seconds = seconds
        self._options = options

    def measured(self) -> float:
        pid, told = self._forked()
        try:
            begun = _heard(told)
            return _heard(told) - begun
        finally:
            self._killed(pid, told)

    def killed_after(self, seconds: float) -> None:
        pid, told = self._forked()
        begun = _heard(told)
        while time.perf_counter() < begun + seconds:
            pass
        self._killed(pid, told)

    def _killed(self, pid: int, told: int) -> None:
        os.close(told)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def _forked(self) -> tuple[int, int]:
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(told)
                self._run(tell)
            finally:
                os._exit(1)
        os.close(tell)
        return pid, told

    def _run(self, tell: int) -> None:
        if self._user is not None:
            os.setgroups([])
            os.setgid(self._user)
            os.setuid(self._user)
            # As in a process that belonged to this user from the start.
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)

        async def start() -> None:
            await KINDS[self._kind](Start(self._home, lambda: _say(tell), self._seconds, self._options))
            _say(tell)
            await asyncio.Event().wait()

        asyncio.run(start())


def _say(tell: int) -> None:
    os.write(tell, b".")


def _heard(told: int) -> float:
    if not os.read(told, 1):
        raise Failed("a start failed")
    return time.perf_counter()


def outlived() -> list[str]:
    """Descriptions of the processes that still exist after `GONE_WITHIN`. They are then ended."""
    if _all_reaped(GONE_WITHIN):
        return []
    below = _below(os.getpid())
    described = [_described(pid) for pid in below]
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not _all_reaped(GONE_WITHIN):
        raise Failed(f"cannot be ended: {described}")
    return described


def _all_reaped(within: float) -> bool:
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(_LOOK_SECONDS)
        except ChildProcessError:
            return True
    return False


def _below(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return children + [lower for child in children for lower in _below(child)]


def _described(pid: int) -> str:
    try:
        place = Path(f"/proc/{pid}")
        line = place.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return f"{place.joinpath('wchan').read_text()}: {line[:80]}"
    except OSError:
        return "gone"


def run(kind: str, kills: int, seed: int, user: int | None = None, options: Sequence[str] = ()) -> Result:
    """Run the kills in a separate process."""
    command = [sys.executable, "-m", "bench.orphans", kind, str(kills), str(seed), str(user or "-"), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=RUN_WITHIN, check=False)
    if done.returncode != 0:
        raise Failed(f"the kills of a {kind} failed: {done.stderr.decode(errors='replace')[-TAIL:].strip()}")
    return msgspec.json.decode(done.stdout, type=Result)


def main(kind: str, kills: int, seed: int, user: int | None, options: Sequence[str]) -> Result:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    chance = random.Random(seed)
    # Another user may have no access to the usual temporary folder.
    with tempfile.TemporaryDirectory(prefix="tidegate-orphans-", dir="/tmp" if user is not None else None) as name:
        folder = Path(name)
        folder.chmod(0o755)
        home = folder / "home"
        home.mkdir()
        if user is not None:
            os.chown(home, user, user)
        starts = Starts(kind, home, user, SECONDS + seed, options)
        result = Result(kind=kind, kills=kills, left=0, start=0.0, seed=seed)
        result.start = statistics.median(starts.measured() for _ in range(STARTS))
        outlived()
        for _ in range(kills):
            starts.killed_after(chance.uniform(0, SPREAD * result.start))
            if found := outlived():
                result.left += 1
                result.found += found
        Cgroups(home).sweep()
        result.groups = len(list(Path("/sys/fs/cgroup").rglob(f"tidegate-{owner_of(home)}-*")))
    return result


if __name__ == "__main__":
    kind, kills, seed, user, *options = sys.argv[1:]
    done = main(kind, int(kills), int(seed), None if user == "-" else int(user), options)
    sys.stdout.buffer.write(msgspec.json.encode(done))
