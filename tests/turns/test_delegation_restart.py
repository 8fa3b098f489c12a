"""Tasks across a stop or a crash of the gateway: they continue with their parent turn, or not at all."""

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT
from tests.tasks import configured, delegating, result, rows, task, until_idle
from tidegate.errors import Stopping
from tidegate.store import sessions, turns
from tidegate.tools import ToolContext, Toolset, tool

pytestmark = pytest.mark.anyio

SAID = f"{task('helper', '[hold gate] [say found]')} [say done]"


@pytest.mark.parametrize("drain", [None, 0.05])
@pytest.mark.parametrize("places", [1, 4])
async def test_a_task_that_ran_goes_on_with_its_turn(
    home: Path, model: ScriptedModel, drain: float | None, places: int
) -> None:
    """F1, F4, V01: killed or stopped; neither is a failure, and a stop uses up no resume."""
    limits = f"[limits]\nturns = {places}\nresumes = {1 if drain is None else 0}"
    async with delegating(home, model, limits, drain=drain) as gateway:
        accepted = await gateway.accept(SAID)
        with anyio.fail_after(WAIT):
            await model.held("gate")
    model.release("gate")
    async with delegating(home, model, limits) as gateway:
        outcome = await gateway.answered(accepted.turn)
        assert (outcome.state, outcome.text) == ("answered", "done")
        assert result(gateway) == ["The answer from agent 'helper':\n\nfound"]
        await until_idle(gateway)
        assert (await rows(gateway))["sessions"] == 1 and (await rows(gateway))["receipts"] == 0


