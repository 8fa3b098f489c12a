"""The tool `list_files`: what is in a folder.

Guarantee: one name a line, in a fixed order; whatever is not shown is mentioned.
"""

from typing import Annotated

from msgspec import Meta

from tidegate.tools.files.arguments import FolderPath, GlobText, Hidden
from tidegate.tools.tool import ToolContext, tool
from tidegate.workspaces.files import FileEntry, FileFilter, Files, printable

MOST = 500


@tool(effect="read", timeout=60, parallel=True)
async def list_files(
    ctx: ToolContext,
    *,
    path: FolderPath = ".",
    glob: GlobText = "",
    recursive: Annotated[bool, Meta(description="Also what is in the folders below.")] = False,
    hidden: Hidden = False,
) -> str:
    """Lists a folder of the workspace: a line for each name, a file's with its size in bytes before it, a folder's
    with a slash behind it."""
    return await listed(await ctx.workspace.files(), path, glob, recursive, hidden)


async def listed(files: Files, path: str = ".", glob: str = "", recursive: bool = False, hidden: bool = False) -> str:
    deep = recursive or "/" in glob or "**" in glob
    listing = await files.list(path, FileFilter(glob=glob, hidden=hidden), recursive=deep, limit=MOST)
    lines = [_line(entry) for entry in listing.entries]
    if not lines:
        lines.append("[nothing fits the glob]" if glob else "[the folder is empty]")
    if listing.stopped:
        lines.append(f"[not all: {listing.stopped}; choose a folder below or a glob]")
    return "\n".join([*lines, *left_out(listing.left_out)])


def left_out(names: tuple[str, ...]) -> list[str]:
    """The line about what the rule about hidden names has left out, if it has."""
    if not names:
        return []
    return [f"[left out: {', '.join(map(printable, names))}; hidden=true includes them]"]


def _line(entry: FileEntry) -> str:
    path = printable(entry.path)
    match entry.kind:
        case "folder":
            return f"- {path}/"
        case "link":
            return f"- {path} -> {printable(entry.target)}"
        case "other":
            return f"- {path} (a device, pipe or socket)"
        case _:
            return f"{entry.size} {path}"
