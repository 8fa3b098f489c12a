"""Looks at folders for sessions that are to begin: not more often than needed, and nobody waits for ever.

Guarantee: for one agent and one kind of reader there is one look at a time, in a worker thread, and at most one every
`DISCOVERY_SECONDS`; whoever comes meanwhile has what it finds. A folder that does not answer within `PATIENCE` (a dead
network share) costs its session what it would have found, not its beginning: what was found before is used, it is
logged, and no second look is begun until the first has come back.
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
"""An edit is to be found when its author has turned to the chat; more looks would only cost."""

PATIENCE = 5.0
"""Seconds for a look; on a disk it takes milliseconds."""

KEPT = 256
"""Looks that are kept."""

KEPT_BYTES = 16 * 1024 * 1024
"""Of what those found: each has its bound, and all of them together seldom a hundredth of this."""


REMEMBERED = 512
"""More things than an operator would mend; what is forgotten is told again."""


class DiscoveryKey(NamedTuple):
    """For which agent, and for whose prompt."""

    agent: str
    reader: Reader = Reader()


class DiscoveryCache(Generic[T]):
    """`look` blocks; `nothing` stands for what was never found; `weigh` gives the bytes of
    what was."""

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
        self._away: set[DiscoveryKey] = set()
        self._fresh: BoundedCache[DiscoveryKey, T] = BoundedCache(name, cap=KEPT, ttl=DISCOVERY_SECONDS, clock=clock)
        self._last: BoundedCache[DiscoveryKey, T] = BoundedCache(
            f"{name}, kept", cap=KEPT, max_bytes=KEPT_BYTES, weigh=weigh
        )

    async def of(self, key: DiscoveryKey) -> T:
        return await self._fresh.get_or_make(key, partial(self._make, key))

    def stats(self) -> tuple[CacheStats, ...]:
        return self._fresh.stats(), self._last.stats()

    async def _make(self, key: DiscoveryKey) -> T:
        if key not in self._away:
            self._away.add(key)
            # Who leaves meanwhile must not make the look count as one that hangs.
            with anyio.move_on_after(self._patience, shield=True):
                found = await to_thread.run_sync(self._work, key, abandon_on_cancel=True)
                self._last.put(key, found)
                return found
            log.warning(
                "a folder of an agent does not answer: what was found there before is used; see to its disk or share",
                agent=key.agent,
            )
        known = self._last.get(key)
        return self._nothing if known is None else known

    def _work(self, key: DiscoveryKey) -> T:
        try:
            return self._look(key)
        finally:
            self._away.discard(key)


async def discover(looks: DiscoveryCache[T], agent: str, principal: str, provenance: Provenance | None) -> T:
    """What is found for an agent's session of this principal."""
    if provenance is None:
        return await looks.of(DiscoveryKey(agent))
    return await provenance.steady(principal, lambda reader: looks.of(DiscoveryKey(agent, reader)))


class LogOnce:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._before: BoundedCache[tuple[str, str], bool] = BoundedCache("told of skills", cap=REMEMBERED)

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
