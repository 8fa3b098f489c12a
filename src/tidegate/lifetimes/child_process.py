"""Processes that this one starts: without a thread, watched by descriptor, ended as a group.

Guarantee: a process is owned from the moment it exists: nothing is awaited between its start and the watch on it. It is
waited for by pidfd, never by a thread of its own, and reaped exactly once, whoever still waits. It leads a session and
a group; `end` asks the group, kills it, and returns when the process is reaped. It has the environment and the
descriptors that it is given and nothing else of ours, comes after the gateway in the queue for a processor, and may run
on every core that the gateway was given, whichever one that keeps itself to.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

_log = logging.getLogger(__name__)

KILLED_SECONDS = 10.0
"""Within which a killed process is gone, unless the kernel itself hangs."""

NICENESS = 10
"""Of what is started: whatever it does, the gateway gets to run, if only to end it."""

_ABOVE = 64  # every number that a process is given


class ProcessStarter:
    """`cores` are what the gateway was given; None for those that it has. `running` are the processes that it started
    and that have not been reaped."""

    def __init__(self, cores: frozenset[int] | None = None) -> None:
        self.running: set[int] = set()
        self._cores = cores
        self._kept = False

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        given: Mapping[int, int | None],
        *,
        within: Callable[[Callable[[], int]], int] | None = None,
    ) -> "SpawnedProcess":
        """`given` says, for a number in the process, which descriptor of ours it is; None for one that leads nowhere.
        `within` calls what starts the process, on a thread from which it inherits something. Raises OSError when it
        cannot be started, or not be watched."""
        if not self._kept:
            _keep_to_ourselves()
            self._kept = True
        copies: list[int] = []
        actions: list[tuple[Any, ...]] = []
        try:
            for number, fd in given.items():
                if fd is None:
                    actions.append((os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0))
                    continue
                # Out of the way of the numbers that they get: none may be overwritten before it was copied.
                copies.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE))
                actions.append((os.POSIX_SPAWN_DUP2, copies[-1], number))
            spawn = partial(
                os.posix_spawn,
                command[0],
                list(command),
                dict(environment),
                file_actions=actions,
                setsid=True,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
                setsigmask=(),
            )
            with self._on_every_core():
                pid = spawn() if within is None else within(spawn)
        finally:
            for fd in copies:
                os.close(fd)
        try:
            spawned = SpawnedProcess(pid, self._forget)
        except BaseException:
            # No descriptor left to watch it by: then it may not be.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self.running.add(pid)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
        return spawned

    def _forget(self, pid: int) -> None:
        self.running.discard(pid)

    @contextlib.contextmanager
    def _on_every_core(self) -> Iterator[None]:
        """What is started in here may use all of them: it gets what the thread has that starts it."""
        before = os.sched_getaffinity(0)
        if self._cores is None or before == self._cores:
            yield
            return
        with contextlib.suppress(OSError):  # what it has then is what the system lets it have
            os.sched_setaffinity(0, self._cores)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, before)


class SpawnedProcess:
    """One that was started. `reaped` is called with its number when it has been reaped."""

    def __init__(self, pid: int, reaped: Callable[[int], None]) -> None:
        self.pid = pid
        self._reaped = reaped
        self._pidfd = os.pidfd_open(pid)
        loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = loop.create_future()
        loop.add_reader(self._pidfd, self._reap)

    @property
    def running(self) -> bool:
        return not self._code.done()

    async def wait(self) -> int:
        """Its exit code, negative for a signal."""
        return await asyncio.shield(self._code)

    def signal(self, number: signal.Signals) -> None:
        """To the whole group. The group's number stays taken while anything is in it; when the process is reaped and
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
            _log.error("process %d was killed and is not gone", self.pid)

    def _reap(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return
        self._reaped(self.pid)
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
