"""A turn that is waiting or running in this process, with its record.

Guarantee: everything that exists for a turn while it is running (its log, start time, stop reason, steering, usage and
child turns) is a field of `LiveTurn`, so all of it is freed with the record, however the turn ends. A record holds ids,
values and other records, never the live objects of a session.

`turn_holdings` and `log_holdings` report how much memory turns use, by session, measured on request. They cover every
waiting or running turn and every log, including the logs of ended turns that slow readers are still following. A turn's
text is counted with its log; the constants here cover what a turn costs regardless of its text.
"""

import asyncio
from collections.abc import Iterable, Iterator

from tidegate.engine.interface import StartedTurn
from tidegate.engine.turn_log import TurnLog
from tidegate.lifetimes import Holding
from tidegate.store import TurnNews
from tidegate.values import Event, Notice, Usage

NOTICES_KEPT = 16
"""Maximum number of notices stored for one turn. Further notices are dropped."""

NOTHING = Usage()

RUNNING_BYTES = 12 * 1024
"""Measured memory of a running turn, in bytes: its asyncio task with the frames that are waiting for a model, its
record and its journal."""

WAITING_BYTES = 2 * 1024
"""Memory of a waiting turn, in bytes: its record and its empty log."""


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
        "questions",
        "released",
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
        *,
        start: StartedTurn | None = None,
        parent: "LiveTurn | None" = None,
    ) -> None:
        self.turn = turn
        self.session = session
        self.start = start
        """The rows with which the turn was started, if it was started in the transaction that accepted it."""
        self.parent = parent
        """The turn that delegated this turn, if this turn is a task."""
        self.children: dict[str, LiveTurn] = {}
        """The turns of the tasks delegated by this turn, by id."""
        self.delegated = False
        """True if the turn may have delegated tasks."""
        self.log = TurnLog(turn, session)
        self.notices: list[str] = []  # lint: allow NOTICES_KEPT
        """Notices shown to the user. They are stored with the turn's end, for users who were not connected."""
        self.usage = NOTHING
        """The usage of the model calls made by the turn and by its tasks."""
        self.started_at: float | None = None
        self.stopped_by: str | None = None
        """The reason why the turn was stopped, in words; None if it was not stopped."""
        self.abandoned = False
        """True if the turn was stopped only because its caller had disconnected."""
        self.steered = False
        """True if there may be steering messages to drain."""
        self.expired = False
        """True if the turn exceeded its time limit."""
        self.is_done = False
        """True if the turn has finished running and only its end remains to be stored."""
        self.released = False
        """True if the session has released the turn."""
        self.has_slot = False
        """True if the turn has a slot. While the turn waits for its tasks, the slot is reserved for them."""
        self.questions = 0
        """The number of the turn's tool calls that are waiting for a person."""
        self.tasks = 0
        """The number of the turn's tool calls that are waiting for a delegated task."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._seconds_left = 0.0
        self._timer_holds = 0
        self._signals = 0
        self._signalled: asyncio.Future[None] | None = None

    @property
    def is_waiting(self) -> bool:
        """True if the turn is currently waiting for a person or for its tasks."""
        return bool(self.questions or self.tasks)

    @property
    def waits_for_person(self) -> bool:
        """True if the turn cannot continue until a person has answered a question asked by the turn or by a task that
        it is waiting for."""
        return bool(self.questions or (self.tasks and self._timer_holds))

    @property
    def root(self) -> "LiveTurn":
        """The outermost parent turn; the turn itself if it has no parent."""
        live = self
        while live.parent is not None:
            live = live.parent
        return live

    def attach_task(self) -> None:
        """Lets stop requests cancel the current asyncio task until `detach_task` is called."""
        self._task = asyncio.current_task()
        self.is_done = False

    def detach_task(self) -> bool:
        """Lets later stop requests leave the asyncio task alone, because all that remains is to store the turn's end.
        Returns True if the turn was stopped or expired, and False if it was only cancelled because the process is
        stopping."""
        task, self._task = self._task, None
        self.is_done = True
        ours = self.stopped_by is not None or self.expired
        while ours and task is not None and task.cancelling():
            task.uncancel()
        return ours

    def stop(self, by: str, *, abandoned: bool = False) -> None:
        if self.stopped_by is None:
            self.stopped_by, self.abandoned = by, abandoned
        if self._task is not None:
            self._task.cancel()

    def expire(self) -> None:
        self.expired = True
        if self._task is not None:
            self._task.cancel()

    def add_usage(self, usage: Usage) -> None:
        """Counts a model call of this turn or of one of its tasks, in this turn and in all parent turns."""
        self.usage = self.usage + usage
        if self.parent is not None:
            self.parent.add_usage(usage)

    # -- time limit --

    def start_timer(self, seconds: float) -> None:
        """Starts the timer for the turn's time limit."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + seconds
        self._timer = loop.call_later(seconds, self.expire)

    @property
    def is_timed(self) -> bool:
        """True if the timer for the turn's time limit is running."""
        return self._timer is not None

    def hold_timer(self) -> None:
        """Suspends the time limit. The time continues to run once `resume_timer` has been called as often as this
        method."""
        self._timer_holds += 1
        self.stop_timer()

    def resume_timer(self) -> None:
        self._timer_holds -= 1
        if not self._timer_holds and self._task is not None:
            self.start_timer(self._seconds_left)

    def stop_timer(self) -> None:
        """Stops the timer and remembers the time left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._seconds_left = max(0.0, self._due - asyncio.get_running_loop().time())

    # -- events and signals --

    def emit(self, event: Event) -> None:
        if isinstance(event, Notice) and len(self.notices) < NOTICES_KEPT and event.text not in self.notices:
            self.notices.append(event.text)
        self.log.append(event)

    def wake(self) -> None:
        """Tells the turn that there may be news for it in the store."""
        self.steered = True
        self.signal()

    def learn(self, news: TurnNews) -> None:
        """Acts on news found in the store."""
        if news.is_steered:
            self.steered = True
        if news.stopping is not None and self.stopped_by is None:
            self.stop(news.stopping.by, abandoned=news.stopping.abandoned)

    def signal(self) -> None:
        """Tells the turn that something may have happened for which one of its steps is waiting."""
        self._signals += 1
        if self._signalled is not None and not self._signalled.done():
            self._signalled.set_result(None)

    @property
    def signals(self) -> int:
        """The number of signals that the turn has received. Read this before checking a condition, then pass it to
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
