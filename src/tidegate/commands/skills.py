"""The command about skills: what the agent of this conversation has."""

from tidegate.commands.registry import Command, Context, Reply
from tidegate.errors import Refused


async def skills(context: Context, words: str) -> Reply:
    if words:
        raise Refused("Say /skills alone; to have one used, ask for it by its name.", code="bad_argument")
    library, agent = context.door.skills, await _agent(context)
    if library is None or not library.serves(agent):
        return Reply(text=f"The agent {agent} has no skills.", session=context.session)
    shelf = await library.shelf(agent, context.principal.id)
    lines = [f"{entry.name} ({entry.place.origin})  {entry.skill.description}" for entry in shelf.entries]
    if broken := sum(not left.covered for left in shelf.left_out):
        lines.append(f"{broken} more cannot be used; `tidegate skills` says why.")
    if shelf.entries and context.session is not None:
        lines.append("The agent was told of those that were there when this conversation began, and can read all.")
    return Reply(text="\n".join(lines) or "There are none yet.", session=context.session)


async def _agent(context: Context) -> str:
    """That of the conversation, or the one that the next would be with."""
    if context.session is not None:
        return (await context.door.row(context.session, context.principal)).agent
    if context.agent is None:
        raise Refused("There is no conversation yet; say something first.", code="no_session")
    return context.agent


COMMANDS = (Command(name="skills", help="List the agent's skills: what it can read instructions for.", handler=skills),)
