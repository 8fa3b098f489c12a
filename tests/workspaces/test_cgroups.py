"""Limits enforced by real control groups; where none can be created, nothing is enforced."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from anyio import to_thread

from tests.workspaces.conformance import Conformance, Place, opened, spawner, spec_of
from tests.workspaces.harness import FORKS, WAIT, WorkspaceHarness, alive, open_workspaces, token, until
from tests.workspaces.test_kill import gateway
from tidegate.workspaces.backends import guardian
from tidegate.workspaces.backends.bubblewrap import BubblewrapBackend
from tidegate.workspaces.backends.interface import LimitEvents, SandboxLimits
from tidegate.workspaces.backends.local import LocalBackend
from tidegate.workspaces.kernel.cgroup_hierarchy import CgroupTree, trees
from tidegate.workspaces.kernel.cgroups import JOIN_SCRIPT, Cgroup, Cgroups, CommandGroup, delegated_tree

pytestmark = pytest.mark.anyio

MIB = 1 << 20
BOTH = frozenset(("processes", "memory_bytes"))
LIMITS = SandboxLimits(memory_bytes=64 * MIB, processes=40, disk_bytes=MIB, file_bytes=MIB, cpu_seconds=100)

SHARE = """
import mmap
memory = mmap.mmap(-1, 200 << 20)
for place in range(0, 200 << 20, 4096):
    memory[place] = 1
