"""What the gateway answers about itself: to the command line over the control socket, to owners over HTTP.

Guarantee: answers are read from the rooms at the moment of asking; nothing is counted twice or kept here.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate import __version__
from tidegate.config import Config
from tidegate.gateway import start_message
from tidegate.gateway.answering import agent_models
from tidegate.gateway.control import Verb
from tidegate.gateway.home import one_time_code
from tidegate.gateway.maintenance import Maintenance
from tidegate.gateway.memory.pressure import MemoryPressure
from tidegate.gateway.memory.report import MemoryReport, kernel_figures, private_bytes
from tidegate.gateway.recording import Recording
from tidegate.models import Clients
from tidegate.sessions import Sessions
from tidegate.store import Store
from tidegate.web import Health, Server


class StatusService:
    """Knows the rooms and changes none of them; `stop` is the house's own."""

    def __init__(
        self,
        *,
        config: Config,
        address: str,
        sessions: Sessions,
        store: Store,
        clients: Clients,
        health: Health,
        server: Server,
        maintenance: Maintenance,
        memory: MemoryReport,
        pressure: MemoryPressure,
        recording: Recording,
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
        self._stop = stop
        self._since = time.time()

    def verbs(self) -> dict[str, Verb]:
        """What may be asked over the control socket."""
        return {"status": self._on_status, "stop": self._on_stop, "code": self._on_code, "check": self._on_check}

    async def status(self, *, memory: bool = False) -> dict[str, Any]:
        """Everything, as JSON; `memory` adds who holds what."""
        figures = self._memory.read() if memory else kernel_figures()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "home": str(self._config.home),
            "address": self._address,
            "uptime": round(time.time() - self._since, 3),
            "demo": self._config.demo,
            "agents": _plain(agent_models(self._config)),
            **self._sessions.status(),
            "census": {**self._sessions.census(), "tasks": len(asyncio.all_tasks())},
            "health": _plain(await self._health.check()),
            "store": _plain(self._store.stats()),
            "connections": self._server.report(),
            "clients": _plain(self._clients.stats()),
            "tape": self._recording.status(),
            "chores": _plain(self._maintenance.report()),
            "memory": {**figures, **self._pressure.report()},
        }

    def gauges(self) -> dict[str, float]:
        """What the metrics show besides what the rooms tell."""
        return {
            "memory_private_bytes": float(private_bytes()),
            "memory_ceiling_bytes": float(self._pressure.ceiling),
            "memory_short": float(self._pressure.short),
            **{f"connections_{name}": float(value) for name, value in self._server.report().items()},
        }

    async def link(self) -> tuple[str, float]:
        """A new one-time link to the chat page, and when it expires."""
        code, expires = await one_time_code(self._store)
        return start_message.link(self._address, code), expires

    async def _on_status(self, request: dict[str, Any]) -> dict[str, Any]:
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
        await self._health.check()  # which sees whether the file is in its place
        return {"problems": problems, "standing": _plain(self._store.stats().problems)}


def _plain(value: Any) -> Any:
    """A value of a room as plain JSON data."""
    return msgspec.to_builtins(value)
