"""Long conversations: they fit their model's window, nothing of them is lost, and the model's view is stable."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted import ScriptedModel
from bench.scripted.behaviour import Behaviour
from tests.core import ANNA, WAIT, Core, core
from tests.spool.pictures import noise, plain, saved
from tidegate.agent import is_balanced
from tidegate.agent.context import INSTRUCTIONS
from tidegate.models import SUMMARY_TASK
from tidegate.store import messages, settings, summaries, usage
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.turns.compaction.compaction import COMPACTION_REQUESTED, SUMMARY_COOLDOWN, read_view
from tidegate.values import Media, Message, Outcome

pytestmark = pytest.mark.anyio

WINDOW = 4096
WORDS = "lorem ipsum dolor sit amet " * 20
"""About 130 tokens as the scripted model counts them."""


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(behaviour=Behaviour(marker=SUMMARY_TASK, windows={"*": WINDOW})) as model:
        yield model


def compacting_core(
    home: Path, model: ScriptedModel, extra: str = "", *, more: str = "", tools: str = '"clock"', **options: Any
) -> AbstractAsyncContextManager[Core]:
    toml = f"""
[models.main]
api = "openai-chat"
base_url = "{model.base_url}"
model = "scripted"
context_window = {WINDOW}
max_output = 512
vision = true
retries = 0
[models.small]
api = "openai-chat"
base_url = "{model.base_url}"
model = "scripted-small"
context_window = 2048
max_output = 256
retries = 0
[agents.main]
model = "main"
approvals = "autonomous"
prompt = "You are a test."
tools = [{tools}]
{extra}
[limits]
repeats = 100
turn_steps = 100
{more}
"""
    return core(home, model=model, toml=toml, **options)


def conversation_requests(model: ScriptedModel) -> list[dict[str, Any]]:
    """Requests of the conversation itself, oldest first."""
    return [body for body in map(decoded, model.recorded) if not is_summary(body)]


def decoded(recorded: Any) -> dict[str, Any]:
    body: dict[str, Any] = recorded.decoded()
    return body


def is_summary(body: dict[str, Any]) -> bool:
    return str(body["messages"][0]["content"]).startswith(SUMMARY_TASK)


def written(model: ScriptedModel) -> int:
    return sum(is_summary(body) for body in map(decoded, model.recorded))


def refused_requests(model: ScriptedModel) -> int:
    """Requests that were refused, for whatever reason."""
    stats = model.stats()
    return int(stats["refused"]) + int(stats["too_much"])


def gateway_message(body: dict[str, Any]) -> str:
    """The first message after the prompt, if it is the gateway's own."""
    content = body["messages"][1]["content"]
    return content[0]["text"] if isinstance(content, list) else ""


async def talk(gateway: Core, turns: int, *, start: int = 0, words: str = WORDS) -> list[Outcome]:
    outcomes = []
    for number in range(start, start + turns):
        outcome = await gateway.say(f"turn {number}: {words}")
        assert outcome.state == "answered", outcome.error
        outcomes.append(outcome)
    return outcomes


def preparing(gateway: Core, session: str) -> "asyncio.Task[None] | None":
    """The task that writes a summary beside the turns of a session."""
    record = gateway.components.presence.get(session)
    task: asyncio.Task[None] | None = getattr(record.resident, "summary_task", None) if record is not None else None
    return task


async def until_prepared(gateway: Core) -> tuple[str, int]:
    """Talk until a summary is being written beside the turns; returns the session and the number of turns."""
    number, session = 0, ""
    while not session or preparing(gateway, session) is None:
        session = (await talk(gateway, 1, start=number))[0].session
        number += 1
    return session, number


async def settled(gateway: Core, session: str) -> None:
    """Wait until the summaries beside the turns are written."""
    with anyio.fail_after(WAIT):
        while True:
            task = preparing(gateway, session)
            if task is None or task.done():
                return
            await anyio.sleep(0.001)


