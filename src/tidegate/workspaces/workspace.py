"""A session's workspace, as seen by its tools.

Every method concerns only this session; no method accepts another session's name. A `Workspace` is created for each
turn, costs nothing and owns nothing. The folder is created and the sandbox opened on first use. Cancelling `run` stops
the command and all its processes within a second. Failures raise `ToolFailed` with one sentence.
"""

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from tidegate.errors import ToolFailed
from tidegate.store import Db, workspaces
from tidegate.values import Frozen, new_id
from tidegate.workspaces.backends import shell_script
from tidegate.workspaces.backends.interface import Sandbox
from tidegate.workspaces.disk import MeteredFiles
from tidegate.workspaces.files import Files
from tidegate.workspaces.processes.command_run import CommandResult, Sink, run_child
from tidegate.workspaces.processes.live_sandbox import ENDED_FROM_OUTSIDE, LiveSandbox, limit_notice
from tidegate.workspaces.processes.process_view import OutputPage, ProcessView, ProcessViewer, view

if TYPE_CHECKING:
    from tidegate.workspaces.workspaces import Workspaces

COMMAND_BYTES = 1024 * 1024
"""Maximum size of a command. Longer commands belong in a file."""

_TOO_LONG = (
    f"The shell's variables and functions take more than {shell_script.STATE_BYTES // 1024} KiB and were not kept: "
    "the next command starts with those from before this one."
)
_REPLACED = (
    "The command replaced or killed its shell: the next one starts with the directory and variables from before."
)


class CommandEnd(Frozen, frozen=True):
    """How a command ended. `code` is None after a timeout, and negative after a signal. `left_behind` counts the
    background processes that were killed when the command ended; `note` contains further information for the caller."""

    code: int | None
    timed_out: bool = False
    left_behind: int = 0
    note: str = ""


class WaitResult(NamedTuple):
    """The result of waiting. `matched` is the line that matches the pattern, or None if the time ran out or the process
    ended first."""

    process: ProcessView
    matched: str | None


