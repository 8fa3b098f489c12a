"""Budgets of principals, agents, conversations, turns and jobs: refusals, warnings and cost."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, OWNER, WAIT, Core, core
from tests.logs import capture_logs
from tidegate.config import BudgetSettings
from tidegate.store import Db, SpentTotal, principals, usage
from tidegate.turns.budgets import budgets
from tidegate.turns.budgets.account import DAY, HOUR, BudgetAccount, BudgetRule, Each, rule_of, window
from tidegate.values import BILLION, Event, Failure, Notice, Outcome, Receipt, TurnEnded, Usage, dollars

pytestmark = pytest.mark.anyio

NOON = 20_000 * DAY + DAY / 2
"""2024-10-04 12:00 UTC"""


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


def settings(model: ScriptedModel, budgets: str, *, price: bool = True) -> str:
    """Two agents, two models with a price: a dollar for a thousand tokens."""
    prices = "price_input = 1000\nprice_output = 1000" if price else ""
    models = "".join(
        f'[models.{name}]\napi = "openai-chat"\nbase_url = "{model.base_url}"\nmodel = "{provided}"\nretries = 1\n'
        f"{prices}\n"
        for name, provided in (("main", "scripted"), ("other", "scripted-too"))
    )
    agents = "".join(
        f'[agents.{name}]\nmodel = "main"\nprompt = "You are a test."\ntools = ["clock"]\n'
        for name in ("main", "second")
    )
    return models + agents + budgets


def budget(name: str, **fields: Any) -> str:
    lines = (f"{key} = {str(value) if not isinstance(value, str) else repr(value)}" for key, value in fields.items())
    return f"[budgets.{name}]\n" + "\n".join(lines).replace("'", '"') + "\n"


async def price(home: Path, model: ScriptedModel) -> Usage:
    """The cost of one call."""
    async with core(home.with_name("price"), model=model, toml=settings(model, "")) as gateway:
        return (await gateway.say("hello", name=None)).usage


async def followed(gateway: Core, text: str, name: str | None = None, **fields: Any) -> tuple[Outcome, list[str]]:
    """The outcome, and the notices to the user."""
    accepted = await gateway.accept(text, name, **fields)
    log = gateway.service.turn_log(accepted.turn)
    assert log is not None
    events: list[Event] = []
    with anyio.fail_after(WAIT):
        async for batch in log.read():
            events += batch
    assert isinstance(events[-1], TurnEnded)
    return events[-1].outcome, [event.text for event in events if isinstance(event, Notice)]


def refused(outcome: Outcome) -> Failure:
    assert outcome.state == "failed" and outcome.error is not None
    assert (outcome.error.code, outcome.error.status, outcome.error.type) == ("budget_spent", 429, "rate_limit_error")
    return outcome.error


async def test_each_principal_has_their_own_budget(home: Path, model: ScriptedModel) -> None:
    """X22: it stops its principal, names the budget, the amount, the time and what to do; others continue."""
    clock, one = Clock(), (await price(home, model)).tokens
    toml = settings(model, budget("each", per="principal", each="hour", tokens=2 * one))
    async with core(home, model=model, toml=toml, clock=clock) as gateway:
        for _ in range(2):
            assert (await gateway.say("hello", name=None)).state == "answered"
        error = refused(await gateway.say("hello", name=None))
        assert error.message == (
            f"You have spent {2 * one:,} of {2 * one:,} tokens this hour (budgets.each); models are called again "
            "from 2024-10-04 13:00 UTC: send this again then, or raise that limit and restart the gateway."
        )
        assert error.retry and error.retry_after == HOUR
        assert (await gateway.say("hello", name=None, principal=BERT.id)).state == "answered"
        clock.now += HOUR
        assert (await gateway.say("hello", name=None)).state == "answered"


@pytest.mark.parametrize(
    ("per", "mine", "theirs", "whose"),
    [
        ("agent", {"agent": "second"}, {"agent": "main"}, "The agent 'second' has spent"),
        ("job", {"job": "news"}, {"job": "mail"}, "The job 'news' has spent"),
        ("job", {"job": "news"}, {}, "The job 'news' has spent"),
    ],
)
async def test_agents_and_jobs_have_theirs(
    home: Path, model: ScriptedModel, per: str, mine: dict[str, str], theirs: dict[str, str], whose: str
) -> None:
    """X22: `only` selects them."""
    for only in ("", "only = [" + repr(next(iter(mine.values()))).replace("'", '"') + "]\n"):
        toml = settings(model, budget("some", per=per, each="day", tokens=10) + only)
        async with core(home / (only and "only"), model=model, toml=toml) as gateway:
            assert (await gateway.say("hello", name=None, **mine)).state == "answered"
            assert refused(await gateway.say("hello", name=None, **mine)).message.startswith(whose)
            for _ in range(2 if only or not theirs else 1):
                assert (await gateway.say("hello", name=None, **theirs)).state == "answered"


async def test_a_budget_for_some_principals_knows_them_by_name(home: Path, model: ScriptedModel) -> None:
    """X22: including those created after the start."""
    toml = settings(model, budget("guests", per="principal", each="total", tokens=1) + 'only = ["guest"]\n')
    async with core(home, model=model, toml=toml) as gateway:
        guest = await gateway.store.write(principals.add, name="guest", role="member", agents=None, now=1.0)
        for principal, stops in ((ANNA.id, False), (guest.id, True)):
            assert (await gateway.say("hello", name=None, principal=principal)).state == "answered"
            again = await gateway.say("hello", name=None, principal=principal)
            assert (again.error is not None) == stops
        error = refused(await gateway.say("hello", name=None, principal=guest.id))
        assert "so no model is called for it any more: raise that limit" in error.message
        assert not error.retry and error.retry_after is None


async def test_a_conversation_that_has_spent_all_says_how_to_go_on(home: Path, model: ScriptedModel) -> None:
    """X22: waiting does not help, so it is not advised; the same key gets the same answer."""
    receipt = (Receipt(source="idempotency", key="k", digest=b"same"),)
    toml = settings(model, budget("talk", per="session", each="total", tokens=10))
    async with core(home, model=model, toml=toml) as gateway:
        assert (await gateway.say("hello")).state == "answered"
        again = await gateway.say("again", receipts=receipt)
        error = refused(again)
        assert "This conversation has spent" in error.message and "start a new one, or raise" in error.message
        assert not error.retry and error.retry_after is None
        assert await gateway.say("again", receipts=receipt) == again
        assert (await gateway.say("hello", name="another")).state == "answered"


async def test_a_turn_stops_between_its_steps(home: Path, model: ScriptedModel) -> None:
    """X22, P02: its steps stay, in balance; the next turn has its own budget; a restart in between gives nothing back,
    since the journal has the usage."""
    toml = settings(model, budget("turn", per="turn", tokens=10))
    async with core(home, model=model, toml=toml) as gateway:
        outcome, told = await followed(gateway, "[tool clock {}] [say done]", name="talk")
        error = refused(outcome)
        assert error.message.startswith("This turn has spent") and "say 'go on'" in error.message and not error.retry
        assert outcome.steps == 1
        assert len(told) == 1 and "budgets.turn" in told[0]
        rows = (await gateway.service.transcript(outcome.session, ANNA)).rows
        assert [row.message.role for row in rows] == ["user", "assistant", "tool"]
        assert (await gateway.say("[say on]")).text == "on"
        assert model.stats()["refusals"] == []


async def test_a_turn_budget_includes_spending_before_a_restart(home: Path, model: ScriptedModel) -> None:
    """X22, S14: the steps in the journal are counted."""
    toml = settings(model, budget("turn", per="turn", tokens=10))
    async with core(home, model=model, toml=settings(model, ""), drain=None) as gateway:
        accepted = await gateway.accept("[tool clock {}] [tool clock {}] [hold here step=1] [say done]")
        with anyio.fail_after(WAIT):
            while len(model.recorded) < 2:
                await anyio.sleep(0.005)
    async with core(home, model=model, toml=toml) as gateway:
        assert refused(await gateway.answered(accepted.turn)).message.startswith("This turn has spent")
        assert len(model.recorded) == 2


async def test_money_is_counted_in_dollars(home: Path, model: ScriptedModel) -> None:
    """X22: what the model's prices say, to the billionth."""
    used = await price(home, model)
    assert used.cost == used.tokens * BILLION // 1000
    toml = settings(model, budget("purse", per="principal", each="month", money=used.cost * 1.5 / BILLION))
    clock = Clock()
    async with core(home, model=model, toml=toml, clock=clock) as gateway:
        assert (await gateway.say("hello", name=None)).usage.cost == used.cost
        assert (await gateway.say("hello", name=None)).state == "answered"
        error = refused(await gateway.say("hello", name=None))
        assert f"{dollars(2 * used.cost)} of {dollars(used.cost * 3 // 2)} this month" in error.message
        assert "2024-11-01 00:00 UTC" in error.message


