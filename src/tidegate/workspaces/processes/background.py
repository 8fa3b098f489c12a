"""Named background processes: starting, supervising and stopping them.

A process's row is written before the process is spawned. Names are unique among a session's live processes; starting a
name that is already running changes nothing. Output is written to the log as it arrives, at a bounded rate. The end of
a process is recorded once, with the cause, and reported once, even if the gateway is killed in between: to a waiting
caller, otherwise in a new turn if `notify` was set, otherwise with the next message. Everything that a process has
started ends with it.

The running processes belong to their live sandbox; this module keeps no state.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable

from anyio import to_thread

from tidegate.config import WorkspaceSettings
from tidegate.errors import Conflict, Refused, Stopping, TidegateError, ToolFailed
from tidegate.lifetimes import outlast
from tidegate.log import Log
from tidegate.spool import Spool
from tidegate.store import Db, ProcessEnd, ProcessRow, Store, messages, processes, workspaces
from tidegate.values import new_id
from tidegate.workspaces.backends import shell_script
from tidegate.workspaces.backends.interface import Child, Sandbox
from tidegate.workspaces.bounds import DEFAULT_BOUNDS, WorkspaceBounds
from tidegate.workspaces.kernel.process_table import start_ticks
from tidegate.workspaces.processes.command_run import END_GRACE, run_child
from tidegate.workspaces.processes.live_sandbox import LiveSandbox, limit_notice
from tidegate.workspaces.processes.process_log import ProcessLog

log = Log(__name__)

MOST_RUNNING = 16
"""Maximum number of named processes that a session may run concurrently. More would be hard to tell apart."""

REPORTED_BYTES = 1200
"""Number of bytes of a process's last output reported when it ends."""

BATCH, BATCHES = 200, 100
"""Rows per batch, and batches per run: more than are ever needed, but a bound on the loop."""

