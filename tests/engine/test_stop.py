"""A stopped turn gives its slot back, whatever it was doing: the next turn of another session runs."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, live_turn, open_ids
from tests.effects import EffectRecord, asked, until
from tests.tasks import delegating, task
from tidegate.values import Acceptance

pytestmark = pytest.mark.anyio

ONE_SLOT = "[limits]\nturns = 1"


async def _waiting(gateway: Core, deeds: EffectRecord) -> Acceptance:
    """Waiting for a slot, behind a turn of another session."""
    await gateway.accept("[hold gate] in the way", name="in the way")
    with anyio.fail_after(WAIT):
        await gateway.model.held("gate")
    return await gateway.accept("[say never]")


async def _asking_a_model(gateway: Core, deeds: EffectRecord) -> Acceptance:
    accepted = await gateway.accept("[hold model]")
    with anyio.fail_after(WAIT):
        await gateway.model.held("model")
    return accepted


async def _running_a_tool(gateway: Core, deeds: EffectRecord) -> Acceptance:
    accepted = await gateway.accept('[tool linger {"what": "x"}]', channel="page")
    with anyio.fail_after(WAIT):
        (question,) = await asked(gateway, accepted.turn)
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        await deeds.started.wait()
    return accepted


async def _asking_a_person(gateway: Core, deeds: EffectRecord) -> Acceptance:
    accepted = await gateway.accept('[tool push {"what": "x"}]', channel="page")
    await asked(gateway, accepted.turn)
    return accepted


async def _delegating(gateway: Core, deeds: EffectRecord) -> Acceptance:
    """The task asks a model, in the slot of its parent turn."""
    accepted = await gateway.accept(task("second", "[hold task]"))
    with anyio.fail_after(WAIT):
        await gateway.model.held("task")
    return accepted


async def _delegating_a_question(gateway: Core, deeds: EffectRecord) -> Acceptance:
    """The task waits for a person: neither of the two turns has a slot."""
    said = task("helper", task("second", '[tool push {"what": "x"}]'))
    accepted = await gateway.accept(said, channel="page")
    await until(lambda: gateway.components.engine.stats().asking == 1)
    return accepted


PHASES = (_waiting, _asking_a_model, _running_a_tool, _asking_a_person, _delegating, _delegating_a_question)


async def _stop(gateway: Core, accepted: Acceptance) -> None:
    assert await gateway.components.engine.stop(accepted.turn, "by its user")


async def _end(gateway: Core, accepted: Acceptance) -> None:
    assert await gateway.service.end(accepted.session, ANNA, "new")


async def _expire(gateway: Core, accepted: Acceptance) -> None:
    live = live_turn(gateway, accepted.session)
    live.expire()  # as the timer of limits.turn_seconds does


WAYS = (_stop, _end, _expire)
CASES = [(phase, way) for way in WAYS for phase in PHASES if (phase, way) != (_waiting, _expire)]
"""The time limit of a turn begins when it starts, so no turn expires while it waits for a slot."""


@pytest.mark.parametrize(("phase", "way"), CASES)
async def test_a_turn_that_is_stopped_frees_its_slot(
    home: Path,
    model: ScriptedModel,
    phase: Callable[[Core, EffectRecord], Awaitable[Acceptance]],
    way: Callable[[Core, Acceptance], Awaitable[None]],
) -> None:
    """B7, L21, L23, P15, V01: at once; of the next two messages in other sessions, one runs and one waits."""
    deeds = EffectRecord()
    toolsets = {"deeds": deeds.toolset()}
    async with delegating(home, model, ONE_SLOT, toolsets=toolsets, approvals="balanced") as gateway:
        accepted = await phase(gateway, deeds)
        await way(gateway, accepted)
        outcome = await gateway.answered(accepted.turn)
        assert outcome.state in ("stopped", "refused", "failed")
        model.release("gate")
        for turn in await open_ids(gateway):  # the turns that were in the way
            await gateway.answered(turn)
        stats = gateway.components.engine.stats()
        assert (stats.running, stats.waiting, stats.asking, stats.delegating) == (0, 0, 0, 0)
        assert gateway.components.engine.can_start()
        both = [await gateway.accept(f"[hold {name}]", name=name) for name in ("one", "two")]
        with anyio.fail_after(WAIT):
            await model.held("one")
        stats = gateway.components.engine.stats()
        assert (stats.running, stats.waiting) == (1, 1), "one slot, not two"
        for name in ("one", "two"):
            model.release(name)
        for each in both:
            assert (await gateway.answered(each.turn)).state == "answered"
