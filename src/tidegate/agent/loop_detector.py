"""The loop detector: a model that asks for the same thing with the same result again and again is told, then stopped.

Guarantee: a pure fold over the turn's own messages, so that a replayed turn reaches the same verdicts.
"""

from collections.abc import Sequence
from enum import Enum

from tidegate.values import Message


class RepeatVerdict(Enum):
    FINE = "fine"
    WARN = "warn"
    STOP = "stop"


class LoopDetector:
    """Counts equal rounds in a row. A round is a model's calls together with their results."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._last: tuple[object, ...] = ()
        self._count = 0

    def round(self, answer: Message, results: Sequence[Message]) -> RepeatVerdict:
        this = (
            tuple((call.name, call.arguments) for call in answer.calls),
            tuple((result.text, result.failed) for result in results),
        )
        self._count = self._count + 1 if this == self._last else 1
        self._last = this
        if self._count >= 2 * self._allowed:
            return RepeatVerdict.STOP
        return RepeatVerdict.WARN if self._count >= self._allowed else RepeatVerdict.FINE
