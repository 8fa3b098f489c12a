"""The interfaces that memory providers and search indexes implement, and the values that they exchange with the
gateway.

Before it calls a plug-in, the gateway checks whether the action is allowed. It limits the time of every call and checks
every result. An object may also have methods `start` and `stop` without arguments (see `PluginContext`).
"""

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from tidegate.values import Frozen

About = Literal["person", "agent"]
Origin = Literal["tool", "person", "end"]


class Note(Frozen, frozen=True):
    """A note: a line of text with a number. `author` is the id of the principal who wrote it, either directly or in the
    conversation `session`. `by` is the author's display name."""

    id: int
    text: str
    author: str
    by: str
    source: Origin
    at: float
    session: str | None = None


class Draft(Frozen, frozen=True):
    """A note to be stored. `whose` is a principal's id or an agent's name. `replaces` is the number of an existing note
    to replace. A draft is not stored if its `key` has been used before."""

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
    """Stores notes. Raises `LookupError` if there is no note with the given number. Users see any other exception as
    "the memory does not answer"."""

    async def part(self, agent: str, principal: str) -> str:
        """Returns the notes for the beginning of this agent's conversations with this person, as lines of text, most
        important first, or an empty string if there are none."""
        ...

    async def listing(self, about: About, whose: str) -> Sequence[Note]: ...

    async def remember(self, draft: Draft) -> Note: ...

    async def forget(self, about: About, whose: str, note: int) -> None: ...


class IndexHit(Frozen, frozen=True):
    """A message found by an index. `message` is its number in the store."""

    message: int


class IndexHits(Frozen, frozen=True):
    """Hits, best first. `after` is the cursor for the next page, in a format chosen by the index. It is empty if there
    are no more hits."""

    hits: tuple[IndexHit, ...] = ()
    after: str = ""


class IndexedMessage(Frozen, frozen=True):
    """A message as passed to an index. `message` is its number in the store, to which hits refer."""

    message: int
    session: str
    principal: str
    role: str
    at: float
    text: str


@runtime_checkable
class SearchIndex(Protocol):
    """Finds messages. `session` limits the search to one session; None searches all of the principal's sessions."""

    async def search(self, query: str, *, principal: str, session: str | None, limit: int, after: str) -> IndexHits: ...


@runtime_checkable
class UpdatableIndex(Protocol):
    """An index that receives new messages and is notified when a session is deleted."""

    async def add(self, messages: Sequence[IndexedMessage]) -> None: ...

    async def forget(self, session: str) -> None: ...
