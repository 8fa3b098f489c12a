"""One session's open bubblewrap sandbox, and the commands that run in it.

`bubblewrap` describes what a sandbox isolates and how it is tied to the gateway; this module runs and stops commands in
it. Closing a sandbox kills everything in its namespaces. Before each command and at each check, the sandbox verifies
that the project's protected files are still mounted, and closes itself if they are not.
"""

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import socket
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from anyio import to_thread

from tidegate.errors import ToolFailed
from tidegate.log import Log
from tidegate.workspaces.backends import sandbox_network, shell_script
from tidegate.workspaces.backends.interface import (
    MARK,
    LimitEvents,
    SandboxSpec,
    SandboxUsage,
)
from tidegate.workspaces.created_files import CreatedFiles
from tidegate.workspaces.kernel import seccomp
from tidegate.workspaces.kernel.cgroups import GROUP_REMOVED, JOIN_SCRIPT, Cgroup, CommandGroup, command_group
from tidegate.workspaces.kernel.process_table import ProcessTable, ipc_bytes
from tidegate.workspaces.kernel.users import as_user
from tidegate.workspaces.processes.children import ChildProcess, Spawner, kill_and_close, killed_on_error
from tidegate.workspaces.protected_mounts import (
    FILE_CREATED,
    MOUNT_REPLACED,
    ProtectedMount,
    are_intact,
    rename_created,
    rename_heads,
)

log = Log(__name__)

INNER = "/workspace"
HOME = "/home/agent"

LIST_SECONDS = 1.0
"""Interval between two listings of System V shared memory, messages and semaphores. Each listing starts a process. Used
only without control groups."""

LISTING_SECONDS = 10.0
"""Time limit for one listing, which normally takes milliseconds."""

IPC = ("/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem")

ENTERING_PROCESSES = 16
"""Number of processes allowed beyond the limit while commands are entering a sandbox. Each of these commands needs
two."""

TOO_MANY_PROCESSES = (
    "Everything in the workspace was killed because a command started more processes than could be killed one by one."
)

NEW = "a file that other programs execute has appeared in a project: read it before you open the folder with them"

_LOOK_SECONDS = 0.02  # between two checks whether a killed process has exited
_REAP_SECONDS = 1.0  # for a waiting process to reap a killed one and exit on its own
_LOOKS = 25  # attempts to kill a command before the whole sandbox is closed
_NOTHING = 0  # the signal that only checks for existence
_NS_GET_USERNS = 0xB701  # the user namespace that owns a namespace (ioctl_ns(2))
_OWN = frozenset(("1",))  # the sandbox's own processes, by their numbers inside
_IN_MEMORY = ("../dev/shm", "../run")  # relative to its /proc


class SandboxPrograms(NamedTuple):
    bwrap: str
    nsenter: str
    setpriv: str
    prlimit: str
    bash: str


