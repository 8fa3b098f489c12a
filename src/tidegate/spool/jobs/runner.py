"""Running jobs that process untrusted data (images, audio, web pages) in child processes, where they can neither
block the gateway nor use up its memory.

When `run` returns, the job has ended and its process has been reaped, even if the caller was cancelled or the job timed
out. At most `AT_ONCE` jobs run at a time; further jobs wait. The child process has an empty environment and only the
descriptors that it needs. The size of its report is limited. No thread is blocked while a job runs."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from anyio import CancelScope, to_thread

from tidegate.errors import ToolFailed
from tidegate.lifetimes import ProcessStarter
from tidegate.log import Log

log = Log(__name__)

T = TypeVar("T")

AT_ONCE = 2
"""Maximum number of jobs that run at a time. Each may use as much memory as a large image needs."""

REPORT_BYTES = 256 * 1024
"""Maximum size of a job's report, which is JSON. It is many times larger than the part shown to a model."""

_HERE = Path(__file__).parent
_SCRIPT = str(_HERE / "child.py")


class JobRunner:
    """Runs jobs. They may use all of `cores`, even if the gateway restricts itself to one of them."""

    def __init__(self, cores: frozenset[int] | None = None) -> None:
        self._starter = ProcessStarter(cores)
        self._places = asyncio.Semaphore(AT_ONCE)

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Runs work that is bounded whatever the data, such as a search, in a worker thread. The work counts as a
        job."""
        async with self._places:
            return await to_thread.run_sync(work, *arguments)

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
        """Runs `work(order)` of the `job` module in `folder` and returns its report. `input` and `output` become
        descriptors 0 and 1; the caller still owns them. Raises TimeoutError if the job takes longer than `within`
        seconds, and ToolFailed if it crashes."""
        async with self._places:
            try:
                limits = (memory, int(within), max(written, REPORT_BYTES))
                code, report = await self._run(folder / job, order, limits, within, input, output)
            except OSError as error:
                raise ToolFailed(
                    f"The {job.replace('_', ' ')} could not be started ({error.strerror}); try again later."
                ) from error
        if code is None:
            raise TimeoutError
        if code != 0:
            log.warning("a job crashed", job=job, code=code, said=report[-1000:].decode("utf-8", "replace"))
            raise ToolFailed(
                f"The {job.replace('_', ' ')} crashed, perhaps because it ran out of memory; the log has details."
            )
        return msgspec.json.decode(report.rpartition(b"\n")[2])

    async def _run(
        self, job: Path, order: Any, limits: tuple[int, int, int], within: float, input: int | None, output: int | None
    ) -> tuple[int | None, bytes]:
        """Runs the child process. Returns its exit code and its report. The code is None if the process timed out and
        was killed."""
        command = [sys.executable, "-I", "-S", "-W", "ignore", _SCRIPT, str(job), *map(str, limits)]
        command.append(msgspec.json.encode(order).decode())
        report = os.memfd_create("report")
        code: int | None = None
        try:
            child = self._starter.start(command, {}, {0: input, 1: output, 2: report})
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(within):
                        code = await child.wait()
            finally:
                with CancelScope(shield=True):
                    await child.end(0)
            return code, os.pread(report, REPORT_BYTES, 0)
        finally:
            os.close(report)
