"""What is present of one session's workspace: its box, and what runs in it.

Guarantee: a session has one box at a time, opened when the first command needs it, once however many ask; one that was
removed from outside is noticed, made again at the next need, and the agent is told. What uses more than its limits is
ended as a whole, where the kernel does not hold them anyway, and the agent is told which one it was. `close` ends
everything. The site owns the box and the running processes; it hangs on the session's record and nowhere else.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidegate.errors import ToolFailed
from tidegate.lifetimes import Scope, SingleFlight
from tidegate.log import Log
from tidegate.workspaces.backends.interface import (
    Backend,
    Child,
    LimitEvents,
    Sandbox,
    SandboxLimits,
    SandboxSpec,
    SandboxUsage,
)
from tidegate.workspaces.disk import DiskLimit
from tidegate.workspaces.kernel.process_table import MOST_DESCRIPTORS

if TYPE_CHECKING:
    from tidegate.workspaces.processes.background import RunningProcess

log = Log(__name__)

CLOSE_SECONDS = 5.0
"""Within which what was watching the processes of a closed box has seen their ends."""

LOST_SECONDS = 0.5
"""Within which a box is seen to be gone after what ran in it was killed with it."""

_LOOKED_AT = frozenset(("memory_bytes", "processes"))  # by what is told of processes, unless the kernel holds them
_KILLED = (-9, 137)  # as a process says it, and as a shell says it of one

ENDED_FROM_OUTSIDE = (
    "The sandbox of this conversation's commands was ended from outside. It is made again with the next command; "
    "files are as they were, what ran in it is gone."
)
CONVERSATION_ENDED = "The workspace is closed: its conversation has ended."

AddNotice = Callable[[str, str], Awaitable[None]]
"""Writes down, for a session, what its agent is to be told."""


class LiveSandbox:
    def __init__(
        self,
        spec: SandboxSpec,
        backend: Backend,
        scope: Scope,
        *,
        disk: DiskLimit | None,
        prepare: Callable[[], Awaitable[None]],
        tell: AddNotice,
    ) -> None:
        self.spec = spec
        self.backend = backend
        self.scope = scope
        self.running: dict[str, RunningProcess] = {}
        self.sandbox: Sandbox | None = None
        self.close_reason = ""
        """Why everything that ran here was ended by us, the last time."""
        self.closed = False
        self.leaving = False
        """The gateway stops: what ends now has not ended by itself, and the next start tells so."""
        self.used = time.monotonic()
        self.disk = disk
        """None where nobody measures: in a folder of the user's own, and on another machine."""
        self._users = 0
        self._opening: SingleFlight[Sandbox] | None = None
        self._prepare = prepare
        self._add_notice = tell

    @property
    def session(self) -> str:
        return self.spec.session

    @property
    def idle(self) -> bool:
        """Nothing runs here, and nobody is about to run something."""
        return not self.running and not self._users

    def fits(self, spec: SandboxSpec, backend: Backend) -> bool:
        return not self.closed and self.backend is backend and self.spec == spec

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """As long as somebody works with it, it is not idle."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self.used = time.monotonic()

    # -- the box --

    async def enter(self) -> Sandbox:
        """The session's box: the one that is there, or else a new one."""
        while True:
            if self.closed:
                raise ToolFailed(self.close_reason or CONVERSATION_ENDED)
            if self.sandbox is not None and self.sandbox.alive:
                return self.sandbox
            if self._opening is None:
                self._opening = SingleFlight()
                try:
                    return await self._opening.lead(self._open)
                finally:
                    self._opening = None
            await self._opening.join()

    async def spawn(self, text: bytes, mark: str) -> tuple[Sandbox, Child]:
        """A command in the session's box. If that goes at this very moment, it is made again, once."""
        full = await self.full()
        if self.disk is not None:
            self.disk.changed()  # from now on, however it ends
        sandbox = await self.enter()
        try:
            return sandbox, await sandbox.spawn(text, mark, full=full)
        except ToolFailed:
            if sandbox.alive or self.closed:
                raise
        sandbox = await self.enter()
        return sandbox, await sandbox.spawn(text, mark, full=full)

    async def _open(self) -> Sandbox:
        await self.note_lost()
        await self._prepare()
        sandbox = await self.backend.open(self.spec)
        if self.closed:
            await sandbox.close()
            raise ToolFailed(self.close_reason or CONVERSATION_ENDED)
        self.sandbox, self.close_reason = sandbox, ""
        return sandbox

    async def note_lost(self) -> None:
        """Take note of a box that has gone without us."""
        sandbox = self.sandbox
        if sandbox is None or sandbox.alive:
            return
        self.sandbox = None
        await sandbox.close()
        if not self.leaving:
            log.warning(
                "a box is gone", session=self.session, reason=sandbox.close_reason or "it was ended from outside"
            )
            await self._add_notice(self.session, sandbox.close_reason or ENDED_FROM_OUTSIDE)

    async def was_lost(self, sandbox: Sandbox, code: int) -> bool:
        """Whether something that has just ended in this box with that code did so because the box was removed: it was
        killed with it, or could not enter it any more."""
        if code not in _KILLED:
            return code != 0 and not sandbox.alive
        try:
            async with asyncio.timeout(LOST_SECONDS):
                await sandbox.wait()
        except TimeoutError:
            return False
        return True

    # -- limits --

    async def look(self) -> None:
        """End everything here if it uses more than it may. What the kernel holds is not looked at."""
        sandbox = self.sandbox
        if sandbox is None or not sandbox.alive:
            return
        if not await sandbox.is_intact():
            await self.note_lost()
            return
        load = await self._load(sandbox)
        reason = _over(load, self.spec.limits, sandbox.kernel_limits)
        if reason and self.sandbox is sandbox:
            await self.end_all(reason)
        elif not reason:
            await self.measure(load, running=not self.idle)

    async def _load(self, sandbox: Sandbox | None) -> SandboxUsage:
        """Of what runs, where somebody wants to know it: the kernel holds what it holds, and a project has no limit."""
        if sandbox is None or not sandbox.alive or (self.disk is None and sandbox.kernel_limits >= _LOOKED_AT):
            return SandboxUsage()
        return await sandbox.load()

    async def end_all(self, reason: str) -> None:
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is None:
            return
        names = ", ".join(sorted(self.running))
        for running in self.running.values():
            running.stopping = True
        self.close_reason = f"Everything that ran in the workspace was ended, because {reason}."
        await sandbox.close()
        log.warning("what ran in a workspace was ended", session=self.session, reason=reason, processes=names)
        await self._add_notice(self.session, f"{self.close_reason}{f' Among it: {names}.' if names else ''}")

    async def measure(self, load: SandboxUsage, *, running: bool) -> None:
        """Look at the disk; what is running, and may have filled it, is ended when there is too much on it."""
        disk = self.disk
        if disk is not None and await disk.look(running=running, unnamed_bytes=load.unnamed_bytes) and running:
            await self.end_all(disk.too_much)

    async def full(self) -> bool:
        """Whether commands can only remove files now. What was started before it came to that is ended."""
        await self.measure(await self._load(self.sandbox), running=bool(self.running) or self._users > 1)
        return self.disk is not None and self.disk.full

    # -- the end --

    async def close(self) -> None:
        """Everything that runs here is gone when this returns."""
        self.closed = True
        if self._opening is not None:
            await self._opening.over()
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            await sandbox.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                for running in tuple(self.running.values()):
                    await running.over.wait()
        except TimeoutError:
            log.error("the end of a process was not seen", session=self.session, processes=sorted(self.running))


