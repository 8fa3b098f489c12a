"""The frozen beginning of a session: its system prompt and its tool list.

Guarantee: a pure function of the agent's settings, what is remembered and found for it, its toolset and the session's
own extra prompt, with nothing in it that varies by time, host or process, so that equal sessions share one prefix and a
provider's cache of it. What the session itself brings stands last.
"""

from collections.abc import Iterable

from tidegate.tools import Toolset
from tidegate.values import Prefix

BETWEEN = "\n\n"

PROMPT, EXTRA = "prompt", "caller"
"""Names of the parts that every agent may have: its own prompt, and what the caller brings."""

Part = tuple[str, str]
"""The name of a part of the prompt, and its text."""


def part_of(prefix: Prefix, name: str) -> str:
    """The text of a part; empty when there is none of that name."""
    start = 0
    for part, length in prefix.parts:
        if part == name:
            return prefix.prompt[start : start + length]
        start += length + len(BETWEEN)
    return ""


def build_prefix(parts: Iterable[Part], tools: Toolset) -> Prefix:
    """Parts without text are left out."""
    given = [(name, stripped) for name, text in parts if (stripped := text.strip())]
    return Prefix(
        prompt=BETWEEN.join(text for _, text in given),
        tools=tools.definitions,
        parts=tuple((name, len(text)) for name, text in given) if len(given) > 1 else (),
    )
