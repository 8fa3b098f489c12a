"""Import and checks of the plug-ins that the configuration uses, before a gateway starts. No plug-in is created or
started.

A broken plug-in that an agent needs causes an error that names the agents. Any other broken plug-in causes a warning,
and the gateway starts without it. A plug-in that every user of the machine can modify causes a warning, too. If there
is no plug-in with the configured name, that is always an error.
"""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tidegate.config import FILE_NAME, Config
from tidegate.plugins.host import needed
from tidegate.plugins.kinds import KINDS
from tidegate.plugins.loading import LoadedPlugin, PluginInvalid, PluginUse, load
from tidegate.tools import BUILTIN


class FoundPlugins(NamedTuple):
    """The plug-ins found, with their errors and warnings. `unknown_toolsets` are names in the agents' `tools` settings
    that belong neither to the gateway nor to a plug-in."""

    uses: tuple[PluginUse, ...]
    loaded: tuple[LoadedPlugin, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    unknown_toolsets: tuple[str, ...]


def plugin_uses(config: Config) -> Iterator[PluginUse]:
    """Yields the plug-ins that agents use, in the order in which they are started."""
    if config.memory.provider and (agents := _agents(config, "memory")):
        yield PluginUse(kind="memory", name=config.memory.provider, agents=agents)
    if config.context.index and (agents := _agents(config, "context")):
        yield PluginUse(kind="index", name=config.context.index, agents=agents)
    for name in dict.fromkeys(name for agent in config.agents.values() for name in agent.tools):
        if name not in BUILTIN:
            yield PluginUse(kind="toolset", name=name, agents=_agents(config, name))


def find_plugins(config: Config) -> FoundPlugins:
    loaded: list[LoadedPlugin] = []
    errors: list[str] = []
    warnings: list[str] = []
    unknown: list[str] = []
    uses = tuple(plugin_uses(config))
    for use in uses:
        try:
            found = load(use, config.home)
            loaded.append(found)
            if _is_open_to_all(found.file):
                warnings.append(
                    f"{found.file}: every user of this machine can change this plug-in, which runs with the gateway's "
                    f"permissions; chmod o-w {found.file}"
                )
        except PluginInvalid as error:
            if not error.found and use.kind == "toolset":
                unknown.append(use.name)
            elif not error.found:
                errors.append(f"{FILE_NAME}: {use.setting} = {use.name!r}: {error.message}")
            elif KINDS[use.kind].required:
                errors.append(f"{FILE_NAME}: {use.setting}: {needed(use, error.message)}")
            else:
                warnings.append(
                    f"{FILE_NAME}: {use.setting}: the plug-in {use.name!r} is not used: {error.message}; fix it"
                )
    return FoundPlugins(uses, tuple(loaded), tuple(errors), tuple(warnings), tuple(unknown))


def _is_open_to_all(file: str) -> bool:
    try:
        return bool(Path(file).stat().st_mode & stat.S_IWOTH)
    except OSError:  # a package that is not stored as a file
        return False


def _agents(config: Config, toolset: str) -> tuple[str, ...]:
    return tuple(name for name, agent in config.agents.items() if toolset in agent.tools)
