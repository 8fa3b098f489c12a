"""All toolsets of the process, by the names that the configuration uses.

Guarantee: a registry never changes once made. Resolving the same names gives an equal, immutable toolset every time,
in whatever order they are given; at most `RESOLVED` resolved ones are kept.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tidegate.errors import Misconfigured
from tidegate.lifetimes import BoundedCache, CacheStats
from tidegate.tools.ask import ask_user
from tidegate.tools.clock import clock
from tidegate.tools.files import edit_file, list_files, read_file, search_files, write_file
from tidegate.tools.output import output
from tidegate.tools.process import process
from tidegate.tools.terminal import terminal
from tidegate.tools.toolset import Toolset
from tidegate.tools.web import web_fetch, web_search

RESOLVED = 8
"""Agents share few combinations of toolsets, and composing one is cheap."""


READS_THE_REST = "output"
SPOOLING = frozenset({"files", "terminal", "web"})
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

                close = difflib.get_close_matches(name, self.names, n=1, cutoff=0.6)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(self.names) or 'none'}"
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


def builtin_toolsets() -> dict[str, Toolset]:
    """The toolsets that come with the gateway. The dictionary is the caller's own."""
    return {
        "ask": Toolset((ask_user,)),
        "clock": Toolset((clock,)),
        "files": Toolset((read_file, write_file, edit_file, list_files, search_files)),
        "output": Toolset((output,)),
        "terminal": Toolset((terminal, process)),
        "web": Toolset((web_fetch, web_search)),
    }
