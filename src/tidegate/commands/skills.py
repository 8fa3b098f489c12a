"""The command about skills: what the agent of this conversation has."""

from tidegate.commands.registry import CommandContext, CommandReply, SlashCommand
from tidegate.errors import Refused


async def skills(context: CommandContext, words: str) -> CommandReply:
    if words:
        raise Refused("Say /skills alone; to have one used, ask for it by its name.", code="bad_argument")
    library, agent = context.service.skills, await _agent(context)
    if library is None or not library.serves(agent):
        return CommandReply(text=f"The agent {agent} has no skills.", session=context.session)
    skill_set = await library.skill_set(agent, context.principal.id)
    lines = [f"{entry.name} ({entry.place.origin})  {entry.skill.description}" for entry in skill_set.entries]
    if broken := sum(not left.covered for left in skill_set.left_out):
        lines.append(f"{broken} more cannot be used; `tidegate skills` says why.")
    if skill_set.entries and context.session is not None:
        lines.append("The agent was told of those that were there when this conversation began, and can read all.")
    return CommandReply(text="\n".join(lines) or "There are none yet.", session=context.session)


async def _agent(context: CommandContext) -> str:
    """That of the conversation, or the one that the next would be with."""
    if context.session is not None:
        return (await context.service.row(context.session, context.principal)).agent
    if context.agent is None:
        raise Refused("There is no conversation yet; say something first.", code="no_session")
    return context.agent


COMMANDS = (
    SlashCommand(name="skills", help="List the agent's skills: what it can read instructions for.", handler=skills),
)
