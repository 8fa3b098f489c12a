"""A tree of tasks that is cut off at every point: a stop leaves nothing, and after a crash no task is done twice.

The points are iterations of the event loop: the tree runs for a number of them and is cut off; then for a few more,
until it finishes first. The demo model answers inside the process, so little depends on the clock.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, Core
from tests.tasks import delegating, rows, until_idle
from tidegate.store import messages
from tidegate.tools import ToolContext, Toolset, tool

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TOML = """
[models.main]
api = "demo"
[agents.main]
model = "main"
approvals = "autonomous"
tools = ["delegate", "deeds"]
delegates = ["helper", "second"]
[agents.helper]
model = "main"
approvals = "autonomous"
tools = ["delegate", "deeds"]
delegates = ["second"]
[agents.second]
model = "main"
approvals = "autonomous"
tools = ["deeds"]
[limits]
turns = {places}
resumes = 1000
"""

TREE = 'delegate to helper: delegate to second: call note {"what": "a"}; delegate to second: call note {"what": "b"}'

STRIDES = (53, 1)
CRASHES = (53, 7)
"""Iterations between two points: little happens in one, and crashing in each of them takes minutes."""

CLOSE, MOST = 1000, 1_000_000
"""Iterations up to which the points are close together. Later ones are for machines on which the loop iterates often
while others work; after the last one the tree is finished on any machine."""


def points(stride: int) -> Iterator[int]:
    count = 0
    while count < MOST:
        yield count
        count += stride if count < CLOSE or stride == 1 else count // 4


class EffectRecord:
    """A record of effects by name, which outlives a core as real effects do. `open` are those in progress."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.open = 0

    def toolsets(self) -> dict[str, Toolset]:
        @tool(effect="write")
        async def note(ctx: ToolContext, *, what: str) -> str:
            """Notes something."""
            self.done[what] += 1
            self.open += 1
            try:
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
            finally:
                self.open -= 1
            return f"noted {what}"

        return {"deeds": Toolset((note,))}


async def rounds(gateway: Core, turn: str, count: int) -> bool:
    """Runs `count` iterations of the loop; returns whether the turn still runs."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()
    return gateway.service.turn_log(turn) is not None


async def _stop(gateway: Core, session: str) -> None:
    await gateway.service.stop(session, ANNA)


async def _delete(gateway: Core, session: str) -> None:
    await gateway.service.delete(session, ANNA)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("places", [1, 4])
@pytest.mark.parametrize("way", [_stop, _delete])
async def test_a_tree_stopped_at_any_point_leaves_nothing(
    home: Path, model: ScriptedModel, way: Callable[[Core, str], Awaitable[None]], places: int, stride: int
) -> None:
    """L04, L08, B3, F5, P05: a task with an effect is not reported as not run; the census is back at its baseline, and
    no additional row exists."""
    deeds = EffectRecord()
    toml = TOML.format(places=places)
    async with delegating(home, model, toml=toml, toolsets=deeds.toolsets()) as gateway:
        await gateway.say("hello", "warm")
        await gateway.service.end((await gateway.say("hello", "warm")).session, ANNA, "new")
        baseline, kept = gateway.service.census(), await rows(gateway)
        cut = 0
        for count in points(stride):
            accepted = await gateway.accept(TREE, f"talk {count}")
            running = await rounds(gateway, accepted.turn, count)
            await way(gateway, accepted.session)
            outcome = await gateway.answered(accepted.turn) if way is _stop else None
            assert deeds.open == 0
            if outcome is not None:
                assert outcome.state in ("stopped", "answered")
                told = {row.step: row.message.text for row in await gateway.store.read(messages.journal, accepted.turn)}
                for number, what in enumerate("ab"):
                    assert not deeds.done[what] or not told[f"tool-0-{number}"].startswith("Not run"), count
                deeds.done.clear()
                await gateway.service.delete(accepted.session, ANNA)
            await until_idle(gateway)
            assert gateway.service.census() == baseline, count
            assert await rows(gateway) == kept, count
            assert gateway.components.delegation is not None and gateway.components.delegation.is_idle
            assert gateway.components.engine.can_start(), "no slot was lost"
            if not running:
                break
            cut += 1
        else:
            pytest.fail("the tree was never over")
        assert cut > 5


@pytest.mark.parametrize("stride", CRASHES)
@pytest.mark.parametrize("places", [1, 4])
async def test_after_a_crash_at_any_point_no_task_is_done_twice(
    home: Path, model: ScriptedModel, places: int, stride: int
) -> None:
    """F4, P01, P02, P05: a resumed turn finds its tasks again: a running one continues, an answered one gives its
    answer. An interrupted effect is not repeated."""
    toml = TOML.format(places=places)
    cut = 0
    for count in points(stride):
        deeds, folder = EffectRecord(), home / str(count)
        options: dict[str, Any] = {"toml": toml, "toolsets": deeds.toolsets()}
        async with delegating(folder, model, drain=None, **options) as gateway:
            accepted = await gateway.accept(TREE)
            running = await rounds(gateway, accepted.turn, count)
        assert deeds.open == 0
        async with delegating(folder, model, **options) as gateway:
            outcome = await gateway.answered(accepted.turn)
            assert outcome.state == "answered", (count, outcome)
            said = outcome.text
            assert all(times == 1 for times in deeds.done.values()), (count, deeds.done)
            assert len(deeds.done) >= said.count("noted"), (count, said)
            assert said.count("noted") + said.count("effect is unknown") == 2, (count, said)
            assert "The answer from agent 'helper'" in said and "The answer from agent 'second'" in said
            await until_idle(gateway)
            left = await rows(gateway)
            assert (left["sessions"], left["turns"], left["receipts"], left["intents"]) == (1, 1, 0, 0), count
            journal = await gateway.store.read(messages.journal, accepted.turn)
            steps = ["in-0", "model-0", "model-1", "tool-0-0", "tool-0-1"]
            assert sorted(row.step or "" for row in journal) == steps
        if not running:
            break
        cut += 1
    else:
        pytest.fail("the tree was never over")
    assert cut > 5
