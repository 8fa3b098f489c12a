"""The one record of a turn that waits or runs in this process.

Guarantee: everything that exists for a turn while it runs (its log, start time, stop mark, steering, what it has used,
the turns that work on tasks of its) is a field here, so that letting go of the record lets go of all of it, whichever
way the turn ends. A record holds ids and values and other records, never a session's live things.
"""

import asyncio
from collections.abc import Iterable, Iterator

from tidegate.engine.turn_log import TurnLog
from tidegate.engine.turn_start import StartedTurn
from tidegate.lifetimes import Holding
from tidegate.values import Event, Notice, Usage

NOTICES_KEPT = 16
"""Of one turn. More is no news."""

NOTHING = Usage()

RUNNING_BYTES = 12 * 1024
"""A running turn: its task with the frames in which it waits for a model, its record and journal. Measured."""

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
        """What it was taken with, when that happened as it was accepted."""
        self.resumed = resumed
        self.parent = parent
        """The turn that gave it its task."""
        self.children: dict[str, LiveTurn] = {}
        """The turns that work on tasks of its, by id."""
        self.delegated = resumed
        """Whether it may have given tasks."""
        self.log = TurnLog(turn, session)
        self.notices: list[str] = []  # house: allow NOTICES_KEPT
        """What the user was told; it is stored with the end, for who was not there."""
        self.usage = NOTHING
        """What its model calls have cost, and those of the tasks that it gave."""
        self.started_at: float | None = None
        self.stopped_by: str | None = None
        """Who stopped it, in words, once somebody has."""
        self.abandoned = False
        """Whether it was stopped only because its caller had gone."""
        self.steered = resumed
        """Whether there may be something to drain."""
        self.expired = False
        """Whether it took longer than a turn may."""
        self.is_done = False
        """Whether it works no more: what is left is to write down how it ended."""
        self.released = False
        """Whether its session has let it go."""
        self.has_slot = False
        """Whether it has a place among those that run; while it waits for its tasks, one that it keeps for them."""
        self.questions = 0
        """How many of its calls wait for a person."""
        self.tasks = 0
        """How many of its calls wait for a task that another agent works on."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._seconds_left = 0.0
        self._timer_holds = 0
        self._signals = 0
        self._signalled: asyncio.Future[None] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it does nothing itself until others have: a person, or agents that it gave tasks."""
        return bool(self.questions or self.tasks)

    @property
    def waits_for_person(self) -> bool:
        """Whether it does nothing itself until a person has answered: it has asked, or a task that it waits for has."""
        return bool(self.questions or (self.tasks and self._timer_holds))

    @property
    def root(self) -> "LiveTurn":
        """The outermost turn that it works for; itself, if nobody gave it its task."""
        live = self
        while live.parent is not None:
            live = live.parent
        return live

    def attach_task(self) -> None:
        """From now on a stop cancels the task that calls this, until `leave`."""
        self._task = asyncio.current_task()

    def detach_task(self) -> bool:
        """No stop reaches the task any more: what is left is to write down how it ended. Whether a stop of ours has
        cancelled it, and not the end of the process."""
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
        """A model call was made, here or in a task: whoever gave the task has used it too."""
        self.usage = self.usage + usage
        if self.parent is not None:
            self.parent.add_usage(usage)

    # -- its time --

    def start_timer(self, seconds: float) -> None:
        """From now on it may take so long."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + seconds
        self._timer = loop.call_later(seconds, self.expire)

    def hold_timer(self) -> None:
        """The time does not count until `go_on` was called as often as this."""
        self._timer_holds += 1
        self.stop_timer()

    def resume_timer(self) -> None:
        self._timer_holds -= 1
        if not self._timer_holds and self._task is not None:
            self.start_timer(self._seconds_left)

    def stop_timer(self) -> None:
        """The time does not count any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._seconds_left = max(0.0, self._due - asyncio.get_running_loop().time())

    # -- what it tells, and is told --

    def emit(self, event: Event) -> None:
        if isinstance(event, Notice) and len(self.notices) < NOTICES_KEPT and event.text not in self.notices:
            self.notices.append(event.text)
        self.log.append(event)

    def steer(self) -> None:
        """Something was said into this turn and is durable."""
        self.steered = True
        self.signal()

    def signal(self) -> None:
        """Something that one of its steps waits for may have happened."""
        self._signals += 1
        if self._signalled is not None and not self._signalled.done():
            self._signalled.set_result(None)

    @property
    def signals(self) -> int:
        """How often it was signalled: who waits for more asks for this before it looks."""
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
