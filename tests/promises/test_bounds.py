"""Default bounds, reports about exceeded ones, and the order of eviction."""

from itertools import combinations
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, core
from tests.in_process import in_process_gateway as whole_house
from tests.logs import capture_logs
from tests.web.client import call
from tidegate.config import Config
from tidegate.slash_commands import build
from tidegate.tools import Tool, ToolContext, Toolset, Toolsets
from tidegate.values import ToolDefinition

pytestmark = pytest.mark.anyio


def test_the_default_bounds_are_the_promised_ones() -> None:
    """A6, A7, P15: 128 residents, an hour idle, 64 turns at once; bytes are bounded too."""
    limits = Config(home=Path("/nowhere")).limits
    assert (limits.residents, limits.idle_ttl, limits.turns) == (128, 3600.0, 64)
    assert 0 < limits.resident_bytes < 1 << 30


async def _nothing(ctx: ToolContext, arguments: str) -> str:
    return ""


def test_the_least_recently_used_toolset_is_evicted_first() -> None:
    """C2: a ninth key evicts only the least recently used one."""
    toolsets = {
        name: Toolset([Tool(definition=ToolDefinition(name=name, description="d"), effect="read", run=_nothing)])
        for name in "abcdef"
    }
    registry = Toolsets(toolsets)
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


async def test_residents_over_their_cap_during_turns_are_logged_and_counted(home: Path, model: ScriptedModel) -> None:
    """A8, A11: no resident is torn down, the log gives the reason, the metric counts it, and later the cap
    holds."""
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
    (warned,) = [line for line in lines if "turns are running" in line["event"]]
    assert warned["level"] == "warning" and warned["cap"] == 2


@pytest.mark.parametrize(("extra", "said"), [("", "only with /new"), ('[expiry]\nnamed_idle = "1h"', "after 1 hour")])
async def test_the_expiry_policy_is_shown_to_the_user(home: Path, model: ScriptedModel, extra: str, said: str) -> None:
    """S04: the policy in plain words, in the status of the conversation."""
    async with core(home, extra, model=model) as gateway:
        first = await gateway.say("one")
        commands = build(gateway.service)
        reply = await commands.run("/status", principal=ANNA, channel="page", session=first.session, agent="main")
        assert said in reply.text


async def test_an_interrupting_message_keeps_its_place_in_the_queue(home: Path, model: ScriptedModel) -> None:
    """S13: the acknowledgement says how many are ahead, the running turn is stopped, and the order is kept."""
    async with core(home, model=model) as gateway:
        running = await gateway.accept("[hold gate]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        waiting = await gateway.accept("[say second] 2")
        newest = await gateway.accept("[say third] 3", busy="interrupt")
        assert (running.how, waiting.how, newest.how) == ("started", "queued", "interrupting")
        assert (waiting.ahead, newest.ahead) == (1, 2)
        states = [(await gateway.answered(each.turn)).state for each in (running, waiting, newest)]
        assert states == ["stopped", "answered", "answered"]
        rows = (await gateway.service.transcript(running.session, ANNA)).rows
        said = [row.message.text for row in rows if row.message.role == "user"]
        assert said == ["[hold gate]", "[say second] 2", "[say third] 3"]
        idle = await gateway.accept("[say alone]", busy="interrupt")
        assert (idle.how, idle.ahead) == ("started", 0)
        assert (await gateway.answered(idle.turn)).text == "alone"
