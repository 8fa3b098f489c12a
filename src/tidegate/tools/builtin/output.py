"""The toolset `output`: access to the rest of long results.

A session can read only its own results, by the id shown in the excerpt. Each result is bounded and says how to
continue.
"""

from typing import Annotated

from msgspec import Meta

from tidegate.errors import ToolFailed
from tidegate.tools.tool import ToolContext, tool

MOST_MATCHES = 200
"""Maximum number of matches shown in one result."""


@tool(effect="read", timeout=60, parallel=True)
async def output(
    ctx: ToolContext,
    *,
    id: Annotated[str, Meta(description="The result's id, sp_…, as shown in its excerpt.", max_length=100)],
    offset: Annotated[int, Meta(ge=0, description="How many lines to skip.")] = 0,
    lines: Annotated[int, Meta(ge=1, description="How many lines to return, or matches of a search.")] = 200,
    byte: Annotated[int, Meta(ge=0, description="The byte to start at, instead of offset.")] = 0,
    search: Annotated[str, Meta(description="Return only lines that contain this text; empty for a page.")] = "",
    regex: Annotated[bool, Meta(description="Treat search as a regular expression (RE2), line by line.")] = False,
) -> str:
    """Reads a page of a long result of this conversation, or searches in it."""
    if offset and byte:
        raise ToolFailed("output: use either offset or byte, not both")
    if search:
        limit = min(lines, MOST_MATCHES)
        return await ctx.spool.search(id, search, limit=limit, regex=regex, offset=offset, byte=byte)
    return await ctx.spool.page(id, offset=offset, lines=lines, byte=byte or None)
