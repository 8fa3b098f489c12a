"""A budget, and how much of it one principal, agent, conversation or job has spent.

A budget is checked before every model call and updated after it, which costs only an addition. At 80%, the operator and
the conversation that reached this share are notified, once per window. At the limit, no model is called until the next
window begins; the refusal names the budget and the time, and says what to do. Setting the clock back does not reset a
budget. Concurrent calls may exceed the limit by the amount that was in progress when it was reached.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from typing import Literal

from tidegate.agent import Payer
from tidegate.config import BudgetSettings
from tidegate.errors import BudgetSpent
from tidegate.log import Log
from tidegate.store import SpentTotal
from tidegate.values import BILLION, Frozen, Notice, Usage, dollars

WARN_AT = 0.8
"""The share of the limit at which people are notified: late enough to matter, early enough to act."""

HOUR, DAY = 3600, 86400

Each = Literal["hour", "day", "month", "total"]
"""The windows over which budgets are counted: hours, days and months in UTC, or all time."""

Per = Literal["gateway", "principal", "agent", "session", "turn", "job"]

_WHOSE = {
    "gateway": "The gateway has spent",
    "principal": "You have spent",
    "agent": "The agent {key!r} has spent",
    "session": "This conversation has spent",
    "turn": "This turn has spent",
    "job": "The job {key!r} has spent",
}
_WHEN = {"hour": "this hour", "day": "today", "month": "this month", "total": "in all", "": "in all"}
_RAISE = "raise that limit and restart the gateway"
_FOR_EVER = {
    "turn": f"so it was stopped: say 'go on' to continue in a new turn, or {_RAISE}",
    "session": f"so no model is called in it any more: start a new one, or {_RAISE}",
}

log = Log(__name__)


class BudgetRule(Frozen, frozen=True):
    """A configured budget. `setting` is the setting's name, `money` is in billionths of a dollar, and `each` is empty
    for budgets per turn. A rule without limits only counts spending."""

    setting: str
    per: Per
    each: Each | Literal[""]
    tokens: int | None = None
    money: int | None = None
    only: frozenset[str] = frozenset()

    def used(self, tokens: int, cost: int) -> float:
        """Returns the share of the limit that is used up. If there are two limits, returns the larger share."""
        of_tokens = tokens / self.tokens if self.tokens is not None else 0.0
        of_money = cost / self.money if self.money is not None else 0.0
        return max(of_tokens, of_money)

    def refusal(self, key: str, tokens: int, cost: int, opens: float, now: float) -> BudgetSpent:
        spent = f"{_WHOSE[self.per].format(key=key)} {self.amount(tokens, cost)} ({self.setting})"
        if opens == inf:
            then = _FOR_EVER.get(self.per, f"so no model is called for it any more: {_RAISE}")
            return BudgetSpent(f"{spent}, {then}.", retry_after=None)
        return BudgetSpent(
            f"{spent}; models are called again from {_utc(opens)} UTC: send this again then, or {_RAISE}.",
            retry_after=max(1.0, opens - now),
        )

    def warning(self, key: str, tokens: int, cost: int, opens: float) -> str:
        until = "" if opens == inf else f" until {_utc(opens)} UTC"
        whose = f"{_WHOSE[self.per].format(key=key)} {self.amount(tokens, cost)} ({self.setting}), "
        used = self.used(tokens, cost)
        then = "at 100 % no model is called" if used < 1 else "no model is called any more"
        return f"{whose}{used:.0%} of that budget; {then}{until}."

    def amount(self, tokens: int, cost: int) -> str:
        """Returns the amount spent and the limit, in the unit of the limit that is closer to being reached."""
        of_money = self.money is not None and (self.tokens is None or cost / self.money > tokens / self.tokens)
        if of_money and self.money is not None:
            return f"{dollars(cost)} of {dollars(self.money)} {_WHEN[self.each]}"
        return f"{tokens:,} of {self.tokens:,} tokens {_WHEN[self.each]}" if self.tokens else f"{tokens:,} tokens"


def rule_of(name: str, settings: BudgetSettings) -> BudgetRule:
    return BudgetRule(
        setting=f"budgets.{name}",
        per=settings.per,
        each=settings.each or "",
        tokens=settings.tokens,
        money=None if settings.money is None else round(settings.money * BILLION),
        only=frozenset(settings.only),
    )


class BudgetAccount:
    """The spending of one of a rule's keys in the current window. `applies` is true if the rule is for this key."""

    __slots__ = ("__weakref__", "_clock", "_cost", "_opens", "_tokens", "_warned", "applies", "key", "name", "rule")

    def __init__(self, rule: BudgetRule, key: str, clock: Callable[[], float], *, name: str = "") -> None:
        self.rule = rule
        self.key = key
        self.name = name or key
        self.applies = not rule.only or self.name in rule.only
        self._clock = clock
        self._opens = -inf
        self._tokens = self._cost = 0
        self._warned = False

    def load(self, spent: SpentTotal, opens: float) -> None:
        """Continues an earlier process's count. A warning that the earlier process has already sent is sent again."""
        self._tokens, self._cost, self._opens, self._warned = spent.tokens, spent.cost, opens, False

    def check(self, payer: Payer) -> None:
        """Raises BudgetSpent if the budget is used up."""
        rule, now = self.rule, self._clock()
        if now >= self._opens:
            self._begin(now)
        if (rule.tokens is not None and self._tokens >= rule.tokens) or (
            rule.money is not None and self._cost >= rule.money
        ):
            raise rule.refusal(self.name, self._tokens, self._cost, self._opens, now)

    def spend(self, payer: Payer, usage: Usage) -> None:
        now = self._clock()
        if now >= self._opens:
            self._begin(now)
        self._tokens += usage.tokens
        self._cost += usage.cost
        if not self._warned and self.rule.used(self._tokens, self._cost) >= WARN_AT:
            self._warned = True
            warn(payer, self.rule, self.name, self._tokens, self._cost, self._opens)

    def spent(self) -> SpentTotal:
        """Returns the spending in the current window."""
        return SpentTotal(self._tokens, self._cost) if self._clock() < self._opens else SpentTotal(0, 0)

    @property
    def opens(self) -> float:
        """The start of the next window."""
        now = self._clock()
        return self._opens if now < self._opens else self._window(now)

    def _begin(self, now: float) -> None:
        self._opens = self._window(now)
        self._tokens = self._cost = 0
        self._warned = False

    def _window(self, now: float) -> float:
        return window(self.rule.each or "total", now)[1]


