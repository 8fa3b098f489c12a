"""The servers' tools, as agents call them.

A tool looks up its server for each call, so conversations keep working when a server is restarted or reconfigured. If a
tool has been removed or is no longer marked as read-only, the call returns an error that says what to do.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from tidegate.errors import ToolFailed
from tidegate.mcp.elicitation import ask_form, ask_page
from tidegate.mcp.errors import CutShort
from tidegate.mcp.listing import BETWEEN, ListedTool, one_line, server_of, shortened
from tidegate.mcp.server import RequestLimit, RunningServer, without_nulls
from tidegate.tools import Effect, Result, Tool, ToolContext
from tidegate.values import ToolDefinition

if TYPE_CHECKING:
    from mcp_types import ElicitRequestParams, ElicitResult

    from tidegate.mcp.servers import ConfiguredServer, McpServers

LIST_RESOURCES, READ_RESOURCE = "list_resources", "read_resource"

PROGRESS_CHARACTERS = 200
PROMPT_CHARACTERS = 100_000
"""Maximum number of characters in one message of a prompt."""

UNKNOWN_EFFECT = "Its effect is unknown; check it before you repeat the call."


def server_tool(servers: "McpServers", server: "ConfiguredServer", listed: ListedTool) -> Tool:
    async def run(ctx: ToolContext, text: str) -> str | Result:
        return await _call(servers, listed, ctx, text)

    return Tool(
        definition=ToolDefinition(name=listed.exposed, description=listed.description, parameters=listed.parameters),
        effect="read" if listed.read_only else _effect(server),
        run=run,
        parallel=listed.read_only,
        repeatable=listed.idempotent,
        timeout=None,
        long_results=True,
        contained=server.settings.approve == "never",
        asks=server.settings.approve == "always",
        owner=f"the MCP server {server.name!r}",
    )


def resource_tools(servers: "McpServers", server: "ConfiguredServer") -> tuple[Tool, Tool]:
    """Returns the tools for finding and reading a server's resources."""

    async def list_them(ctx: ToolContext, text: str) -> str | Result:
        cursor = _arguments(LIST_RESOURCES, text).get("cursor")
        return await _list_resources(servers, server.name, ctx, cursor if isinstance(cursor, str) else None)

    async def read(ctx: ToolContext, text: str) -> str | Result:
        uri = _arguments(READ_RESOURCE, text).get("uri")
        if not isinstance(uri, str) or not uri:
            raise ToolFailed('The argument "uri" is missing.')
        return await _read_resource(servers, server.name, ctx, uri)

    def tool(name: str, description: str, schema: bytes, run: Any) -> Tool:
        return Tool(
            definition=ToolDefinition(
                name=f"{server.name}{BETWEEN}{name}", description=description, parameters=msgspec.Raw(schema)
            ),
            effect="read",
            run=run,
            parallel=True,
            repeatable=True,
            timeout=None,
            long_results=True,
            asks=server.settings.approve == "always",
            owner=f"the MCP server {server.name!r}",
        )

    return (
        tool(
            LIST_RESOURCES,
            f"Lists the resources of the server {server.name}.",
            b'{"type":"object","properties":{"cursor":{"type":"string","description":"Where to continue."}}}',
            list_them,
        ),
        tool(
            READ_RESOURCE,
            f"Reads a resource of the server {server.name}.",
            b'{"type":"object","properties":{"uri":{"type":"string"}},"required":["uri"]}',
            read,
        ),
    )


def vanished_tool(name: str) -> Tool:
    """Returns a stand-in for a tool that a conversation still has but that its server or its agent no longer offers."""

    async def run(ctx: ToolContext, text: str) -> str:
        raise ToolFailed(_gone(name))

    return Tool(
        definition=ToolDefinition(name=name, description=""),
        effect="read",
        run=run,
        repeatable=True,
        owner=f"the MCP server {server_of(name)!r}",
    )


def _gone(name: str) -> str:
    return (
        f"The tool {name!r} no longer exists: its server {server_of(name)!r} does not offer it to this agent any more. "
        "/reload gives this conversation the current tools."
    )


def _effect(server: "ConfiguredServer") -> Effect:
    """Returns the effect of the server's tools: `execute` if the server runs on this machine without a sandbox and its
    calls may need approval, otherwise `network`."""
    settings = server.settings
    is_here = bool(settings.command) and not settings.sandbox and settings.approve != "never"
    return "execute" if is_here else "network"