class BubblewrapSandbox:
    """A session's sandbox. It owns the `bwrap` that holds the namespaces, the lifeline, the descriptors for entering
    the namespaces, the network helper if there is one, and the control group if there is one. The group is only for
    commands: the processes that hold the sandbox are not in it, so they are never killed because of resources used by
    commands."""

    def __init__(
        self,
        spawner: Spawner,
        programs: SandboxPrograms,
        spec: SandboxSpec,
        child: ChildProcess,
        first: int,
        lifeline: socket.socket,
        group: Cgroup | None,
        guarded: tuple[ProtectedMount, ...] = (),
    ) -> None:
        """`first` is the pid of the sandbox's first process in our namespace. The sandbox ends when `lifeline` is
        closed. `guarded` are the mounts without which no command may run in the sandbox."""
        self._spawner = spawner
        self._programs = programs
        self._spec = spec
        self._holder = child
        self._first = first
        self._lifeline = lifeline
        self._group = group
        self._guarded = guarded
        self._created = CreatedFiles(guarded)
        self.kernel_limits: frozenset[str] = group.kernel_limits if group else frozenset()
        self._network: sandbox_network.SandboxNetwork | None = None
        self._commands: set[SandboxCommand] = set()
        self._service = asyncio.Lock()
        self._closed = False
        self._ipc_bytes = 0
        self._list_again = 0.0
        self.close_reason = ""
        with contextlib.ExitStack() as opened:
            self._user = _namespace(first, "user")
            opened.callback(os.close, self._user)
            self._owner = _owner(first)
            opened.callback(os.close, self._owner)
            self._table = ProcessTable(f"/proc/{first}/root/proc")
            opened.callback(self._table.close)
            opened.callback(lifeline.close)
            self._release = opened.pop_all()

    @property
    def alive(self) -> bool:
        """False if the sandbox has ended or lost its network; it is then opened again."""
        connected = self._network is None or self._network.running
        return self._holder.running and connected and not self._closed

    @property
    def pid(self) -> int | None:
        return self._holder.pid

    @property
    def limit_events(self) -> LimitEvents:
        return self._group.limit_events if self._group else LimitEvents()

    async def connect(self, programs: sandbox_network.Programs, environment: Mapping[str, str]) -> None:
        """Connects the sandbox to the network before the first command enters. Raises ToolFailed on failure."""
        user = as_user(self._spec.user, self._programs.setpriv)
        place = sandbox_network.Namespaces(self._first, self._owner, user)
        self._network = await sandbox_network.connect(self._spawner, programs, place, environment, self._spec.reachable)

    async def spawn(self, text: bytes, mark: str, *, full: bool = False) -> "SandboxCommand":
        if self._group and self.alive and not self._group.joinable:
            self.close_reason = GROUP_REMOVED
            await self.close()
        await self.is_intact()
        if not self.alive:
            raise ToolFailed("The sandbox has ended.")
        async with command_group(self._group) as leaf:
            command = await self._enter(mark, leaf, full)
        async with killed_on_error(command):
            # if the command has already ended, its exit code and output say why
            with contextlib.suppress(ToolFailed):
                await command.write(text)
        return command

    async def is_intact(self) -> bool:
        """True if the project's protected files are still mounted; otherwise, the sandbox is closed. It is also closed
        if a command may have created a protected file that did not exist before. A file that appears while no command
        is running comes from elsewhere and is only logged."""
        if not self._spec.project or not self.alive:
            return True
        root = Path(f"/proc/{self._first}/root{INNER}")
        created = await to_thread.run_sync(partial(self._find_created, root, running=bool(self._commands)))
        intact = await to_thread.run_sync(are_intact, root, self._guarded)
        if intact and not created:
            return True
        if self.alive:
            self.close_reason = FILE_CREATED.format(names=", ".join(created)) if intact else MOUNT_REPLACED
            await self.close()
        return False

    def _find_created(self, root: Path, *, running: bool, completely: bool = False) -> tuple[str, ...]:
        """Returns the protected names under which a command may have created something since the last check."""
        found = self._created.check(root, running=running, completely=completely)
        for name in found.appeared:
            log.warning(NEW, session=self._spec.session, path=str(self._spec.folder / name))
        return found.created

    async def _enter(self, mark: str, leaf: CommandGroup | None, full: bool) -> "SandboxCommand":
        programs, limits = self._programs, self._spec.limits
        enter = ["/bin/sh", "-c", JOIN_SCRIPT, "sh", *leaf.joins, "--"] if leaf else []
        enter += as_user(self._spec.user, programs.setpriv)
        # Set this before the process enters: inside, a debugger run by the session could capture it first. Reserved but
        # unused address space does not count as data, since programs reserve more than any machine has.
        enter += [programs.prlimit, f"--data={limits.memory_bytes}", f"--fsize={0 if full else limits.file_bytes}"]
        enter += [f"--cpu={int(limits.cpu_seconds)}", "--core=0"]
        # The namespace descriptors are only for entering; commands must not inherit them.
        begin = "exec 3<&- 4<&-"
        if "processes" not in self.kernel_limits:  # otherwise, the kernel would refuse in two ways and count only one
            # The entering processes count, too. A command must be able to enter a full sandbox in order to stop
            # something there.
            enter.append(f"--nproc={_permitted(limits.processes + ENTERING_PROCESSES)}")
            begin = f"ulimit -u {_permitted(limits.processes)}; {begin}"
        enter += ["--", programs.nsenter, "--user=/proc/self/fd/3", "--preserve-credentials", "-t", str(self._first)]
        enter += ["-m", "-p", "-n", "-i", "-u", f"-W{INNER}", "--"]
        if os.fstat(self._owner).st_ino != os.fstat(self._user).st_ino:
            # If bwrap needs two nested user namespaces, both are entered in order.
            enter += [programs.nsenter, "--user=/proc/self/fd/4", "--preserve-credentials", "--"]
        enter += [programs.bash, "-c", f'{begin}; exec "$@"', "bash"]
        environment = {
            "HOME": HOME,
            "PATH": f"{HOME}/.local/bin:/usr/local/bin:/usr/bin:/bin",
            "SHELL": "/bin/bash",
            "USER": "agent",
            **self._spec.environment,
            MARK: mark,
        }
        async with self._service:
            if not self.alive:
                raise ToolFailed("The sandbox has ended.")
            self._created.command_started()
            try:
                child = await self._spawner.spawn(
                    [*enter, *shell_script.ENTRY],
                    environment,
                    passing={self._owner: 3, self._user: 4},
                    within=seccomp.confined,
                )
            except OSError as error:
                raise ToolFailed(f"The command cannot be started ({error.strerror}).") from None
            command = SandboxCommand(self, child, mark, leaf)
            self._commands.add(command)
        return command

    async def load(self) -> SandboxUsage:
        if "memory_bytes" not in self.kernel_limits and time.monotonic() >= self._list_again:
            self._ipc_bytes = await self._listed()
            self._list_again = time.monotonic() + LIST_SECONDS
        look = partial(self._table.load, places=_IN_MEMORY, beside=self._ipc_bytes)
        return await to_thread.run_sync(look, self._spec.limits)

    async def _listed(self) -> int:
        """Returns the size of the sandbox's System V shared memory, messages and semaphores, which the kernel shows
        only inside the namespace."""
        enter = [self._programs.nsenter, "--user=/proc/self/fd/3", "--preserve-credentials", "-t", str(self._first)]
        listing = [*as_user(self._spec.user, self._programs.setpriv), *enter, "-i", "--", "/bin/cat", *IPC]
        try:
            child = await self._spawner.spawn(listing, {}, passing={self._owner: 3})
        except OSError:  # the next check will try again
            return self._ipc_bytes
        data = b""
        try:
            async with asyncio.timeout(LISTING_SECONDS):
                while piece := await child.read():
                    data += piece
        except TimeoutError:
            log.warning("the shared memory of a sandbox cannot be listed", session=self._spec.session)
        finally:
            await kill_and_close(child)
        return ipc_bytes(data)

    async def wait(self) -> None:
        await self._holder.wait()

    async def close(self) -> None:
        """Closes the sandbox by killing its first process: the kernel then kills everything in the namespace. The
        processes that wait for the first process and for commands exit on their own after reaping their children. If
        they were killed, only the machine's first process could reap these children, and that may be the gateway."""
        if self._closed:
            await self._holder.wait()
            return
        self._closed = True
        try:
            if self._holder.running:
                # Only its parent can reap it, and the parent has not been reaped, so the pid is still its own.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._first, signal.SIGKILL)
            await _over(self._holder)
            for command in tuple(self._commands):
                await command.reap()
        finally:
            if self._network is not None:
                await self._network.close()
            self._holder.close()
            await to_thread.run_sync(self._release_resources)

    def _release_resources(self) -> None:
        if self._spec.project:
            rename_heads(self._spec.folder, self._guarded)
            created = self._find_created(self._spec.folder, running=False, completely=True)
            rename_created(self._spec.folder, created)
        if self._group is not None:
            self._group.end()
        self._release.close()

    async def signal(self, command: "SandboxCommand", number: int) -> int:
        """Signals all of a command's processes; returns how many were signalled. Without control groups, processes that
        have removed the mark can be recognised only while no other command is running or starting."""
        if command.leaf is not None:
            reach = command.leaf.kill if number == signal.SIGKILL else partial(command.leaf.send, number)
            # Do not signal the process that waits for the command outside the sandbox and has to reap it.
            return await to_thread.run_sync(reach, command.waiting_pid) if self.alive else 0
        async with self._service:
            if not self.alive:
                return 0
            mark = None if self._commands <= {command} else command.mark
            reached = await to_thread.run_sync(self._signal, number, mark)
        if reached is None:  # if the kernel does not limit processes, a fork bomb ends only with the sandbox
            await self.give_up()
        return reached or 0

    def _signal(self, number: int, mark: str | None) -> int | None:
        if self._table.is_crowded(self._spec.limits.processes + len(_OWN)):
            return None
        return self._table.signal(number, besides=_OWN, mark=mark)

    async def give_up(self) -> None:
        """Closes the whole sandbox because a command cannot be stopped in any other way."""
        self.close_reason = TOO_MANY_PROCESSES
        await self.close()

    def forget(self, command: "SandboxCommand") -> None:
        self._commands.discard(command)


