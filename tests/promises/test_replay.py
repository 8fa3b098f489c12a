"""Journal replay: a turn that is cut off anywhere ends with the same rows and requests as an uninterrupted one."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core, idle
from tidegate.store import intents, messages
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.values import Message

pytestmark = pytest.mark.anyio

STEPS = 4
SCRIPT = '[tool note {"text": "a"}] [together note {"text": "b"} look {}] [tool look {}] [say the end]'


class Tools:
    """A writing and a reading tool with constant results, which count how often they ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool(effect="write")
        async def note(ctx: ToolContext, *, text: str) -> str:
            """Notes."""
            self.ran.append(text)
            return f"noted {text}"

        @tool(effect="read")
        async def look(ctx: ToolContext) -> str:
            """Looks."""
            self.ran.append("look")
            return "nothing new"

        self.options: dict[str, Any] = {"tools": '"both"', "toolsets": {"both": Toolset((note, look))}}


async def journal_of(gateway: Core, turn: str) -> list[tuple[str | None, Message]]:
    """The journal without token counts, which depend on the provider's cache."""
    rows = await gateway.store.read(lambda db: messages.journal(db, turn))
    return [(row.step, msgspec.structs.replace(row.message, usage=None)) for row in rows]


def bodies(model: ScriptedModel) -> list[bytes]:
    """The distinct requests: a call that was cut off is repeated with the same bytes."""
    return list(dict.fromkeys(request.body for request in model.recorded))


@pytest.mark.parametrize("cut", range(STEPS))
@pytest.mark.parametrize("stop", ["kill", "park"])
async def test_a_turn_cut_off_before_any_step_ends_like_an_uninterrupted_one(
    tmp_path: Path, cut: int, stop: str
) -> None:
    """P06, P02, P03, F4, S32: the same steps, the same rows and the same requests; no tool runs twice."""
    script = f"{SCRIPT} [hold gate step={cut} times=1]"
    async with ScriptedModel() as model:
        model.release("gate")
        whole = Tools()
        async with core(tmp_path / "whole", model=model, **whole.options) as gateway:
            undisturbed = await gateway.say(script)
            expected = await journal_of(gateway, undisturbed.turn)
        asked = bodies(model)
    async with ScriptedModel() as model:
        tools = Tools()
        async with core(
            tmp_path / "cut", model=model, drain=None if stop == "kill" else 0.01, **tools.options
        ) as gateway:
            accepted = await gateway.accept(script)
            with anyio.fail_after(WAIT):
                await model.held("gate")
        async with core(tmp_path / "cut", model=model, **tools.options) as gateway:
            outcome = await gateway.answered(accepted.turn)
            assert (outcome.state, outcome.text) == ("answered", undisturbed.text)
            assert await journal_of(gateway, accepted.turn) == expected
            assert (outcome.usage.output, outcome.steps) == (undisturbed.usage.output, undisturbed.steps)
        assert bodies(model) == asked
        assert tools.ran == whole.ran == ["a", "b", "look", "look"]
        assert model.stats()["refusals"] == []


async def test_of_parallel_calls_only_the_interrupted_one_is_unknown(home: Path, model: ScriptedModel) -> None:
    """P05, P02, P04, F4: a committed result stays, a writing call in flight is reported as unknown, a reading one runs
    again, one that had not started runs once; and the model gets the results in the order of its calls."""
    begun = {name: asyncio.Event() for name in ("reading", "writing")}
    ran: list[str] = []

    async def work(name: str) -> str:
        ran.append(name)
        if name in begun and not begun[name].is_set():
            begun[name].set()
            await asyncio.Event().wait()
        return f"{name} done"

    @tool(effect="write", parallel=True)
    async def write(ctx: ToolContext, *, name: str) -> str:
        """Writes."""
        return await work(name)

    @tool(effect="read", parallel=True)
    async def read(ctx: ToolContext, *, name: str) -> str:
        """Reads."""
        return await work(name)

    options: dict[str, Any] = {"tools": '"both"', "toolsets": {"both": Toolset((write, read))}}
    script = (
        '[together read {"name": "reading"} write {"name": "quick"} write {"name": "writing"} write {"name": "late"}] '
        "[say well]"
    )
    async with core(home, "[limits]\ntools_parallel = 3", model=model, drain=None, **options) as gateway:
        accepted = await gateway.accept(script)
        with anyio.fail_after(WAIT):
            for event in begun.values():
                await event.wait()
            while "tool-0-1" not in [step for step, _ in await journal_of(gateway, accepted.turn)]:
                await anyio.sleep(0.001)
        assert len(await gateway.store.read(intents.open_of, accepted.turn)) == 2
    async with core(home, "[limits]\ntools_parallel = 3", model=model, **options) as gateway:
        assert (await gateway.answered(accepted.turn)).text == "well"
        assert await gateway.store.read(intents.open_of, accepted.turn) == {}
        shown = [said["content"] for said in gateway.requests()[-1]["messages"] if said["role"] == "tool"]
        assert [shown[0], shown[1], shown[3]] == ["reading done", "quick done", "late done"]
        assert "effect is unknown" in shown[2]
        assert sorted(ran) == ["late", "quick", "reading", "reading", "writing"]
        gateway.components.presence.unload(accepted.session, reason="test")
        before = model.recorded[-1].body
        await gateway.say("next")
        assert model.recorded[-1].body.startswith(before.removesuffix(b"]}"))
        assert model.stats()["refusals"] == []


@pytest.mark.parametrize("cut", [0, 1, 2])
async def test_steered_messages_are_read_at_the_same_step_again(home: Path, model: ScriptedModel, cut: int) -> None:
    """S14, P06, P01: three messages, steered before each of three steps, whichever step is cut off."""
    many = "[limits]\nrepeats = 50"

    def message(number: int) -> str:
        return f"{number} [tool clock {{}}] [hold gate{number} step=0]"

    async with core(home, many, model=model, drain=None) as gateway:
        accepted = await gateway.accept(message(0))
        for number in range(cut + 1):
            with anyio.fail_after(WAIT):
                await model.held(f"gate{number}")
            await gateway.accept(message(number + 1), busy="steer")
            if number < cut:
                model.release(f"gate{number}")
        cut_off = [row.body for row in model.recorded]
    for number in range(cut + 2):
        model.release(f"gate{number}")
    async with core(home, many, model=model) as gateway:
        assert (await gateway.answered(accepted.turn)).state == "answered"
        with anyio.fail_after(WAIT):
            await idle(gateway, accepted.session)
        rows = (await gateway.service.transcript(accepted.session, ANNA)).rows
        said = [row.message.text.partition(" ")[0] for row in rows if row.message.role == "user"]
        assert said == [str(number) for number in range(cut + 2)]
        asked = list(dict.fromkeys(request.body for request in model.recorded))
        assert asked[: len(cut_off)] == cut_off
        for earlier, later in itertools.pairwise(asked):
            assert later.startswith(earlier.removesuffix(b"]}"))
        assert model.stats()["refusals"] == []
