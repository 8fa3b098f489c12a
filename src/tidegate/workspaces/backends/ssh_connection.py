"""One session's connection to another machine, and the commands that run on it.

A connection is a child process of the gateway: `ssh` with a keeper at the other end. Each command is another `ssh`
process that shares the first one's connection. A remote command is known to have ended only when its guardian has
reported this. A lost connection is detected; everything on the other machine then stops by itself, and commands that
were running count as killed. The connection owns its commands and a descriptor for the folder that contains the control
socket.
"""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from tidegate.errors import ToolFailed
from tidegate.lifetimes import gather
from tidegate.log import Log
from tidegate.workspaces.backends import guardian, shell_script
from tidegate.workspaces.backends import remote_keeper as keeper
from tidegate.workspaces.backends.interface import MARK, OWNER, LimitEvents, SandboxSpec, SandboxUsage
from tidegate.workspaces.processes.children import ChildProcess, Spawner, killed_on_error

log = Log(__name__)

OPEN_SECONDS = 30.0
"""Time limit for opening a connection or starting a program on it."""

ANSWER_SECONDS = 10.0
"""Time limit for a reply from the other machine, or for a command to end there."""

OUTPUT_BYTES = 4096
"""Maximum amount of output read at the start; if starting fails, this output contains the reason."""

LOST = (
    "The connection to the machine that runs commands was lost, and everything there was stopped. The next command "
    "reconnects; files are unchanged."
)
KILLED = -9
"""The exit code of a command whose end was not reported."""

_SOCKET = "ssh"
_AGAIN_SECONDS = 1.0  # before a signal is repeated
_TAIL_BYTES = 64  # longer than a guardian's last report


class RemoteSession(NamedTuple):
    """A session on the remote machine: the keeper's identity, the account's name, the session's folder, and its working
    folder."""

    keeper: str
    user: str
    root: str
    folder: str


class ControlSocket:
    """The socket through which further calls share the first connection. The object owns a descriptor for its folder,
    since a socket's path must be short but the folder's own path may be long."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._fd}/{_SOCKET}"

    def open(self) -> None:
        """Opens the socket. Blocks, so call it in a thread."""
        self._fd = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_SOCKET, dir_fd=self._fd)  # left by a killed gateway

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class SshConnection:
    """A session's connection. `over` is the ssh command line that shares the connection of the `first` call. `program`
    is the guardian's source text."""

    def __init__(
        self,
        spawner: Spawner,
        spec: SandboxSpec,
        first: ChildProcess,
        remote: RemoteSession,
        over: list[str],
        program: bytes,
        control_socket: ControlSocket,
    ) -> None:
        self._spawner = spawner
        self._spec = spec
        self._first = first
        self._over = over
        self._program = program
        self._control_socket = control_socket
        self.remote = remote
        self.close_reason = ""
        self.kernel_limits: frozenset[str] = frozenset()
        self.limit_events = LimitEvents()
        self._commands: set[RemoteCommand] = set()
        self._closed = False
        self._asking = asyncio.Lock()
        self._asked = 0
        self._heard = b""
        self._beating: asyncio.TimerHandle | None = None

    def beat(self) -> None:
        """Sends heartbeats to the keeper, now and at regular intervals."""
        self._first.post(b"beat\n")
        self._beating = asyncio.get_running_loop().call_later(keeper.BEAT_SECONDS, self.beat)

    @property
    def alive(self) -> bool:
        return self._first.running and not self._closed

    @property
    def reachable(self) -> bool:
        return self._first.running

    @property
    def pid(self) -> int | None:
        return self._first.pid

    async def spawn(self, text: bytes, mark: str, *, full: bool = False) -> "RemoteCommand":
        """Starts a command. The other machine's disk is not measured, so `full` is ignored."""
        if not self.alive:
            raise ToolFailed(LOST)
        try:
            child = await self._spawner.spawn(self._over, {OWNER: self._spawner.owner})
        except OSError as error:
            raise ToolFailed(f"The command cannot be started ({error.strerror}).") from None
        command = RemoteCommand(self, child, mark)
        self._commands.add(command)
        async with killed_on_error(command):
            await command.start(self._program + self._task(mark))
            if not self.alive:
                raise ToolFailed(LOST)
            await child.write(text)
        return command

    def _task(self, mark: str) -> bytes:
        remote, limits = self.remote, self._spec.limits
        home = f"{remote.root}/home"
        environment = {
            "HOME": home,
            "LOGNAME": remote.user,
            "PATH": f"{home}/.local/bin:/usr/local/bin:/usr/bin:/bin",
            "SHELL": "/bin/bash",
            "TMPDIR": f"{remote.root}/tmp",
            "USER": remote.user,
            **self._spec.environment,
            MARK: mark,
        }
        each = (limits.memory_bytes, limits.file_bytes, int(limits.cpu_seconds))
        return guardian.task_message(list(shell_script.ENTRY), environment, each, remote.folder, remote.keeper)

    async def is_intact(self) -> bool:
        return True  # nothing is protected from commands here

    async def load(self) -> SandboxUsage:
        guardians = [command.guardian.partition(":")[0] for command in self._commands if command.guardian]
        if not guardians:
            return SandboxUsage()
        answer = await self._request("load", str(self._spec.limits.memory_bytes), *guardians)
        return SandboxUsage(processes=answer[0], memory_bytes=answer[1]) if len(answer) == 2 else SandboxUsage()

    async def sweep(self, mark: str) -> None:
        """Kills all processes that carry a mark."""
        if await self._request("sweep", f"{MARK}={mark}") != [1]:
            log.error("a command's processes on another machine may still be running", mark=mark)

    async def wait(self) -> None:
        await self._first.wait()
        if not self._closed:
            self.close_reason = LOST

    async def close(self) -> None:
        self._closed = True
        await gather([command.end(0) for command in tuple(self._commands)])
        if self._beating is not None:
            self._beating.cancel()
        self._first.close_input()  # this stops the keeper
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._first.wait()
        await self._first.end(0)
        self._first.close()
        self._control_socket.close()

    async def signal(self, name: str, known: str) -> bool:
        """Signals a guardian. Returns False if the guardian may no longer exist."""
        return await self._request("signal", name, known) == [1]

    def forget(self, command: "RemoteCommand") -> None:
        self._commands.discard(command)

    async def _request(self, word: str, *words: str) -> list[int]:
        """Sends a request to the keeper and returns its reply, or an empty one if there is none."""
        async with self._asking:
            self._asked += 1
            self._first.post(" ".join((word, str(self._asked), *words)).encode() + b"\n")
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    while True:
                        line, found, rest = self._heard.partition(b"\n")
                        if found:
                            self._heard = rest
                            number, *answer = map(int, line.split())
                            if number == self._asked:
                                return answer
                        elif data := await self._first.read():
                            self._heard += data
                        else:
                            return []
            except TimeoutError:
                log.warning("the other machine does not respond", session=self._spec.session)
                return []


