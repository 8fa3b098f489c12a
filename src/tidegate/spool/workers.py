"""Work on what others wrote (pictures, patterns), done in a child that can neither hang nor fill the gateway.

Guarantee: a job has ended, and its process is reaped, when `run` returns, also when its caller is cancelled or its time
is over. At most `AT_ONCE` run at a time; the others wait. The child gets an empty environment and the descriptors that
it needs. What it says is bounded. Nothing here waits in a thread.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import structlog
from anyio import CancelScope

from tidegate.errors import ToolFailed

log = structlog.stdlib.get_logger(__name__)

AT_ONCE = 2
"""Each may take as much memory as a large picture."""

REPORT_BYTES = 256 * 1024
"""Of what a job may say: many times what a model is shown of it, since it is written as JSON."""

KILL_SECONDS = 5.0
"""For the kernel to end a child that was killed; one that hangs in it longer is reaped whenever it ends."""

_HERE = Path(__file__).parent
_SCRIPT = str(_HERE / "worker.py")
_ABOVE = 64  # every number that a child is given


class Workers:
    """`cores` are those that the gateway was given: it may keep itself to one of them, and a job should not."""

    def __init__(self, cores: frozenset[int] | None = None) -> None:
        self._cores = cores
        self._places = asyncio.Semaphore(AT_ONCE)

    async def run(
        self,
        job: str,
        order: Any,
        *,
        within: float,
        memory: int,
        written: int = 0,
        input: int | None = None,
        output: int | None = None,
        folder: Path = _HERE,
    ) -> Any:
        """What the job reports: `work(order)` of the file of that name in `folder`. `input` and `output` become its
        first two descriptors, and stay the caller's. TimeoutError when it takes longer than `within` seconds;
        ToolFailed when it broke."""
        async with self._places:
            try:
                limits = (memory, int(within), max(written, REPORT_BYTES))
                code, said = await self._run(folder / job, order, limits, within, input, output)
            except OSError as error:
                raise ToolFailed(f"The {job} could not be started ({error.strerror}); try again later.") from error
        if code is None:
            raise TimeoutError
        if code != 0:
            log.warning("a job broke", job=job, code=code, said=said[-1000:].decode("utf-8", "replace"))
            raise ToolFailed(f"The {job} broke off, perhaps for want of memory; the operator's log says more.")
        return msgspec.json.decode(said.rpartition(b"\n")[2])

    async def _run(
        self, job: Path, order: Any, limits: tuple[int, int, int], within: float, input: int | None, output: int | None
    ) -> tuple[int | None, bytes]:
        command = [sys.executable, "-I", "-S", "-W", "ignore", _SCRIPT, str(job), *map(str, limits)]
        report = os.memfd_create("report")
        try:
            pid = _spawn([*command, msgspec.json.encode(order).decode()], input, output, report)
            code = await self._ended(pid, within)
            return code, os.pread(report, REPORT_BYTES, 0)
        finally:
            os.close(report)

    async def _ended(self, pid: int, within: float) -> int | None:
        """Its exit code; None when its time was over, and it was killed."""
        child = _Child(pid)
        if self._cores is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(pid, self._cores)
        try:
            async with asyncio.timeout(within):
                return await asyncio.shield(child.code)
        except TimeoutError:
            return None
        finally:
            if not child.code.done():
                os.kill(pid, signal.SIGKILL)
                with CancelScope(shield=True):
                    await asyncio.wait({child.code}, timeout=KILL_SECONDS)


class _Child:
    """Reaps one child when it ends, whoever still waits for it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:  # no descriptor left
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    def _reap(self) -> None:
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.code.set_result(os.waitstatus_to_exitcode(status))


def _spawn(command: list[str], input: int | None, output: int | None, report: int) -> int:
    actions: list[tuple[Any, ...]] = []
    given: list[int] = []
    try:
        for number, fd in ((0, input), (1, output), (2, report)):
            if fd is None:
                actions.append((os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0))
            else:
                # Out of the way of the numbers that they get: none may be overwritten before it was copied.
                given.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE))
                actions.append((os.POSIX_SPAWN_DUP2, given[-1], number))
        return os.posix_spawn(
            command[0],
            command,
            {},
            file_actions=actions,
            setsid=True,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            setsigmask=(),
        )
    finally:
        for fd in given:
            os.close(fd)
