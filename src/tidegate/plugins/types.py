"""The interfaces of memory providers and search indexes, and the values that they exchange with the gateway.

The gateway calls a plug-in only for actions that it has allowed, bounds the time of every call, and checks every
result. An object may also have the methods `start` and `stop` without arguments (see `PluginContext`).
"""

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from tidegate.values import Frozen

About = Literal["person", "agent"]
Origin = Literal["tool", "person", "end"]


class Note(Frozen, frozen=True):
    """One note: a line of text with a number. `author` is the id of the principal who wrote it, directly or in the
    conversation `session`; `by` is the author's name for display."""

    id: int
    text: str
    author: str
    by: str
    source: Origin
    at: float
    session: str | None = None


class Draft(Frozen, frozen=True):
    """A note to be stored. `whose` is a principal's id or an agent's name. `replaces` is the number of the note that it
    replaces. A draft whose `key` was used before is not stored again."""

    about: About
    whose: str
    text: str
    author: str
    by: str
    source: Origin
    session: str | None = None
    replaces: int | None = None
    key: str = ""


@runtime_checkable
class MemoryProvider(Protocol):
    """Stores notes. `LookupError` means that there is no note with this number; users see any other exception as "the
    memory does not answer"."""

    async def part(self, agent: str, principal: str) -> str:
        """The notes at the beginning of this agent's conversations with this person, as lines of text, the most
        important first; empty if there are none."""
        ...

    async def listing(self, about: About, whose: str) -> Sequence[Note]: ...

    async def remember(self, draft: Draft) -> Note: ...

    async def forget(self, about: About, whose: str, note: int) -> None: ...


class IndexHit(Frozen, frozen=True):
    """A message that an index has found, by its number in the store."""

    message: int


class IndexHits(Frozen, frozen=True):
    """Hits, best first. `after` is the index's own cursor for the next page; empty if there are no more."""

    hits: tuple[IndexHit, ...] = ()
    after: str = ""


class IndexedMessage(Frozen, frozen=True):
    """A message as an index receives it; `message` is its number in the store, by which hits refer to it."""

    message: int
    session: str
    principal: str
    role: str
    at: float
    text: str


@runtime_checkable
class SearchIndex(Protocol):
    """Finds messages. `session` limits the search; None means all sessions of the principal."""

    async def search(self, query: str, *, principal: str, session: str | None, limit: int, after: str) -> IndexHits: ...


@runtime_checkable
class UpdatableIndex(Protocol):
    """An index that is fed with messages and notified of deleted sessions."""

    async def add(self, messages: Sequence[IndexedMessage]) -> None: ...

    async def forget(self, session: str) -> None: ...
