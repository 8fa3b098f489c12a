"""Commands without a sandbox, and the promises that their guardians keep."""

import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.workspaces.conformance import Conformance, Place, opened, spawner, spec_of, token
from tests.workspaces.harness import WAIT, alive, open_workspaces, until
from tidegate.errors import ToolFailed
from tidegate.workspaces.backends.local import LocalBackend
from tidegate.workspaces.files.local_files import LocalFiles
from tidegate.workspaces.processes.children import Spawner

pytestmark = pytest.mark.anyio


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with opened(LocalBackend(spawner()), spec_of(tmp_path)) as made:
        yield made


class TestLocal(Conformance):
    pass


def guardians() -> list[int]:
    """Of this process."""
    return [pid for pid in alive("workspaces/backends/guardian.py") if _parent(pid) == os.getpid()]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


async def test_the_local_backend_says_that_it_is_not_a_sandbox(place: Place) -> None:
    """X12: approvals depend on it."""
    assert not place.backend.sandboxed
    assert place.backend.enforced["processes"] == "polled"
    assert await place.backend.check() is None


async def test_commands_work_in_the_folder_with_home_and_temporary_files_beside_it(place: Place) -> None:
    spec = place.spec
    assert await place.output_of("pwd; echo $HOME; echo $TMPDIR") == f"{spec.folder}\n{spec.home}\n{spec.temporary}"
    await place.output_of("echo 1 > here; echo 2 > ~/there; echo 3 > $TMPDIR/then")
    files = place.backend.files(spec, open_sandbox=lambda: anyio.sleep(0, place.sandbox))
    assert isinstance(files, LocalFiles)
    for path, content in (("here", b"1\n"), (f"{spec.home}/there", b"2\n"), (f"{spec.temporary}/then", b"3\n")):
        assert (await files.load(path, limit=10)).data == content


PLANTED = {
    "{home}/.local/bin/git": "#!/bin/sh\necho caught > {work}/caught\n",
    "{home}/.gitconfig": "[core]\n\tfsmonitor = echo caught > {work}/caught; false\n",
    "{home}/.config/git/config": "[core]\n\tfsmonitor = echo caught > {work}/caught; false\n",
    "{home}/.bashrc": "echo caught > {work}/caught\n",
    ".git/config": "[core]\n\tfsmonitor = echo caught > {work}/caught; false\n",
    ".git/HEAD": "ref: refs/heads/main\n",
    "HEAD": "ref: refs/heads/main\n",
    "config": "[core]\n\tbare = false\n\tworktree = .\n\tfsmonitor = echo caught > {work}/caught; false\n",
    "objects/x": "",
    "refs/x": "",
}
"""Files with which `git status` would run another command."""


@pytest.mark.parametrize("repository", [True, False])
async def test_no_file_of_the_tools_changes_what_a_permitted_command_runs(place: Place, repository: bool) -> None:
    """X11: files are written without asking, and a rule may allow `git status*` outside a sandbox."""
    spec = place.spec
    if repository:
        await place.output_of("git init -q -b main . && chmod +x .git")
    files = place.backend.files(spec, open_sandbox=lambda: anyio.sleep(0, place.sandbox))
    refused = set()
    for path, text in PLANTED.items():
        try:
            await files.write(path.format(home=spec.home), text.format(work=spec.folder).encode())
        except ToolFailed:
            refused.add(path)
    await place.output_of("chmod +x ~/.local/bin/git 2>/dev/null; git status; true")
    assert not (spec.folder / "caught").exists()
    assert refused == {path for path in PLANTED if path not in ("config", "objects/x", "refs/x")}


async def test_an_idle_local_sandbox_has_no_process(place: Place) -> None:
    assert place.sandbox.alive and place.sandbox.pid is None and not guardians()
    child = await place.start("read -r line")
    assert len(guardians()) == 1
    child.close_input()
    with anyio.fail_after(WAIT):
        await child.wait()
        await child.end(0)
    child.close()
    assert not guardians()


async def test_a_guardian_carries_no_mark_and_nothing_of_the_environment(place: Place) -> None:
    """X18: nor does its command line, which everybody on the machine can read."""
    child = await place.start("read -r line")
    (guardian,) = guardians()
    assert Path(f"/proc/{guardian}/environ").read_bytes() == b""
    assert b"C.UTF-8" not in Path(f"/proc/{guardian}/cmdline").read_bytes()
    with anyio.fail_after(WAIT):
        await child.end(0)
    child.close()


async def test_a_command_may_use_every_core_that_the_gateway_was_given(place: Place) -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert await place.output_of("nproc") == str(len(cores))
    finally:
        os.sched_setaffinity(0, cores)