async def test_a_conversation_longer_than_the_window_goes_on_and_keeps_every_word(
    home: Path, model: ScriptedModel
) -> None:
    """S35: no request is refused, the transcript is complete, the session is the same, and its user is notified."""
    async with compacting_core(home, model) as h:
        outcomes = await talk(h, 60)
        assert len({outcome.session for outcome in outcomes}) == 1
        rows = await h.store.read(messages.history, outcomes[0].session)
        assert [row.text[:8] for row in rows if row.role == "user"] == [f"turn {n}: "[:8] for n in range(60)]
        assert all(WORDS in row.text for row in rows if row.role == "user")
        shown = await h.store.read(summaries.shown, outcomes[0].session)
        assert shown and shown[0].first == 1
        assert any("sees a summary instead of messages 1 to" in note for o in outcomes for note in o.notices)
        assert h.components.runner.compaction.counts["summary"] >= 3
        assert not h.components.runner.compaction.counts["useless"]
    assert refused_requests(model) == 0
    assert 3 <= written(model) <= 30


async def test_between_two_compactions_a_request_only_grows_at_its_end(home: Path, model: ScriptedModel) -> None:
    """S03: the prefix changes only where a compaction is announced."""
    async with compacting_core(home, model) as h:
        outcomes = await talk(h, 40)
    bodies = conversation_requests(model)
    changed = [
        number
        for number, (before, after) in enumerate(pairwise(bodies), 1)
        if after["messages"][: len(before["messages"])] != before["messages"] or after["tools"] != before["tools"]
    ]
    noted = [number for number, outcome in enumerate(outcomes) if any("instead of" in n for n in outcome.notices)]
    assert changed == noted and len(changed) >= 2


async def test_the_same_is_shown_after_unload_and_after_a_restart(home: Path, model: ScriptedModel) -> None:
    """S03: the next request begins like the one before, including summaries."""
    async with compacting_core(home, model) as h:
        session = (await talk(h, 30))[-1].session
        await settled(h, session)
        while "Summary" not in gateway_message(conversation_requests(model)[-1]):
            await talk(h, 1)
        h.components.presence.unload(session, reason="test")
        before = conversation_requests(model)[-1]["messages"]
        await h.say("short")
        assert conversation_requests(model)[-1]["messages"][: len(before)] == before
    before = conversation_requests(model)[-1]["messages"]
    async with compacting_core(home, model) as h:
        await h.say("short again")
        assert conversation_requests(model)[-1]["messages"][: len(before)] == before
        assert await h.store.read(summaries.shown, session)


async def test_a_summary_prepared_beside_the_turn_is_used_and_not_written_twice(
    home: Path, model: ScriptedModel
) -> None:
    """The soft mark: nobody waits for the summary, and it is ready at the hard mark."""
    async with compacting_core(home, model) as h:
        session, number = await until_prepared(h)
        await settled(h, session)
        assert await h.store.read(summaries.prepared, session)
        assert not await h.store.read(summaries.shown, session), "it is not applied before it must be"
        while not await h.store.read(summaries.shown, session):
            await talk(h, 1, start=number)
            number += 1
        assert written(model) == 1


async def test_a_prepared_summary_survives_a_restart(home: Path, model: ScriptedModel) -> None:
    async with compacting_core(home, model) as h:
        session, number = await until_prepared(h)
        await settled(h, session)
    async with compacting_core(home, model) as h:
        while not await h.store.read(summaries.shown, session):
            await talk(h, 1, start=number)
            number += 1
    assert written(model) == 1


async def test_summaries_become_a_tree(home: Path, model: ScriptedModel) -> None:
    """A summary covers messages or summaries and records which; the view has no gap."""
    async with compacting_core(home, model) as h:
        session = (await talk(h, 150))[-1].session
        shown = await h.store.read(summaries.shown, session)
        assert shown[0].level >= 1 and shown[0].how == "model", "old summaries have become one, by a model"
        ends = 0
        for row in shown:
            assert row.first == ends + 1
            ends = row.last
        queue = list(shown)
        leaves = []
        while queue:
            row = queue.pop()
            below = await h.store.read(summaries.children, session, row.number)
            if row.level:
                assert (below[0].first, below[-1].last) == (row.first, row.last)
                queue += below
            else:
                leaves.append(row)
        ends = 0
        for row in sorted(leaves, key=lambda row: row.first):
            assert row.first == ends + 1
            ends = row.last
    assert refused_requests(model) == 0


@tool(effect="read")
async def read_page(ctx: ToolContext) -> str:
    """A page that takes a tenth of the window, a new one each time."""
    return f"{ctx.step}: " + WORDS * 3


def reading(home: Path, model: ScriptedModel, **options: Any) -> AbstractAsyncContextManager[Core]:
    return compacting_core(home, model, tools='"pages"', toolsets={"pages": Toolset((read_page,))}, **options)


