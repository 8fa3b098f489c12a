"""Child processes of the gateway: started without a thread, watched by descriptor, ended as a group.

Guarantee: a child is owned from the moment it exists: nothing is awaited between its start and the watch on it. It is
waited for by pidfd, never by a thread of its own, and reaped exactly once. It leads a process group; `end` asks the
group, kills it, and returns when the child is reaped. Its streams are read only as fast as somebody takes them, and are
open until `close`. A child may run on every core that the gateway was given, whichever one it keeps itself to.
"""

import asyncio
import contextlib
import fcntl
import io
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import structlog

from tidegate.errors import ToolFailed

log = structlog.stdlib.get_logger(__name__)

READ_BYTES = 64 * 1024
"""Of a stream that are buffered at most before its writer has to wait, and taken at once."""

KILLED_SECONDS = 10.0
"""Within which a killed process is gone, unless the kernel itself hangs."""

NICENESS = 10
"""Of children: whatever they do, the gateway gets to run, if only to end them."""

HELPERS = 4
"""Children at once that work for the gateway itself, such as one that searches files: each may take a core."""

_ABOVE = 64  # every number that a child is given
_SEARCH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def find(program: str) -> str | None:
    """Where a program of the system is. The gateway's own PATH is not asked: it may begin with anything."""
    for folder in _SEARCH:
        path = f"{folder}/{program}"
        if os.access(path, os.X_OK):
            return path
    return None


class Spawner:
    """Starts children. Owned by whoever owns the boxes; `cores` are what the gateway was given. `helpers` are the
    places of those that work for the gateway itself: who wants one more waits."""

    def __init__(self, cores: frozenset[int]) -> None:
        self._cores = cores
        self.helpers = asyncio.Semaphore(HELPERS)
        _keep_to_ourselves()

    async def spawn(
        self, command: Sequence[str], environment: Mapping[str, str], *, passing: Mapping[int, int] | None = None
    ) -> "ChildProcess":
        """`passing` maps a descriptor of ours to its number in the child. Everything else of ours is closed there."""
        ours, theirs = _pipes()
        given: list[int] = []
        try:
            actions: list[tuple[int, ...]] = []
            for fd, number in (*zip(theirs, range(3), strict=True), *(passing or {}).items()):
                # Out of the way of the numbers that they get: none may be overwritten before it was copied.
                given.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE))
                actions.append((os.POSIX_SPAWN_DUP2, given[-1], number))
            with self._on_every_core():
                pid = os.posix_spawn(  # noqa: ASYNC221 it does not wait for the child
                    command[0],
                    list(command),
                    dict(environment),
                    file_actions=actions,
                    setsid=True,
                    setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
                    setsigmask=(),
                )
            child = _watched(pid)
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
        except BaseException:
            _close(*ours)
            raise
        finally:
            _close(*theirs, *given)
        try:
            await child.open(*ours)
        except BaseException:
            child.signal(signal.SIGKILL)
            raise
        return child

    @contextlib.contextmanager
    def _on_every_core(self) -> Iterator[None]:
        """What is started in here may use all of them: a child gets what the thread has that starts it."""
        before = os.sched_getaffinity(0)
        if before == self._cores:
            yield
            return
        with contextlib.suppress(OSError):  # what it has then is what the system lets it have
            os.sched_setaffinity(0, self._cores)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, before)


class ChildProcess:
    """One child with its three streams."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pidfd = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._reap)
        self._outputs: list[asyncio.BaseTransport] = []
        self._input: asyncio.StreamWriter | None = None
        self._output = asyncio.StreamReader(limit=READ_BYTES)
        self._state = asyncio.StreamReader(limit=READ_BYTES)

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
                reading, _ = await loop.connect_read_pipe(lambda made=protocol_of: made, file)  # type: ignore[misc]
                self._outputs.append(reading)
        except BaseException:
            _close(*waiting)
            self.close()
            raise

    # -- streams --

    async def write(self, data: bytes) -> None:
        if self._input is None or self._input.is_closing():
            raise ToolFailed("It takes no more input: its input was closed, or it has ended.")
        if self._input.transport.get_write_buffer_size() > READ_BYTES:
            raise ToolFailed("It has not read what it was given before.")
        try:
            self._input.write(data)
            await self._input.drain()
        except (BrokenPipeError, ConnectionError):
            raise ToolFailed("It takes no more input: it has closed it, or has ended.") from None

    def post(self, data: bytes) -> None:
        """A few bytes, without waiting until they are taken; lost where nobody takes them any more."""
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
        """Let go of what it writes; what was read before can still be taken."""
        for transport in self._outputs:
            transport.close()

    def close(self) -> None:
        """Let go of the streams; whoever still writes to them is told by a signal."""
        self.close_output()
        if self._input is not None:
            transport = self._input.transport
            if not transport.is_closing() or transport.get_write_buffer_size():
                transport.abort()

    # -- life --

    @property
    def running(self) -> bool:
        return not self._code.done()

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    def signal(self, number: signal.Signals) -> None:
        """To the whole group. The group's number stays taken while anything is in it; when the child is reaped and
        nothing of it is left, there is nobody to signal."""
        if self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    async def end(self, grace: float) -> None:
        """Also what it left in its group, if it is ended by this; else that is for who knows how to find it."""
        if self.running and grace > 0:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)  # one that was stopped could not hear it
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self.wait()
        self.signal(signal.SIGKILL)
        try:
            async with asyncio.timeout(KILLED_SECONDS):
                await self.wait()
        except TimeoutError:
            log.error("a process was killed and is not gone", pid=self.pid)

    def _reap(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._code.set_result(os.waitstatus_to_exitcode(status))


def _keep_to_ourselves() -> None:
    """What this process was given by who started it is not for its children; what it opened itself is not anyway."""
    with os.scandir("/proc/self/fd") as entries:
        descriptors = [int(entry.name) for entry in entries]
    for fd in descriptors:
        with contextlib.suppress(OSError):  # the one that the folder was read by
            if fd > 2:
                os.set_inheritable(fd, False)


def _watched(pid: int) -> ChildProcess:
    try:
        return ChildProcess(pid, os.pidfd_open(pid))
    except BaseException:
        # No descriptor left to watch it by: then it may not be.
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Our ends and the child's of its three streams."""
    made: list[int] = []
    try:
        for _ in range(3):
            made += os.pipe()
    except OSError:
        _close(*made)
        raise
    stdin, their_stdin = made[1], made[0]
    return (stdin, made[2], made[4]), (their_stdin, made[3], made[5])


def _close(*descriptors: int) -> None:
    for fd in descriptors:
        with contextlib.suppress(OSError):
            os.close(fd)
