"""The toolset `memory`: notes for later conversations.

A note's subject and the right to write it are determined by the call's context, never by the content of the
conversation. A call that was interrupted by a crash is not repeated.
"""

from typing import Annotated, Literal

from msgspec import Meta

from tidegate.tools.services import Notes
from tidegate.tools.tool import ToolContext, tool

Number = Annotated[int, Meta(ge=1, le=10**15)]


@tool(effect="write", timeout=30, contained=True)
async def remember(
    ctx: ToolContext,
    *,
    text: Annotated[str, Meta(description="One fact, in one short sentence that is clear without this conversation.")],
    about: Annotated[
        Literal["person", "agent"],
        Meta(
            description="person: about the person you talk with. agent: about your work, for everybody you talk with; "
            "only in conversations with the owner."
        ),
    ] = "person",
    replaces: Annotated[Number | None, Meta(description="The number of the note to replace.")] = None,
) -> str:
    """Saves a fact for later conversations. Use it for what lasts, such as preferences, names, decisions and local
    practice, and not for details that matter only in this conversation. Replace a note that is no longer true."""
    return await _notes(ctx).remember(ctx, text, about=about, replaces=replaces)


@tool(effect="write", timeout=30, contained=True)
async def forget(ctx: ToolContext, *, note: Annotated[Number, Meta(description="The number of the note.")]) -> str:
    """Forgets a note, by its number."""
    return await _notes(ctx).forget(ctx, note)


def _notes(ctx: ToolContext) -> Notes:
    return ctx.service(Notes, otherwise="Nothing can be remembered here.")
