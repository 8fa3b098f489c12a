"""The behaviour that all backends share. The tests of a backend inherit `Conformance` and define a fixture `place`."""

import asyncio
import contextlib
import hashlib
import itertools
import os
import resource
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.workspaces.harness import WAIT, alive, until
from tidegate.errors import ToolFailed
from tidegate.lifetimes import gather
from tidegate.values import new_id
from tidegate.workspaces.backends import shell_script
from tidegate.workspaces.backends.interface import Backend, Child, Sandbox, SandboxLimits, SandboxSpec
from tidegate.workspaces.processes.children import Spawner
from tidegate.workspaces.processes.command_run import run_child

MIB = 1 << 20
_numbers = itertools.count(900_000 + os.getpid())


def token() -> str:
    """A duration that no other process sleeps, by which a process can be found."""
    return str(next(_numbers) * 1000 + 33)


@dataclass
class Ran:
    code: int | None
    output: str
    left: int


@dataclass
class Place:
    """An open sandbox of a backend, and the shell as its last command left it."""

    backend: Backend
    spec: SandboxSpec
    sandbox: Sandbox
    shell: bytes | None = None

    async def spawn(self, text: str) -> Child:
        mark = new_id("c")
        return await self.sandbox.spawn(self.script(text, mark), mark)

    async def run(self, text: str) -> Ran:
        printed = bytearray()

        async def sink(data: bytes) -> None:
            printed.extend(data)

        with anyio.fail_after(WAIT):
            done = await run_child(await self.spawn(text), sink)
        saved = shell_script.read_state(done.state)
        if saved.shell is not None:
            self.shell = saved.shell
        return Ran(done.code, printed.decode(), done.left + saved.left)

    async def output_of(self, text: str) -> str:
        """The output of a command that succeeds."""
        ran = await self.run(text)
        assert ran.code == 0, ran
        return ran.output.strip()

    async def start(self, text: str) -> Child:
        """A running process that reads its input."""
        mark = new_id("pr")
        inner = self.backend.inner(self.spec.folder)
        return await self.sandbox.spawn(shell_script.background(text, mark=mark, folder=inner, shell=self.shell), mark)

    def script(self, text: str, mark: str) -> bytes:
        inner = self.backend.inner(self.spec.folder)
        return shell_script.command(text, mark=mark, folder=inner, shell=self.shell)


def spawner() -> Spawner:
    return Spawner(frozenset(os.sched_getaffinity(0)))


def spec_of(home: Path, **settings: Any) -> SandboxSpec:
    """A specification whose folders exist."""
    limits = {"memory_bytes": 1024 * MIB, "processes": 200, "disk_bytes": 64 * MIB, "file_bytes": 2 * MIB}
    session = new_id("s")
    spec = SandboxSpec(
        session=session,
        folder=home / session,
        private=home / f"{session}.private",
        limits=SandboxLimits(**limits, cpu_seconds=100),
        **{"environment": {"LANG": "C.UTF-8", "TERM": "dumb"}, **settings},
    )
    for folder in (spec.folder, spec.private, spec.home, spec.temporary):
        folder.mkdir(mode=0o700)
    return spec


@contextlib.asynccontextmanager
async def opened(backend: Backend, spec: SandboxSpec) -> AsyncIterator[Place]:
    with anyio.fail_after(WAIT):
        sandbox = await backend.open(spec)
    try:
        yield Place(backend, spec, sandbox)
    finally:
        with anyio.fail_after(WAIT):
            await sandbox.close()


async def output_of(child: Child) -> str:
    """All remaining output."""
    data = b""
    with anyio.fail_after(WAIT):
        while piece := await child.read():
            data += piece
    return data.decode()


