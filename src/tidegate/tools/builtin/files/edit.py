"""The `edit_file` tool, which replaces one text with another.

The rest of the file, including line endings and permissions, is preserved exactly. Nothing is written if the file has
changed in the meantime, or if the text does not occur exactly once, unless all occurrences are to be replaced. The
result shows the difference.
"""

from typing import Annotated, NamedTuple

from anyio import to_thread
from msgspec import Meta

from tidegate.errors import ToolFailed
from tidegate.tools.builtin.files.diffs import Span, bounded, unified
from tidegate.tools.builtin.files.read import FilePath
from tidegate.tools.builtin.files.write import WRITTEN_BYTES, encoded
from tidegate.tools.tool import ToolContext, tool
from tidegate.workspaces.files import Files, shown

EDITED_BYTES = 2 * 1024 * 1024
"""Maximum size of a file that can be edited. Larger files are not edited by hand."""

MOST_PLACES = 10_000
"""Maximum number of occurrences that one call can replace."""

NAMED_PLACES = 10
"""Maximum number of occurrences whose line numbers are listed in an error message."""

DIFFED_CHARACTERS = 64 * 1024
"""Maximum length of a text for which a diff is shown. A model that has written more knows what it wrote."""

MOST_SIMILAR_LINES = 100
"""Maximum number of lines compared to find a line similar to a text that does not occur in the file."""


@tool(effect="write", long_results=True, timeout=60, contained=True)
async def edit_file(
    ctx: ToolContext,
    *,
    path: FilePath,
    old: Annotated[str, Meta(min_length=1, description="The text to be replaced, exactly as it is in the file.")],
    new: Annotated[str, Meta(description="The replacement text.")],
    all: Annotated[bool, Meta(description="Replace every occurrence; otherwise there must be exactly one.")] = False,
) -> str:
    """Replaces a text in a file of the workspace with another one, and shows the difference. The text must occur
    exactly once: include enough of its surroundings."""
    return await edit(await ctx.workspace.files(), path, old, new, every=all)


async def edit(files: Files, path: str, old: str, new: str, *, every: bool = False) -> str:
    loaded = await files.load(path, limit=EDITED_BYTES)
    try:
        text = loaded.data.decode()
    except UnicodeDecodeError:
        raise ToolFailed(f"{shown(path)} is binary or not UTF-8 text; change it with a command.") from None
    data, report = await to_thread.run_sync(_edited, text, old, new, every, path)
    await files.write(path, data, expected=loaded.version)
    return report


def _edited(text: str, old: str, new: str, every: bool, path: str) -> tuple[bytes, str]:
    """Returns the file's new content, and the report for the model."""
    change = replaced(text, old, new, every=every, path=path)
    places = "1 place" if len(change.spans) == 1 else f"{len(change.spans)} places"
    if max(len(old), len(new)) > DIFFED_CHARACTERS:
        difference = "[the texts are too long to show the difference]"
    else:
        difference = bounded(unified(text, change.spans, change.new))
    return encoded(change.text), f"Replaced {places} in {shown(path)}.\n{difference}"


class Change(NamedTuple):
    """An edit: the new text, and the spans of the old text that were replaced with `new`."""

    text: str
    spans: tuple[Span, ...]
    new: str


def replaced(text: str, old: str, new: str, *, every: bool, path: str) -> Change:
    """Makes the edit, or raises `ToolFailed` with the reason."""
    old, new = _with_endings(text, old, new)
    if old == new:
        raise ToolFailed("The old and the new text are the same; nothing was changed.")
    spans = _spans(text, old)
    if not spans:
        raise ToolFailed(_missing(text, old, path))
    if len(spans) > MOST_PLACES:
        raise ToolFailed(
            f"The old text occurs more than {MOST_PLACES} times in {shown(path)}; use a longer text, or a command."
        )
    if not every and len(places := _first_places(text, old)) > 1:
        lines = [str(text.count("\n", 0, place) + 1) for place in places[:NAMED_PLACES]]
        more = ", …" if len(places) > NAMED_PLACES else ""
        raise ToolFailed(
            f"The old text occurs {max(len(spans), len(places))} times in {shown(path)}, at lines {', '.join(lines)}"
            f"{more}; include more of the surrounding text, or set all=true."
        )
    length = len(text) + len(spans) * (len(new) - len(old))
    if length > WRITTEN_BYTES:
        raise ToolFailed(f"{shown(path)} would have {length} characters, more than can be written; nothing changed.")
    return Change(text.replace(old, new), tuple(spans), new)


def _with_endings(text: str, old: str, new: str) -> tuple[str, str]:
    """Returns both texts with the file's line endings, since models write line feeds."""
    breaks, windows = text.count("\n"), text.count("\r\n")
    if windows == 0 or (windows < breaks and old in text):
        return old, new
    return _windows(old), _windows(new)


def _windows(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _spans(text: str, old: str) -> list[Span]:
    """Returns the occurrences of `old`, without overlaps. Stops when there are more than `MOST_PLACES`."""
    spans: list[Span] = []
    place = text.find(old)
    while place >= 0 and len(spans) <= MOST_PLACES:
        spans.append(Span(place, place + len(old)))
        place = text.find(old, place + len(old))
    return spans


def _first_places(text: str, old: str) -> list[int]:
    """Returns the offsets of occurrences, including overlapping ones. Returns at most `NAMED_PLACES` + 1 offsets, since
    each search may take time linear in the length of the text."""
    places: list[int] = []
    place = text.find(old)
    while place >= 0 and len(places) <= NAMED_PLACES:
        places.append(place)
        place = text.find(old, place + 1)
    return places


def _missing(text: str, old: str, path: str) -> str:
    """Returns the message that `old` does not occur. If there is a similar line, the message includes its number."""
    first = next((line.strip() for line in old.split("\n") if line.strip()), "")
    place = text.find(first) if first else -1
    for _ in range(MOST_SIMILAR_LINES):
        if place < 0:
            break
        end = text.find("\n", place)
        if text[text.rfind("\n", 0, place) + 1 : end if end >= 0 else len(text)].strip() == first:
            line = text.count("\n", 0, place) + 1
            return (
                f"The old text does not occur in {shown(path)} exactly as given; line {line} resembles its beginning, "
                "but the spaces or the following text differ: read the file there and copy it exactly."
            )
        place = text.find(first, place + 1)
    return f"The old text does not occur in {shown(path)}; read the file and copy it exactly."
