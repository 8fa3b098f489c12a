"""When memory runs short, idle conversations leave it before anything worse happens.

Guarantee: when the process holds more than its ceiling, or the kernel says that work waits for memory, what the
allocator keeps for nothing is given back, and if that is not enough residents are unloaded, the least recently used
first, until it would be; one whose turn runs or waits is never touched, so that nobody notices but for a slower next
turn. A spell of shortage ends only well below the ceiling, and after an unloading there is a rest unless memory grows
on, so that conversations are not put out and fetched again and again for nothing. One line of the log for each spell.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio.lowlevel
from anyio import to_thread

from tidegate.gateway.memory.allocator import trim
from tidegate.gateway.memory.memory_limit import MemoryLimit
from tidegate.gateway.memory.report import private_bytes
from tidegate.lifetimes import Presence
from tidegate.log import Log

LOOK_SECONDS = 2.0
"""Between two looks, each of which costs a fraction of a millisecond."""

LOW = 0.9
"""Of the ceiling: unloading aims at it, and below it a spell is over."""

STALLED = 10.0
"""Per cent of its time that work may wait for memory; far below what the kernel's killers act on."""

REST_SECONDS = 10.0
"""After an unloading: the kernel's measure of shortage is a mean over this time."""

GROWN = 0.02
"""Of the ceiling: growth since the last unloading that does not wait for the end of the rest."""


async def _trim() -> None:
    await to_thread.run_sync(trim, 0)


class MemoryPressure:
    """Looks when `look` is called; holds only the state of the present spell."""

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
        self._resting = 0.0
        self._left = 0
        self._told = False
        self._log = Log("tidegate.memory")
        self.short = False
        self.spells = 0

    @property
    def ceiling(self) -> int:
        return self._ceiling.bytes()

    def report(self) -> dict[str, Any]:
        """For status: the ceiling, whether memory is short now, and how many spells of that there were."""
        return {"ceiling": self.ceiling, "short": self.short, "spells": self.spells}

    async def look(self) -> None:
        if not self._is_short() or (self._clock() < self._resting and not self._has_grown()):
            return
        await self._give_back()
        self._rest()
        if not self._is_short():
            return
        if not self.short:
            self.short = True
            self.spells += 1
        await self._relieve()

    def _is_short(self) -> bool:
        """Whether something must be done now. Between the two marks only a spell that goes on stays one."""
        private, ceiling, stalled = self._private(), self._ceiling.bytes(), self._ceiling.stalled()
        if private > ceiling or stalled >= STALLED:
            return True
        if private <= LOW * ceiling and stalled < STALLED / 2:
            self.short = self._told = False
        return False

    def _has_grown(self) -> bool:
        return self._private() - self._left > GROWN * self._ceiling.bytes()

    def _rest(self) -> None:
        self._resting = self._clock() + REST_SECONDS
        self._left = self._private()

    async def _relieve(self) -> None:
        private, ceiling, stalled = self._private(), self._ceiling.bytes(), self._ceiling.stalled()
        excess = private - int(LOW * ceiling) if private > ceiling else 0
        # Where only the kernel complains, how much would help is not known: half, and half of the rest after the rest.
        half = self._presence.stats().resident_bytes // 2 if stalled >= STALLED else 0
        unloaded, freed = self._presence.relieve(max(excess, half))
        await anyio.lowlevel.checkpoint()  # the releases, which have been started, run first
        await self._give_back()
        self._rest()
        if self._told:
            return
        self._told = True
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
            private_now=self._left,
        )
