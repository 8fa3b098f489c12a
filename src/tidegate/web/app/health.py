"""Whether the gateway works, end to end: its loop turns, its store takes writes, its timers beat.

`check` is true only if each of these was seen to be so just now or within its interval, no problem of the store stands
and no watch complains. It answers within `CHECK_SECONDS` even when nothing else does, and costs one small write, at
most once a second, however often it is asked. Timers are announced with `expect` and report with `beat`; any other
condition is added with `watch`.
"""

import asyncio
import time
from collections.abc import Callable

import anyio
import anyio.lowlevel

from tidegate.errors import StoreFailed
from tidegate.status_report import Check, Readiness
from tidegate.store import Store, maintenance

CHECK_SECONDS = 5.0
LAG_EVERY = 1.0
LAG_ALLOWED = 1.0
"""A loop that is this late has been blocked by something; a busy one is late by milliseconds."""
MISSED_BEATS = 3
GRACE_SECONDS = 30.0
"""A timer is late after three missed beats and this much, so that a long run of a chore is no alarm."""
REMEMBERED_SECONDS = 1.0


class _Beat:
    __slots__ = ("interval", "last")

    def __init__(self, interval: float, last: float) -> None:
        self.interval = interval
        self.last = last


class Health:
    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._beats: dict[str, _Beat] = {}  # lint: allow timers are named in the code
        self._looks: dict[str, Callable[[], Check]] = {}  # lint: allow they are named in the code
        self._ticked: float | None = None
        self._lag = 0.0
        self._written: tuple[float, Check] | None = None
        self._asking = asyncio.Lock()

    def expect(self, name: str, interval: float) -> None:
        """From now on this timer must beat."""
        self._beats[name] = _Beat(interval, self._clock())

    def add(self, name: str, look: Callable[[], Check]) -> None:
        """From now on this must be well, too."""
        self._looks[name] = look

    def beat(self, name: str) -> None:
        known = self._beats.get(name)
        if known is not None:
            known.last = self._clock()

    def watch(self, name: str, complaint: Callable[[], str | None]) -> None:
        """From now on `complaint` must return None; anything else is what is wrong."""
        self._looks[name] = lambda: _check_watch(complaint())

    async def watch_loop(self) -> None:
        """Measures how late the loop is, for as long as it runs."""
        while True:
            began = self._ticked = self._clock()
            await anyio.sleep(LAG_EVERY)
            self._lag = max(0.0, self._clock() - began - LAG_EVERY)

    @property
    def lag(self) -> float:
        """Seconds by which the loop was late when last looked at, or is now."""
        if self._ticked is None:
            return 0.0
        return max(self._lag, self._clock() - self._ticked - LAG_EVERY)

    async def check(self) -> Readiness:
        async with self._asking:
            if self._written is None or self._clock() - self._written[0] >= REMEMBERED_SECONDS:
                self._written = (self._clock(), await self._check_store())
            checks = {"loop": await self._check_loop(), "store": self._written[1], "database": self._check_database()}
            checks.update((name, look()) for name, look in self._looks.items())
            checks.update((f"timer {name}", self._check_beat(beat)) for name, beat in self._beats.items())
            return Readiness(ready=all(check.ok for check in checks.values()), checks=checks)

    async def _check_loop(self) -> Check:
        began = self._clock()
        await anyio.lowlevel.checkpoint()
        lag = max(self.lag, self._clock() - began)
        return Check(ok=lag < LAG_ALLOWED, detail=f"{lag * 1000:.1f} ms late")

    async def _check_store(self) -> Check:
        began = self._clock()
        try:
            with anyio.fail_after(CHECK_SECONDS):
                await self._store.write(maintenance.probe, time.time())
        except TimeoutError:
            return Check(ok=False, detail=f"no write within {CHECK_SECONDS:g} s")
        except StoreFailed as error:
            return Check(ok=False, detail=error.message)
        return Check(ok=True, detail=f"a write took {(self._clock() - began) * 1000:.1f} ms")

    def _check_database(self) -> Check:
        """Problems that stand, also those that the write just now did not meet."""
        stats = self._store.stats()
        if stats.problems:
            return Check(ok=False, detail="; ".join(f"{problem.kind}: {problem.text}" for problem in stats.problems))
        if stats.checked is None:
            return Check(ok=True, detail="no problem is known; the full check has not ended yet")
        return Check(ok=True, detail=f"intact; the last full check was {time.time() - stats.checked:.0f} s ago")

    def _check_beat(self, beat: _Beat) -> Check:
        ago = self._clock() - beat.last
        late = ago > MISSED_BEATS * beat.interval + GRACE_SECONDS
        return Check(ok=not late, detail=f"last beat {ago:.1f} s ago, every {beat.interval:g} s")


def _check_watch(complaint: str | None) -> Check:
    return Check(ok=complaint is None, detail=complaint or "as it should be")
