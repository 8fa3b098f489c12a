"""Turns in a real engine: order, limits, stops, and their traces."""

import asyncio
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core, idle
from tidegate.store import messages
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.values import Message, TextDelta, ToolEnded, TurnEnded, TurnStarted

pytestmark = pytest.mark.anyio


async def rows_of(gateway: Core, session: str) -> list[Message]:
    return [row.message for row in (await gateway.service.transcript(session, ANNA)).rows]


async def test_one_session_answers_in_the_order_of_its_messages(home: Path, model: ScriptedModel) -> None:
    """H12, S13, A9: messages that arrive while a turn runs wait for a turn of their own, first come, first served."""
    async with core(home, model=model) as gateway:
        first = await gateway.accept("[hold gate] first")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        second, third = await gateway.accept("[say 2] second"), await gateway.accept("[say 3] third")
        assert (first.how, second.how, third.how) == ("started", "queued", "queued")
        assert (second.ahead, third.ahead) == (1, 2)
        stats = gateway.components.engine.stats()
        assert (stats.running, stats.waiting) == (1, 2)
        model.release("gate")
        outcomes = [await gateway.answered(accepted.turn) for accepted in (first, second, third)]
        assert [outcome.text for outcome in outcomes][1:] == ["2", "3"]
        said = [row.text for row in await rows_of(gateway, first.session) if row.role == "user"]
        assert said == ["[hold gate] first", "[say 2] second", "[say 3] third"]


async def test_no_more_turns_run_at_once_than_the_limit_says(home: Path, model: ScriptedModel) -> None:
    """P15, L21: with limits.turns = 2 the third session waits, and gets a slot when one is free."""
    async with core(home, "[limits]\nturns = 2", model=model) as gateway:
        turns = [await gateway.accept(f"[hold gate{n}] hello", name=f"talk {n}") for n in range(4)]
        with anyio.fail_after(WAIT):
            await model.held("gate0")
            await model.held("gate1")
        stats = gateway.components.engine.stats()
        assert (stats.running, stats.waiting) == (2, 2)
        for n in range(4):
            model.release(f"gate{n}")
        for accepted in turns:
            assert (await gateway.answered(accepted.turn)).state == "answered"
        assert gateway.components.engine.stats().waiting == 0


async def test_a_long_queue_in_one_session_does_not_starve_the_others(home: Path, model: ScriptedModel) -> None:
    """P15, S36: with one slot, other waiting sessions come before the same session's next turn."""
    async with core(home, "[limits]\nturns = 1", model=model) as gateway:
        first = await gateway.accept("[hold gate] talkative 1")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        more = [await gateway.accept(f"talkative {n}") for n in (2, 3)]
        other = await gateway.accept("quiet", name="quiet")
        model.release("gate")
        for accepted in (first, *more, other):
            await gateway.answered(accepted.turn)
        order = [request["messages"][-1]["content"] for request in gateway.requests()]
        assert order.index("quiet") == 1


async def test_stopping_keeps_the_shown_text_and_the_session_continues(home: Path, model: ScriptedModel) -> None:
    """B7, L23, S16: a stopped turn ends as stopped, with the text that its user had seen."""
    async with core(home, model=model) as gateway:
        accepted = await gateway.accept("[words 50] [hang after=5]")
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        with anyio.fail_after(WAIT):
            async for batch in log.read():
                if any(isinstance(event, TextDelta) for event in batch):
                    break
            assert await gateway.service.stop(accepted.session, ANNA) == accepted.turn
        outcome = await gateway.answered(accepted.turn)
        assert outcome.state == "stopped"
        assert outcome.text and outcome.finish == "stopped"
        assert (await rows_of(gateway, accepted.session))[-1].text == outcome.text
        assert (await gateway.say("[say well] and now?")).text == "well"


async def test_stopping_in_mid_tool_leaves_no_call_without_a_result(home: Path, model: ScriptedModel) -> None:
    """P02, B7: the strict model server refuses an orphan, and the next turn is answered."""
    started = asyncio.Event()

    @tool(effect="execute")
    async def wait_for_ever(ctx: ToolContext) -> str:
        """Waits."""
        started.set()
        await asyncio.Event().wait()
        return ""

    async with core(
        home, model=model, tools='"clock", "waiting"', toolsets={"waiting": Toolset((wait_for_ever,))}
    ) as gateway:
        accepted = await gateway.accept("[together clock {} wait_for_ever {}]")
        with anyio.fail_after(WAIT):
            await started.wait()
        await gateway.service.stop(accepted.session, ANNA)
        assert (await gateway.answered(accepted.turn)).state == "stopped"
        results = [row for row in await rows_of(gateway, accepted.session) if row.role == "tool"]
        assert len(results) == 2
        assert "stopped by its user" in results[-1].text
        assert (await gateway.say("[say fine] go on")).text == "fine"
        assert gateway.model.stats()["refusals"] == []


