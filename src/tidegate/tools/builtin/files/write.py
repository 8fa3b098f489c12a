"""The `write_file` tool, which writes a complete file.

At any moment, the file contains either all of the old content or all of the new content.
"""

from typing import Annotated

from msgspec import Meta

from tidegate.errors import ToolFailed
from tidegate.tools.builtin.files.read import FilePath
from tidegate.tools.tool import ToolContext, tool
from tidegate.workspaces.files import Files, shown

WRITTEN_BYTES = 4 * 1024 * 1024
"""Maximum size of a file that can be written. This is more than a model writes; larger files are created by
commands."""


@tool(effect="write", long_results=True, timeout=60, contained=True)
async def write_file(
    ctx: ToolContext,
    *,
    path: FilePath,
    content: Annotated[str, Meta(description="The complete content of the file.")],
) -> str:
    """Writes a text file of the workspace, replacing its previous content; missing folders are created. To change part
    of a file, use edit_file."""
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
        raise ToolFailed("The content has lone surrogates (halves of characters); leave them out.") from None
    if len(data) > WRITTEN_BYTES:
        raise ToolFailed(
            f"The content has {len(data)} bytes; at most {WRITTEN_BYTES} can be written. "
            "Use a command to create a larger file."
        )
    return data
