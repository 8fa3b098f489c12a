"""Glob matching of paths.

Matching time is at most proportional to the length of the path times the length of the glob, whatever they contain.
`*`, `?` and `[…]` match within one name, `**` matches any number of folders, and `{a,b}` matches one of several texts.
A glob without a `/` matches names at every depth; one with a `/` matches whole paths relative to the searched folder;
one that ends with a `/` matches everything below.
"""

import fnmatch
import re
from collections.abc import Sequence
from itertools import pairwise

from tidegate.errors import ToolFailed

LONGEST = 1000
MOST_CHOICES = 64
"""Maximum number of alternatives in `{…}`, which are tried one by one."""


class Glob:
    """A glob written by a model; an empty one matches everything."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST or "\0" in text:
            raise ToolFailed(f"The glob must be a text of at most {LONGEST} characters, such as **/*.py.")
        self._choices = [_segments(choice) for choice in _expanded(text)] if text else []

    def matches(self, path: str) -> bool:
        if not self._choices:
            return True
        names = path.split("/")
        return any(_matches(segments, names) for segments in self._choices)


_Segment = re.Pattern[str] | None  # None matches any number of folders


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
            # The translated pattern never backtracks over a star that has already matched.
            segments.append(re.compile(fnmatch.translate(part)))
        elif not segments or segments[-1] is not None:
            segments.append(None)
    return segments


def _matches(segments: Sequence[_Segment], names: Sequence[str]) -> bool:
    """Matches segment by segment, keeping track of how many leading names the segments so far can match."""
    reached = {0}
    for place, segment in enumerate(segments):
        if segment is None:
            first = min(reached) + (place == len(segments) - 1)  # `a/**` matches everything below a, but not a itself
            reached = set(range(first, len(names) + 1))
        else:
            reached = {index + 1 for index in reached if index < len(names) and segment.match(names[index])}
        if not reached:
            return False
    return len(names) in reached


def _expanded(text: str) -> list[str]:
    """Returns all texts that result from expanding the braces. An unbalanced brace is an ordinary character."""
    done: list[str] = []
    waiting = [text]
    while waiting:
        part = waiting.pop()
        found = _brace(part)
        if found is None:
            done.append(part)
        else:
            start, commas, end = found
            edges = [start, *commas, end]
            waiting += [part[:start] + part[left + 1 : right] + part[end + 1 :] for left, right in pairwise(edges)]
        if len(done) + len(waiting) > MOST_CHOICES:
            raise ToolFailed(f"The glob expands to more than {MOST_CHOICES} alternatives; use fewer braces.")
    return done


def _brace(text: str) -> tuple[int, list[int], int] | None:
    """Returns the first balanced pair of braces that contains a comma, as the positions of its start, its commas and
    its end."""
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
