"""All of the gateway's budgets: which of them apply to a turn's calls, and how much of each has been spent.

The gateway has a daily cap unless limits.day_tokens is 0. Spending is loaded from the usage rows when it is first
needed, so a restart resets nothing; only calls in progress when the process is killed are not recorded. If only budgets
for the whole gateway are configured, a turn needs no reads or writes for them. The demo model costs nothing and is not
counted.

The number of accounts in memory is bounded. While a running turn uses an account, no second account is created for the
same key. If an account were evicted before the last row of its turn is committed, it would be loaded again without that
row; this would require thousands of other accounts to be used in between.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Literal
from weakref import WeakValueDictionary

from tidegate.agent import Meter, SpendGuard
from tidegate.config import Config
from tidegate.lifetimes import BoundedCache, CacheStats
from tidegate.models import CountedModel
from tidegate.security import Principal
from tidegate.status_report import BudgetView
from tidegate.store import Db, SessionRow, SpentTotal, Store, principals, turns, usage
from tidegate.turns.budgets.account import Allowance, BudgetAccount, BudgetRule, rule_of, window
from tidegate.values import BILLION

ACCOUNTS_KEPT = 4096
"""Number of principals, agents, conversations and jobs whose spending is kept in memory, at a few hundred bytes
each."""

MOST_SHOWN = 500
"""Maximum number of accounts in one response."""

SHARED = ("principal", "agent", "session", "job")

DAY_TOKENS = "limits.day_tokens"


class Budgets:
    def __init__(
        self, config: Config, store: Store, clock: Callable[[], float], *, accounts_kept: int = ACCOUNTS_KEPT
    ) -> None:
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
        self._kept: BoundedCache[tuple[str, str], BudgetAccount] = BoundedCache("accounts", cap=accounts_kept)
        self._live: WeakValueDictionary[tuple[str, str], BudgetAccount] = WeakValueDictionary()  # held by running turns
        self.meters: Mapping[str, Meter] = {
            usage.FREE if model.api == "demo" else model.model: Meter() for model in config.models.values()
        }
        self._plain = {
            name: SpendGuard(model=usage.FREE, meter=self.meters[usage.FREE])
            if model.api == "demo"
            else SpendGuard(model=model.model, budgets=self.gateway, meter=self.meters[model.model])
            for name, model in config.models.items()
        }
        has_own_rules = bool(self._shared or self._of_turns)
        self.common: Mapping[str, SpendGuard] = {
            name: plain for name, plain in self._plain.items() if not (plain.budgets and has_own_rules)
        }
        """The spend guards that are common to all turns, by model name."""

    async def load(self) -> None:
        """Continues an earlier process's counts for the whole gateway."""
        now = self._clock()
        for account in self.gateway:
            start, opens = window(account.rule.each or "total", now)
            account.load(await self._store.read(usage.spent, start), opens)

    # -- for turns --

    @property
    def shared(self) -> tuple[BudgetRule, ...]:
        """The rules for which spending is counted per principal, agent, session or job."""
        return self._shared

    async def spend_guard(self, model: CountedModel, session: SessionRow, job: str) -> SpendGuard:
        """Returns the budgets to which one turn's calls of this model are charged."""
        if (common := self.common.get(model.name)) is not None:
            return common
        plain = self._plain[model.name]
        conversation = await self._conversation(session)
        accounts = [
            account
            for rule in self._shared
            if (key := _key(rule, session, conversation, job)) and (account := await self.account(rule, key)).applies
        ]
        allowances = (Allowance(rule) for rule in self._of_turns)
        return SpendGuard(model=plain.model, budgets=(*self.gateway, *accounts, *allowances), meter=plain.meter)

    async def _conversation(self, session: SessionRow) -> str:
        """Returns the session that is charged for budgets per conversation. A task is charged to the conversation from
        which it was delegated."""
        if session.kind != "ephemeral" or not any(rule.per == "session" for rule in self._shared):
            return session.id
        return await self._store.read(turns.conversation, session.id)

    async def account(self, rule: BudgetRule, key: str) -> BudgetAccount:
        """Returns the account for one of a shared rule's keys, loading it from the store if it is not in memory."""
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

    # -- for people --

    async def visible_to(
        self, principal: Principal, session: SessionRow | None = None
    ) -> tuple[list[BudgetView], bool]:
        """Returns the budgets that this principal may see, and True if there are more. The visible budgets are their
        own, the budgets for `session` and, with the right to see all usage, everyone's."""
        found: list[BudgetView] = []
        everything = principal.may("see_usage")
        if everything:
            found += self.views()
        for rule in self._shared:
            keys = await self._keys(rule, principal, session, everything)
            for key in keys:
                if len(found) >= MOST_SHOWN:
                    return found, True
                account = await self.account(rule, key)
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
        """Returns the budgets for the whole gateway."""
        return [view(account) for account in self.gateway]

    @property
    def day(self) -> BudgetAccount:
        """The daily cap, which is on by default."""
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
    """Returns the key that is charged under this rule, or an empty one if the rule does not apply to this agent or job.
    Principals are matched by name when their account is loaded."""
    if rule.per == "principal":
        return session.principal
    if rule.per == "session":
        return conversation
    key = session.agent if rule.per == "agent" else job
    return key if not rule.only or key in rule.only else ""


def _spent_by(db: Db, rule: BudgetRule, key: str, since: float) -> tuple[SpentTotal, str]:
    """Returns the amount spent and the key's display name."""
    named = principals.get(db, key) if rule.per == "principal" else None
    return usage.spent_by(db, _shared(rule), key, since), key if named is None else named.name


def _shared(rule: BudgetRule) -> Literal["principal", "agent", "session", "job"]:
    assert rule.per != "gateway" and rule.per != "turn"
    return rule.per