class Allowance:
    """The spending of one turn, including its tasks and their tasks. The allowance lives as long as the turn; spending
    before a restart is in the turn's journal."""

    __slots__ = ("_rule", "_warned")

    def __init__(self, rule: BudgetRule) -> None:
        self._rule = rule
        self._warned = False

    def check(self, payer: Payer) -> None:
        spent = payer.usage
        if self._rule.used(spent.tokens, spent.cost) >= 1:
            raise self._rule.refusal("", spent.tokens, spent.cost, inf, 0)

    def spend(self, payer: Payer, usage: Usage) -> None:
        tokens, cost = payer.usage.tokens + usage.tokens, payer.usage.cost + usage.cost
        if not self._warned and self._rule.used(tokens, cost) >= WARN_AT:
            self._warned = True
            warn(payer, self._rule, "", tokens, cost, inf)


def warn(payer: Payer, rule: BudgetRule, name: str, tokens: int, cost: int, opens: float) -> None:
    payer.emit(Notice(text=rule.warning(name, tokens, cost, opens)))
    log.warning(
        "a budget is running out: at its limit no model is called",
        setting=rule.setting,
        **({"of": name} if name else {}),
        session=payer.session,
        spent=rule.amount(tokens, cost),
    )


def _utc(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment))


def window(each: Each, now: float) -> tuple[float, float]:
    """Returns the start of the window that contains `now` and the start of the next window. For `total`, there is no
    next window. Windows of the same kind follow each other without gaps, and each starts on the hour."""
    if each == "total":
        return 0.0, inf
    if each == "month":
        first = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        year, month = divmod(first.year * 12 + first.month, 12)
        return first.timestamp(), first.replace(year=year, month=month + 1).timestamp()
    length = HOUR if each == "hour" else DAY
    start = now // length * length
    return start, start + length
