"""The one record of a turn that waits or runs in this process.

Guarantee: everything that exists for a turn while it runs (its log, start time, stop mark, steering) is a field here,
so that letting go of the record lets go of all of it, whichever way the turn ends. A record holds ids and values,
never a session's live things.
"""

import asyncio

import anyio

from tidegate.engine.log import TurnLog
from tidegate.engine.taking import Begun


class Live:
    __slots__ = (
        "_arrived",
        "_cancel",
        "abandoned",
        "begun",
        "log",
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
        self._cancel: anyio.CancelScope | None = None
        self._arrived: asyncio.Future[None] | None = None

    def run_in(self, cancel: anyio.CancelScope) -> None:
        """From now on `stop` cancels this scope, at once if it was stopped while it waited."""
        self._cancel = cancel
        if self.stopping is not None:
            cancel.cancel()

    def stop(self, by: str) -> None:
        if self.stopping is None:
            self.stopping = by
        if self._cancel is not None:
            self._cancel.cancel()

    def signal(self) -> None:
        """Something was steered into this turn and is durable."""
        self.steered = True
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def arrival(self) -> None:
        while not self.steered:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
