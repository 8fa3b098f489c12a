"""All budgets of the gateway: what a turn's calls are paid from, and what is spent of each.

Guarantee: the gateway's own day has a cap unless limits.day_tokens is 0. What was spent is loaded from the usage rows
when it is first needed, so that a restart gives nothing back: but for a call that was under way when the process was
killed, which nobody wrote down. Where only the gateway's own budgets are configured, a turn costs no read and no
write. What is kept for others is bounded; an account that a running turn holds is the only one of its kind. One that
was put out while the last row of its turn is not committed yet would be loaded without that row: for this, thousands
of others must come between the two. The demo model costs nothing and is not counted.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Literal
from weakref import WeakValueDictionary

from tidegate.agent import SpendGuard
from tidegate.config import Config
from tidegate.lifetimes import BoundedCache, CacheStats
from tidegate.models import Model
from tidegate.security import Principal
from tidegate.status_report import BudgetView, ModelUsage
from tidegate.store import Db, SessionRow, SpentTotal, Store, principals, turns, usage
from tidegate.turns.budgets.account import Allowance, BudgetAccount, BudgetRule, rule_of
from tidegate.turns.budgets.periods import window
from tidegate.values import BILLION, Usage

ACCOUNTS_KEPT = 4096
"""Principals, agents, conversations and jobs whose spending is held in memory, at some hundred bytes each."""

MOST_SHOWN = 500
"""Accounts in one answer."""

SHARED = ("principal", "agent", "session", "job")

DAY_TOKENS = "limits.day_tokens"


class Meter:
    """What one model has used since the process began, for the metrics."""

    __slots__ = ("cached", "calls", "cost", "input", "output", "written")

    def __init__(self) -> None:
        self.calls = self.input = self.cached = self.written = self.output = self.cost = 0

    def count(self, used: Usage) -> None:
        self.calls += 1
        self.input += used.input
        self.cached += used.cached
        self.written += used.written
        self.output += used.output
        self.cost += used.cost

    def read(self) -> ModelUsage:
        return ModelUsage(
            calls=self.calls,
            input=self.input,
            cached=self.cached,
            written=self.written,
            output=self.output,
            cost=self.cost / BILLION,
        )


class Budgets:
    def __init__(self, config: Config, store: Store, clock: Callable[[], float]) -> None:
        rules = [
            BudgetRule(setting=DAY_TOKENS, per="gateway", each="day", tokens=config.limits.day_tokens or None),
            *(rule_of(name, settings) for name, settings in config.budgets.items()),
        ]
        self._store = store
        self._clock = clock
        self._agents = tuple(config.agents)
        self._shared = tuple(rule for rule in rules if rule.per in SHARED)
        self._of_turns = tuple(rule for rule in rules if rule.per == "turn")
        self.gateway = tuple(BudgetAccount(rule, "", clock) for rule in rules if rule.per == "gateway")
        self._kept: BoundedCache[tuple[str, str], BudgetAccount] = BoundedCache("accounts", cap=ACCOUNTS_KEPT)
        self._live: WeakValueDictionary[tuple[str, str], BudgetAccount] = (
            WeakValueDictionary()
        )  # what running turns hold
        self.meters: Mapping[str, Meter] = {
            usage.FREE if model.api == "demo" else model.model: Meter() for model in config.models.values()
        }
        self._plain = {
            name: SpendGuard(model=usage.FREE, count=self.meters[usage.FREE].count)
            if model.api == "demo"
            else SpendGuard(model=model.model, budgets=self.gateway, count=self.meters[model.model].count)
            for name, model in config.models.items()
        }

    async def load(self) -> None:
        """Take up the gateway's own counts where the last process left them."""
        now = self._clock()
        for account in self.gateway:
            start, opens = window(account.rule.each or "total", now)
            account.load(await self._store.read(usage.spent, start), opens)

    # -- what turns pay from --

    async def spend_guard(self, model: Model, session: SessionRow, job: str) -> SpendGuard:
        """What calls of this model in one turn are paid from."""
        plain = self._plain[model.name]
        if not plain.budgets or not (self._shared or self._of_turns):
            return plain
        conversation = await self._conversation(session)
        accounts = [
            account
            for rule in self._shared
            if (key := _key(rule, session, conversation, job)) and (account := await self._account(rule, key)).applies
        ]
        allowances = (Allowance(rule) for rule in self._of_turns)
        return SpendGuard(model=plain.model, budgets=(*self.gateway, *accounts, *allowances), count=plain.count)

    async def _conversation(self, session: SessionRow) -> str:
        """The session that budgets of a conversation are for: a task is a part of the one that it was given in."""
        if session.kind != "ephemeral" or not any(rule.per == "session" for rule in self._shared):
            return session.id
        return await self._store.read(turns.conversation, session.id)

    async def _account(self, rule: BudgetRule, key: str) -> BudgetAccount:
        place = (rule.setting, key)
        held = self._kept.get(place)
        if held is None and (held := self._live.get(place)) is not None:
            self._kept.put(place, held)
        if held is None:
            held = await self._kept.get_or_make(place, lambda: self._load(rule, key))
        return held

    async def _load(self, rule: BudgetRule, key: str) -> BudgetAccount:
        start, opens = window(rule.each or "total", self._clock())
        spent, name = await self._store.read(_spent_by, rule, key, start)
        account = BudgetAccount(rule, key, self._clock, name=name)
        account.load(spent, opens)
        self._live[(rule.setting, key)] = account
        return account

    # -- what people are shown --

    async def seen_by(self, principal: Principal, session: SessionRow | None = None) -> tuple[list[BudgetView], bool]:
        """The budgets that this principal may know of, with those of one conversation, and whether there are more:
        one's own, and for who may see everybody's usage all that others share."""
        found: list[BudgetView] = []
        everything = principal.may("see_usage")
        if everything:
            found += self.views()
        for rule in self._shared:
            keys = await self._keys(rule, principal, session, everything)
            for key in keys:
                if len(found) >= MOST_SHOWN:
                    return found, True
                account = await self._account(rule, key)
                if account.applies:
                    found.append(view(account))
        return found, False

    async def _keys(
        self, rule: BudgetRule, principal: Principal, session: SessionRow | None, everything: bool
    ) -> Iterable[str]:
        if rule.per == "session":
            return () if session is None else (session.id,)
        if rule.per == "principal" and not everything:
            return (principal.id,)
        if not everything:
            return ()
        if rule.per == "principal":
            return [row.id for row in await self._store.read(principals.listing)]
        if rule.per == "agent":
            return [name for name in self._agents if not rule.only or name in rule.only]
        return sorted(rule.only) or await self._store.read(usage.jobs, MOST_SHOWN)

    def views(self) -> list[BudgetView]:
        """Those of the whole gateway."""
        return [view(account) for account in self.gateway]

    @property
    def day(self) -> BudgetAccount:
        """The cap that is on from the start."""
        return self.gateway[0]

    def stats(self) -> CacheStats:
        return self._kept.stats()


