"""The frozen beginning of a session: its system prompt and its tool list.

Guarantee: a pure function of the agent's settings, its toolset and the session's own extra prompt, with nothing in it
that varies by time, host or process, so that equal sessions share one prefix and a provider's cache of it.
"""

from tidegate.tools import Toolset
from tidegate.values import Prefix


def freeze(prompt: str, extra: str, tools: Toolset) -> Prefix:
    parts = [part for part in (prompt.strip(), extra.strip()) if part]
    return Prefix(prompt="\n\n".join(parts), tools=tools.definitions)