async def test_a_long_turn_of_many_tool_calls_is_summarised_inside_the_turn(home: Path, model: ScriptedModel) -> None:
    """Before the next model step, and no call is separated from its result."""
    async with reading(home, model) as h:
        outcome = await h.say("go " + "[tool read_page {}] " * 28)
        assert outcome.state == "answered", outcome.error
        assert any("instead of messages" in note for note in outcome.notices)
        assert is_balanced(await h.store.read(messages.history, outcome.session))
        assert (await h.store.read(summaries.shown, outcome.session))[-1].last > 10
    assert refused_requests(model) == 0, "every request was balanced and within the window"


async def test_a_turn_of_which_a_part_is_left_out_goes_on_after_a_crash(home: Path, model: ScriptedModel) -> None:
    """An excerpt stays an excerpt: the interrupted request is repeated exactly."""
    model.behave(Behaviour(marker=SUMMARY_TASK, summary="empty", windows={"*": WINDOW}))
    async with reading(home, model, drain=None) as h:
        accepted = await h.accept("work " + "[tool read_page {}] " * 14 + "[hold late step=12]")
        with anyio.fail_after(WAIT):
            await model.held("late")
        view = await h.store.read(read_view, accepted.session, accepted.turn)
        assert view.inside, "a part of the running turn is left out"
    before = conversation_requests(model)[-1]["messages"]
    assert "are left out here" in str(before)
    count = len(conversation_requests(model))
    model.release("late")
    async with reading(home, model) as h:
        outcome = await h.answered(accepted.turn)
        assert outcome.state == "answered", outcome.error
    assert conversation_requests(model)[count]["messages"] == before
    assert refused_requests(model) == 0


async def test_an_undone_turn_takes_the_summaries_over_it_along(home: Path, model: ScriptedModel) -> None:
    """An undone message is nowhere in the next request, not in a summary either."""
    async with compacting_core(home, model) as h:
        number = 0
        session = (await talk(h, 1))[0].session
        await h.service.operations.set_setting(session, ANNA, COMPACTION_REQUESTED, True, source="test")
        for number in range(1, 6):
            await talk(h, 1, start=number)
        await h.say("SECRET words " + WORDS)
        await settled(h, session)
        await h.service.operations.set_setting(session, ANNA, COMPACTION_REQUESTED, True, source="test")
        await h.say("x")
        await h.service.operations.undo(session, ANNA)
        await h.service.operations.undo(session, ANNA)
        await h.say("short")
        assert "SECRET" not in str(conversation_requests(model)[-1])
        shown = await h.store.read(summaries.shown, session)
        assert all("SECRET" not in row.text for row in shown)
        assert not await h.store.read(summaries.prepared, session) or "SECRET" not in str(
            await h.store.read(summaries.prepared, session)
        )


async def test_a_resumed_conversation_keeps_its_summaries(home: Path, model: ScriptedModel) -> None:
    """/resume of an ended one: no summary is written again."""
    async with compacting_core(home, model) as h:
        session = (await talk(h, 40))[-1].session
        await settled(h, session)
        before = conversation_requests(model)[-1]["messages"]
        await h.service.end(session, ANNA, "test")
        count = written(model)
        again, is_new = await h.service.operations.resume(session, ANNA)
        assert is_new
        outcome = await h.say("short", None, session=again)
        assert outcome.state == "answered", outcome.error
        assert written(model) == count
        assert conversation_requests(model)[-1]["messages"][: len(before)] == before
    assert refused_requests(model) == 0


async def test_a_model_with_a_smaller_window_is_shown_less(home: Path, model: ScriptedModel) -> None:
    """Its own window counts, also when it is chosen in mid-conversation."""
    model.behave(Behaviour(marker=SUMMARY_TASK, windows={"scripted": WINDOW, "scripted-small": 2048}))
    async with compacting_core(home, model) as h:
        session = (await talk(h, 12))[-1].session
        await h.service.operations.set_setting(session, ANNA, "model", "small", source="test")
        outcome = await h.say("and you?")
        assert outcome.state == "answered", outcome.error
        assert any("instead of messages" in note for note in outcome.notices)
    assert refused_requests(model) == 0


