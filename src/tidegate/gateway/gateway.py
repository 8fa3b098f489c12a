"""The gateway: opens every service in order, runs them together, and closes them in reverse order.

Everything that was opened is closed on every exit path, in reverse order and within one time budget (`[limits]
shutdown_seconds`): after a stop, after a failed start, and after a stop during the start. If a service fails to close,
the failure is logged and the remaining services are still closed. The gateway owns the process scope; each service owns
what it creates inside that scope. A constructor opens nothing: `build` opens, `close` closes.
"""

import asyncio
import contextlib
import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from anyio import to_thread

from tidegate import slash_commands
from tidegate.config import FILE_NAME, show
from tidegate.errors import Misconfigured, StoreDamaged, TidegateError
from tidegate.gateway import home as home_folder
from tidegate.gateway import listen_address, start_message
from tidegate.gateway.control import Control
from tidegate.gateway.cpu_affinity import CHECK_SECONDS, CpuAffinity
from tidegate.gateway.lock import TAKEOVER_NAME, BeingTakenOver, HomeLock, command_hint, holder_of
from tidegate.gateway.maintenance import Maintenance
from tidegate.gateway.mcp_requests import McpRequests
from tidegate.gateway.preflight import preflight
from tidegate.gateway.process_memory.accounting import MemoryAccounting
from tidegate.gateway.process_memory.allocator import trim
from tidegate.gateway.process_memory.memory_limit import MemoryLimit
from tidegate.gateway.process_memory.pressure import CHECK_SECONDS as PRESSURE_SECONDS
from tidegate.gateway.process_memory.pressure import MemoryPressure
from tidegate.gateway.recording import Recording
from tidegate.gateway.status import StatusService
from tidegate.http_client import HttpClient, Network
from tidegate.lifetimes import Descriptors, Ledger, Scope
from tidegate.log import Log
from tidegate.models import Models
from tidegate.security import Redactor, configure_logging
from tidegate.sessions import MaintenanceTask, Sessions, build_components
from tidegate.store import Store, audit, maintenance
from tidegate.web import Health, Server, create_app

_HANDOVER_SECONDS = 5.0  # in addition to the old gateway's own budget, to close everything but turns
_CLOSE_SHARE = 0.25  # of the budget, reserved for closing services if turns use up the rest
_TRIM_SECONDS = 10.0  # between two checks of the allocator's free memory: a check takes a few milliseconds
_PARKING_SECONDS = 1.0  # for turns to reach their next step when their time is up
_THREADS = 16  # worker threads for files and folders; more would only wait for the interpreter's lock
_HALF_BUILT_SECONDS = 5.0  # for closing the services that were opened before a start failed
_LEAST_SECONDS = 1.0  # for closing services, however late it is; each closes quickly unless it is stuck
_INTEGRITY_SECONDS = 6 * 3600.0  # between two full checks of the database, which read all of it
_INTEGRITY_WITHIN = 3600.0  # for one full check; each table has its own, shorter bound
_FILES_SECONDS = 15.0  # between two checks of the database files

Stage = Callable[[], Awaitable[None]]


class StartFailed(TidegateError):
    """Starting the gateway failed with an unexpected error."""


