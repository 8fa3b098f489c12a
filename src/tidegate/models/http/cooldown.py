"""Cooldowns of keys and models after failures, such as an exhausted quota or an endpoint that is down.

A cooldown has a reason and an end. No cooldown is longer than `LONGEST_COOLDOWN`, even if the clock is set back in the
meantime. There are at most as many entries as keys and models in the configuration. The clock is a parameter, so that
tests do not wait.
"""

from collections.abc import Callable
from typing import NamedTuple

from tidegate.errors import ModelFailed, ModelKind

COOLDOWN_SECONDS: dict[ModelKind, float] = {
    "rate": 60.0,  # the usual window of a provider's limit
    "overloaded": 60.0,
    "network": 60.0,
    "timeout": 60.0,
    "quota": 600.0,  # for these two, a person must act, which may happen at any time
    "authorisation": 600.0,
}
"""The length of a cooldown by kind of failure, unless the endpoint asks for another length. Other kinds of failures are
caused by the conversation and start no cooldown."""

SHORTEST_COOLDOWN = 1.0
"""Minimum length of a cooldown in seconds, even if the endpoint asks for less."""

LONGEST_COOLDOWN = 24 * 3600.0
"""Maximum length of a cooldown in seconds, even if the endpoint asks for more."""


class Cooldown(NamedTuple):
    until: float
    why: ModelKind


class Cooldowns:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cooldowns: dict[str, Cooldown] = {}

    def begin(self, name: str, failure: ModelFailed) -> float | None:
        """Starts a cooldown. Returns its length in seconds, or None if this kind of failure starts none."""
        seconds = COOLDOWN_SECONDS.get(failure.kind)
        if seconds is None:
            return None
        if failure.retry_after is not None:
            seconds = min(max(failure.retry_after, SHORTEST_COOLDOWN), LONGEST_COOLDOWN)
        self._cooldowns[name] = Cooldown(self._clock() + seconds, failure.kind)
        return seconds

    def end(self, name: str) -> None:
        """Ends a cooldown early because a request has succeeded."""
        self._cooldowns.pop(name, None)

    def of(self, name: str) -> Cooldown | None:
        """Returns the current cooldown of a key or model, or None if there is none."""
        cooldown = self._cooldowns.get(name)
        if cooldown is not None and not 0 < cooldown.until - self._clock() <= LONGEST_COOLDOWN:
            del self._cooldowns[name]
            return None
        return cooldown

    def wait(self, name: str) -> float:
        """Returns the seconds until the cooldown ends, or 0 if there is no cooldown."""
        cooldown = self.of(name)
        return 0.0 if cooldown is None else cooldown.until - self._clock()
