"""The tool `write_file`: a whole file at once.

Guarantee: the file holds its old content or all of the new one, at every moment.
"""

from typing import Annotated

from msgspec import Meta

from tidegate.errors import ToolFailed
from tidegate.tools.files.arguments import FilePath
from tidegate.tools.tool import ToolContext, tool
from tidegate.workspaces.files import Files, shown

WRITTEN_BYTES = 4 * 1024 * 1024
"""More than a model writes; larger files are made by commands."""


@tool(effect="write", timeout=60, contained=True)
async def write_file(
    ctx: ToolContext,
    *,
    path: FilePath,
    content: Annotated[str, Meta(description="All that the file is to hold.")],
) -> str:
    """Writes a text file of the workspace, in place of what it held before; folders that are missing are made. To
    change a part of a file use edit_file."""
    return await write(await ctx.workspace.files(), path, content)


async def write(files: Files, path: str, content: str) -> str:
    data = encoded(content)
    written = await files.write(path, data)
    before = "a new file" if written.replaced is None else f"in place of {written.replaced} bytes"
    return f"Wrote {len(data)} bytes to {shown(path)} ({before})."


def encoded(content: str) -> bytes:
    try:
        data = content.encode()
    except UnicodeEncodeError:
        raise ToolFailed("The content has halves of characters (lone surrogates); leave them out.") from None
    if len(data) > WRITTEN_BYTES:
        raise ToolFailed(
            f"The content has {len(data)} bytes, more than the {WRITTEN_BYTES} that are written at once; "
            "make such a file with a command."
        )
    return data
