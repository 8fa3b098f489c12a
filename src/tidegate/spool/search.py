"""A search in a spooled result.

Guarantee: it takes bounded time, memory and text, whatever the pattern: it runs in a child, which is ended when the
pattern runs away. What is shown says where each place is and how to go on; nothing is left out silently.
"""

from pathlib import Path
from typing import Any

from tidegate.errors import ToolFailed
from tidegate.spool.jobs.runner import JobRunner
from tidegate.values import Frozen

SECONDS = 10.0
"""After which a search says how far it came: a gigabyte of short lines takes about as long."""

GRACE = 5.0
"""More, for the child to begin and to notice that its time is over; then the pattern has run away."""

MEMORY_BYTES = 256 * 1024 * 1024
"""Of the child; it holds a piece of a line at a time."""

PATTERN_CHARACTERS = 1000


class ResultQuery(Frozen, frozen=True):
    """What is looked for, and where: `pattern` as it stands or as a regular expression, after `offset` lines or `byte`
    bytes; at most `limit` places, in `max_bytes` and `max_lines`."""

    pattern: str
    regex: bool
    offset: int
    byte: int
    limit: int
    max_bytes: int
    max_lines: int


async def search(workers: JobRunner, path: Path, query: ResultQuery) -> str:
    """FileNotFoundError when it is gone."""
    if not query.pattern or len(query.pattern) > PATTERN_CHARACTERS:
        raise ToolFailed(f"A search needs a text of 1 to {PATTERN_CHARACTERS} characters.")
    order = {
        "path": str(path),
        "pattern": query.pattern,
        "regex": query.regex,
        "offset": query.offset,
        "byte": query.byte,
        "limit": min(query.limit, query.max_lines),
        "bytes": query.max_bytes,
        "seconds": SECONDS,
    }
    try:
        found = await workers.run("search_job", order, within=SECONDS + GRACE, memory=MEMORY_BYTES)
    except TimeoutError:
        raise ToolFailed("This regular expression takes too long; use a simpler one, or a plain text.") from None
    if "gone" in found:
        raise FileNotFoundError(path)
    if "wrong" in found:
        raise ToolFailed(f"This is no regular expression: {found['wrong']}.")
    return _shown(found)


def _shown(found: dict[str, Any]) -> str:
    places = found["places"]
    lines = [f"{place['line']} (byte {place['byte']}): {place['text']}" for place in places]
    count = f"{len(places)} place{'s' * (len(places) != 1)}" if places else "nothing found"
    if "more" in found:
        lines.append(f"[{count}, and there are more; go on with byte={found['more']}]")
    elif "stopped" in found:
        lines.append(f"[{count} in {SECONDS:g} s, and not all was searched; go on with byte={found['stopped']}]")
    else:
        lines.append(f"[{count}, up to the end]")
    return "\n".join(lines)
