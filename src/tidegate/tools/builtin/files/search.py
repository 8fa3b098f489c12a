"""The tool `search_files`, which finds lines that match a pattern.

Lines are listed under their file with their numbers, in a fixed order. The result mentions everything that was not
searched.
"""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from tidegate.tools.builtin.files.listing import GlobText, Hidden, left_out
from tidegate.tools.tool import ToolContext, tool
from tidegate.workspaces.files import (
    FileFilter,
    FileHit,
    Files,
    HitLine,
    SearchQuery,
    SearchResult,
    printable,
)

MOST = 200
MOST_AROUND = 10


@tool(effect="read", long_results=True, timeout=60, parallel=True)
async def search_files(
    ctx: ToolContext,
    *,
    pattern: Annotated[
        str,
        Meta(
            description="A regular expression (RE2), matched line by line; without look-around and back references; "
            "\\w, \\d, \\s and \\b match ASCII only."
        ),
    ],
    path: Annotated[str, Meta(description="Folder or file to search, relative to the workspace.")] = ".",
    glob: GlobText = "",
    literal: Annotated[bool, Meta(description="Treat the pattern as plain text.")] = False,
    ignore_case: Annotated[bool, Meta(description="Ignore upper and lower case.")] = False,
    context: Annotated[int, Meta(ge=0, le=MOST_AROUND, description="Lines to show before and after each match.")] = 0,
    limit: Annotated[int, Meta(ge=1, le=MOST, description="The most matching lines to return.")] = 50,
    hidden: Hidden = False,
) -> str:
    """Searches text files of the workspace for lines that match a pattern. Binary files and links are left out."""
    query = SearchQuery(
        pattern=pattern,
        literal=literal,
        ignore_case=ignore_case,
        choice=FileFilter(glob=glob, hidden=hidden),
        context=context,
        limit=limit,
    )
    return await searched(await ctx.workspace.files(), path, query)


async def searched(files: Files, path: str, query: SearchQuery) -> str:
    found = await files.search(path, query)
    return "\n".join([*_lines(found, query), *_notes(found), *left_out(found.left_out)])


def _lines(found: SearchResult, query: SearchQuery) -> Iterator[str]:
    for hit in found.hits:
        yield printable(hit.path)
        if hit.changed:
            yield "[changed during the search; search again]"
        yield from _of(hit, query)
        yield ""


def _of(hit: FileHit, query: SearchQuery) -> Iterator[str]:
    last = 0
    for line in hit.lines:
        if query.context and last and line.number > last + 1:
            yield "--"
        yield _line(line)
        last = line.number


def _line(line: HitLine) -> str:
    text = f"{'…' if line.before else ''}{line.text}{'…' if line.after else ''}"
    return f"{line.number}{':' if line.found else '-'} {text}"


def _notes(found: SearchResult) -> Iterator[str]:
    lines = sum(line.found for hit in found.hits for line in hit.lines)
    if found.more:
        yield f"[the first {_some(lines, 'line')}; there are more: narrow the search, or raise limit (at most {MOST})]"
    elif not found.hits:
        yield f"[nothing found in {_some(found.files, 'file')}]"
    else:
        yield f"[{_some(lines, 'line')} in {len(found.hits)} of {_some(found.files, 'file')}]"
    if found.stopped:
        yield f"[not all was searched: {found.stopped}]"
    if found.large:
        yield f"[left out for {'its' if found.large == 1 else 'their'} size: {_some(found.large, 'file')}]"
    if found.binary:
        yield f"[left out as binary: {_some(found.binary, 'file')}]"


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
