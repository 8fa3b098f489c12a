"""Bounds as they are set without being asked for, what is told when one gives way, and what leaves first."""

from itertools import combinations
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, core
from tests.in_process import in_process_gateway as whole_house
from tests.logs import capture_logs
from tests.web.client import call
from tidegate.commands import build
from tidegate.config import Config
from tidegate.tools import Tool, ToolContext, ToolRegistry, Toolset
from tidegate.values import ToolDefinition

pytestmark = pytest.mark.anyio


def test_the_bounds_that_nobody_set_are_those_that_were_promised() -> None:
    """A6, A7, P15: 128 residents, an hour of idleness, 64 turns at once; and bytes are bounded too."""
    limits = Config(home=Path("/nowhere")).limits
    assert (limits.residents, limits.idle_ttl, limits.turns) == (128, 3600.0, 64)
    assert 0 < limits.resident_bytes < 1 << 30


async def _nothing(ctx: ToolContext, arguments: str) -> str:
    return ""


def test_the_oldest_resolved_toolset_leaves_first() -> None:
    """C2: a ninth key costs the one that was not used for longest, and no other."""
    toolsets = {
        name: Toolset([Tool(definition=ToolDefinition(name=name, description="d"), effect="read", run=_nothing)])
        for name in "abcdef"
    }
    registry = ToolRegistry(toolsets)
    keys = list(combinations("abcdef", 2))[:9]
    kept = {key: registry.resolve(key) for key in keys[:8]}
    assert registry.resolve(keys[0]) is kept[keys[0]], "a use renews the place"
    registry.resolve(keys[8])
    before = registry.stats()
    for key in (keys[0], *keys[2:8]):
        assert registry.resolve(key) is kept[key]
    after = registry.stats()
    assert (after.hits - before.hits, after.misses - before.misses) == (7, 0)
    assert registry.resolve(keys[1]) == kept[keys[1]]
    assert registry.stats().misses - after.misses == 1


async def test_residents_over_their_cap_in_mid_turn_are_told_in_log_and_metrics(
    home: Path, model: ScriptedModel
) -> None:
    """A8, A11: nobody is torn down, the log says "mid-turn", the metric counts it, and afterwards the cap holds."""
    with capture_logs() as lines:
        async with whole_house(home, "[limits]\nresidents = 2", model=model) as h:
            async with anyio.create_task_group() as group:
                for number in range(4):
                    group.start_soon(h.chat, f"[hold gate{number}] [say {number}]", f"talk {number}")
                with anyio.fail_after(WAIT):
                    for number in range(4):
                        await model.held(f"gate{number}")
                assert h.components.presence.stats().residents == 4
                metrics = (await call(h, "GET", "/metrics")).body.decode()
                counted = [line for line in metrics.splitlines() if "over_cap" in line and not line.startswith("#")]
                assert counted and float(counted[0].rpartition(" ")[2]) >= 2
                for number in range(4):
                    model.release(f"gate{number}")
            assert h.components.presence.stats().residents == 2
            assert h.components.presence.stats().unloads == {"count": 2}
    (warned,) = [line for line in lines if "mid-turn" in line["event"]]
    assert warned["level"] == "warning" and warned["cap"] == 2


@pytest.mark.parametrize(("extra", "said"), [("", "only by /new"), ('[expiry]\nnamed_idle = "1h"', "after 1 hour")])
async def test_when_a_conversation_ends_is_shown_to_its_user(
    home: Path, model: ScriptedModel, extra: str, said: str
) -> None:
    """S04: the policy, in his words, where he looks for it."""
    async with core(home, extra, model=model) as house:
        first = await house.say("one")
        commands = build(house.service)
        reply = await commands.run("/status", principal=ANNA, channel="page", session=first.session, agent="main")
        assert said in reply.text


async def test_an_interruption_passes_nobody_who_was_there_first(home: Path, model: ScriptedModel) -> None:
    """S13: the acknowledgement says how many are ahead, the running turn is stopped, and the order is kept."""
    async with core(home, model=model) as house:
        running = await house.accept("[hold gate]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        waiting = await house.accept("[say second] 2")
        newest = await house.accept("[say third] 3", busy="interrupt")
        assert (running.how, waiting.how, newest.how) == ("started", "queued", "interrupting")
        assert (waiting.ahead, newest.ahead) == (1, 2)
        states = [(await house.answered(each.turn)).state for each in (running, waiting, newest)]
        assert states == ["stopped", "answered", "answered"]
        rows = (await house.service.transcript(running.session, ANNA)).rows
        said = [row.message.text for row in rows if row.message.role == "user"]
        assert said == ["[hold gate]", "[say second] 2", "[say third] 3"]
        idle = await house.accept("[say alone]", busy="interrupt")
        assert (idle.how, idle.ahead) == ("started", 0)
        assert (await house.answered(idle.turn)).text == "alone"
