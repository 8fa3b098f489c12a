"""Work on what others wrote (pictures, patterns), done in a child that can neither hang nor fill the gateway.

Guarantee: a job has ended, and its process is reaped, when `run` returns, also when its caller is cancelled or its time
is over. At most `AT_ONCE` run at a time; the others wait. The child gets an empty environment and the descriptors that
it needs. What it says is bounded. Nothing here waits in a thread.
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
"""Each may take as much memory as a large picture."""

REPORT_BYTES = 256 * 1024
"""Of what a job may say: many times what a model is shown of it, since it is written as JSON."""

_HERE = Path(__file__).parent
_SCRIPT = str(_HERE / "child.py")


class JobRunner:
    """`cores` are those that the gateway was given: it may keep itself to one of them, and a job should not."""

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
            raise ToolFailed(
                f"The {job.replace('_', ' ')} broke off, perhaps for want of memory; the operator's log says more."
            )
        return msgspec.json.decode(said.rpartition(b"\n")[2])

    async def _run(
        self, job: Path, order: Any, limits: tuple[int, int, int], within: float, input: int | None, output: int | None
    ) -> tuple[int | None, bytes]:
        """Its exit code, None when its time was over and it was killed; and what it said."""
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
