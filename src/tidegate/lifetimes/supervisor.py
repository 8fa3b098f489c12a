"""The supervisor: keeps one service running, such as a tool server, a plug-in or another connection that may break.

The service is reached through a `ServiceConnector`, whose `connect` returns a `ServiceConnection`. The supervisor owns
the connection and one task that watches it. When the connection ends, it reconnects according to its `RestartPolicy`,
with growing pauses, and gives up after a number of attempts.

Guarantee: there is at most one connection and at most one attempt to connect. `stop` returns when the task has ended
and the connection is closed, whatever state the service was in; a connection that is established too late is closed.
Permanent faults are not retried. The number of attempts is reset only after the service has been ready for a while, so
the supervisor also gives up on a service that crashes after every connect. Listeners are notified of each state change
once.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, Protocol

import anyio
import msgspec

from tidegate.lifetimes.concurrency import is_cancelled
from tidegate.lifetimes.scope import Scope, ScopeClosed
from tidegate.status_report import ServiceFault, ServiceState, ServiceStatus

_log = logging.getLogger(__name__)

PERMANENT: frozenset[ServiceFault] = frozenset({"capability-missing", "authorization-required"})
"""Faults that another attempt cannot fix."""

BEYOND_BUDGET = 30.0
"""Seconds that `restart` waits in addition to the pauses of all attempts, for the attempts themselves."""


class ServiceFailed(Exception):
    """The service cannot be used. `fault` is the kind of failure; the original error is the cause."""

    def __init__(self, message: str, fault: ServiceFault = "transport") -> None:
        super().__init__(message)
        self.fault = fault

    @property
    def is_permanent(self) -> bool:
        return self.fault in PERMANENT


class ServiceConnection(Protocol):
    async def wait(self) -> None:
        """Waits until the connection ends. Returns if it was closed properly; otherwise raises the error."""
        ...

    async def close(self) -> None:
        """Closes the connection and everything that belongs to it, such as a child process. May be called repeatedly,
        and also while `wait` is waiting."""
        ...


class ServiceConnector(Protocol):
    async def connect(self) -> ServiceConnection:
        """Opens a connection. If it raises or is cancelled, nothing is left open."""
        ...


class RestartPolicy(msgspec.Struct, frozen=True):
    """When and how often a service is reconnected. Times are in seconds."""

    restart: Literal["never", "on-failure", "always"] = "on-failure"
    attempts: int = 5
    first_pause: float = 1.0
    longest_pause: float = 32.0
    steady_after: float = 60.0
    """The number of attempts is reset after the service has been ready for this long."""
    start_within: float | None = None
    """How long `start` waits for the connection. The attempt itself continues, and the next `start` waits for the same
    attempt."""
    stop_within: float = 10.0
    """Time limit for closing a connection."""

    def pause(self, attempt: int, fraction: float) -> float:
        """Returns the pause before this attempt, counted from 1. The pause doubles with each attempt. `fraction` (from
        0 to 1) selects a value between half of the pause and all of it, so that services that failed at the same time
        do not reconnect at the same time."""
        doubled = self.first_pause * 2.0 ** min(attempt - 1, 32)
        return min(self.longest_pause, doubled) * (1 + fraction) / 2

    @property
    def budget(self) -> float:
        """The longest possible sum of the pauses before all attempts."""
        return sum(self.pause(attempt, 1) for attempt in range(1, self.attempts + 1))

    def allows_restart(self, error: ServiceFailed | None) -> bool:
        return self.restart == "always" or (self.restart == "on-failure" and error is not None)


class Supervisor:
    """One supervised service. `clock` provides the wall time for the status; `monotonic` and `sleep` are used for
    pauses."""

    def __init__(
        self,
        name: str,
        connector: ServiceConnector,
        scope: Scope,
        policy: RestartPolicy | None = None,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        self.policy = policy or RestartPolicy()
        self.status = ServiceStatus(name=name)
        self.connection: ServiceConnection | None = None
        """The connection while the service is ready, otherwise None."""
        self._connector = connector
        self._scope = scope
        self._clock = clock
        self._monotonic = monotonic or (lambda: asyncio.get_running_loop().time())
        self._sleep = sleep
        self._fraction = fraction
        self._listeners: list[Callable[[ServiceStatus], None]] = []  # lint: allow the users of one service
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._error: ServiceFailed | None = None
        self._close_failed: BaseException | None = None
        self._stopping = False
        self._restart_requested = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def state(self) -> ServiceState:
        return self.status.state

    def listen(self, listener: Callable[[ServiceStatus], None]) -> None:
        """Calls `listener` with the status after every state change."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Connects, unless the service is ready. If an attempt is already in progress, waits for it instead of starting
        another one. Raises ServiceFailed if the service does not become ready."""
        async with self._starting:
            while self._task is not None and (self._stopping or self.state == "failed"):
                await asyncio.wait({self._task})  # it is still closing the last connection
            if self._task is None:
                self._set("starting")
                self._task = self._scope.start(self._run, name=f"service {self.status.name}")
            elif self.state == "stopped":
                self._set("starting")  # the attempt was started by an earlier call that did not wait for it to finish
            if await self._until(lambda: self.state in ("ready", "failed", "stopped"), self.policy.start_within):
                self._raise_unless_ready()
                return
            error = ServiceFailed(
                f"{self.status.name} was not ready within {self.policy.start_within:g} s", "start-timeout"
            )
            if self.state == "starting":
                self._set("stopped", error)
            raise error

    async def restart(self, within: float | None = None) -> None:
        """Reconnects without a pause, and waits until the service is ready again. Raises ServiceFailed if the service
        was never started, is stopped in the meantime or fails, and TimeoutError if it takes longer than `within`
        seconds."""
        if self.state == "stopped" and self._task is None:
            raise ServiceFailed(f"{self.status.name} is not started", "not-started")
        if self.state in ("failed", "starting", "stopped"):
            await self.start()
            return
        before = self.status.restarts
        self._restart_requested.set()
        patience = self.policy.budget + BEYOND_BUDGET if within is None else within
        if not await self._until(
            lambda: self.state in ("failed", "stopped") or self.status.restarts > before, patience
        ):
            raise TimeoutError(f"{self.status.name} was not ready again within {patience:g} s")
        self._raise_unless_ready()

    async def stop(self, within: float | None = None) -> None:
        """Stops the service, whatever its state. All callers wait until the same stop has finished, each for up to
        `within` seconds; after that, TimeoutError is raised, and the service is still being stopped. If a connection
        could not be closed, its error is raised."""
        task = self._task
        if task is None:
            self._set("stopped")
            return
        if not self._stopping:
            self._stopping = True
            task.cancel()
        done, _ = await asyncio.wait({task}, timeout=within)
        if not done:
            raise TimeoutError(f"{self.status.name} was not stopped within {within:g} s")
        if self._close_failed is not None:
            raise self._close_failed

    # -- the task --

    async def _run(self) -> None:
        """The service's only task, from `start` until the service has stopped or failed."""
        self._error = self._close_failed = None
        end: ServiceState = "stopped"
        try:
            end = await self._supervise()
        except ScopeClosed:
            pass  # the service's owner is closing
        finally:
            self._task = None
            self._stopping = False
            self._set(end, self._error)

    async def _supervise(self) -> ServiceState:
        """Runs one connection after another. Returns the service's final state."""
        attempts = 0
        while True:
            held = self._scope.child(f"connection of {self.status.name}", close_within=self.policy.stop_within)
            try:
                ready_for = await self._serve(held)
                if self._stopping or not self._scope.open:
                    return "stopped"
                if ready_for is None and self.state != "restarting":
                    return "stopped"  # the first attempt has failed, and `start` raises its error
                if ready_for is not None and ready_for >= self.policy.steady_after:
                    attempts = 0
                if not self._may_restart(ready_for is not None, attempts):
                    self._set("failed", self._error)
                    return "failed"
                self._set("restarting", self._error)
            finally:
                await self._close(held)
            attempts += 1
            if await self._pause(attempts):
                attempts = 1

    async def _serve(self, held: Scope) -> float | None:
        """Connects, and waits until the connection ends or a restart is requested. `held` owns the connection. Returns
        how long the service was ready, or None if it did not become ready."""
        self._error = None
        try:
            connection = await held.enter(_Opened(self._connector))
        except ScopeClosed:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():
                raise
            self._error = _failure(error, "unavailable")
            return None
        if self._stopping:
            return None  # the connector has ignored its cancellation
        since = self._monotonic()
        self._restart_requested.clear()
        self.connection = connection
        self._set("ready")
        try:
            ended = held.start(_error_of, connection.wait, name="end of the connection")
            requested = held.start(self._restart_requested.wait, name="requested restart")
            await asyncio.wait({ended, requested}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.connection = None
        if ended.done() and not requested.done():
            self._error = self._error_at_end(ended)
        return self._monotonic() - since

    def _error_at_end(self, ended: asyncio.Task[BaseException | None]) -> ServiceFailed | None:
        if ended.cancelled():
            return ServiceFailed(f"{self.status.name}: waiting for its end was cancelled", "crashed")
        error = ended.result()
        return None if error is None else _failure(error, "crashed")

    def _may_restart(self, was_ready: bool, attempts: int) -> bool:
        if self._error is not None and self._error.is_permanent:
            return False
        if self._restart_requested.is_set():
            return True
        if was_ready and not self.policy.allows_restart(self._error):
            self._error = self._error or ServiceFailed(f"{self.status.name} has closed the connection")
            return False
        return attempts < self.policy.attempts

    async def _pause(self, attempt: int) -> bool:
        """Pauses before an attempt. Returns True if the pause was cut short by a requested restart."""
        if not self._restart_requested.is_set():
            async with self._scope.child(f"pause of {self.status.name}") as pausing:
                over = pausing.start(_awaited, self._sleep(self.policy.pause(attempt, self._fraction())), name="pause")
                requested = pausing.start(self._restart_requested.wait, name="requested restart")
                await asyncio.wait({over, requested}, return_when=asyncio.FIRST_COMPLETED)
        requested_now = self._restart_requested.is_set()
        self._restart_requested.clear()
        return requested_now

    async def _close(self, held: Scope) -> None:
        try:
            await held.close()
        except BaseExceptionGroup as failures:
            if self._stopping:
                self._close_failed = failures
            else:
                _log.error("%s could not be closed", held.path, exc_info=failures)

    # -- state --

    def _set(self, state: ServiceState, error: ServiceFailed | None = None) -> None:
        before = self.status
        if state == before.state and error is None:
            return
        self.status = ServiceStatus(
            name=before.name,
            state=state,
            since=before.since if state == before.state else self._clock(),
            restarts=before.restarts + (state == "ready" and before.state == "restarting"),
            fault=before.fault if error is None else error.fault,
            error=before.error if error is None else str(error),
        )
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in self._listeners if state != before.state else ():
            try:
                listener(self.status)
            except Exception:
                _log.exception("a listener of %s failed", before.name)

    async def _until(self, reached: Callable[[], bool], within: float | None) -> bool:
        """Waits until the state satisfies `reached`. Returns False if that takes longer than `within` seconds."""
        with anyio.move_on_after(within):
            while not reached():
                await self._changed.wait()
            return True
        return False

    def _raise_unless_ready(self) -> None:
        if self.state != "ready":
            raise self._error or ServiceFailed(f"{self.status.name} was stopped", "not-started")


class _Opened:
    """A connector's connection, as a context manager."""

    def __init__(self, connector: ServiceConnector) -> None:
        self._connector = connector
        self._connection: ServiceConnection | None = None

    async def __aenter__(self) -> ServiceConnection:
        self._connection = await self._connector.connect()
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        if self._connection is not None:
            await self._connection.close()


async def stop_all(supervisors: Iterable[Supervisor], within: float) -> None:
    """Stops these services concurrently, whether or not they were started. Raises all errors as one group; if one
    service fails, the others are still stopped."""
    errors: list[BaseException] = []  # lint: allow one for each supervisor

    async def stop(supervisor: Supervisor) -> None:
        try:
            await supervisor.stop(within)
        except (Exception, BaseExceptionGroup) as error:
            errors.append(error)

    async with anyio.create_task_group() as group:
        for supervisor in supervisors:
            group.start_soon(stop, supervisor)
    if errors:
        raise BaseExceptionGroup("stopping services", errors)


def _failure(error: BaseException, fault: ServiceFault) -> ServiceFailed:
    if isinstance(error, ServiceFailed):
        return error
    failed = ServiceFailed(str(error) or type(error).__name__, fault)
    failed.__cause__ = error
    return failed


async def _error_of(wait: Callable[[], Awaitable[None]]) -> BaseException | None:
    try:
        await wait()
    except asyncio.CancelledError:
        raise
    except Exception as error:  # whatever ends the connection is its error
        return error
    return None


async def _awaited(waiting: Awaitable[object]) -> None:
    await waiting
