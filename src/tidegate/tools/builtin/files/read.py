"""The tool `read_file`, which shows a text file page by page, a picture, or an audio file.

A page consists of complete lines, is shorter than the limit for tool results, and, if it is not the entire file, says
which lines it contains. Pictures and audio files are passed to the model as media, within the usual limits. Other files
cannot be shown.
"""

from typing import Annotated

from msgspec import Meta

from tidegate.errors import ToolFailed
from tidegate.spool import SessionSpool, seems_media
from tidegate.tools.tool import Result, ToolContext, tool
from tidegate.workspaces.files import FileLines, Files, shown

FilePath = Annotated[str, Meta(description="Path of the file: relative to the workspace, or as commands see it.")]

PAGE_LINES = 300
PAGE_BYTES = 12 * 1024
"""Maximum size of a page in bytes. Together with the line that describes it, a page stays below the default limits for
tool output, so it is not truncated."""


@tool(effect="read", long_results=True, timeout=60, parallel=True)
async def read_file(
    ctx: ToolContext,
    *,
    path: FilePath,
    offset: Annotated[int, Meta(ge=0, description="How many lines to skip.")] = 0,
    lines: Annotated[int, Meta(ge=1, le=PAGE_LINES, description="How many lines to return.")] = 200,
) -> Result:
    """Reads a UTF-8 text file of the workspace, one page of lines at a time, or shows you a picture (PNG, JPEG, GIF or
    WebP) or a sound (WAV or MP3)."""
    return await read(await ctx.workspace.files(), ctx.spool, path, offset, lines)


async def read(
    files: Files, spool: SessionSpool, path: str, offset: int = 0, lines: int = 200, *, page_bytes: int = PAGE_BYTES
) -> Result:
    page = await files.lines(path, offset=offset, lines=lines, max_bytes=page_bytes)
    if seems_media(page.head):
        async with files.opened(path) as fd:
            media = await spool.media(path, fd)
        return Result(text=f"[{shown(path)}: {media.about}]", media=(media,))
    if not page.data:
        if page.first == 0:
            return Result(text="[the file is empty]")
        raise ToolFailed(f"Offset {offset} is past the end: {shown(path)} has {page.first} lines.")
    try:
        text = page.data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ToolFailed(
            f"{shown(path)} is binary or not UTF-8 text ({page.size} bytes) and cannot be shown; "
            "use a command in the terminal to inspect it."
        )
    return Result(text=text + _place(page, text))


def _place(page: FileLines, text: str) -> str:
    """Returns the line that says which part of the file is shown, or an empty text if the file is complete."""
    if page.first == 0 and not page.more and not page.cut:
        return ""
    if page.cut:
        place = (
            f"line {page.after} is longer than a page; this is its beginning; the next line is at offset={page.after}"
        )
    elif page.more:
        place = f"lines {page.first + 1} to {page.after}; more follow, continue with offset={page.after}"
    else:
        place = f"lines {page.first + 1} to {page.after}; the file ends here"
    return f"{'' if text.endswith(chr(10)) else chr(10)}[{place}]"
