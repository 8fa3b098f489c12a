"""Memory pressure: unloads idle conversations when memory is short.

When the process exceeds its ceiling, or the kernel reports that tasks are waiting for memory, the allocator's free
memory is returned to the system first. If that is not enough, residents are unloaded, least recently used first. A
resident with a running or waiting turn is never unloaded, so the only effect is that a conversation's next turn starts
more slowly. A shortage ends only when memory use is well below the ceiling, and each unloading is followed by a pause
unless memory use keeps growing. This keeps conversations from being unloaded and reloaded over and over. Each shortage
is logged once.
"""

import time
from collections.abc import Awaitable, Callable

import anyio.lowlevel
from anyio import to_thread

from tidegate.gateway.process_memory.accounting import private_bytes
from tidegate.gateway.process_memory.allocator import trim
from tidegate.gateway.process_memory.memory_limit import MemoryLimit
from tidegate.lifetimes import Presence
from tidegate.log import Log
from tidegate.status_report import PressureStatus

CHECK_SECONDS = 2.0
"""The interval between two checks, each of which takes a fraction of a millisecond."""

LOW = 0.9
"""The share of the ceiling to which unloading reduces memory use, and below which a shortage ends."""

STALLED = 10.0
"""The percentage of time during which tasks may be waiting for memory: far below the level at which the kernel kills
processes."""

REST_SECONDS = 10.0
"""The pause after an unloading. The kernel's figure is an average over this time."""

GROWN = 0.02
"""The share of the ceiling by which memory use must grow after an unloading to end the pause early."""


async def _trim() -> None:
    await to_thread.run_sync(trim, 0)


class MemoryPressure:
    """Unloads conversations when `check` is called. Holds only the state of the current shortage."""

    def __init__(
        self,
        presence: Presence,
        ceiling: MemoryLimit,
        *,
        private: Callable[[], int] = private_bytes,
        give_back: Callable[[], Awaitable[None]] = _trim,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._presence = presence
        self._ceiling = ceiling
        self._private = private
        self._give_back = give_back
        self._clock = clock
        self._paused_until = 0.0
        self._private_after = 0
        self._logged = False
        self._log = Log("tidegate.memory")
        self.short = False
        self.spells = 0

    @property
    def ceiling(self) -> int:
        return self._ceiling.bytes()

    def report(self) -> PressureStatus:
        return PressureStatus(ceiling=self.ceiling, short=self.short, spells=self.spells)

    async def check(self) -> None:
        if not self._is_short() or (self._clock() < self._paused_until and not self._has_grown()):
            return
        await self._give_back()
        self._pause()
        if not self._is_short():
            return
        if not self.short:
            self.short = True
            self.spells += 1
        await self._relieve()

    def _is_short(self) -> bool:
        """True if memory use is above the ceiling or the kernel reports a shortage. Between the low mark and the
        ceiling, a shortage that has begun continues."""
        private, ceiling, stalled = self._private(), self._ceiling.bytes(), self._ceiling.stalled()
        if private > ceiling or stalled >= STALLED:
            return True
        if private <= LOW * ceiling and stalled < STALLED / 2:
            self.short = self._logged = False
        return False

    def _has_grown(self) -> bool:
        return self._private() - self._private_after > GROWN * self._ceiling.bytes()

    def _pause(self) -> None:
        self._paused_until = self._clock() + REST_SECONDS
        self._private_after = self._private()

    async def _relieve(self) -> None:
        private, ceiling, stalled = self._private(), self._ceiling.bytes(), self._ceiling.stalled()
        excess = private - int(LOW * ceiling) if private > ceiling else 0
        # If only the kernel reports a shortage, the right amount is unknown, so unload half, and later half of the
        # rest.
        half = self._presence.stats().resident_bytes // 2 if stalled >= STALLED else 0
        unloaded, freed = self._presence.relieve(max(excess, half))
        await anyio.lowlevel.checkpoint()  # let the started releases run first
        await self._give_back()
        self._pause()
        if self._logged:
            return
        self._logged = True
        event = "memory is short: idle conversations were unloaded"
        if freed < excess:
            event = (
                "memory is short, and unloading every idle conversation is not enough: "
                "raise limits.memory_bytes, or lower limits.turns"
            )
        self._log.warning(
            event,
            private=private,
            ceiling=ceiling,
            stalled=stalled,
            unloaded=unloaded,
            freed=freed,
            private_now=self._private_after,
        )