def limit_notice(before: LimitEvents, after: LimitEvents, limits: SandboxLimits) -> str:
    """What the kernel did to what ran in a box meanwhile, because of its limits; empty when it did nothing."""
    told = []
    if after.killed > before.killed:
        most = _amount(limits.memory_bytes)
        told.append(
            f"The system killed {_counted(after.killed - before.killed)} of this conversation's, because together they "
            f"needed more than {most} of memory (workspaces.memory_bytes)."
        )
    if after.refused > before.refused:
        told.append(
            f"The system did not let {_counted(after.refused - before.refused)} begin, because {limits.processes} "
            "of this conversation's may run at once, threads included (workspaces.processes)."
        )
    return " ".join(told)


def _counted(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _over(load: SandboxUsage, limits: SandboxLimits, kernel_limits: frozenset[str]) -> str:
    if load.memory_bytes > limits.memory_bytes and "memory_bytes" not in kernel_limits:
        used = _amount(load.memory_bytes)
        return f"it used {used} of memory, more than {_amount(limits.memory_bytes)} (workspaces.memory_bytes)"
    if load.processes > limits.processes and "processes" not in kernel_limits:
        return f"it had {load.processes} processes, more than {limits.processes} (workspaces.processes)"
    if load.descriptors > MOST_DESCRIPTORS:
        return f"it had more than {MOST_DESCRIPTORS} files and sockets open"
    return ""


def _amount(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
