"""Background processes by name: their start, their life and their end.

Guarantee: a process has its row before it is spawned, and one live process of a session has a name; starting what runs
already changes nothing. Its output goes to its log as it comes, at a bounded pace. Its end is recorded once, with how
it came about, and told, once, over a kill too: to whoever waits for it, else by a new turn if that was asked for, else
with the next message. What it leaves behind is ended with it. The processes of a site are on the site; nothing is kept
here.
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
from tidegate.store import Db, ProcessEnd, ProcessRow, Store, notices, processes, workspaces
from tidegate.values import new_id
from tidegate.workspaces.backends import shell_script
from tidegate.workspaces.backends.interface import Child, Sandbox
from tidegate.workspaces.kernel.process_table import start_ticks
from tidegate.workspaces.processes.command_run import END_GRACE, conduct
from tidegate.workspaces.processes.live_sandbox import LiveSandbox, strained
from tidegate.workspaces.processes.process_log import ProcessLog

log = Log(__name__)

MOST_RUNNING = 16
"""Named processes of one session at once: a person could not tell more of them apart."""

STOP_GRACE = 5.0
"""Seconds that a process has to end by itself after it was asked to."""

WRITE_SECONDS = 10.0
"""In which a process takes what is written to it, or does not read its input."""

PACE_BYTES = 8 * 1024 * 1024
"""Of output that are taken from one process in a second: one that prints without end costs a few percent of a core."""

TOLD_BYTES = 1200
"""Of a finished process's last output that are told with its end."""

BATCH, BATCHES = 200, 100
"""Rows that are taken from the store at once, and how often in one run: more than there is, and an end to it."""

