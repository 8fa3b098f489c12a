"""All sessions' workspaces: their folders, sandboxes and processes, and cleaning up after them.

Everything that runs for a session runs in its sandbox and is stopped when the session or the gateway ends; unloading a
session does not affect it. Everything is recorded before it is created, so leftovers of a crash are known, and `start`,
`reconcile` and `tidy` stop or remove them by comparing what exists with what should exist. A user's own folder is never
moved or removed. Of the gateway's environment, commands see only the variables named in the settings.

`Workspaces` owns the sandboxes and processes (through the live sandboxes in the records of present sessions) and the
folders below the gateway's home.
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
from tidegate.status_report import WorkspacesStatus
from tidegate.store import Db, ProcessRow, Store, WorkspaceRow, messages, processes, workspaces
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
from tidegate.workspaces.bounds import DEFAULT_BOUNDS, WorkspaceBounds
from tidegate.workspaces.disk import DiskLimit
from tidegate.workspaces.files import User
from tidegate.workspaces.kernel import seccomp
from tidegate.workspaces.kernel.cgroups import Cgroups
from tidegate.workspaces.kernel.process_table import start_ticks
from tidegate.workspaces.kernel.users import user_of
from tidegate.workspaces.processes import reaper
from tidegate.workspaces.processes.background import BackgroundProcesses, OnFinished
from tidegate.workspaces.processes.children import Spawner, find_program, kill_and_close
from tidegate.workspaces.processes.live_sandbox import LiveSandbox
from tidegate.workspaces.provenance import Provenance
from tidegate.workspaces.server_process import ServerProcesses
from tidegate.workspaces.session_folders import DiskUsage, Folders
from tidegate.workspaces.session_folders import remove as remove_folder
from tidegate.workspaces.workspace import Workspace

log = Log(__name__)

RECONCILE_SECONDS = 5.0
"""Interval between checks of which sandboxes and processes are alive and how many resources they use."""

TIDY_SECONDS = 300.0
"""Interval between checks of folders, and of rows that no longer belong to anything."""

AT_ONCE = 8
"""Number of sandboxes checked, closed or started concurrently."""

BATCH = 200
"""Number of rows read from the store at a time."""

BATCHES = 100
"""Number of batches per run: more than are ever needed, but a bound on the loop."""

ORPHAN_ROW_SECONDS = 60.0
"""Age at which a process row without a running process is an error. Normally, the process starts within milliseconds of
its row."""

CHOWN_SECONDS = 120.0
"""Time limit for changing the owner of a workspace's files from root to another user, which is done only once. About
100,000 files can be changed per second."""

_DEFAULTS = MappingProxyType({"LANG": "C.UTF-8", "PAGER": "cat", "TERM": "dumb"})
"""Default variables for commands: UTF-8 text, and no pager, since nobody could page through the output."""

_SANDBOX_FDS = 5  # its namespaces, its process table, its lifeline, and the pidfd of its first process
_NETWORK_FDS = 2  # for its network helper: lifeline and pidfd
_PROCESS_FDS = 4  # for one process: input, output, log and pidfd


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
        bounds: WorkspaceBounds = DEFAULT_BOUNDS,
    ) -> None:
        """`environment` is the gateway's own environment, of which commands see only the variables named in the
        settings. `provenance` records a session before it can write to a project folder."""
        self.store = store
        self._provenance = provenance
        self._bounds = bounds
        self.settings: WorkspaceSettings = config.workspaces
        self.folders = Folders(config.home)
        self.processes = BackgroundProcesses(store, spool, config.workspaces, clock, finished, bounds)
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
        self.servers = ServerProcesses(self.spawner, self._groups)
        self._choice = BackendSelection(self.settings, self.spawner, self._groups, backends)
        presence.ledger.view("workspace", self._measure)
        scope.on_close(self._close, name="workspaces")

    # -- handles --

    def of(self, session: str, agent: str, turn: str) -> Workspace:
        return Workspace(self, session, agent, turn)

    async def backend(self) -> Backend:
        return await self._choice.backend()

    async def _remote_backend(self) -> RemoteBackend | None:
        """Returns the backend if its folders are on another machine. Other backends are not detected here, since that
        would require starting a process."""
        backend = await self.backend() if self.settings.backend == "ssh" else None
        return backend if isinstance(backend, RemoteBackend) else None

    async def spec(self, session: str, agent: str) -> tuple[Backend, SandboxSpec]:
        """Returns a session's backend and sandbox specification. If the session's agent is no longer configured, the
        session gets its own folder."""
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
        """Returns a session's disk quota, which is stored in its record while the session is present. None if nothing
        is measured: a user's project folder has no limit, and remote folders are not measured."""
        if spec.project or isinstance(backend, RemoteBackend):
            return None
        record, folders = self._presence.get(spec.session), (spec.folder, spec.private)
        most = DiskUsage(spec.limits.disk_bytes, spec.limits.files)
        known = None if record is None else record.disk
        if not isinstance(known, DiskLimit) or (known.folders, known.most) != (folders, most):
            known = DiskLimit(folders, most, self._bounds)
        if record is not None:
            record.disk = known
        return known

    # -- live sandboxes --

    def present(self, session: str) -> LiveSandbox | None:
        record = self._presence.get(session)
        live_sandbox = None if record is None else record.workspace
        return live_sandbox if isinstance(live_sandbox, LiveSandbox) and not live_sandbox.closed else None

    def _live_sandboxes(self) -> list[LiveSandbox]:
        return [record.workspace for record in self._presence if isinstance(record.workspace, LiveSandbox)]

    async def _obtain_sandbox(self, spec: SandboxSpec, backend: Backend, agent: str) -> LiveSandbox:
        """Returns the session's live sandbox. A live sandbox for another backend or folder is closed and replaced."""
        if isinstance(backend, NoCommands):
            raise ToolFailed(backend.reason)
        there = self.present(spec.session)
        if there is not None and there.matches(spec, backend):
            return there
        if not self._scope.open:
            raise ToolFailed("The gateway is stopping: no new commands are started.")
        self._presence.obtain(spec.session)  # its disk quota is stored in this record, too
        live_sandbox = LiveSandbox(
            spec,
            backend,
            self._scope,
            disk=self.disk(spec, backend),
            prepare=lambda: self.prepare(spec, backend, agent),
            add_notice=self._add_notice,
        )
        self._presence.set_workspace(spec.session, live_sandbox)
        if there is not None:
            names = ", ".join(sorted(there.running))
            await there.close()
            await self._add_notice(
                spec.session,
                "Commands run in another workspace from now on."
                + (f" Processes in the old one were stopped: {names}." if names else ""),
            )
        return live_sandbox

    async def prepare(self, spec: SandboxSpec, backend: Backend, agent: str) -> None:
        """Creates the folders and records the session that owns them."""
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
                await self._change_owner(foreign, spec.user)
        except OSError as error:
            raise ToolFailed(f"The workspace's folder cannot be created ({error.strerror}).") from None

    async def _change_owner(self, folders: list[Path], user: User) -> None:
        """Gives these folders and their contents to the session's user. No link is followed. A folder's owner is
        changed after its contents' owners, so an interrupted run is repeated, but a finished run is not."""
        chown = [find_program("chown") or "chown", "-hRP", f"{user.uid}:{user.gid}", "--", *map(str, folders)]
        child = await self.spawner.spawn(chown, {})
        try:
            async with asyncio.timeout(CHOWN_SECONDS):
                code = await child.wait()
        except TimeoutError:
            raise ToolFailed("Changing the owner of the workspace's files took too long; try again.") from None
        finally:
            await kill_and_close(child)
        if code != 0:
            raise ToolFailed(
                f"The owner of the workspace's files cannot be changed to user {user.uid} (workspaces.user)."
            )

    def _make(self, spec: SandboxSpec, here: bool, agent: str) -> list[Path]:
        """Creates the folders. Returns those that still have the wrong owner."""
        if spec.project and here and not spec.folder.is_dir():
            raise ToolFailed(
                f"The agent's workspace is set to {spec.folder}, which does not exist: create it, or change "
                "the setting."
            )
        settings = self._config.agents.get(agent)
        model = None if settings is None else self._config.models.get(settings.model)
        self.folders.make(spec, here=here, notes=model is not None and model.api == "demo")
        return self.folders.wrongly_owned(spec) if here else []

    @asynccontextmanager
    async def use_sandbox(self, session: str, agent: str) -> AsyncIterator[LiveSandbox]:
        """Yields the session's live sandbox, which counts as in use during the block."""
        backend, spec = await self.spec(session, agent)
        live_sandbox = await self._obtain_sandbox(spec, backend, agent)
        try:
            with live_sandbox.in_use():
                yield live_sandbox
        finally:
            # No sandbox was opened, or it has ended.
            if live_sandbox.sandbox is None and live_sandbox.idle:
                with CancelScope(shield=True):
                    await self.close_sandbox(live_sandbox)

    async def close_sandbox(self, live_sandbox: LiveSandbox) -> None:
        """Closes a live sandbox and removes it from its session's record, unless a newer one has already replaced
        it."""
        live_sandbox.closed = True
        if (record := self._presence.get(live_sandbox.session)) is not None and record.workspace is live_sandbox:
            self._presence.clear_workspace(live_sandbox.session)
        await live_sandbox.close()

    async def _add_notice(self, session: str, text: str) -> None:
        await self.store.write(messages.add_notice, session, text, self._clock())

    # -- start and stop of the gateway --

    async def start(self) -> None:
        """Records that the previous gateway's processes no longer exist, and restarts those marked `restart`."""
        if self._choice.warning:
            log.warning("the gateway runs as root", meaning=self._choice.warning)
        if self.spawner.user is not None:
            with suppress(PermissionError):
                os.setgroups([])  # file tools act as another user, who is not in any of these groups
        await self._end_orphans()
        await to_thread.run_sync(self._groups.sweep)
        if (there := await self._remote_backend()) is not None:
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
        self._scope.start(self.restart_processes, name="restart of processes")

    async def _end_orphans(self) -> None:
        """Kills the processes with this home's mark that do not descend from any of our child processes. The home is
        locked, so no other gateway owns them."""
        marked = await to_thread.run_sync(reaper.marked_processes, self.spawner.owner)
        # Child processes are started in this thread, so every one that was found and is still running is known by now.
        running = self.spawner.running
        if orphans := [process for process in marked if not process.line & running]:
            await to_thread.run_sync(reaper.end, orphans)

    async def restart_processes(self) -> None:
        """Restarts the processes that ended with the previous gateway and are marked `restart`, in sessions that are
        still live. This is part of `recover`."""
        last = ""
        for _ in range(BATCHES):
            rows: list[ProcessRow] = await self.store.read(processes.restartable, after=last, limit=BATCH)
            await _run_concurrently([self._restart_one(row) for row in rows])
            if len(rows) < BATCH:
                break
            last = rows[-1].id

    async def _restart_one(self, row: ProcessRow) -> None:
        place: WorkspaceRow | None = await self.store.read(workspaces.get, row.session)
        if place is None or place.state != "live":
            return
        try:
            spec = await self._spec(row.session, Path(place.folder) if place.project else None)
            live_sandbox = await self._obtain_sandbox(spec, await self.backend(), "")
            with live_sandbox.in_use():
                await self.processes.restart_lost(live_sandbox, row)
        except (
            ToolFailed,
            Refused,
        ) as error:  # refused: the session has ended in the meantime, so there is nobody to notify
            await self._add_notice(row.session, f"The process {row.name!r} could not be started again: {error.message}")

    async def _close(self) -> None:
        """Stops everything. The rows stay as they are, so that the next start finds what was lost, as after a kill."""
        live_sandboxes = self._live_sandboxes()
        for live_sandbox in live_sandboxes:
            live_sandbox.gateway_stopping = True
        await _run_concurrently([self.close_sandbox(live_sandbox) for live_sandbox in live_sandboxes])

    # -- the end of a session --

    async def end(self, session: str) -> None:
        """Stops everything that is running for the session and moves its own folder to the trash. May be called
        again."""
        row = await self._end_processes(session)
        if row is not None:
            # Whatever folder the row names, only a folder with the session's name is moved, and no project folder has
            # such a name.
            await to_thread.run_sync(self.folders.move_to_trash, session)
            await self._discard_remote_folders(row, keep=True)

    async def discard(self, session: str) -> None:
        """Stops everything that is running for a deleted session and keeps nothing, even if its rows have already been
        deleted."""
        row = await self._end_processes(session)
        await to_thread.run_sync(self.folders.remove, session)
        if row is not None:
            await self._discard_remote_folders(row, keep=False)
            await self.store.write(workspaces.remove, session)

    async def _discard_remote_folders(self, row: WorkspaceRow, *, keep: bool) -> None:
        """Discards the session's folders on another machine."""
        backend = await self.backend()
        if isinstance(backend, RemoteBackend) and backend.name == row.backend:
            await self._remote_cleanup.discard_folders(backend, row.session, keep=keep)

    async def _end_processes(self, session: str) -> WorkspaceRow | None:
        """Stops everything that is running for the session. Returns None if the session never had a workspace, which is
        true for most sessions."""
        record = self._presence.get(session)
        if record is not None and isinstance(record.workspace, LiveSandbox):
            await self.close_sandbox(record.workspace)
        row: WorkspaceRow | None = await self.store.read(workspaces.get, session)
        if row is not None:
            await self.processes.forget(session)
        return row

    # -- the timer --

    async def reconcile(self) -> None:
        """Compares what is alive with what should be alive. Handles sandboxes that were killed from outside, usage
        beyond the limits, idle sandboxes, and zombies that nobody else would reap."""
        await to_thread.run_sync(self._reaper.reap)
        live_sandboxes = self._live_sandboxes()
        await _run_concurrently([self._check(live_sandbox) for live_sandbox in live_sandboxes])
        idle = sorted(
            (live_sandbox for live_sandbox in live_sandboxes if live_sandbox.idle and not live_sandbox.closed),
            key=lambda live_sandbox: live_sandbox.last_used,
        )
        too_many = len(idle) - self._bounds.idle_sandboxes
        late = time.monotonic() - self._bounds.idle_seconds
        await _run_concurrently(
            [
                self.close_sandbox(live_sandbox)
                for rank, live_sandbox in enumerate(idle)
                if rank < too_many or live_sandbox.last_used < late
            ]
        )

    async def _check(self, live_sandbox: LiveSandbox) -> None:
        try:
            await live_sandbox.note_lost()
            await live_sandbox.check_limits()
        except Exception:
            log.exception("checking a workspace failed and will be tried again", session=live_sandbox.session)

    async def tidy(self) -> None:
        """Removes processes and folders without an owner, folders that have been in the trash long enough, and orphaned
        rows."""
        self._choice.reconsider()
        await self._end_orphans()
        await to_thread.run_sync(self._groups.sweep)
        if (there := await self._remote_backend()) is not None:
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
        last, before = "", self._clock() - ORPHAN_ROW_SECONDS
        for _ in range(BATCHES):
            rows: list[ProcessRow] = await self.store.read(processes.live, after=last, limit=BATCH)
            for row in rows:
                live_sandbox = self.present(row.session)
                if row.started < before and (live_sandbox is None or row.name not in live_sandbox.running):
                    log.warning("a process that should be running is not", session=row.session, process=row.id)
                    await to_thread.run_sync(_end_leftover, row)
                    await self.processes.mark_lost(row)
            if len(rows) < BATCH:
                break
            last = rows[-1].id

    # -- for status and metrics --

    def status(self) -> WorkspacesStatus:
        """Returns the status for the operator. Reading it does not trigger backend detection."""
        live_sandboxes, backend = self._live_sandboxes(), self._choice.known
        sandboxed = backend is not None and backend.sandboxed
        return WorkspacesStatus(
            backend=self.settings.backend if backend is None else backend.name,
            problem=backend.reason if isinstance(backend, NoCommands) else "",
            warning=" ".join(filter(None, (self._choice.warning, seccomp.problem() if sandboxed else ""))),
            sandboxed=sandboxed,
            enforced={} if backend is None else dict(backend.enforced),
            limits="" if backend is None else _kept(backend.enforced),
            uncounted=[] if backend is None else list(backend.uncounted),
            boxes=sum(live_sandbox.sandbox is not None for live_sandbox in live_sandboxes),
            processes=sum(len(live_sandbox.running) for live_sandbox in live_sandboxes),
        )

    def _measure(self) -> Iterator[tuple[str, Holding]]:
        for live_sandbox in self._live_sandboxes():
            sandboxes, running = int(live_sandbox.sandbox is not None), len(live_sandbox.running)
            uplinks = sandboxes * (live_sandbox.spec.network and live_sandbox.backend.sandboxed)
            fds = sandboxes * _SANDBOX_FDS + uplinks * _NETWORK_FDS + running * _PROCESS_FDS
            yield f"session {live_sandbox.session}", Holding(1, fds=fds, children=sandboxes + uplinks + running)


