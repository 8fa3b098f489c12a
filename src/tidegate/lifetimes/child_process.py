"""Child processes: started without a thread, watched through a descriptor, and terminated as a group.

A process is owned from the moment it exists: nothing is awaited between starting it and starting to watch it. It is
watched by pidfd, never by a thread, and reaped exactly once, however many callers wait for it. It leads a new session
and process group; `end` terminates the group, kills it if necessary, and returns when the process has been reaped. A
process inherits only the environment and descriptors passed to it, has a lower CPU priority than the gateway, and may
run on every core that the gateway was started with, even if the gateway pins itself to one.
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
"""Seconds that a killed process may take to exit. Only a process that hangs in the kernel takes longer."""

NICENESS = 10
"""The niceness of child processes. It ensures that the gateway can always run, if only to terminate them."""

_ABOVE = 64  # any descriptor number in a child


class ProcessStarter:
    """Starts child processes. `cores` are the cores on which the gateway was allowed to run when it started; None means
    its current ones. `running` are the processes that have been started but not reaped."""

    def __init__(self, cores: frozenset[int] | None = None) -> None:
        self.running: set[int] = set()
        self._cores = cores
        self._is_prepared = False

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Mapping[int, int | None],
        *,
        within: Callable[[Callable[[], int]], int] | None = None,
    ) -> "SpawnedProcess":
        """Starts a process. `descriptors` maps descriptor numbers in the child to descriptors of this process; None
        stands for /dev/null. `within` is called with the function that starts the process. It can, for example, call
        that function in another thread, so that the child inherits that thread's properties. Raises OSError if the
        process cannot be started or watched."""
        if not self._is_prepared:
            _close_inherited_on_exec()
            self._is_prepared = True
        copies: list[int] = []
        actions: list[tuple[Any, ...]] = []
        try:
            for number, fd in descriptors.items():
                if fd is None:
                    actions.append((os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0))
                    continue
                # Copy them above all target numbers, so that none is overwritten before it is copied.
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
            # A process that cannot be watched must not run.
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
        """Lets processes that are started in this block use all cores. A process inherits the CPU affinity of the
        thread that starts it."""
        before = os.sched_getaffinity(0)
        if self._cores is None or before == self._cores:
            yield
            return
        with contextlib.suppress(OSError):  # it then keeps whatever affinity the system allows
            os.sched_setaffinity(0, self._cores)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, before)


class SpawnedProcess:
    """A started process. `reaped` is called with the pid when the process has been reaped."""

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
        """Waits until the process exits, and returns its exit code. The code is negative if the process was killed by a
        signal."""
        return await asyncio.shield(self._code)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the whole group. Once the process has been reaped, no signal is sent, since the id of an
        empty group may be reused."""
        if self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    async def end(self, grace: float) -> None:
        """Terminates the process and its group. If the process has already exited, other members of its group are left
        running."""
        if self.running and grace > 0:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)  # a stopped process could not handle the signal
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self.wait()
        self.signal(signal.SIGKILL)
        try:
            async with asyncio.timeout(KILLED_SECONDS):
                await self.wait()
        except TimeoutError:
            _log.error("process %d was killed but has not exited", self.pid)

    def _reap(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return
        self._reaped(self.pid)
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._code.set_result(os.waitstatus_to_exitcode(status))


def _close_inherited_on_exec() -> None:
    """Prevents children from inheriting the descriptors that this process has inherited. Descriptors that this process
    opens itself are never passed on."""
    with os.scandir("/proc/self/fd") as entries:
        descriptors = [int(entry.name) for entry in entries]
    for fd in descriptors:
        with contextlib.suppress(OSError):  # the listing's own descriptor
            if fd > 2:
                os.set_inheritable(fd, False)
