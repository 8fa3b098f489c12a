"""Checks of the agents' approval rules, run before a gateway starts.

An invalid rule causes an error that names the agent and the fault. A rule that names a tool, argument or channel that
does not exist can never match. Such a rule is reported with a warning, since its author believes that it protects
something.
"""

import fnmatch
from collections.abc import Iterator

import msgspec

from tidegate.config import FILE_NAME, AgentSettings, Config
from tidegate.errors import Misconfigured
from tidegate.security.policy import PolicyRule, parse
from tidegate.tools import Tool, Toolset


def invalid(config: Config) -> Iterator[str]:
    """Yields an error for each rule that cannot be parsed."""
    for name, agent in config.agents.items():
        for line in agent.rules:
            try:
                parse(line)
            except Misconfigured as error:
                yield f"{FILE_NAME}: [agents.{name}] rules: {error.message}"


def pointless(name: str, agent: AgentSettings, tools: Toolset) -> Iterator[str]:
    """Yields a warning for each of the agent's rules that can never match. All rules must be valid."""
    for line in agent.rules:
        if (why := _why_never_matches(parse(line), tools)) is not None:
            yield f"{FILE_NAME}: [agents.{name}] rules: the rule {line!r} never matches: {why}"


def _why_never_matches(rule: PolicyRule, tools: Toolset) -> str | None:
    about = [tool for tool in tools.tools if not rule.tool or fnmatch.fnmatchcase(tool.name, rule.tool)]
    if rule.tool and not about:
        return f"the agent's tools are {', '.join(tools.names) or 'none'}"
    about = [tool for tool in about if not rule.effect or tool.effect == rule.effect]
    taken = {name for tool in about for name in _arguments(tool)}
    for name, _ in rule.arguments:
        if about and name not in taken:
            arguments = ", ".join(sorted(taken)) or "none"
            return f"no tool to which it applies has the argument {name!r}; the arguments are {arguments}"
    if rule.channel:
        from tidegate.turns import CHANNELS, DELEGATE  # a large package, and few rules name a channel

        known = [
            channel.name for channel in CHANNELS if channel.name != DELEGATE
        ]  # a delegated task has the channel of its parent
        if rule.channel not in known:
            return f"there is no channel {rule.channel!r}; the channels are {', '.join(known)}"
    return None


def _arguments(tool: Tool) -> list[str]:
    schema = msgspec.json.decode(tool.definition.parameters)
    return list(schema.get("properties", {}))
