"""Usage of tasks: recorded once, charged to the conversation in which they were given, and counted for the turn."""

from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core
from tests.tasks import delegating, error, result, rows, task, until_idle
from tidegate.store import UsageTotal, sessions, usage
from tidegate.values import Outcome, Usage

pytestmark = pytest.mark.anyio

TREE = f"{task('helper', task('second', '[say a]') + ' [say b]', together=(('second', '[say c]'),))} [say d]"


async def total(gateway: Core, by: usage.By = "agent") -> dict[str, UsageTotal]:
    return {each.key: each for each in await gateway.store.read(lambda db: usage.totals(db, by=by))}


async def test_the_usage_of_a_turn_includes_its_tasks_and_counts_each_call_once(
    home: Path, model: ScriptedModel
) -> None:
    """X22: the outcome has the sum of the tree, live and from the store; sums by agent, conversation and day count each
    call once."""
    async with delegating(home, model) as gateway:
        outcome = await gateway.say(TREE)
        used = await gateway.store.read(usage.total)
        assert used.calls == len(gateway.requests()) == 6
        assert (outcome.usage.input, outcome.usage.output) == (used.input, used.output)
        assert (await gateway.service.outcome(outcome.turn, ANNA)) == outcome
        assert {name: each.calls for name, each in (await total(gateway)).items()} == {
            "main": 2,
            "helper": 2,
            "second": 2,
        }
        assert (await gateway.service.usage_of(outcome.session, ANNA)).calls == 6
        assert {name: each.calls for name, each in (await total(gateway, "channel")).items()} == {
            "http": 2,
            "delegate": 4,
        }
        await gateway.service.delete(outcome.session, ANNA)
        left = await gateway.store.read(lambda db: db.execute("SELECT count(session), count(turn) FROM usage").get)
        assert left == (0, 0)


async def test_the_usage_of_a_task_before_a_crash_is_counted(home: Path, model: ScriptedModel) -> None:
    """F4, X22: of finished tasks, and of resumed ones."""
    both = task("second", "[say a]", together=(("helper", "[tool list_files {}] [hold gate step=1] [say b]"),))
    async with delegating(home, model, drain=None) as gateway:
        accepted = await gateway.accept(f"{both} [say c]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
            while (await rows(gateway))["sessions"] != 2:  # the other one has ended
                await anyio.sleep(0.001)
    model.release("gate")
    async with delegating(home, model) as gateway:
        outcome = await gateway.answered(accepted.turn)
        assert outcome.text == "c"
        used = await gateway.store.read(usage.total)
        assert (outcome.usage.input, outcome.usage.output) == (used.input, used.output)
        assert outcome == await gateway.service.outcome(outcome.turn, ANNA)


async def test_a_budget_of_a_turn_holds_for_all_of_its_tasks(home: Path, model: ScriptedModel) -> None:
    """X22: tasks do not evade it, neither many of them nor deep ones."""
    many = tuple(("second", f"[words 30] task {number}") for number in range(8))
    said = f"{task(*many[0], together=many[1:])} [say done]"
    free = await _spent_by(home / "free", model, said)
    bound = free.usage.tokens // 3
    limits = f'[budgets.each]\nper = "turn"\ntokens = {bound}\n[limits]\ndelegates = 1'
    async with delegating(home, model, limits) as gateway:
        outcome = await gateway.say(said)
        assert (
            outcome.state == "failed" and "budgets.each" in error(outcome) and "This turn has spent" in error(outcome)
        )
        assert bound <= outcome.usage.tokens < free.usage.tokens * 2 // 3
        refused = [text for text in await _results(gateway) if "budgets.each" in text]
        assert refused and all(text.startswith("The agent 'second' failed") for text in refused)
        assert any("budgets.each" in notice for notice in outcome.notices)


async def test_a_budget_of_a_conversation_holds_for_the_tasks_in_it(home: Path, model: ScriptedModel) -> None:
    """X22: the session of a task counts as its conversation."""
    limits = '[budgets.talk]\nper = "session"\neach = "total"\ntokens = {}'
    said = f"{task('second', '[words 30] x')} [say done]"
    free = await _spent_by(home / "free", model, said)
    async with delegating(home, model, limits.format(free.usage.tokens + 1)) as gateway:
        assert (await gateway.say(said)).state == "answered"
        session = (await gateway.say(said)).session
        outcome = await gateway.say(said)
        assert outcome.state == "failed" and "This conversation has spent" in error(outcome)
        assert (await gateway.service.usage_of(session, ANNA)).calls == len(gateway.requests()) - 3
    async with delegating(home, model, limits.format(free.usage.tokens + 1)) as gateway:
        outcome = await gateway.say(said)
        assert outcome.state == "failed" and "This conversation has spent" in error(outcome)


async def test_a_task_is_charged_to_its_conversation_while_the_gateway_runs(home: Path, model: ScriptedModel) -> None:
    """X22: nested tasks too; the next turn is refused for it, without a restart."""
    said = f"{task('helper', task('second', '[words 60] x') + ' [words 60] y')} [say done]"
    free = await _spent_by(home / "free", model, said)
    limits = f'[budgets.talk]\nper = "session"\neach = "total"\ntokens = {free.usage.tokens}'
    async with delegating(home, model, limits) as gateway:
        outcome = await gateway.say(said)
        assert outcome.state == "answered"
        session = await gateway.store.read(sessions.get, outcome.session)
        (budget,), _ = await gateway.components.budgets.visible_to(ANNA, session)
        assert (budget.setting, budget.tokens) == ("budgets.talk", outcome.usage.tokens)
        asked = len(gateway.requests())
        refused = await gateway.say("[say more]")
        assert refused.state == "failed" and "This conversation has spent" in error(refused)
        assert len(gateway.requests()) == asked


async def _spent_by(home: Path, model: ScriptedModel, said: str) -> Outcome:
    async with delegating(home, model) as gateway:
        return await gateway.say(said)


async def _results(gateway: Core) -> list[str]:
    await until_idle(gateway)
    rows = await gateway.store.read(lambda db: list(db.execute("SELECT session FROM messages LIMIT 1")))
    page = await gateway.service.transcript(rows[0][0], ANNA)
    return [row.message.text for row in page.rows if row.message.role == "tool"]


async def test_the_usage_of_a_turn_without_tasks_is_unchanged(home: Path, model: ScriptedModel) -> None:
    """X22: a stopped turn says that part of it is an estimate, live and from the store."""
    async with delegating(home, model) as gateway:
        outcome = await gateway.say("hello")
        assert outcome.usage != Usage() and not outcome.usage.estimated
        running = await gateway.accept(f"{task('second', '[words 50] [hang after=20]')}")
        with anyio.fail_after(WAIT):
            while len(gateway.requests()) < 3:
                await anyio.sleep(0.001)
        await gateway.service.stop(running.session, ANNA)
        stopped = await gateway.answered(running.turn)
        assert stopped.usage.estimated and stopped == await gateway.service.outcome(running.turn, ANNA)
        assert result(gateway) == []
