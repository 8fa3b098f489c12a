"""All of the process's toolsets, by the names used in the configuration.

A registry is immutable. Resolving the same names, in any order, always returns an equal, immutable toolset. At most
`MOST_RESOLVED` composed toolsets are cached.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from tidegate.errors import Misconfigured
from tidegate.lifetimes import BoundedCache, CacheStats
from tidegate.tools import builtin
from tidegate.tools.tool import Tool
from tidegate.tools.toolset import Toolset

MOST_RESOLVED = 8
"""Maximum number of cached composed toolsets. Agents use few different combinations of toolsets, and composing one is
cheap."""


OUTPUT_TOOLSET = "output"
"""The toolset that reads the rest of long results. It is added automatically if a tool may return such results."""


class Toolsets:
    """Toolsets by name, and their composition."""

    def __init__(self, toolsets: Mapping[str, Toolset]) -> None:
        self._toolsets: Mapping[str, Toolset] = MappingProxyType(dict(toolsets))
        self._resolved: BoundedCache[tuple[str, ...], Toolset] = BoundedCache("resolved toolsets", cap=MOST_RESOLVED)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._toolsets))

    def adding(self, toolsets: Mapping[str, Toolset]) -> "Toolsets":
        """Returns a registry that also contains these toolsets. The toolsets cannot replace built-in ones."""
        implied = builtin_toolsets((OUTPUT_TOOLSET,)) if _has_long_results(toolsets.values()) else {}
        return Toolsets({**implied, **toolsets, **self._toolsets})

    def resolve(self, names: Iterable[str], *, where: str = "tools") -> Toolset:
        """Composes the named toolsets. `where` is the setting that names them; it is used in the error message if a
        name is unknown or two toolsets conflict."""
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
        is_needed = _has_long_results(self._toolsets[name] for name in names) and OUTPUT_TOOLSET in self._toolsets
        return (OUTPUT_TOOLSET,) if is_needed else ()

    def stats(self) -> CacheStats:
        return self._resolved.stats()


def _builtin_names() -> frozenset[str]:
    """Returns the names of the modules in `builtin/`, found by their files without importing them."""
    return frozenset(module.name for module in iter_modules(builtin.__path__))


BUILTIN = _builtin_names()
"""The names of the toolsets that come with the gateway."""


def builtin_toolsets(names: Iterable[str] = BUILTIN) -> dict[str, Toolset]:
    """Imports the named toolsets that come with the gateway. If one of them needs the toolset that reads long results,
    imports that toolset as well. The caller owns the dictionary."""
    found = {name: _imported(name) for name in sorted(BUILTIN.intersection(names))}
    if OUTPUT_TOOLSET not in found and _has_long_results(found.values()):
        found[OUTPUT_TOOLSET] = _imported(OUTPUT_TOOLSET)
    return found


def _imported(name: str) -> Toolset:
    module = import_module(f"{builtin.__name__}.{name}")
    return Toolset(value for value in vars(module).values() if isinstance(value, Tool))


def _has_long_results(toolsets: Iterable[Toolset]) -> bool:
    return any(tool.long_results for toolset in toolsets for tool in toolset)
