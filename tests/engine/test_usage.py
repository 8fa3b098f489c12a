"""The cost of a turn, however it ended: counted by the provider, or estimated and marked as such."""

from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core
from tidegate.store import usage
from tidegate.values import Outcome, TextDelta

pytestmark = pytest.mark.anyio


async def stopped(gateway: Core, script: str, **fields: object) -> Outcome:
    """A turn that is stopped after it has shown some text."""
    accepted = await gateway.accept(script, **fields)
    log = gateway.service.turn_log(accepted.turn)
    assert log is not None
    with anyio.fail_after(WAIT):
        async for batch in log.read():
            if any(isinstance(event, TextDelta) for event in batch):
                break
        await gateway.service.stop(accepted.session, ANNA)
    return await gateway.answered(accepted.turn)


async def written_down(gateway: Core) -> tuple[int, int]:
    totals = await gateway.store.read(lambda db: usage.totals(db, by="model"))
    assert [total.key for total in totals] == ["scripted"]
    return totals[0].input, totals[0].output


async def test_a_stopped_turn_reports_an_estimate_of_its_cost(home: Path, model: ScriptedModel) -> None:
    """H10, V15: the request and the shown part of the answer; the same live, from the store, and in the usage rows."""
    async with core(home, model=model) as gateway:
        outcome = await stopped(gateway, "[words 50] [hang after=20]")
        assert outcome.state == "stopped" and outcome.usage.estimated
        assert outcome.usage.input > 0
        assert len(outcome.text) // 8 <= outcome.usage.output <= len(outcome.text)
        assert await gateway.service.outcome(outcome.turn, ANNA) == outcome
        assert await written_down(gateway) == (outcome.usage.input, outcome.usage.output)


async def test_usage_counted_before_a_stop_is_part_of_the_cost(home: Path, model: ScriptedModel) -> None:
    """H10: earlier steps count as reported by the provider, the step that was cut off by its estimate."""
    async with core(home, model=model) as gateway:
        whole = await gateway.say("[tool clock {}] [words 50]", name="whole")
        outcome = await stopped(gateway, "[tool clock {}] [words 50] [hang after=20 step=1]")
        rows = (await gateway.service.transcript(outcome.session, ANNA)).rows
        told = [row.message.usage for row in rows if row.message.usage is not None]
        assert len(told) == 1 and not told[0].estimated
        assert told[0].input < outcome.usage.input and outcome.usage.estimated and outcome.steps == 1
        assert not whole.usage.estimated
        assert await gateway.service.outcome(outcome.turn, ANNA) == outcome


async def test_a_turn_that_is_stopped_between_its_calls_has_no_estimate(home: Path, model: ScriptedModel) -> None:
    """H10: every request was counted."""
    async with core(home, model=model) as gateway:
        accepted = await gateway.accept("[hold gate] one")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        waiting = await gateway.accept("two")
        await gateway.components.engine.stop(waiting.turn, "by its user")
        outcome = await gateway.answered(waiting.turn)
        assert (outcome.usage.tokens, outcome.usage.estimated) == (0, False)
        model.release("gate")
        await gateway.answered(accepted.turn)


async def test_a_cut_off_answer_is_estimated_and_one_that_never_began_is_not(home: Path, model: ScriptedModel) -> None:
    """H10, H22: shown text was paid for; an endpoint that refuses bills nothing."""
    async with core(home, model=model) as gateway:
        broken = await gateway.say("[words 50] [cut after=20]", name="broken")
        assert broken.state == "failed" and broken.usage.estimated and broken.usage.output > 0
        assert await gateway.service.outcome(broken.turn, ANNA) == broken
        refused = await gateway.say("[status 500]", name="refused")
        assert refused.state == "failed" and refused.usage.tokens == 0 and not refused.usage.estimated


@pytest.mark.parametrize("extra", ["[limits]\nresumes = 0", "[limits]\nresumes = 3\nturns = 1"])
async def test_a_turn_ended_by_a_crash_reports_its_committed_steps(
    home: Path, model: ScriptedModel, extra: str
) -> None:
    """H10, S17: not resumed any more, or stopped while it waited to continue: committed steps were paid for."""
    async with core(home, model=model, drain=None) as gateway:
        other = await gateway.accept("[hold other] first", name="other")
        with anyio.fail_after(WAIT):
            await model.held("other")
        accepted = await gateway.accept("[tool clock {}] [hold gate step=1] [say done]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
    async with core(home, extra, model=model) as gateway:
        if "turns" in extra:
            first, second = (
                (other, accepted) if gateway.components.engine.follow_session(other.session) else (accepted, other)
            )
            assert gateway.components.engine.stats().waiting == 1
            await gateway.components.engine.stop(second.turn, "by its user")
            outcome = await gateway.answered(second.turn)
            assert outcome.steps == (second is accepted)
            await gateway.service.stop(first.session, ANNA)
            await gateway.answered(first.turn)
        else:
            outcome = await gateway.answered(accepted.turn)
            assert outcome.error is not None and outcome.error.code == "resume_budget"
            assert outcome.steps == 1
        assert (outcome.usage.input > 0) == bool(outcome.steps) and not outcome.usage.estimated
