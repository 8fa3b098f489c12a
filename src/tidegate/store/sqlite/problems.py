"""The store's current problems: a lost file, damage, disk errors.

A problem is recorded where it occurs and stays current until it is resolved:

    lost         the path no longer leads to the open file; until a restart
    damaged      a page or row cannot be decoded; until a full check passes
    unreadable   a read fails with a disk error; until a full check passes
    full         no space on the disk; until a write succeeds
    unwritable   a write fails with a disk error; until a write succeeds
    log          the log cannot be moved into the file; until it can
    spool        a spooled file cannot be written; until one is written

Each problem is logged when it begins and then at most every `LOG_SECONDS`, with a count. The methods may be called from
any thread, since each changes one entry in steps that are atomic thanks to the interpreter's lock.
"""

import time
from collections.abc import Callable
from typing import Literal, get_args

from tidegate.errors import DiskFailed, StoreDamaged, StoreFull
from tidegate.log import Log
from tidegate.values import Frozen

ProblemKind = Literal["lost", "damaged", "unreadable", "full", "unwritable", "log", "spool"]
PROBLEM_KINDS: tuple[ProblemKind, ...] = get_args(ProblemKind)
Activity = Literal["read", "write", "checkpoint"]

LOG_SECONDS = 60.0
"""Minimum number of seconds between two log lines about the same kind of problem."""

log = Log("tidegate.store")


class Problem(Frozen, frozen=True):
    """One current problem. `text` describes the latest occurrence to the operator, and `count` is the number of
    occurrences since the problem began."""

    kind: ProblemKind
    text: str
    since: float
    count: int


class Problems:
    def __init__(self) -> None:
        self.by_kind: dict[ProblemKind, Problem] = {}  # lint: allow one entry per kind
        """The current problems; nearly always empty."""
        self._logged: dict[ProblemKind, float] = {}  # lint: allow one entry per kind
        self._announced: set[ProblemKind] = set()
        """The kinds of current problems that have been logged."""
        self.counts: dict[ProblemKind, int] = dict.fromkeys(PROBLEM_KINDS, 0)

    def current(self) -> tuple[Problem, ...]:
        return tuple(problem for kind in PROBLEM_KINDS if (problem := self.by_kind.get(kind)) is not None)

    def is_current(self, kind: ProblemKind) -> bool:
        return kind in self.by_kind

    def text(self, kind: ProblemKind) -> str:
        problem = self.by_kind.get(kind)
        return "" if problem is None else problem.text

    def record_error(self, error: BaseException, activity: Activity, fn: Callable[..., object]) -> None:
        """Records an error that shows a problem with the store; `fn` is the function that raised it."""
        kind = _kind(error, activity)
        if kind == "damaged":
            self.record_damage(f"{getattr(fn, '__name__', activity)}: {error.__cause__ or error}")
        elif kind is not None:
            self.record(kind, str(error))

    def record_damage(self, where: str) -> None:
        self.record("damaged", f"{where}; stop the gateway, keep a copy of the file, and restore a backup")

    def record(self, kind: ProblemKind, text: str) -> None:
        before = self.by_kind.get(kind)
        since, count = (time.time(), 0) if before is None else (before.since, before.count)
        self.by_kind[kind] = Problem(kind=kind, text=text, since=since, count=count + 1)
        self.counts[kind] += 1
        now = time.monotonic()
        if now - self._logged.get(kind, -LOG_SECONDS) >= LOG_SECONDS:
            self._logged[kind] = now
            self._announced.add(kind)
            log.error(_SENTENCES[kind], problem=text, times=count + 1)

    def resolve(self, *kinds: ProblemKind) -> None:
        for kind in kinds:
            gone = self.by_kind.pop(kind, None)
            if gone is not None and kind in self._announced:
                self._announced.discard(kind)
                log.warning("a problem with the store is resolved", kind=kind, problem=gone.text, times=gone.count)


_SENTENCES: dict[ProblemKind, str] = {
    "lost": "the database file is no longer in its place; no more requests are accepted",
    "damaged": "the database is damaged",
    "unreadable": "the database cannot be read from the disk",
    "full": "there is no disk space left for the database",
    "unwritable": "the database cannot be written to the disk",
    "log": "the store's log could not be moved into the file",
    "spool": "a spool file cannot be written to the disk",
}


def _kind(error: BaseException, activity: Activity) -> ProblemKind | None:
    match error:
        case StoreDamaged():
            return "damaged"
        case StoreFull() | DiskFailed() if activity == "checkpoint":
            return "log"
        case DiskFailed() if activity == "read":
            return "unreadable"
        case StoreFull():
            return "full"
        case DiskFailed():
            return "unwritable"
        case _:
            return None
