"""The status service: collects the gateway's status for the control socket, the HTTP API and the metrics.

Every figure is read from its source when it is requested. This service neither counts nor stores anything.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate import __version__
from tidegate.config import Config
from tidegate.gateway import start_message
from tidegate.gateway.control import Verb
from tidegate.gateway.home import one_time_code
from tidegate.gateway.maintenance import Maintenance
from tidegate.gateway.mcp_requests import McpRequests
from tidegate.gateway.process_memory.accounting import MemoryAccounting, private_bytes
from tidegate.gateway.process_memory.pressure import MemoryPressure
from tidegate.gateway.recording import Recording
from tidegate.gateway.start_message import agent_models
from tidegate.http_client import ClientStats, HttpClient
from tidegate.sessions import Sessions
from tidegate.status_report import StatusReport
from tidegate.store import Store, StoreStats
from tidegate.web import Health, Server

if TYPE_CHECKING:
    from tidegate.plugins.host import Plugins


class GatewayStatus(StatusReport, frozen=True, omit_defaults=False):
    """A gateway's complete status."""

    store: StoreStats
    clients: ClientStats


class StatusService:
    """Reads the state of the other services and changes none of them. `stop` asks the gateway to stop."""

    def __init__(
        self,
        *,
        config: Config,
        address: str,
        sessions: Sessions,
        store: Store,
        clients: HttpClient,
        health: Health,
        server: Server,
        maintenance: Maintenance,
        memory: MemoryAccounting,
        pressure: MemoryPressure,
        recording: Recording,
        plugins: "Plugins | None",
        mcp: McpRequests,
        stop: Callable[..., None],
    ) -> None:
        self._config = config
        self._address = address
        self._sessions = sessions
        self._store = store
        self._clients = clients
        self._health = health
        self._server = server
        self._maintenance = maintenance
        self._memory = memory
        self._pressure = pressure
        self._recording = recording
        self._plugins = plugins
        self._mcp = mcp
        self._stop = stop
        self._since = time.time()

    def verbs(self) -> dict[str, Verb]:
        """Returns the handlers of the control socket's requests, by name."""
        return {
            "status": self._on_status,
            "stop": self._on_stop,
            "code": self._on_code,
            "check": self._on_check,
            "mcp": self._mcp.answer,
        }

    async def status(self, *, memory: bool = False) -> GatewayStatus:
        """Returns the complete status. If `memory` is true, the status includes a breakdown of memory use by kind and
        owner."""
        pressure = self._pressure.report()
        return GatewayStatus(
            version=__version__,
            pid=os.getpid(),
            home=str(self._config.home),
            address=self._address,
            uptime=round(time.time() - self._since, 3),
            demo=self._config.demo,
            agents=agent_models(self._config),
            **msgspec.structs.asdict(self._sessions.status()),
            census={**self._sessions.census(), "tasks": len(asyncio.all_tasks())},
            health=await self._health.check(),
            connections=self._server.report(),
            tape=self._recording.status(),
            plugins=[] if self._plugins is None else self._plugins.status(),
            chores=self._maintenance.report(),
            memory=self._memory.read(pressure) if memory else self._memory.figures(pressure),
            store=self._store.stats(),
            clients=self._clients.stats(),
        )

    def gauges(self) -> dict[str, float]:
        """Returns the process's own metrics."""
        pressure, connections = self._pressure.report(), msgspec.structs.asdict(self._server.report())
        return {
            "memory_private_bytes": float(private_bytes()),
            "memory_ceiling_bytes": float(pressure.ceiling),
            "memory_short": float(pressure.short),
            **{f"connections_{name}": float(value) for name, value in connections.items()},
        }

    async def link(self) -> tuple[str, float]:
        """Creates a one-time link to the chat page. Returns the link and its expiry time."""
        code, expires = await one_time_code(self._store)
        return start_message.link(self._address, code), expires

    async def _on_status(self, request: dict[str, Any]) -> GatewayStatus:
        return await self.status(memory=request.get("memory") is True)

    async def _on_stop(self, request: dict[str, Any]) -> dict[str, Any]:
        turns = self._sessions.census()["turns_running"]
        self._stop(hurry=request.get("hurry") is not False)
        return {
            "stopping": True,
            "pid": os.getpid(),
            "within": self._config.limits.shutdown_seconds,
            "turns": turns,
        }

    async def _on_code(self, _request: dict[str, Any]) -> dict[str, Any]:
        link, expires = await self.link()
        return {"link": link, "expires": expires}

    async def _on_check(self, _request: dict[str, Any]) -> dict[str, Any]:
        problems = list(await self._store.integrity())
        await self._health.check()  # detects a database file that was moved or replaced
        return {"problems": problems, "standing": self._store.stats().problems}
