"""The gateway's health, checked end to end: the event loop, writes to the store, and the timers.

`check` reports that the gateway is ready only if each of them has just worked, or worked within its interval, the store
has no open problem and no additional check fails. It returns within `CHECK_SECONDS` even if nothing else responds. It
costs one small write, at most once a second, however often it is called.

A timer is registered with `expect` and reports with `beat`. Other conditions are added with `add` or `watch`.
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
"""The allowed delay of the event loop, in seconds. A loop with a longer delay has been blocked; a busy one is late only
by milliseconds."""
MISSED_BEATS = 3
GRACE_SECONDS = 30.0
"""Grace period in seconds. A timer counts as late after three missed beats plus this period, so that a single long run
does not raise an alarm."""
STORE_CHECK_INTERVAL = 1.0
"""Seconds for which the result of a test write is reused."""


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
        self._checks: dict[str, Callable[[], Check]] = {}  # lint: allow they are named in the code
        self._ticked: float | None = None
        self._lag = 0.0
        self._store_check: tuple[float, Check] | None = None
        self._lock = asyncio.Lock()

    def expect(self, name: str, interval: float) -> None:
        """Expects heartbeats from this timer from now on."""
        self._beats[name] = _Beat(interval, self._clock())

    def add(self, name: str, check: Callable[[], Check]) -> None:
        """Adds a check that must pass from now on."""
        self._checks[name] = check

    def beat(self, name: str) -> None:
        known = self._beats.get(name)
        if known is not None:
            known.last = self._clock()

    def watch(self, name: str, complaint: Callable[[], str | None]) -> None:
        """Adds a check that passes as long as `complaint` returns None. Otherwise, `complaint` returns a description of
        the problem."""
        self._checks[name] = lambda: _check_watch(complaint())

    async def watch_loop(self) -> None:
        """Measures how late the event loop is, until cancelled."""
        while True:
            began = self._ticked = self._clock()
            await anyio.sleep(LAG_EVERY)
            self._lag = max(0.0, self._clock() - began - LAG_EVERY)

    @property
    def lag(self) -> float:
        """The delay of the event loop in seconds, as last measured or as of now."""
        if self._ticked is None:
            return 0.0
        return max(self._lag, self._clock() - self._ticked - LAG_EVERY)

    async def check(self) -> Readiness:
        async with self._lock:
            if self._store_check is None or self._clock() - self._store_check[0] >= STORE_CHECK_INTERVAL:
                self._store_check = (self._clock(), await self._check_store())
            checks = {
                "loop": await self._check_loop(),
                "store": self._store_check[1],
                "database": self._check_database(),
            }
            checks.update((name, check()) for name, check in self._checks.items())
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
        """Returns the store's open problems, including those that did not affect the test write."""
        stats = self._store.stats()
        if stats.problems:
            return Check(ok=False, detail="; ".join(f"{problem.kind}: {problem.text}" for problem in stats.problems))
        if stats.checked is None:
            return Check(ok=True, detail="no known problems; the full check has not finished yet")
        return Check(ok=True, detail=f"intact; the last full check was {time.time() - stats.checked:.0f} s ago")

    def _check_beat(self, beat: _Beat) -> Check:
        ago = self._clock() - beat.last
        late = ago > MISSED_BEATS * beat.interval + GRACE_SECONDS
        return Check(ok=not late, detail=f"last beat {ago:.1f} s ago, every {beat.interval:g} s")


def _check_watch(complaint: str | None) -> Check:
    return Check(ok=complaint is None, detail=complaint or "ok")