COMMAND_CHARACTERS = 200
"""Number of characters of a command shown to identify its process."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

OnFinished = Callable[[ProcessRow, str], Awaitable[None]]
"""Starts a turn that tells the agent that a process with `notify` has ended. The text is for the agent. The end is
marked as reported in the same transaction. Raises an error if there will be no turn."""


class RunningProcess:
    """A running process. `ended` is set when the end has been recorded; `news` is set whenever the process writes
    output or ends."""

    def __init__(self, row: ProcessRow, child: Child, sandbox: Sandbox, log: ProcessLog, *, stop_grace: float) -> None:
        self.row = row
        self.child = child
        self.sandbox = sandbox
        self.log = log
        self._stop_grace = stop_grace
        self.ended = asyncio.Event()
        self.news = asyncio.Event()
        self.limit_events_before = sandbox.limit_events
        self.stopping = False
        self.timed_out = False
        self.waiters = 0

    def signal_news(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    @property
    def grace(self) -> float:
        """Seconds that processes left behind by the command have to exit: as many as the command itself had."""
        return self._stop_grace if self.stopping or self.timed_out else END_GRACE


class BackgroundProcesses:
    def __init__(
        self,
        store: Store,
        spool: Spool,
        settings: WorkspaceSettings,
        clock: Callable[[], float],
        finished: OnFinished,
        bounds: WorkspaceBounds = DEFAULT_BOUNDS,
    ) -> None:
        self._store = store
        self._spool = spool
        self._settings = settings
        self._clock = clock
        self.finished = finished
        self._bounds = bounds

    # -- starting --

    async def start(
        self, live_sandbox: LiveSandbox, name: str, command: str, *, restart: bool, notify: bool
    ) -> ProcessRow | None:
        """Starts a process. Returns None if a process with that name is already running."""
        if not _NAME.fullmatch(name):
            raise ToolFailed("A process name must have 1 to 64 letters, digits, dots, dashes and underscores.")
        if name in live_sandbox.running:
            return None
        if len(live_sandbox.running) >= MOST_RUNNING:
            raise ToolFailed(
                f"{MOST_RUNNING} processes are already running in this conversation: stop one of them first."
            )
        id = new_id("pr")
        try:
            row: ProcessRow = await self._store.write(
                lambda db: processes.begin(
                    db,
                    id=id,
                    session=live_sandbox.session,
                    name=name,
                    command=command,
                    backend=live_sandbox.backend.name,
                    log=id,
                    restart=restart,
                    notify=notify,
                    now=self._clock(),
                )
            )
        except Conflict as error:
            if error.code == "process_name":  # a concurrent call has just started it
                return None
            raise ToolFailed(error.message) from None
        except Refused as error:
            raise ToolFailed(error.message) from None
        await self._spawn(live_sandbox, row)
        return row

    async def restart_lost(self, live_sandbox: LiveSandbox, lost: ProcessRow) -> None:
        """Restarts a lost process marked `restart`, once, and reports the result."""
        id = new_id("pr")
        row = await self._store.write(lambda db: processes.restart(db, lost.id, new_id=id, log=id, now=self._clock()))
        if row is None:
            return
        try:
            await self._spawn(live_sandbox, row)
            notice = f"The process {process_label(row)} was lost and has been started again."
        except ToolFailed as error:
            notice = f"The process {process_label(row)} was lost and could not be started again: {error.message}"
        await self._store.write(messages.add_notice, live_sandbox.session, notice, self._clock())

    async def _spawn(self, live_sandbox: LiveSandbox, row: ProcessRow) -> None:
        """Spawns a row's process, or records in the row that this failed."""
        child: Child | None = None
        try:
            await live_sandbox.enter()  # before reading the shell, since changing the backend discards the saved one
            shell = await self._store.read(workspaces.shell, live_sandbox.session)
            inner = live_sandbox.backend.inner(live_sandbox.spec.folder)
            text = shell_script.background(row.command, mark=row.id, folder=inner, shell=shell)
            sandbox, child = await live_sandbox.spawn(text, row.id)
            if not await self._store.write(_spawned, row.id, child.pid):
                raise ToolFailed("The process was stopped before it started.")
            running = RunningProcess(row, child, sandbox, self.log_of(row), stop_grace=self._bounds.stop_grace)
            live_sandbox.scope.start(self._supervise, live_sandbox, running, name=f"process {row.id}")
            live_sandbox.running[row.name] = running
        except BaseException:
            await self._abandon(live_sandbox, row, child)
            raise

    async def _abandon(self, live_sandbox: LiveSandbox, row: ProcessRow, child: Child | None) -> None:
        """Stops what has been spawned so far and records the end."""

        async def over() -> None:
            if child is not None:
                await child.end(0)
                child.close()
            await self._store.write(self._record, row, "ended", None, True, "")

        if live_sandbox.scope.open:  # otherwise, the sandbox is being closed, and the next start will find the row
            cancelled = await outlast(
                live_sandbox.scope.start(over, name=f"end of process {row.id}", at_close="finish")
            )
            if cancelled is not None:
                raise cancelled
        elif child is not None:
            child.close()

    # -- supervision --

    async def _supervise(self, live_sandbox: LiveSandbox, running: RunningProcess) -> None:
        loop = asyncio.get_running_loop()
        since, taken = loop.time(), 0

        async def add_output(data: bytes) -> None:
            nonlocal since, taken
            await to_thread.run_sync(running.log.append, data)
            running.signal_news()
            taken += len(data)
            if taken >= self._bounds.pace_bytes:
                await asyncio.sleep(max(0.0, since + 1 - loop.time()))
                since, taken = loop.time(), 0

        most = self._settings.process_seconds
        timeout_timer = loop.call_later(most, self._end_after_timeout, live_sandbox, running) if most else None
        try:
            ended = await run_child(running.child, add_output, scope=live_sandbox.scope, grace=lambda: running.grace)
            if not live_sandbox.gateway_stopping:
                await self._ended(live_sandbox, running, ended.code or 0, ended.left)
        finally:
            if timeout_timer is not None:
                timeout_timer.cancel()
            running.log.close()
            if live_sandbox.running.get(running.row.name) is running:
                del live_sandbox.running[running.row.name]
            running.ended.set()
            running.signal_news()

    def _end_after_timeout(self, live_sandbox: LiveSandbox, running: RunningProcess) -> None:
        if live_sandbox.scope.open:
            running.timed_out = True
            live_sandbox.scope.start(
                running.child.end, self._bounds.stop_grace, name=f"end of process {running.row.id}, timed out"
            )

    async def _ended(self, live_sandbox: LiveSandbox, running: RunningProcess, code: int, left: int) -> None:
        row = running.row
        state: ProcessEnd = "exited"
        # We stopped it, and this is reported elsewhere.
        if running.stopping or live_sandbox.closed or running.sandbox.close_reason:
            state = "ended"
        elif await live_sandbox.was_lost(running.sandbox, code):
            state = "lost"
        known = state == "ended" or running.waiters > 0
        again = state == "lost" and row.restart
        by_turn = row.notify and state == "exited" and not known
        limit_text = limit_notice(running.limit_events_before, running.sandbox.limit_events, live_sandbox.spec.limits)
        if running.timed_out:
            limit = f"{self._settings.process_seconds:g} s (workspaces.process_seconds)"
            limit_text = f"It reached its time limit of {limit}. {limit_text}".strip()
        text = "" if known or again else await self._describe_end(row, state, code, left, running.log, limit_text)
        ended = await self._store.write(self._record, row, state, code, known or again, "" if by_turn else text)
        if ended is None:
            return
        if by_turn:
            await self._begin_turn(ended, text)
        await self._prune(row.session)
        if again:
            live_sandbox.running.pop(row.name, None)
            await self.restart_lost(live_sandbox, ended)

    async def _begin_turn(self, row: ProcessRow, text: str) -> None:
        try:
            await self.finished(row, text)
        except Stopping:
            return  # the next start will report it
        except TidegateError as error:
            log.warning(
                "no turn was started for the end of a process",
                session=row.session,
                process=row.id,
                reason=error.message,
            )
        except Exception:
            log.exception("starting a turn for the end of a process failed", session=row.session, process=row.id)
        else:
            return
        await self._store.write(_add_notice_later, row, text, self._clock())

    async def report_ends(self) -> None:
        """Reports each end that was recorded but not reported because of a kill or fault. May be called whenever turns
        can start. An end that is being reported elsewhere at the same time is still reported only once."""
        last = ""
        for _ in range(BATCHES):
            rows: list[ProcessRow] = await self._store.read(processes.unreported, after=last, limit=BATCH)
            for row in rows:
                how = await self._describe_end(row, "exited", row.exit_code or 0, 0, self.log_of(row), "")
                await self._begin_turn(row, how)
            if len(rows) < BATCH:
                break
            last = rows[-1].id

    async def _prune(self, session: str) -> None:
        for old in await self._store.write(processes.prune, session, self._settings.kept_processes):
            await to_thread.run_sync(self.log_of(old).remove)

    def _record(
        self, db: Db, row: ProcessRow, state: ProcessEnd, code: int | None, known: bool, text: str
    ) -> ProcessRow | None:
        """Records the end and its notice in one transaction."""
        now = self._clock()
        ended = processes.mark_ended(db, row.id, state=state, exit_code=code, now=now, end_reported=known or bool(text))
        if ended is not None and text:
            messages.add_notice(db, row.session, text, now)
        return ended

    async def _describe_end(
        self, row: ProcessRow, state: ProcessEnd, code: int, left: int, log: ProcessLog, limit_text: str
    ) -> str:
        if state == "lost":
            return f"The process {process_label(row)} was lost: its sandbox was killed from outside."
        how = f"was killed by signal {-code}" if code < 0 else f"has ended with exit code {code}"
        rest = ""
        if left:
            rest = f" It left {left} process{'es' * (left > 1)} running, which {'were' if left > 1 else 'was'} ended."
        rest += f" {limit_text}" if limit_text else ""
        output = (await to_thread.run_sync(log.read, None, REPORTED_BYTES)).data.decode("utf-8", "replace").strip()
        return f"The process {process_label(row)} {how}.{rest}{f' Its last output:{chr(10)}{output}' if output else ''}"

    # -- input and stop --

    async def write(self, running: RunningProcess, data: bytes, *, close: bool) -> None:
        try:
            async with asyncio.timeout(self._bounds.write_seconds):
                await running.child.write(data)
        except TimeoutError:
            raise ToolFailed(
                f"The process {running.row.name!r} did not read all of this within {self._bounds.write_seconds:g} s; "
                "it gets the rest when it continues reading."
            ) from None
        if close:
            running.child.close_input()

    async def stop(self, running: RunningProcess) -> None:
        running.stopping = True
        await running.child.end(self._bounds.stop_grace)
        await running.ended.wait()

    # -- logs and clean-up --

    def log_of(self, row: ProcessRow) -> ProcessLog:
        return ProcessLog(self._spool.file(row.session, row.log), self._settings.process_log_bytes)

    async def mark_lost(self, row: ProcessRow) -> ProcessRow | None:
        """Records that a process was lost with the previous gateway."""
        text = "" if row.restart else f"The process {process_label(row)} ended when the gateway was stopped."
        ended: ProcessRow | None = await self._store.write(self._record, row, "lost", None, row.restart, text)
        await self._prune(row.session)
        return ended

    async def forget(self, session: str) -> None:
        """Records the end of all of an ended session's processes and removes their logs."""
        for row in await self._store.read(processes.of_session, session, principal=None):
            if row.ended is None:
                await self._store.write(self._record, row, "ended", None, True, "")
            await to_thread.run_sync(self.log_of(row).remove)


def process_label(row: ProcessRow) -> str:
    command = " ".join(row.command.split())
    shown = command if len(command) <= COMMAND_CHARACTERS else f"{command[:COMMAND_CHARACTERS]}…"
    return f"{row.name!r} ({shown})"


def _add_notice_later(db: Db, row: ProcessRow, text: str, now: float) -> None:
    if processes.mark_reported(db, row.id):
        messages.add_notice(db, row.session, text, now)


def _spawned(db: Db, id: str, pid: int | None) -> bool:
    return processes.mark_running(db, id, pid=pid or 0, start_ticks=None if pid is None else start_ticks(pid))
