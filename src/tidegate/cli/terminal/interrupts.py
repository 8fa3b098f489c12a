"""Ctrl-C while a message is being worked.

Guarantee: the first asks the gateway to stop the turn and the client goes on to its end, also when it comes before the
gateway has said which turn that is; the second leaves. Before and after, Ctrl-C is what it was.
"""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class LeftTurn(KeyboardInterrupt):
    """A person does not want to wait for the turn's end either."""


class InterruptHandler:
    """Counts presses while it is entered, and stops what it was told to stop."""

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self._presses = 0
        self._before: Any = None

    def __enter__(self) -> "InterruptHandler":
        self._before = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def stops(self, stop: Callable[[], None]) -> None:
        """What a press stops from now on; at once, if it has come already."""
        self._stop = stop
        if self._presses:
            stop()

    def _pressed(self, _number: int, _frame: FrameType | None) -> None:
        self._presses += 1
        if self._presses > 1:
            raise LeftTurn
        if self._stop is not None:
            self._stop()
