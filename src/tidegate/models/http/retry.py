"""When to try again, and after how long.

Guarantee: pauses grow, are spread by chance so that many callers do not come back at once, and never undercut what
the endpoint asked for; an endpoint that asks for more than the cap is not waited for. Sleep and chance are given, so
that a test neither waits nor guesses.
"""

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from tidegate.errors import ModelFailed

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 8.0
# Longer than this, a person would rather know than wait; the failure then carries the endpoint's wish.
LONGEST_WISH = 30.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`clock` is wall time, because an endpoint may name a date."""

    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    chance: Callable[[], float] = random.random
    clock: Callable[[], float] = time.time

    def pause(self, failure: ModelFailed, attempt: int) -> float | None:
        """Seconds before attempt number `attempt` + 1, or None when there should be none."""
        if not failure.retryable:
            return None
        if failure.retry_after is not None:
            if failure.retry_after > LONGEST_WISH:
                return None
            return failure.retry_after + self.chance() * FIRST_PAUSE
        return float(self.chance() * min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt))