async def test_processes_of_a_killed_guardian_are_ended_by_their_mark(place: Place) -> None:
    """P12: the gateway does the guardian's work, as far as the mark goes."""
    mark = token()
    child = await place.start(f"(setsid sleep {mark} &); sleep {mark}")
    await until(lambda: len(alive(f"sleep\0{mark}")) == 2)
    os.kill(guardians()[0], signal.SIGKILL)
    with anyio.fail_after(WAIT):
        assert await child.wait() == -9
        await child.end(0)
    assert not alive(mark)
    child.close()


async def test_killing_a_command_leaves_the_rest_to_its_guardian(place: Place) -> None:
    """P12: as a starting gateway does with a process of the last one."""
    mark = token()
    child = await place.start(f"(setsid sleep {mark} &); sleep {mark}")
    await until(lambda: len(alive(f"sleep\0{mark}")) == 2)
    assert child.pid is not None and os.getpgid(child.pid) == child.pid
    os.killpg(child.pid, signal.SIGKILL)
    with anyio.fail_after(WAIT):
        assert await child.wait() == -9
    assert not alive(mark)
    with anyio.fail_after(WAIT):
        assert await child.end(0) == 1
    child.close()


async def test_a_growing_crowd_of_processes_is_ended(place: Place) -> None:
    """L14: as long as killing is faster than forking."""
    mark = token()
    child = await place.start(
        f"for i in $(seq 100); do (setsid sh -c 'sleep {mark} & sleep {mark}' &); done; sleep {mark}"
    )
    await until(lambda: len(alive(f"sleep\0{mark}")) == 201)
    with anyio.fail_after(WAIT):
        await child.end(0.1)
    assert not alive(mark)
    child.close()


async def test_a_command_carries_the_owner_mark_and_a_saved_shell_does_not(tmp_path: Path) -> None:
    """L14: so that the next gateway of the same home finds it if its guardian is killed together with the gateway."""
    backend = LocalBackend(Spawner(frozenset(os.sched_getaffinity(0)), "one"))
    async with opened(backend, spec_of(tmp_path)) as place:
        assert await place.output_of("export A=b; echo $TIDEGATE_OWNER") == "one"
        assert place.shell is not None and b"A=" in place.shell and b"TIDEGATE_" not in place.shell


async def test_an_environment_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with opened(LocalBackend(spawner()), spec_of(tmp_path, environment={"LONG": "x" * 70_000})) as place:
        with pytest.raises(ToolFailed, match=r"workspaces\.environment"):
            await place.run("true")


async def test_a_missing_session_folder_is_reported(place: Place) -> None:
    place.spec.folder.rmdir()
    child = await place.start("true")
    with anyio.fail_after(WAIT):
        assert await child.wait() == 127
        state = await child.read_state()
        await child.end(0)
    assert b"cannot be started (No such file or directory)" in state
    child.close()


GATEWAY = """
import anyio, os, sys
from pathlib import Path
from tests.workspaces.conformance import opened, spawner, spec_of
from tidegate.workspaces.backends.local import LocalBackend

async def main():
    async with opened(LocalBackend(spawner()), spec_of(Path(sys.argv[1]))) as place:
        for _ in range(2):
            await place.start(sys.argv[2])
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
async def test_nothing_outlives_a_gateway_that_is_killed(tmp_path: Path, trap: str) -> None:
    """L14, P12: after kill -9 of the gateway, the guardians end everything, including processes that ignore signals or
    have left every parent, group and session."""
    mark = token()
    command = f"{trap}(setsid env -i sleep {mark} &); (setsid sh -c 'sleep {mark} & sleep {mark}' &); sleep {mark}"
    child = await spawner().spawn(
        [sys.executable, "-c", GATEWAY, str(tmp_path), command],
        {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        await until(lambda: len(alive(f"sleep\0{mark}")) == 8)
    finally:
        await child.end(0)
        child.close()
    await until(lambda: not alive(mark))
    await until(lambda: not [pid for pid in alive("workspaces/backends/guardian.py") if str(tmp_path) in _cwd(pid)])
    assert not alive(mark)


def _cwd(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


async def test_a_session_without_a_sandbox_has_all_features(home: Path) -> None:
    """B2, B3, P12: shell, processes and folder, until its end."""
    mark = token()
    async with open_workspaces(home, backend="local") as harness:
        session = await harness.new_session()
        await harness.output_of(session, "mkdir deep; cd deep; export X=kept; echo 1 > file")
        await harness.of(session).start("server", f"(setsid env -i sleep {mark} &); sleep {mark}")
        await until(lambda: len(alive(f"sleep\0{mark}")) == 2)
        assert await harness.output_of(session, "cat file; echo $X") == "1\nkept"
        assert not await harness.of(session).sandboxed()
    assert not alive(mark)
    async with open_workspaces(home, backend="local") as harness:
        assert (
            await harness.output_of(session, "cat file; echo $X; pwd") == f"1\nkept\n{home}/workspaces/{session}/deep"
        )
        await harness.end(session)
        assert (home / "trash" / session / "deep" / "file").exists()
