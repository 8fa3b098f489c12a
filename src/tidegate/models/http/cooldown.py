"""What is left alone for a while after it failed: a key without quota, a model that is down.

Guarantee: what rests is named with the reason and the time it comes back; no rest is longer than `LONGEST_REST`, even
when the clock is set back meanwhile. As many entries as there are keys and models in the configuration. Time is given,
so that a test does not wait.
"""

from collections.abc import Callable
from typing import NamedTuple

from tidegate.errors import ModelFailed, ModelKind

REST_SECONDS: dict[ModelKind, float] = {
    "rate": 60.0,  # the usual window of a provider's limit
    "overloaded": 60.0,
    "network": 60.0,
    "timeout": 60.0,
    "quota": 600.0,  # somebody has to do something about these, and may do so at any time
    "authorisation": 600.0,
}
"""How long, by what went wrong, when the endpoint does not say. Other kinds are the conversation's fault, and no reason
to rest."""

SHORTEST_REST = 1.0
"""However soon the endpoint says."""

LONGEST_REST = 24 * 3600.0
"""However long the endpoint says."""


class Cooldown(NamedTuple):
    until: float
    why: ModelKind


class Cooldowns:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cooldowns: dict[str, Cooldown] = {}

    def begin(self, name: str, failure: ModelFailed) -> float | None:
        """For how long it rests now; None when this failure is no reason to."""
        seconds = REST_SECONDS.get(failure.kind)
        if seconds is None:
            return None
        if failure.retry_after is not None:
            seconds = min(max(failure.retry_after, SHORTEST_REST), LONGEST_REST)
        self._cooldowns[name] = Cooldown(self._clock() + seconds, failure.kind)
        return seconds

    def end(self, name: str) -> None:
        """It was asked all the same, and works."""
        self._cooldowns.pop(name, None)

    def of(self, name: str) -> Cooldown | None:
        """Its rest, while it lasts."""
        rest = self._cooldowns.get(name)
        if rest is not None and not 0 < rest.until - self._clock() <= LONGEST_REST:
            del self._cooldowns[name]
            return None
        return rest

    def wait(self, name: str) -> float:
        """Seconds until it is over; none when it does not rest."""
        rest = self.of(name)
        return 0.0 if rest is None else rest.until - self._clock()