async def test_the_model_for_summaries_is_given_no_more_than_its_own_window(home: Path, model: ScriptedModel) -> None:
    model.behave(Behaviour(marker=SUMMARY_TASK, windows={"scripted": WINDOW, "scripted-small": 2048}))
    async with compacting_core(home, model, more='[context]\nmodel = "small"') as h:
        session = (await talk(h, 40))[-1].session
        assert {body["model"] for body in map(decoded, model.recorded) if is_summary(body)} == {"scripted-small"}
        await settled(h, session)
        assert (await h.store.read(usage.of_session, session)).calls == 40 + written(model)
        assert await h.store.read(summaries.shown, session)
    assert refused_requests(model) == 0 and written(model)


async def test_a_context_that_the_provider_finds_too_long_is_made_smaller_and_asked_once_more(
    home: Path, model: ScriptedModel
) -> None:
    """One compaction and one retry, although our estimate fitted."""
    async with compacting_core(home, model) as h:
        await talk(h, 16)
        refused = refused_requests(model)
        model.behave(Behaviour(marker=SUMMARY_TASK, windows={"scripted": 1500}))
        outcome = await h.say("and now?")
        assert outcome.state == "answered", outcome.error
        assert refused_requests(model) == refused + 1
        assert any("instead of messages" in note for note in outcome.notices)


async def test_a_window_that_is_far_too_small_ends_the_turn_after_one_retry(home: Path, model: ScriptedModel) -> None:
    async with compacting_core(home, model) as h:
        await talk(h, 6)
        refused = refused_requests(model)
        model.behave(Behaviour(marker=SUMMARY_TASK, windows={"scripted": 40}))
        outcome = await h.say("and now?")
        assert outcome.state == "failed" and outcome.error is not None
        assert "too long for the model" in outcome.error.message
        assert refused_requests(model) <= refused + 4


async def test_a_prompt_that_fills_the_window_is_reported_as_such(home: Path, model: ScriptedModel) -> None:
    """Too small a window: one sentence that says what to do, and no request that must fail."""
    async with compacting_core(home, model, 'skills = []\ndescription = "d"\n', more="") as h:
        del h
    text = "Be good. " * 2500
    toml = f"""
[models.main]
api = "openai-chat"
base_url = "{model.base_url}"
model = "scripted"
context_window = {WINDOW}
[agents.main]
prompt = "{text}"
"""
    async with core(home, model=model, toml=toml) as h:
        outcome = await h.say("hello")
        assert outcome.state == "failed" and outcome.error is not None
        assert "is too small for this agent" in outcome.error.message
    assert not model.recorded


async def test_a_single_message_larger_than_the_window_is_shown_by_its_beginning_and_its_end(
    home: Path, model: ScriptedModel
) -> None:
    """Nothing is refused or cut silently: the model and the user are told, and the store has all of it."""
    text = "BEGIN " + "filling " * 20_000 + " END"
    async with compacting_core(home, model) as h:
        outcome = await h.say(text)
        assert outcome.state == "answered", outcome.error
        assert any("excerpts of long messages" in note for note in outcome.notices)
        sent = str(conversation_requests(model)[-1]["messages"][-1])
        assert "BEGIN" in sent and "END" in sent and "characters of message 1 are left out here" in sent
        assert (await h.store.read(messages.history, outcome.session))[0].text == text
        before = conversation_requests(model)[-1]["messages"]
        h.components.presence.unload(outcome.session, reason="test")
        await h.say("short")
        assert conversation_requests(model)[-1]["messages"][: len(before)] == before
    assert refused_requests(model) == 0


async def test_a_person_can_ask_for_a_compaction(home: Path, model: ScriptedModel) -> None:
    """/compact: with the next turn, once."""
    async with compacting_core(home, model) as h:
        session = (await talk(h, 8))[-1].session
        await h.service.operations.set_setting(session, ANNA, COMPACTION_REQUESTED, True, source="test")
        outcome = await h.say("short")
        assert any("instead of messages 1 to" in note for note in outcome.notices)
        assert await h.store.read(summaries.shown, session)
        outcome = await h.say("short")
        assert not outcome.notices
        assert COMPACTION_REQUESTED not in {each.key for each in await h.store.read(settings.get_all, session, 0.0)}


async def test_the_cost_of_summaries_is_charged_to_the_conversation(home: Path, model: ScriptedModel) -> None:
    async with compacting_core(home, model) as h:
        outcomes = await talk(h, 30)
        await settled(h, outcomes[0].session)
        total = await h.store.read(usage.of_session, outcomes[0].session)
        assert total.calls == 30 + written(model)