async def _run_concurrently(jobs: list[Any]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(job: Any) -> None:
        async with room:
            await job

    await gather([one(job) for job in jobs])


def _kept(enforced: Mapping[str, str]) -> str:
    """Describes how each limit is enforced, in one sentence."""
    return "; ".join(f"{called}: {enforced[name]}" for name, called in LIMIT_NAMES.items() if name in enforced)


def _claim(db: Db, row: WorkspaceRow) -> None:
    """Records the session's workspace. A shell saved with another backend is discarded."""
    db.lock("session", row.session)
    before = workspaces.get(db, row.session)
    workspaces.put(db, session=row.session, backend=row.backend, folder=row.folder, project=row.project)
    if before is not None and before.backend != row.backend:
        workspaces.save_shell(db, row.session, b"")


def _end_leftover(row: ProcessRow) -> None:
    """Kills a process that the previous gateway has left alive, identified by its pid and start time."""
    if row.pid and row.start_ticks is not None and start_ticks(row.pid) == row.start_ticks:
        log.warning(
            "one of the previous gateway's processes is still alive and is being killed", process=row.id, pid=row.pid
        )
        try:
            os.killpg(row.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError) as error:
            log.info("it has already ended", process=row.id, reason=str(error))


def _remove(path: Path) -> None:
    try:
        remove_folder(path)
    except OSError as error:
        log.warning("a folder without an owner cannot be removed", folder=str(path), error=str(error))