async def test_of_two_budgets_the_first_to_end_decides(home: Path, model: ScriptedModel) -> None:
    """X22: each is counted separately."""
    clock, one = Clock(), (await price(home, model)).tokens
    hour = budget("hour", per="principal", each="hour", tokens=one)
    day = budget("day", per="principal", each="day", tokens=2 * one)
    async with core(home, model=model, toml=settings(model, hour + day), clock=clock) as gateway:
        assert (await gateway.say("hello", name=None)).state == "answered"
        assert "budgets.hour" in refused(await gateway.say("hello", name=None)).message
        clock.now += HOUR
        assert (await gateway.say("hello", name=None)).state == "answered"
        clock.now += HOUR
        assert "budgets.day" in refused(await gateway.say("hello", name=None)).message


async def test_a_warning_is_given_once_at_four_fifths(home: Path, model: ScriptedModel) -> None:
    """X22: the amount, the limit and the time; once per window and spender, and once more after a restart."""
    clock, one = Clock(), (await price(home, model)).tokens
    toml = settings(model, budget("each", per="principal", each="day", tokens=5 * one))
    with capture_logs() as logs:
        async with core(home, model=model, toml=toml, clock=clock) as gateway:
            told = [(await followed(gateway, "hello"))[1] for _ in range(3)]
            assert told == [[], [], []]
            warned = (await followed(gateway, "hello"))[1]
            assert warned == [
                f"You have spent {4 * one:,} of {5 * one:,} tokens today (budgets.each), 80% of that budget; at "
                "100 % no model is called until 2024-10-05 00:00 UTC."
            ]
            assert (await followed(gateway, "hello", principal=BERT.id))[1] == []
        assert [(entry["setting"], entry["of"]) for entry in logs if "setting" in entry] == [("budgets.each", ANNA.id)]
        async with core(home, model=model, toml=toml, clock=clock) as gateway:
            assert len((await followed(gateway, "hello"))[1]) == 1
            refused((await followed(gateway, "hello"))[0])
            clock.now += DAY
            told = [(await followed(gateway, "hello"))[1] for _ in range(4)]
            assert [len(each) for each in told] == [0, 0, 0, 1]
    assert len([entry for entry in logs if entry.get("setting") == "budgets.each"]) == 3


