"""One running server: its supervisor, its connection, and the requests that tools make.

A server starts when it is first needed, or with the gateway. If a server is not ready, a request waits for up to
`list_timeout`. While a server keeps failing, only one request every `RETRY_SECONDS` tries to start it, and all others
fail immediately with the reason. One time limit covers the wait, the call and at most one retry. A request is retried
only if it was not sent or if the tool is repeatable. A request that takes too long is cancelled, but the connection
stays open.

The modules that need the SDK are imported with the first connection, in a thread.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
from anyio import to_thread

from tidegate.config import McpSettings
from tidegate.errors import ToolFailed
from tidegate.lifetimes import RestartPolicy, Scope, ServiceFailed, ServiceStatus, Supervisor
from tidegate.log import Log
from tidegate.mcp.errors import CallFailed, ConnectionLost, CutShort, NotSent
from tidegate.mcp.listing import ServerListing, shortened
from tidegate.mcp.tail import OutputTail

if TYPE_CHECKING:
    from tidegate.mcp.connection import McpConnection
    from tidegate.workspaces.server_process import ServerProcess

T = TypeVar("T")

log = Log(__name__)

RETRY_SECONDS = 5.0
"""Number of seconds after a failure during which requests fail immediately instead of trying to start the server."""

RETRY_PERMANENT_SECONDS = 60.0
"""The same for failures that another attempt cannot fix, such as missing authorisation."""

_NOTICE_SECONDS = 0.02

STOP_SECONDS = 15.0
"""Time limit for stopping one server. Its processes are killed well before this limit."""


class Transports(Protocol):
    """The interface for opening transports, provided by the servers' owner."""

    def transport(self, scope: Scope, tail: OutputTail) -> AbstractAsyncContextManager[Any]: ...


def policy_of(settings: McpSettings) -> RestartPolicy:
    restart = settings.restart
    if restart is None:
        restart = "on-failure" if settings.profile == "resilient" else "never"
        if restart == "on-failure" and settings.url:
            restart = "always"  # idle connections are closed properly
    return RestartPolicy(restart=restart, stop_within=STOP_SECONDS)


