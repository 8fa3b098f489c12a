"""The retry policy: whether a failed request is retried, and after how long.

Pauses grow exponentially with random jitter, so that many callers do not retry simultaneously. They are never shorter
than the endpoint's Retry-After; if that exceeds `LONGEST_RETRY_AFTER`, the request is not retried. Sleep, randomness
and clock are parameters, so that tests are deterministic and do not wait.
"""

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from tidegate.errors import ModelFailed

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 8.0
# If the wait were longer than this, a person would rather see the failure, which carries the endpoint's Retry-After.
LONGEST_RETRY_AFTER = 30.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The policy for retrying failed requests. `clock` is wall time, because Retry-After may be a date."""

    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    chance: Callable[[], float] = random.random
    clock: Callable[[], float] = time.time

    def pause(self, failure: ModelFailed, attempt: int) -> float | None:
        """Returns the seconds to wait after attempt number `attempt` (from 0), or None if the request should not be
        retried."""
        if not failure.retryable:
            return None
        if failure.retry_after is not None:
            if failure.retry_after > LONGEST_RETRY_AFTER:
                return None
            return failure.retry_after + self.chance() * FIRST_PAUSE
        return float(self.chance() * min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt))
