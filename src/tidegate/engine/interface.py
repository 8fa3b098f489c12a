"""What the sessions room asks of an engine, wherever its turns run.

Guarantee: an engine works each accepted turn of a session once, in the order in which they were accepted, and one at a
time; handing a turn in twice changes nothing. The turn's rows are in the store before it is handed in, so that an
engine needs only its id. `EmbeddedEngine` keeps this in one process; one on several machines by its own means.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from tidegate.engine.turn_log import TurnLog
from tidegate.engine.turn_start import StartedTurn
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
    ) -> TurnLog:
        """Queue an accepted turn; `begun` is given when it was taken as it was accepted, `within` is the turn that gave
        it its task: with that it ends, at the latest."""
        ...

    def log(self, turn: str) -> TurnLog | None:
        """What a turn that waits or runs tells; None when it is not live here."""
        ...

    async def result(self, turn: str) -> Outcome | None:
        """The outcome, once it has ended; None when it is not live here, and the store knows."""
        ...

    def steer(self, turn: str) -> None:
        """Something was said into this turn and is durable."""
        ...

    def signal(self, turn: str) -> None:
        """Something that this turn may wait for has happened and is durable: a question of its was answered."""
        ...

    def tell(self, turn: str, event: Event) -> None:
        """Whoever follows this turn is told something that did not happen in it."""
        ...

    def delegating(self, turn: str) -> AbstractContextManager[None]:
        """A call of this turn waits for a task that it gives; an engine need not keep a place for it meanwhile."""
        ...

    def interrupt(self, turn: str, by: str, *, abandoned: bool = False) -> bool:
        """Stop a turn that runs or waits; whether there was one."""
        ...
