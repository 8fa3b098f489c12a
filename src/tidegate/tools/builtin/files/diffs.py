"""Unified diffs of edits.

Applying a diff to the old text yields the new text. Diffs are created from the replaced spans and not by comparing the
two texts, so the time is linear in the size of the text and the memory is proportional to the change.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

CONTEXT = 3
SHOWN_LINES = 120
SHOWN_CHARACTERS = 500
"""Maximum number of lines of a diff, and of characters of each line, shown to a model. The model knows the text that it
has replaced."""

NO_BREAK = "\\ No newline at end of file"


class Span(NamedTuple):
    start: int
    end: int


class _Block(NamedTuple):
    """Complete lines of a text between two offsets, and the lines that replace them."""

    start: int
    end: int
    old: list[str]
    new: list[str]


def unified(text: str, spans: Sequence[Span], new: str) -> Iterator[str]:
    """Yields the lines of the diff between `text` and the same text with `new` in each of `spans`.

    The spans are in order and do not overlap.
    """
    counted = line = shift = 0
    for blocks in _hunks(text, spans, new):
        start, end = _back(text, blocks[0].start), _forth(text, blocks[-1].end)
        line, counted = line + text.count("\n", counted, start), start
        body: list[str] = []
        place = start
        for block in blocks:
            body += [f" {kept}" for kept in _lines(text[place : block.start])]
            body += [f"-{gone}" for gone in block.old] + [f"+{come}" for come in block.new]
            place = block.end
        body += [f" {kept}" for kept in _lines(text[place:end])]
        before, after = (sum(entry[0] in marks for entry in body) for marks in (" -", " +"))
        yield f"@@ -{_range(line, before)} +{_range(line + shift, after)} @@"
        for entry in body:
            if entry.endswith("\n"):
                yield entry[:-1]
            else:
                yield from (entry, NO_BREAK)
        shift += after - before


def bounded(lines: Iterable[str]) -> str:
    """Returns the part of a diff that is shown."""
    shown: list[str] = []
    left = 0
    for line in lines:
        if len(shown) < SHOWN_LINES:
            shown.append(line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…")
        else:
            left += 1
    if left:
        shown.append(f"[… {left} more lines of the difference left out …]")
    return "\n".join(shown)


def _lines(text: str) -> list[str]:
    """Splits the text only at line feeds, and keeps the line feeds."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _line_end(text: str, place: int) -> int:
    """Returns the end of the line that contains offset `place`, after the line feed."""
    return text.find("\n", place) + 1 or len(text)


def _back(text: str, place: int) -> int:
    """Returns the offset of the first line of context before the line at `place`."""
    for _ in range(CONTEXT):
        place = text.rfind("\n", 0, max(0, place - 1)) + 1
    return place


def _forth(text: str, place: int) -> int:
    """Returns the end of the last line of context after the line that ends at `place`."""
    for _ in range(CONTEXT):
        place = _line_end(text, place)
    return place


def _range(start: int, length: int) -> str:
    # An empty range is given as the line before it.
    return f"{start + (length > 0)},{length}"


def _hunks(text: str, spans: Sequence[Span], new: str) -> Iterator[list[_Block]]:
    """Groups blocks that are so close together that their context lines would touch."""
    hunk: list[_Block] = []
    for block in _blocks(text, spans, new):
        if hunk and text.count("\n", hunk[-1].end, block.start) > 2 * CONTEXT:
            yield hunk
            hunk = []
        hunk.append(block)
    if hunk:
        yield hunk


def _blocks(text: str, spans: Sequence[Span], new: str) -> Iterator[_Block]:
    """Yields the lines that the spans touch, with their replacements."""
    index = 0
    while index < len(spans):
        start = place = text.rfind("\n", 0, spans[index].start) + 1
        end = _line_end(text, start)
        pieces: list[str] = []
        while True:
            # All spans that begin in these lines; each may extend the block.
            while index < len(spans) and spans[index].start < end:
                pieces += (text[place : spans[index].start], new)
                place = spans[index].end
                if place > end:
                    end = _line_end(text, place - 1)
                index += 1
            rest = text[place:end]
            # A line whose line feed was replaced continues in the next line.
            if end == len(text) or (rest or new).endswith("\n"):
                break
            end = _line_end(text, end)
        block = _trimmed(start, end, _lines(text[start:end]), _lines("".join((*pieces, rest))))
        if block.old or block.new:
            yield block


def _trimmed(start: int, end: int, old: Sequence[str], new: Sequence[str]) -> _Block:
    """Removes lines at both ends that are equal in `old` and `new`."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    start += sum(map(len, old[:head]))
    end -= sum(map(len, old[len(old) - tail :]))
    return _Block(start, end, list(old[head : len(old) - tail]), list(new[head : len(new) - tail]))