def view(account: BudgetAccount) -> BudgetView:
    rule, spent, opens = account.rule, account.spent(), account.opens
    return BudgetView(
        setting=rule.setting,
        per=rule.per,
        each=rule.each,
        key=account.key,
        name=account.name,
        tokens=spent.tokens,
        tokens_limit=rule.tokens,
        money=spent.cost / BILLION,
        money_limit=None if rule.money is None else rule.money / BILLION,
        used=rule.used(spent.tokens, spent.cost),
        opens=None if opens == inf else opens,
    )


def _key(rule: BudgetRule, session: SessionRow, conversation: str, job: str) -> str:
    """Who pays by this rule; nobody where it is not for this agent or job. Which principal it is for is known by name,
    and so only when his account is there."""
    if rule.per == "principal":
        return session.principal
    if rule.per == "session":
        return conversation
    key = session.agent if rule.per == "agent" else job
    return key if not rule.only or key in rule.only else ""


def _spent_by(db: Db, rule: BudgetRule, key: str, since: float) -> tuple[SpentTotal, str]:
    """What was spent, and what people call who spent it."""
    named = principals.get(db, key) if rule.per == "principal" else None
    return usage.spent_by(db, _shared(rule), key, since), key if named is None else named.name


def _shared(rule: BudgetRule) -> Literal["principal", "agent", "session", "job"]:
    assert rule.per != "gateway" and rule.per != "turn"
    return rule.per
