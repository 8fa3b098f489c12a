"""The gateway's services that tools may use besides the workspace and the spool.

A service is identified by its type, which is a class or a protocol such as those below. The composition root
(`sessions/components.py`) provides services, and a tool requests one from the context of its call. Services live as
long as the process. What a call may see or change is determined by its context (session, principal, agent), never by
the tool's arguments. A service that no agent of this gateway uses is neither provided nor loaded.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from tidegate.tools.tool import ToolContext

T = TypeVar("T")


class Recall(Protocol):
    """Looks up earlier messages."""

    async def search(
        self, ctx: "ToolContext", query: str, *, exact: bool, regex: bool, everywhere: bool, after: str, limit: int
    ) -> str: ...

    async def describe(self, ctx: "ToolContext", summary: int | None, *, after: int) -> str: ...

    async def expand(
        self, ctx: "ToolContext", *, summary: int | None, first: int | None, last: int | None, offset: int, session: str
    ) -> str: ...


class Notes(Protocol):
    """Adds and removes notes."""

    async def remember(
        self, ctx: "ToolContext", text: str, *, about: Literal["person", "agent"], replaces: int | None
    ) -> str: ...

    async def forget(self, ctx: "ToolContext", note: int) -> str: ...


class Skills(Protocol):
    """Reads a skill, or a file in its folder."""

    async def read(self, ctx: "ToolContext", name: str, file: str) -> str: ...


class Delegates(Protocol):
    """Gives tasks to other agents within the turn."""

    async def work(self, ctx: "ToolContext", agent: str, task: str) -> str:
        """Returns the other agent's answer, labelled as such. Raises `ToolFailed` if there is no answer."""
        ...


class ToolServices:
    """Services by type. Immutable."""

    __slots__ = ("_by_type",)

    def __init__(self, services: Mapping[type, object] | None = None) -> None:
        self._by_type: Mapping[type, object] = MappingProxyType(dict(services or {}))

    def get(self, kind: type[T]) -> T | None:
        """Returns the service provided under this type, or None."""
        return cast(T | None, self._by_type.get(kind))
