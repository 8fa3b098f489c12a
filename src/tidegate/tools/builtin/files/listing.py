"""The tool `list_files`, which lists the contents of a folder.

A listing has one name per line, in a fixed order, and mentions everything that it leaves out.
"""

from typing import Annotated

from msgspec import Meta

from tidegate.tools.tool import ToolContext, tool
from tidegate.workspaces.files import FileEntry, FileFilter, Files, printable

MOST = 500

FolderPath = Annotated[
    str, Meta(description="Path of the folder, relative to the workspace; by default the workspace.")
]
GlobText = Annotated[
    str,
    Meta(
        description="Only matching paths, such as *.py (at any depth) or src/**/*.{ts,tsx} (relative to the folder); "
        "empty for all."
    ),
]
Hidden = Annotated[
    bool,
    Meta(description="Include names that begin with a dot, and folders named node_modules or __pycache__."),
]


@tool(effect="read", long_results=True, timeout=60, parallel=True)
async def list_files(
    ctx: ToolContext,
    *,
    path: FolderPath = ".",
    glob: GlobText = "",
    recursive: Annotated[bool, Meta(description="Include the contents of subfolders.")] = False,
    hidden: Hidden = False,
) -> str:
    """Lists a folder of the workspace, one name per line: files with their size in bytes before the name, folders with
    a slash after it."""
    return await listed(await ctx.workspace.files(), path, glob, recursive, hidden)


async def listed(files: Files, path: str = ".", glob: str = "", recursive: bool = False, hidden: bool = False) -> str:
    deep = recursive or "/" in glob or "**" in glob
    listing = await files.list(path, FileFilter(glob=glob, hidden=hidden), recursive=deep, limit=MOST)
    lines = [_line(entry) for entry in listing.entries]
    if not lines:
        lines.append("[nothing fits the glob]" if glob else "[the folder is empty]")
    if listing.stopped:
        lines.append(f"[not all: {listing.stopped}; choose a subfolder or a glob]")
    return "\n".join([*lines, *left_out(listing.left_out)])


def left_out(names: tuple[str, ...]) -> list[str]:
    """Returns a list with one line about the hidden names that were left out, or an empty list if there were none."""
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
