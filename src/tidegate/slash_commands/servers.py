"""The commands `/mcp` and `/prompt`: MCP servers, and the prompts that they offer."""

import shlex

from tidegate.errors import NotFound, Refused, ToolFailed
from tidegate.slash_commands.dispatch import CommandContext, CommandReply, SlashCommand
from tidegate.values import Inbound, Message


async def mcp(context: CommandContext, words: str) -> CommandReply:
    if words:
        raise Refused("/mcp takes no arguments.", code="bad_argument")
    agent = await _agent(context)
    servers = context.service.servers
    lines = []
    for status in servers.status():
        server = servers.configured(status.name)
        if server is None or not server.serves(agent):
            continue
        tools = "not listed yet" if status.tools is None else f"{status.tools} tools"
        error = f" ({status.error})" if status.error and status.state == "failed" else ""
        lines.append(f"{status.name}  {status.state}{error}, {tools}")
    lines += (f"/prompt {server}.{prompt.name}  {prompt.description}" for server, prompt in servers.prompts(agent))
    return CommandReply(text="\n".join(lines) or f"The agent {agent} has no MCP servers.", session=context.session)


async def prompt(context: CommandContext, words: str) -> CommandReply:
    """Sends a server's prompt as the user's message."""
    try:
        name, *pairs = shlex.split(words)
    except ValueError:
        raise Refused(
            "Use /prompt SERVER.NAME [ARGUMENT=VALUE …]; /mcp lists the prompts.", code="bad_argument"
        ) from None
    server, _, which = name.partition(".")
    arguments = dict(pair.partition("=")[::2] for pair in pairs)
    session = context.here()
    agent = await _agent(context)
    try:
        text = await context.service.servers.prompt(
            agent, server, which, arguments, session=session, principal=context.principal.id
        )
    except NotFound as error:
        raise Refused(error.message, code="not_found") from None
    except ToolFailed as error:
        raise Refused(error.message, code="server_failed") from None
    accepted = await context.service.accept(
        Inbound(
            principal=context.principal.id,
            channel=context.channel,
            agent=agent,
            messages=(Message(role="user", text=text),),
            session=session,
        )
    )
    return CommandReply(text=f"Sent the prompt {name}.", session=session, turn=accepted.turn)


async def _agent(context: CommandContext) -> str:
    if context.session is not None:
        return (await context.service.row(context.session, context.principal)).agent
    if context.agent is None:
        raise Refused("There is no conversation yet; send a message first.", code="no_session")
    return context.agent


COMMANDS = (
    SlashCommand(name="mcp", help="List the agent's MCP servers and their prompts.", handler=mcp),
    SlashCommand(
        name="prompt",
        arguments="SERVER.NAME [ARGUMENT=VALUE …]",
        help="Send a prompt of an MCP server as your message.",
        handler=prompt,
    ),
)
