"""The daily cap of the gateway, which is on by default."""

import asyncio
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, core
from tests.logs import capture_logs
from tidegate.config import LimitSettings
from tidegate.store import Db, usage
from tidegate.turns.budgets.account import DAY, BudgetAccount, BudgetRule
from tidegate.values import Event, Notice, Receipt, TextDelta, Usage

pytestmark = pytest.mark.anyio

NOON = 20_000 * DAY + DAY / 2
SMALL = "[limits]\nday_tokens = 10"
"""Less than any one call costs."""


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


class Teller:
    """The part of a turn that a budget needs."""

    id, session, incoming = "t_1", "s_1", ()

    def __init__(self) -> None:
        self.usage = Usage()
        self.told: list[str] = []

    def emit(self, event: Event) -> None:
        assert isinstance(event, Notice)
        self.told.append(event.text)


def key(name: str) -> dict[str, object]:
    return {"receipts": (Receipt(source="idempotency", key=name, digest=b"same"),)}


def test_the_cap_is_on_unless_it_is_turned_off() -> None:
    """X22: a night of mistakes has a limit."""
    assert 1_000_000 <= LimitSettings().day_tokens <= 100_000_000


async def test_at_the_cap_a_turn_fails_with_the_limits_name_and_the_time(home: Path, model: ScriptedModel) -> None:
    """X22, H20, H22: 429 in OpenAI's format; when it opens again and what to do; no model is called."""
    clock = Clock()
    async with core(home, SMALL, model=model, clock=clock) as gateway:
        assert (await gateway.say("one")).state == "answered"
        refused = await gateway.say("[say two]", **key("k"))
        assert refused.state == "failed" and refused.error is not None
        assert (refused.error.status, refused.error.type) == (429, "rate_limit_error")
        assert refused.error.code == "budget_spent"
        assert refused.error.retry and refused.error.retry_after == DAY / 2
        for words in ("10 tokens", "limits.day_tokens", "2024-10-05 00:00 UTC", "send this again then", "raise"):
            assert words in refused.error.message
        assert len(gateway.requests()) == 1
        rows = (await gateway.service.transcript(refused.session, ANNA)).rows
        assert [row.message.text for row in rows if row.message.role == "user"] == ["one", "[say two]"]
        (shown,) = gateway.service.status().budgets
        assert (shown.setting, shown.per, shown.each) == ("limits.day_tokens", "gateway", "day")
        assert (shown.tokens_limit, shown.opens) == (10, NOON + DAY / 2)
        assert shown.tokens == gateway.components.budgets.day.spent().tokens and shown.used == shown.tokens / 10
        assert gateway.components.budgets.day.spent().tokens > 10
        clock.now += DAY / 2
        assert gateway.components.budgets.day.spent().tokens == 0
        assert (await gateway.say("[say two]", **key("k"))).text == "two"


async def test_a_running_turn_ends_at_the_cap_and_keeps_its_steps(home: Path, model: ScriptedModel) -> None:
    """X22, P02: its committed steps stay, in balance, and it continues on the next day."""
    clock = Clock()
    async with core(home, SMALL, model=model, clock=clock) as gateway:
        outcome = await gateway.say("[tool clock {}] [say done]")
        assert outcome.error is not None and outcome.error.code == "budget_spent"
        assert outcome.steps == 1 and outcome.usage.input > 0 and not outcome.usage.estimated
        rows = (await gateway.service.transcript(outcome.session, ANNA)).rows
        assert [row.message.role for row in rows] == ["user", "assistant", "tool"]
        clock.now += DAY
        assert (await gateway.say("[say on]")).text == "on"
        assert model.stats()["refusals"] == []


async def test_a_restart_gives_nothing_back(home: Path, model: ScriptedModel) -> None:
    """X22: the count is loaded from this day's rows, and deleting a session does not lower it."""
    clock = Clock()
    clock.now -= DAY
    async with core(home, model=model, clock=clock) as gateway:
        await gateway.say("yesterday")
        clock.now += DAY
        session = (await gateway.say("today")).session
        await gateway.say("one-shot", name=None)
        spent = gateway.components.budgets.day.spent().tokens
        assert spent > 0
        await gateway.service.delete(session, ANNA)
    async with core(home, SMALL, model=model, clock=clock) as gateway:
        assert gateway.components.budgets.day.spent().tokens == spent
        refused = await gateway.say("again")
        assert refused.error is not None and refused.error.code == "budget_spent"


async def test_with_zero_there_is_no_cap(home: Path, model: ScriptedModel) -> None:
    """X22: usage is counted and shown anyway."""
    async with core(home, "[limits]\nday_tokens = 0", model=model) as gateway:
        for _ in range(3):
            assert (await gateway.say("hello")).state == "answered"
        assert gateway.components.budgets.day.spent().tokens > 0


async def test_the_demo_model_costs_nothing(home: Path, model: ScriptedModel) -> None:
    """X22: it is not counted, answers at the cap, and is not counted after a restart either."""
    toml = '[models.main]\napi = "demo"\n[agents.main]\nmodel = "main"\n[limits]\nday_tokens = 1\n'
    for _ in range(2):
        async with core(home, model=model, toml=toml) as gateway:
            assert gateway.components.budgets.day.spent().tokens == 0
            for _ in range(2):
                outcome = await gateway.say("hello")
                assert outcome.state == "answered" and outcome.usage.input > 1
            assert gateway.components.budgets.day.spent().tokens == 0


