"""The events of running turns, however quick the turn and however long the conversation."""

from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core
from tidegate.sessions.queries import STREAM_ROWS
from tidegate.values import Event, MessageAdded, TurnEnded, TurnStarted

pytestmark = pytest.mark.anyio


async def events_until_end(gateway: Core, session: str, after: int, turn: str) -> list[tuple[int | None, Event]]:
    """The events until this turn has ended."""
    told: list[tuple[int | None, Event]] = []
    with anyio.fail_after(WAIT):
        async with aclosing(gateway.service.watch(session, ANNA, after)) as events:
            async for item in events:
                told.append(item)
                if isinstance(item[1], TurnEnded) and item[1].outcome.turn == turn:
                    return told
    raise AssertionError("the stream ended first")


async def test_start_and_end_events_of_a_turn_surround_its_rows(home: Path, model: ScriptedModel) -> None:
    """S19: even if its first row existed before the watcher arrived."""
    async with core(home, model=model) as gateway:
        session = (await gateway.say("one")).session
        for number in range(10):
            running = await gateway.accept(f"[hold gate-{number}] [say two]")
            async with anyio.create_task_group() as group:
                told: list[tuple[int | None, Event]] = []

                async def listen(after: int, turn: str, told: list[tuple[int | None, Event]] = told) -> None:
                    told.extend(await events_until_end(gateway, session, after, turn))

                group.start_soon(listen, 2 + 2 * number, running.turn)
                with anyio.fail_after(WAIT):
                    await model.held(f"gate-{number}")
                model.release(f"gate-{number}")
            kinds = [type(event) for _, event in told]
            assert kinds[:2] == [TurnStarted, MessageAdded]
            assert kinds[-2:] == [MessageAdded, TurnEnded]


async def test_no_row_is_skipped_when_a_long_conversation_is_running(home: Path, model: ScriptedModel) -> None:
    """S14, S19: all pages of rows come before the running turn."""
    async with core(home, model=model) as gateway:
        for number in range(STREAM_ROWS // 2 + 3):
            session = (await gateway.say(f"[say {number}]")).session
        running = await gateway.accept("[hold gate] [say last]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        async with anyio.create_task_group() as group:
            told: list[tuple[int | None, Event]] = []

            async def listen() -> None:
                told.extend(await events_until_end(gateway, session, 0, running.turn))

            group.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            model.release("gate")
        ids = [id for id, event in told if isinstance(event, MessageAdded)]
        assert ids == list(range(1, STREAM_ROWS + 9))


async def test_a_watcher_that_leaves_lets_go_of_the_turn_at_once(home: Path, model: ScriptedModel) -> None:
    """L31, H15: a turn knows at once that its reader has left."""
    async with core(home, model=model) as gateway:
        running = await gateway.accept("[hold gate]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
            log = gateway.service.turn_log(running.turn)
            assert log is not None
            async with aclosing(gateway.service.watch(running.session, ANNA, 0)) as events:
                await anext(events)
                assert log.readers == 1
            assert log.readers == 0
        model.release("gate")
        await gateway.answered(running.turn)
