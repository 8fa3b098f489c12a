"""Presence: the residents of present sessions, in the project's only map keyed by session.

A session has at most one record, and only while the session is present. It is present while a turn is running or
waiting, a resident exists or is being built, its workspace is in use, or a reader is watching it. A resident is reused
while its signature is unchanged, is built only once for concurrent callers, and is removed only by `unload`. Residents
are bounded by number, bytes and idle time (`limits.residents`, `resident_bytes` and `idle_ttl`); the least recently
used resident is unloaded first. A resident whose turn is working is never released before that turn ends, even if it is
replaced in the meantime. While the turn is waiting for a user, its resident may be unloaded like any other, and the
turn rebuilds it. Residents are released in tasks of the scope, concurrently with turns; a failure is reported with the
session's name. Presence owns the records and the residents. In each record, the fields `turn`, `waiting` and `held`
belong to the engine, `workspace` and `disk` to the workspaces package.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

import msgspec

from tidegate.lifetimes.concurrency import SingleFlight
from tidegate.lifetimes.scope import Scope, ScopeClosed
from tidegate.status_report import Holding

RELEASE_WITHIN = 30.0
"""Seconds that releasing a resident may take before it is abandoned and reported."""

REASONS_KEPT = 32
"""The number of unload reasons that are counted separately. Further reasons are counted as `other`, so the metric stays
small."""

_log = logging.getLogger(__name__)


class Resident(Protocol):
    """The part of a session that is kept in memory between turns. Equal `signature`s mean equal configurations."""

    @property
    def signature(self) -> bytes: ...

    @property
    def weight(self) -> int:
        """The current size in memory, in bytes."""

    async def release(self) -> None:
        """Releases everything that the resident holds. Called once, when no turn is using the resident."""


R = TypeVar("R", bound=Resident)
Warn = Callable[[str, dict[str, Any]], None]


class SessionEnded(RuntimeError):
    """The session ended while its resident was being built. The resident has been released."""


class Present:
    """A present session's record. A resident that is replaced during a turn stays in `detached` until the turn ends; so
    does a one-shot turn's temporary resident in `temporary`."""

    __slots__ = (
        "__weakref__",
        "building",
        "detached",
        "disk",
        "held",
        "key",
        "resident",
        "temporary",
        "turn",
        "used",
        "waiting",
        "wanted_signature",
        "watchers",
        "workspace",
    )

    def __init__(self, key: str, used: float) -> None:
        self.key = key
        self.turn: Any | None = None
        self.waiting: deque[Any] = deque()  # lint: allow the engine bounds it by limits.queue_length
        self.resident: Resident | None = None
        self.building: SingleFlight[Resident] | None = None
        self.wanted_signature = b""
        self.detached: tuple[Resident, ...] = ()
        self.temporary: Resident | None = None
        self.workspace: Any | None = None
        self.disk: Any | None = None
        self.used = used
        self.held = 0
        self.watchers: tuple[asyncio.Future[None], ...] = ()

    def __repr__(self) -> str:
        return f"<Present {self.key}{' busy' if self.busy else ''}{' resident' if self.resident else ''}>"

    @property
    def busy(self) -> bool:
        """True if a turn is running."""
        return self.turn is not None

    def expect(self) -> asyncio.Future[None]:
        """Returns a future that is done at the next `notify`. Cancel it when you no longer wait for it."""
        news = asyncio.get_running_loop().create_future()
        self.watchers = (*(watcher for watcher in self.watchers if not watcher.done()), news)
        return news

    def notify(self) -> None:
        """Wakes the session's watchers."""
        watchers, self.watchers = self.watchers, ()
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    @property
    def absent(self) -> bool:
        """True if the record is no longer needed."""
        return (
            self.turn is None
            and self.resident is None
            and self.building is None
            and not self.waiting
            and not self.held
            and not self.detached
            and self.workspace is None
        )


class PresenceStats(msgspec.Struct, frozen=True):
    """Statistics for the metrics. `over_cap_mid_turn` counts residents kept beyond the cap because of a running
    turn."""

    present: int
    residents: int
    resident_bytes: int
    busy: int
    over_cap_mid_turn: int
    unloads: dict[str, int]


