"""The toolset `skills`: instructions for one kind of task each, read when they are needed."""

from typing import Annotated

from msgspec import Meta

from tidegate.errors import ToolFailed
from tidegate.tools.tool import ToolContext, tool


@tool(effect="read", timeout=30, parallel=True)
async def skill(
    ctx: ToolContext,
    *,
    name: Annotated[str, Meta(description="The skill's name; empty for a list of all.", max_length=200)] = "",
    file: Annotated[
        str, Meta(description="One of its other files, by its path in the skill's folder.", max_length=1000)
    ] = "",
) -> str:
    """Reads a skill: its instructions and the list of its other files, or one of those files."""
    if ctx.services.skills is None:
        raise ToolFailed("skill: there are no skills here.")
    return await ctx.services.skills.read(ctx, name.strip(), file.strip())
