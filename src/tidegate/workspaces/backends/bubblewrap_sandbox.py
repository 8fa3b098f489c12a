"""One session's bubblewrap sandbox, and the commands that run in it.

x
"""

import asyncio
import contextlib
import fcntl
import os
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
from tidegate.workspaces.files.protected_paths import REPOSITORY
from tidegate.workspaces.kernel import seccomp
from tidegate.workspaces.kernel.cgroups import GROUP_REMOVED, JOIN_SCRIPT, Cgroup, CommandGroup, command_group
from tidegate.workspaces.kernel.process_table import ProcessTable, segment_bytes
from tidegate.workspaces.kernel.users import as_user
from tidegate.workspaces.processes.children import ChildProcess, Spawner, kill_and_close, killed_on_error
from tidegate.workspaces.protected_mounts import (
    LOST,
    MADE,
    ProtectedMount,
    appeared,
    disarm,
    intact,
    refuse,
)

log = Log(__name__)

INNER = "/workspace"
HOME = "/home/agent"

LIST_SECONDS = 1.0
"""Between two looks at shared memory of System V, each of which takes a process: only where no control group counts."""

LISTING_SECONDS = 10.0
"""For one such look, which takes milliseconds."""

SEGMENTS = "/proc/sysvipc/shm"

TOO_MANY_PROCESSES = (
    "All that ran in the workspace was ended, because a command made more processes than could be ended one by one."
)

NEW = "a file that other programs execute is new in a project: read it before you open the folder with them"

_LOOK_SECONDS = 0.02  # between two looks at whether a killed process is gone
_REAP_SECONDS = 1.0  # in which what waits for a killed process has reaped it, and ends by itself
_LOOKS = 25  # until a sandbox in which something cannot be ended is ended itself
_NOTHING = 0  # the signal that only asks whether there is somebody
_NS_GET_USERNS = 0xB701  # the user namespace that owns a namespace (ioctl_ns(2))
_OWN = frozenset(("1",))  # what belongs to the sandbox itself, as it is numbered in there
_IN_MEMORY = ("../dev/shm", "../run")  # from its /proc


class SandboxPrograms(NamedTuple):
    bwrap: str
    nsenter: str
    setpriv: str
    prlimit: str
    bash: str


