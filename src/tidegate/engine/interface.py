"""The interface of an engine, as the sessions package uses it.

Guarantee: an engine runs each accepted turn of a session once, in the order of acceptance and one at a time. Submitting
a turn twice changes nothing. The rows of a turn are in the store before the turn is submitted, so an engine needs only
the turn's id. `EmbeddedEngine` implements this interface within one process; a distributed engine could implement it
differently.
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
        `within` is the parent turn that delegated the task; the new turn ends no later than its parent. Returns the
        number of turns of the session that precede the new turn."""
        ...

    def log(self, turn: str) -> TurnLog | None:
        """The event log of a turn that waits or runs; None if the turn is not live here."""
        ...

    async def result(self, turn: str) -> Outcome:
        """Waits until the turn has ended and returns its outcome. If the turn is not live here, returns the outcome
        that is in the store now. Raises NotFound if there is no such turn."""
        ...

    def steer(self, turn: str) -> None:
        """Called when a steering message for this turn has been committed."""
        ...

    def signal(self, turn: str) -> None:
        """Called when an event has been committed that this turn may be waiting for, such as the answer to one of its
        questions."""
        ...

    def tell(self, turn: str, event: Event) -> None:
        """Send an event that did not originate in this turn to the turn's followers."""
        ...

    def delegating(self, turn: str) -> AbstractContextManager[None]:
        """Within the block, one of the turn's tool calls counts as waiting for a task that it delegated. The engine
        need not reserve a slot for the turn during that time."""
        ...

    def interrupt(self, turn: str, by: str, *, abandoned: bool = False) -> bool:
        """Stop a turn that runs or waits. Returns True if there was such a turn."""
        ...
