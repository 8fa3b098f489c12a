"""Ctrl-C while a turn runs.

The first press asks the gateway to stop the turn, and the client follows it to its end, even if the press comes before
the gateway has named the turn. The second press leaves. Before and after, Ctrl-C has its usual effect.
"""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class LeftTurn(KeyboardInterrupt):
    """The user does not want to wait for the end of the turn."""


class InterruptHandler:
    """Counts presses inside its `with` block; `on_press` sets the action of the first."""

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self._presses = 0
        self._before: Any = None

    def __enter__(self) -> "InterruptHandler":
        self._before = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def on_press(self, stop: Callable[[], None]) -> None:
        """Call `stop` at the first press, or now if it has already come."""
        self._stop = stop
        if self._presses:
            stop()

    def _pressed(self, _number: int, _frame: FrameType | None) -> None:
        self._presses += 1
        if self._presses > 1:
            raise LeftTurn
        if self._stop is not None:
            self._stop()