async def test_a_stop_lets_a_turn_and_its_tasks_finish_within_the_budget(home: Path, model: ScriptedModel) -> None:
    """F1: messages are no longer accepted, but running turns may still give tasks."""
    async with delegating(home, model, "[limits]\nturns = 1") as gateway:
        inner = task("second", "[say a]", together=(("second", "[say b]"),)) + " [say inner]"
        accepted = await gateway.accept(f"[hold gate step=0] {task('helper', inner)} [say outer]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
            async with anyio.create_task_group() as group:
                group.start_soon(gateway.service.drain, WAIT)
                with pytest.raises(Stopping):
                    while True:
                        await gateway.accept("[say too late]", "other")
                model.release("gate")
        outcome = await gateway.service.outcome(accepted.turn, ANNA)
        assert (outcome.state, outcome.text) == ("answered", "outer")


async def test_a_turn_that_is_stopping_gives_no_task_and_goes_on_with_it_later(
    home: Path, model: ScriptedModel
) -> None:
    """F1, V01: the turn is parked in the delegating call."""
    reached, goes_on = asyncio.Event(), asyncio.Event()

    @tool(effect="read", timeout=None)
    async def wait(ctx: ToolContext) -> str:
        """Waits."""
        reached.set()
        await goes_on.wait()
        return "waited"

    options: dict[str, Any] = {"toolsets": {"wait": Toolset((wait,))}}
    said = f"[tool wait {{}}] {task('second', '[say found]')} [say done]"
    async with delegating(home, model, **options, drain=None) as gateway:
        accepted = await gateway.accept(said)
        with anyio.fail_after(WAIT):
            await reached.wait()
            async with anyio.create_task_group() as group:
                group.start_soon(gateway.service.drain, 0.01)
                while gateway.components.engine.can_start(accepted.turn):
                    await anyio.sleep(0.001)
                goes_on.set()
    async with delegating(home, model, **options) as gateway:
        assert (await gateway.answered(accepted.turn)).text == "done"


@pytest.mark.parametrize("why", ["one-shot", "ended", "agent gone"])
async def test_a_task_of_a_turn_that_is_not_resumed_is_stopped_and_leaves_nothing(
    home: Path, model: ScriptedModel, why: str
) -> None:
    """F4, S17, S18: for whatever reason, at the next start, with its folder; no model is called for it again."""
    said = task("helper", '[tool write_file {"path": "a", "content": "b"}] ' + task("second", "[hold gate]"))
    async with delegating(home, model, drain=None) as gateway:
        accepted = await gateway.accept(said, None if why == "one-shot" else "talk")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        assert (await rows(gateway))["sessions"] == 3 and list((home / "workspaces").iterdir())
        if why == "ended":
            await gateway.store.write(
                lambda db: sessions.end(db, accepted.session, reason="new", hooks=(), now=gateway.components.clock())
            )
    asked = model.counts["requests"]
    toml = configured(model, "")
    if why == "agent gone":
        toml = toml.replace("[agents.main]", "[agents.another]", 1)
    model.release("gate")
    async with delegating(home, model, toml=toml) as gateway:
        await until_idle(gateway)
        if why != "one-shot":
            state = "stopped" if why == "ended" else "failed"
            assert (await gateway.service.outcome(accepted.turn, ANNA)).state == state
        left = await rows(gateway)
        assert (left["sessions"], left["receipts"], left["workspaces"]) == (0 if why == "one-shot" else 1, 0, 0)
        for chore in gateway.service.maintenance_tasks():
            if chore.name == "folders":  # what lies there for a session that is gone is nobody's
                await chore.run()
        assert not list((home / "workspaces").iterdir())
        if why != "agent gone":  # then the task may have gone on until its turn was found not to
            assert model.counts["requests"] == asked
        assert not any(count for name, count in gateway.service.census().items() if name != "residents")


@pytest.mark.parametrize("resumes", [0, 1])
async def test_a_task_that_kills_the_gateway_is_given_up_and_reported_to_its_turn(
    home: Path, model: ScriptedModel, resumes: int
) -> None:
    """S17, L23: its waiting parent is not given up with it."""
    limits = f"[limits]\nresumes = {resumes}"
    async with delegating(home, model, limits, drain=None) as gateway:
        accepted = await gateway.accept(f"{task('second', '[hang]')} [say so be it]")
        with anyio.fail_after(WAIT):
            while model.counts["requests"] < 2:
                await anyio.sleep(0.001)
    for _ in range(resumes):
        asked = model.counts["requests"]
        async with delegating(home, model, limits, drain=None):
            with anyio.fail_after(WAIT):
                while model.counts["requests"] <= asked:
                    await anyio.sleep(0.001)
    async with delegating(home, model, limits) as gateway:
        outcome = await gateway.answered(accepted.turn)
        assert (outcome.state, outcome.text) == ("answered", "so be it")
        assert f"limits.resumes is {resumes}" in result(gateway)[0]
        assert result(gateway)[0].startswith("The agent 'second' failed")


async def test_a_task_that_failed_before_a_crash_is_not_tried_again(home: Path, model: ScriptedModel) -> None:
    """F4: even if the failure suggests a retry: the delegating agent decides."""
    reached = asyncio.Event()

    @tool(effect="read", parallel=True, timeout=None)
    async def wait(ctx: ToolContext) -> str:
        """Waits, the first time."""
        if reached.is_set():
            return "over"
        reached.set()
        await asyncio.Event().wait()
        return ""

    options: dict[str, Any] = {"toolsets": {"wait": Toolset((wait,))}}
    both = task("second", "[status 503]")[:-1].replace("[tool", "[together") + " wait {}]"
    async with delegating(home, model, drain=None, **options) as gateway:
        accepted = await gateway.accept(f"{both} [say done]")
        with anyio.fail_after(WAIT):
            await reached.wait()
            while (await rows(gateway))["sessions"] != 1 or model.counts["requests"] < 2:
                await anyio.sleep(0.001)
        # What the crash is to come before: the result of the call is in the journal.
        await gateway.store.write(lambda db: db.execute("DELETE FROM messages WHERE step = 'tool-0-0'"))
        await gateway.store.write(
            lambda db: db.execute(
                "INSERT OR IGNORE INTO intents(turn, step, tool, at) VALUES(?, 'tool-0-0', 'delegate', 1)",
                (accepted.turn,),
            )
        )
        asked = model.counts["requests"]
    async with delegating(home, model, **options) as gateway:
        assert (await gateway.answered(accepted.turn)).text == "done"
        assert model.counts["requests"] == asked + 1
        assert result(gateway)[0].startswith("The agent 'second' failed")


async def test_a_turn_counts_no_resume_while_a_task_of_its_is_open(home: Path, model: ScriptedModel) -> None:
    """S17: waiting does not bring the process down."""
    async with delegating(home, model, "[limits]\nresumes = 5", drain=None) as gateway:
        accepted = await gateway.accept(SAID)
        with anyio.fail_after(WAIT):
            await model.held("gate")
    for _ in range(2):
        async with delegating(home, model, "[limits]\nresumes = 5", drain=None) as gateway:
            with anyio.fail_after(WAIT):
                while gateway.service.status().turns.delegating != 1:
                    await anyio.sleep(0.001)
            row = await gateway.store.read(turns.get, accepted.turn)
            assert row is not None and row.attempts == 1
    model.release("gate")
    async with delegating(home, model) as gateway:
        assert (await gateway.answered(accepted.turn)).text == "done"


@pytest.mark.parametrize("drain", [None, 0.05])
async def test_a_task_that_goes_on_finds_its_files(home: Path, model: ScriptedModel, drain: float | None) -> None:
    """V10, F1, F4: its folder is removed with its answer, and not before."""
    write = '[tool write_file {"path": "a.txt", "content": "kept"}]'
    said = task("helper", f'{write} [tool list_files {{}}] [hold gate step=1] [tool read_file {{"path": "a.txt"}}]')
    async with delegating(home, model, drain=drain) as gateway:
        accepted = await gateway.accept(f"{said} [say done]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
    model.release("gate")
    async with delegating(home, model) as gateway:
        assert (await gateway.answered(accepted.turn)).text == "done"
        assert "kept" in result(gateway, -2)[-1]
        await until_idle(gateway)
        assert not list((home / "workspaces").iterdir())
