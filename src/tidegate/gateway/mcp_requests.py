"""The control socket's requests about MCP servers: their status, logs, tests, restarts, and new settings.

`apply` reads the configuration file again and changes the running servers accordingly, without a restart of the
gateway. All other settings in the file take effect at the next start.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from anyio import to_thread

from tidegate.config import Config
from tidegate.errors import Misconfigured, TidegateError
from tidegate.gateway.preflight import PreflightFailed, preflight
from tidegate.lifetimes import ServiceFailed
from tidegate.mcp import NOT_INSTALLED, McpServers, is_installed
from tidegate.security import Redactor, Secret

LOG_LINES = 200


class McpRequests:
    """Answers requests of the form {"do": "mcp", "what": "list", "name": "time"}."""

    def __init__(self, home: Path, servers: McpServers, redactor: Redactor) -> None:
        self._home = home
        self._servers = servers
        self._redactor = redactor
        self._answers: Mapping[str, Callable[[str], Awaitable[dict[str, Any]]]] = MappingProxyType(
            {
                "list": self._list,
                "test": self._test,
                "logs": self._logs,
                "restart": self._restart,
                "apply": self._apply,
            }
        )

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self._answers.get(str(request.get("what")))
        if answer is None:
            raise Misconfigured(f"Unknown request; this gateway knows: {', '.join(sorted(self._answers))}.")
        try:
            return await answer(str(request.get("name", "")))
        except ServiceFailed as error:
            raise TidegateError(f"The server failed ({error.fault}): {error}") from None

    async def _list(self, _name: str) -> dict[str, Any]:
        return {"servers": [msgspec.to_builtins(status) for status in self._servers.status()]}

    async def _test(self, name: str) -> dict[str, Any]:
        listing = await self._servers.test(name)
        return {
            "server": listing.server,
            "revision": listing.revision,
            "tools": [
                {"name": tool.exposed, "description": tool.description, "read_only": tool.read_only}
                for tool in listing.tools
            ],
            "prompts": [prompt.name for prompt in listing.prompts],
            "resources": listing.has_resources,
            "warnings": list(listing.warnings),
        }

    async def _logs(self, name: str) -> dict[str, Any]:
        logs = self._servers.logs(name)
        return {"logs": {server: [self._redactor.text(line) for line in lines] for server, lines in logs.items()}}

    async def _restart(self, name: str) -> dict[str, Any]:
        await self._servers.restart(name)
        return {"restarted": name}

    async def _apply(self, _name: str) -> dict[str, Any]:
        config, secrets = await to_thread.run_sync(self._read)
        self._redactor.learn(*secrets.values())
        return await self._servers.apply(config.mcp, secrets)

    def _read(self) -> tuple[Config, dict[str, Secret]]:
        config = preflight.settings(self._home)
        if config.mcp and not is_installed():
            raise Misconfigured(NOT_INSTALLED)
        errors, secrets = preflight.mcp_secrets(config, os.environ)
        if errors:
            raise PreflightFailed(tuple(preflight.with_path(self._home, error) for error in errors), config)
        return config, secrets