class Gateway:
    """One gateway. `fault` is called after each stage of startup, so that tests can make startup fail there."""

    def __init__(
        self,
        home: Path,
        *,
        port: int | None = None,
        replace: bool = False,
        record: Path | None = None,
        replay: Path | None = None,
        say: Callable[[str], None],
        fault: Callable[[str], None] | None = None,
        descriptors: Descriptors | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.home = home
        self._clock = clock
        self._descriptors = descriptors or Descriptors()
        self.address = ""
        self._port = port
        self._replace = replace
        self._recording = Recording(record, replay)
        self._say = say
        self._fault = fault
        self._asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._ledger = Ledger()
        self._scope = Scope("process", account=self._ledger.account("process"), on_error=self._task_failed)
        self._memory = MemoryAccounting(self._ledger, self._scope)
        self._log = Log("tidegate.gateway")
        self._undo_log: Callable[[], None] | None = None
        self._database_connections: Callable[[], int] = lambda: 0

    # -- start and stop --

    @property
    def stages(self) -> tuple[tuple[str, Stage], ...]:
        """The startup stages, in order."""
        return (
            ("home folder", self._open_home),
            ("configuration", self._read_config),
            ("lock", self._take_lock),
            ("socket", self._bind),
            ("log", self._open_log),
            ("store", self._open_store),
            ("key", self._ensure_key),
            ("models", self._open_models),
            ("plug-ins", self._open_plugins),
            ("sessions", self._open_sessions),
            ("web", self._open_web),
            ("maintenance", self._start_maintenance),
            ("control", self._open_control),
            ("welcome", self._welcome),
        )

    @property
    def budget(self) -> float:
        """The time limit for the whole stop, in seconds."""
        return self._config.limits.shutdown_seconds

    async def build(self) -> bool:
        """Opens every service. If one fails, closes those that are open and raises the error. Returns False if a stop
        is requested in the meantime."""
        for name, stage in self.stages:
            try:
                await stage()
                if self._fault is not None:
                    self._fault(name)
            except BaseException as error:
                await self._close_services()
                if isinstance(error, StoreDamaged) and error.__cause__ is not None:
                    path = self.home / home_folder.DATABASE_NAME
                    raise StoreDamaged(
                        f"The gateway cannot start because {path} is damaged ({error.__cause__}): keep the file for "
                        "repair, and put a backup in its place."
                    ) from error
                if isinstance(error, Exception) and not isinstance(error, TidegateError):
                    raise StartFailed(
                        f"The gateway failed to start in the stage {name!r} ({type(error).__name__}: {error}): "
                        f"run {command_hint(self.home, 'doctor')}."
                    ) from error
                raise
            if self._asked.is_set():
                await self._close_services()
                return False
        return True

    def ask_to_stop(self, *, hurry: bool = True) -> None:
        """Requests a graceful stop. After a second request, the gateway no longer waits for turns, unless `hurry` is
        false."""
        if self._asked.is_set() and hurry:
            self._hurry.set()
        self._asked.set()

    async def wait_for_stop(self) -> None:
        await self._asked.wait()

    async def close(self) -> None:
        """Accepts no more work, lets turns finish or parks them, then closes every service in reverse order, all within
        one budget."""
        self._descriptors.lift()
        deadline = time.monotonic() + self.budget
        turns = self.sessions.census()["turns_running"]
        self._log.info("stopping", within=self.budget, turns=turns)
        self._server.stop_intake()
        if turns and not self._hurry.is_set():
            # Nobody may be reading any more if the terminal was closed; the stop continues.
            with contextlib.suppress(OSError):
                self._say(
                    f"waiting for {turns} turn{'s' * (turns != 1)}; press Ctrl-C again to resume them after a restart"
                )
        share = self.budget * (1 - _CLOSE_SHARE)
        async with Scope("drain") as scope:
            drained = scope.start(self.sessions.drain, share - min(_PARKING_SECONDS, share / 2), name="drain")
            hurried = scope.start(self._hurry.wait, name="hurry")
            await asyncio.wait({drained, hurried}, return_when=asyncio.FIRST_COMPLETED, timeout=self.budget)
        if self._hurry.is_set():
            await self.sessions.drain(0)
            deadline = 0
        await self._close_services(max(_LEAST_SECONDS, deadline - time.monotonic()))

    async def _close_services(self, within: float = _HALF_BUILT_SECONDS) -> None:
        self._scope.close_within = within
        try:
            await self._scope.close()
        except BaseExceptionGroup as failures:
            for failure in failures.exceptions:
                self._log.error("closing failed", error=str(failure), exc_info=failure)
        finally:
            # The log is closed last because it reports failures to close other services.
            if self._undo_log is not None:
                self._undo_log()

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._log.error("task failed", task=name, error=str(error), exc_info=error)

    # -- the startup stages, in order --

    async def _open_home(self) -> None:
        to_thread.current_default_thread_limiter().total_tokens = _THREADS
        await to_thread.run_sync(home_folder.prepare, self.home)

    async def _read_config(self) -> None:
        examine = partial(preflight.examine, keyless=self._recording.replays)
        self._ready = await to_thread.run_sync(examine, self.home, os.environ)
        self._config = self._ready.config
        await to_thread.run_sync(self._recording.prepare, self._ready)

    async def _take_lock(self) -> None:
        self._lock, self._takeover = HomeLock(self.home), HomeLock(self.home, TAKEOVER_NAME)
        self._scope.on_close(self._release_lock, name="lock")
        self._scope.on_close(self._takeover.release, name="takeover")
        if not self._replace:
            if (other := await to_thread.run_sync(holder_of, self.home, TAKEOVER_NAME)) is not None:
                raise BeingTakenOver(self.home, other)
            await to_thread.run_sync(self._lock.take)
            return
        from tidegate.gateway.takeover import claim, take_over  # not needed by a plain start

        await to_thread.run_sync(claim, self.home, self._takeover)
        # The old gateway may use its whole budget. If this one is asked to stop in the meantime, it does not wait.
        within = self.budget + _HANDOVER_SECONDS
        await take_over(self.home, self._lock, within=within, say=self._say, given_up=self._asked.is_set)

    def _release_lock(self) -> None:
        """Releases the lock, unless the database could not be closed in time. The kernel then releases it when the
        process ends."""
        if not self._database_connections():
            self._lock.release()

    async def _bind(self) -> None:
        try:
            self._socket = await to_thread.run_sync(listen_address.bind, self._config.server, self._port)
        except Misconfigured as error:
            raise Misconfigured(preflight.with_path(self.home, error.message)) from None
        self._scope.on_close(self._socket.close, name="socket")
        self.address = listen_address.address_of(self._config.server, self._socket)
        self._lock.write_address(self.address)

    async def _open_log(self) -> None:
        self._redactor = Redactor()
        self._undo_log = configure_logging(self._config.log, self._redactor, sys.stderr)
        for warning in self._ready.warnings:
            self._say(f"WARNING {warning}")
        if (exposed := listen_address.warning(self._config.server, self._socket)) is not None:
            self._say(f"WARNING {exposed}")

    async def _open_store(self) -> None:
        limits, path = self._config.limits, self.home / home_folder.DATABASE_NAME
        if (lost := await to_thread.run_sync(home_folder.lost_database, self.home)) is not None:
            raise StoreDamaged(lost)
        self._fresh = not await to_thread.run_sync(path.exists)
        self.store = await self._scope.enter(
            Store.open(
                path,
                durability=self._config.store.durability,
                readers=limits.readers,
                snapshot_seconds=limits.snapshot_seconds,
                wal_bytes=limits.wal_bytes,
            )
        )

        self._database_connections = lambda: self.store.stats().connections
        self._memory.watch_store(self.store)
        if self.store.note is not None:
            self._say(f"WARNING {self.store.note}")

    async def _ensure_key(self) -> None:
        if (warning := await home_folder.ensure_key(self.store, self.home, fresh=self._fresh)) is not None:
            self._say(f"WARNING {warning}")
        await self.store.write(audit.append_configuration, show(self._config).encode(), time.time())
        self._lock.mark_used()

    async def _open_models(self) -> None:
        limits, secrets = self._config.limits, self._ready.secrets
        self._network = Network()
        if not self._recording.replays:  # a replay makes no connections, and the proxies' secrets may be missing
            self._network = Network(
                self._config.network, environment=os.environ, resolve=secrets.__getitem__, home=self._config.home
            )
        self._clients = await self._scope.enter(
            HttpClient(
                self._network,
                connections=limits.connections,
                per_host=limits.connections_per_host,
                keepalive=limits.connection_idle,
            )
        )
        self._memory.watch_clients(self._clients)
        if any(model.api != "demo" for model in self._config.models.values()):
            await to_thread.run_sync(self._clients.load)
        self._redactor.learn(*secrets.values())
        traffic = await self._recording.open(self._scope, self._clients, self._config, self._redactor, self._ledger)
        self._models = await self._scope.enter(
            Models(
                self._config.models,
                traffic,
                secrets.__getitem__,
                limits.answer_bytes,
                retry_policy=self._recording.patience,
                network=None if self._recording.replays else self._network,
            )
        )
        self._redactor.learn(*self._network.secrets)

    async def _open_plugins(self) -> None:
        self._plugins, self._tools = None, self._ready.tools
        if (found := self._ready.plugins) is None:
            return
        from tidegate.gateway.plugins import open_plugins  # not needed without plug-ins

        self._plugins, toolsets = await open_plugins(self._config, found, self._scope, self._ready.secrets)
        self._tools = self._tools.adding(toolsets)
        for name, agent in self._config.agents.items():
            self._tools.resolve(agent.tools, where=f"{self.home / FILE_NAME}: [agents.{name}] tools")

    async def _open_sessions(self) -> None:
        reference = self._config.web.search_key
        components = build_components(
            self._scope.child("sessions"),
            self.store,
            self._config,
            self._models,
            self._tools,
            environment=os.environ,
            search_key=None if reference is None else self._ready.secrets.get(reference),
            plugins=self._plugins,
            network=self._network,
            secrets=self._ready.secrets,
        )
        self._presence = components.presence
        self.sessions = Sessions(components)
        if components.web is not None:
            await self._scope.enter(components.web)
        resumed = await self.sessions.recover()
        if resumed:
            self._log.info("turns resumed", count=resumed)

    async def _open_web(self) -> None:
        self._health = Health(self.store, clock=self._clock)
        registry = slash_commands.build(self.sessions)
        app = create_app(
            service=self.sessions,
            commands=registry,
            store=self.store,
            config=self._config,
            redactor=self._redactor,
            health=self._health,
            status=lambda: self._status_service.status(memory=True),
            gauges=lambda: self._status_service.gauges(),
            descriptors=self._descriptors,
            terminal=await home_folder.key_digest(self.home),
        )
        self._server = Server(app, self._config, self._socket, descriptors=self._descriptors)
        self._health.add("connections", self._server.check)
        await self._server.start(self._scope)

    async def _start_maintenance(self) -> None:
        self._pressure = MemoryPressure(self._presence, MemoryLimit(self._config.limits.memory_bytes))
        maintenance_tasks = [
            *self.sessions.maintenance_tasks(),
            MaintenanceTask(name="trim", interval=_TRIM_SECONDS, run=_trim),
            MaintenanceTask(name="memory", interval=PRESSURE_SECONDS, run=self._pressure.check),
            MaintenanceTask(name="files", interval=_FILES_SECONDS, run=self._check_files, within=_INTEGRITY_WITHIN),
            MaintenanceTask(
                name="integrity", interval=_INTEGRITY_SECONDS, run=self.store.integrity, within=_INTEGRITY_WITHIN
            ),
        ]
        self._health.watch("lock", self._lock.complaint)
        if self._config.server.one_core:
            maintenance_tasks.append(await self._pin_to_core())
        self._maintenance = Maintenance(maintenance_tasks, beat=self._health.beat)
        for task in maintenance_tasks:
            self._health.expect(task.name, task.interval)
        scope = self._scope.child("maintenance")
        # Check now too, in the background, because the quick check at opening does not read every page.
        scope.start(self.store.integrity, name="integrity check")
        self._maintenance.start(scope)

    async def _pin_to_core(self) -> MaintenanceTask:
        affinity = CpuAffinity()
        self._scope.on_close(affinity.unpin, name="cores")

        async def check() -> None:
            await to_thread.run_sync(affinity.check)

        await check()
        return MaintenanceTask(name="core", interval=CHECK_SECONDS, run=check)

    async def _check_files(self) -> None:
        """Checks that the database file is still there. If another program has written to it, runs a full check
        immediately."""
        await self.store.write(maintenance.check_path)
        if self.store.touched:
            self._log.warning("another program has written to the database; checking it", path=str(self.store.path))
            await self.store.integrity()

    async def _open_control(self) -> None:
        self._status_service = StatusService(
            config=self._config,
            address=self.address,
            sessions=self.sessions,
            store=self.store,
            clients=self._clients,
            health=self._health,
            server=self._server,
            maintenance=self._maintenance,
            memory=self._memory,
            pressure=self._pressure,
            recording=self._recording,
            plugins=self._plugins,
            mcp=McpRequests(self.home, self.sessions.servers, self._redactor),
            stop=self.ask_to_stop,
        )
        await Control(self.home, self._status_service.verbs(), self._descriptors).open(self._scope.child("control"))
        # Everything allocated so far lives until the process exits, so exclude it from garbage collection.
        gc.collect()
        gc.freeze()
        self._memory.record_base()

    async def _welcome(self) -> None:
        self._takeover.release()
        for line in self._recording.lines(self._config):
            self._say(line)
        for line in start_message.lines(self._config, self.address, *await self._status_service.link()):
            self._say(line)


async def _trim() -> None:
    """Trims free memory in a thread. Trimming takes milliseconds, during which the interpreter's lock is not held."""
    await to_thread.run_sync(trim)