@pytest.mark.parametrize(
    ("script", "code"),
    [("[loop clock {}]", "step_limit"), ("[status 400]", "model_invalid"), ("[status 401]", "model_authorisation")],
)
async def test_a_turn_that_fails_says_why_and_frees_its_session(
    home: Path, model: ScriptedModel, script: str, code: str
) -> None:
    """L23, B7, H22: however a turn fails, its session accepts the next message and nothing is left running."""
    async with core(home, "[limits]\nturn_steps = 3\nrepeats = 50", model=model) as gateway:
        outcome = await gateway.say(script)
        assert outcome.state == "failed"
        assert outcome.error is not None and outcome.error.code == code
        assert (await gateway.say("[say ok] again")).text == "ok"
        assert gateway.service.census()["turns_running"] == 0


async def test_a_model_that_repeats_itself_is_warned_and_then_stopped(home: Path, model: ScriptedModel) -> None:
    """L23: the same call with the same result: first a note to the model, then the end of the turn."""

    @tool(effect="read")
    async def constant(ctx: ToolContext) -> str:
        """Always the same."""
        return "same"

    async with core(
        home,
        "[limits]\nrepeats = 2",
        model=model,
        tools='"constant"',
        toolsets={"constant": Toolset((constant,))},
    ) as gateway:
        outcome = await gateway.say("[loop constant {}]")
        assert outcome.error is not None and outcome.error.code == "loop"
        assert "same tool call 4 times" in outcome.error.message
        assert any("Do something else" in str(request["messages"]) for request in gateway.requests())
        assert (await gateway.say("[say ok]")).text == "ok"


async def test_the_model_is_informed_of_an_unknown_broken_or_misused_tool(home: Path, model: ScriptedModel) -> None:
    """B7, L23: the turn continues and the model reads one sentence."""

    @tool(effect="read")
    async def breaks(ctx: ToolContext) -> str:
        """Breaks."""
        raise RuntimeError("no")

    async with core(home, model=model, tools='"clock", "breaks"', toolsets={"breaks": Toolset((breaks,))}) as gateway:
        outcome = await gateway.say('[tool breaks {}] [unknowntool] [badargs clock] [tool clock {"zone": "Nowhere/X"}]')
        assert outcome.state == "answered"
        results = [row for row in await rows_of(gateway, outcome.session) if row.role == "tool"]
        assert [row.failed for row in results] == [True] * 4
        assert "failed unexpectedly (RuntimeError)" in results[0].text
        assert "no tool named" in results[1].text


async def test_tools_that_allow_it_run_in_parallel(home: Path, model: ScriptedModel) -> None:
    """P04: neighbouring parallel calls meet each other; the model reads the results in the order of its calls."""
    here = asyncio.Barrier(2)

    @tool(effect="read", parallel=True)
    async def meet(ctx: ToolContext, *, name: str) -> str:
        """Returns when both calls have arrived."""
        await here.wait()
        return name

    async with core(home, model=model, tools='"meet"', toolsets={"meet": Toolset((meet,))}) as gateway:
        await gateway.say('[together meet {"name": "a"} meet {"name": "b"}]')
        shown = [said["content"] for said in gateway.requests()[-1]["messages"] if said["role"] == "tool"]
        assert shown == ["a", "b"]


async def test_a_turn_that_takes_too_long_fails_and_names_the_limit(home: Path, model: ScriptedModel) -> None:
    """P15, L23: limits.turn_seconds."""
    async with core(home, "[limits]\nturn_seconds = 1", model=model) as gateway:
        outcome = await gateway.say("[hang]")
        assert outcome.error is not None and "limits.turn_seconds" in outcome.error.message
        assert (await gateway.say("[say ok]")).text == "ok"


