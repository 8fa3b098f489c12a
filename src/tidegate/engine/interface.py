"""The interface of an engine, as the sessions package uses it.

Guarantee: an engine runs each accepted turn of a session once, in the order of acceptance and one at a time. Submitting
a turn twice changes nothing. The rows of a turn are in the store before it is submitted, so an engine needs only its
id. `EmbeddedEngine` does this in one process; a distributed engine would do it by other means.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from tidegate.engine.live_turn import StartedTurn
from tidegate.engine.turn_log import TurnLog
from tidegate.values import Event, Outcome


class Engine(Protocol):
    def submit(
        self,
        session: str,
        turn: str,
        principal: str,
        *,
        started: StartedTurn | None = None,
        resumed: bool = False,
        within: str | None = None,
    ) -> int:
        """Queue an accepted turn. `started` is set if the turn was started in the transaction that accepted it.
        `within` is the parent turn that delegated the task; the new turn ends with it at the latest. Returns how many
        turns of the session were ahead of a new one."""
        ...

    def log(self, turn: str) -> TurnLog | None:
        """The event log of a turn that waits or runs; None if the turn is not live here."""
        ...

    async def result(self, turn: str) -> Outcome:
        """The outcome of a turn, once it has ended; as it is in the store if the turn is not live here. Raises NotFound
        if there is no such turn."""
        ...

    def steer(self, turn: str) -> None:
        """A steering message for this turn has been committed."""
        ...

    def signal(self, turn: str) -> None:
        """An event that this turn may wait for has been committed: one of its questions was answered."""
        ...

    def tell(self, turn: str, event: Event) -> None:
        """Send an event that did not originate in this turn to the turn's followers."""
        ...

    def delegating(self, turn: str) -> AbstractContextManager[None]:
        """A tool call of this turn waits for a task that it delegates; the engine need not reserve a slot for it
        meanwhile."""
        ...

    def interrupt(self, turn: str, by: str, *, abandoned: bool = False) -> bool:
        """Stop a turn that runs or waits. Returns whether there was one."""
        ...
