"""Which paths a glob fits.

Guarantee: the time to look at a path grows with its length times that of the glob, whatever both are. `*`, `?` and
`[…]` fit within one name, `**` any number of folders, `{a,b}` one of several. A glob without a `/` fits names at every
depth, one with a `/` fits whole paths, from the folder that is looked at; one that ends with a `/` fits all below.
"""

import fnmatch
import re
from collections.abc import Sequence
from itertools import pairwise

from tidegate.errors import ToolFailed

LONGEST = 1000
MOST_CHOICES = 64
"""Of `{…}`; each is looked at in turn."""


class Glob:
    """One that was written by a model; an empty one fits everything."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST or "\0" in text:
            raise ToolFailed(f"The glob must be a text of at most {LONGEST} characters, such as **/*.py.")
        self._choices = [_segments(choice) for choice in _expanded(text)] if text else []

    def fits(self, path: str) -> bool:
        if not self._choices:
            return True
        names = path.split("/")
        return any(_fits(segments, names) for segments in self._choices)


_Segment = re.Pattern[str] | None  # None is any number of folders


def _segments(text: str) -> list[_Segment]:
    if "/" not in text:
        text = f"**/{text}"
    if text.endswith("/"):
        text += "**"
    segments: list[_Segment] = []
    for part in text.split("/"):
        if part in ("", "."):
            continue
        if part != "**":
            # What this makes never tries a second way for a star that has found its place.
            segments.append(re.compile(fnmatch.translate(part)))
        elif not segments or segments[-1] is not None:
            segments.append(None)
    return segments


def _fits(segments: Sequence[_Segment], names: Sequence[str]) -> bool:
    """Which beginnings of `names` the segments so far can have used up, step by step."""
    reached = {0}
    for place, segment in enumerate(segments):
        if segment is None:
            first = min(reached) + (place == len(segments) - 1)  # `a/**` is what is below a, not a
            reached = set(range(first, len(names) + 1))
        else:
            reached = {index + 1 for index in reached if index < len(names) and segment.match(names[index])}
        if not reached:
            return False
    return len(names) in reached


def _expanded(text: str) -> list[str]:
    """The texts that the braces stand for. A brace without its partner is a character like any other."""
    done: list[str] = []
    waiting = [text]
    while waiting:
        given = waiting.pop()
        found = _brace(given)
        if found is None:
            done.append(given)
        else:
            start, commas, end = found
            edges = [start, *commas, end]
            waiting += [given[:start] + given[left + 1 : right] + given[end + 1 :] for left, right in pairwise(edges)]
        if len(done) + len(waiting) > MOST_CHOICES:
            raise ToolFailed(f"The glob stands for more than {MOST_CHOICES} others; use fewer braces.")
    return done


def _brace(text: str) -> tuple[int, list[int], int] | None:
    """The first brace that has a partner and a choice: where it starts, its commas, where it ends."""
    open_braces: list[tuple[int, list[int]]] = []
    for place, character in enumerate(text):
        if character == "{":
            open_braces.append((place, []))
        elif character == "," and open_braces:
            open_braces[-1][1].append(place)
        elif character == "}" and open_braces:
            start, commas = open_braces.pop()
            if commas:
                return start, commas, place
    return None
