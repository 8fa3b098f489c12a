"""All configured servers of the gateway, and what agents see of them.

The last listing of each server is stored, so a new conversation has the server's tools even while the server is down. A
new conversation waits only for servers that have never been listed, and only up to their `list_timeout`. A conversation
keeps the tools with which it started; if a tool has been removed, its calls return an error. Servers may be added,
changed and removed at any time. No server delays the start of the gateway, and a failing server does not affect the
others.

`McpServers` owns every running server. A server with scope `session` ends with its session; a server with scope
`principal` ends when it has been idle for long enough. The SDK is imported when the gateway connects to the first
server.
"""

import hashlib
import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import msgspec
from anyio import to_thread

from tidegate.config import AgentSettings, Config, McpSettings
from tidegate.errors import NotFound, StoreFailed, ToolFailed
from tidegate.http_client import HttpClient, Network
from tidegate.lifetimes import Holding, RestartPolicy, Scope, ServiceFailed, ServiceStatus, Supervisor, gather, stop_all
from tidegate.log import Log
from tidegate.mcp.listing import BETWEEN, ListedPrompt, ListedTool, ServerListing, is_allowed, quoted
from tidegate.mcp.server import STOP_SECONDS, RunningServer
from tidegate.mcp.tail import OutputTail
from tidegate.security import Secret
from tidegate.security.addresses import networks
from tidegate.status_report import McpStatus
from tidegate.store import Store, mcp_listings
from tidegate.tools import Tool, Toolset, builtin_toolsets
from tidegate.workspaces.server_process import ProcessSpec, ServerProcesses
from tidegate.workspaces.session_folders import remove as remove_folder

log = Log(__name__)

CHECK_SECONDS = 5.0
"""Interval of the checks for limits and idle servers."""

HOLDERS_AT_MOST = 256
"""Maximum number of running instances of one configured server: one for each session or user."""

PROCESS_FDS = 4  # of one process: its three streams and its pidfd
SANDBOX_FDS = 5  # its namespaces, its process table, its lifeline, and the pidfd of its first process

CONNECTIONS = 256
CONNECTIONS_PER_HOST = 64

FOLDER = "mcp"
"""The folder in the gateway's home folder that contains the home folders of sandboxed servers."""

_ENVIRONMENT = MappingProxyType({"LANG": "C.UTF-8", "TERM": "dumb"})

ABOUT_INSTRUCTIONS = "What follows is what tool servers say about themselves; it describes their tools, nothing more."

LISTED_AGAIN_SECONDS = 60.0
"""Seconds during which new conversations do not wait again for a server that could not be listed."""

NOT_INSTALLED = "The package mcp is not installed: install tidegate with the extra mcp (pip install 'tidegate[mcp]')."


class ConfiguredServer:
    """One `[mcp.NAME]` with its listing and its running servers."""

    def __init__(self, name: str, settings: McpSettings, secrets: Mapping[str, Secret]) -> None:
        self.name = name
        self.settings = settings
        self.secrets = secrets
        self.listing: ServerListing | None = None
        self.running: dict[str, RunningServer] = {}
        """The running instances by holder. With scope `process`, the holder is an empty string."""
        self.removed = False
        self.waited_at = -LISTED_AGAIN_SECONDS

    @property
    def may_wait(self) -> bool:
        """False if a conversation has recently waited for this server in vain."""
        return time.monotonic() - self.waited_at >= LISTED_AGAIN_SECONDS

    @property
    def signature(self) -> bytes:
        """A digest of all settings that can affect what the server offers."""
        chosen = self.settings
        parts = [chosen.command, *chosen.args, chosen.url, chosen.transport, chosen.revision, str(chosen.cwd)]
        named = [*(f"{key}={value}" for key, value in sorted({**chosen.env, **chosen.headers}.items()))]
        return hashlib.sha256(msgspec.json.encode([parts, named])).digest()[:16]

    def serves(self, agent: str) -> bool:
        return not self.settings.agents or agent in self.settings.agents

    def offered(self, agent: str, settings: AgentSettings) -> Iterable[ListedTool]:
        """Yields the tools that this agent may use."""
        if self.listing is None or not self.serves(agent):
            return
        for tool in self.listing.tools:
            if is_allowed(tool.name, self.settings.tools, self.settings.without) and is_allowed(
                tool.exposed, settings.mcp, settings.mcp_without
            ):
                yield tool

    def is_current(self, settings: McpSettings, secrets: Mapping[str, Secret]) -> bool:
        return self.settings == settings and self.secrets == secrets