class Presence:
    """The records of present sessions, by key. Presence is owned by the process scope; when that scope closes, every
    resident is released."""

    __slots__ = (
        "__weakref__",
        "_bytes",
        "_clock",
        "_leaving",
        "_over",
        "_over_count",
        "_records",
        "_scope",
        "_unloads",
        "_unreleased",
        "_warn",
        "_weights",
        "idle_ttl",
        "is_waiting",
        "ledger",
        "resident_bytes",
        "residents",
    )

    def __init__(
        self,
        scope: Scope,
        *,
        residents: int = 128,
        resident_bytes: int,
        idle_ttl: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
        warn: Warn | None = None,
    ) -> None:
        self.is_waiting: Callable[[Any], bool] = lambda turn: False
        """Returns True if a turn is idle until a user answers. Set by the engine, which owns the turns."""
        self.residents = residents
        self.resident_bytes = resident_bytes
        self.idle_ttl = idle_ttl
        self._scope = scope
        self.ledger = scope.account.ledger
        self._clock = clock
        self._warn: Warn = warn if warn is not None else _log_warning
        self._records: dict[str, Present] = {}
        self._weights: OrderedDict[Present, int] = OrderedDict()  # lint: allow residents, which are bounded
        """The residents' weights, least recently used first."""
        self._bytes = 0
        self._unloads: dict[str, int] = {}
        # Residents that are no longer in the order but not released yet, by object identity.
        self._leaving: dict[int, tuple[str, Resident]] = {}
        self._unreleased: list[tuple[str, Resident]] = []  # lint: allow only filled while closing
        self._over = False
        self._over_count = 0
        self.ledger.view("resident", self._measure_residents)
        self.ledger.view("one-shot", self._measure_temporary)
        scope.on_close(self._close, name="residents")

    # -- records -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Present]:
        """Iterates over a snapshot of the records; the map may change during the iteration."""
        return iter(list(self._records.values()))

    def get(self, key: str) -> Present | None:
        return self._records.get(key)

    def obtain(self, key: str) -> Present:
        """Returns the session's record, creating it if necessary.

        An empty record is removed at the next opportunity, so the caller must add a turn, message or hold to it before
        awaiting anything.
        """
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = Present(key, self._clock())
        return record

    def turn_ended(self, record: Present, turn: Any | None = None) -> None:
        """Clears the record's field `turn` after a turn has ended, whatever its outcome. No other code clears the
        field.

        Idempotent. If `turn` is given, nothing happens unless that turn is running.
        """
        if turn is not None and record.turn is not turn:
            return
        record.turn = record.temporary = None
        record.used = self._clock()
        detached, record.detached = record.detached, ()
        for resident in detached:
            self._release(record.key, resident)
        if record.resident is not None:
            self._weights.move_to_end(record)
            self.reweigh(record)
        self._forget_if_absent(record)

    def turn_waits(self, record: Present) -> None:
        """Allows a turn's resident to be unloaded while the turn is waiting for a user's answer. Residents that do not
        count towards a cap are released immediately."""
        gone = record.detached if record.temporary is None else (*record.detached, record.temporary)
        record.detached, record.temporary = (), None
        for resident in gone:
            self._release(record.key, resident)
        self._enforce()

    def set_temporary(self, key: str, temporary: Resident) -> None:
        """Registers a one-shot turn's temporary resident with the ledger until the turn ends."""
        record = self._records.get(key)
        if record is not None and record.busy:
            record.temporary = temporary

    @contextmanager
    def keep_present(self, key: str) -> Iterator[Present]:
        """Keeps the session present within this block. The session's resident may still be unloaded."""
        record = self.obtain(key)
        record.held += 1
        try:
            yield record
        finally:
            record.held -= 1
            self._forget_if_absent(record)

    def drop(self, key: str) -> bool:
        """Unloads the resident and removes the record of a session that has ended. Returns True if there was a
        record."""
        record = self._records.get(key)
        if record is None:
            return False
        self.unload(key, reason="end")
        self._records.pop(key, None)
        workspace, record.workspace = record.workspace, None
        if workspace is not None:  # closing the workspace takes longer and still needs the record
            self.set_workspace(key, workspace)
        record.notify()
        return True

    def set_workspace(self, key: str, workspace: Any) -> None:
        """Keeps the session present until `clear_workspace` is called, because a process is running in its
        workspace."""
        self.obtain(key).workspace = workspace

    def clear_workspace(self, key: str) -> None:
        """Undoes `set_workspace`, because no process is running in the workspace any more."""
        record = self._records.get(key)
        if record is not None:
            record.workspace = None
            self._forget_if_absent(record)

    def _works(self, record: Present) -> bool:
        """True if a turn is running and needs the session's resident."""
        return record.busy and not self.is_waiting(record.turn)

    def _forget_if_absent(self, record: Present) -> None:
        if record.absent and self._records.get(record.key) is record:
            del self._records[record.key]

    # -- residents ---------------------------------------------------------------------------------------------------

    async def resident(self, key: str, signature: bytes, build: Callable[[], Awaitable[R]]) -> R:
        """Returns the resident with this signature. If there is none, or if its signature differs, a new resident is
        built, once for all callers."""
        while True:
            record = self.obtain(key)
            present = record.resident
            if present is not None and present.signature == signature:
                record.used = self._clock()
                self._weights.move_to_end(record)
                return cast(R, present)
            if record.building is None:
                return await self._build(record, signature, build)
            if record.wanted_signature == signature:
                await record.building.join()
            else:
                await record.building.over()

    async def _build(self, record: Present, signature: bytes, build: Callable[[], Awaitable[R]]) -> R:
        if not self._scope.open:
            self._forget_if_absent(record)
            raise ScopeClosed(f"no resident is built for session {record.key}: the gateway is closing")

        async def construct() -> Resident:
            resident = await build()
            refusal = self._refusal(record, signature, resident)
            if refusal is not None:
                self._leaving[id(resident)] = (record.key, resident)
                if self._scope.closed:  # the scope cannot start its release any more
                    await self._release_one(resident)
                else:
                    self._release(record.key, resident)
                raise refusal
            self._insert(record, resident)
            return resident

        record.building, record.wanted_signature = SingleFlight[Resident](), signature
        self.unload(
            record.key, reason="changed"
        )  # not earlier, because without a construction the record might be removed
        try:
            return cast(R, await record.building.lead(construct))
        finally:
            record.building = None
            self._forget_if_absent(record)

    def _refusal(self, record: Present, signature: bytes, resident: Resident) -> Exception | None:
        if self._records.get(record.key) is not record:
            return SessionEnded(f"session {record.key} ended while its resident was being built")
        if not self._scope.open:
            return ScopeClosed(f"the gateway was closed while the resident of session {record.key} was being built")
        if resident.signature != signature:
            return ValueError(f"the resident built for session {record.key} has a different signature than requested")
        return None

    def _insert(self, record: Present, resident: Resident) -> None:
        record.resident = resident
        record.used = self._clock()
        self._weights[record] = resident.weight
        self._bytes += self._weights[record]
        self._enforce(newcomer=record)

    def reweigh(self, record: Present) -> None:
        """Updates the stored weight of the record's resident."""
        if record.resident is None:
            return
        weight = record.resident.weight
        self._bytes += weight - self._weights[record]
        self._weights[record] = weight
        self._enforce()

    def _enforce(self, newcomer: Present | None = None) -> None:
        """Unloads the least recently used residents beyond the caps. A resident in use is skipped, and no newer
        resident is unloaded instead."""
        too_many, too_heavy = len(self._weights) - self.residents, self._bytes - self.resident_bytes
        if too_many <= 0 and too_heavy <= 0:
            self._over = False
            return
        reason = "count" if too_many > 0 else "bytes"
        kept = 0
        for record in self._oldest(too_many, too_heavy):
            if self._works(record):
                kept += 1
            elif record is not newcomer:  # its builder is about to use it
                self.unload(record.key, reason=reason)
        self._over_count += kept
        if kept and not self._over:
            self._warn(
                "residents exceed their cap because their turns are running",
                {
                    "mid_turn": kept,
                    "residents": len(self._weights),
                    "cap": self.residents,
                    "bytes": self._bytes,
                    "budget": self.resident_bytes,
                },
            )
        self._over = kept > 0

    def _oldest(self, count: int, size: int) -> list[Present]:
        """Returns the least recently used residents: at least `count` of them, with at least `size` bytes in total.
        Newer residents are not examined."""
        found: list[Present] = []
        freed = 0
        for record, weight in self._weights.items():
            if len(found) >= count and freed >= size:
                break
            found.append(record)
            freed += weight
        return found

    def unload(self, key: str, *, reason: str, only: Resident | None = None) -> bool:
        """Removes the resident and keeps everything else. No other code removes residents. If `only` is given, nothing
        happens if the session now has a different resident. Returns True if a resident was removed.

        If a turn is working with the resident, the resident leaves the map immediately but is released only when that
        turn ends.
        """
        record = self._records.get(key)
        if record is None or record.resident is None:
            return False
        resident = record.resident
        if only is not None and resident is not only:
            return False
        record.resident = None
        self._bytes -= self._weights.pop(record)
        if len(self._weights) <= self.residents and self._bytes <= self.resident_bytes:
            self._over = False  # the next excess is a new one, with a new warning
        self._leaving[id(resident)] = (key, resident)
        counted = reason if reason in self._unloads or len(self._unloads) < REASONS_KEPT else "other"
        self._unloads[counted] = self._unloads.get(counted, 0) + 1
        if self._works(record):
            record.detached = (*record.detached, resident)
        else:
            self._release(key, resident)
            self._forget_if_absent(record)
        return True

    def sweep(self, now: float | None = None) -> int:
        """Unloads residents that have been idle for longer than the TTL, unless a turn is working with them. Also
        removes empty records. Returns the number of unloaded residents."""
        moment = self._clock() if now is None else now
        swept = 0
        for record in tuple(self._weights):
            if not self._works(record) and moment - record.used > self.idle_ttl:
                swept += self.unload(record.key, reason="idle")
        for record in self:
            self._forget_if_absent(record)
        return swept

    def relieve(self, wanted: int) -> tuple[int, int]:
        """Unloads idle residents when memory is short, the least recently used first, until `wanted` bytes are freed.
        Residents whose turn is working or waiting to start are kept. Returns the number of unloaded residents and their
        size in bytes."""
        count = freed = 0
        for record, weight in tuple(self._weights.items()):
            if freed >= wanted:
                break
            if not self._works(record) and (record.busy or not record.waiting):
                freed += weight
                count += self.unload(record.key, reason="pressure")
        return count, freed

    @property
    def releasing(self) -> int:
        """The number of residents that have been unloaded but not yet released."""
        return len(self._leaving)

    def stats(self) -> PresenceStats:
        return PresenceStats(
            present=len(self._records),
            residents=len(self._weights),
            resident_bytes=self._bytes,
            busy=sum(record.busy for record in self._records.values()),
            over_cap_mid_turn=self._over_count,
            unloads=dict(self._unloads),
        )

    # -- releasing ---------------------------------------------------------------------------------------------------

    def _measure_residents(self) -> Iterator[tuple[str, Holding]]:
        """Measures the residents, including unloaded ones that have not been released yet."""
        for record in tuple(self._weights):
            if record.resident is not None:
                yield f"session {record.key}", Holding(1, record.resident.weight)
        for key, resident in self._leaving.values():
            yield f"session {key}", Holding(1, resident.weight)

    def _measure_temporary(self) -> Iterator[tuple[str, Holding]]:
        for record in self._records.values():
            if record.temporary is not None:
                yield f"session {record.key}", Holding(1, record.temporary.weight)

    def _release(self, key: str, resident: Resident) -> None:
        if self._scope.open:
            self._scope.start(
                self._release_one, resident, name=f"release of the resident of session {key}", at_close="finish"
            )
        else:
            self._unreleased.append((key, resident))

    async def _release_one(self, resident: Resident) -> None:
        try:
            async with asyncio.timeout(RELEASE_WITHIN):
                await resident.release()
        finally:
            self._leaving.pop(id(resident), None)

    async def _close(self) -> None:
        """Releases everything that is left. Called when the process stops and no turn is running."""
        for record in self:
            self.turn_ended(record)
            self.drop(record.key)
        left, self._unreleased = self._unreleased, []
        ends = await asyncio.gather(*(self._release_one(resident) for _, resident in left), return_exceptions=True)
        failures: list[BaseException] = []
        for (key, _), end in zip(left, ends, strict=True):
            if isinstance(end, BaseException):
                end.add_note(f"while releasing the resident of session {key}")
                failures.append(end)
        if failures:
            raise BaseExceptionGroup("releasing residents", failures)


def _log_warning(message: str, fields: dict[str, Any]) -> None:
    _log.warning("%s (%s)", message, ", ".join(f"{name} {value}" for name, value in fields.items()))