class Workspace:
    def __init__(self, owner: "Workspaces", session: str, agent: str, turn: str) -> None:
        self._owner = owner
        self.session = session
        self.agent = agent
        self.turn = turn

    @property
    def command_seconds(self) -> float:
        """The longest time that a command in the terminal may take (`workspaces.command_seconds`)."""
        return self._owner.settings.command_seconds

    async def sandboxed(self) -> bool:
        """True if commands can reach nothing but the workspace. Approvals depend on this."""
        return (await self._owner.backend()).sandboxed

    async def backend_name(self) -> str:
        return (await self._owner.backend()).name

    async def files(self) -> Files:
        """Returns the session's files; creates the folder if it does not exist yet."""
        backend, spec = await self._owner.spec(self.session, self.agent)
        await self._owner.prepare(spec, backend, self.agent)
        files, disk = backend.files(spec, self._open_sandbox), self._owner.disk(spec, backend)
        return files if disk is None else MeteredFiles(files, disk)

    async def _open_sandbox(self) -> Sandbox:
        async with self._owner.use_sandbox(self.session, self.agent) as live_sandbox:
            return await live_sandbox.enter()

    # -- commands --

    async def run(self, command: str, *, timeout: float, sink: Sink, pty: bool = False) -> CommandEnd:
        """Runs a command in the session's shell. The output is streamed to `sink`."""
        text = _checked(command)
        async with self._owner.use_sandbox(self.session, self.agent) as live_sandbox:
            await live_sandbox.enter()  # before reading the shell, since changing the backend discards the saved one
            shell = await self._owner.store.read(workspaces.shell, self.session)
            mark, inner = new_id("c"), live_sandbox.backend.inner(live_sandbox.spec.folder)
            sandbox, child = await live_sandbox.spawn(
                shell_script.command(text, mark=mark, folder=inner, shell=shell, pty=pty), mark
            )
            before, narrow = sandbox.limit_events, live_sandbox.disk is not None and live_sandbox.disk.full
            done = await run_child(
                child, sink, scope=live_sandbox.scope, timeout=timeout, check=live_sandbox.check_limits
            )
            full = await live_sandbox.is_full() or (narrow and done.code != 0)
            told = limit_notice(before, sandbox.limit_events, live_sandbox.spec.limits)
            notes = await self._keep_shell(live_sandbox, sandbox, done, shell, told)
            if full and live_sandbox.disk is not None and not any(live_sandbox.disk.limit in note for note in notes):
                notes.append(f"Note: {live_sandbox.disk.exceeded_message}.")
        left = max(done.left, shell_script.read_state(done.state).left)
        return CommandEnd(code=done.code, timed_out=done.code is None, left_behind=left, note=" ".join(notes))

    async def _keep_shell(
        self, live_sandbox: LiveSandbox, sandbox: Sandbox, done: CommandResult, before: bytes | None, told: str
    ) -> list[str]:
        """Saves the shell's state. Returns notes for the caller; `told` is an earlier note and comes first."""
        notes = [told] if told else []
        saved = shell_script.read_state(done.state)
        if saved.shell is not None:
            if saved.shell != before:
                await self._owner.store.write(_save_shell, self.session, saved.shell)
            return notes
        if saved.too_long:
            return [*notes, _TOO_LONG]
        if live_sandbox.sandbox is not sandbox:
            return [*notes, live_sandbox.close_reason or sandbox.close_reason or ENDED_FROM_OUTSIDE]
        if done.code is None:
            return notes
        return [
            *notes,
            sandbox.close_reason or ENDED_FROM_OUTSIDE
            if await live_sandbox.was_lost(sandbox, done.code)
            else _REPLACED,
        ]

    # -- background processes --

    async def start(self, name: str, command: str, *, restart: bool = False, notify: bool = False) -> ProcessView:
        """Starts a named process. If a process with that name is already running, returns that process."""
        text = _checked(command)
        async with self._owner.use_sandbox(self.session, self.agent) as live_sandbox:
            if name not in live_sandbox.running and await live_sandbox.is_full() and live_sandbox.disk is not None:
                raise ToolFailed(f"The process was not started: {live_sandbox.disk.exceeded_message}.")
            row = await self._owner.processes.start(live_sandbox, name, text, restart=restart, notify=notify)
            return await self._viewer().view(name, new=False) if row is None else view(row, 0)

    async def list(self) -> tuple[ProcessView, ...]:
        """Returns the session's processes, newest first, including the last ones that have ended."""
        return await self._viewer().list()

    async def output(self, name: str, *, since: int | None = None, limit: int) -> OutputPage:
        """Reads at most `limit` bytes of a process's output from offset `since` or, if that is None, the last `limit`
        bytes."""
        return await self._viewer().output(name, since, limit)

    async def write(self, name: str, data: bytes, *, close: bool = False) -> None:
        """Writes to the process's input; `close` closes the input afterwards."""
        running = await self._viewer().running(name)
        await self._owner.processes.write(running, data, close=close)

    async def wait(self, name: str, *, pattern: str | None, timeout: float, since: int = 0) -> WaitResult:
        """Waits until a line in the output after offset `since` matches the extended regular expression, or the process
        ends."""
        await self._viewer().row(name)
        if pattern is None:
            return await self._wait(name, None, timeout, since, None)
        async with self._owner.use_sandbox(self.session, self.agent) as live_sandbox:
            return await self._wait(name, pattern, timeout, since, live_sandbox)

    async def _wait(
        self, name: str, pattern: str | None, timeout: float, since: int, place: LiveSandbox | None
    ) -> WaitResult:
        viewer, live_sandbox = self._viewer(), self._owner.present(self.session)
        running = None if live_sandbox is None else live_sandbox.running.get(name)
        if running is not None:
            running.waiters += 1
        try:
            async with asyncio.timeout(timeout):
                matched = await viewer.until(name, pattern, since, place)
        except TimeoutError:
            matched = None
        finally:
            if running is not None:
                running.waiters -= 1
        return WaitResult(await viewer.view(name), matched)

    async def stop(self, name: str) -> ProcessView:
        """Stops a process and everything that it has started, with SIGTERM, then SIGKILL."""
        viewer = self._viewer()
        await self._owner.processes.stop(await viewer.running(name))
        return await viewer.view(name)

    def _viewer(self) -> ProcessViewer:
        owner = self._owner
        return ProcessViewer(owner.store, self.session, owner.present(self.session), owner.processes.log_of)


def _checked(command: str) -> str:
    if not command.strip():
        raise ToolFailed("The command is empty: specify what to run.")
    if "\0" in command:
        raise ToolFailed("The command contains a zero byte, which no shell accepts.")
    if len(command.encode("utf-8", "replace")) > COMMAND_BYTES:
        raise ToolFailed(f"The command is longer than {COMMAND_BYTES} bytes: write it to a file and run that.")
    return command


def _save_shell(db: Db, session: str, shell: bytes) -> bool:
    return workspaces.save_shell(db, session, shell)