class McpServers:
    name = "mcp"
    needs_tools = True

    def __init__(
        self,
        scope: Scope,
        store: Store,
        config: Config,
        processes: ServerProcesses,
        *,
        network: Network | None = None,
        secrets: Mapping[str, Secret] | None = None,
        clock: Callable[[], float] = time.time,
        policy: RestartPolicy | None = None,
    ) -> None:
        """`secrets` maps the references in the settings to their values. `policy` overrides the restart policy from the
        settings, for tests."""
        self._policy = policy
        self.generation = 0
        """Incremented with every change to what agents can see or do."""
        self._scope = scope.child("tool servers", close_within=STOP_SECONDS + 5)
        # Of its own, since a scope closes its children one after another.
        self._running_servers = Scope("running tool servers", close_within=STOP_SECONDS, on_error=_task_failed)
        self._store = store
        self._config = config
        self._processes = processes
        self._clients = HttpClient(network, connections=CONNECTIONS, per_host=CONNECTIONS_PER_HOST)
        self._is_started = False
        self._clock = clock
        self._root = config.home / FOLDER
        self._servers = {
            name: ConfiguredServer(name, settings, own_secrets(settings, secrets or {}))
            for name, settings in config.mcp.items()
        }
        self._composed: dict[
            tuple[str, bytes], Toolset
        ] = {}  # lint: allow one for each agent, cleared with each change
        self._instructions: dict[str, str] = {}  # lint: allow one for each agent, cleared with each change
        self._output: Toolset | None = None

    # -- lifetime --

    async def start(self) -> None:
        """Reads the stored listings, and starts the eager servers in the background. A second call does nothing."""
        if self._is_started:
            return
        self._is_started = True
        await self._scope.enter(self._clients)
        self._scope.on_close(self._stop_all, name="tool servers")  # before the connections are closed
        stored = await self._store.read(mcp_listings.all_of)
        for server in self._servers.values():
            self._adopt(server, stored)
        self._begin(self._servers.values())

    def _adopt(self, server: ConfiguredServer, stored: Mapping[str, tuple[bytes, bytes]]) -> None:
        found = stored.get(server.name)
        if found is not None and found[0] == server.signature:
            try:
                server.listing = msgspec.json.decode(found[1], type=ServerListing)
            except msgspec.DecodeError:
                log.warning("the stored tools of a server cannot be read", server=server.name)

    def _begin(self, servers: Iterable[ConfiguredServer]) -> None:
        for server in servers:
            if server.settings.start == "eager" or server.settings.profile == "strict":
                self._scope.start(self._try, server, name=f"start of {server.name}")

    async def _try(self, server: ConfiguredServer) -> None:
        """Starts a server, with several attempts, because its supervisor does not retry a failed first attempt."""
        policy = self._running(server, "").supervisor.policy
        for attempt in range(1, policy.attempts + 1):
            try:
                await self._running(server, "").supervisor.start()
                return
            except ServiceFailed as error:
                if server.settings.profile == "strict":
                    log.error("a required tool server is missing", server=server.name, error=str(error))
                elif server.settings.profile == "resilient":
                    log.warning("a tool server did not start", server=server.name, error=str(error))
                if error.is_permanent or policy.restart == "never":
                    return
            await anyio.sleep(policy.pause(attempt, 1))
            if server.removed:
                return

    async def apply(self, config: Mapping[str, McpSettings], secrets: Mapping[str, Secret]) -> dict[str, list[str]]:
        """Adds, changes and removes servers to match the configuration. Returns the names of the servers added, changed
        and removed."""
        wanted = {name: (settings, own_secrets(settings, secrets)) for name, settings in config.items()}
        gone = [server for name, server in self._servers.items() if name not in wanted]
        changed = [
            server for name, server in self._servers.items() if name in wanted and not server.is_current(*wanted[name])
        ]
        added = [name for name in wanted if name not in self._servers]
        fresh: list[ConfiguredServer] = []
        for server in (*gone, *changed):
            server.removed = True
            del self._servers[server.name]
        stored = await self._store.read(mcp_listings.all_of)
        for name in (*added, *(server.name for server in changed)):
            server = self._servers[name] = ConfiguredServer(name, *wanted[name])
            self._adopt(server, stored)
            fresh.append(server)
        self._raise_generation()
        await self._close(running for server in (*gone, *changed) for running in server.running.values())
        for server in gone:
            await self._store.write(mcp_listings.remove, server.name)
            await to_thread.run_sync(_remove_folders, self._root, server.name)
        self._begin(fresh)
        return {
            "added": sorted(added),
            "changed": sorted(server.name for server in changed),
            "removed": sorted(server.name for server in gone),
        }

    async def end_holder(self, holder: str) -> None:
        """Stops the servers of a session that has ended, and removes their folders."""
        ended = [
            (server, server.running.pop(holder))
            for server in self._servers.values()
            if server.settings.scope == "session" and holder in server.running
        ]
        await self._close(running for _, running in ended)
        for server, _ in ended:
            await to_thread.run_sync(_remove_folder, self._root / folder_name(server.name, holder))

    async def check(self) -> None:
        """Ends servers that exceed their limits, and stops idle servers."""
        idle: list[RunningServer] = []
        unused: list[RunningServer] = []
        for server in tuple(self._servers.values()):
            for holder, running in tuple(server.running.items()):
                try:
                    await running.check_limits()
                except Exception:
                    log.exception("checking a tool server failed; it is tried again", server=running.name)
                if server.settings.start == "on-demand" and running.is_idle(server.settings.idle_stop):
                    if holder:
                        unused.append(server.running.pop(holder))
                    elif running.status.state not in ("stopped", "failed"):
                        idle.append(running)
        await self._stop(idle)
        await self._close(unused)

    async def _stop(self, running: Iterable[RunningServer]) -> None:
        supervisors = [each.supervisor for each in running]
        try:
            await stop_all(supervisors, STOP_SECONDS)
        except BaseExceptionGroup as failures:
            for failure in failures.exceptions:
                log.error("a tool server could not be stopped", error=str(failure))

    async def _close(self, running: Iterable[RunningServer]) -> None:
        """Stops these servers permanently."""

        async def close(each: RunningServer) -> None:
            try:
                await each.close()
            except (Exception, BaseExceptionGroup) as error:
                log.error("a tool server could not be stopped", server=each.name, error=str(error))

        await gather([close(each) for each in running])

    async def _stop_all(self) -> None:
        """Stops all servers concurrently, within one time limit for all of them."""
        supervisors: list[Supervisor] = [
            running.supervisor for server in self._servers.values() for running in server.running.values()
        ]
        try:
            await stop_all(supervisors, STOP_SECONDS)
        finally:
            await self._running_servers.close()

    # -- running servers --

    def _running(self, server: ConfiguredServer, holder: str) -> RunningServer:
        if (known := server.running.get(holder)) is not None:
            return known
        if len(server.running) >= HOLDERS_AT_MOST:
            raise ToolFailed(f"{HOLDERS_AT_MOST} instances of the server {server.name!r} are already running.")
        name = server.name if not holder else f"{server.name}@{holder}"
        running = server.running[holder] = RunningServer(
            name,
            server.settings,
            self._running_servers.child(f"server {name}", close_within=STOP_SECONDS),
            partial(self._transport, server, holder),
            known_revision=lambda: "" if server.listing is None else server.listing.revision,
            on_listing=partial(self._listed, server),
            hidden=[secret.reveal() for secret in server.secrets.values()],
            policy=self._policy,
            clock=self._clock,
        )
        return running

    def _transport(
        self, server: ConfiguredServer, holder: str, scope: Scope, tail: OutputTail
    ) -> AbstractAsyncContextManager[Any]:
        from tidegate.mcp.transports import HttpTransport, StdioTransport  # they import the SDK

        settings, secrets = server.settings, server.secrets
        if settings.url:
            headers: dict[str, Secret | str] = {
                name: secrets.get(value, value) for name, value in settings.headers.items()
            }
            if settings.token is not None:
                headers["authorization"] = Secret(f"Bearer {secrets[settings.token].reveal()}")
            return HttpTransport(
                self._clients,
                settings.url,
                headers,
                sse=settings.transport == "sse",
                message_bytes=settings.message_bytes,
            )
        environment = {
            name: secrets[value].reveal() if value in secrets else value for name, value in settings.env.items()
        }
        spec = ProcessSpec(
            name=folder_name(server.name, holder),
            root=self._root,
            command=(settings.command, *settings.args),
            environment={**_ENVIRONMENT, **environment},
            folder=None if settings.cwd is None else self._config.path(settings.cwd),
            read_only=tuple(self._config.path(folder) for folder in settings.read_only),
            sandboxed=settings.sandbox,
            network=settings.network,
            reachable=networks(self._config.web.private),
            memory_bytes=settings.memory_bytes,
            processes=settings.processes,
        )
        return StdioTransport(self._processes, spec, scope, tail, message_bytes=settings.message_bytes)

    async def _listed(self, server: ConfiguredServer, listing: ServerListing) -> None:
        """Stores what a server offers."""
        if server.removed:
            return
        before, server.listing = server.listing, listing
        for warning in listing.warnings:
            if before is None or warning not in before.warnings:
                log.warning("a tool server offers something that cannot be used", server=server.name, warning=warning)
        if before is None or before.digest != listing.digest:
            self._raise_generation()
        if before is None or msgspec.structs.replace(before, at=listing.at) != listing:
            try:
                await self._store.write(
                    mcp_listings.put, server.name, server.signature, msgspec.json.encode(listing), listing.at
                )
            except StoreFailed as error:  # the server can be used all the same
                log.warning("the tools of a server cannot be stored", server=server.name, error=error.message)

    def _raise_generation(self) -> None:
        self.generation += 1
        self._composed.clear()
        self._instructions.clear()

    # -- what agents see --

    def serves(self, agent: str) -> bool:
        return True  # servers may be added at any time

    async def part(self, agent: str, principal: str) -> str:
        """Returns the instructions of an agent's servers as a part of the prompt. Waits for servers that have never
        been listed."""
        await self.prepare(agent, principal)
        if (known := self._instructions.get(agent)) is not None:
            return known
        parts = [
            "\n".join(quoted(server.name, server.listing.instructions))
            for server in self._ordered()
            if server.listing is not None and server.listing.instructions and server.serves(agent)
        ]
        text = "\n\n".join((ABOUT_INSTRUCTIONS, *parts)) if parts else ""
        self._instructions[agent] = text
        return text

    async def prepare(self, agent: str, principal: str) -> None:
        """Waits until every server of the agent has been listed at least once or has reached its time limit."""
        missing = [
            server for server in self._ordered() if server.listing is None and server.serves(agent) and server.may_wait
        ]
        if missing:
            await gather([self._first_listing(server, principal) for server in missing])
        for server in self._ordered():
            listing = server.listing
            if listing is not None and listing.ttl and listing.at + listing.ttl < self._clock():
                for running in server.running.values():
                    if running.connection is not None:
                        running.connection.refresh()

    async def _first_listing(self, server: ConfiguredServer, principal: str) -> None:
        server.waited_at = time.monotonic()
        holder = principal if server.settings.scope == "principal" else ""
        try:
            await self._running(server, holder).ready(server.settings.list_timeout)
        except (ServiceFailed, ToolFailed) as error:
            if server.settings.profile != "best-effort":
                log.warning("a tool server is not available", server=server.name, error=str(error))

    def toolset(self, agent: str, base: Toolset) -> Toolset:
        """Returns the tools for a new conversation with this agent."""
        key = (agent, base.digest)
        if (known := self._composed.get(key)) is None:
            known = self._composed[key] = self._compose(agent, base, self._offered(agent))
        return known

    def frozen_toolset(self, agent: str, base: Toolset, names: Iterable[str]) -> Toolset:
        """Returns the tools with which a conversation started. Calls to tools that have since been removed return an
        error."""
        offered = {tool.name: tool for tool in self._offered(agent)}
        wanted = [name for name in names if BETWEEN in name and base.get(name) is None]
        return self._compose(agent, base, [offered.get(name) or self._vanished(name) for name in wanted])

    def _compose(self, agent: str, base: Toolset, tools: Iterable[Tool]) -> Toolset:
        own = [tool for tool in tools if base.get(tool.name) is None]
        if not own:
            return base
        if self._output is None:
            self._output = Toolset.compose(*builtin_toolsets(("output",)).values())
        return Toolset.compose(base, Toolset(own), self._output)

    def _offered(self, agent: str) -> list[Tool]:
        from tidegate.mcp.server_tools import resource_tools, server_tool

        settings = self._config.agents.get(agent)
        found: list[Tool] = []
        if settings is None:
            return found
        for server in self._ordered():
            tools = [server_tool(self, server, tool) for tool in server.offered(agent, settings)]
            found += tools
            if server.listing is not None and server.listing.has_resources and server.serves(agent):
                taken = {tool.name for tool in tools}
                found += (
                    tool
                    for tool in resource_tools(self, server)
                    if tool.name not in taken and is_allowed(tool.name, settings.mcp, settings.mcp_without)
                )
        return found

    def _vanished(self, name: str) -> Tool:
        from tidegate.mcp.server_tools import vanished_tool

        return vanished_tool(name)

    def prompts(self, agent: str) -> list[tuple[str, ListedPrompt]]:
        """Returns the prompts of an agent's servers, each with the server's name."""
        return [
            (server.name, prompt)
            for server in self._ordered()
            if server.listing is not None and server.serves(agent)
            for prompt in server.listing.prompts
        ]

    def _ordered(self) -> list[ConfiguredServer]:
        return [self._servers[name] for name in sorted(self._servers)]

    async def prompt(
        self, agent: str, name: str, prompt: str, arguments: Mapping[str, str], *, session: str, principal: str
    ) -> str:
        """Returns the text of a prompt. Raises NotFound, or ToolFailed with the reason."""
        found = next((each for server, each in self.prompts(agent) if (server, each.name) == (name, prompt)), None)
        if found is None:
            raise NotFound(f"There is no prompt {f'{name}.{prompt}'[:100]!r}; /mcp lists those that exist.")
        missing = [each for each, _, required in found.arguments if required and each not in arguments]
        if missing:
            raise ToolFailed(f"The prompt {name}.{prompt} needs {', '.join(f'{each}=…' for each in missing)}.")
        from tidegate.mcp.server_tools import prompt_text

        server = self._named(name)
        running = self.of_holder(server, session=session, principal=principal)
        return await prompt_text(running, server.name, prompt, arguments)

    # -- for tools and commands --

    def configured(self, name: str) -> ConfiguredServer | None:
        return self._servers.get(name)

    def of_holder(self, server: ConfiguredServer, *, session: str, principal: str) -> RunningServer:
        """Returns the server instance for a conversation. The instance may not have been started yet."""
        holders = {"process": "", "session": session, "principal": principal}
        return self._running(server, holders[server.settings.scope])

    async def test(self, name: str) -> ServerListing:
        """Connects to a server if necessary, and returns what the server offers. Raises ServiceFailed."""
        server = self._named(name)
        running = self._running(server, "")
        await running.ready(server.settings.start_timeout)
        assert server.listing is not None, "a server that is ready has been listed"
        return server.listing

    async def restart(self, name: str) -> None:
        """Restarts all running instances of a server."""
        server = self._named(name)
        await gather([running.restart() for running in tuple(server.running.values()) or (self._running(server, ""),)])

    def logs(self, name: str) -> dict[str, list[str]]:
        """Returns the latest lines of a server's error output, by running instance."""
        return {running.name: list(running.tail.lines) for running in self._named(name).running.values()}

    def _named(self, name: str) -> ConfiguredServer:
        server = self._servers.get(name)
        if server is None:
            raise NotFound(f"There is no MCP server {name[:100]!r}; `tidegate mcp list` shows those that exist.")
        return server

    # -- for status and metrics --

    def measure(self) -> Iterator[tuple[str, Holding]]:
        """Yields the resources held by the servers' processes, for the ledger."""
        for server in self._servers.values():
            for holder, running in server.running.items():
                if running.process is not None:
                    owner = f"session {holder}" if server.settings.scope == "session" and holder else "process"
                    fds = PROCESS_FDS + (SANDBOX_FDS if server.settings.sandbox else 0)
                    yield owner, Holding(1, fds=fds, children=1 + server.settings.sandbox)

    def status(self) -> list[McpStatus]:
        return [self._status(server) for server in self._ordered()]

    def _status(self, server: ConfiguredServer) -> McpStatus:
        running = list(server.running.values())
        statuses = [each.status for each in running] or [ServiceStatus(name=server.name)]
        shown = min(statuses, key=lambda status: (_RANK[status.state], -status.since))
        pids = [each.process.pid for each in running if each.process is not None]
        listing = server.listing
        return McpStatus(
            name=server.name,
            transport=server.settings.transport if server.settings.url else "stdio",
            scope=server.settings.scope,
            state=shown.state,
            since=shown.since,
            restarts=sum(status.restarts for status in statuses),
            fault=shown.fault,
            error=shown.error,
            pid=next((pid for pid in pids if pid is not None), None),
            memory=sum(each.memory for each in running),
            revision="" if listing is None else listing.revision,
            server="" if listing is None else listing.server,
            tools=None if listing is None else len(listing.tools),
            running=sum(status.state == "ready" for status in statuses),
            calls=sum(each.calls for each in running),
            warnings=[] if listing is None else list(listing.warnings),
        )


def _task_failed(name: str, error: BaseException) -> None:
    log.error("a task of a tool server failed", task=name, error=str(error), exc_info=error)


_RANK: Mapping[str, int] = MappingProxyType({"failed": 0, "restarting": 1, "starting": 2, "ready": 3, "stopped": 4})


def own_secrets(settings: McpSettings, secrets: Mapping[str, Secret]) -> dict[str, Secret]:
    """Returns the secrets that these settings refer to."""
    named = (*settings.env.values(), *settings.headers.values(), settings.token or "")
    return {reference: secrets[reference] for reference in named if reference in secrets}


def folder_name(server: str, holder: str) -> str:
    if not holder:
        return server
    return f"{server}@{hashlib.sha256(holder.encode()).hexdigest()[:16]}"


def is_installed() -> bool:
    return importlib.util.find_spec("mcp") is not None


def _remove_folders(root: Path, server: str) -> None:
    for folder in (root / server, *root.glob(f"{server}@*")):
        _remove_folder(folder)


def _remove_folder(folder: Path) -> None:
    try:
        if folder.is_dir():
            remove_folder(folder)
    except OSError as error:
        log.warning("the folder of a tool server cannot be removed", folder=str(folder), error=str(error))
