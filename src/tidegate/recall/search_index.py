"""Plug-in search indexes, such as vector indexes or external services.

An index is found only by the name in the configuration, in a file of the home folder or an installed package. It is
made when the process enters it, closed with the process, and on the ledger meanwhile. Every call to it has a time
limit, and the number of concurrent calls is bounded. Its results are claims that the caller checks against the store.
It is fed from the store, in order, at least once, outside of turns.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from anyio import to_thread

from tidegate.errors import Misconfigured
from tidegate.lifetimes import Holding, Scope
from tidegate.log import Log
from tidegate.store import SearchableMessage, Store, search
from tidegate.tools import plugins
from tidegate.values import Frozen

T = TypeVar("T")
log = Log(__name__)

GROUP = "tidegate.indexes"
FOLDER = "indexes"
SECONDS = 5.0
"""For one answer; after that the full-text index is used."""
ADD_SECONDS = 60.0
"""For one batch: an external service may have to be called."""
CLOSE_SECONDS = 5.0
AT_ONCE = 8
"""Calls in progress; beyond this a hung index is not called any more."""
BATCH = 200
BATCH_CHARACTERS = 1_000_000
"""Characters of messages in one batch."""
BATCHES = 20
"""Batches in one run of the timer."""


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

    @classmethod
    def from_row(cls, row: SearchableMessage) -> Self:
        return cls(
            message=row.id, session=row.session, principal=row.principal, role=row.role, at=row.at, text=row.text
        )


@runtime_checkable
class SearchIndex(Protocol):
    """Finds messages. `session` limits the search; None means all sessions of the principal."""

    name: str

    async def search(self, query: str, *, principal: str, session: str | None, limit: int, after: str) -> IndexHits: ...

    async def close(self) -> None: ...


@runtime_checkable
class UpdatableIndex(Protocol):
    """An index that is fed with messages, and told about deleted sessions."""

    async def add(self, messages: Sequence[IndexedMessage]) -> None: ...

    async def forget(self, session: str) -> None: ...


Make = Callable[[Path], SearchIndex]
"""Makes an index without opening anything yet; its argument is the gateway's home folder."""


def find_index(name: str, home: Path) -> Make:
    """The function `make` of the file indexes/NAME.py in the home folder, or the entry point of that name in a
    package."""
    file = home / FOLDER / f"{name}.py"
    found: Make = plugins.load_function(name, file, "make", group=GROUP, kind="index", setting="[context] index")
    return found


class IndexUnanswered(Exception):
    """The index did not answer. The text says why, as the end of a sentence."""


class PluginIndex:
    """One plug-in index. Process lifetime: it is unavailable until it is entered."""

    def __init__(self, name: str, home: Path, scope: Scope, store: Store) -> None:
        self.name = name
        self._home = home
        self._scope = scope
        self._store = store
        self._index: SearchIndex | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        scope.account.ledger.view("search index", self._measure)

    async def __aenter__(self) -> Self:
        make = await to_thread.run_sync(find_index, self.name, self._home)
        try:
            made = make(self._home)
        except Exception as error:
            raise Misconfigured(f"The index {self.name!r} cannot be made ({type(error).__name__}: {error}).") from error
        if not isinstance(made, SearchIndex):
            raise Misconfigured(f"The index {self.name!r} is incomplete: it needs a name, search and close.")
        self._index = made
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        index, self._index = self._index, None
        for call in self._calls:
            call.cancel()
        if index is not None:
            async with asyncio.timeout(CLOSE_SECONDS):
                await index.close()

    def _measure(self) -> Iterator[tuple[str, Holding]]:
        if self._index is not None:
            yield "process", Holding(1 + len(self._calls))

    @property
    def is_open(self) -> bool:
        return self._index is not None

    async def search(self, query: str, *, principal: str, session: str | None, limit: int, after: str) -> IndexHits:
        """The hits; IndexUnanswered if the index fails, hangs, or returns something else."""
        index = self._index
        if index is None:
            raise IndexUnanswered("is not open")

        async def ask() -> Any:
            return await index.search(query, principal=principal, session=session, limit=limit, after=after)

        found = await self._bounded(ask, SECONDS)
        if not isinstance(found, IndexHits):
            raise IndexUnanswered("gave an invalid answer")
        return found

    async def _bounded(self, ask: Callable[[], Any], seconds: float) -> Any:
        """Runs in a task of the process: a call that does not end when it is cancelled is abandoned."""
        if len(self._calls) >= AT_ONCE:
            raise IndexUnanswered(f"has {AT_ONCE} unanswered calls")
        call = self._scope.start(_caught, ask, name=f"index {self.name}")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            done, _ = await asyncio.wait({call}, timeout=seconds)
        finally:
            call.cancel()
        if not done or call.cancelled():
            raise IndexUnanswered(f"did not answer in {seconds:g} s")
        found = call.result()
        if isinstance(found, Exception):
            log.warning("an index failed", index=self.name, error=f"{type(found).__name__}: {found}")
            raise IndexUnanswered(f"failed ({type(found).__name__})")
        return found

    async def feed(self) -> int:
        """Send new messages to the index and return their number. A batch that it does not accept is sent again
        later."""
        index, fed = self._index, 0
        if not isinstance(index, UpdatableIndex):
            return 0
        for _ in range(BATCHES):
            rows, mark = await self._store.read(search.next_messages, self.name, BATCH, BATCH_CHARACTERS)
            if mark is None:
                break
            if rows:
                batch = [IndexedMessage.from_row(row) for row in rows]
                try:
                    await self._bounded(lambda batch=batch: index.add(batch), ADD_SECONDS)
                except IndexUnanswered as error:
                    log.warning("an index does not accept messages", index=self.name, error=str(error))
                    break
            await self._store.write(search.save_index_mark, self.name, mark)
            fed += len(rows)
        return fed

    async def forget(self, session: str) -> None:
        """Tell the index about a deleted session. If it does not forget it, its hits are still not shown, since each is
        checked."""
        index = self._index
        if isinstance(index, UpdatableIndex):
            try:
                await self._bounded(lambda: index.forget(session), SECONDS)
            except IndexUnanswered as error:
                log.warning("an index does not forget a session", index=self.name, session=session, error=str(error))


async def _caught(ask: Callable[[], Any]) -> Any:
    """Returns the failure as a value: it is reported where the call was made, and nowhere else."""
    try:
        return await ask()
    except Exception as error:  # any error of the plug-in
        return error
