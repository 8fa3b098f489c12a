"""A present session's open sandbox, and the processes running in it.

A session has one sandbox at a time. It is opened for the first command, only once even if several callers need it at
the same time. If it is killed from outside, this is detected, the agent is notified, and the next command opens a new
sandbox. If a limit that the kernel does not enforce is exceeded, all commands are killed, and a notice tells the agent
which limit it was. `close` stops everything.

A `LiveSandbox` owns the sandbox and the running processes, and only the session's record refers to it.
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
"""Time limit for recording the ends of all processes after their sandbox has been closed."""

LOST_SECONDS = 0.5
"""Time limit for noticing that a sandbox no longer exists after a process in it was killed."""

_POLLED_LIMITS = frozenset(
    ("memory_bytes", "processes")
)  # checked from the process table unless the kernel enforces them
_KILLED = (-9, 137)  # as reported by the kernel and by a shell

ENDED_FROM_OUTSIDE = (
    "The sandbox of this conversation's commands was killed from outside. The next command opens a new one; files "
    "are unchanged, but running processes were lost."
)
CONVERSATION_ENDED = "The workspace is closed: its conversation has ended."

AddNotice = Callable[[str, str], Awaitable[None]]
"""Stores a notice for a session's agent."""


class LiveSandbox:
    def __init__(
        self,
        spec: SandboxSpec,
        backend: Backend,
        scope: Scope,
        *,
        disk: DiskLimit | None,
        prepare: Callable[[], Awaitable[None]],
        add_notice: AddNotice,
    ) -> None:
        self.spec = spec
        self.backend = backend
        self.scope = scope
        self.running: dict[str, RunningProcess] = {}
        self.sandbox: Sandbox | None = None
        self.close_reason = ""
        """The reason why we last stopped everything that was running here."""
        self.closed = False
        self.gateway_stopping = False
        """True while the gateway is stopping. Processes that end during that time did not end on their own; the next
        start reports them as lost."""
        self.last_used = time.monotonic()
        self.disk = disk
        """The disk quota. None if the disk is not measured, that is, for a user's project folder and on another
        machine."""
        self._users = 0
        self._opening: SingleFlight[Sandbox] | None = None
        self._prepare = prepare
        self._add_notice = add_notice

    @property
    def session(self) -> str:
        return self.spec.session

    @property
    def idle(self) -> bool:
        """True if nothing is running and no caller is about to run a command."""
        return not self.running and not self._users

    def matches(self, spec: SandboxSpec, backend: Backend) -> bool:
        return not self.closed and self.backend is backend and self.spec == spec

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Counts the sandbox as in use during the block."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self.last_used = time.monotonic()

    # -- the sandbox --

    async def enter(self) -> Sandbox:
        """Returns the session's sandbox, opening one if necessary."""
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
        """Starts a command in the session's sandbox. If the sandbox ends at this very moment, it is opened once
        more."""
        full = await self.is_full()
        if self.disk is not None:
            self.disk.changed()  # from now on, however the command ends
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
        """If the sandbox was killed from outside, closes it and notifies the agent."""
        sandbox = self.sandbox
        if sandbox is None or sandbox.alive:
            return
        self.sandbox = None
        await sandbox.close()
        if not self.gateway_stopping:
            log.warning(
                "a sandbox has ended", session=self.session, reason=sandbox.close_reason or "it was killed from outside"
            )
            await self._add_notice(self.session, sandbox.close_reason or ENDED_FROM_OUTSIDE)

    async def was_lost(self, sandbox: Sandbox, code: int) -> bool:
        """True if a process that has just ended with this code did so because its sandbox was killed: it was killed
        with the sandbox, or could no longer enter it."""
        if code not in _KILLED:
            return code != 0 and not sandbox.alive
        try:
            async with asyncio.timeout(LOST_SECONDS):
                await sandbox.wait()
        except TimeoutError:
            return False
        return True

    # -- limits --

    async def check_limits(self) -> None:
        """Stops everything here if a limit is exceeded. Limits that the kernel enforces are not checked."""
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
        """Returns the current usage. The result is empty if no check needs it because the kernel enforces the limits
        and a project has no disk limit."""
        if sandbox is None or not sandbox.alive or (self.disk is None and sandbox.kernel_limits >= _POLLED_LIMITS):
            return SandboxUsage()
        return await sandbox.load()

    async def end_all(self, reason: str) -> None:
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is None:
            return
        names = ", ".join(sorted(self.running))
        for running in self.running.values():
            running.stopping = True
        self.close_reason = f"Everything in the workspace was killed because {reason}."
        await sandbox.close()
        log.warning("a workspace's processes were killed", session=self.session, reason=reason, processes=names)
        await self._add_notice(self.session, f"{self.close_reason}{f' Stopped processes: {names}.' if names else ''}")

    async def measure(self, load: SandboxUsage, *, running: bool) -> None:
        """Measures the disk. If usage exceeds the limit, kills the running commands, which may have filled the disk."""
        disk = self.disk
        if disk is not None and await disk.check(running=running, unnamed_bytes=load.unnamed_bytes) and running:
            await self.end_all(disk.exceeded_message)

    async def is_full(self) -> bool:
        """Returns true if commands can now only remove files. If usage has just exceeded the limit, running commands
        are killed."""
        await self.measure(await self._load(self.sandbox), running=bool(self.running) or self._users > 1)
        return self.disk is not None and self.disk.full

    # -- the end --

    async def close(self) -> None:
        """Stops everything that is running here; this is done when the function returns."""
        self.closed = True
        if self._opening is not None:
            await self._opening.over()
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            await sandbox.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                for running in tuple(self.running.values()):
                    await running.ended.wait()
        except TimeoutError:
            log.error("a process's end was not recorded in time", session=self.session, processes=sorted(self.running))


def limit_notice(before: LimitEvents, after: LimitEvents, limits: SandboxLimits) -> str:
    """Returns a notice about processes that the kernel has killed or refused because of limits, or an empty string if
    there are none."""
    sentences = []
    if after.killed > before.killed:
        most = _amount(limits.memory_bytes)
        sentences.append(
            f"The system killed {_counted(after.killed - before.killed)} of this conversation because together they "
            f"needed more than {most} of memory (workspaces.memory_bytes)."
        )
    if after.refused > before.refused:
        sentences.append(
            f"The system refused to start {_counted(after.refused - before.refused)} because this conversation may "
            f"have at most {limits.processes} at once, including threads (workspaces.processes)."
        )
    return " ".join(sentences)


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
