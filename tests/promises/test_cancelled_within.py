"""Cancellations from inside a turn: if something that a turn waits for is cancelled, that is a failure like any other.

Only a stop of the turn itself stops it.
"""

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
    """Exits as if it were a program."""
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
async def test_a_tool_that_is_cancelled_from_within_fails_and_its_turn_continues(
    home: Path, model: ScriptedModel, script: str
) -> None:
    """L23, B7, P02: every call has a result, the turn is answered, and the session accepts the next message."""
    toolsets = {"odd": Toolset((give_up, leave))}
    async with core(home, model=model, tools='"clock", "odd"', toolsets=toolsets) as gateway:
        outcome = await gateway.say(f"{script} [say after all]")
        assert (outcome.state, outcome.text) == ("answered", "after all")
        rows = (await gateway.service.transcript(outcome.session, ANNA)).rows
        broken = [row.message for row in rows if row.message.role == "tool" and row.message.name != "clock"]
        assert broken and all(said.failed and "failed unexpectedly" in said.text for said in broken)
        assert (await gateway.say("[say next]")).text == "next"
        assert model.stats()["refusals"] == []


async def test_a_turn_that_is_cancelled_from_within_fails_and_frees_its_session(
    home: Path, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L23, B7: the caller is told, nothing is left running in the store, and the next message is answered."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        record = gateway.components.presence.get(first.session)
        assert record is not None and record.resident is not None

        async def cancelled(*_: object, **__: object) -> Message:
            awaited = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(awaited.cancel)
            await awaited
            raise AssertionError

        with monkeypatch.context() as patched:
            patched.setattr(type(record.resident), "ask", cancelled)
            outcome = await gateway.say("two")
        assert outcome.state == "failed"
        assert outcome.error is not None and outcome.error.code == "internal"
        assert (await gateway.say("[say three]")).text == "three"
        assert is_balanced(await gateway.store.read(lambda db: messages.history(db, first.session)))
        assert gateway.service.census()["turns_running"] == 0


async def test_a_stop_is_no_failure_of_the_tool(home: Path, model: ScriptedModel) -> None:
    """S16, B7: in contrast, stopping the turn during a tool, alone or beside others, counts as a stop."""
    started = asyncio.Event()

    @tool(effect="execute", parallel=True)
    async def wait(ctx: ToolContext) -> str:
        """Waits."""
        started.set()
        await asyncio.Event().wait()
        return ""

    async with core(home, model=model, tools='"wait"', toolsets={"wait": Toolset((wait,))}) as gateway:
        for script in ("[tool wait {}]", "[together wait {} wait {}]"):
            started.clear()
            accepted = await gateway.accept(script)
            with anyio.fail_after(WAIT):
                await started.wait()
            await gateway.service.stop(accepted.session, ANNA)
            assert (await gateway.answered(accepted.turn)).state == "stopped"
            rows = (await gateway.service.transcript(accepted.session, ANNA)).rows
            assert "stopped by its user" in rows[-1].message.text
