"""The `local` backend: commands on this machine, run as the gateway's own user or, if that is root, as an unprivileged
user.

Each command is the child of its own guardian, from which none of the command's processes can escape. They are all
killed when the command has ended, on request, and when the gateway has died for any reason. While no command is
running, there are no processes. A command has the session's folder to work in, the session's own home and temporary
folder, and nothing from the gateway's environment. There is no isolation: a command can reach whatever its user can,
and that is the gateway's user unless it is root. Therefore, this backend is never chosen automatically.
"""

import asyncio
import contextlib
import os
import pwd
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from anyio import to_thread

from tidegate.errors import ToolFailed
from tidegate.lifetimes import KILLED_SECONDS, gather
from tidegate.log import Log
from tidegate.workspaces.backends import guardian, shell_script
from tidegate.workspaces.backends.interface import (
    MARK,
    OWNER,
    SEGMENTS,
    Enforcement,
    LimitEvents,
    OpenSandbox,
    SandboxSpec,
    SandboxUsage,
    enforced,
    uncounted,
)
from tidegate.workspaces.files import Files, Mount, User
from tidegate.workspaces.files.file_user import gateway_user
from tidegate.workspaces.kernel.cgroups import GROUP_REMOVED, Cgroup, Cgroups, CommandGroup, command_group
from tidegate.workspaces.kernel.process_table import ProcessTable
from tidegate.workspaces.kernel.users import as_user_reaching
from tidegate.workspaces.processes.children import ChildProcess, Spawner, find_program, killed_on_error

log = Log(__name__)

SPEC_BYTES = 64 * 1024
"""Size limit of a guardian's task, which consists mostly of the environment. A socket accepts this much without
blocking."""

START_SECONDS = 10.0
"""Time limit for starting a guardian, which normally takes a few dozen milliseconds. A machine that takes longer than
this has another problem."""

_REPORT_BYTES = 256  # more than a guardian ever reports
_SOCKET = 3  # the descriptor's number in the guardian


class LocalBackend:
    name = "local"
    sandboxed = False

    def __init__(self, spawner: Spawner, groups: Cgroups | None = None) -> None:
        """Without `groups`, the limits that they would enforce are polled."""
        self._spawner = spawner
        self._groups = groups

    @property
    def enforced(self) -> Mapping[str, Enforcement]:
        """How each limit is enforced. Without control groups, the kernel can count only processes per user, not per
        session."""
        return enforced(self._groups.kernel_limits if self._groups else ())

    @property
    def uncounted(self) -> tuple[str, ...]:
        return uncounted(self.enforced, SEGMENTS)

    def inner(self, folder: Path) -> str:
        return str(folder)

    def files(self, spec: SandboxSpec, open_sandbox: OpenSandbox) -> Files:
        # Otherwise, a file that nobody has approved could change what a permitted command, such as `git status`,
        # executes.
        own = [Mount(inner=str(spec.folder), folder=spec.folder, guarded=True)]
        own += [Mount(inner=str(spec.home), folder=spec.home, writable=False)]
        own += [Mount(inner=str(spec.temporary), folder=spec.temporary)]
        seen = [Mount(inner=str(folder), folder=folder, writable=False) for folder in spec.read_only]
        from tidegate.workspaces.files.local_files import LocalFiles  # imported with the first use of files

        return LocalFiles((*own, *seen), self._spawner, user=spec.user)

    async def check(self) -> str | None:
        if find_program("bash") is None:
            return "bash is not installed here: install it, or choose another workspaces.backend."
        if self._groups is not None:
            await to_thread.run_sync(self._groups.detect)
        return None

    async def open(self, spec: SandboxSpec) -> "LocalSandbox":
        return LocalSandbox(self._spawner, spec, None if self._groups is None else await self._groups.make(spec.limits))


