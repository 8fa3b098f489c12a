"""Immutable sets of tools.

The names in a toolset are unique and acceptable to every provider. The order depends only on the names, and a toolset
cannot be changed. A tool that is listed twice is included once. Two different tools with the same name cause an error
that names both owners.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NoReturn

import msgspec

from tidegate.errors import Misconfigured
from tidegate.tools.tool import Tool
from tidegate.values import ToolDefinition

ACCEPTED_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Toolset:
    """Tools by name. Two toolsets are equal if their tools are equal. Use `Toolset.compose` to create one."""

    __slots__ = ("_by_name", "definitions", "digest", "tools")

    tools: tuple[Tool, ...]
    definitions: tuple[ToolDefinition, ...]
    digest: bytes
    """A digest of the definitions that a model sees."""
    _by_name: Mapping[str, Tool]

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        by_name: dict[str, Tool] = {}
        for tool in tools:
            if not ACCEPTED_NAME.fullmatch(tool.name):
                raise Misconfigured(
                    f"{tool.owner} provides a tool named {tool.name!r}; a name has 1 to 64 letters, digits, '_' and '-'"
                )
            known = by_name.setdefault(tool.name, tool)
            if known is not tool and not known.same_as(tool):
                raise Misconfigured(
                    f"{known.owner} and {tool.owner} both provide a tool named {tool.name!r}, but the two "
                    "tools differ; remove one of them"
                )
        ordered = tuple(by_name[name] for name in sorted(by_name))
        definitions = tuple(tool.definition for tool in ordered)
        set_once = object.__setattr__
        set_once(self, "tools", ordered)
        set_once(self, "definitions", definitions)
        set_once(self, "digest", hashlib.sha256(msgspec.json.encode(definitions)).digest())
        set_once(self, "_by_name", MappingProxyType({tool.name: tool for tool in ordered}))

    @classmethod
    def compose(cls, *toolsets: "Toolset") -> "Toolset":
        return cls(tool for toolset in toolsets for tool in toolset.tools)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)

    def get(self, name: str) -> Tool | None:
        return self._by_name.get(name)

    def __len__(self) -> int:
        return len(self.tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Toolset) and self.tools == other.tools

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Toolset({', '.join(self.names)})"

    def __setattr__(self, name: str, _value: object) -> NoReturn:
        raise AttributeError(f"a toolset is immutable (cannot set {name}); compose a new one")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a toolset is immutable (cannot delete {name}); compose a new one")