async def test_a_call_that_is_cut_off_is_paid_for_too(home: Path, model: ScriptedModel) -> None:
    """X22: a caller that hangs up on every answer does not evade the cap, not even across a restart."""
    async with core(home, SMALL, model=model) as gateway:
        accepted = await gateway.accept("[words 50] [hang after=5]", name=None)
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        with anyio.fail_after(WAIT):
            async for batch in log.read():
                if any(isinstance(event, TextDelta) for event in batch):
                    break
            await gateway.service.abandon(accepted.turn)
            while gateway.service.turn_log(accepted.turn) is not None:
                await anyio.lowlevel.checkpoint()
        spent = gateway.components.budgets.day.spent().tokens
        assert spent > 10
    async with core(home, SMALL, model=model) as gateway:
        assert gateway.components.budgets.day.spent().tokens == spent
        assert (await gateway.say("again")).error is not None


async def test_a_call_that_an_orderly_stop_cuts_off_is_paid_for_too(home: Path, model: ScriptedModel) -> None:
    """X22: it is repeated at the next start, and was billed anyway."""
    async with core(home, model=model, drain=0) as gateway:
        accepted = await gateway.accept("[words 50] [hold here after=20 times=1]")
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        with anyio.fail_after(WAIT):
            async for batch in log.read():
                if any(isinstance(event, TextDelta) for event in batch):
                    break
    async with core(home, model=model) as gateway:
        assert (await gateway.answered(accepted.turn)).state == "answered"
        _, total = await gateway.service.usage(ANNA, by="model", since=0, until=1e12, limit=10)
        assert (total.calls, total.estimated) == (2, 1)


async def test_an_answer_that_the_provider_does_not_count_is_estimated(home: Path, model: ScriptedModel) -> None:
    """X22, H10: the cap applies to such an endpoint too, and its usage is marked as an estimate."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A server that speaks the format but reports no usage."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l"))
        await reader.readexactly(length)
        body = b'data: {"choices":[{"delta":{"content":"four words of text"},"finish_reason":"stop"}]}\n\n'
        body += b"data: [DONE]\n\n"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        toml = f'[models.main]\napi = "openai-chat"\nbase_url = "{url}"\nmodel = "plain"\n{SMALL}'
        async with core(home, model=model, toml=toml) as gateway:
            outcome = await gateway.say("hello")
            assert outcome.text == "four words of text"
            assert outcome.usage == Usage(input=outcome.usage.input, output=5, estimated=True) and outcome.usage.input
            assert await gateway.service.outcome(outcome.turn, ANNA) == outcome
            refused = await gateway.say("hello again")
            assert refused.error is not None and refused.error.code == "budget_spent"


def test_the_operator_is_warned_once_a_day() -> None:
    """X22: at four fifths, and again on the next day."""
    clock, turn = Clock(), Teller()
    with capture_logs() as logs:
        day = BudgetAccount(BudgetRule(setting="limits.day_tokens", per="gateway", each="day", tokens=100), "", clock)
        for _ in range(5):
            day.spend(turn, Usage(input=19))
        day.spend(turn, Usage(input=1))
        assert [(entry["spent"], entry["setting"]) for entry in logs] == [
            ("95 of 100 tokens today", "limits.day_tokens")
        ]
        clock.now += DAY
        day.spend(turn, Usage(output=80))
    assert [entry["spent"] for entry in logs] == ["95 of 100 tokens today", "80 of 100 tokens today"]
    assert all(entry["level"] == "warning" for entry in logs)
    assert [text.partition(";")[0] for text in turn.told] == [
        "The gateway has spent 95 of 100 tokens today (limits.day_tokens), 95% of that budget",
        "The gateway has spent 80 of 100 tokens today (limits.day_tokens), 80% of that budget",
    ]


def test_a_warning_past_the_limit_does_not_claim_that_something_is_left() -> None:
    """X22: the warning and the refusal come together then."""
    clock, turn = Clock(), Teller()
    BudgetAccount(BudgetRule(setting="budgets.talk", per="session", each="total", tokens=100), "s_1", clock).spend(
        turn, Usage(input=150)
    )
    assert turn.told == [
        "This conversation has spent 150 of 100 tokens in all (budgets.talk), 150% of that budget; no model is called "
        "any more."
    ]


async def test_loading_the_count_looks_at_the_days_rows_only(home: Path, model: ScriptedModel) -> None:
    """X22, L20: a start does not read earlier months."""

    def fill(db: Db) -> None:
        db.executemany(
            "INSERT INTO usage(agent, channel, model, at, input, cached, output) VALUES('a', 'http', 'm', ?, 1, 0, 1)",
            ((NOON - DAY,) if number < 20_000 else (NOON,) for number in range(20_003)),
        )

    def steps(db: Db) -> tuple[int, int]:
        looked = 0

        def count() -> bool:
            nonlocal looked
            looked += 1
            return False

        db.set_progress_handler(count, 10, id="test")
        try:
            return usage.spent(db, NOON - DAY / 2).tokens, looked
        finally:
            db.set_progress_handler(None, id="test")

    async with core(home, model=model) as gateway:
        await gateway.store.write(fill)
        while await gateway.store.write(usage.fold, usage.FOLDED_AT_ONCE) == usage.FOLDED_AT_ONCE:
            pass
        spent, looked = await gateway.store.read(steps)
        assert spent == 6
        assert looked < 100
