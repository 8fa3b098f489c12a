"""The toolset `skills`: instructions for particular kinds of tasks, read when they are needed."""

from typing import Annotated

from msgspec import Meta

from tidegate.tools.services import Skills
from tidegate.tools.tool import ToolContext, tool


@tool(effect="read", long_results=True, timeout=30, parallel=True)
async def skill(
    ctx: ToolContext,
    *,
    name: Annotated[str, Meta(description="The skill's name; empty for a list of all.", max_length=200)] = "",
    file: Annotated[
        str, Meta(description="One of its other files, by its path in the skill's folder.", max_length=1000)
    ] = "",
) -> str:
    """Reads a skill: its instructions and the list of its other files, or one of those files."""
    skills = ctx.service(Skills, otherwise="skill: there are no skills here.")
    return await skills.read(ctx, name.strip(), file.strip())
