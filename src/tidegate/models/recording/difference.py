"""Differences between two requests.

The first difference is described by its path in the JSON and an excerpt from each request. All differences are counted,
to find the nearest of many requests. All functions are pure.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

SHOWN = 60
"""Length of each excerpt in characters: enough to recognise a date or a word."""
BEFORE = 15
"""Number of characters in an excerpt before the difference."""


class Difference(NamedTuple):
    """One difference. `place` is a path such as `messages[2].content`, or empty for the whole body."""

    place: str
    recorded: str
    asked: str


_ABSENT: Any = msgspec.UNSET


def differences(recorded: Any, asked: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields each differing path with both values, in the order of the new request (`asked`)."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for name in (*asked, *(name for name in recorded if name not in asked)):
            inner = f"{place}.{name}" if place else name
            yield from differences(recorded.get(name, _ABSENT), asked.get(name, _ABSENT), inner)
    elif isinstance(recorded, list) and isinstance(asked, list):
        for number in range(max(len(recorded), len(asked))):
            one = recorded[number] if number < len(recorded) else _ABSENT
            other = asked[number] if number < len(asked) else _ABSENT
            yield from differences(one, other, f"{place}[{number}]")
    elif type(recorded) is not type(asked) or recorded != asked:
        yield place, recorded, asked


def described(recorded: Any, asked: Any) -> tuple[Difference, int] | None:
    """Returns the first difference and the number of differing values, or None if there are none. If a value is missing
    on one side, every value inside it counts, so that requests of the same shape count as nearer."""
    first: Difference | None = None
    count = 0
    for place, one, other in differences(recorded, asked):
        count += max(_leaves(one), _leaves(other))
        if first is None:
            first = Difference(place, *_shown(one, other))
    return None if first is None else (first, count)


def _leaves(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(1, sum(map(_leaves, inner)))


def _shown(one: Any, other: Any) -> tuple[str, str]:
    if not (isinstance(one, str) and isinstance(other, str)):
        return _written(one), _written(other)
    shorter = min(len(one), len(other))
    common = next((place for place in range(shorter) if one[place] != other[place]), shorter)
    start = max(0, common - BEFORE)
    return repr(_excerpt(one, start)), repr(_excerpt(other, start))


def _written(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    return repr(_excerpt(value, 0)) if isinstance(value, str) else _excerpt(msgspec.json.encode(value).decode(), 0)


def _excerpt(text: str, start: int) -> str:
    cut = text[start : start + SHOWN]
    return f"{'…' if start else ''}{cut}{'…' if start + SHOWN < len(text) else ''}"
