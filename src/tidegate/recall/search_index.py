"""Indexes of other makers, that find what was said: by vectors, by a service elsewhere.

Guarantee: one is found only by the name that the configuration gives, in a file of the home folder or an installed
package; it is made when the process enters it and closed with it, and is on the books meanwhile. Whatever it does, who
asks it waits a bounded time, and it is asked by a bounded number at once. What it finds is a claim, which the caller
checks against the store. It is fed from the store, in order, at least once, off the hot path.
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
from tidegate.store import Db, Store
from tidegate.store.rows import unpack
from tidegate.store.tables.search import searchable
from tidegate.tools import plugins
from tidegate.values import Frozen

T = TypeVar("T")
log = Log(__name__)

GROUP = "tidegate.indexes"
FOLDER = "indexes"
SECONDS = 5.0
"""That an answer may take; then the full-text index answers."""
LEARN_SECONDS = 60.0
"""That taking in one batch may take: a service elsewhere may have to be asked."""
CLOSE_SECONDS = 5.0
AT_ONCE = 8
"""Calls that have not come back: one that hangs is not asked for ever."""
BATCH = 200
BATCH_CHARACTERS = 1_000_000
"""Of messages that are handed over at once."""
BATCHES = 20
"""Batches of one run of the timer."""


class IndexHit(Frozen, frozen=True):
    """A message that an index has found, by its number in the store."""

    message: int


class IndexHits(Frozen, frozen=True):
    """Hits, the best first. `after` is what the index wants to be told to go on; empty when there are no more."""

    hits: tuple[IndexHit, ...] = ()
    after: str = ""


class IndexedMessage(Frozen, frozen=True):
    """A message as an index is told of it; `message` is its number in the store, by which it is found again."""

    message: int
    session: str
    principal: str
    role: str
    at: float
    text: str


@runtime_checkable
class SearchIndex(Protocol):
    """Finds messages. `session` is where to look, None for all sessions of the principal."""

    name: str

    async def search(self, query: str, *, principal: str, session: str | None, limit: int, after: str) -> IndexHits: ...

    async def close(self) -> None: ...


@runtime_checkable
class LearningIndex(Protocol):
    """An index that is told what was said, and which sessions are no more."""

    async def add(self, messages: Sequence[IndexedMessage]) -> None: ...

    async def forget(self, session: str) -> None: ...


Make = Callable[[Path], SearchIndex]
"""Makes an index, which opens nothing yet; it is told the gateway's home folder."""


def find(name: str, home: Path) -> Make:
    """The function `make` of the file indexes/NAME.py in the home folder, or what a package offers under that name."""
    file = home / FOLDER / f"{name}.py"
    found: Make = plugins.load_function(name, file, "make", group=GROUP, kind="index", setting="[context] index")
    return found


class IndexUnanswered(Exception):
    """The index did not answer; why, as the end of a sentence."""


class PluginIndex:
    """An index of another maker. Process lifetime: one that is not entered is not there."""

    def __init__(self, name: str, home: Path, scope: Scope, store: Store) -> None:
        self.name = name
        self._home = home
        self._scope = scope
        self._store = store
        self._index: SearchIndex | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._mark = f"indexed:{name}"
        scope.account.ledger.view("search index", self._measure)

    async def __aenter__(self) -> Self:
        make = await to_thread.run_sync(find, self.name, self._home)
        try:
            made = make(self._home)
        except Exception as error:
            raise Misconfigured(f"The index {self.name!r} cannot be made ({type(error).__name__}: {error}).") from error
        if not isinstance(made, SearchIndex):
            raise Misconfigured(f"The index {self.name!r} is none: it needs a name, search and close.")
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
        """What it finds; Unanswered when it fails, hangs, or gives something else."""
        index = self._index
        if index is None:
            raise IndexUnanswered("is not open")

        async def ask() -> Any:
            return await index.search(query, principal=principal, session=session, limit=limit, after=after)

        found = await self._bounded(ask, SECONDS)
        if not isinstance(found, IndexHits):
            raise IndexUnanswered("gave no answer that can be read")
        return found

    async def _bounded(self, ask: Callable[[], Any], seconds: float) -> Any:
        """In a task of the process: one that does not end when it is cancelled is left to itself."""
        if len(self._calls) >= AT_ONCE:
            raise IndexUnanswered(f"has {AT_ONCE} calls under way that it does not answer")
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
        """Tells the index what was said since; how many messages. What it does not take in is told again."""
        index, fed = self._index, 0
        if not isinstance(index, LearningIndex):
            return 0
        for _ in range(BATCHES):
            said, mark = await self._store.read(_unlearned, self._mark)
            if mark is None:
                break
            if said:
                try:
                    await self._bounded(lambda said=said: index.add(said), LEARN_SECONDS)
                except IndexUnanswered as error:
                    log.warning("an index does not take in what was said", index=self.name, error=str(error))
                    break
            await self._store.write(_learned, self._mark, mark)
            fed += len(said)
        return fed

    async def forget(self, session: str) -> None:
        """The session is no more. What the index does not forget is not shown: each hit is checked."""
        index = self._index
        if isinstance(index, LearningIndex):
            try:
                await self._bounded(lambda: index.forget(session), SECONDS)
            except IndexUnanswered as error:
                log.warning("an index does not forget a session", index=self.name, session=session, error=str(error))


async def _caught(ask: Callable[[], Any]) -> Any:
    """The failure is a value: it is told where the call was made, and nowhere else."""
    try:
        return await ask()
    except Exception as error:  # whatever another maker's code may raise
        return error


def _unlearned(db: Db, key: str) -> tuple[list[IndexedMessage], int | None]:
    """What follows the mark, and where it ends; None when nothing does. One-shot conversations are nobody's past."""
    mark = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).get or 0
    said: list[IndexedMessage] = []
    last: int | None = None
    size = 0
    for id, session, principal, kind, role, at, body, packed in db.execute(_FOLLOWING, (mark, BATCH)):
        last = id
        text = searchable(unpack(body, packed)) if kind == "named" else ""
        if text:
            said.append(IndexedMessage(message=id, session=session, principal=principal, role=role, at=at, text=text))
            size += len(text)
        if size > BATCH_CHARACTERS:
            break
    return said, last


_FOLLOWING = (
    "SELECT messages.id, session, principal, kind, role, at, body, packed FROM messages"
    " JOIN sessions ON sessions.id = session WHERE messages.id > ? ORDER BY messages.id LIMIT ?"
)


def _learned(db: Db, key: str, mark: int) -> None:
    db.execute("INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)", (key, mark))
