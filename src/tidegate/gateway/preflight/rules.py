"""The agents' rules, looked at before a gateway starts.

Guarantee: a rule that cannot be read is a fault, told with its agent and what is wrong with it; one that can never fit,
because it names no tool, argument or channel that there is, is a warning: whoever wrote it believes that it protects
something. Nothing is kept.
"""

import fnmatch
from collections.abc import Iterator

import msgspec

from tidegate.config import FILE_NAME, AgentSettings, Config
from tidegate.errors import Misconfigured
from tidegate.security.policy import PolicyRule, parse
from tidegate.tools import Tool, Toolset


def unreadable(config: Config) -> Iterator[str]:
    """A sentence for each rule that cannot be read."""
    for name, agent in config.agents.items():
        for line in agent.rules:
            try:
                parse(line)
            except Misconfigured as error:
                yield f"{FILE_NAME}: [agents.{name}] rules: {error.message}"


def pointless(name: str, agent: AgentSettings, tools: Toolset) -> Iterator[str]:
    """A sentence for each rule of the agent that fits nothing that its tools could do; all of them can be read."""
    for line in agent.rules:
        if (why := _never_fits(parse(line), tools)) is not None:
            yield f"{FILE_NAME}: [agents.{name}] rules: the rule {line!r} never fits: {why}"


def _never_fits(rule: PolicyRule, tools: Toolset) -> str | None:
    about = [tool for tool in tools.tools if not rule.tool or fnmatch.fnmatchcase(tool.name, rule.tool)]
    if rule.tool and not about:
        return f"the agent's tools are {', '.join(tools.names) or 'none'}"
    about = [tool for tool in about if not rule.effect or tool.effect == rule.effect]
    taken = {name for tool in about for name in _arguments(tool)}
    for name, _ in rule.arguments:
        if about and name not in taken:
            return f"no tool that it is about takes {name!r}; there are {', '.join(sorted(taken)) or 'no arguments'}"
    if rule.channel:
        from tidegate.turns import CHANNELS, DELEGATE  # a large package, and few rules name a channel

        known = [channel.name for channel in CHANNELS if channel.name != DELEGATE]  # a task has its giver's
        if rule.channel not in known:
            return f"there is no channel {rule.channel!r}; there are {', '.join(known)}"
    return None


def _arguments(tool: Tool) -> list[str]:
    schema = msgspec.json.decode(tool.definition.parameters)
    return list(schema.get("properties", {}))
