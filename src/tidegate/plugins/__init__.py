"""Plug-ins: the public types for code that extends the gateway, and the machinery that loads and runs this code.

A plug-in is an async function that creates one object of a declared kind:

    from tidegate.plugins import PluginContext, Toolset, plugin

    @plugin("toolset")
    async def make(ctx: PluginContext) -> Toolset: ...

Everything that a plug-in needs can be imported from this module. Names that are not listed in `__all__` may change in
any version. Importing this module imports no other part of the gateway, except that `tidegate.tools` is imported when
one of its names is used. docs/plugins.md describes plug-ins from the author's point of view.
"""

from typing import TYPE_CHECKING, Any

from tidegate.plugins.context import PluginContext
from tidegate.plugins.kinds import API_VERSION, Kind, PluginFactory, plugin
from tidegate.plugins.protocols import (
    Draft,
    IndexedMessage,
    IndexHit,
    IndexHits,
    MemoryProvider,
    Note,
    SearchIndex,
    UpdatableIndex,
)

if TYPE_CHECKING:
    from tidegate.tools import Result, Tool, ToolContext, Toolset, tool

_TOOLS = ("Result", "Tool", "ToolContext", "Toolset", "tool")

__all__ = [
    "API_VERSION",
    "Draft",
    "IndexHit",
    "IndexHits",
    "IndexedMessage",
    "Kind",
    "MemoryProvider",
    "Note",
    "PluginContext",
    "PluginFactory",
    "Result",
    "SearchIndex",
    "Tool",
    "ToolContext",
    "Toolset",
    "UpdatableIndex",
    "plugin",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name in _TOOLS:
        from importlib import import_module

        return getattr(import_module("tidegate.tools"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
