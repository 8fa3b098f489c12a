"""The workspaces of all sessions: who has one, what runs in it, and what is left when it is over.

Guarantee: what runs for a session runs in its box and is gone when the session has ended or the gateway has; unloading
a session touches none of it. What a session has is written down before it is made, so that whatever a crash leaves is
known and ended or removed by `start`, `reconcile` and `tidy`, each of which looks at what is and mends it. A folder of
the user's own is never moved or removed. The room owns the boxes and processes, through the sites that hang on the
records of present sessions, and the folders below the home; commands get nothing of the gateway's environment that the
settings do not name.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from anyio import CancelScope, to_thread

from tidegate.config import Config, WorkspaceSettings
from tidegate.errors import Refused, ToolFailed
from tidegate.lifetimes import Holding, Presence, Scope, gather
from tidegate.log import Log
from tidegate.security.addresses import networks
from tidegate.spool import Spool
from tidegate.store import Db, ProcessRow, Store, WorkspaceRow, notices, processes, workspaces
from tidegate.workspaces.backends.backend_select import BackendSelection, NoCommands
from tidegate.workspaces.backends.interface import (
    LIMIT_NAMES,
    Backend,
    RemoteBackend,
    SandboxLimits,
    SandboxSpec,
    owner_of,
)
from tidegate.workspaces.backends.remote_cleanup import RemoteCleanup
from tidegate.workspaces.disk import DiskLimit
from tidegate.workspaces.files import User
from tidegate.workspaces.folders import DiskUsage, Folders
from tidegate.workspaces.folders import remove as remove_folder
from tidegate.workspaces.kernel import seccomp
from tidegate.workspaces.kernel.cgroups import Cgroups
from tidegate.workspaces.kernel.process_table import start_ticks
from tidegate.workspaces.kernel.users import user_of
from tidegate.workspaces.processes import reaper
from tidegate.workspaces.processes.background import BackgroundProcesses, OnFinished
from tidegate.workspaces.processes.children import Spawner, find_program, kill_and_close
from tidegate.workspaces.processes.live_sandbox import LiveSandbox
from tidegate.workspaces.provenance import Provenance
from tidegate.workspaces.workspace import Workspace

log = Log(__name__)

RECONCILE_SECONDS = 5.0
"""Between two looks at what is alive and what it uses."""

TIDY_SECONDS = 300.0
"""Between two looks at the folders and at rows that nothing is behind."""

IDLE_SECONDS = 60.0
"""A box in which nothing runs is closed after this: to make it again takes some milliseconds and loses nothing."""

IDLE_SANDBOXES = 64
"""Boxes in which nothing runs that are kept; beyond that the longest unused are closed earlier."""

AT_ONCE = 8
"""Boxes that are looked at, closed or started side by side."""

BATCH = 200
"""Rows that are taken from the store at once."""

BATCHES = 100
"""Batches in one run: more than there is, and an end to it."""

STRANDED_SECONDS = 60.0
"""After which a row of a process that nobody runs is a mistake: between the two lie milliseconds."""

HAND_OVER_SECONDS = 120.0
"""For giving the files of a workspace that root used to own to their user, once: some hundred thousand in a second."""

_DEFAULTS = MappingProxyType({"LANG": "C.UTF-8", "PAGER": "cat", "TERM": "dumb"})
"""What commands find where nothing else is said: text in any language, and nobody who would turn pages."""

_SANDBOX_FDS = 5  # its namespaces, its processes, its lifeline, and the watch on its life
_NETWORK_FDS = 2  # of what joins it to the network: its lifeline, and the watch on its life
_PROCESS_FDS = 4  # of one process: input, output, log, and the watch on its life


class Workspaces:
    def __init__(
        self,
        scope: Scope,
        store: Store,
        presence: Presence,
        spool: Spool,
        config: Config,
        *,
        clock: Callable[[], float] = time.time,
        finished: OnFinished,
        environment: Mapping[str, str],
        backends: Callable[[str], Backend] | None = None,
        provenance: Provenance | None = None,
    ) -> None:
        """`environment` is the gateway's own, of which commands see what the settings name; `provenance` is told before
        a session can write in a project folder."""
        self.store = store
        self._provenance = provenance
        self.settings: WorkspaceSettings = config.workspaces
        self.folders = Folders(config.home)
        self.processes = BackgroundProcesses(store, spool, config.workspaces, clock, finished)
        self._scope = scope
        self._presence = presence
        self._config = config
        self._clock = clock
        self._environment = {name: environment[name] for name in self.settings.environment if name in environment}
        self._groups = Cgroups(config.home)
        self._reaper = reaper.Reaper()
        self._remote_cleanup = RemoteCleanup(store, clock, self.settings.trash)
        owner = owner_of(config.home)
        self.spawner = Spawner(frozenset(os.sched_getaffinity(0)), owner, user_of(self.settings.user, None, owner))
        self._choice = BackendSelection(self.settings, self.spawner, self._groups, backends)
        presence.ledger.view("workspace", self._measure)
        scope.on_close(self._close, name="workspaces")

    # -- handles --

    def of(self, session: str, agent: str, turn: str) -> Workspace:
        return Workspace(self, session, agent, turn)

    async def backend(self) -> Backend:
        return await self._choice.backend()

    async def _elsewhere(self) -> RemoteBackend | None:
        """The backend, if folders are on another machine. Any other is not even looked for: that takes a process."""
        backend = await self.backend() if self.settings.backend == "ssh" else None
        return backend if isinstance(backend, RemoteBackend) else None

    async def spec(self, session: str, agent: str) -> tuple[Backend, SandboxSpec]:
        """What sessions of an agent work with. One whose agent is no longer configured has its own folder."""
        project = self._config.project(agent) if agent in self._config.agents else None
        return await self.backend(), await self._spec(session, project)

    async def _spec(self, session: str, project: Path | None) -> SandboxSpec:
        settings, user = self.settings, self.spawner.user
        if project is not None and user is not None:
            user = await to_thread.run_sync(user_of, settings.user, project, self.spawner.owner)
        return SandboxSpec(
            session=session,
            folder=project or self.folders.of(session),
            project=project is not None,
            private=self.folders.private(session),
            network=settings.network,
            reachable=networks(self._config.web.private),
            environment={**_DEFAULTS, **self._environment},
            read_only=tuple(self._config.path(name) for name in settings.read_only),
            user=user,
            limits=SandboxLimits(
                memory_bytes=settings.memory_bytes,
                processes=settings.processes,
                disk_bytes=settings.disk_bytes,
                files=settings.files,
                file_bytes=settings.file_bytes,
                cpu_seconds=settings.cpu_seconds,
            ),
        )

    def disk(self, spec: SandboxSpec, backend: Backend) -> DiskLimit | None:
        """What is known of the disk of a session, while anything of it is present; None where nobody measures. A
        project of the user's is as large as it is."""
        if spec.project or isinstance(backend, RemoteBackend):
            return None
        record, folders = self._presence.get(spec.session), (spec.folder, spec.private)
        most = DiskUsage(spec.limits.disk_bytes, spec.limits.files)
        known = None if record is None else record.disk
        if not isinstance(known, DiskLimit) or (known.folders, known.most) != (folders, most):
            known = DiskLimit(folders, most)
        if record is not None:
            record.disk = known
        return known

    # -- what is present --

    def present(self, session: str) -> LiveSandbox | None:
        record = self._presence.get(session)
        live_sandbox = None if record is None else record.workspace
        return live_sandbox if isinstance(live_sandbox, LiveSandbox) and not live_sandbox.closed else None

    def _live_sandboxes(self) -> list[LiveSandbox]:
        return [record.workspace for record in self._presence if isinstance(record.workspace, LiveSandbox)]

    async def _occupy(self, spec: SandboxSpec, backend: Backend, agent: str) -> LiveSandbox:
        """What is present there. What was made for another backend or folder is closed."""
        if isinstance(backend, NoCommands):
            raise ToolFailed(backend.reason)
        there = self.present(spec.session)
        if there is not None and there.fits(spec, backend):
            return there
        if not self._scope.open:
            raise ToolFailed("The gateway is stopping: no command is started any more.")
        self._presence.obtain(spec.session)  # what is known of its disk hangs on it, too
        live_sandbox = LiveSandbox(
            spec,
            backend,
            self._scope,
            disk=self.disk(spec, backend),
            prepare=lambda: self.prepare(spec, backend, agent),
            tell=self._add_notice,
        )
        self._presence.lodge(spec.session, live_sandbox)
        if there is not None:
            names = ", ".join(sorted(there.running))
            await there.close()
            await self._add_notice(
                spec.session,
                "Commands run in another place from now on."
                + (f" What ran in the old one was ended: {names}." if names else ""),
            )
        return live_sandbox

    async def prepare(self, spec: SandboxSpec, backend: Backend, agent: str) -> None:
        """The folders are there, and it is written down whose they are."""
        here = not isinstance(backend, RemoteBackend)
        if spec.project and here and self._provenance is not None:
            await self._provenance.admit(spec.session, spec.folder)
        folder = str(spec.folder) if here or spec.project else ""
        wanted = WorkspaceRow(spec.session, backend.name, folder, spec.project, "live", None)
        row = await self.store.read(workspaces.get, spec.session)
        if row != wanted:
            try:
                await self.store.write(_claim, wanted)
            except Refused as error:
                raise ToolFailed(error.message) from None
        try:
            foreign = await to_thread.run_sync(self._make, spec, here, agent)
            if foreign and spec.user is not None:
                await self._hand_over(foreign, spec.user)
        except OSError as error:
            raise ToolFailed(f"The workspace's folder cannot be made ({error.strerror}).") from None

    async def _hand_over(self, folders: list[Path], user: User) -> None:
        """These belong to the session's user from now on, with all that is in them. No link is followed. A folder is
        given away after its contents: so what was begun and not finished is begun again, and what is done is not
        repeated."""
        chown = [find_program("chown") or "chown", "-hRP", f"{user.uid}:{user.gid}", "--", *map(str, folders)]
        child = await self.spawner.spawn(chown, {})
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                code = await child.wait()
        except TimeoutError:
            raise ToolFailed("The workspace's files are still being given to their user; try again.") from None
        finally:
            await kill_and_close(child)
        if code != 0:
            raise ToolFailed(f"The workspace's files cannot be given to the user {user.uid} (workspaces.user).")

    def _make(self, spec: SandboxSpec, here: bool, agent: str) -> list[Path]:
        """Which of them are not yet their user's."""
        if spec.project and here and not spec.folder.is_dir():
            raise ToolFailed(
                f"The folder {spec.folder}, which the agent's workspace is set to, is not there: make it, or change "
                "the setting."
            )
        settings = self._config.agents.get(agent)
        model = None if settings is None else self._config.models.get(settings.model)
        self.folders.make(spec, here=here, notes=model is not None and model.api == "demo")
        return self.folders.wrongly_owned(spec) if here else []

    @asynccontextmanager
    async def use_sandbox(self, session: str, agent: str) -> AsyncIterator[LiveSandbox]:
        """What is present of the session's workspace, for as long as somebody works in it."""
        backend, spec = await self.spec(session, agent)
        live_sandbox = await self._occupy(spec, backend, agent)
        try:
            with live_sandbox.in_use():
                yield live_sandbox
        finally:
            if (
                live_sandbox.sandbox is None and live_sandbox.idle
            ):  # it never came to that, or is over: nothing is present
                with CancelScope(shield=True):
                    await self.close_sandbox(live_sandbox)

    async def close_sandbox(self, live_sandbox: LiveSandbox) -> None:
        """It is not present any more; what is new of the session meanwhile stays."""
        live_sandbox.closed = True
        if (record := self._presence.get(live_sandbox.session)) is not None and record.workspace is live_sandbox:
            self._presence.vacate(live_sandbox.session)
        await live_sandbox.close()

    async def _add_notice(self, session: str, text: str) -> None:
        await self.store.write(notices.add, session, text, self._clock())

    # -- start and stop of the gateway --

    async def start(self) -> None:
        """Take note of what the last process left: its processes are gone, and those marked `restart` begin again."""
        if self._choice.warning:
            log.warning("the gateway runs as root", meaning=self._choice.warning)
        if self.spawner.user is not None:
            with suppress(PermissionError):
                os.setgroups([])  # file tools act as another user, who is in none of them
        await self._end_orphans()
        await to_thread.run_sync(self._groups.sweep)
        if (there := await self._elsewhere()) is not None:
            await self._remote_cleanup.recover(there)
        last = ""
        for _ in range(BATCHES):
            rows: list[ProcessRow] = await self.store.read(processes.live, after=last, limit=BATCH)
            for row in rows:
                await to_thread.run_sync(_end_leftover, row)
                await self.processes.mark_lost(row)
            if len(rows) < BATCH:
                break
            last = rows[-1].id
        self._scope.start(self._restart, name="restart of processes")

    async def _end_orphans(self) -> None:
        """End the processes of this home that descend from none of our children. As the home is locked, no other
        gateway owns them."""
        marked = await to_thread.run_sync(reaper.marked_processes, self.spawner.owner)
        # Children are started on this thread: every one that was found and still runs is known by now.
        running = self.spawner.running
        if orphans := [process for process in marked if not process.line & running]:
            await to_thread.run_sync(reaper.end, orphans)

    async def _restart(self) -> None:
        last = ""
        for _ in range(BATCHES):
            rows: list[ProcessRow] = await self.store.read(processes.restartable, after=last, limit=BATCH)
            await _side_by_side([self._restart_one(row) for row in rows])
            if len(rows) < BATCH:
                break
            last = rows[-1].id

    async def _restart_one(self, row: ProcessRow) -> None:
        place: WorkspaceRow | None = await self.store.read(workspaces.get, row.session)
        if place is None or place.state != "live":
            return
        try:
            spec = await self._spec(row.session, Path(place.folder) if place.project else None)
            live_sandbox = await self._occupy(spec, await self.backend(), "")
            with live_sandbox.in_use():
                await self.processes.restart_lost(live_sandbox, row)
        except (ToolFailed, Refused) as error:  # refused: its session has ended meanwhile, and hears of nothing
            await self._add_notice(row.session, f"The process {row.name!r} could not be started again: {error.message}")

    async def _close(self) -> None:
        """Everything ends; the rows stay as they are, so that the next start finds what was lost, as after a kill."""
        live_sandboxes = self._live_sandboxes()
        for live_sandbox in live_sandboxes:
            live_sandbox.leaving = True
        await _side_by_side([self.close_sandbox(live_sandbox) for live_sandbox in live_sandboxes])

    # -- the end of a session --

    async def end(self, session: str) -> None:
        """Everything that ran for it is gone, and its folder, if it was ours, is in the trash. May be asked again."""
        row = await self._let_go(session)
        if row is not None:
            # Whatever the row says of its folder, only what has the session's name is moved: no project has.
            await to_thread.run_sync(self.folders.move_to_trash, session)
            await self._discard_remote_folders(row, keep=True)

    async def discard(self, session: str) -> None:
        """The same, and nothing of it is kept: for what is deleted, also when its rows have gone before."""
        row = await self._let_go(session)
        await to_thread.run_sync(self.folders.remove, session)
        if row is not None:
            await self._discard_remote_folders(row, keep=False)
            await self.store.write(workspaces.remove, session)

    async def _discard_remote_folders(self, row: WorkspaceRow, *, keep: bool) -> None:
        """What the session has on another machine."""
        backend = await self.backend()
        if isinstance(backend, RemoteBackend) and backend.name == row.backend:
            await self._remote_cleanup.discard_folders(backend, row.session, keep=keep)

    async def _let_go(self, session: str) -> WorkspaceRow | None:
        """What runs there is gone when this returns; None when the session never had a workspace, as most."""
        record = self._presence.get(session)
        if record is not None and isinstance(record.workspace, LiveSandbox):
            await self.close_sandbox(record.workspace)
        row: WorkspaceRow | None = await self.store.read(workspaces.get, session)
        if row is not None:
            await self.processes.forget(session)
        return row

    # -- the timer --

    async def reconcile(self) -> None:
        """Compare what is alive with what should be: boxes that went without us, what uses more than its limits,
        boxes in which nothing has run for a while, and what nobody else would reap."""
        await to_thread.run_sync(self._reaper.reap)
        live_sandboxes = self._live_sandboxes()
        await _side_by_side([self._look(live_sandbox) for live_sandbox in live_sandboxes])
        idle = sorted(
            (live_sandbox for live_sandbox in live_sandboxes if live_sandbox.idle and not live_sandbox.closed),
            key=lambda live_sandbox: live_sandbox.used,
        )
        too_many = len(idle) - IDLE_SANDBOXES
        late = time.monotonic() - IDLE_SECONDS
        await _side_by_side(
            [
                self.close_sandbox(live_sandbox)
                for rank, live_sandbox in enumerate(idle)
                if rank < too_many or live_sandbox.used < late
            ]
        )

    async def _look(self, live_sandbox: LiveSandbox) -> None:
        try:
            await live_sandbox.note_lost()
            await live_sandbox.look()
        except Exception:
            log.exception("a workspace could not be looked after; that is tried again", session=live_sandbox.session)

    async def tidy(self) -> None:
        """Processes and folders that nobody owns, folders whose time in the trash is over, and rows that nothing is
        behind."""
        self._choice.reconsider()
        await self._end_orphans()
        await to_thread.run_sync(self._groups.sweep)
        if (there := await self._elsewhere()) is not None:
            await self._remote_cleanup.retry(there)
        await self._tidy_rows()
        for row in await self.store.read(workspaces.due_for_removal, self._clock() - self.settings.trash):
            if await to_thread.run_sync(self._remove_all, row.session):
                await self.store.write(workspaces.remove, row.session)
        found = await to_thread.run_sync(self.folders.sessions)
        names = list(found)
        for start in range(0, len(names), BATCH):
            known = await self.store.read(workspaces.existing, names[start : start + BATCH])
            for name in names[start : start + BATCH]:
                for path in found[name]:
                    if name not in known or self.folders.is_leftover(path):
                        await to_thread.run_sync(_remove, path)

    def _remove_all(self, session: str) -> bool:
        try:
            self.folders.remove(session)
        except OSError as error:
            log.warning("a folder in the trash cannot be removed", session=session, error=str(error))
            return False
        return True

    async def _tidy_rows(self) -> None:
        last, before = "", self._clock() - STRANDED_SECONDS
        for _ in range(BATCHES):
            rows: list[ProcessRow] = await self.store.read(processes.live, after=last, limit=BATCH)
            for row in rows:
                live_sandbox = self.present(row.session)
                if row.started < before and (live_sandbox is None or row.name not in live_sandbox.running):
                    log.warning("a process that should run does not", session=row.session, process=row.id)
                    await to_thread.run_sync(_end_leftover, row)
                    await self.processes.mark_lost(row)
            if len(rows) < BATCH:
                break
            last = rows[-1].id

    # -- for status and metrics --

    def status(self) -> dict[str, Any]:
        """What the operator is shown. The backend is found out when it is first needed."""
        live_sandboxes, backend = self._live_sandboxes(), self._choice.known
        sandboxed = backend is not None and backend.sandboxed
        return {
            "backend": self.settings.backend if backend is None else backend.name,
            "problem": backend.reason if isinstance(backend, NoCommands) else "",
            "warning": " ".join(filter(None, (self._choice.warning, seccomp.problem() if sandboxed else ""))),
            "sandboxed": sandboxed,
            "enforced": {} if backend is None else dict(backend.enforced),
            "limits": "" if backend is None else _kept(backend.enforced),
            "uncounted": [] if backend is None else list(backend.uncounted),
            "boxes": sum(live_sandbox.sandbox is not None for live_sandbox in live_sandboxes),
            "processes": sum(len(live_sandbox.running) for live_sandbox in live_sandboxes),
        }

    def _measure(self) -> Iterator[tuple[str, Holding]]:
        for live_sandbox in self._live_sandboxes():
            sandboxes, running = int(live_sandbox.sandbox is not None), len(live_sandbox.running)
            uplinks = sandboxes * (live_sandbox.spec.network and live_sandbox.backend.sandboxed)
            fds = sandboxes * _SANDBOX_FDS + uplinks * _NETWORK_FDS + running * _PROCESS_FDS
            yield f"session {live_sandbox.session}", Holding(1, fds=fds, children=sandboxes + uplinks + running)


