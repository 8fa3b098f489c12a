"""Messages that their turn did not read: each is answered, or is in the transcript with a notice that says why not."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core, live_turn
from tests.effects import until
from tests.store.rows import sessions_with
from tidegate.agent import is_balanced
from tidegate.sessions.lifecycle import HookPostponed, Write
from tidegate.slash_commands import build
from tidegate.store import SessionRow, messages, sessions
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.values import Acceptance, Event, MessageAdded, Notice, TurnEnded

pytestmark = pytest.mark.anyio

UNANSWERED = "2 messages are not answered, because the conversation ended first; send them again in a new one."


class Held:
    """A turn with a tool that does not return, two messages steered into it, and two queued behind it."""

    def __init__(self) -> None:
        self.runs = anyio.Event()
        self.goes_on = anyio.Event()

    def options(self, model: ScriptedModel) -> dict[str, Any]:
        @tool(effect="write", timeout=None)
        async def wait(ctx: ToolContext) -> str:
            """Waits."""
            self.runs.set()
            await self.goes_on.wait()
            return "waited"

        return {"model": model, "tools": '"wait"', "toolsets": {"wait": Toolset((wait,))}}

    async def begin(self, gateway: Core) -> tuple[Acceptance, list[Acceptance]]:
        """The running turn, and the two waiting ones."""
        running = await gateway.accept("[tool wait {}] [say done]")
        with anyio.fail_after(WAIT):
            await self.runs.wait()
        queued = []
        for number in (1, 2):
            assert (await gateway.accept(f"steered {number}", busy="steer")).turn == running.turn
            queued.append(await gateway.accept(f"queued {number}"))
        return running, queued


LATE = ["steered 1", "queued 1", "steered 2", "queued 2"]
"""In the order of acceptance."""


async def _new(gateway: Core, session: str) -> None:
    await build(gateway.service).run("/new", principal=ANNA, channel="page", session=session, agent="main")


async def _end(gateway: Core, session: str) -> None:
    await gateway.service.end(session, ANNA, "api")


async def _delete(gateway: Core, session: str) -> None:
    assert not await gateway.service.delete(session, ANNA), "a hook keeps the rows"


async def unready(session: SessionRow) -> Write | None:
    raise HookPostponed


async def check(gateway: Core, running: Acceptance, queued: list[Acceptance]) -> None:
    """Checks every place where the senders may look."""
    outcome = await gateway.service.outcome(running.turn, ANNA)
    assert outcome.notices == (UNANSWERED,)
    for accepted in queued:
        refused = await gateway.service.outcome(accepted.turn, ANNA)
        assert refused.state == "refused" and refused.error is not None
        assert refused.error.code == "session_ended" and "send it again" in refused.error.message
    rows = (await gateway.service.transcript(running.session, ANNA)).rows
    late = [row for row in rows if row.message.unanswered]
    assert [row.message.text for row in late] == LATE
    assert list(rows[-4:]) == late and all("not answered" in row.message.aside for row in late)
    assert [row.turn for row in late] == [running.turn, queued[0].turn, running.turn, queued[1].turn]
    assert is_balanced([row.message for row in rows])
    exported = [json.loads(line) async for line in gateway.service.export(running.session, ANNA)]
    told = [row["message"]["text"] for row in exported[1:] if row["message"].get("unanswered")]
    assert told == LATE
    assert await sessions_with(gateway.store, "steered 2", principal=ANNA.id, ended=True) == [running.session]


@pytest.mark.parametrize("way", [_new, _end, _delete])
async def test_messages_left_unanswered_by_an_end_are_shown_everywhere(
    home: Path, model: ScriptedModel, way: Callable[[Core, str], Awaitable[None]]
) -> None:
    """S14, V05, V19, B3: in the turn whose id the sender received, in the transcript, in an export, on the streams, now
    and after a restart; steered and queued messages alike."""
    held = Held()
    told: list[Event] = []
    async with core(home, hooks={"unready": unready}, **held.options(model)) as gateway:
        running, queued = await held.begin(gateway)
        log = gateway.service.turn_log(running.turn)
        assert log is not None

        async def watch() -> None:
            async for _, event in gateway.service.watch(running.session, ANNA):
                told.append(event)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await until(lambda: len(told) > 1)
            await way(gateway, running.session)
        added = [event for event in told if isinstance(event, MessageAdded)]
        assert [event.seq for event in added] == list(range(1, len(added) + 1))
        assert [event.message.text for event in added if event.message.unanswered] == LATE
        assert Notice(text=UNANSWERED) in told and Notice(text=UNANSWERED) in log.events
        last = log.events[-1]
        assert isinstance(last, TurnEnded) and last.outcome == await gateway.service.outcome(running.turn, ANNA)
        await check(gateway, running, queued)
    async with core(home, hooks={"unready": unready}, **held.options(model)) as gateway:
        if way is not _delete:
            await check(gateway, running, queued)


async def test_unanswered_messages_of_an_idle_session_are_shown(home: Path, model: ScriptedModel) -> None:
    """S14, V05: nothing ran in the session; its end moves waiting messages into the transcript at once."""
    async with core(home, "[limits]\nturns = 1", model=model) as gateway:
        running = await gateway.accept("[hold gate]", name="other")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        waiting = await gateway.accept("hello")
        await gateway.service.end(waiting.session, ANNA, "new")
        assert (await gateway.answered(waiting.turn)).state == "refused"
        [row] = (await gateway.service.transcript(waiting.session, ANNA)).rows
        assert (row.message.text, row.message.unanswered, row.turn) == ("hello", True, waiting.turn)
        model.release("gate")
        await gateway.answered(running.turn)


async def test_a_crash_between_the_end_and_its_turn_keeps_the_messages(home: Path, model: ScriptedModel) -> None:
    """S14, F4, V05: the next start settles the turn, and the messages follow it."""
    held = Held()
    async with core(home, drain=None, **held.options(model)) as gateway:
        running, queued = await held.begin(gateway)
        await gateway.store.write(sessions.end, running.session, reason="new", hooks=(), now=gateway.components.clock())
        rows = (await gateway.service.transcript(running.session, ANNA)).rows
        assert not any(row.message.unanswered for row in rows), "the rows of the turn come first"
    async with core(home, **held.options(model)) as gateway:
        await gateway.answered(running.turn)
        await check(gateway, running, queued)


async def test_a_turn_that_answers_after_its_session_ended_leaves_unread_messages_unanswered(
    home: Path, model: ScriptedModel
) -> None:
    """S02, S14, B7: the turn is settled with its answer; the steered message follows it."""
    async with core(home, model=model) as gateway:
        accepted = await gateway.accept("[hold gate]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        await gateway.accept("steered", busy="steer")
        await gateway.store.write(
            sessions.end, accepted.session, reason="new", hooks=(), now=gateway.components.clock()
        )
        model.release("gate")
        outcome = await gateway.answered(accepted.turn)
        assert outcome.state == "answered"
        assert outcome.notices == (UNANSWERED.replace("2 messages are", "1 message is").replace("them", "it"),)
        rows = (await gateway.service.transcript(accepted.session, ANNA)).rows
        assert [(row.message.role, row.message.unanswered) for row in rows] == [
            ("user", False),
            ("assistant", False),
            ("user", True),
        ]
        assert gateway.service.census()["turns_running"] == 0


async def test_a_transcript_with_unanswered_messages_can_be_resumed_and_the_model_reads_them(
    home: Path, model: ScriptedModel
) -> None:
    """S14, V16, P02: /resume of the ended session; the provider accepts every request, and the model reads the
    unanswered messages."""
    held = Held()
    async with core(home, **held.options(model)) as gateway:
        running, _ = await held.begin(gateway)
        await gateway.service.end(running.session, ANNA, "new")
        again, is_new = await gateway.service.operations.resume(running.session, ANNA)
        assert is_new
        outcome = await gateway.say("[say welcome back]", name=None, session=again)
        assert outcome.text == "welcome back"
        said = json.dumps(gateway.requests()[-1]["messages"])
        assert all(text in said for text in LATE) and said.count(messages.ENDED_FIRST) == len(LATE)
        assert model.stats()["refusals"] == []


async def _stop(gateway: Core, accepted: Acceptance, held: Held) -> None:
    await gateway.service.stop(accepted.session, ANNA)


async def _interrupt(gateway: Core, accepted: Acceptance, held: Held) -> None:
    await gateway.accept("[say newer]", busy="interrupt")


async def _time_over(gateway: Core, accepted: Acceptance, held: Held) -> None:
    live = live_turn(gateway, accepted.session)
    live.expire()


@pytest.mark.parametrize("way", [_stop, _interrupt, _time_over])
async def test_in_a_live_session_the_next_turn_answers_late_messages_and_the_first_names_it(
    home: Path, model: ScriptedModel, way: Callable[[Core, Acceptance, Held], Awaitable[None]]
) -> None:
    """S14, S13, B7: the outcome of the turn that the message was steered into says which turn answers it."""
    held = Held()
    async with core(home, **held.options(model)) as gateway:
        accepted = await gateway.accept("[tool wait {}] [say done]")
        with anyio.fail_after(WAIT):
            await held.runs.wait()
        await gateway.accept("[say to you too] steered", busy="steer")
        await way(gateway, accepted, held)
        outcome = await gateway.answered(accepted.turn)
        await check_spilled(gateway, accepted, outcome.notices)


async def check_spilled(gateway: Core, accepted: Acceptance, notices: tuple[str, ...]) -> None:
    [notice] = notices
    turn = notice.removesuffix(".").split()[-1]
    assert notice == f"1 message came too late for this turn and is answered next, by turn {turn}."
    assert (await gateway.service.outcome(accepted.turn, ANNA)).notices == notices
    assert (await gateway.answered(turn)).text == "to you too"
    rows = (await gateway.service.transcript(accepted.session, ANNA)).rows
    said = [row for row in rows if row.message.text.endswith("steered")]
    assert [row.turn for row in said] == [turn] and not any(row.message.unanswered for row in rows)


async def test_messages_steered_into_a_turn_that_is_not_resumed_are_answered_at_once(
    home: Path, model: ScriptedModel
) -> None:
    """S14, S17, F4: the start that ends the turn begins the next one, without waiting for a timer."""
    held = Held()
    options = held.options(model)
    async with core(home, "[limits]\nresumes = 0", drain=None, **options) as gateway:
        accepted = await gateway.accept("[tool wait {}] [say done]")
        with anyio.fail_after(WAIT):
            await held.runs.wait()
        await gateway.accept("[say to you too] steered", busy="steer")
    async with core(home, "[limits]\nresumes = 0", **options) as gateway:
        outcome = await gateway.answered(accepted.turn)
        assert outcome.state == "failed"
        await check_spilled(gateway, accepted, outcome.notices)


async def test_a_one_shot_call_reports_messages_steered_in_too_late_with_its_answer(
    home: Path, model: ScriptedModel
) -> None:
    """S14, V18: such a session ends with its turn; its caller is informed, and nothing else runs there."""
    async with core(home, model=model) as gateway:
        accepted = await gateway.accept("[hold gate] [say once]", name=None)
        with anyio.fail_after(WAIT):
            await model.held("gate")
        late = await gateway.accept("and?", name=None, session=accepted.session, busy="steer")
        assert (late.how, late.turn) == ("steered", accepted.turn)
        model.release("gate")
        outcome = await gateway.answered(accepted.turn)
        assert outcome.text == "once" and outcome.notices[0].startswith("1 message is not answered")
        assert await gateway.store.read(sessions.get, accepted.session) is None
        assert len(gateway.requests()) == 1


async def test_a_withdrawn_message_stays_out_of_the_transcript(home: Path, model: ScriptedModel) -> None:
    """S13, L21: also if the session ends later."""
    async with core(home, model=model) as gateway:
        running = await gateway.accept("[hold gate] one")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        gone = await gateway.accept("two")
        await gateway.components.engine.stop(gone.turn, "because its caller went away", abandoned=True)
        assert (await gateway.answered(gone.turn)).state == "stopped"
        model.release("gate")
        await gateway.answered(running.turn)
        await gateway.service.end(running.session, ANNA, "new")
        rows = (await gateway.service.transcript(running.session, ANNA)).rows
        assert [row.message.text for row in rows if row.message.role == "user"] == ["[hold gate] one"]