async def test_neither_a_restart_nor_a_delete_gives_anything_back(home: Path, model: ScriptedModel) -> None:
    """X22, B3: a deleted conversation leaves anonymous usage, and its principal's count is unchanged."""
    toml = settings(model, budget("each", per="principal", each="month", tokens=10))
    async with core(home, model=model, toml=settings(model, "")) as gateway:
        session = (await gateway.say("hello")).session
        await gateway.service.delete(session, ANNA)
    async with core(home, model=model, toml=toml) as gateway:
        refused(await gateway.say("hello", name=None))
        assert (await gateway.say("hello", name=None, principal=BERT.id)).state == "answered"


async def test_a_call_that_is_begun_again_is_paid_for_twice(home: Path, model: ScriptedModel) -> None:
    """X22: the streamed part of the first was billed, and the second is not made if nothing is left."""
    text = "[words 60] [cut after=20 times=1]"
    async with core(home, model=model, toml=settings(model, "")) as gateway:
        outcome = await gateway.say(text, name=None)
        assert outcome.state == "answered" and outcome.usage.estimated
        rows, total = await gateway.service.usage(ANNA, by="model", since=0, until=1e12, limit=10)
        assert (total.calls, total.estimated) == (2, 1)
        assert (total.input, total.output, total.cost) == (
            outcome.usage.input,
            outcome.usage.output,
            outcome.usage.cost,
        )
        assert rows[0].key == "scripted"
    model.reset()
    toml = settings(model, budget("turn", per="turn", tokens=10))
    async with core(home, model=model, toml=toml) as gateway:
        assert refused(await gateway.say(text, name=None)).message.startswith("This turn has spent")
        assert len(model.recorded) == 1