async def test_a_compaction_of_one_conversation_does_not_hold_up_another(home: Path, model: ScriptedModel) -> None:
    """S36: it belongs to its own session."""
    model.behave(Behaviour(marker=SUMMARY_TASK, summary="[hold pen]", windows={"*": WINDOW}))
    async with compacting_core(home, model) as h:
        accepted = None
        with anyio.fail_after(WAIT):
            for number in range(60):
                accepted = await h.accept(f"turn {number}: {WORDS}")
                with anyio.move_on_after(1) as patience:
                    await h.service.wait(accepted.turn)
                if patience.cancelled_caught:
                    break
            else:
                pytest.fail("it never waited for its summary")
        assert (await h.say("hello", "another")).state == "answered"
        model.release("pen")
        assert (await h.answered(accepted.turn)).state == "answered"


async def test_an_end_in_mid_summary_leaves_nothing_behind(home: Path, model: ScriptedModel) -> None:
    """A summary beside a turn ends with its session."""
    model.behave(Behaviour(marker=SUMMARY_TASK, summary="[hold pen]", windows={"*": WINDOW}))
    async with compacting_core(home, model) as h:
        session, _ = await until_prepared(h)
        with anyio.fail_after(WAIT):
            await model.held("pen")
        await h.service.end(session, ANNA, "test")
        with anyio.fail_after(WAIT):
            while any("summary" in task.get_name() for task in asyncio.all_tasks()):
                await anyio.sleep(0.001)
        assert not await h.store.read(summaries.prepared, session)


async def test_a_one_shot_call_that_is_too_long_is_refused(home: Path, model: ScriptedModel) -> None:
    """H22: a caller that keeps its own conversation shortens it; nothing is left out silently."""
    async with compacting_core(home, model) as h:
        outcome = await h.say("BEGIN " + "filling " * 20_000, None)
        assert outcome.state == "failed" and outcome.error is not None
        assert (outcome.error.status, outcome.error.code) == (400, "context_length_exceeded")
        assert "maximum context length" in outcome.error.message
    assert not model.recorded


async def test_a_one_shot_call_that_grows_by_its_tools_is_fitted(home: Path, model: ScriptedModel) -> None:
    """H22: additions of the agent itself are made to fit."""
    async with compacting_core(home, model) as h:
        outcome = await h.say("[tool clock {}] " * 3 + "filling " * 1_700, None)
        assert outcome.state == "answered", outcome.error
    assert refused_requests(model) == 0


def test_the_instructions_begin_with_the_task_that_models_know() -> None:
    assert INSTRUCTIONS.startswith(SUMMARY_TASK)
    assert SUMMARY_COOLDOWN != COMPACTION_REQUESTED


@pytest.mark.parametrize("share", [0.3, 0.5, 0.6, 0.68])
async def test_a_long_prompt_leaves_less_room_and_the_conversation_goes_on(
    home: Path, model: ScriptedModel, share: float
) -> None:
    """It always ends: messages get the rest of the window, however small."""
    prompt = "Be good and be brief. " * int(share * WINDOW * 4 / 22)
    toml = f"""
[models.main]
api = "openai-chat"
base_url = "{model.base_url}"
model = "scripted"
context_window = {WINDOW}
max_output = 512
retries = 0
[agents.main]
prompt = "{prompt}"
"""
    async with core(home, model=model, toml=toml) as h:
        await talk(h, 30)
    assert refused_requests(model) == 0


async def test_a_refusal_is_mended_whatever_the_prompt_takes(home: Path, model: ScriptedModel) -> None:
    """One compaction and one retry: only messages can be reduced."""
    prompt = "Be good and be brief. " * 400
    toml = f"""
[models.main]
api = "openai-chat"
base_url = "{model.base_url}"
model = "scripted"
context_window = 16000
max_output = 512
retries = 0
[agents.main]
prompt = "{prompt}"
"""
    async with core(home, model=model, toml=toml) as h:
        await talk(h, 7)
        model.behave(Behaviour(marker=SUMMARY_TASK, windows={"*": 3300}))
        outcome = await h.say("and now?")
        assert outcome.state == "answered", outcome.error
        assert refused_requests(model) >= 1


