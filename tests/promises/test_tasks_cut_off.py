"""A tree of tasks that is cut off at every point: stopped, nothing of it is left; crashed, none is done twice.

The points are the rounds of the event loop: the tree runs so many of them, and is cut off then; then so many and a few
more, until it was over before. The demo model answers inside the process, so that little depends on the clock."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, Core
from tests.tasks import delegating, rows, still
from tidegate.store import messages
from tidegate.tools import ToolContext, Toolset, tool

pytestmark = pytest.mark.anyio

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

STRIDES = (53, pytest.param(1, marks=pytest.mark.slow))
CRASHES = (53, pytest.param(7, marks=pytest.mark.slow))
"""Rounds between two points: what happens in a round is little, and to crash in each of them takes minutes."""

CLOSE, MOST = 1000, 1_000_000
"""Rounds up to which the points lie close: later ones are for machines on which the loop goes round often while others
work; after the last the tree is over on any."""


def points(stride: int) -> Iterator[int]:
    count = 0
    while count < MOST:
        yield count
        count += stride if count < CLOSE or stride == 1 else count // 4


class Deeds:
    """What was done, by name; it outlives a core, as the world does. `open` are the deeds that are being done."""

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


async def rounds(house: Core, turn: str, count: int) -> bool:
    """So many rounds of the loop; whether the turn still runs."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()
    return house.service.turn_log(turn) is not None


async def _stop(house: Core, session: str) -> None:
    await house.service.stop(session, ANNA)


async def _delete(house: Core, session: str) -> None:
    await house.service.delete(session, ANNA)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("places", [1, 4])
@pytest.mark.parametrize("way", [_stop, _delete])
async def test_stopped_at_any_point_it_leaves_nothing(
    home: Path, model: ScriptedModel, way: Callable[[Core, str], Awaitable[None]], places: int, stride: int
) -> None:
    """L04, L08, B3, F5, P05: a task that has done something is not told as not run; the census is back at its baseline,
    and no row is there that was not before."""
    deeds = Deeds()
    toml = TOML.format(places=places)
    async with delegating(home, model, toml=toml, toolsets=deeds.toolsets()) as house:
        await house.say("hello", "warm")
        await house.service.end((await house.say("hello", "warm")).session, ANNA, "new")
        baseline, kept = house.service.census(), await rows(house)
        cut = 0
        for count in points(stride):
            accepted = await house.accept(TREE, f"talk {count}")
            running = await rounds(house, accepted.turn, count)
            await way(house, accepted.session)
            outcome = await house.answered(accepted.turn) if way is _stop else None
            assert deeds.open == 0
            if outcome is not None:
                assert outcome.state in ("stopped", "answered")
                told = {row.step: row.message.text for row in await house.store.read(messages.journal, accepted.turn)}
                for number, what in enumerate("ab"):
                    assert not deeds.done[what] or not told[f"tool-0-{number}"].startswith("Not run"), count
                deeds.done.clear()
                await house.service.delete(accepted.session, ANNA)
            await still(house)
            assert house.service.census() == baseline, count
            assert await rows(house) == kept, count
            assert house.components.delegation is not None and house.components.delegation.is_idle
            assert house.components.engine.slots.taken == 0
            if not running:
                break
            cut += 1
        else:
            pytest.fail("the tree was never over")
        assert cut > 5


@pytest.mark.parametrize("stride", CRASHES)
@pytest.mark.parametrize("places", [1, 4])
async def test_crashed_at_any_point_no_task_is_done_twice(
    home: Path, model: ScriptedModel, places: int, stride: int
) -> None:
    """F4, P01, P02, P05: what goes on finds its tasks again: one that ran goes on, one that had answered gives that
    answer. A deed that was cut off is not done again."""
    toml = TOML.format(places=places)
    cut = 0
    for count in points(stride):
        deeds, folder = Deeds(), home / str(count)
        options: dict[str, Any] = {"toml": toml, "toolsets": deeds.toolsets()}
        async with delegating(folder, model, drain=None, **options) as house:
            accepted = await house.accept(TREE)
            running = await rounds(house, accepted.turn, count)
        assert deeds.open == 0
        async with delegating(folder, model, **options) as house:
            outcome = await house.answered(accepted.turn)
            assert outcome.state == "answered", (count, outcome)
            said = outcome.text
            assert all(times == 1 for times in deeds.done.values()), (count, deeds.done)
            assert len(deeds.done) >= said.count("noted"), (count, said)
            assert said.count("noted") + said.count("effect is unknown") == 2, (count, said)
            assert "The answer of the agent 'helper'" in said and "The answer of the agent 'second'" in said
            await still(house)
            left = await rows(house)
            assert (left["sessions"], left["turns"], left["receipts"], left["intents"]) == (1, 1, 0, 0), count
            journal = await house.store.read(messages.journal, accepted.turn)
            steps = ["in-0", "model-0", "model-1", "tool-0-0", "tool-0-1"]
            assert sorted(row.step or "" for row in journal) == steps
        if not running:
            break
        cut += 1
    else:
        pytest.fail("the tree was never over")
    assert cut > 5