class BubblewrapSandbox:
    """One session's. It owns the `bwrap` that holds the namespaces, the lifeline, the descriptors by which they are
    entered, the uplink, if it has a network, and the control group, if there is one. That is for commands: what holds
    the sandbox is not in it, and is never killed for what they use."""

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
        """`first` is its first process, as we see it. When `lifeline` is closed, the sandbox ends. `guarded` are the
        mounts without which no command may run in it."""
        self._spawner = spawner
        self._programs = programs
        self._spec = spec
        self._holder = child
        self._first = first
        self._lifeline = lifeline
        self._group = group
        self._guarded = guarded
        self._appeared: tuple[str, ...] = ()
        self._ran = False  # whether a command has run since the project was looked at
        self.kernel_limits: frozenset[str] = group.kernel_limits if group else frozenset()
        self._network: sandbox_network.SandboxNetwork | None = None
        self._commands: set[SandboxCommand] = set()
        self._service = asyncio.Lock()
        self._closed = False
        self._segments = 0
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
        """One whose network is gone is made again, as one that is gone itself."""
        connected = self._network is None or self._network.running
        return self._holder.running and connected and not self._closed

    @property
    def pid(self) -> int | None:
        return self._holder.pid

    @property
    def limit_events(self) -> LimitEvents:
        return self._group.limit_events if self._group else LimitEvents()

    async def connect(self, programs: sandbox_network.Programs, environment: Mapping[str, str]) -> None:
        """To the network, before the first command enters. Raises ToolFailed when that cannot be done."""
        user = as_user(self._spec.user, self._programs.setpriv)
        place = sandbox_network.Namespaces(self._first, self._owner, user)
        self._network = await sandbox_network.connect(self._spawner, programs, place, environment, self._spec.reachable)

    async def spawn(self, text: bytes, mark: str, *, full: bool = False) -> "SandboxCommand":
        if self._group and self.alive and not self._group.joinable:
            self.close_reason = GROUP_REMOVED
            await self.close()
        await self.is_intact()
        if not self.alive:
            raise ToolFailed("The sandbox is gone.")
        async with command_group(self._group) as leaf:
            command = await self._enter(mark, leaf, full)
        async with killed_on_error(command):
            with contextlib.suppress(ToolFailed):  # one that has ended already says by its code and its words why
                await command.write(text)
        return command

    async def is_intact(self) -> bool:
        """Whether the project's protected files are mounted as they were; a sandbox in which they are not is ended.
        So is one in which a command may have made one that was not there; what appears while none runs is somebody
        else's, and only logged."""
        if not self._spec.project or not self.alive:
            return True
        root = Path(f"/proc/{self._first}/root{INNER}")
        made = await to_thread.run_sync(self._made, root)
        whole = await to_thread.run_sync(intact, root, self._guarded)
        if whole and not made:
            self._ran = bool(self._commands)
            return True
        if self.alive:
            self.close_reason = MADE.format(names=", ".join(made)) if whole else LOST
            await self.close()
        return False

    def _made(self, root: Path) -> tuple[str, ...]:
        """The names of protected files that a command may have made since the last look."""
        found = appeared(root, self._guarded)
        new = tuple(name for name in found if name not in self._appeared)
        if self._ran and (made := tuple(name for name in new if name != REPOSITORY)):
            return made
        for name in new:
            log.warning(NEW, session=self._spec.session, path=str(self._spec.folder / name))
        self._appeared = found
        return ()

    async def _enter(self, mark: str, leaf: CommandGroup | None, full: bool) -> "SandboxCommand":
        programs, limits = self._programs, self._spec.limits
        enter = ["/bin/sh", "-c", JOIN_SCRIPT, "sh", *leaf.joins, "--"] if leaf else []
        enter += as_user(self._spec.user, programs.setpriv)
        enter += [programs.nsenter, "--user=/proc/self/fd/3", "--preserve-credentials", "-t", str(self._first)]
        enter += ["-m", "-p", "-n", "-i", "-u", f"-W{INNER}", "--"]
        if os.fstat(self._owner).st_ino != os.fstat(self._user).st_ino:
            # Where bwrap needs two user namespaces, one within the other, both are entered, in order.
            enter += [programs.nsenter, "--user=/proc/self/fd/4", "--preserve-credentials", "--"]
        # What is reserved and not used does not count as data: programs reserve more than any machine has.
        confine = [programs.prlimit, f"--data={limits.memory_bytes}"]
        if "processes" not in self.kernel_limits:  # else the kernel refuses in two ways, of which it counts one
            confine.append(f"--nproc={limits.processes}")
        confine += [f"--fsize={0 if full else limits.file_bytes}", f"--cpu={int(limits.cpu_seconds)}", "--core=0", "--"]
        # The descriptors of the namespaces are for entering only: what runs inside does not get them.
        confine += ["bash", "-c", 'exec 3<&- 4<&-; exec "$@"', "bash"]
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
                raise ToolFailed("The sandbox is gone.")
            self._ran = True
            try:
                child = await self._spawner.spawn(
                    [*enter, *confine, *shell_script.ENTRY],
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
            self._segments = await self._listed()
            self._list_again = time.monotonic() + LIST_SECONDS
        look = partial(self._table.load, places=_IN_MEMORY, beside=self._segments)
        return await to_thread.run_sync(look, self._spec.limits)

    async def _listed(self) -> int:
        """What shared memory of System V takes here. The kernel shows that only to who is in there."""
        enter = [self._programs.nsenter, "--user=/proc/self/fd/3", "--preserve-credentials", "-t", str(self._first)]
        listing = [*as_user(self._spec.user, self._programs.setpriv), *enter, "-i", "--", "/bin/cat", SEGMENTS]
        try:
            child = await self._spawner.spawn(listing, {}, passing={self._owner: 3})
        except OSError:  # the next look tries again
            return self._segments
        data = b""
        try:
            async with asyncio.timeout(LISTING_SECONDS):
                while piece := await child.read():
                    data += piece
        except TimeoutError:
            log.warning("the shared memory of a sandbox cannot be listed", session=self._spec.session)
        finally:
            await kill_and_close(child)
        return segment_bytes(data)

    async def wait(self) -> None:
        await self._holder.wait()

    async def close(self) -> None:
        """The kernel kills all that is in the namespace when its first process is killed. What waits for that, and for
        commands, is let end by itself: else nobody would reap them but the first process of the machine, and that may
        be the gateway."""
        if self._closed:
            await self._holder.wait()
            return
        self._closed = True
        try:
            if self._holder.running:
                # Its parent has not been reaped, and it is reaped by that one alone: the number is still its own.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._first, signal.SIGKILL)
            await _over(self._holder)
            for command in tuple(self._commands):
                await command.reaped()
        finally:
            if self._network is not None:
                await self._network.close()
            self._holder.close()
            await to_thread.run_sync(self._let_go)

    def _let_go(self) -> None:
        if self._spec.project:
            disarm(self._spec.folder, self._guarded)
            refuse(self._spec.folder, self._made(self._spec.folder))
        if self._group is not None:
            self._group.end()
        self._release.close()

    async def signal(self, command: "SandboxCommand", number: int) -> int:
        """To all that came of a command; to how many. Without control groups, what carries its mark no more can be told
        from what others have started only while there are no others, and while none comes."""
        if command.leaf is not None:
            reach = command.leaf.kill if number == signal.SIGKILL else partial(command.leaf.send, number)
            # But not to what waits for it outside of the sandbox, and has to reap it.
            return await to_thread.run_sync(reach, command.waiting) if self.alive else 0
        async with self._service:
            if not self.alive:
                return 0
            mark = None if self._commands <= {command} else command.mark
            reached = await to_thread.run_sync(self._signal, number, mark)
        if reached is None:  # where the kernel does not count processes, only the end of all ends a crowd of them
            await self.give_up()
        return reached or 0

    def _signal(self, number: int, mark: str | None) -> int | None:
        if self._table.is_crowded(self._spec.limits.processes + len(_OWN)):
            return None
        return self._table.signal(number, besides=_OWN, mark=mark)

    async def give_up(self) -> None:
        """What cannot be ended otherwise ends with the sandbox."""
        self.close_reason = TOO_MANY_PROCESSES
        await self.close()

    def forget(self, command: "SandboxCommand") -> None:
        self._commands.discard(command)


class SandboxCommand:
    """A command inside a sandbox. It ends with everything that came of it."""

    def __init__(self, sandbox: BubblewrapSandbox, child: ChildProcess, mark: str, leaf: CommandGroup | None) -> None:
        """`leaf` is its own control group, which goes with it."""
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
    def waiting(self) -> int | None:
        """What waits for it outside; once that is reaped, its number may be another's."""
        return self.pid if self._child.running else None

    async def reaped(self) -> None:
        """The sandbox is gone, and it was in it."""
        await _over(self._child)

    async def end(self, grace: float) -> int:
        by_itself = not self._child.running
        left = 0
        try:
            if grace > 0:
                left = await self._send(signal.SIGTERM)
                await self._send(signal.SIGCONT)  # one that was stopped could not hear it
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
        """Until nothing of it is left; the kernel tells nobody of what is not his child."""
        left = 1
        while left:
            await asyncio.sleep(_LOOK_SECONDS)
            left = await self._send(_NOTHING)

    async def _kill(self) -> int:
        """All that is left of it; how many at the first look."""
        first = found = await self._send(signal.SIGKILL)
        if found:
            await _over(self._child)
        else:  # it has not even entered
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
    """What it waits for was killed: it reaps that and ends, or is killed too."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REAP_SECONDS):
            await child.wait()
    await child.end(0)


def _owner(first: int) -> int:
    """The user namespace in which the sandbox was made."""
    mount = _namespace(first, "mnt")
    try:
        return fcntl.ioctl(mount, _NS_GET_USERNS)
    finally:
        os.close(mount)


def _namespace(pid: int, kind: str) -> int:
    return os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)  # house: allow it is in the kernel's memory
