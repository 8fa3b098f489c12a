"""The frozen prefix of a session: its system prompt and its tool list.

Guarantee: a prefix is a pure function of the agent's settings, the notes and files found for the agent, its toolset and
the session's extra prompt. It does not depend on the time, host or process, so identical sessions share one prefix and
one entry in the provider's cache. The session's extra prompt comes last.
"""

from collections.abc import Iterable

from tidegate.tools import Toolset
from tidegate.values import Prefix

BETWEEN = "\n\n"

PROMPT, EXTRA = "prompt", "caller"
"""Names of the parts that any agent may have: its own prompt and the caller's extra prompt."""

Part = tuple[str, str]
"""The name and text of one part of the prompt."""


def part_of(prefix: Prefix, name: str) -> str:
    """Returns the text of the part with this name, or an empty text if there is no such part."""
    start = 0
    for part, length in prefix.parts:
        if part == name:
            return prefix.prompt[start : start + length]
        start += length + len(BETWEEN)
    return ""


def build_prefix(parts: Iterable[Part], tools: Toolset) -> Prefix:
    """Builds a prefix from the parts that are not empty."""
    filled = [(name, stripped) for name, text in parts if (stripped := text.strip())]
    return Prefix(
        prompt=BETWEEN.join(text for _, text in filled),
        tools=tools.definitions,
        parts=tuple((name, len(text)) for name, text in filled) if len(filled) > 1 else (),
    )