async def test_a_broken_attempt_is_written_down_with_the_step_that_followed(home: Path, model: ScriptedModel) -> None:
    """X22: so a kill before the turn's end does not lose it."""
    async with core(home, model=model, toml=settings(model, ""), drain=None) as gateway:
        await gateway.accept("[saying a b c d e] [tool clock {}] [cut after=2 times=1] [hold here step=1]")
        with anyio.fail_after(WAIT):
            while len(model.recorded) < 3:
                await anyio.sleep(0.005)
        _, total = await gateway.service.usage(ANNA, by="model", since=0, until=1e12, limit=10)
        assert (total.calls, total.estimated) == (2, 1)


async def test_a_chosen_model_is_charged_to_the_same_budgets(home: Path, model: ScriptedModel) -> None:
    """X22: another model does not evade a budget, and is recorded under its own name."""
    toml = settings(model, budget("each", per="principal", each="day", tokens=300))
    async with core(home, model=model, toml=toml) as gateway:
        session = (await gateway.say("hello")).session
        await gateway.service.operations.set_setting(session, ANNA, "model", "other", source="test")
        while (outcome := await gateway.say("hello")).state == "answered":
            pass
        refused(outcome)
        used = await gateway.store.read(usage.totals, by="model")
        assert {total.key for total in used} == {"scripted", "scripted-too"}
        assert sum(total.input + total.output for total in used) >= 300


async def test_the_demo_model_is_free_for_everybody(home: Path, model: ScriptedModel) -> None:
    """X22: it is not counted in any budget."""
    toml = (
        '[models.main]\napi = "demo"\n[agents.main]\nmodel = "main"\n'
        + budget("each", per="principal", each="total", tokens=1)
        + budget("turn", per="turn", tokens=1)
        + budget("talk", per="session", each="hour", money=0.000001)
    )
    for _ in range(2):
        async with core(home, model=model, toml=toml) as gateway:
            for _ in range(2):
                assert (await gateway.say("say hello")).state == "answered"


async def test_without_budgets_of_ones_own_a_turn_costs_no_read_and_no_write_more(
    home: Path, model: ScriptedModel
) -> None:
    """X22, L20: with them, only the first turn that needs a count reads it."""

    async def traffic(toml: str) -> list[tuple[int, int]]:
        async with core(home / str(len(toml)), model=model, toml=toml) as gateway:
            found = []
            await gateway.say("hello", "another", principal=BERT.id)  # what a start reads is read by then
            for _ in range(3):
                before = gateway.store.stats()
                await gateway.say("hello")
                after = gateway.store.stats()
                found.append((after.reads - before.reads, after.writes - before.writes))
            return found

    plain = await traffic(settings(model, ""))
    gateway = await traffic(settings(model, budget("all", per="gateway", each="month", tokens=10**9)))
    many = await traffic(
        settings(
            model,
            budget("each", per="principal", each="month", tokens=10**9)
            + budget("talk", per="session", each="total", tokens=10**9)
            + budget("turn", per="turn", tokens=10**9),
        )
    )
    assert gateway == plain
    assert many == [(plain[0][0] + 2, plain[0][1]), *plain[1:]]


async def evict_all(gateway: Core) -> None:
    """Load as many other accounts as are kept in memory."""
    kept = gateway.components.budgets
    for number in range(budgets.ACCOUNTS_KEPT):
        await kept.account(kept.shared[0], f"p_other_{number}")


async def test_evicted_accounts_are_loaded_again(home: Path, model: ScriptedModel) -> None:
    """X22, L02: the number of accounts in memory is bounded, and an evicted one is loaded from the store."""
    one = (await price(home, model)).tokens
    toml = settings(model, budget("each", per="principal", each="day", tokens=2 * one))
    async with core(home, model=model, toml=toml) as gateway:
        people = [f"p_{number}" for number in range(5)]
        for _ in range(2):
            for person in people:
                assert (await gateway.say("hello", name=None, principal=person)).state == "answered"
        await evict_all(gateway)
        for person in people:
            refused(await gateway.say("hello", name=None, principal=person))
        assert gateway.components.budgets.stats().size == budgets.ACCOUNTS_KEPT


