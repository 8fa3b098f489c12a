"""The end of a turn after an attempt, and the traces of a tool call while it runs."""

import contextlib
import time
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import WAIT, core
from tests.store.rows import new_session, new_turn
from tidegate.engine import TakenTurn
from tidegate.engine.journal import Journal
from tidegate.engine.live_turn import LiveTurn
from tidegate.engine.turn_end import Attempt, billing_of, turn_end
from tidegate.engine.turn_start import start
from tidegate.store import Db, StopRequest, Store, intents, sessions, turns
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.values import Message

pytestmark = pytest.mark.anyio


def taken(db: Db) -> TakenTurn:
    new_session(db, "s_1")
    new_turn(db, "s_1", "t_1", "hello")
    turn, session = turns.take(db, "t_1", 1.0), sessions.get(db, "s_1")
    assert session is not None
    return TakenTurn(turn=turn, session=session, settings=())


@pytest.mark.parametrize("answered", [True, False])
async def test_a_complete_answer_is_kept_if_a_stop_comes_at_the_same_moment(tmp_path: Path, answered: bool) -> None:
    """B7, S14, S16: a turn whose answer was not complete ends as stopped."""
    async with Store.open(tmp_path / "tidegate.db") as store:
        live, attempt = LiveTurn("t_1", "s_1"), Attempt()
        attempt.taken = started = await store.write(taken)
        attempt.journal = journal = Journal(
            live,
            store,
            billing_of(started.turn, started.session),
            fence=started.turn.fence,
            incoming=(),
            recorded=(),
            open_intents={},
            parking=lambda: False,
            waiting_for_person=contextlib.nullcontext,
            clock=time.time,
        )

        async def answer() -> Message:
            return Message(role="assistant", text="done", finish="stop")

        if answered:
            await journal.step("model-0", answer, ends=lambda message: True)
        live.stop("by its user")
        end = turn_end(live, attempt, started, (live.usage, journal.steps))
    assert end.state == ("answered" if answered else "stopped")
    assert [message.text for _, message in end.final_rows] == (["done"] if answered else [])
    assert (end.error is None) == answered


async def test_the_intent_of_a_tool_is_gone_when_its_result_is_committed(home: Path, model: ScriptedModel) -> None:
    """P05: an intent that is still there means that the effect is unknown."""
    seen: list[dict[str, str]] = []

    @tool(effect="execute")
    async def push(ctx: ToolContext) -> str:
        """Reads its own intent."""
        seen.append(await gateway.store.read(intents.open_of, ctx.turn))
        return "pushed"

    async with core(home, model=model, tools='"push"', toolsets={"push": Toolset((push,))}) as gateway:
        accepted = await gateway.accept("[tool push {}] [hold gate step=1] [say done]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        assert [[intent.tool for intent in steps.values()] for steps in seen] == [["push"]]
        assert await gateway.store.read(intents.open_of, accepted.turn) == {}
        model.release("gate")
        assert (await gateway.answered(accepted.turn)).text == "done"


async def test_a_turn_that_is_to_stop_is_not_taken_again(tmp_path: Path) -> None:
    """L21, F4: an attempt after a crash finds the reason instead; the turn waits to be settled."""
    async with Store.open(tmp_path / "tidegate.db") as store:
        await store.write(taken)
        await store.write(turns.request_stop, "t_1", StopRequest("by its user"))
        assert await store.write(start, "t_1", 2.0) == StopRequest("by its user")
        row = await store.read(turns.get, "t_1")
        assert row is not None and (row.state, row.fence) == ("running", 1)
