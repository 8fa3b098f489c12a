"""Handling of Ctrl-C while a turn is running.

The first press sends a stop request to the gateway, and the client follows the turn to its end. This also works before
the gateway has returned the turn's id. The second press exits the client. Outside of a turn, Ctrl-C has its usual
effect.
"""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class LeaveRequested(KeyboardInterrupt):
    """The user left without waiting for the turn to end."""


class InterruptHandler:
    """Counts presses of Ctrl-C inside its `with` block. `on_press` sets the action for the first press."""

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
        """Calls `stop` at the first press of Ctrl-C, or now if that has already happened."""
        self._stop = stop
        if self._presses:
            stop()

    def _pressed(self, _number: int, _frame: FrameType | None) -> None:
        self._presses += 1
        if self._presses > 1:
            raise LeaveRequested
        if self._stop is not None:
            self._stop()
