"""The one record of a turn that waits or runs in this process.

Guarantee: everything that exists for a turn while it runs (its log, start time, stop mark, steering) is a field here,
so that letting go of the record lets go of all of it, whichever way the turn ends. A record holds ids and values,
never a session's live things.
"""

import asyncio

from tidegate.engine.log import TurnLog
from tidegate.engine.taking import Begun


class Live:
    __slots__ = (
        "_due",
        "_left",
        "_news",
        "_signals",
        "_task",
        "_timer",
        "abandoned",
        "away",
        "begun",
        "expired",
        "log",
        "released",
        "resumed",
        "session",
        "started",
        "steered",
        "stopping",
        "turn",
    )

    def __init__(
        self,
        turn: str,
        session: str,
        *,
        begun: Begun | None = None,
        resumed: bool = False,
    ) -> None:
        self.turn = turn
        self.session = session
        self.begun = begun
        """What it was taken with, when that happened as it was accepted."""
        self.resumed = resumed
        self.log = TurnLog(turn, session)
        self.started: float | None = None
        self.stopping: str | None = None
        """Who stopped it, in words, once somebody has."""
        self.abandoned = False
        """Whether it was stopped only because its caller had gone."""
        self.steered = resumed
        """Whether there may be something to drain."""
        self.expired = False
        """Whether it took longer than a turn may."""
        self.released = False
        """Whether its session has let it go."""
        self.away = 0
        """How many of its calls wait for a person. Meanwhile it has no place among the running ones."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._left = 0.0
        self._signals = 0
        self._news: asyncio.Future[None] | None = None

    def run(self) -> None:
        """From now on a stop cancels the task that calls this, until `leave`."""
        self._task = asyncio.current_task()

    def leave(self) -> bool:
        """No stop reaches the task any more: what is left is to write down how it ended. Whether a stop of ours has
        cancelled it, and not the end of the process."""
        task, self._task = self._task, None
        ours = self.stopping is not None or self.expired
        while ours and task is not None and task.cancelling():
            task.uncancel()
        return ours

    def stop(self, by: str) -> None:
        if self.stopping is None:
            self.stopping = by
        if self._task is not None:
            self._task.cancel()

    def expire(self) -> None:
        self.expired = True
        if self._task is not None:
            self._task.cancel()

    # -- its time --

    def limit(self, seconds: float) -> None:
        """From now on it may take so long."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + seconds
        self._timer = loop.call_later(seconds, self.expire)

    def pause(self) -> float:
        """The time does not count until `limit` is called again; how much of it was left when it ceased to."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._left = max(0.0, self._due - asyncio.get_running_loop().time())
        return self._left

    # -- what it is told --

    def steer(self) -> None:
        """Something was said into this turn and is durable."""
        self.steered = True
        self.signal()

    def signal(self) -> None:
        """Something that one of its steps waits for may have happened."""
        self._signals += 1
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    @property
    def signals(self) -> int:
        """How often it was signalled: who waits for more asks for this before it looks."""
        return self._signals

    async def signalled(self, since: int) -> None:
        while self._signals == since:
            if self._news is None or self._news.done():
                self._news = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._news)
