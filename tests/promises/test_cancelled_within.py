"""A cancellation that nobody asked for: what a turn waits for may be cancelled under it, and that is a failure like any
other. Only a stop of the turn itself stops it."""

import asyncio
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, core
from tidegate.agent import is_balanced
from tidegate.store import messages
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.values import Message

pytestmark = pytest.mark.anyio


@tool(effect="execute", parallel=True)
async def give_up(ctx: ToolContext) -> str:
    """Waits for something that is cancelled."""
    awaited = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(awaited.cancel)
    await awaited
    return ""


@tool(effect="execute")
async def leave(ctx: ToolContext) -> str:
    """Thinks that it is a program of its own."""
    raise SystemExit(3)


@pytest.mark.parametrize(
    "script",
    [
        "[tool give_up {}]",
        "[together give_up {} give_up {}]",
        "[together give_up {} clock {} give_up {}]",
        "[tool leave {}]",
    ],
)
async def test_a_tool_that_is_cancelled_from_within_has_failed_and_its_turn_goes_on(
    home: Path, model: ScriptedModel, script: str
) -> None:
    """L23, B7, P02: every call has a result, the turn is answered, and the session takes the next message."""
    toolsets = {"odd": Toolset((give_up, leave))}
    async with core(home, model=model, tools='"clock", "odd"', toolsets=toolsets) as house:
        outcome = await house.say(f"{script} [say after all]")
        assert (outcome.state, outcome.text) == ("answered", "after all")
        rows = (await house.service.transcript(outcome.session, ANNA)).rows
        broken = [row.message for row in rows if row.message.role == "tool" and row.message.name != "clock"]
        assert broken and all(said.failed and "broke" in said.text for said in broken)
        assert (await house.say("[say next]")).text == "next"
        assert model.stats()["refusals"] == []


async def test_a_turn_that_is_cancelled_from_within_fails_and_frees_its_session(
    home: Path, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L23, B7: the caller is told, nothing is left running in the store, and the next message is answered."""
    async with core(home, model=model) as house:
        first = await house.say("one")
        record = house.components.presence.get(first.session)
        assert record is not None and record.resident is not None

        async def cancelled(*_: object, **__: object) -> Message:
            awaited = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(awaited.cancel)
            await awaited
            raise AssertionError

        with monkeypatch.context() as patched:
            patched.setattr(type(record.resident), "ask", cancelled)
            outcome = await house.say("two")
        assert outcome.state == "failed"
        assert outcome.error is not None and outcome.error.code == "internal"
        assert (await house.say("[say three]")).text == "three"
        assert is_balanced(await house.store.read(lambda db: messages.history(db, first.session)))
        assert house.service.census()["turns_running"] == 0


async def test_a_stop_is_no_failure_of_the_tool(home: Path, model: ScriptedModel) -> None:
    """S16, B7: the counterpart: who stops the turn in the middle of a tool, alone or beside others, has stopped it."""
    started = asyncio.Event()

    @tool(effect="execute", parallel=True)
    async def wait(ctx: ToolContext) -> str:
        """Waits."""
        started.set()
        await asyncio.Event().wait()
        return ""

    async with core(home, model=model, tools='"wait"', toolsets={"wait": Toolset((wait,))}) as house:
        for script in ("[tool wait {}]", "[together wait {} wait {}]"):
            started.clear()
            accepted = await house.accept(script)
            with anyio.fail_after(WAIT):
                await started.wait()
            await house.service.stop(accepted.session, ANNA)
            assert (await house.answered(accepted.turn)).state == "stopped"
            rows = (await house.service.transcript(accepted.session, ANNA)).rows
            assert "stopped by its user" in rows[-1].message.text
