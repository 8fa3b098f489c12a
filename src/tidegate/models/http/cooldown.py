"""Cooldowns after failures: of a key without quota, of a model that is down.

A cooldown has a reason and an end. None is longer than `LONGEST_REST`, even if the clock is set back meanwhile. There
are at most as many entries as keys and models in the configuration. The clock is a parameter, so that tests do not
wait.
"""

from collections.abc import Callable
from typing import NamedTuple

from tidegate.errors import ModelFailed, ModelKind

REST_SECONDS: dict[ModelKind, float] = {
    "rate": 60.0,  # the usual window of a provider's limit
    "overloaded": 60.0,
    "network": 60.0,
    "timeout": 60.0,
    "quota": 600.0,  # these two need action by a person, which may happen at any time
    "authorisation": 600.0,
}
"""Length of a cooldown by kind of failure, if the endpoint names none. Other kinds are caused by the conversation and
start no cooldown."""

SHORTEST_REST = 1.0
"""Seconds, even if the endpoint asks for less."""

LONGEST_REST = 24 * 3600.0
"""Seconds, even if the endpoint asks for more."""


class Cooldown(NamedTuple):
    until: float
    why: ModelKind


class Cooldowns:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cooldowns: dict[str, Cooldown] = {}

    def begin(self, name: str, failure: ModelFailed) -> float | None:
        """Start a cooldown. Returns its seconds, or None if this kind of failure starts none."""
        seconds = REST_SECONDS.get(failure.kind)
        if seconds is None:
            return None
        if failure.retry_after is not None:
            seconds = min(max(failure.retry_after, SHORTEST_REST), LONGEST_REST)
        self._cooldowns[name] = Cooldown(self._clock() + seconds, failure.kind)
        return seconds

    def end(self, name: str) -> None:
        """End a cooldown early, because a request succeeded."""
        self._cooldowns.pop(name, None)

    def of(self, name: str) -> Cooldown | None:
        """The cooldown of a key or model; None if it has none or it is over."""
        rest = self._cooldowns.get(name)
        if rest is not None and not 0 < rest.until - self._clock() <= LONGEST_REST:
            del self._cooldowns[name]
            return None
        return rest

    def wait(self, name: str) -> float:
        """Seconds until the cooldown ends; 0 without one."""
        rest = self.of(name)
        return 0.0 if rest is None else rest.until - self._clock()
