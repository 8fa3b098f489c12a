"""A cache of discovery results, for new sessions.

For each agent and kind of reader, only one discovery runs at a time, at most once every `DISCOVERY_SECONDS`. It runs in
a worker thread, and concurrent callers share its result. If a folder does not respond within `PATIENCE` (for example on
a dead network share), this is logged and the session begins with the previous result. No other discovery starts until
the one that hangs has returned.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import anyio
from anyio import to_thread

from tidegate.lifetimes import BoundedCache, CacheStats
from tidegate.log import Log
from tidegate.workspaces.provenance import Provenance, Reader

log = Log(__name__)

T = TypeVar("T")

DISCOVERY_SECONDS = 2.0
"""Minimum interval between two discoveries. An edit should be found by the time its author has switched to the chat;
more frequent discovery would have no benefit."""

PATIENCE = 5.0
"""Seconds to wait for one discovery, which takes milliseconds on a local disk."""

KEPT = 256
"""Maximum number of cached results."""

KEPT_BYTES = 16 * 1024 * 1024
"""Maximum total size of these results, in bytes. Each result is bounded, and the total rarely reaches a hundredth of
this."""

REMEMBERED = 512
"""Maximum number of warnings that are remembered: more than an operator would fix. A forgotten warning is logged
again."""


class DiscoveryKey(NamedTuple):
    """An agent, and the reader for whose prompt its skills are discovered."""

    agent: str
    reader: Reader = Reader()


class DiscoveryCache(Generic[T]):
    """`look` runs a discovery and blocks. `nothing` is the result before the first discovery. `weigh` returns the size
    of a result in bytes."""

    def __init__(
        self,
        name: str,
        look: Callable[[DiscoveryKey], T],
        nothing: T,
        weigh: Callable[[T], int],
        *,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        self._look = look
        self._nothing = nothing
        self._patience = patience
        self._running: set[DiscoveryKey] = set()
        self._fresh: BoundedCache[DiscoveryKey, T] = BoundedCache(name, cap=KEPT, ttl=DISCOVERY_SECONDS, clock=clock)
        self._last: BoundedCache[DiscoveryKey, T] = BoundedCache(
            f"{name}, previous", cap=KEPT, max_bytes=KEPT_BYTES, weigh=weigh
        )

    async def of(self, key: DiscoveryKey) -> T:
        return await self._fresh.get_or_make(key, partial(self._make, key))

    def stats(self) -> tuple[CacheStats, ...]:
        return self._fresh.stats(), self._last.stats()

    async def _make(self, key: DiscoveryKey) -> T:
        if key not in self._running:
            self._running.add(key)
            # If the caller is cancelled, the discovery must not count as one that hangs.
            with anyio.move_on_after(self._patience, shield=True):
                found = await to_thread.run_sync(self._work, key, abandon_on_cancel=True)
                self._last.put(key, found)
                return found
            log.warning(
                "an agent's folder does not respond, so the previous result is used; check its disk or share",
                agent=key.agent,
            )
        known = self._last.get(key)
        return self._nothing if known is None else known

    def _work(self, key: DiscoveryKey) -> T:
        try:
            return self._look(key)
        finally:
            self._running.discard(key)


async def discover(cache: DiscoveryCache[T], agent: str, principal: str, provenance: Provenance | None) -> T:
    """Returns the result for one of this principal's sessions with the agent."""
    if provenance is None:
        return await cache.of(DiscoveryKey(agent))
    return await provenance.steady(principal, lambda reader: cache.of(DiscoveryKey(agent, reader)))


class LogOnce:
    """Logs each warning once per process, as long as it is among the last `REMEMBERED` warnings. Thread-safe."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._before: BoundedCache[tuple[str, str], bool] = BoundedCache("skill warnings", cap=REMEMBERED)

    def warn(self, event: str, path: str, reason: str) -> None:
        if self._is_new(path, reason):
            self._log.warning(event, path=path, reason=reason)

    def inform(self, event: str, path: str, reason: str) -> None:
        if self._is_new(path, reason):
            self._log.info(event, path=path, reason=reason)

    def _is_new(self, path: str, reason: str) -> bool:
        with self._lock:
            known = self._before.get((path, reason)) is not None
            self._before.put((path, reason), True)
        return not known