async def test_events_of_a_turn_pair_up(home: Path, model: ScriptedModel) -> None:
    """B7: a turn's log starts with its start, ends with its end, and every tool that started has ended."""
    async with core(home, model=model) as gateway:
        accepted = await gateway.accept("[tool clock {}] [say done]")
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        await gateway.answered(accepted.turn)
        events = [event async for batch in log.read() for event in batch]
        assert isinstance(events[0], TurnStarted) and isinstance(events[-1], TurnEnded)
        assert sum(isinstance(event, ToolEnded) for event in events) == 1


async def test_steering_joins_the_running_turn_between_its_steps(home: Path, model: ScriptedModel) -> None:
    """S13, S14, H13: the acknowledgement of a steered message is true, and the model reads it in the same turn."""
    async with core(home, model=model) as gateway:
        accepted = await gateway.accept("[tool clock {}] [hold gate step=0]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        steered = await gateway.accept("by the way: in UTC", busy="steer")
        assert (steered.how, steered.turn) == ("steered", accepted.turn)
        model.release("gate")
        outcome = await gateway.answered(accepted.turn)
        assert outcome.state == "answered"
        assert gateway.requests()[-1]["messages"][-1]["content"] == "by the way: in UTC"
        said = [row.text for row in await rows_of(gateway, accepted.session) if row.role == "user"]
        assert said.count("by the way: in UTC") == 1


async def test_a_message_steered_in_too_late_becomes_a_turn_of_its_own(home: Path, model: ScriptedModel) -> None:
    """S14: every accepted message is in exactly one turn, even one that arrived after the last drain."""
    async with core(home, model=model) as gateway:
        accepted = await gateway.accept("[hold gate] hello")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        steered = await gateway.accept("too late", busy="steer")
        assert steered.how == "steered"
        model.release("gate")
        await gateway.answered(accepted.turn)
        with anyio.fail_after(WAIT):
            await idle(gateway, accepted.session)
        rows = await gateway.store.read(lambda db: messages.page(db, accepted.session, after=0, limit=50))
        late = [row for row in rows if row.message.text == "too late"]
        assert len(late) == 1 and late[0].turn != accepted.turn
        assert rows[-1].message.role == "assistant" and rows[-1].turn == late[0].turn


async def test_steering_an_idle_session_starts_a_turn(home: Path, model: ScriptedModel) -> None:
    """S13: with nothing to join, the acknowledgement says that a turn has started."""
    async with core(home, model=model) as gateway:
        await gateway.say("hello")
        accepted = await gateway.accept("[say here]", busy="steer")
        assert accepted.how == "started"
        assert (await gateway.answered(accepted.turn)).text == "here"


async def test_interrupting_stops_the_running_turn_first(home: Path, model: ScriptedModel) -> None:
    """S13, H13: the acknowledgement says so, the old turn ends as stopped, the new one is answered."""
    async with core(home, model=model) as gateway:
        running = await gateway.accept("[hang] long work")
        accepted = await gateway.accept("[say new plan]", busy="interrupt")
        assert accepted.how in ("interrupting", "queued")
        assert (await gateway.answered(accepted.turn)).text == "new plan"
        assert (await gateway.answered(running.turn)).state == "stopped"


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("[say fine]", "answered"),
        ("[tool clock {}] [say after a tool]", "answered"),
        ("[status 500]", "failed"),
        ("[tool clock {}] [status 500 step=1]", "failed"),
    ],
)
async def test_an_outcome_is_the_same_live_and_from_the_store(
    home: Path, model: ScriptedModel, script: str, state: str
) -> None:
    """H18, S19: later callers get the same outcome as the first."""
    async with core(home, model=model) as gateway:
        live = await gateway.say(script)
        assert live.state == state
        assert await gateway.service.outcome(live.turn, ANNA) == live


@pytest.mark.parametrize("script", ["[words 50] [hang after=5]", "[tool clock {}] [hang step=1]"])
async def test_a_stopped_turns_outcome_is_the_same_live_and_from_the_store(
    home: Path, model: ScriptedModel, script: str
) -> None:
    """H18, S19: with the shown text, and never with text that an earlier step wrote before a tool call."""
    async with core(home, model=model) as gateway:
        accepted = await gateway.accept(script)
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        with anyio.fail_after(WAIT):
            async for batch in log.read():
                if any(isinstance(event, TextDelta | ToolEnded) for event in batch):
                    break
        await gateway.service.stop(accepted.session, ANNA)
        live = await gateway.answered(accepted.turn)
        assert live.state == "stopped"
        assert await gateway.service.outcome(live.turn, ANNA) == live
