"""The gateway's child processes with three streams.

The guarantees of `ProcessStarter` apply. Streams are read only as fast as they are consumed and stay open until `close`
is called. If setting up a child process fails, it is killed before the error is raised.
"""

import asyncio
import contextlib
import fcntl
import io
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from anyio import CancelScope

from tidegate.errors import ToolFailed
from tidegate.lifetimes import ProcessStarter, SpawnedProcess
from tidegate.workspaces.files.file_user import User

READ_BYTES = 64 * 1024
"""Number of bytes of a stream that are buffered before its writer blocks, and the size of one read."""

HELPERS = 4
"""Number of concurrent child processes that work for the gateway itself, such as file searches. Each may use a core."""

_SEARCH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def find_program(program: str) -> str | None:
    """Returns the path of a system program. The gateway's own PATH is not used, since it may begin with any folder."""
    for folder in _SEARCH:
        path = f"{folder}/{program}"
        if os.access(path, os.X_OK):
            return path
    return None


class Spawner:
    """Starts children; owned by `Workspaces`. `cores` are the gateway's processor cores. `owner` identifies the gateway
    in its processes (`owner_of`). Commands run as `user` unless a project requires another one; None means the
    gateway's own user. `helpers` limits the children that work for the gateway itself."""

    def __init__(self, cores: frozenset[int], owner: str = "", user: User | None = None) -> None:
        self.owner = owner
        self.user = user
        self._starter = ProcessStarter(cores)
        self.helpers = asyncio.Semaphore(HELPERS)

    @property
    def running(self) -> frozenset[int]:
        """The child processes that have not been reaped."""
        return frozenset(self._starter.running)

    async def spawn(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        passing: Mapping[int, int] | None = None,
        within: Callable[[Callable[[], int]], int] | None = None,
    ) -> "ChildProcess":
        """Starts a child process. `passing` maps our descriptors to their numbers in the child; all others are closed
        there. `within` is passed to `ProcessStarter`."""
        ours, theirs = _pipes()
        descriptors = {**dict(enumerate(theirs)), **{number: fd for fd, number in (passing or {}).items()}}
        try:
            child = ChildProcess(self._starter.start(command, environment, descriptors, within=within))
        except BaseException:
            _close(*ours)
            raise
        finally:
            _close(*theirs)
        try:
            await child.open(*ours)
        except BaseException:
            child.signal(signal.SIGKILL)
            raise
        return child


class ChildProcess:
    """A child process with its three streams."""

    def __init__(self, spawned: SpawnedProcess) -> None:
        self._spawned = spawned
        self.pid = spawned.pid
        self.wait = spawned.wait
        self.signal = spawned.signal
        self.end = spawned.end
        self._outputs: list[asyncio.BaseTransport] = []  # lint: allow there are two, opened once
        self._input: asyncio.StreamWriter | None = None
        self._output = asyncio.StreamReader(limit=READ_BYTES)
        self._state = asyncio.StreamReader(limit=READ_BYTES)

    @property
    def running(self) -> bool:
        return self._spawned.running

    async def open(self, stdin: int, stdout: int, stderr: int) -> None:
        loop = asyncio.get_running_loop()
        waiting = [stdin, stdout, stderr]
        try:
            transport, protocol = await loop.connect_write_pipe(
                asyncio.streams.FlowControlMixin, io.FileIO(waiting.pop(0), "wb")
            )
            self._input = asyncio.StreamWriter(transport, cast(Any, protocol), None, loop)
            for reader in (self._output, self._state):
                file = io.FileIO(waiting.pop(0), "rb")
                protocol_of = asyncio.StreamReaderProtocol(reader)
                reading, _ = await loop.connect_read_pipe(lambda protocol=protocol_of: protocol, file)  # type: ignore[misc]
                self._outputs.append(reading)
        except BaseException:
            _close(*waiting)
            self.close()
            raise

    async def write(self, data: bytes) -> None:
        if self._input is None or self._input.is_closing():
            raise ToolFailed("It accepts no more input: its input was closed, or it has ended.")
        if self._input.transport.get_write_buffer_size() > READ_BYTES:
            raise ToolFailed("It has not read its earlier input yet.")
        try:
            self._input.write(data)
            await self._input.drain()
        except (BrokenPipeError, ConnectionError):
            raise ToolFailed("It accepts no more input: it has closed its input, or has ended.") from None

    def post(self, data: bytes) -> None:
        """Writes a few bytes without waiting; they are lost if the child is no longer reading."""
        if self._input is not None and not self._input.is_closing():
            self._input.write(data)

    def close_input(self) -> None:
        if self._input is not None:
            self._input.close()

    async def read(self) -> bytes:
        return await self._output.read(READ_BYTES)

    async def read_state(self) -> bytes:
        return await self._state.read(READ_BYTES)

    def close_output(self) -> None:
        """Closes our ends of the child's output streams. Buffered data can still be read."""
        for transport in self._outputs:
            transport.close()

    def close(self) -> None:
        """Closes all streams; a process that is still writing to them gets SIGPIPE."""
        self.close_output()
        if self._input is not None:
            transport = self._input.transport
            if not transport.is_closing() or transport.get_write_buffer_size():
                transport.abort()


class ChildEnd(Protocol):
    async def end(self, grace: float) -> Any: ...

    def close(self) -> None: ...


async def kill_and_close(child: ChildEnd) -> None:
    """Kills a child process and closes its streams. Waits until it has exited unless the caller is cancelled again."""
    try:
        with CancelScope(shield=True):
            await child.end(0)
    finally:
        child.close()


@contextlib.asynccontextmanager
async def killed_on_error(child: ChildEnd) -> AsyncIterator[None]:
    """Kills the child if the block fails."""
    try:
        yield
    except BaseException:
        await kill_and_close(child)
        raise


def kill_when_closed(end: socket.socket, child: ChildProcess) -> None:
    """Makes the kernel kill the child as soon as the other end of this socket is closed (fcntl(2), F_SETSIG). `end`
    must stay open."""
    if not child.running:  # its number may have been reused
        raise ToolFailed("It ended while it was starting.")
    fcntl.fcntl(end, fcntl.F_SETOWN, child.pid)
    fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)


def _pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Creates the three streams; returns our ends and the child's ends."""
    opened: list[int] = []
    try:
        for _ in range(3):
            opened += os.pipe()
            # If root runs the gateway, commands run as another user, who may open the streams by name (`>
            # /dev/stderr`).
            os.fchmod(opened[-1], 0o666)
    except OSError:
        _close(*opened)
        raise
    stdin, their_stdin = opened[1], opened[0]
    return (stdin, opened[2], opened[4]), (their_stdin, opened[3], opened[5])


def _close(*descriptors: int) -> None:
    for fd in descriptors:
        with contextlib.suppress(OSError):
            os.close(fd)
