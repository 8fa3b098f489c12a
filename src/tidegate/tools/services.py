"""What tools may reach of the house beside workspace and spool: what was said, what is remembered, skills, agents.

Guarantee: these are protocols of whole-process services; what a call may see or change is decided by them, from the
context that they are given (session, principal, agent), never from a tool's arguments. A service that no agent of this
gateway uses is None, and nothing of it is loaded.
"""

from typing import TYPE_CHECKING, Literal, Protocol

from tidegate.values import Frozen

if TYPE_CHECKING:
    from tidegate.tools.tool import ToolContext


class Recall(Protocol):
    """Looks up what was said."""

    async def search(
        self, ctx: "ToolContext", query: str, *, regex: bool, everywhere: bool, after: str, limit: int
    ) -> str: ...

    async def describe(self, ctx: "ToolContext", summary: int | None, *, after: int) -> str: ...

    async def expand(
        self, ctx: "ToolContext", *, summary: int | None, first: int | None, last: int | None, offset: int, session: str
    ) -> str: ...


class Notes(Protocol):
    """What is remembered."""

    async def remember(
        self, ctx: "ToolContext", text: str, *, about: Literal["person", "agent"], replaces: int | None
    ) -> str: ...

    async def forget(self, ctx: "ToolContext", note: int) -> str: ...


class Skills(Protocol):
    """Reads a skill, or a file of its folder."""

    async def read(self, ctx: "ToolContext", name: str, file: str) -> str: ...


class Delegates(Protocol):
    """Has another agent work on a task, inside the turn."""

    async def work(self, ctx: "ToolContext", agent: str, task: str) -> str:
        """Its answer, said to be that; ToolFailed when it has none."""
        ...


class ToolServices(Frozen, frozen=True):
    recall: Recall | None = None
    notes: Notes | None = None
    skills: Skills | None = None
    delegates: Delegates | None = None
