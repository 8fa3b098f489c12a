"""Search indexes provided by plug-ins, such as a vector index or an external service.

Every call to the index has a time limit, and the number of concurrent calls is bounded. Its results are only claims,
which the caller checks against the store. The index receives every message from the store at least once, in order and
outside of turns. The plug-in host starts and stops the index.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.lifetimes import Holding, Scope
from tidegate.log import Log
from tidegate.plugins import IndexedMessage, IndexHits, SearchIndex, UpdatableIndex
from tidegate.plugins.host import Plugin
from tidegate.store import SearchableMessage, Store, search

log = Log(__name__)

SECONDS = 5.0
"""Time limit for one search. If it is exceeded, the full-text index is used instead."""
ADD_SECONDS = 60.0
"""Time limit for one batch, which may require a call to an external service."""
AT_ONCE = 8
"""Maximum number of concurrent calls. While this many calls are unanswered, the index is not called again."""
BATCH = 200
BATCH_CHARACTERS = 1_000_000
"""Maximum number of characters of messages in one batch."""
BATCHES = 20
"""Maximum number of batches in one run of the timer."""


class IndexUnanswered(Exception):
    """The index did not return a usable response. The message is the reason, phrased as the end of a sentence."""


class PluginIndex:
    """The interface through which the search uses the plug-in index. The index is unavailable while the plug-in is not
    open."""

    def __init__(self, plugin: Plugin, scope: Scope, store: Store) -> None:
        self.name = plugin.name
        self._plugin = plugin
        self._scope = scope
        self._store = store
        self._calls: set[asyncio.Task[Any]] = set()
        scope.account.ledger.view("search index", self._measure)

    def _measure(self) -> Iterator[tuple[str, Holding]]:
        if self.is_open:
            yield "process", Holding(1 + len(self._calls))

    @property
    def is_open(self) -> bool:
        return self._plugin.object is not None

    async def search(self, query: str, *, principal: str, session: str | None, limit: int, after: str) -> IndexHits:
        """Returns the hits. Raises IndexUnanswered if the index fails, hangs or returns an invalid result."""
        index: SearchIndex | None = self._plugin.object
        if index is None:
            raise IndexUnanswered("is not open")

        async def ask() -> Any:
            return await index.search(query, principal=principal, session=session, limit=limit, after=after)

        found = await self._bounded(ask, SECONDS)
        if not isinstance(found, IndexHits):
            raise IndexUnanswered("returned an invalid answer")
        return found

    async def _bounded(self, ask: Callable[[], Any], seconds: float) -> Any:
        """Calls the index in a task of the process, with a time limit. A call that ignores its cancellation is
        abandoned."""
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
            raise IndexUnanswered(f"did not answer within {seconds:g} s")
        found = call.result()
        if isinstance(found, Exception):
            log.warning("an index failed", index=self.name, error=f"{type(found).__name__}: {found}")
            raise IndexUnanswered(f"failed ({type(found).__name__})")
        return found

    async def feed(self) -> int:
        """Sends new messages to the index and returns how many it accepted. Batches that it does not accept are sent
        again later."""
        index: SearchIndex | None = self._plugin.object
        fed = 0
        if not isinstance(index, UpdatableIndex):
            return 0
        for _ in range(BATCHES):
            rows, mark = await self._store.read(search.next_messages, self.name, BATCH, BATCH_CHARACTERS)
            if mark is None:
                break
            if rows:
                batch = [_message(row) for row in rows]
                try:
                    await self._bounded(lambda batch=batch: index.add(batch), ADD_SECONDS)
                except IndexUnanswered as error:
                    log.warning("an index does not accept messages", index=self.name, error=str(error))
                    break
            await self._store.write(search.save_index_mark, self.name, mark)
            fed += len(rows)
        return fed

    async def forget(self, session: str) -> None:
        """Notifies the index that a session was deleted. Even if the index fails to remove the session, its hits are
        not shown, since every hit is checked."""
        index: SearchIndex | None = self._plugin.object
        if isinstance(index, UpdatableIndex):
            try:
                await self._bounded(lambda: index.forget(session), SECONDS)
            except IndexUnanswered as error:
                log.warning("an index does not forget a session", index=self.name, session=session, error=str(error))


def _message(row: SearchableMessage) -> IndexedMessage:
    return IndexedMessage(
        message=row.id, session=row.session, principal=row.principal, role=row.role, at=row.at, text=row.text
    )


async def _caught(ask: Callable[[], Any]) -> Any:
    """Awaits the call, and returns an error as a value, so that the error is reported only where the call was made."""
    try:
        return await ask()
    except Exception as error:  # any error from the plug-in
        return error