async def test_an_account_that_a_turn_holds_is_not_made_a_second_time(home: Path, model: ScriptedModel) -> None:
    """X22: spending after its eviction is seen by the next turn."""
    toml = settings(model, budget("each", per="principal", each="day", tokens=10))
    async with core(home, model=model, toml=toml) as gateway:
        accepted = await gateway.accept("[hold here]", name=None)
        with anyio.fail_after(WAIT):
            while not model.recorded:
                await anyio.sleep(0.005)
        await evict_all(gateway)
        held = await gateway.components.budgets.account(gateway.components.budgets.shared[0], ANNA.id)
        model.release("here")
        await gateway.answered(accepted.turn)
        assert held.spent().tokens > 10
        refused(await gateway.say("hello", name=None))


async def test_budgets_are_visible_to_their_principal_and_the_owner(home: Path, model: ScriptedModel) -> None:
    """X05: one's own; for the owner all, with the names of their principals."""
    toml = settings(
        model,
        budget("each", per="principal", each="day", tokens=100)
        + budget("some", per="agent", each="hour", money=2.5)
        + budget("talk", per="session", each="total", tokens=1000)
        + budget("jobs", per="job", each="total", tokens=10**6)
        + budget("turn", per="turn", tokens=10**6),
    )

    def people(db: Db) -> None:
        for each in (ANNA, BERT, OWNER):
            principals.add(db, id=each.id, name=each.name, role=each.role, agents=None, now=1.0)

    async with core(home, model=model, toml=toml) as gateway:
        await gateway.store.write(people)
        outcome = await gateway.say("hello", job="news")
        row = await gateway.service.row(outcome.session, ANNA)
        mine, more = await gateway.components.budgets.visible_to(ANNA)
        assert [(each.setting, each.key, each.name) for each in mine] == [("budgets.each", ANNA.id, "anna")]
        assert (mine[0].tokens, mine[0].tokens_limit, more) == (outcome.usage.tokens, 100, False)
        assert mine[0].used == outcome.usage.tokens / 100 and mine[0].opens is not None
        with_session, _ = await gateway.components.budgets.visible_to(ANNA, row)
        assert [each.setting for each in with_session] == ["budgets.each", "budgets.talk"]
        assert with_session[1].opens is None
        everything, _ = await gateway.components.budgets.visible_to(OWNER)
        assert [(each.setting, each.name) for each in everything] == [
            ("limits.day_tokens", ""),
            ("budgets.each", "anna"),
            ("budgets.each", "bert"),
            ("budgets.each", "owner"),
            ("budgets.some", "main"),
            ("budgets.some", "second"),
            ("budgets.jobs", "news"),
        ]
        assert everything[4].money == outcome.usage.cost / BILLION and everything[4].money_limit == 2.5


def test_windows_are_those_of_utcs_calendar() -> None:
    """X22: months of 28 to 31 days, across the end of a year; each begins where the last one ended."""
    found: dict[Each, tuple[float, float]] = {each: window(each, NOON) for each in ("hour", "day", "month")}
    assert found == {
        "hour": (NOON, NOON + HOUR),
        "day": (NOON - DAY / 2, NOON + DAY / 2),
        "month": (1727740800.0, 1730419200.0),
    }
    for each in found:
        moment = NOON
        for _ in range(40):
            start, end = window(each, moment)
            assert start <= moment < end and start % HOUR == 0
            assert window(each, end)[0] == end and window(each, start) == (start, end)
            moment = end
    assert window("total", NOON) == (0.0, float("inf"))


def test_a_clock_that_is_set_back_gives_nothing_back() -> None:
    """X22: the current window holds until it ends."""
    clock = Clock()
    account = BudgetAccount(BudgetRule(setting="b", per="gateway", each="hour", tokens=100), "", clock)
    account.load(SpentTotal(50, 0), window("hour", NOON)[1])
    clock.now -= 2 * HOUR
    assert account.spent().tokens == 50
    clock.now += 3 * HOUR
    assert account.spent().tokens == 0


def test_money_of_the_settings_is_exact_to_a_billionth() -> None:
    assert rule_of("b", BudgetSettings(per="gateway", each="day", money=0.1)).money == 100_000_000
    assert (dollars(0), dollars(1_234_567_890_000), dollars(12_345_678), dollars(1_234)) == (
        "$0.00",
        "$1,234.57",
        "$0.0123",
        "$0.000001",
    )
