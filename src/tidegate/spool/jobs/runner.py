"""Runs jobs on untrusted data (pictures, patterns) in child processes, so that they can neither block nor fill the
gateway.

When `run` returns, the job has ended and its process is reaped, even if the caller was cancelled or the time was up. At
most `AT_ONCE` jobs run at a time; the others wait. The child gets an empty environment and only the descriptors it
needs. Its report is bounded. Nothing here waits in a thread.
"""

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from anyio import CancelScope

from tidegate.errors import ToolFailed
from tidegate.lifetimes import ProcessStarter
from tidegate.log import Log

log = Log(__name__)

AT_ONCE = 2
"""Jobs that run at once: each may use as much memory as a large picture."""

REPORT_BYTES = 256 * 1024
"""The largest report of a job: many times what a model is shown of it, since it is JSON."""

_HERE = Path(__file__).parent
_SCRIPT = str(_HERE / "child.py")


class JobRunner:
    """`cores` are all cores of the gateway: it may restrict itself to one of them, and jobs should not."""

    def __init__(self, cores: frozenset[int] | None = None) -> None:
        self._starter = ProcessStarter(cores)
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
        """Runs `work(order)` of the file of that name in `folder`, and returns its report. `input` and `output` become
        descriptors 0 and 1; the caller still owns them. Raises TimeoutError if it takes longer than `within` seconds,
        and ToolFailed if it crashes."""
        async with self._places:
            try:
                limits = (memory, int(within), max(written, REPORT_BYTES))
                code, report = await self._run(folder / job, order, limits, within, input, output)
            except OSError as error:
                raise ToolFailed(f"The {job} could not be started ({error.strerror}); try again later.") from error
        if code is None:
            raise TimeoutError
        if code != 0:
            log.warning("a job crashed", job=job, code=code, said=report[-1000:].decode("utf-8", "replace"))
            raise ToolFailed(
                f"The {job.replace('_', ' ')} crashed, perhaps for lack of memory; the operator's log has details."
            )
        return msgspec.json.decode(report.rpartition(b"\n")[2])

    async def _run(
        self, job: Path, order: Any, limits: tuple[int, int, int], within: float, input: int | None, output: int | None
    ) -> tuple[int | None, bytes]:
        """Its exit code, None if its time was up and it was killed; and its report."""
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