class LocalSandbox:
    """One session's running commands. It owns the guardians and the control group, if there is one. The group contains
    the commands but not the guardians."""

    def __init__(self, spawner: Spawner, spec: SandboxSpec, group: Cgroup | None) -> None:
        self._spawner = spawner
        self._spec = spec
        self._group = group
        self.kernel_limits: frozenset[str] = group.kernel_limits if group else frozenset()
        self._commands: set[LocalCommand] = set()
        self._closed = asyncio.Event()
        self.close_reason = ""

    @property
    def alive(self) -> bool:
        return not self._closed.is_set()

    @property
    def pid(self) -> int | None:
        return None

    @property
    def limit_events(self) -> LimitEvents:
        return self._group.limit_events if self._group else LimitEvents()

    async def spawn(self, text: bytes, mark: str, *, full: bool = False) -> "LocalCommand":
        if self._group and self.alive and not self._group.joinable:
            self.close_reason = GROUP_REMOVED
            await self.close()
        async with command_group(self._group if self.alive else None) as leaf:
            return await self._start(text, mark, leaf, full)

    async def _start(self, text: bytes, mark: str, leaf: CommandGroup | None, full: bool) -> "LocalCommand":
        task = self._task(mark, leaf, full)
        ours, theirs = socket.socketpair()
        try:
            child = await self._spawner.spawn(
                [sys.executable, "-I", "-S", "-B", guardian.__file__, str(_SOCKET)],
                {},
                passing={theirs.fileno(): _SOCKET},
            )
        except OSError as error:
            ours.close()
            raise ToolFailed(f"The command cannot be started ({error.strerror}).") from None
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        command = LocalCommand(self, child, ours, mark, leaf)
        self._commands.add(command)
        async with killed_on_error(command):
            if not self.alive:
                raise ToolFailed("The workspace is closed.")
            await command.start(task)
            # if the command has already ended, its exit code and output say why
            with contextlib.suppress(ToolFailed):
                await child.write(text)
        return command

    def _task(self, mark: str, leaf: CommandGroup | None, full: bool) -> bytes:
        """Returns the guardian's task. Only the command gets the mark: if the guardian had it, killing processes by
        their mark would kill the guardian, too."""
        spec, user = self._spec, _name(self._spec.user or gateway_user())
        environment = {
            "HOME": str(spec.home),
            "LOGNAME": user,
            "PATH": f"{spec.home}/.local/bin:/usr/local/bin:/usr/bin:/bin",
            "SHELL": "/bin/bash",
            "TMPDIR": str(spec.temporary),
            "USER": user,
            **spec.environment,
            MARK: mark,
            OWNER: self._spawner.owner,
        }
        largest = 0 if full else spec.limits.file_bytes
        limits = (spec.limits.memory_bytes, largest, int(spec.limits.cpu_seconds))
        joins = leaf.joins if leaf else ()
        bash, *rest = shell_script.ENTRY
        become = as_user_reaching(spec.user, spec.folder, spec.home, spec.temporary)
        command = [*become, find_program(bash) or bash, *rest] if become else list(shell_script.ENTRY)
        task = guardian.task_message(command, environment, limits, str(spec.folder), joins=joins)
        if len(task) > SPEC_BYTES:
            raise ToolFailed(
                f"The environment has more than {SPEC_BYTES} bytes; list fewer variables in workspaces.environment."
            )
        return task

    async def is_intact(self) -> bool:
        return True  # nothing is protected from commands here

    async def load(self) -> SandboxUsage:
        guardians = [command.guardian for command in self._commands]
        return await to_thread.run_sync(self._load, guardians) if guardians else SandboxUsage()

    def _load(self, guardians: list[int]) -> SandboxUsage:
        found = [str(pid) for pid in guardian.descendants(guardians)]
        table = ProcessTable("/proc", lambda: found)
        try:
            return table.load(self._spec.limits)
        finally:
            table.close()

    async def wait(self) -> None:
        await self._closed.wait()

    async def close(self) -> None:
        self._closed.set()
        await gather([command.end(0) for command in tuple(self._commands)])
        if self._group is not None:
            await to_thread.run_sync(self._group.end)

    async def purge(self, command: "LocalCommand") -> None:
        """Kills the processes of a command whose guardian was killed."""
        if command.leaf is not None:
            await to_thread.run_sync(command.leaf.kill)
        if not await to_thread.run_sync(guardian.sweep, f"{MARK}={command.mark}"):
            log.error("a command's processes cannot be killed", mark=command.mark)

    def forget(self, command: "LocalCommand") -> None:
        self._commands.discard(command)


def _name(user: User) -> str:
    try:
        return pwd.getpwuid(user.uid).pw_name
    except KeyError:  # a user id without an account
        return "agent"


class LocalCommand:
    """A command and its guardian, which exits when none of the command's processes are left. `pid` is the command's
    own: if that process is killed, the guardian kills the rest."""

    def __init__(
        self, sandbox: LocalSandbox, child: ChildProcess, guard: socket.socket, mark: str, leaf: CommandGroup | None
    ) -> None:
        self._sandbox = sandbox
        self._child = child
        self._guard = guard
        self._guard.setblocking(False)
        self.mark = mark
        self.leaf = leaf
        self._reported = b""
        self.guardian = child.pid
        self.pid: int | None = None
        self.write = child.write
        self.close_input = child.close_input
        self.read = child.read
        self.read_state = child.read_state

    async def start(self, task: bytes) -> None:
        """Sends the task. The socket is new and empty, so it accepts the whole task without blocking."""
        try:
            self._guard.send(task)
            async with asyncio.timeout(START_SECONDS):
                started = await asyncio.get_running_loop().sock_recv(self._guard, _REPORT_BYTES)
        except (OSError, TimeoutError):
            started = b""
        if not started.startswith(guardian.UP):
            raise ToolFailed("The command cannot be started: its guardian did not start.")
        self.pid = int(started.split()[2])
        self._reported = started

    async def wait(self) -> int:
        code = await self._child.wait()
        report = self._report()
        return report[0] if report else code

    async def end(self, grace: float) -> int:
        try:
            if grace > 0:
                self._signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace):
                        await self._child.wait()
            self._signal(signal.SIGUSR1)
            try:
                async with asyncio.timeout(KILLED_SECONDS):
                    await self._child.wait()
            except TimeoutError:
                log.error("a command's processes cannot be killed", guardian=self.guardian)
                await self._child.end(0)
            report = self._report()
            if report is None:
                await self._sandbox.purge(self)
            if self.leaf is not None:
                await to_thread.run_sync(self.leaf.remove)
            return report[1] if report else 0
        finally:
            if not self._child.running:
                self._sandbox.forget(self)
                self._guard.close()

    def close(self) -> None:
        """Closes the streams. If the guardian is still running, it then kills everything."""
        self._child.close()
        self._guard.close()

    def _signal(self, number: signal.Signals) -> None:
        """Signals only the guardian. The guardian is not reaped before we know that it has exited, so its pid cannot
        have been reused."""
        if self._child.running:
            os.kill(self.guardian, number)

    def _report(self) -> tuple[int, int] | None:
        """Returns the exit code and the number of processes left behind, as reported by the guardian, or None if there
        is no report."""
        if self._guard.fileno() >= 0:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                self._reported += self._guard.recv(_REPORT_BYTES)
        _, found, end = self._reported.partition(guardian.OVER)
        if not found:
            return None
        code, left = end.split()
        return int(code), int(left)
