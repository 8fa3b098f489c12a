"""Tools that need an approval, and turns that wait for one: for the tests of approvals in every package."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, OWNER, WAIT, Core, core, live_turn, settings
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.values import Event, QuestionAnswered, QuestionAsked

ALL = '"clock", "deeds", "ask"'


class EffectRecord:
    """Tools with effects, and a record of the effects, which outlives a core as real effects do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.started = anyio.Event()
        self.goes_on = anyio.Event()

    def toolset(self) -> Toolset:
        @tool(effect="write", contained=True, parallel=True)
        async def push(ctx: ToolContext, *, what: str, force: bool = False) -> str:
            """Pushes something."""
            self.done.append(what)
            return f"pushed {what}"

        @tool(effect="write", contained=True)
        async def note(ctx: ToolContext, *, what: str) -> str:
            """Writes a note."""
            ctx.progress("writing\n")
            self.done.append(what)
            return "noted"

        @tool(effect="execute", contained=True)
        async def build(ctx: ToolContext, *, what: str) -> str:
            """Builds something in the session's sandbox."""
            self.done.append(what)
            return f"built {what}"

        @tool(effect="execute", timeout=None)
        async def deploy(ctx: ToolContext, *, what: str) -> str:
            """Does something outside the sandbox."""
            self.done.append(what)
            return f"deployed {what}"

        @tool(effect="write", contained=True, parallel=True, timeout=None)
        async def linger(ctx: ToolContext, *, what: str, then: str = "") -> str:
            """Takes its time, and may then ask a question."""
            self.done.append(what)
            self.started.set()
            await self.goes_on.wait()
            return await ctx.ask(then, ()) if then else "lingered"

        @tool(effect="read", timeout=0.2)
        async def hurry(ctx: ToolContext) -> str:
            """Asks, and times out before the answer."""
            return await ctx.ask("Quick!", ())

        @tool(effect="read", timeout=None)
        async def insist(ctx: ToolContext, *, times: int) -> str:
            """Asks the same question several times."""
            return ", ".join([await ctx.ask("Sure?", ("yes", "no")) for _ in range(times)])

        return Toolset((push, note, build, deploy, linger, hurry, insist))


def configured(
    model: ScriptedModel, extra: str = "", *, mode: str = "balanced", rules: Sequence[str] = (), agent: str = ""
) -> str:
    """An agent that asks before it pushes or lingers, unless `rules` say otherwise."""
    lines = [*rules, *(("ask push", "ask linger") if mode == "balanced" else ())]
    text = settings(model, extra, tools=ALL)
    return text.replace('approvals = "autonomous"', f'approvals = "{mode}"\nrules = {json.dumps(lines)}\n{agent}')


def asking(
    home: Path, model: ScriptedModel, deeds: EffectRecord, extra: str = "", *, config: str = "", **options: Any
) -> AbstractAsyncContextManager[Core]:
    toolsets = {"deeds": deeds.toolset()}

    @asynccontextmanager
    async def entered() -> Any:
        toml = config or configured(model, extra)
        async with core(home, model=model, toml=toml, toolsets=toolsets, **options) as gateway:
            await gateway.know(OWNER, ANNA, BERT)
            yield gateway

    return entered()


async def ask(
    gateway: Core, text: str = '[tool push {"what": "a"}] [say done]', **fields: Any
) -> tuple[str, list[QuestionAsked]]:
    """Starts a turn that waits for a person; returns the turn and its questions."""
    accepted = await gateway.accept(text, **{"channel": "page", **fields})
    return accepted.turn, await asked(gateway, accepted.turn)


async def asked(gateway: Core, turn: str, count: int = 1) -> list[QuestionAsked]:
    """The questions of the turn, once it has asked `count` of them and waits for the answers."""
    log = gateway.service.turn_log(turn)
    assert log is not None, "the turn has ended"
    found: list[QuestionAsked] = []
    with anyio.fail_after(WAIT):
        async with aclosing(log.read()) as batches:
            async for batch in batches:
                found += [event for event in batch if isinstance(event, QuestionAsked)]
                if len(found) >= count:
                    break
    assert len(found) >= count, f"the turn ended and had asked {found}"
    live = live_turn(gateway, log.session)
    await until(lambda: live.questions == _open(log.events))
    return found


def _open(events: Sequence[Event]) -> int:
    return sum(isinstance(event, QuestionAsked) - isinstance(event, QuestionAnswered) for event in events)


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(WAIT):
        while not holds():
            await anyio.sleep(0.001)


def results(gateway: Core) -> list[str]:
    """The tool results in the last request to the model."""
    return [message["content"] for message in gateway.requests()[-1]["messages"] if message["role"] == "tool"]