class Conformance:
    finds_the_unmarked = True
    """Whether processes without a mark can be told from those of other commands."""

    # -- how a command ends --

    @pytest.mark.parametrize("code", [0, 1, 7, 137, 255])
    async def test_the_exit_code_is_that_of_the_command(self, place: Place, code: int) -> None:
        assert (await place.run(f"exit {code}")).code == code
        assert (await place.run(f"(exit {code})")).code == code

    async def test_death_by_a_signal_differs_from_an_exit_code(self, place: Place) -> None:
        assert (await place.run("kill -9 $$")).code == -9
        assert (await place.run("kill -TERM $$")).code == -15

    async def test_a_background_process_reports_its_end(self, place: Place) -> None:
        child = await place.start("exec sh -c 'kill -USR2 $$'")
        with anyio.fail_after(WAIT):
            assert await child.wait() == -12
            assert await child.end(0) == 0
        child.close()

    # -- the shell --

    async def test_directory_variables_and_functions_persist(self, place: Place) -> None:
        """B2, V11: the shell is kept outside the sandbox."""
        await place.run("mkdir -p 'a b'; cd 'a b'; export NAME='x  y'; greet() { echo hello $1; }")
        assert await place.output_of('basename "$PWD"; echo "$NAME"; greet you') == "a b\nx  y\nhello you"

    async def test_commands_start_in_the_folder_of_the_session(self, place: Place) -> None:
        await place.run("echo here > file")
        place.shell = None
        assert await place.output_of("cat file") == "here"

    async def test_the_input_of_a_command_is_empty(self, place: Place) -> None:
        assert await place.output_of("read answer || echo nobody answers; cat; test -t 0 || echo none") == (
            "nobody answers\nnone"
        )

    async def test_a_command_has_a_home_and_a_temporary_folder(self, place: Place) -> None:
        assert await place.output_of(
            'cd; echo 1 > x; file=$(mktemp); echo 2 > "$file"; cat ~/x "$file"; pwd >/dev/null'
        ) == ("1\n2")

    async def test_the_environment_holds_only_allowed_variables(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """X18: the gateway's own variables are not visible to commands."""
        monkeypatch.setenv("TIDEGATE_SECRET", "hidden")
        names = set((await place.output_of("env | sed 's/=.*//'")).split())
        assert names <= {
            *("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"),
            *("OLDPWD", "PWD", "SHLVL", "TIDEGATE_MARK", "TIDEGATE_OWNER", "_"),
        }
        assert {"HOME", "LANG", "PATH", "TERM", "TIDEGATE_MARK", "USER"} <= names

    async def test_a_command_has_only_its_streams_open(self, place: Place) -> None:
        assert (
            await place.output_of("ls /proc/self/fd | tr '\\n' ' '") == "0 1 2 3 9"
        )  # 3 is that folder, 9 the state channel

    # -- streams --

    async def test_output_and_errors_come_in_order(self, place: Place) -> None:
        words = [f"echo {number}{' >&2' if number % 3 == 0 else ''}" for number in range(50)]
        assert (await place.output_of("; ".join(words))).split() == [str(number) for number in range(50)]

    async def test_five_megabytes_arrive_complete(self, place: Place) -> None:
        digest, size = hashlib.sha256(), 0

        async def sink(data: bytes) -> None:
            nonlocal size
            digest.update(data)
            size += len(data)

        with anyio.fail_after(WAIT):
            child = await place.spawn("yes 0123456789abcdef | head -c 5242880")
            assert (await run_child(child, sink)).code == 0
        expected = (b"0123456789abcdef\n" * (5 * MIB // 17 + 1))[: 5 * MIB]
        assert (size, digest.hexdigest()) == (5 * MIB, hashlib.sha256(expected).hexdigest())

    async def test_a_process_reads_its_input_until_it_is_closed(self, place: Place) -> None:
        child = await place.start('while read -r line; do echo "<$line>"; done; echo end')
        await child.write(b"one\n")
        with anyio.fail_after(WAIT):
            assert await child.read() == b"<one>\n"
        await child.write(b"two\n")
        child.close_input()
        assert await output_of(child) == "<two>\nend\n"
        with anyio.fail_after(WAIT):
            assert await child.wait() == 0
            await child.end(0)
        child.close()

    async def test_concurrent_commands_have_separate_streams(self, place: Place) -> None:
        async def one(number: int) -> str:
            return await place.output_of(f"for i in 1 2 3; do echo {number}; sleep 0.01; done; exit 0")

        assert await gather([one(number) for number in range(4)]) == [f"{n}\n{n}\n{n}" for n in range(4)]

    # -- the end of everything --

    async def test_processes_left_by_a_command_are_ended_and_counted(self, place: Place) -> None:
        """L14, P12: it ends with the command, even after leaving its group and session."""
        mark = token()
        ran = await place.run(
            f"sleep {mark} & (setsid sleep {mark} &); (nohup setsid sleep {mark} >/dev/null 2>&1 &); :"
        )
        assert (ran.code, ran.left) == (0, 3)
        assert not alive(mark)

    async def test_processes_that_cleared_their_environment_are_ended(self, place: Place) -> None:
        """L14, P12: processes are not identified by their mark alone."""
        mark = token()
        ran = await place.run(f"(setsid env -i sleep {mark} >/dev/null 2>&1 </dev/null &); echo started")
        assert (ran.code, ran.output, ran.left) == (0, "started\n", 1)
        assert not alive(mark)

    async def test_processes_that_cleared_their_environment_end_with_their_command_while_others_run(
        self, place: Place
    ) -> None:
        """L14, P12: when the command returns or is stopped; other commands continue."""
        mark, other = token(), token()
        beside = await place.start(f"(setsid env -i sleep {other} &); sleep {other}")
        await until(lambda: len(alive(f"sleep\0{other}")) == 2)
        ran = await place.run(f"(setsid env -i sleep {mark} >/dev/null 2>&1 </dev/null &); echo started")
        assert (ran.code, ran.output) == (0, "started\n")
        if not self.finds_the_unmarked:
            with anyio.fail_after(WAIT):
                await place.sandbox.close()
            assert not alive(mark)
            beside.close()
            return
        assert ran.left == 1 and not alive(mark)
        child = await place.start(f"(env -i setsid sh -c 'trap \"\" TERM; sleep {mark}; :' &); sleep {mark}")
        await until(lambda: len(alive(f"sleep\0{mark}")) == 2)
        with anyio.fail_after(WAIT):
            await child.end(0.05)
        assert not alive(mark) and len(alive(f"sleep\0{other}")) == 2
        with anyio.fail_after(WAIT):
            await beside.end(0)
        assert not alive(other)
        child.close()
        beside.close()

    async def test_processes_left_behind_by_a_process_are_ended(self, place: Place) -> None:
        mark = token()
        child = await place.start(f"(setsid sleep {mark} &); exit 4")
        with anyio.fail_after(WAIT):
            assert await child.wait() == 4
            assert await child.end(0.3) == 1
        assert not alive(mark)
        child.close()

    async def test_ending_a_command_ends_its_whole_tree(self, place: Place) -> None:
        """L14, P12: children, grandchildren in their own sessions, and orphans."""
        mark = token()
        child = await place.start(f"(setsid sh -c 'sleep {mark} & sleep {mark}' &); sleep {mark}")
        await until(lambda: len(alive(f"sleep\0{mark}")) == 3)
        with anyio.fail_after(WAIT):
            assert await child.end(0.2) == 0
        assert not alive(mark)
        child.close()

    async def test_a_command_can_still_write_output_after_sigterm(self, place: Place) -> None:
        child = await place.start("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.02; done")
        with anyio.fail_after(WAIT):
            assert await child.read() == b"up\n"
            assert await child.end(WAIT) == 0
            assert await child.wait() == 3
        said = await output_of(child)
        assert said.endswith("bye\n"), said  # a shell may print the job it was waiting for
        child.close()

    async def test_a_command_that_ignores_sigterm_is_killed(self, place: Place) -> None:
        mark = token()
        child = await place.start(f"trap '' TERM; echo up; sleep {mark}; sleep {mark}")
        with anyio.fail_after(WAIT):
            assert await child.read() == b"up\n"
            await child.end(0.05)
            assert await child.wait() == -9
        assert not alive(mark)
        await child.end(0)
        child.close()

    async def test_a_stopped_process_is_ended_too(self, place: Place) -> None:
        mark = token()
        child = await place.start(f"sleep {mark} & kill -STOP $!; echo up; kill -STOP $$")
        with anyio.fail_after(WAIT):
            assert await child.read() == b"up\n"
            await child.end(0.1)
        assert not alive(mark)
        child.close()

    async def test_ending_one_command_does_not_end_another(self, place: Place) -> None:
        mark, other = token(), token()
        first = await place.start(f"(setsid sleep {mark} &); sleep {mark}")
        second = await place.start(f"(setsid sleep {other} &); sleep {other}")
        await until(lambda: len(alive(f"sleep\0{mark}")) == 2 and len(alive(f"sleep\0{other}")) == 2)
        with anyio.fail_after(WAIT):
            await first.end(0)
        assert not alive(mark) and len(alive(f"sleep\0{other}")) == 2
        with anyio.fail_after(WAIT):
            await second.end(0)
        assert not alive(other)
        first.close()
        second.close()

    async def test_cancelling_the_caller_ends_the_command(self, place: Place) -> None:
        mark = token()
        child = await place.spawn(f"(setsid sleep {mark} &); echo up; sleep {mark}")
        started = asyncio.Event()

        async def sink(data: bytes) -> None:
            started.set()

        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                group.start_soon(run_child, child, sink)
                await started.wait()
                group.cancel_scope.cancel()
        assert not alive(mark)

    async def test_closing_a_sandbox_leaves_nothing(self, place: Place) -> None:
        """L14, B3: and `close` may be called again."""
        mark = token()
        children = [await place.start(f"(setsid sleep {mark} &); trap '' TERM; sleep {mark}") for _ in range(2)]
        await until(lambda: len(alive(f"sleep\0{mark}")) == 4)
        assert place.sandbox.alive
        with anyio.fail_after(WAIT):
            await place.sandbox.close()
            await place.sandbox.wait()
            await place.sandbox.close()
        assert not place.sandbox.alive and not alive(mark)
        with pytest.raises(ToolFailed):
            await place.start("true")
        for child in children:
            with anyio.fail_after(WAIT):
                assert await child.wait() < 0
                await child.end(0)
            child.close()

    # -- marks, limits and what is used --

    async def test_all_processes_of_a_command_carry_its_mark(self, place: Place) -> None:
        child = await place.sandbox.spawn(place.script("sh -c 'env; :' | grep MARK", "mark-77"), "mark-77")
        assert await output_of(child) == "TIDEGATE_MARK=mark-77\n"
        with anyio.fail_after(WAIT):
            await child.end(0)
        child.close()

    async def test_running_processes_are_counted(self, place: Place) -> None:
        before = await place.sandbox.load()
        mark = token()
        child = await place.start(f"sleep {mark} & (setsid sleep {mark} &); echo up; sleep {mark}")
        await until(lambda: len(alive(f"sleep\0{mark}")) == 3)
        load = await place.sandbox.load()
        assert load.processes == before.processes + 4 and load.memory_bytes > before.memory_bytes
        with anyio.fail_after(WAIT):
            await child.end(0)
        assert (await place.sandbox.load()).processes == before.processes
        child.close()

    async def test_the_file_size_limit_is_enforced(self, place: Place) -> None:
        assert place.backend.enforced["file_bytes"] == "rlimit"
        assert (await place.run(f"head -c {3 * MIB} /dev/zero > large")).code not in (0, None)
        assert await place.output_of("stat -c %s large") == str(2 * MIB)

    async def test_each_process_has_its_limits(self, place: Place) -> None:
        before = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))  # of this process, and so of its children
        try:
            assert await place.output_of("ulimit -t; ulimit -c; ulimit -d") == f"100\n0\n{1024 * 1024}"
        finally:
            resource.setrlimit(resource.RLIMIT_CORE, before)
