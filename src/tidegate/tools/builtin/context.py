"""The toolset `context`: lookup of earlier messages, including those that are no longer in the model's view.

These tools are read-only. The caller's identity comes from the call's context, never from its arguments. Results are
bounded, quote the original messages, and say how to continue. The actual work is done by the service `Recall`.
"""

from typing import Annotated

from msgspec import Meta

from tidegate.tools.services import Recall
from tidegate.tools.tool import ToolContext, tool

NUMBER = 2**53
"""Largest number accepted as a position. No transcript is that long."""

Place = Annotated[int, Meta(ge=1, le=NUMBER)]


def _recall(ctx: ToolContext) -> Recall:
    return ctx.service(Recall, otherwise="Earlier messages cannot be looked up here.")


@tool(effect="read", timeout=90, parallel=True)
async def context_search(
    ctx: ToolContext,
    *,
    query: Annotated[str, Meta(description="A question or words.")],
    exact: Annotated[bool, Meta(description='All words; word* is a prefix, "a b" a phrase.')] = False,
    regex: Annotated[bool, Meta(description="The query is an RE2 pattern.")] = False,
    everywhere: Annotated[bool, Meta(description="Search the person's other conversations too.")] = False,
    after: Annotated[str, Meta(description="Cursor for the next page, from the last answer.", max_length=2000)] = "",
    limit: Annotated[int, Meta(ge=1, le=50)] = 20,
) -> str:
    """Searches the earlier messages and long results of this conversation."""
    return await _recall(ctx).search(
        ctx, query, exact=exact, regex=regex, everywhere=everywhere, after=after, limit=limit
    )


@tool(effect="read", parallel=True)
async def context_describe(
    ctx: ToolContext,
    *,
    summary: Annotated[
        Place | None, Meta(description="Number of the summary; without it, all summaries in use are listed.")
    ] = None,
    after: Annotated[int, Meta(ge=0, le=NUMBER)] = 0,
) -> str:
    """Shows which messages a summary of this conversation covers."""
    return await _recall(ctx).describe(ctx, summary, after=after)


@tool(effect="read", parallel=True)
async def context_expand(
    ctx: ToolContext,
    *,
    summary: Annotated[
        Place | None, Meta(description="Number of a summary, to return all messages that it covers.")
    ] = None,
    first: Annotated[Place | None, Meta(description="Number of a message, or of the first message of a range.")] = None,
    last: Annotated[Place | None, Meta(description="Number of the last message of the range.")] = None,
    offset: Annotated[int, Meta(ge=0, le=NUMBER, description="How many characters of the first message to skip.")] = 0,
    session: Annotated[str, Meta(description="Another conversation, as named by a search.", max_length=100)] = "",
) -> str:
    """Returns original messages verbatim."""
    return await _recall(ctx).expand(ctx, summary=summary, first=first, last=last, offset=offset, session=session)
