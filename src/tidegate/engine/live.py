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
        "_arrived",
        "_task",
        "abandoned",
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
        self._task: asyncio.Task[None] | None = None
        self._arrived: asyncio.Future[None] | None = None

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

    def signal(self) -> None:
        """Something was steered into this turn and is durable."""
        self.steered = True
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def arrival(self) -> None:
        while not self.steered:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
