"""Services of the gateway that tools may use, besides workspace and spool: recall, notes, skills, delegation.

These are protocols of services with process lifetime. The services decide what a call may see or change, from the
context that they receive (session, principal, agent) and never from a tool's arguments. A service that no agent of this
gateway uses is None and is not loaded.
"""

from typing import TYPE_CHECKING, Literal, Protocol

from tidegate.values import Frozen

if TYPE_CHECKING:
    from tidegate.tools.tool import ToolContext


class Recall(Protocol):
    """Looks up earlier messages."""

    async def search(
        self, ctx: "ToolContext", query: str, *, regex: bool, everywhere: bool, after: str, limit: int
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
    """Gives tasks to other agents, inside the turn."""

    async def work(self, ctx: "ToolContext", agent: str, task: str) -> str:
        """Returns the agent's answer, marked as such; raises `ToolFailed` if it gave none."""
        ...


class ToolServices(Frozen, frozen=True):
    recall: Recall | None = None
    notes: Notes | None = None
    skills: Skills | None = None
    delegates: Delegates | None = None