async def _side_by_side(jobs: list[Any]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(job: Any) -> None:
        async with room:
            await job

    await gather([one(job) for job in jobs])


def _kept(enforced: Mapping[str, str]) -> str:
    """Which limit is held by what, in one sentence."""
    return "; ".join(f"{called}: {enforced[name]}" for name, called in LIMIT_NAMES.items() if name in enforced)


def _claim(db: Db, row: WorkspaceRow) -> None:
    """The session's workspace is this from now on. A shell that was saved elsewhere means nothing here."""
    before = workspaces.get(db, row.session)
    workspaces.put(db, session=row.session, backend=row.backend, folder=row.folder, project=row.project)
    if before is not None and before.backend != row.backend:
        workspaces.save_shell(db, row.session, b"")


def _end_leftover(row: ProcessRow) -> None:
    """What the last gateway left alive, if it did: known by its number and the time of its start together."""
    if row.pid and row.start_ticks is not None and start_ticks(row.pid) == row.start_ticks:
        log.warning("a process of the last gateway is still alive and is ended", process=row.id, pid=row.pid)
        try:
            os.killpg(row.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError) as error:
            log.info("it has ended by itself", process=row.id, reason=str(error))


def _remove(path: Path) -> None:
    try:
        remove_folder(path)
    except OSError as error:
        log.warning("a folder that nobody owns cannot be removed", folder=str(path), error=str(error))