class RemoteCommand:
    """A command on the other machine. `guardian` is its guardian's identity."""

    def __init__(self, connection: SshConnection, child: ChildProcess, mark: str) -> None:
        self._connection = connection
        self._child = child
        self._mark = mark
        self._state = _State(child)
        self.guardian = ""
        self.pid: int | None = None
        self.write = child.write
        self.close_input = child.close_input
        self.read = child.read
        self.read_state = self._state.read
        self.close = child.close

    async def start(self, task: bytes) -> None:
        """Starts the guardian, which is running when the call returns."""
        with contextlib.suppress(ToolFailed):  # then its output says why
            await self._child.write(task)
        self.guardian = await self._state.begin()

    async def wait(self) -> int:
        await self._child.wait()
        over = await self._state.over()
        return over[0] if over else KILLED

    async def end(self, grace: float) -> int:
        try:
            if grace > 0:
                await self._signal("TERM")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace):
                        await self._child.wait()
            if not await self._killed():
                log.error("a command on another machine may still be running", mark=self._mark)
            await self._child.end(0)  # closes the connection, if still open, whereupon the guardian kills it, too
            over = await self._state.over()
            return over[1] if over else 0
        finally:
            self._connection.forget(self)

    async def _killed(self) -> bool:
        """Kills the command; returns true if it is known to have ended. The signal is repeated, since a guardian may
        miss it while it is exiting."""
        if not self.guardian:
            return True
        until = asyncio.get_running_loop().time() + ANSWER_SECONDS
        while asyncio.get_running_loop().time() < until:
            await self._signal("USR1")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_SECONDS):
                    await self._child.wait()
                    return True
        return False

    async def _signal(self, name: str) -> None:
        """Signals the guardian. If the guardian has been killed, kills everything with the mark instead."""
        if not self.guardian or not self._child.running or not self._connection.reachable:
            return
        if not await self._connection.signal(name, self.guardian):
            await self._connection.sweep(self._mark)


class _State:
    """The state channel, without the guardian's reports at its beginning and end."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        self._kept = b""
        self._ended = False
        self._over: tuple[int, int] | None = None
        self._reading = asyncio.Lock()

    async def begin(self) -> str:
        """Waits for the guardian's identity. Raises ToolFailed with the reason if the guardian did not start."""
        output = b""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                while len(output) < OUTPUT_BYTES:
                    _, found, rest = output.partition(guardian.UP)
                    line, ended, self._kept = rest.partition(b"\n")
                    if found and ended:
                        return line.split()[0].decode()
                    data = await self._child.read_state()
                    if not data:
                        break
                    output += data
        except TimeoutError:
            raise ToolFailed("The other machine does not respond; try again later.") from None
        reason = " ".join(output.decode(errors="replace").split())
        if "refused by peer" in reason:
            raise ToolFailed(
                "The other machine accepts no more concurrent commands on one connection: stop a process, or raise "
                "its sshd's MaxSessions."
            )
        raise ToolFailed(f"The command cannot be started on the other machine: {reason or 'no reason was given'}")

    async def read(self) -> bytes:
        async with self._reading:
            while not self._ended:
                if len(self._kept) > _TAIL_BYTES:
                    data, self._kept = self._kept[:-_TAIL_BYTES], self._kept[-_TAIL_BYTES:]
                    return data
                await self._more()
            data, self._kept = self._kept, b""
            return data

    async def over(self) -> tuple[int, int] | None:
        """Returns the command's exit code and the number of processes it left behind, once its streams have ended, or
        None if they were not reported. Unread data fits into the pipes' buffers and can still be read."""
        async with self._reading:
            while not self._ended:
                await self._more()
        return self._over

    async def _more(self) -> None:
        data = await self._child.read_state()
        self._kept += data
        if data:
            return
        self._ended = True
        before, found, end = self._kept.rpartition(guardian.OVER)
        words = end.split()
        if found and len(words) >= 2:
            self._kept, self._over = before, (int(words[0]), int(words[1]))