def _arguments(name: str, text: str) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(text if text.strip() else "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ToolFailed(f"{name}: the arguments are not a valid JSON object")
    return without_nulls(arguments)


class Asker:
    """Passes the server's questions and progress to the user on whose behalf the call was made."""

    def __init__(self, ctx: ToolContext, server: str, limit: RequestLimit) -> None:
        self._ctx = ctx
        self._server = server
        self._limit = limit

    async def answer(self, params: "ElicitRequestParams") -> "ElicitResult":
        import mcp_types

        async def ask() -> "ElicitResult":
            content: Any = None
            if isinstance(params, mcp_types.ElicitRequestURLParams):
                action = await ask_page(self._ctx.ask, self._server, params.message, params.url)
            else:
                schema = params.requested_schema
                action, content = await ask_form(self._ctx.ask, self._server, params.message, schema)
            return mcp_types.ElicitResult.model_validate({"action": action, "content": content})

        return await self._limit.paused(ask)

    async def progressed(self, progress: float, total: float | None, message: str | None) -> None:
        amount = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
        self._ctx.progress(f"{amount}{f' {one_line(message, PROGRESS_CHARACTERS)}' if message else ''}\n")


async def _call(servers: "McpServers", listed: ListedTool, ctx: ToolContext, text: str) -> Result:
    arguments = _arguments(listed.exposed, text)
    server = servers.configured(server_of(listed.exposed))
    current = None if server is None or server.listing is None else server.listing.tool(listed.name)
    if server is None or current is None:
        raise ToolFailed(_gone(listed.exposed))
    if listed.read_only and not current.read_only:
        raise ToolFailed(
            f"The server says that {listed.exposed!r} is no longer read-only, so it was not called. /reload gives this "
            "conversation the current tools."
        )
    running = servers.of_holder(server, session=ctx.session, principal=ctx.principal)
    _contact(server, ctx)
    try:
        found = await running.request(
            lambda connection, limit: connection.call_tool(listed.name, arguments, Asker(ctx, server.name, limit)),
            listed.exposed,
            repeatable=listed.idempotent,
        )
    except CutShort as error:
        raise ToolFailed(error.message if listed.read_only else f"{error.message} {UNKNOWN_EFFECT}") from None
    from tidegate.mcp.results import converted  # it imports the SDK

    return await converted(ctx, listed.exposed, found)


def _contact(server: "ConfiguredServer", ctx: ToolContext) -> None:
    if server.settings.url:
        ctx.contacts(urlsplit(server.settings.url).hostname or "")


async def _list_resources(servers: "McpServers", name: str, ctx: ToolContext, cursor: str | None) -> str:
    server = servers.configured(name)
    if server is None:
        raise ToolFailed(_gone(f"{name}{BETWEEN}{LIST_RESOURCES}"))
    running = servers.of_holder(server, session=ctx.session, principal=ctx.principal)
    _contact(server, ctx)
    page = await running.request(
        lambda connection, limit: connection.list_resources(cursor), LIST_RESOURCES, repeatable=True
    )
    lines = [
        f"{one_line(str(each.uri), 500)}  {one_line(each.title or each.name, 100)}"
        f"{f': {one_line(each.description, 200)}' if each.description else ''}"
        for each in page.resources[:1000]
    ]
    if page.next_cursor:
        lines.append(f"[more with cursor {shortened(page.next_cursor, 500)!r}]")
    return "\n".join(lines) or "[no resources]"


async def _read_resource(servers: "McpServers", name: str, ctx: ToolContext, uri: str) -> Result:
    server = servers.configured(name)
    if server is None:
        raise ToolFailed(_gone(f"{name}{BETWEEN}{READ_RESOURCE}"))
    running = servers.of_holder(server, session=ctx.session, principal=ctx.principal)
    _contact(server, ctx)
    found = await running.request(
        lambda connection, limit: connection.read_resource(uri, Asker(ctx, server.name, limit)),
        READ_RESOURCE,
        repeatable=True,
    )
    from tidegate.mcp.results import resource  # it imports the SDK

    return await resource(ctx, one_line(uri, 300), found.contents)


class Nobody:
    """The requester for requests during which no user can be asked."""

    async def answer(self, params: "ElicitRequestParams") -> "ElicitResult":
        import mcp_types

        return mcp_types.ElicitResult(action="cancel")

    async def progressed(self, progress: float, total: float | None, message: str | None) -> None:
        pass


async def prompt_text(running: RunningServer, server: str, prompt: str, arguments: Mapping[str, str]) -> str:
    """Returns a prompt as a single text for a user message."""
    found = await running.request(
        lambda connection, _: connection.get_prompt(prompt, arguments, Nobody()), f"{server}.{prompt}", repeatable=True
    )
    texts = [
        (message.role, shortened(getattr(message.content, "text", ""), PROMPT_CHARACTERS)) for message in found.messages
    ]
    if len({role for role, _ in texts}) == 1:
        return "\n\n".join(text for _, text in texts if text)
    return "\n\n".join(f"{role}: {text}" for role, text in texts if text)
