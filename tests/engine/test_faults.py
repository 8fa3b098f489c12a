"""Faults injected at every write and every await of a turn: the session always accepts the next message."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, core, idle
from tests.effects import EffectRecord, asking, configured
from tidegate.agent import is_balanced
from tidegate.errors import StoreFull, TidegateError
from tidegate.store import messages
from tidegate.values import Message

pytestmark = pytest.mark.anyio

WRITES = 7
"""More than a turn with one tool makes: accept, answer, intent, result, settle."""


class Fault:
    """Refuses the n-th group of writes, as a full disk would."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.armed = False

    def __call__(self, point: str, *_: object) -> None:
        if self.armed and point == "before-commit":
            self.left -= 1
            if self.left == 0:
                raise StoreFull("There is no room on the disk.")


@pytest.mark.parametrize("number", range(1, WRITES + 1))
async def test_a_write_that_fails_anywhere_in_a_turn_leaves_the_session_usable(
    home: Path, model: ScriptedModel, number: int
) -> None:
    """L23, B7, P02, P05: whichever write of a turn is refused, an accepted message is answered or its failure reported,
    rows stay balanced, an executed call is not reported as not run, and the next message is accepted."""
    fault = Fault(number)
    deeds = EffectRecord()
    async with asking(home, model, deeds, config=configured(model, mode="autonomous"), fault=fault) as gateway:
        await gateway.say("first")
        fault.armed = True
        with anyio.fail_after(WAIT):
            try:
                accepted = await gateway.accept('[tool push {"what": "it"}] second')
                await gateway.service.wait(accepted.turn)
            except TidegateError:
                accepted = None
            fault.armed = False
            assert fault.left <= 0 or number > 5
            await gateway.service.recover()
            if accepted is not None:
                await idle(gateway, accepted.session)
        outcome = await gateway.say("[say third] third")
        assert outcome.text == "third"
        history = await gateway.store.read(lambda db: messages.history(db, outcome.session))
        assert is_balanced(history)
        check_deed(deeds, history)
        assert model.stats()["refusals"] == []
        assert gateway.service.census()["turns_running"] == 0


def check_deed(deeds: EffectRecord, history: list[Message]) -> None:
    """An executed call is never reported as not run, nor executed twice."""
    assert len(deeds.done) <= 1
    for said in history:
        if said.role == "tool" and deeds.done:
            assert said.text == "pushed it" or (said.interrupted and "effect is unknown" in said.text), said.text


def at_every_step(task: "asyncio.Task[object]", after: int) -> Callable[[], None]:
    """Cancels the task after `after` iterations of the event loop."""
    loop = asyncio.get_running_loop()
    left = after

    def tick() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            task.cancel()
        elif not task.done():
            loop.call_soon(tick)

    return tick


@pytest.mark.parametrize("after", [1, 2, 3, 5, 8, 12, 17, 23, 30, 40, 60, 90, 140, 200])
async def test_a_stop_at_any_moment_leaves_the_session_usable(home: Path, model: ScriptedModel, after: int) -> None:
    """L23, B7, L31, P05: the turn is stopped after n iterations of the event loop, wherever that is."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, config=configured(model, mode="autonomous")) as gateway:
        first = await gateway.say("first")
        accepted = await gateway.accept('[tool push {"what": "it"}] second')
        for _ in range(after):
            await asyncio.sleep(0)
        await gateway.service.stop(first.session, ANNA)
        outcome = await gateway.answered(accepted.turn)
        assert outcome.state in ("stopped", "answered")
        third = await gateway.say("[say third] third")
        assert third.text == "third"
        history = await gateway.store.read(lambda db: messages.history(db, first.session))
        assert is_balanced(history)
        check_deed(deeds, history)
        assert model.stats()["refusals"] == []
        assert not [task for task in asyncio.all_tasks() if accepted.turn in task.get_name()]


@pytest.mark.parametrize("after", [1, 2, 3, 5, 8, 12, 17, 23, 30, 40])
async def test_a_caller_cancelled_during_acceptance_loses_nothing(home: Path, model: ScriptedModel, after: int) -> None:
    """P01, L09: a caller that is cancelled while its message is accepted leaves either nothing or a turn that runs."""
    async with core(home, model=model) as gateway:
        await gateway.say("first")
        task = asyncio.ensure_future(gateway.accept("[say second] second"))
        asyncio.get_running_loop().call_soon(at_every_step(task, after))
        await asyncio.wait([task])
        third = await gateway.say("[say third] third")
        assert third.text == "third"
        rows = await gateway.store.read(lambda db: messages.page(db, third.session))
        said = [row.message.text for row in rows if row.message.role == "user"]
        assert said in (["first", "[say third] third"], ["first", "[say second] second", "[say third] third"])
        assert [row.message.role for row in rows] == ["user", "assistant"] * len(said)
