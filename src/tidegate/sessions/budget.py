"""What the gateway may spend in a day: the tokens of all models together.

Guarantee: it is on unless limits.day_tokens is 0. It is asked before every model call and told after it, at the price
of an addition; the count is loaded from the usage rows at the start, so that a restart gives nothing back. Calls that
run side by side may pass the limit by what was under way when it was reached. A day is a UTC day. The demo model costs
nothing and is not counted. Budgets of a principal or a session would stand beside this one in a turn's `Purse`.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from tidegate.errors import BudgetSpent
from tidegate.log import Log
from tidegate.store import Store, usage

DAY = 86400
WARN_AT = 0.8
"""Share of the limit at which the operator is told, once a day: late enough to mean something, early enough to act."""

DEMO = "demo"
"""The name under which the demo model's tokens are written down."""

log = Log(__name__)


class DayBudget:
    """Counts of the current day. With a `limit` of 0 it counts and refuses nothing."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self._clock = clock
        self._day = -1
        self._spent = 0
        self._warned = False

    async def load(self, store: Store) -> None:
        """Take up the count where the last process left it."""
        today = self._today()
        spent = await store.read(usage.spent, today * DAY, DEMO)
        self._day, self._spent, self._warned = today, 0, False
        self.spend(spent)

    @property
    def spent(self) -> int:
        """Tokens of this day so far."""
        return self._spent if self._day == self._today() else 0

    def check(self) -> None:
        if self.limit and self.spent >= self.limit:
            opens = (self._today() + 1) * DAY
            raise BudgetSpent(
                f"The gateway has spent its {self.limit:,} tokens of today (limits.day_tokens); it asks models again "
                f"from {time.strftime('%Y-%m-%d %H:%M', time.gmtime(opens))} UTC on: send this again then, or raise "
                "that limit and restart the gateway.",
                retry_after=max(1.0, opens - self._clock()),
            )

    def spend(self, tokens: int) -> None:
        today = self._today()
        if today != self._day:
            self._day, self._spent, self._warned = today, 0, False
        self._spent += tokens
        if self.limit and not self._warned and self._spent >= WARN_AT * self.limit:
            self._warned = True
            log.warning(
                "the tokens of today are running out: at the limit no model is asked until the next day (UTC)",
                spent=self._spent,
                limit=self.limit,
                setting="limits.day_tokens",
            )

    def status(self) -> Mapping[str, Any]:
        return {"spent": self.spent, "limit": self.limit, "opens": (self._today() + 1) * DAY}

    def _today(self) -> int:
        return int(self._clock() // DAY)