"""
"""Uses memory that belongs to no single process, so only a group can limit it."""


@pytest.fixture
def groups(tmp_path: Path) -> Cgroups:
    made = Cgroups(tmp_path)
    made.detect()
    if made.kernel_limits != BOTH:
        pytest.skip("this process may not create control groups here; polled limits have their own tests")
    return made


def folders(prefix: str) -> list[Path]:
    """The folders of groups, in every hierarchy of this process."""
    here = trees(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    return [found for tree in here for found in tree.folder.glob(f"{prefix}*")]


def prefix_of(home: Path) -> str:
    return Cgroups(home).prefix


@contextlib.contextmanager
def member(group: Cgroup | CommandGroup, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sh", "-c", JOIN_SCRIPT, "sh", *group.joins, "--", *command]) as process:
        try:
            yield process
        finally:
            process.kill()


def inside(group: Cgroup | CommandGroup) -> int:
    """The number of processes that have joined, in every hierarchy."""
    return min(len(Path(path).read_text().split()) for path in group.joins)


# -- the backends, with groups -----------------------------------------------------------------------------------------


class TestBubblewrapInAGroup(Conformance):
    @pytest.fixture
    async def place(self, groups: Cgroups, tmp_path: Path) -> AsyncIterator[Place]:
        async with opened(BubblewrapBackend(spawner(), groups), spec_of(tmp_path)) as made:
            assert made.sandbox.kernel_limits == BOTH
            yield made
        assert folders(prefix_of(tmp_path)) == []


class TestLocalInAGroup(Conformance):
    @pytest.fixture
    async def place(self, groups: Cgroups, tmp_path: Path) -> AsyncIterator[Place]:
        async with opened(LocalBackend(spawner(), groups), spec_of(tmp_path)) as made:
            assert made.sandbox.kernel_limits == BOTH
            yield made
        assert folders(prefix_of(tmp_path)) == []


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_the_number_of_processes_never_exceeds_its_limit(groups: Cgroups, home: Path, backend: str) -> None:
    """L14, L24: also if root runs the gateway; the caller is told, and everything else continues."""
    async with open_workspaces(home, backend=backend, processes=40) as harness:
        session = await harness.new_session()
        assert harness.workspaces.status().enforced == {}  # no command has been requested yet
        await harness.output_of(session, f"cat > forks.py <<'END'\n{FORKS}\nEND")
        done, printed = await harness.run(session, "python3 forks.py")
        made, refused = map(int, printed.split())
        assert 30 <= made < 40 and made + refused == 300
        assert done.code == 0 and "processes because this conversation may have at most 40" in done.note
        assert "(workspaces.processes)" in done.note and done.left_behind == made
        done, printed = await harness.run(session, "echo fine")
        assert (printed, done.note) == ("fine\n", "")
        assert harness.workspaces.status().enforced["processes"] == "cgroup"


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_a_process_that_exceeds_the_memory_limit_is_killed_and_reported(
    groups: Cgroups, home: Path, backend: str
) -> None:
    """L14, L24: one sentence names the limit; other processes and the shell continue."""
    async with open_workspaces(home, backend=backend, memory_bytes=64 * MIB) as harness:
        session = await harness.new_session()
        await harness.of(session).start("server", "sleep 1000")
        await harness.output_of(session, f"export KEPT=yes; cat > share.py <<'END'\n{SHARE}\nEND")
        done, _ = await harness.run(session, "python3 share.py; echo $?")
        assert done.code == 0
        assert done.note == (
            "The system killed 1 process of this conversation because together they needed more than 64 MiB of "
            "memory (workspaces.memory_bytes)."
        )
        assert await harness.output_of(session, "echo $KEPT") == "yes"
        assert set(harness.live_sandbox(session).running) == {"server"}  # type: ignore[union-attr]
        assert harness.workspaces.status().enforced["memory_bytes"] == "cgroup"


@pytest.mark.parametrize("place", ["/dev/shm", "/run"])
async def test_file_systems_in_memory_count_as_memory(groups: Cgroups, home: Path, place: str) -> None:
    """L24: also after the command that wrote it has ended."""
    async with open_workspaces(home, memory_bytes=64 * MIB) as harness:
        session = await harness.new_session()
        await harness.output_of(session, f"head -c {30 * MIB} /dev/zero > {place}/kept")
        hold = f"python3 -c 'import mmap; m = mmap.mmap(-1, {50 * MIB}); [m.write(bytes({MIB})) for _ in range(50)]'"
        done, _ = await harness.run(session, f"{hold}; echo $?")
        assert "workspaces.memory_bytes" in done.note
        await harness.output_of(session, f"rm {place}/kept; {hold}")


async def test_a_background_process_killed_for_its_memory_is_reported(groups: Cgroups, home: Path) -> None:
    async with open_workspaces(home, memory_bytes=64 * MIB) as harness:
        session = await harness.new_session()
        await harness.of(session).start("large", f"exec python3 -c '{SHARE}'")
        await until(lambda: harness.live_sandbox(session).running == {})  # type: ignore[union-attr]
        told = await harness.take_notices(session)
        assert "'large'" in told and "was killed by signal 9" in told and "workspaces.memory_bytes" in told


# -- what becomes of groups --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_a_group_exists_as_long_as_its_sandbox(groups: Cgroups, home: Path, backend: str) -> None:
    """B3, L14: and is removed when the session ends."""
    prefix = prefix_of(home)
    async with open_workspaces(home, backend=backend) as harness:
        session = await harness.new_session()
        assert folders(prefix) == []
        await harness.of(session).start("server", "sleep 1000")
        assert len(folders(prefix)) >= 1
        await harness.end(session)
        assert folders(prefix) == []


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_each_command_has_a_leaf_group_that_ends_with_it(groups: Cgroups, home: Path, backend: str) -> None:
    """L14, L06."""
    prefix = prefix_of(home)
    async with open_workspaces(home, backend=backend) as harness:
        session = await harness.new_session()

        def leaves() -> int:
            return sum(entry.is_dir() for folder in folders(prefix) for entry in folder.iterdir())

        await harness.of(session).start("server", "sleep 1000")
        assert leaves() == 1
        for _ in range(3):
            await harness.output_of(session, "sleep 0.01 & true")
        assert leaves() == 1
        await harness.of(session).stop("server")
        assert leaves() == 0


async def test_groups_of_a_killed_gateway_are_removed_at_the_next_start(groups: Cgroups, tmp_path: Path) -> None:
    """L14, V09: with everything that may still be in them."""
    mark, prefix = token(), prefix_of(tmp_path / "home")
    with gateway(tmp_path, mark) as (process, said):
        assert said[0] == "ready" and folders(prefix)
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT)
    await until(lambda: alive(mark) == [])
    assert folders(prefix)
    async with open_workspaces(tmp_path / "home"):
        assert folders(prefix) == []


async def test_only_groups_of_the_same_home_are_removed(groups: Cgroups, tmp_path: Path) -> None:
    mark = token()
    other = Cgroups(tmp_path / "other")
    mine, others = await groups.make(LIMITS), await other.make(LIMITS)
    assert mine is not None and others is not None
    with member(mine, "/bin/sleep", mark) as one, member(others, "/bin/sleep", mark) as two:
        await until(lambda: inside(mine) == inside(others) == 1)
        await to_thread.run_sync(groups.sweep)  # its own live groups stay
        assert one.poll() is None and mine.joinable
        await to_thread.run_sync(Cgroups(tmp_path).sweep)  # as after a restart
        assert one.wait(WAIT) == -9 and two.poll() is None
        assert not mine.joinable and others.joinable
        assert await to_thread.run_sync(others.end) and two.wait(WAIT) == -9
    assert folders(prefix_of(tmp_path / "other")) == []


async def test_refusals_during_a_kill_do_not_count_as_limit_events(groups: Cgroups) -> None:
    group = await groups.make(LIMITS)
    assert group is not None
    leaf = await to_thread.run_sync(group.leaf)
    loop = "i=0; while [ $i -lt 1000000 ]; do /bin/true; i=$((i + 1)); done"
    with member(leaf, "/bin/dash", "-c", loop) as process:
        await until(lambda: inside(leaf))
        await to_thread.run_sync(leaf.kill, process.pid)
        await until(lambda: process.poll() is not None)
    assert process.returncode == 2  # it could not go on
    await to_thread.run_sync(leaf.remove)
    assert group.limit_events == LimitEvents() and await to_thread.run_sync(group.end)


async def test_ending_a_group_ends_everything_in_it_and_below(groups: Cgroups) -> None:
    mark = token()
    group = await groups.make(LIMITS)
    assert group is not None
    for folder in [Path(path).parent for path in group.joins]:
        (folder / "below").mkdir()
    escape = f"for g in {' '.join(group.joins)}; do echo 0 > ${{g%/*}}/below/cgroup.procs; done; setsid sleep {mark}"
    with member(group, "/bin/bash", "-c", f"trap '' TERM; ({escape}) & setsid env -i sleep {mark} & sleep {mark}"):
        await until(lambda: len(alive(f"sleep\0{mark}")) == 3)
        assert await to_thread.run_sync(group.end)
        await until(lambda: alive(mark) == [])
        assert await to_thread.run_sync(group.end)  # again
    assert group.limit_events == LimitEvents()


async def test_a_group_removed_from_outside_is_created_again(
    groups: Cgroups, harness: WorkspaceHarness, session: str
) -> None:
    await harness.output_of(session, "export KEPT=yes")
    for folder in folders(prefix_of(harness.home)):
        folder.rmdir()
    assert await harness.output_of(session, "echo $KEPT") == "yes"
    assert "control group" in await harness.take_notices(session)


async def test_processes_that_killed_their_guardian_end_with_the_group(groups: Cgroups, home: Path) -> None:
    """L14: a command without a sandbox that tries to survive."""
    mark = token()
    async with open_workspaces(home, backend="local") as harness:
        session = await harness.new_session()
        running = asyncio.ensure_future(harness.run(session, f"(setsid env -i sleep {mark} &) ; sleep {mark}"))
        await until(lambda: len(alive(f"sleep\0{mark}")) == 2)
        below = {
            pid: await to_thread.run_sync(guardian.descendants, [pid])
            for pid in alive("workspaces/backends/guardian.py")
        }
        [own] = [pid for pid, processes in below.items() if processes.keys() & set(alive(mark))]
        os.kill(own, signal.SIGKILL)  # a command can do this itself, unless root started the gateway
        await running
        assert alive(mark) == []


async def test_cancelling_the_creation_of_a_group_leaves_none(groups: Cgroups, tmp_path: Path) -> None:
    made = 0
    for turns in range(40):
        task = asyncio.ensure_future(groups.make(LIMITS))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            group = await task
            assert group is not None and await to_thread.run_sync(group.end)
            made += 1
    assert made < 40
    await until(lambda: folders(prefix_of(tmp_path)) == [])


def test_a_hierarchy_that_was_not_delegated_is_left_alone(tmp_path: Path) -> None:
    """L14: nothing is created or moved where the kernel or systemd does not allow it."""
    before = Path("/proc/self/cgroup").read_text()
    assert delegated_tree(CgroupTree(2, tmp_path, ("pids", "memory"))) is None
    (tmp_path / "cgroup.controllers").write_text("cpu io\n")
    assert delegated_tree(CgroupTree(2, tmp_path, ("pids", "memory"))) is None
    assert [path.name for path in tmp_path.iterdir()] == ["cgroup.controllers"]
    assert Path("/proc/self/cgroup").read_text() == before


async def test_without_groups_limits_are_polled(home: Path) -> None:
    """L14, L24: and the status says so."""
    async with open_workspaces(home, polled=True) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "true")
        live_sandbox = harness.live_sandbox(session)
        assert (
            live_sandbox is not None
            and live_sandbox.sandbox is not None
            and live_sandbox.sandbox.kernel_limits == frozenset()
        )
        status = harness.workspaces.status()
        assert status.enforced["memory_bytes"] == "polled"
        assert "memory: polled" in status.limits


# -- version 2, as far as it can be had --------------------------------------------------------------------------------


async def test_a_group_of_version_2_is_joined_ended_and_removed(tmp_path: Path) -> None:
    """L14: machines of version 1 often have a hierarchy of version 2 too, without controllers."""
    text = Path("/proc/self/cgroup").read_text()
    own = "".join(line for line in text.splitlines(keepends=True) if line.startswith("0::"))
    found = trees(own, Path("/proc/self/mountinfo").read_text())
    if not found or not os.access(found[0].folder, os.W_OK):
        pytest.skip("there is no tree of version 2 in which this process may make groups")
    mark = token()
    group = Cgroup(f"tidegate-test-{os.getpid()}-0", (CgroupTree(2, found[0].folder, ()),), lambda _: None)
    await to_thread.run_sync(group.create, LIMITS)
    try:
        one, other = await to_thread.run_sync(group.leaf), await to_thread.run_sync(group.leaf)
        with member(one, "/bin/sleep", mark) as first, member(other, "/bin/sleep", mark) as second:
            await until(lambda: inside(one) == inside(other) == 1)
            assert await to_thread.run_sync(one.send, 0, first.pid) == 0
            assert await to_thread.run_sync(one.kill) == 1
            assert first.wait(WAIT) == -9 and second.poll() is None
            await to_thread.run_sync(one.remove)
            assert not one.folder.exists() and other.folder.exists()
            second.kill()
        with member(group, "/bin/bash", "-c", f"(setsid env -i sleep {mark} &); sleep {mark}"):
            await until(lambda: len(alive(f"sleep\0{mark}")) == 2)
            assert await to_thread.run_sync(group.end)
            await until(lambda: alive(mark) == [])
    finally:
        assert await to_thread.run_sync(group.end)
