"""The toolset `ask`: questions to the person, optionally with choices.

A call waits for the answer without a time limit.
"""

from typing import Annotated

from msgspec import Meta

from tidegate.tools.tool import ToolContext, tool


@tool(effect="read", timeout=None)
async def ask_user(
    ctx: ToolContext,
    *,
    question: Annotated[str, Meta(min_length=1, max_length=2000, description="The complete question.")],
    choices: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...],
        Meta(max_length=20, description="Answers to choose from; none to let the person answer freely."),
    ] = (),
) -> str:
    """Asks the person and waits for the answer. Use it when you cannot continue without one."""
    return await ctx.ask(question, choices)
