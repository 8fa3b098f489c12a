"""Opening a gateway's plug-ins, in order and in a separate scope, before any session.

A broken plug-in prevents the gateway from starting if an agent needs it. Other broken plug-ins are only reported in the
log and the status.
"""

from collections.abc import Mapping

import msgspec

from tidegate.config import Config
from tidegate.errors import Misconfigured
from tidegate.gateway.preflight.plugins import FoundPlugins
from tidegate.lifetimes import Scope
from tidegate.plugins.host import Deadlines, PluginFailed, Plugins, needed
from tidegate.plugins.loading import described, place_of
from tidegate.security import Secret
from tidegate.tools import DEFAULT_OWNER, Tool, Toolset


async def open_plugins(
    config: Config,
    found: FoundPlugins,
    scope: Scope,
    secrets: Mapping[str, Secret],
    deadlines: Deadlines | None = None,
) -> tuple[Plugins, dict[str, Toolset]]:
    """Opens the plug-ins. Returns them, and the toolsets that they provide by name."""
    plugins = Plugins(
        config, scope.child("plug-ins"), found.uses, loaded=found.loaded, secrets=secrets, deadlines=deadlines
    )
    await plugins.open()
    toolsets: dict[str, Toolset] = {}
    for plugin in plugins.of_kind("toolset"):
        try:
            tools = tuple(plugin.object.tools)
        except Exception as error:  # `tools` is the plug-in's code
            file = plugin.status().file
            raise PluginFailed(needed(plugin.use, f"{place_of(error, file, file)}: {described(error)}")) from error
        if not all(isinstance(tool, Tool) for tool in tools):
            fault = f"{plugin.status().file}: not all of its tools are made with @tool"
            raise PluginFailed(needed(plugin.use, fault))
        try:
            toolsets[plugin.name] = Toolset(_owned(tool, plugin.name) for tool in tools)
        except Misconfigured as error:
            raise PluginFailed(needed(plugin.use, f"{plugin.status().file}: {error.message}")) from None
    return plugins, toolsets


def _owned(tool: Tool, plugin: str) -> Tool:
    if tool.owner != DEFAULT_OWNER:
        return tool
    return msgspec.structs.replace(tool, owner=f"the plug-in {plugin!r}")
