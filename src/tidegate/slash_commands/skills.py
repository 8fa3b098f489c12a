"""The `/skills` command: lists the skills of the conversation's agent."""

from tidegate.errors import Refused
from tidegate.slash_commands.dispatch import CommandContext, CommandReply, SlashCommand


async def skills(context: CommandContext, words: str) -> CommandReply:
    if words:
        raise Refused("/skills takes no arguments; to use a skill, ask the agent for it by name.", code="bad_argument")
    library, agent = context.service.skills, await _agent(context)
    if library is None or not library.serves(agent):
        return CommandReply(text=f"The agent {agent} has no skills.", session=context.session)
    skill_set = await library.skill_set(agent, context.principal.id)
    lines = [f"{entry.name} ({entry.place.origin})  {entry.skill.description}" for entry in skill_set.entries]
    if broken := sum(not left.covered for left in skill_set.left_out):
        lines.append(f"{broken} more cannot be used; `tidegate skills` says why.")
    if skill_set.entries and context.session is not None:
        lines.append(
            "The agent's prompt lists the skills that existed when this conversation began; it can read them all."
        )
    return CommandReply(text="\n".join(lines) or "There are no skills yet.", session=context.session)


async def _agent(context: CommandContext) -> str:
    """Returns the agent in this conversation, or in the next one if none has begun."""
    if context.session is not None:
        return (await context.service.row(context.session, context.principal)).agent
    if context.agent is None:
        raise Refused("There is no conversation yet; send a message first.", code="no_session")
    return context.agent


COMMANDS = (SlashCommand(name="skills", help="List the agent's skills.", handler=skills),)
