"""Budgets against the simplest description of their rules, over any sequence of spending, time, restarts and kills."""

import asyncio
import tempfile
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.project.quick import example_count
from tidegate.config import Config, read
from tidegate.errors import BudgetSpent
from tidegate.models import Model
from tidegate.store import SessionRow, Store, usage
from tidegate.turns.budgets.account import BudgetRule, window
from tidegate.turns.budgets.budgets import Budgets
from tidegate.values import Event, Notice, Usage

T = TypeVar("T")

TOML = """
[models.main]
api = "openai-chat"
base_url = "http://127.0.0.1:1/v1"
model = "scripted"
[models.demo]
api = "demo"
[agents.a]
model = "main"
[agents.b]
model = "main"
[limits]
day_tokens = 400
[budgets.all]
per = "gateway"
each = "month"
tokens = 2000
money = 0.000003
[budgets.person]
per = "principal"
each = "hour"
tokens = 100
[budgets.purse]
per = "principal"
each = "total"
money = 0.0000012
[budgets.agent]
per = "agent"
each = "day"
tokens = 250
only = ["a"]
[budgets.talk]
per = "session"
each = "total"
tokens = 150
[budgets.job]
per = "job"
each = "hour"
money = 0.0000004
[budgets.turn]
per = "turn"
tokens = 60
"""

PEOPLE = st.sampled_from(("p_1", "p_2"))
AGENTS = st.sampled_from(("a", "b"))
JOBS = st.sampled_from(("", "news", "mail"))
TOKENS = st.sampled_from((0, 1, 10, 25, 50))
COSTS = st.sampled_from((0, 1, 100, 200, 400))
SPANS = st.sampled_from((1.0, 600.0, 3599.0, 3600.0, 20_000.0, 86_400.0, 700_000.0, 3_000_000.0))


class Spend(NamedTuple):
    at: float
    principal: str
    agent: str
    session: str
    job: str
    tokens: int
    cost: int


class Turn:
    """The part of a turn that a budget needs."""

    id = "t"
    incoming = ()

    def __init__(self, session: str) -> None:
        self.session = session
        self.usage = Usage()
        self.told: list[str] = []

    def emit(self, event: Event) -> None:
        assert isinstance(event, Notice)
        self.told.append(event.text)


class Named(NamedTuple):
    name: str


def conversation(id: str, principal: str, agent: str) -> SessionRow:
    return SessionRow(
        id=id, principal=principal, channel="http", name=None, kind="named", agent=agent, title="", prefix=None,
        extra_length=0, extra_digest=b"", encoder=1, parent=None, created=0.0, active=0.0, version=0, ended=None,
        end_reason=None,
    )  # fmt: skip


