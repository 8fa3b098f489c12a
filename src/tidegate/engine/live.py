"""The record of one turn that waits or runs in this process.

Guarantee: everything that exists for a turn while it runs (its log, start time, stop reason, steering, usage and child
turns) is a field here, so dropping the record drops all of it, however the turn ends. A record holds ids, values and
other records, never the live objects of a session.

`turn_holdings` and `log_holdings` report the memory of turns by session, measured on request. They cover every turn
that waits or runs, and every log, including the log of an ended turn that a slow reader still follows. The text of a
turn is counted with its log; the constants here cover what a turn costs regardless of its text.
"""

import asyncio
from collections.abc import Iterable, Iterator

from tidegate.engine.turn_log import TurnLog
from tidegate.engine.turn_start import StartedTurn
from tidegate.lifetimes import Holding
from tidegate.values import Event, Notice, Usage

NOTICES_KEPT = 16
"""Notices of one turn. Further ones are dropped."""

NOTHING = Usage()

RUNNING_BYTES = 12 * 1024
"""A running turn: its task with the frames in which it waits for a model, its record and its journal. Measured."""

WAITING_BYTES = 2 * 1024
"""A waiting turn: its record and empty log."""


class LiveTurn:
    __slots__ = (
        "_due",
        "_seconds_left",
        "_signalled",
        "_signals",
        "_task",
        "_timer",
        "_timer_holds",
        "abandoned",
        "children",
        "delegated",
        "expired",
        "has_slot",
        "is_done",
        "log",
        "notices",
        "parent",
        "principal",
        "questions",
        "released",
        "resumed",
        "session",
        "start",
        "started_at",
        "steered",
        "stopped_by",
        "tasks",
        "turn",
        "usage",
    )

    def __init__(
        self,
        turn: str,
        session: str,
        principal: str = "",
        *,
        start: StartedTurn | None = None,
        resumed: bool = False,
        parent: "LiveTurn | None" = None,
    ) -> None:
        self.turn = turn
        self.session = session
        self.principal = principal
        self.start = start
        """The rows it was started with, if it was started in the transaction that accepted it."""
        self.resumed = resumed
        self.parent = parent
        """The turn that delegated this one, if it runs a task."""
        self.children: dict[str, LiveTurn] = {}
        """The turns that run tasks delegated by this turn, by id."""
        self.delegated = resumed
        """Whether it may have delegated tasks."""
        self.log = TurnLog(turn, session)
        self.notices: list[str] = []  # lint: allow NOTICES_KEPT
        """Notices shown to the user. They are stored with the end, for users who were not connected."""
        self.usage = NOTHING
        """The usage of its model calls and of those of its tasks."""
        self.started_at: float | None = None
        self.stopped_by: str | None = None
        """The reason for the stop, in words, once it was stopped."""
        self.abandoned = False
        """Whether it was stopped only because its caller had left."""
        self.steered = resumed
        """Whether there may be messages to drain."""
        self.expired = False
        """Whether it exceeded the time limit."""
        self.is_done = False
        """Whether it has finished running; only its end remains to be stored."""
        self.released = False
        """Whether its session has released it."""
        self.has_slot = False
        """Whether it has a slot. While it waits for its tasks, the slot is reserved for them."""
        self.questions = 0
        """How many of its tool calls wait for a person."""
        self.tasks = 0
        """How many of its tool calls wait for a delegated task."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._seconds_left = 0.0
        self._timer_holds = 0
        self._signals = 0
        self._signalled: asyncio.Future[None] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it does nothing itself at the moment: it waits for a person or for its tasks."""
        return bool(self.questions or self.tasks)

    @property
    def waits_for_person(self) -> bool:
        """Whether it can only continue after a person's answer: to its own question, or to one of a task that it waits
        for."""
        return bool(self.questions or (self.tasks and self._timer_holds))

    @property
    def root(self) -> "LiveTurn":
        """The outermost parent turn; the turn itself if it has no parent."""
        live = self
        while live.parent is not None:
            live = live.parent
        return live

    def attach_task(self) -> None:
        """From now on a stop cancels the current task, until `detach_task`."""
        self._task = asyncio.current_task()

    def detach_task(self) -> bool:
        """From now on no stop cancels the task: only the end of the turn remains to be stored. Returns whether the turn
        was stopped or expired, as opposed to cancelled by the end of the process."""
        task, self._task = self._task, None
        self.is_done = True
        ours = self.stopped_by is not None or self.expired
        while ours and task is not None and task.cancelling():
            task.uncancel()
        return ours

    def stop(self, by: str) -> None:
        if self.stopped_by is None:
            self.stopped_by = by
        if self._task is not None:
            self._task.cancel()

    def expire(self) -> None:
        self.expired = True
        if self._task is not None:
            self._task.cancel()

    def add_usage(self, usage: Usage) -> None:
        """Counts a model call of this turn or of one of its tasks, here and in all parent turns."""
        self.usage = self.usage + usage
        if self.parent is not None:
            self.parent.add_usage(usage)

    # -- time limit --

    def start_timer(self, seconds: float) -> None:
        """Start the time limit."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + seconds
        self._timer = loop.call_later(seconds, self.expire)

    @property
    def is_timed(self) -> bool:
        """Whether its time limit is running."""
        return self._timer is not None

    def hold_timer(self) -> None:
        """Suspend the time limit until `resume_timer` has been called as often as this."""
        self._timer_holds += 1
        self.stop_timer()

    def resume_timer(self) -> None:
        self._timer_holds -= 1
        if not self._timer_holds and self._task is not None:
            self.start_timer(self._seconds_left)

    def stop_timer(self) -> None:
        """Stop the time limit and remember the time left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._seconds_left = max(0.0, self._due - asyncio.get_running_loop().time())

    # -- events and signals --

    def emit(self, event: Event) -> None:
        if isinstance(event, Notice) and len(self.notices) < NOTICES_KEPT and event.text not in self.notices:
            self.notices.append(event.text)
        self.log.append(event)

    def steer(self) -> None:
        """A steering message for this turn has been committed."""
        self.steered = True
        self.signal()

    def signal(self) -> None:
        """An event that one of its steps waits for may have happened."""
        self._signals += 1
        if self._signalled is not None and not self._signalled.done():
            self._signalled.set_result(None)

    @property
    def signals(self) -> int:
        """How many signals it has received. Read this before checking a condition, then pass it to
        `wait_for_signal`."""
        return self._signals

    async def wait_for_signal(self, since: int) -> None:
        while self._signals == since:
            if self._signalled is None or self._signalled.done():
                self._signalled = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._signalled)


def turn_holdings(turns: Iterable[LiveTurn]) -> Iterator[tuple[str, Holding]]:
    for live in turns:
        yield f"session {live.session}", Holding(1, WAITING_BYTES if live.started_at is None else RUNNING_BYTES)


def log_holdings(logs: Iterable[TurnLog]) -> Iterator[tuple[str, Holding]]:
    for log in logs:
        yield f"session {log.session}", Holding(1, log.weight)