class SandboxCommand:
    """A command inside a sandbox. Everything that it started is stopped with it."""

    def __init__(self, sandbox: BubblewrapSandbox, child: ChildProcess, mark: str, leaf: CommandGroup | None) -> None:
        """`leaf` is the command's own control group, which is removed with the command."""
        self._sandbox = sandbox
        self._child = child
        self.mark = mark
        self.leaf = leaf
        self.pid: int | None = child.pid
        self.write = child.write
        self.close_input = child.close_input
        self.read = child.read
        self.read_state = child.read_state
        self.wait = child.wait
        self.close = child.close

    @property
    def waiting_pid(self) -> int | None:
        """The pid of the process outside the sandbox that waits for the command. None once that process has been
        reaped, since its pid may then be reused."""
        return self.pid if self._child.running else None

    async def reap(self) -> None:
        """Reaps the waiting process after the sandbox has ended."""
        await _over(self._child)

    async def end(self, grace: float) -> int:
        by_itself = not self._child.running
        left = 0
        try:
            if grace > 0:
                left = await self._send(signal.SIGTERM)
                await self._send(signal.SIGCONT)  # a stopped process would not receive SIGTERM
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace):
                        await self._child.wait()
                        await self._vanished()
            killed = await self._kill()
            if self.leaf is not None:
                await to_thread.run_sync(self.leaf.remove)
            return max(left, killed) if by_itself else 0
        finally:
            self._sandbox.forget(self)

    async def _vanished(self) -> None:
        """Waits until the command's processes have exited. Polls, since a process is notified only about its own
        children."""
        left = 1
        while left:
            await asyncio.sleep(_LOOK_SECONDS)
            left = await self._send(_NOTHING)

    async def _kill(self) -> int:
        """Kills all remaining processes; returns how many the first attempt found."""
        first = found = await self._send(signal.SIGKILL)
        if found:
            await _over(self._child)
        else:  # it has not entered the sandbox yet
            await self._child.end(0)
            found = await self._send(signal.SIGKILL)
        for _ in range(_LOOKS):
            if not found:
                return first
            await asyncio.sleep(_LOOK_SECONDS)
            found = await self._send(signal.SIGKILL)
        await self._sandbox.give_up()
        return first

    async def _send(self, number: int) -> int:
        return await self._sandbox.signal(self, number)


async def _over(child: ChildProcess) -> None:
    """Gives the waiting process time to reap its killed child and exit. If it does not, kills it too."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REAP_SECONDS):
            await child.wait()
    await child.end(0)


def _permitted(processes: int) -> int:
    """Returns this process limit or, if lower, the gateway's own limit, since an ordinary user cannot raise it."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return processes if hard == resource.RLIM_INFINITY else min(processes, hard)


def _owner(first: int) -> int:
    """Opens the user namespace in which the sandbox was created."""
    mount = _namespace(first, "mnt")
    try:
        return fcntl.ioctl(mount, _NS_GET_USERNS)
    finally:
        os.close(mount)


def _namespace(pid: int, kind: str) -> int:
    return os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)  # lint: allow this is in the kernel's memory