class BudgetMachine(RuleBasedStateMachine):
    """X22: which calls are refused, by which budget and until when, and who is warned. The model is a list of all
    spending, summed up again for every check."""

    kept = 1000

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_727_000_000.0
        self.count = 0
        self.spent: list[Spend] = []
        self.warned: set[tuple[str, str, float]] = set()
        self.talks: dict[tuple[str, str], str] = {}
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.folder = tempfile.TemporaryDirectory()
        home = Path(self.folder.name)
        self.config: Config = read(TOML, home)
        self.store = self.run(self.stack.enter_async_context(Store.open(home / "t.db")))
        self.budgets = self.start()

    def run(self, what: Awaitable[T]) -> T:
        async def wait() -> T:
            return await what

        return self.runner.run(wait())

    def start(self) -> Budgets:
        made = Budgets(self.config, self.store, lambda: self.now, accounts_kept=self.kept)
        self.run(made.load())
        self.warned.clear()
        return made

    def teardown(self) -> None:
        try:
            self.compare()
            self.budgets = self.start()
            self.compare()
        finally:
            self.run(self.stack.aclose())
            self.runner.close()
            self.folder.cleanup()

    # -- the description --

    def met_by(self, principal: str, agent: str, session: str, job: str) -> list[tuple[BudgetRule, str]]:
        """The rules that apply to a call, in order, with their keys."""
        keys = {"principal": principal, "agent": agent, "session": session, "job": job}
        found = [(account.rule, "") for account in self.budgets.gateway]
        for each in self.budgets.shared:
            key = keys[each.per]
            if key and (not each.only or key in each.only):
                found.append((each, key))
        return found

    def sum_of(self, rule: BudgetRule, key: str) -> tuple[int, int]:
        start, _ = window(rule.each or "total", self.now)
        rows = [row for row in self.spent if row.at >= start and (not key or getattr(row, rule.per) == key)]
        return sum(row.tokens for row in rows), sum(row.cost for row in rows)

    @staticmethod
    def reached(rule: BudgetRule, tokens: int, cost: int, fifths: int) -> bool:
        return (rule.tokens is not None and 5 * tokens >= fifths * rule.tokens) or (
            rule.money is not None and 5 * cost >= fifths * rule.money
        )

    @rule()
    def compare(self) -> None:
        """Every account against the list."""
        for account in self.budgets.gateway:
            assert (account.spent().tokens, account.spent().cost) == self.sum_of(account.rule, "")
        keys = {
            "principal": ("p_1", "p_2"),
            "agent": ("a", "b"),
            "job": ("news", "mail"),
            "session": self.talks.values(),
        }
        for each in self.budgets.shared:
            for key in keys[each.per]:
                if each.only and key not in each.only:
                    continue
                spent = self.run(self.budgets.account(each, key)).spent()
                assert (spent.tokens, spent.cost) == self.sum_of(each, key), (each.setting, key)

    # -- what happens --

    @rule(
        principal=PEOPLE,
        agent=AGENTS,
        job=JOBS,
        steps=st.lists(st.tuples(TOKENS, COSTS), min_size=1, max_size=4),
        killed=st.booleans(),
    )
    def turn(self, principal: str, agent: str, job: str, steps: list[tuple[int, int]], killed: bool) -> None:
        """A turn of some steps; with `killed` the process dies after the last one was counted and before it was
        recorded."""
        self.count += 1
        session = self.talks.setdefault((principal, agent), f"s_{self.count}")
        turn = Turn(session)
        row = conversation(session, principal, agent)
        spend_guard = self.run(self.budgets.spend_guard(cast(Model, Named("main")), row, job))
        met = self.met_by(principal, agent, session, job)
        for number, (tokens, cost) in enumerate(steps, 1):
            stopping = [rule.setting for rule, key in met if self.reached(rule, *self.sum_of(rule, key), fifths=5)] + (
                ["budgets.turn"] if turn.usage.tokens >= 60 else []
            )
            try:
                spend_guard.check(cast(Any, turn))
            except BudgetSpent as error:
                assert stopping and f"({stopping[0]})" in error.message
                assert (error.retry_after is None) == (stopping[0] in ("budgets.purse", "budgets.talk", "budgets.turn"))
                return
            assert not stopping
            used = Usage(input=tokens, cost=cost)
            turn.told.clear()
            spend_guard.spend(cast(Any, turn), used)
            turn.usage += used
            self.spent.append(Spend(self.now, principal, agent, session, job, tokens, cost))
            self.check_warnings(turn, met)
            if killed and number == len(steps):
                self.spent.pop()
                self.budgets = self.start()
                return
            self.write(row, job, used)

    def write(self, row: SessionRow, job: str, used: Usage) -> None:
        self.run(
            self.store.write(
                usage.add,
                session=row.id,
                principal=row.principal,
                agent=row.agent,
                channel="http",
                job=job,
                model="scripted",
                turn="t",
                tokens=used,
                now=self.now,
            )
        )

    def check_warnings(self, turn: Turn, met: list[tuple[BudgetRule, str]]) -> None:
        expected = []
        for each, key in met:
            place = (each.setting, key, window(each.each or "total", self.now)[0])
            if place not in self.warned and self.reached(each, *self.sum_of(each, key), fifths=4):
                self.warned.add(place)
                expected.append(each.setting)
        told = [text for text in turn.told if "(budgets.turn)" not in text]
        assert len(told) == len(expected)
        assert all(f"({setting})" in text for setting, text in zip(expected, told, strict=True))

    @rule(principal=PEOPLE, agent=AGENTS)
    def demo(self, principal: str, agent: str) -> None:
        """The demo model is called, whatever was spent."""
        row = conversation("s_demo", principal, agent)
        spend_guard = self.run(self.budgets.spend_guard(cast(Model, Named("demo")), row, ""))
        turn = Turn("s_demo")
        spend_guard.check(cast(Any, turn))
        spend_guard.spend(cast(Any, turn), Usage(input=10_000))
        self.run(
            self.store.write(
                usage.add, session="s_demo", principal=principal, agent=agent, channel="http", model="demo", turn="t",
                tokens=Usage(input=10_000), now=self.now,
            )
        )  # fmt: skip

    @rule(span=SPANS)
    def time_passes(self, span: float) -> None:
        self.now += span

    @rule(limit=st.integers(1, 5))
    def the_timer_folds(self, limit: int) -> None:
        self.run(self.store.write(usage.fold, limit))

    @rule()
    def restart(self) -> None:
        self.budgets = self.start()

    @rule(principal=PEOPLE, agent=AGENTS)
    def delete(self, principal: str, agent: str) -> None:
        """A conversation is deleted: nothing is given back to its principal."""
        session = self.talks.pop((principal, agent), None)
        if session is not None:
            self.run(self.store.write(usage.anonymise, session, named=True))


class CrowdedMachine(BudgetMachine):
    """X22, L02: with two accounts in memory, so that most are loaded from the store; a warning is forgotten with its
    account, and repeated."""

    kept = 2

    def check_warnings(self, turn: Turn, met: list[tuple[BudgetRule, str]]) -> None:
        pass


BudgetMachine.TestCase.settings = settings(max_examples=example_count(25), stateful_step_count=30, deadline=None)
CrowdedMachine.TestCase.settings = settings(max_examples=example_count(15), stateful_step_count=30, deadline=None)
TestBudgets = BudgetMachine.TestCase
TestCrowded = CrowdedMachine.TestCase