class RunningServer:
    """One server for one holder: for everybody, a conversation or a user. `used` is the time of the last use. The
    server owns `scope`. The secrets in `hidden` are removed from the error output."""

    def __init__(
        self,
        name: str,
        settings: McpSettings,
        scope: Scope,
        transport: Callable[[Scope, OutputTail], AbstractAsyncContextManager[Any]],
        *,
        known_revision: Callable[[], str],
        on_listing: Callable[[ServerListing], Awaitable[None]],
        hidden: Iterable[str] = (),
        policy: RestartPolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.tail = OutputTail(hidden=hidden)
        self.used = time.monotonic()
        self.calls = 0
        self.memory = 0
        self._settings = settings
        self._scope = scope
        self._transport = transport
        self._known_revision = known_revision
        self._on_listing = on_listing
        self._clock = clock
        self._active = 0
        self._failed_at = -RETRY_PERMANENT_SECONDS
        self.supervisor = Supervisor(name, self, scope, policy or policy_of(settings), clock=clock)
        self.supervisor.listen(self._changed)

    # -- as the supervisor's connector --

    async def connect(self) -> "McpConnection":
        connection_module = await to_thread.run_sync(import_module, "tidegate.mcp.connection")
        connection: McpConnection = connection_module.McpConnection(
            self.name.partition("@")[0],
            self._transport(self._scope, self.tail),
            self._scope,
            revision=self._settings.revision,
            known=self._known_revision(),
            clock=self._clock,
            on_listing=self._on_listing,
        )
        await connection.open(self._settings.start_timeout)
        return connection

    def _changed(self, status: ServiceStatus) -> None:
        if status.state == "failed":
            self._failed_at = time.monotonic()
            log.warning("a tool server has failed", server=self.name, fault=status.fault, error=status.error)

    # -- state --

    @property
    def status(self) -> ServiceStatus:
        return self.supervisor.status

    @property
    def connection(self) -> "McpConnection | None":
        connection: Any = self.supervisor.connection
        return connection if connection is not None and connection.is_open else None

    @property
    def process(self) -> "ServerProcess | None":
        streams = None if self.connection is None else self.connection.streams
        return getattr(streams, "process", None)

    def is_idle(self, seconds: float) -> bool:
        """True if the server has not been used for this many seconds."""
        return not self._active and seconds > 0 and time.monotonic() - self.used >= seconds

    async def check_limits(self) -> None:
        if (process := self.process) is not None:
            self.memory = (await process.check_limits()).memory_bytes
        else:
            self.memory = 0

    # -- lifetime --

    async def ready(self, within: float) -> "McpConnection":
        """Returns the connection. If necessary, starts the server or waits up to `within` seconds until it is ready.
        Raises ServiceFailed."""
        try:
            with anyio.fail_after(within):
                while (connection := self.connection) is None:
                    self._check_pause()
                    if self.supervisor.state == "ready":  # it has just ended, and the supervisor has yet to notice
                        await asyncio.sleep(_NOTICE_SECONDS)
                    else:
                        await self._start()
                return connection
        except TimeoutError:
            self._failed_at = time.monotonic()
            raise ServiceFailed(f"The server was not ready within {within:g} s.", "start-timeout") from None

    async def _start(self) -> None:
        try:
            await self.supervisor.start()
        except ServiceFailed:
            self._failed_at = time.monotonic()
            raise

    def _check_pause(self) -> None:
        """Raises ServiceFailed if the server failed so recently that it must not be started again yet."""
        status = self.status
        pause = RETRY_PERMANENT_SECONDS if status.fault == "authorization-required" else RETRY_SECONDS
        if status.state in ("stopped", "failed") and time.monotonic() - self._failed_at < pause:
            raise ServiceFailed(status.error or "The server has failed.", status.fault or "unavailable")

    async def restart(self) -> None:
        self._failed_at = -RETRY_PERMANENT_SECONDS
        await self.supervisor.restart(self._settings.start_timeout + 1)

    async def stop(self) -> None:
        await self.supervisor.stop(STOP_SECONDS)

    async def close(self) -> None:
        """Stops the server permanently."""
        try:
            await self.stop()
        finally:
            await self._scope.close()

    # -- requests --

    async def request(
        self,
        make: "Callable[[McpConnection, RequestLimit], Awaitable[T]]",
        what: str,
        *,
        repeatable: bool,
    ) -> T:
        """Makes one request within the server's time limit. Raises ToolFailed with a sentence for the model."""
        limit = RequestLimit(self._settings.call_timeout)
        self._active += 1
        self.calls += 1
        try:
            with limit.scope:
                for attempt in range(2):
                    connection: McpConnection | None = None
                    try:
                        connection = await self.ready(self._settings.list_timeout)
                        return await make(connection, limit)
                    except NotSent as error:
                        if attempt:
                            raise ToolFailed(f"{what}: {error}") from None
                    except ConnectionLost as error:
                        if attempt or not repeatable:
                            reason = str(error) if connection is None else await connection.reason() or str(error)
                            raise CutShort(f"{what}: the server ended during the call. {_bounded(reason)}") from None
                    except CallFailed as error:
                        raise ToolFailed(f"{what}: {_bounded(str(error))}") from None
                    except ServiceFailed as error:
                        raise ToolFailed(
                            f"{what}: the server {self.name!r} is not available: {_bounded(str(error))}"
                        ) from None
            if limit.failure is not None:
                raise limit.failure
            raise CutShort(f"{what}: the server did not answer within {self._settings.call_timeout:g} s.")
        finally:
            self._active -= 1
            self.used = time.monotonic()


class RequestLimit:
    """The time limit of one request. The time during which a user is being asked does not count."""

    def __init__(self, seconds: float) -> None:
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + seconds)
        self.failure: BaseException | None = None

    async def paused(self, waiting: Callable[[], Awaitable[T]]) -> T:
        """Waits for a user's answer. If that fails, the request fails with the same error, in the task that made it."""
        left = self.scope.deadline - anyio.current_time()
        self.scope.deadline = float("inf")
        try:
            return await waiting()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.failure = error
            self.scope.cancel()
            raise
        finally:
            self.scope.deadline = anyio.current_time() + left


def _bounded(text: str) -> str:
    return shortened(text, 2000)


def without_nulls(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments without null values, which models send in place of omitted arguments."""
    return {name: value for name, value in arguments.items() if value is not None}