COMMAND_CHARACTERS = 200
"""Of a command that are told to say which process it is."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

OnFinished = Callable[[ProcessRow, str], Awaitable[None]]
"""Begins a turn for the end of a process that was started with `notify`, with what to tell its agent; the mark that it
was told is written with the turn. Raises when there is to be none."""


class RunningProcess:
    """A process that runs. `over` is set when its end is recorded; `news` whenever something has come of it."""

    def __init__(self, row: ProcessRow, child: Child, box: Sandbox, log: ProcessLog) -> None:
        self.row = row
        self.child = child
        self.box = box
        self.log = log
        self.over = asyncio.Event()
        self.news = asyncio.Event()
        self.before = box.strain
        self.stopping = False
        self.late = False
        self.waited_for = 0

    def tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    @property
    def grace(self) -> float:
        """What its command leaves behind has as long as it had itself."""
        return STOP_GRACE if self.stopping or self.late else END_GRACE


class BackgroundProcesses:
    def __init__(
        self,
        store: Store,
        spool: Spool,
        settings: WorkspaceSettings,
        clock: Callable[[], float],
        finished: OnFinished,
    ) -> None:
        self._store = store
        self._spool = spool
        self._settings = settings
        self._clock = clock
        self.finished = finished

    # -- starting --

    async def start(
        self, site: LiveSandbox, name: str, command: str, *, restart: bool, notify: bool
    ) -> ProcessRow | None:
        """The row of the process; None when one of that name runs already."""
        if not _NAME.fullmatch(name):
            raise ToolFailed("A process's name has 1 to 64 letters, digits, dots, dashes and underscores.")
        if name in site.running:
            return None
        if len(site.running) >= MOST_RUNNING:
            raise ToolFailed(f"{MOST_RUNNING} processes run in this conversation already: stop one of them first.")
        id = new_id("pr")
        try:
            row: ProcessRow = await self._store.write(
                lambda db: processes.begin(
                    db,
                    id=id,
                    session=site.session,
                    name=name,
                    command=command,
                    backend=site.backend.name,
                    log=id,
                    restart=restart,
                    notify=notify,
                    now=self._clock(),
                )
            )
        except Conflict as error:
            if error.code == "process_name":  # somebody else has just begun it
                return None
            raise ToolFailed(error.message) from None
        except Refused as error:
            raise ToolFailed(error.message) from None
        await self._spawn(site, row)
        return row

    async def again(self, site: LiveSandbox, lost: ProcessRow) -> None:
        """Start what was lost and is marked `restart` anew, once, and tell how that went."""
        id = new_id("pr")
        row = await self._store.write(lambda db: processes.restart(db, lost.id, new_id=id, log=id, now=self._clock()))
        if row is None:
            return
        try:
            await self._spawn(site, row)
            told = f"The process {called(row)} was lost and has been started again."
        except ToolFailed as error:
            told = f"The process {called(row)} was lost and could not be started again: {error.message}"
        await self._store.write(notices.add, site.session, told, self._clock())

    async def _spawn(self, site: LiveSandbox, row: ProcessRow) -> None:
        """The row is there; now the process is, or the row says that it is not."""
        child: Child | None = None
        try:
            await site.enter()  # first, since one of another backend forgets the shell that was saved elsewhere
            shell = await self._store.read(workspaces.shell, site.session)
            inner = site.backend.inner(site.spec.folder)
            text = shell_script.background(row.command, mark=row.id, folder=inner, shell=shell)
            box, child = await site.spawn(text, row.id)
            if not await self._store.write(_spawned, row.id, child.pid):
                raise ToolFailed("The process was to end before it had begun.")
            running = RunningProcess(row, child, box, self.log_of(row))
            site.scope.start(self._attend, site, running, name=f"process {row.id}")
            site.running[row.name] = running
        except BaseException:
            await self._abandon(site, row, child)
            raise

    async def _abandon(self, site: LiveSandbox, row: ProcessRow, child: Child | None) -> None:
        """It came to nothing: what there is of it ends, and its row says so."""

        async def over() -> None:
            if child is not None:
                await child.end(0)
                child.close()
            await self._store.write(self._record, row, "ended", None, True, "")

        if site.scope.open:  # else the box is being closed, and the next start finds the row
            cancelled = await outlast(site.scope.start(over, name=f"end of process {row.id}", at_close="finish"))
            if cancelled is not None:
                raise cancelled
        elif child is not None:
            child.close()

    # -- its life --

    async def _attend(self, site: LiveSandbox, running: RunningProcess) -> None:
        loop = asyncio.get_running_loop()
        since, taken = loop.time(), 0

        async def keep(data: bytes) -> None:
            nonlocal since, taken
            await to_thread.run_sync(running.log.append, data)
            running.tell()
            taken += len(data)
            if taken >= PACE_BYTES:
                await asyncio.sleep(max(0.0, since + 1 - loop.time()))
                since, taken = loop.time(), 0

        most = self._settings.process_seconds
        end_late = loop.call_later(most, self._end_late, site, running) if most else None
        try:
            ended = await conduct(running.child, keep, scope=site.scope, grace=lambda: running.grace)
            if not site.leaving:
                await self._ended(site, running, ended.code or 0, ended.left)
        finally:
            if end_late is not None:
                end_late.cancel()
            running.log.close()
            if site.running.get(running.row.name) is running:
                del site.running[running.row.name]
            running.over.set()
            running.tell()

    def _end_late(self, site: LiveSandbox, running: RunningProcess) -> None:
        if site.scope.open:
            running.late = True
            site.scope.start(running.child.end, STOP_GRACE, name=f"end of process {running.row.id}, which is late")

    async def _ended(self, site: LiveSandbox, running: RunningProcess, code: int, left: int) -> None:
        row = running.row
        state: ProcessEnd = "exited"
        if running.stopping or site.closed or running.box.why:  # whoever ended it tells it, or was told to
            state = "ended"
        elif await site.lost(running.box, code):
            state = "lost"
        known = state == "ended" or running.waited_for > 0
        again = state == "lost" and row.restart
        by_turn = row.notify and state == "exited" and not known
        told = strained(running.before, running.box.strain, site.spec.limits)
        if running.late:
            told = f"It had run for {self._settings.process_seconds:g} s (workspaces.process_seconds). {told}".strip()
        text = "" if known or again else await self._how(row, state, code, left, running.log, told)
        ended = await self._store.write(self._record, row, state, code, known or again, "" if by_turn else text)
        if ended is None:
            return
        if by_turn:
            await self._begin_turn(ended, text)
        await self._prune(row.session)
        if again:
            site.running.pop(row.name, None)
            await self.again(site, ended)

    async def _begin_turn(self, row: ProcessRow, text: str) -> None:
        try:
            await self.finished(row, text)
        except Stopping:
            return  # the next start does
        except TidegateError as error:
            log.warning("no turn for the end of a process", session=row.session, process=row.id, reason=error.message)
        except Exception:
            log.exception("no turn could be begun for the end of a process", session=row.session, process=row.id)
        else:
            return
        await self._store.write(_tell_later, row, text, self._clock())

    async def tell(self) -> None:
        """Of each end that was recorded and, for a kill or a fault, not told. May be asked at any time when turns can
        begin: who is about to tell of one tells it once all the same."""
        last = ""
        for _ in range(BATCHES):
            rows: list[ProcessRow] = await self._store.read(processes.unreported, after=last, limit=BATCH)
            for row in rows:
                how = await self._how(row, "exited", row.exit_code or 0, 0, self.log_of(row), "")
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
        """The end and what is told of it, in one transaction."""
        now = self._clock()
        ended = processes.mark_ended(db, row.id, state=state, exit_code=code, now=now, told=known or bool(text))
        if ended is not None and text:
            notices.add(db, row.session, text, now)
        return ended

    async def _how(self, row: ProcessRow, state: ProcessEnd, code: int, left: int, log: ProcessLog, told: str) -> str:
        if state == "lost":
            return f"The process {called(row)} is gone: its sandbox was ended from outside."
        how = f"was ended by signal {-code}" if code < 0 else f"has ended with exit code {code}"
        rest = f" It had left {left} processes running, which were ended." if left else ""
        rest += f" {told}" if told else ""
        said = (await to_thread.run_sync(log.read, None, TOLD_BYTES)).data.decode("utf-8", "replace").strip()
        return f"The process {called(row)} {how}.{rest}{f' Its last output:{chr(10)}{said}' if said else ''}"

    # -- what is done to it --

    async def write(self, running: RunningProcess, data: bytes, *, close: bool) -> None:
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await running.child.write(data)
        except TimeoutError:
            raise ToolFailed(
                f"The process {running.row.name!r} has not read all of this within {WRITE_SECONDS:g} s; it gets the "
                "rest if it reads on."
            ) from None
        if close:
            running.child.close_input()

    async def stop(self, running: RunningProcess) -> None:
        running.stopping = True
        await running.child.end(STOP_GRACE)
        await running.over.wait()

    # -- what is left of it --

    def log_of(self, row: ProcessRow) -> ProcessLog:
        return ProcessLog(self._spool.file(row.session, row.log), self._settings.process_log_bytes)

    async def lose(self, row: ProcessRow) -> ProcessRow | None:
        """It should be alive and is not, because the gateway was not."""
        text = "" if row.restart else f"The process {called(row)} ended when the gateway was stopped."
        ended: ProcessRow | None = await self._store.write(self._record, row, "lost", None, row.restart, text)
        await self._prune(row.session)
        return ended

    async def forget(self, session: str) -> None:
        """The session is over: its rows say so, and the logs of its processes are gone."""
        for row in await self._store.read(processes.of_session, session, principal=None):
            if row.ended is None:
                await self._store.write(self._record, row, "ended", None, True, "")
            await to_thread.run_sync(self.log_of(row).remove)


def called(row: ProcessRow) -> str:
    command = " ".join(row.command.split())
    shown = command if len(command) <= COMMAND_CHARACTERS else f"{command[:COMMAND_CHARACTERS]}…"
    return f"{row.name!r} ({shown})"


def _tell_later(db: Db, row: ProcessRow, text: str, now: float) -> None:
    if processes.mark_reported(db, row.id):
        notices.add(db, row.session, text, now)


def _spawned(db: Db, id: str, pid: int | None) -> bool:
    return processes.mark_running(db, id, pid=pid or 0, start_ticks=None if pid is None else start_ticks(pid))
