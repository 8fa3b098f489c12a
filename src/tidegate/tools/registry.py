"""All toolsets of the process, by the names that the configuration uses.

Guarantee: a registry never changes once made. Resolving the same names gives an equal, immutable toolset every time,
in whatever order they are given; at most `RESOLVED` resolved ones are kept.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType

from tidegate.errors import Misconfigured
from tidegate.lifetimes import BoundedCache, CacheStats
from tidegate.tools.tool import Tool
from tidegate.tools.toolset import Toolset

RESOLVED = 8
"""Agents share few combinations of toolsets, and composing one is cheap."""


READS_THE_REST = "output"
SPOOLING = frozenset({"delegate", "files", "skills", "terminal", "web"})
"""Toolsets whose results may be too long to be shown whole: with them comes the tool that reads the rest."""


class ToolRegistry:
    """Toolset names to toolsets, and the composition of several."""

    def __init__(self, toolsets: Mapping[str, Toolset]) -> None:
        self._toolsets: Mapping[str, Toolset] = MappingProxyType(dict(toolsets))
        self._resolved: BoundedCache[tuple[str, ...], Toolset] = BoundedCache("resolved toolsets", cap=RESOLVED)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._toolsets))

    def resolve(self, names: Iterable[str], *, where: str = "tools") -> Toolset:
        """The composition of the named toolsets. `where` is the setting that names them, for the message when one is
        not known or two are in conflict."""
        key = tuple(sorted(set(names)))
        if (known := self._resolved.get(key)) is not None:
            return known
        for name in key:
            if name not in self._toolsets:
                import difflib  # only a mistake needs it

                every = sorted({*self.names, *BUILTIN})
                close = difflib.get_close_matches(name, every, n=1, cutoff=0.6)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(every)}"
                raise Misconfigured(f"{where} names no toolset: there is no {name!r}; {hint}")
        try:
            resolved = Toolset.compose(*(self._toolsets[name] for name in (*key, *self._implied(key))))
        except Misconfigured as error:
            raise Misconfigured(f"{where}: {error.message}") from None
        self._resolved.put(key, resolved)
        return resolved

    def _implied(self, names: Iterable[str]) -> tuple[str, ...]:
        return (READS_THE_REST,) if SPOOLING.intersection(names) and READS_THE_REST in self._toolsets else ()

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
"""The toolsets that come with the gateway, each with its tools by module and name: what nobody uses is not loaded."""


def builtin_toolsets(names: Iterable[str] = BUILTIN) -> dict[str, Toolset]:
    """Those of the named ones that come with the gateway, and what they imply. The dictionary is the caller's own."""
    wanted = set(names)
    if SPOOLING & wanted:
        wanted.add(READS_THE_REST)
    return {name: Toolset(map(_load, tools)) for name, tools in BUILTIN.items() if name in wanted}


def _load(place: str) -> Tool:
    module, _, name = place.partition(".")
    found = getattr(import_module(f"tidegate.tools.{module}"), name)
    assert isinstance(found, Tool)
    return found
