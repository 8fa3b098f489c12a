"""All toolsets of the process, by the names that the configuration uses.

A registry never changes. Resolving the same names, in any order, returns an equal, immutable toolset every time; at
most `MOST_RESOLVED` composed toolsets are cached.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType

from tidegate.errors import Misconfigured
from tidegate.lifetimes import BoundedCache, CacheStats
from tidegate.tools.tool import Tool
from tidegate.tools.toolset import Toolset

MOST_RESOLVED = 8
"""Agents share few combinations of toolsets, and composing one is cheap."""


OUTPUT_TOOLSET = "output"
SPOOLING_TOOLSETS = frozenset({"delegate", "files", "skills", "terminal", "web"})
"""Toolsets whose results may be too long to show completely. They imply the toolset that reads the rest."""


class ToolRegistry:
    """Toolsets by name, and their composition."""

    def __init__(self, toolsets: Mapping[str, Toolset]) -> None:
        self._toolsets: Mapping[str, Toolset] = MappingProxyType(dict(toolsets))
        self._resolved: BoundedCache[tuple[str, ...], Toolset] = BoundedCache("resolved toolsets", cap=MOST_RESOLVED)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._toolsets))

    def adding(self, toolsets: Mapping[str, Toolset]) -> "ToolRegistry":
        """A registry with these toolsets as well. Built-in toolsets are not replaced."""
        return ToolRegistry({**toolsets, **self._toolsets})

    def resolve(self, names: Iterable[str], *, where: str = "tools") -> Toolset:
        """Composes the named toolsets. `where` is the setting that names them, for the error message if a name
        is unknown or two toolsets are in conflict."""
        key = tuple(sorted(set(names)))
        if (known := self._resolved.get(key)) is not None:
            return known
        for name in key:
            if name not in self._toolsets:
                import difflib  # needed only for the error message

                every = sorted({*self.names, *BUILTIN})
                close = difflib.get_close_matches(name, every, n=1, cutoff=0.6)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(every)}"
                raise Misconfigured(f"{where}: there is no toolset {name!r}; {hint}")
        try:
            resolved = Toolset.compose(*(self._toolsets[name] for name in (*key, *self._implied(key))))
        except Misconfigured as error:
            raise Misconfigured(f"{where}: {error.message}") from None
        self._resolved.put(key, resolved)
        return resolved

    def _implied(self, names: Iterable[str]) -> tuple[str, ...]:
        spooling = SPOOLING_TOOLSETS.intersection(names) and OUTPUT_TOOLSET in self._toolsets
        return (OUTPUT_TOOLSET,) if spooling else ()

    def stats(self) -> CacheStats:
        return self._resolved.stats()


BUILTIN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ask": ("ask.ask_user",),
        "clock": ("clock.clock",),
        "context": ("context.context_search", "context.context_describe", "context.context_expand"),
        "delegate": ("delegate.delegate",),
        "files": (
            "files.read_file",
            "files.write_file",
            "files.edit_file",
            "files.list_files",
            "files.search_files",
        ),
        "memory": ("memory.remember", "memory.forget"),
        "output": ("output.output",),
        "skills": ("skills.skill",),
        "terminal": ("terminal.terminal", "process.process"),
        "web": ("web.web_fetch", "web.web_search"),
    }
)
"""The toolsets that come with the gateway, with the module and name of each tool: unused modules are not loaded."""


def builtin_toolsets(names: Iterable[str] = BUILTIN) -> dict[str, Toolset]:
    """Loads the named toolsets that come with the gateway, and those that they imply. The caller owns the
    dictionary."""
    wanted = set(names)
    if SPOOLING_TOOLSETS & wanted:
        wanted.add(OUTPUT_TOOLSET)
    return {name: Toolset(map(_load, tools)) for name, tools in BUILTIN.items() if name in wanted}


def _load(place: str) -> Tool:
    module, _, name = place.partition(".")
    found = getattr(import_module(f"tidegate.tools.builtin.{module}"), name)
    assert isinstance(found, Tool)
    return found