async def test_of_two_pictures_the_one_that_is_too_large_is_found(home: Path, model: ScriptedModel) -> None:
    """Older pictures are described in words first; then the newest too."""
    model.behave(Behaviour(marker=SUMMARY_TASK))
    async with core(home, model=model) as h:
        small, large = saved(plain(20, 20), "PNG"), saved(noise(60, 60), "PNG")
        first = Message(role="user", text="one", media=(Media(media_type="image/png", data=small),))
        await h.say("", messages=(first,))
        model.behave(Behaviour(marker=SUMMARY_TASK, image_bytes=len(large) - 1))
        second = Message(role="user", text="two", media=(Media(media_type="image/png", data=large),))
        outcome = await h.say("", messages=(second,))
        assert outcome.state == "answered", outcome.error
        assert refused_requests(model) == 2
        assert (await h.say("three")).state == "answered"
        assert refused_requests(model) == 2, "what was left out stays so"


async def test_one_shot_calls_have_nothing_prepared(home: Path, model: ScriptedModel) -> None:
    """They have no next turn."""
    async with compacting_core(home, model) as h:
        outcome = await h.say("w" * int(0.75 * WINDOW * 4), None)
        assert outcome.state == "answered", outcome.error
        assert not any("summary" in task.get_name() for task in asyncio.all_tasks())
    assert written(model) == 0


async def test_a_summary_that_saves_too_little_is_not_applied(home: Path, model: ScriptedModel) -> None:
    """S35: less than the configured share."""
    more = "[context]\nleast = 0.75\nkeep = 0.2\n"
    async with compacting_core(home, model, more=more) as h:
        session = (await talk(h, 40))[-1].session
        for row in await h.store.read(summaries.shown, session):
            assert row.how == "cut", "no summary saves three quarters of a request of which a fifth is kept"
    assert refused_requests(model) == 0


async def test_a_count_of_the_providers_calibrates_the_estimate(home: Path, model: ScriptedModel) -> None:
    async with compacting_core(home, model) as h:
        token_estimate = h.components.models.get("main").token_estimate
        before = token_estimate.tokens(100_000)
        await talk(h, 6)
        assert token_estimate.tokens(100_000) != before
        filling = await h.service.window_usage((await h.say("x")).session, ANNA)
        assert filling.counted


async def test_a_summary_of_undone_messages_is_not_stored(home: Path, model: ScriptedModel) -> None:
    """The summary comes too late."""
    model.behave(Behaviour(marker=SUMMARY_TASK, summary="[hold pen]", windows={"*": WINDOW}))
    async with compacting_core(home, model) as h:
        session, turns = await until_prepared(h)
        with anyio.fail_after(WAIT):
            await model.held("pen")
        task = preparing(h, session)
        assert task is not None
        record = h.components.presence.get(session)
        assert record is not None
        record.resident.summary_task = None  # as if nobody had ended it with the resident
        for _ in range(turns):
            await h.service.operations.undo(session, ANNA)
        model.release("pen")
        with anyio.fail_after(WAIT):
            await asyncio.wait({task})
        assert not await h.store.read(summaries.prepared, session)


async def test_a_summary_of_an_attempt_that_was_superseded_is_not_stored(home: Path, model: ScriptedModel) -> None:
    """P05: nor is its usage recorded; the attempt that holds the turn makes its own."""
    model.behave(Behaviour(marker=SUMMARY_TASK, summary="[hold pen]", windows={"*": WINDOW}))
    async with compacting_core(home, model) as h:
        session, number = await until_prepared(h)
        with anyio.fail_after(WAIT):
            await model.held("pen")
        task = preparing(h, session)
        assert task is not None
        await h.store.write(lambda db: db.execute("UPDATE turns SET fence = fence + 1"))
        model.release("pen")
        with anyio.fail_after(WAIT):
            await asyncio.wait({task})
        assert not await h.store.read(summaries.prepared, session)
        assert (await h.store.read(usage.of_session, session)).calls == number


async def test_a_deleted_conversation_leaves_no_summary(home: Path, model: ScriptedModel) -> None:
    async with compacting_core(home, model) as h:
        session = (await talk(h, 30))[-1].session
        await h.service.delete(session, ANNA)

        def left(db: Any) -> int:
            return sum(int(db.execute(f"SELECT count(*) FROM {table}").get) for table in ("summaries", "elisions"))

        assert await h.store.read(left) == 0
