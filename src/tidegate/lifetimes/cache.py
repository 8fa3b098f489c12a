"""The bounded cache: the only cache type in the project.

It never has more entries than `cap`, more bytes than `max_bytes`, or an entry older than `ttl`; the least recently used
entry is evicted first. `on_evict` is called for every removal. Keys must be values: a key that is equal only to itself
(an object, an event loop, a thread) is refused, since it could never be found again. The cache owns its entries but not
the objects they refer to. Values should be immutable.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from tidegate.lifetimes.concurrency import SingleFlight
from tidegate.status_report import Holding

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_log = logging.getLogger(__name__)

_IDENTITY = object.__hash__

ENTRY_BYTES = 512
"""Overhead of an entry, in bytes: its slot in the table, its key and the value's header."""


class CacheStats(msgspec.Struct, frozen=True):
    """A cache's metrics. `evictions` counts the entries removed because a limit on number, bytes or age was
    exceeded."""

    name: str
    size: int
    cap: int
    bytes: int
    hits: int
    misses: int
    evictions: int

    @property
    def holding(self) -> Holding:
        """The holding for the ledger: the entries' overhead and, if values are weighed, the values' weight."""
        return Holding(self.size, self.bytes + self.size * ENTRY_BYTES)


class _Entry(NamedTuple, Generic[V]):
    value: V
    weight: int
    until: float


class BoundedCache(Generic[K, V]):
    """An LRU cache with a cap, a TTL and weights. For concurrent callers, `get_or_make` makes each value only once
    (single flight)."""

    __slots__ = (
        "_bytes",
        "_clock",
        "_entries",
        "_evictions",
        "_flights",
        "_hits",
        "_misses",
        "_on_evict",
        "_weigh",
        "cap",
        "max_bytes",
        "name",
        "ttl",
    )

    def __init__(
        self,
        name: str,
        *,
        cap: int,
        ttl: float | None = None,
        max_bytes: int | None = None,
        weigh: Callable[[V], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_evict: Callable[[K, V], None] | None = None,
    ) -> None:
        if cap < 1:
            raise ValueError(f"cache {name!r} needs a cap of at least 1, not {cap}")
        if max_bytes is not None and weigh is None:
            raise ValueError(f"cache {name!r} is bounded in bytes and needs a function to weigh its values")
        self.name = name
        self.cap = cap
        self.ttl = ttl
        self.max_bytes = max_bytes
        self._weigh = weigh
        self._clock = clock
        self._on_evict = on_evict
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._flights: dict[K, SingleFlight[V]] = {}
        self._bytes = self._hits = self._misses = self._evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        return self._bytes

    def stats(self) -> CacheStats:
        return CacheStats(
            self.name, len(self._entries), self.cap, self._bytes, self._hits, self._misses, self._evictions
        )

    def get(self, key: K) -> V | None:
        """Returns the value and marks it as most recently used. Returns None if it is missing or too old."""
        entry = self._entries.get(key)
        if entry is not None and self.ttl is not None and entry.until <= self._clock():
            self._remove(key, evicted=True)
            entry = None
        if entry is None:
            self._misses += 1
            return None
        self._entries.move_to_end(key)
        self._hits += 1
        return entry.value

    def put(self, key: K, value: V) -> bool:
        """Stores a value. Returns False, without storing it, if the value is larger than the cache."""
        _require_value(self.name, key)
        weight = 0 if self._weigh is None else self._weigh(value)
        before = self._entries.get(key)
        if before is not None:
            if before.value is value:
                self._bytes -= self._entries.pop(key).weight
            else:
                self._remove(key, evicted=False)
        if self.max_bytes is not None and weight > self.max_bytes:
            return False
        self._entries[key] = _Entry(value, weight, 0.0 if self.ttl is None else self._clock() + self.ttl)
        self._bytes += weight
        while len(self._entries) > self.cap or (self.max_bytes is not None and self._bytes > self.max_bytes):
            self._remove(next(iter(self._entries)), evicted=True)
        return True

    def values(self) -> list[V]:
        """Returns the values, for the ledger. Entries read this way do not count as used."""
        return [entry.value for entry in self._entries.values()]

    async def get_or_make(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        """Returns the value. If it is missing, the first caller makes it while the others wait. A failure is raised in
        all callers and is not cached."""
        while True:
            value = self.get(key)
            if value is not None:
                return value
            flight = self._flights.get(key)
            if flight is None:
                return await self._make(key, make)
            if await flight.join():
                return flight.value

    async def _make(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        _require_value(self.name, key)
        flight = self._flights[key] = SingleFlight[V]()
        try:
            value = await flight.lead(make)
        finally:
            del self._flights[key]
        self.put(key, value)
        return value

    def discard(self, key: K) -> bool:
        """Removes an entry. Returns True if there was one."""
        if key not in self._entries:
            return False
        self._remove(key, evicted=False)
        return True

    def clear(self) -> None:
        while self._entries:
            self._remove(next(iter(self._entries)), evicted=False)

    def sweep(self, now: float | None = None) -> int:
        """Removes entries that are too old. Returns their number."""
        if self.ttl is None:
            return 0
        moment = self._clock() if now is None else now
        old = [key for key, entry in self._entries.items() if entry.until <= moment]
        for key in old:
            self._remove(key, evicted=True)
        return len(old)

    def _remove(self, key: K, *, evicted: bool) -> None:
        entry = self._entries.pop(key)
        self._bytes -= entry.weight
        self._evictions += evicted
        if self._on_evict is None:
            return
        try:
            self._on_evict(key, entry.value)
        except Exception:  # a lookup must not fail because another value could not be removed
            _log.exception("cache %s: on_evict failed", self.name)


def _require_value(name: str, key: Hashable) -> None:
    parts = key if type(key) is tuple else (key,)
    for part in parts:
        if part is not None and getattr(type(part), "__hash__", None) is _IDENTITY:
            raise TypeError(f"cache {name!r} is keyed by values; {type(part).__name__} is equal only to itself")
