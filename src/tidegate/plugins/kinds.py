"""The kinds of plug-ins, and the declaration that makes a function a plug-in.

`KINDS` lists all kinds: a new kind requires an entry there, and code in the package that uses it. A plug-in is refused
if it declares a newer interface version than `API_VERSION`.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from tidegate.plugins.context import PluginContext
from tidegate.values import Frozen

API_VERSION = 1
"""Increased when the interface gains a feature that plug-ins may rely on. Version 1 remains supported."""

KindName = Literal["toolset", "memory", "index"]

Make = Callable[[PluginContext], Awaitable[Any]]


class Kind(Frozen, frozen=True):
    """A kind of plug-in. `members` are the attributes that its objects must have, as defined by the protocol
    `protocol`. `owner` is the package that uses the objects. `setting` is the setting that names plug-ins of this kind.
    A broken plug-in prevents the gateway from starting only if its kind is `required`; otherwise, the owner can work
    without it."""

    name: KindName
    title: str
    protocol: str
    members: tuple[str, ...]
    owner: str
    setting: str
    required: bool


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind(
                name="toolset",
                title="toolset",
                protocol="tidegate.plugins.Toolset",
                members=("tools",),
                owner="tidegate.tools",
                setting="[agents.NAME] tools",
                required=True,
            ),
            Kind(
                name="memory",
                title="memory provider",
                protocol="tidegate.plugins.MemoryProvider",
                members=("forget", "listing", "part", "remember"),
                owner="tidegate.memory",
                setting="[memory] provider",
                required=False,
            ),
            Kind(
                name="index",
                title="search index",
                protocol="tidegate.plugins.SearchIndex",
                members=("search",),
                owner="tidegate.recall",
                setting="[context] index",
                required=False,
            ),
        )
    }
)


class PluginFactory(Frozen, frozen=True):
    """A declared plug-in: the function that creates its object, the object's kind, and the interface version for which
    the function was written."""

    kind: str
    make: Make
    api: int = 1

    @property
    def place(self) -> str:
        """The file and line where the function is defined."""
        code = getattr(self.make, "__code__", None)
        return f"{code.co_filename}, line {code.co_firstlineno}" if code is not None else repr(self.make)


def plugin(kind: str, *, api: int = 1) -> Callable[[Make], PluginFactory]:
    """Declares `async def make(ctx: PluginContext)` as a plug-in of this kind. `api` is the interface version that it
    needs."""

    def declare(make: Make) -> PluginFactory:
        return PluginFactory(kind=kind, make=make, api=api)

    return declare
