"""Tool servers over real processes: `open_servers` gives an `McpServers` with a real store and real sandboxes."""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio

from tests.workspaces.harness import WorkspaceHarness, open_workspaces
from tidegate.config import AgentSettings, Config, McpSettings, ModelSettings
from tidegate.lifetimes import RestartPolicy, Scope
from tidegate.mcp import McpServers
from tidegate.security import Secret
from tidegate.tools import Result, ToolContext, Toolset

WAIT = 30
"""Seconds before a waiting test gives up; no test asserts how long anything took."""

BAD_SERVER = Path(__file__).with_name("bad_server.py")
PYTHON = "/usr/bin/python3"
"""The interpreter of the system, which sandboxes show."""


def bad_server(sandbox: bool = False, **options: Any) -> McpSettings:
    """The settings of the misbehaving server. `options` that are settings are settings; the others are its own."""
    names = McpSettings.__struct_fields__
    settings = {name: options.pop(name) for name in list(options) if name in names}
    chosen = {"sandbox": sandbox, "network": False, "call_timeout": WAIT, "list_timeout": WAIT, **settings}
    text = BAD_SERVER.read_text()
    return McpSettings(command=PYTHON, args=("-c", text, json.dumps(options)), **chosen)


class ServerHarness:
    def __init__(self, servers: McpServers, workspaces: WorkspaceHarness, scope: Scope, config: Config) -> None:
        self.servers = servers
        self.workspaces = workspaces
        self.scope = scope
        self.config = config
        self.progress: list[str] = []
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.answers: list[str] = []

    def toolset(self, agent: str = "main") -> Toolset:
        return self.servers.toolset(agent, Toolset())

    async def call(self, name: str, session: str = "s_1", principal: str = "p_1", /, **arguments: Any) -> Result:
        """Calls a tool as an agent does. Raises ToolFailed."""
        tool = self.toolset().get(name)
        assert tool is not None, f"there is no tool {name}; there are {self.toolset().names}"
        return await self.run(tool.run, session, principal, arguments)

    async def run(self, run: Any, session: str, principal: str, arguments: Mapping[str, Any]) -> Result:
        returned = await run(self.context(session, principal), json.dumps(arguments))
        return returned if isinstance(returned, Result) else Result(text=returned)

    def context(self, session: str = "s_1", principal: str = "p_1") -> ToolContext:
        return ToolContext(
            session=session,
            principal=principal,
            channel="http",
            agent="main",
            turn="t_1",
            workspace=self.workspaces.of(session),
            spool=self.workspaces.spool.of(session, "t_1"),
            progress=self.progress.append,
            ask=self._ask,
        )

    async def _ask(self, question: str, choices: Any) -> str:
        self.asked.append((question, tuple(choices)))
        return self.answers.pop(0)

    async def ready(self, *names: str) -> None:
        """Waits until these servers are listed and ready."""
        for name in names:
            with anyio.fail_after(WAIT):
                await self.servers.test(name)

    def state(self, name: str) -> Any:
        return next(status for status in self.servers.status() if status.name == name)

    async def until(self, condition: Callable[[], Any]) -> None:
        with anyio.fail_after(WAIT):
            while not condition():
                await anyio.sleep(0.01)


@contextlib.asynccontextmanager
async def open_servers(
    home: Path,
    servers: Mapping[str, McpSettings],
    *,
    agents: Mapping[str, AgentSettings] | None = None,
    secrets: Mapping[str, Secret] | None = None,
    clock: Callable[[], float] = time.time,
    policy: RestartPolicy | None = None,
) -> AsyncIterator[ServerHarness]:
    async with open_workspaces(home) as workspaces:
        config = Config(
            home=home,
            models={"main": ModelSettings(api="demo")},
            agents=agents or {"main": AgentSettings()},
            mcp=servers,
        )
        async with Scope("servers") as scope:
            opened = McpServers(
                scope,
                workspaces.store,
                config,
                workspaces.workspaces.servers,
                secrets=secrets,
                clock=clock,
                policy=policy,
            )
            await opened.start()
            yield ServerHarness(opened, workspaces, scope, config)
