"""What turns hold, measured when somebody asks.

Guarantee: every turn that waits or runs is on the books under its session, and so is every log, also one whose turn has
ended while a slow reader still follows it. The text of a turn is in its log; what is here beside it is what it costs
whatever is said.
"""

from collections.abc import Iterable, Iterator

from tidegate.engine.live import LiveTurn
from tidegate.engine.turn_log import TurnLog
from tidegate.lifetimes import Holding

RUNNING_BYTES = 12 * 1024
"""A running turn: its task with the frames in which it waits for a model, its record and journal. Measured."""

WAITING_BYTES = 2 * 1024
"""A waiting turn: its record and empty log."""


def by_turns(turns: Iterable[LiveTurn]) -> Iterator[tuple[str, Holding]]:
    for live in turns:
        yield f"session {live.session}", Holding(1, WAITING_BYTES if live.started is None else RUNNING_BYTES)


def by_logs(logs: Iterable[TurnLog]) -> Iterator[tuple[str, Holding]]:
    for log in logs:
        yield f"session {log.session}", Holding(1, log.weight)
