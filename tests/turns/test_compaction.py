"""Long conversations: they fit their model's window, nothing of them is lost, and what is shown stays the same."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted import ScriptedModel
from bench.scripted.temper import Temper
from tests.core import ANNA, WAIT, Core, core
from tests.spool.pictures import noise, plain, saved
from tidegate.agent import is_balanced
from tidegate.agent.context import INSTRUCTIONS
from tidegate.models import SUMMARY_TASK
from tidegate.sessions import operations
from tidegate.store import messages, settings, summaries, usage
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.turns.compaction.compaction import COOLDOWN, WANTED, read_view
from tidegate.values import Media, Message, Outcome

pytestmark = pytest.mark.anyio

WINDOW = 4096
WORDS = "lorem ipsum dolor sit amet " * 20
"""About 130 tokens as the scripted model counts them."""


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(temper=Temper(marker=SUMMARY_TASK, windows={"*": WINDOW})) as model:
        yield model


def house(
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


def asked(model: ScriptedModel) -> list[dict[str, Any]]:
    """Requests of the conversation itself, oldest first."""
    return [body for body in map(decoded, model.recorded) if not is_summary(body)]


def decoded(recorded: Any) -> dict[str, Any]:
    body: dict[str, Any] = recorded.decoded()
    return body


def is_summary(body: dict[str, Any]) -> bool:
    return str(body["messages"][0]["content"]).startswith(SUMMARY_TASK)


def written(model: ScriptedModel) -> int:
    return sum(is_summary(body) for body in map(decoded, model.recorded))


def unfit(model: ScriptedModel) -> int:
    """Requests that were refused, for whatever reason."""
    stats = model.stats()
    return int(stats["refused"]) + int(stats["too_much"])


def told(body: dict[str, Any]) -> str:
    """What the first message after the prompt says, if that is the gateway's own."""
    content = body["messages"][1]["content"]
    return content[0]["text"] if isinstance(content, list) else ""


async def talk(house: Core, turns: int, *, start: int = 0, words: str = WORDS) -> list[Outcome]:
    outcomes = []
    for number in range(start, start + turns):
        outcome = await house.say(f"turn {number}: {words}")
        assert outcome.state == "answered", outcome.error
        outcomes.append(outcome)
    return outcomes


def preparing(house: Core, session: str) -> "asyncio.Task[None] | None":
    """What writes a summary beside the turns of a session."""
    record = house.service.presence.get(session)
    task: asyncio.Task[None] | None = getattr(record.resident, "summary_task", None) if record is not None else None
    return task


async def until_prepared(house: Core) -> tuple[str, int]:
    """Talk until a summary is being written beside the turns: the session, and how many turns that took."""
    number, session = 0, ""
    while not session or preparing(house, session) is None:
        session = (await talk(house, 1, start=number))[0].session
        number += 1
    return session, number


async def settled(house: Core, session: str) -> None:
    """What is prepared beside the turns has been written."""
    with anyio.fail_after(WAIT):
        while True:
            task = preparing(house, session)
            if task is None or task.done():
                return
            await anyio.sleep(0.001)


async def test_a_conversation_longer_than_the_window_goes_on_and_keeps_every_word(
    home: Path, model: ScriptedModel
) -> None:
    """S35: no request is refused, the transcript is whole, the session is the same one, its user is told."""
    async with house(home, model) as h:
        outcomes = await talk(h, 60)
        assert len({outcome.session for outcome in outcomes}) == 1
        rows = await h.store.read(messages.history, outcomes[0].session)
        assert [row.text[:8] for row in rows if row.role == "user"] == [f"turn {n}: "[:8] for n in range(60)]
        assert all(WORDS in row.text for row in rows if row.role == "user")
        shown = await h.store.read(summaries.shown, outcomes[0].session)
        assert shown and shown[0].first == 1
        assert any("is shown a summary instead of messages 1 to" in note for o in outcomes for note in o.notices)
        assert h.service.runner.compaction.counts["summary"] >= 3
        assert not h.service.runner.compaction.counts["useless"]
    assert unfit(model) == 0
    assert 3 <= written(model) <= 30


async def test_between_two_compactions_a_request_only_grows_at_its_end(home: Path, model: ScriptedModel) -> None:
    """S03: the prefix is whole but where a compaction says so."""
    async with house(home, model) as h:
        outcomes = await talk(h, 40)
    bodies = asked(model)
    changed = [
        number
        for number, (before, after) in enumerate(pairwise(bodies), 1)
        if after["messages"][: len(before["messages"])] != before["messages"] or after["tools"] != before["tools"]
    ]
    noted = [number for number, outcome in enumerate(outcomes) if any("instead of" in n for n in outcome.notices)]
    assert changed == noted and len(changed) >= 2


async def test_the_same_is_shown_after_unload_and_after_a_restart(home: Path, model: ScriptedModel) -> None:
    """S03: a request after an absence begins as the one before it, summaries and all."""
    async with house(home, model) as h:
        session = (await talk(h, 30))[-1].session
        await settled(h, session)
        while "Summary" not in told(asked(model)[-1]):
            await talk(h, 1)
        h.service.presence.unload(session, reason="test")
        before = asked(model)[-1]["messages"]
        await h.say("short")
        assert asked(model)[-1]["messages"][: len(before)] == before
    before = asked(model)[-1]["messages"]
    async with house(home, model) as h:
        await h.say("short again")
        assert asked(model)[-1]["messages"][: len(before)] == before
        assert await h.store.read(summaries.shown, session)


async def test_what_is_prepared_beside_the_turn_is_used_and_not_written_twice(home: Path, model: ScriptedModel) -> None:
    """The soft mark: nobody waits for the summary, and the hard mark finds it."""
    async with house(home, model) as h:
        session, number = await until_prepared(h)
        await settled(h, session)
        assert await h.store.read(summaries.prepared, session)
        assert not await h.store.read(summaries.shown, session), "it is not applied before it must be"
        while not await h.store.read(summaries.shown, session):
            await talk(h, 1, start=number)
            number += 1
        assert written(model) == 1


async def test_what_was_prepared_is_there_after_a_restart(home: Path, model: ScriptedModel) -> None:
    async with house(home, model) as h:
        session, number = await until_prepared(h)
        await settled(h, session)
    async with house(home, model) as h:
        while not await h.store.read(summaries.shown, session):
            await talk(h, 1, start=number)
            number += 1
    assert written(model) == 1


async def test_summaries_become_a_tree(home: Path, model: ScriptedModel) -> None:
    """A summary covers messages or summaries and remembers which; what is shown covers everything without a gap."""
    async with house(home, model) as h:
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
    assert unfit(model) == 0


@tool(effect="read")
async def read_page(ctx: ToolContext) -> str:
    """A page that takes a tenth of the window, another one each time."""
    return f"{ctx.step}: " + WORDS * 3


def reading(home: Path, model: ScriptedModel, **options: Any) -> AbstractAsyncContextManager[Core]:
    return house(home, model, tools='"pages"', toolsets={"pages": Toolset((read_page,))}, **options)


async def test_a_long_turn_of_many_tool_calls_is_summarised_inside_the_turn(home: Path, model: ScriptedModel) -> None:
    """Before the next model step, and no call is torn from its result."""
    async with reading(home, model) as h:
        outcome = await h.say("go " + "[tool read_page {}] " * 28)
        assert outcome.state == "answered", outcome.error
        assert any("instead of messages" in note for note in outcome.notices)
        assert is_balanced(await h.store.read(messages.history, outcome.session))
        assert (await h.store.read(summaries.shown, outcome.session))[-1].last > 10
    assert unfit(model) == 0, "every request was balanced and within the window"


async def test_a_turn_of_which_a_part_is_left_out_goes_on_after_a_crash(home: Path, model: ScriptedModel) -> None:
    """What is shown by an excerpt already is not shown whole again: the request that was cut off is made again, the
    same."""
    model.be(Temper(marker=SUMMARY_TASK, summary="empty", windows={"*": WINDOW}))
    async with reading(home, model, drain=None) as h:
        accepted = await h.accept("work " + "[tool read_page {}] " * 14 + "[hold late step=12]")
        with anyio.fail_after(WAIT):
            await model.held("late")
        view = await h.store.read(read_view, accepted.session, accepted.turn)
        assert view.inside, "a part of the running turn is left out"
    before = asked(model)[-1]["messages"]
    assert "are left out here" in str(before)
    count = len(asked(model))
    model.release("late")
    async with reading(home, model) as h:
        outcome = await h.answered(accepted.turn)
        assert outcome.state == "answered", outcome.error
    assert asked(model)[count]["messages"] == before
    assert unfit(model) == 0


async def test_an_undone_turn_takes_the_summaries_over_it_along(home: Path, model: ScriptedModel) -> None:
    """What was undone is nowhere in the next request, also not in a summary."""
    async with house(home, model) as h:
        number = 0
        session = (await talk(h, 1))[0].session
        await operations.set_setting(h.service, session, ANNA, WANTED, True, source="test")
        for number in range(1, 6):
            await talk(h, 1, start=number)
        await h.say("SECRET words " + WORDS)
        await settled(h, session)
        await operations.set_setting(h.service, session, ANNA, WANTED, True, source="test")
        await h.say("x")
        await operations.undo(h.service, session, ANNA)
        await operations.undo(h.service, session, ANNA)
        await h.say("short")
        assert "SECRET" not in str(asked(model)[-1])
        shown = await h.store.read(summaries.shown, session)
        assert all("SECRET" not in row.text for row in shown)
        assert not await h.store.read(summaries.prepared, session) or "SECRET" not in str(
            await h.store.read(summaries.prepared, session)
        )


async def test_a_conversation_that_is_taken_up_again_brings_its_summaries(home: Path, model: ScriptedModel) -> None:
    """/resume of an ended one: no summary is written anew."""
    async with house(home, model) as h:
        session = (await talk(h, 40))[-1].session
        await settled(h, session)
        before = asked(model)[-1]["messages"]
        await h.service.end(session, ANNA, "test")
        count = written(model)
        again, is_new = await operations.resume(h.service, session, ANNA)
        assert is_new
        outcome = await h.say("short", None, session=again)
        assert outcome.state == "answered", outcome.error
        assert written(model) == count
        assert asked(model)[-1]["messages"][: len(before)] == before
    assert unfit(model) == 0


async def test_a_model_with_a_smaller_window_is_shown_less(home: Path, model: ScriptedModel) -> None:
    """Its own window counts, also when it is chosen in mid-conversation."""
    model.be(Temper(marker=SUMMARY_TASK, windows={"scripted": WINDOW, "scripted-small": 2048}))
    async with house(home, model) as h:
        session = (await talk(h, 12))[-1].session
        await operations.set_setting(h.service, session, ANNA, "model", "small", source="test")
        outcome = await h.say("and you?")
        assert outcome.state == "answered", outcome.error
        assert any("instead of messages" in note for note in outcome.notices)
    assert unfit(model) == 0


async def test_the_model_for_summaries_is_given_no_more_than_its_own_window(home: Path, model: ScriptedModel) -> None:
    model.be(Temper(marker=SUMMARY_TASK, windows={"scripted": WINDOW, "scripted-small": 2048}))
    async with house(home, model, more='[context]\nmodel = "small"') as h:
        session = (await talk(h, 40))[-1].session
        assert {body["model"] for body in map(decoded, model.recorded) if is_summary(body)} == {"scripted-small"}
        await settled(h, session)
        assert (await h.store.read(usage.of_session, session)).calls == 40 + written(model)
        assert await h.store.read(summaries.shown, session)
    assert unfit(model) == 0 and written(model)


async def test_a_context_that_the_provider_finds_too_long_is_made_smaller_and_asked_once_more(
    home: Path, model: ScriptedModel
) -> None:
    """One compaction and one retry, though we believed that it fits."""
    async with house(home, model) as h:
        await talk(h, 16)
        refused = unfit(model)
        model.be(Temper(marker=SUMMARY_TASK, windows={"scripted": 1500}))
        outcome = await h.say("and now?")
        assert outcome.state == "answered", outcome.error
        assert unfit(model) == refused + 1
        assert any("instead of messages" in note for note in outcome.notices)


async def test_a_window_that_is_far_too_small_ends_the_turn_after_one_retry(home: Path, model: ScriptedModel) -> None:
    async with house(home, model) as h:
        await talk(h, 6)
        refused = unfit(model)
        model.be(Temper(marker=SUMMARY_TASK, windows={"scripted": 40}))
        outcome = await h.say("and now?")
        assert outcome.state == "failed" and outcome.error is not None
        assert "too long for the model" in outcome.error.message
        assert unfit(model) <= refused + 4


async def test_a_prompt_that_leaves_no_room_is_told_as_what_it_is(home: Path, model: ScriptedModel) -> None:
    """Too small a window: one sentence that says what to do, and no request that must fail."""
    async with house(home, model, 'skills = []\ndescription = "d"\n', more="") as h:
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
    """Nothing is refused and nothing cut silently: the model and the user are told, the store has all of it."""
    text = "BEGIN " + "filling " * 20_000 + " END"
    async with house(home, model) as h:
        outcome = await h.say(text)
        assert outcome.state == "answered", outcome.error
        assert any("excerpts of long messages" in note for note in outcome.notices)
        sent = str(asked(model)[-1]["messages"][-1])
        assert "BEGIN" in sent and "END" in sent and "characters of message 1 are left out here" in sent
        assert (await h.store.read(messages.history, outcome.session))[0].text == text
        before = asked(model)[-1]["messages"]
        h.service.presence.unload(outcome.session, reason="test")
        await h.say("short")
        assert asked(model)[-1]["messages"][: len(before)] == before
    assert unfit(model) == 0


async def test_a_person_can_ask_for_a_compaction(home: Path, model: ScriptedModel) -> None:
    """/compact: with the next turn, once."""
    async with house(home, model) as h:
        session = (await talk(h, 8))[-1].session
        await operations.set_setting(h.service, session, ANNA, WANTED, True, source="test")
        outcome = await h.say("short")
        assert any("instead of messages 1 to" in note for note in outcome.notices)
        assert await h.store.read(summaries.shown, session)
        outcome = await h.say("short")
        assert not outcome.notices
        assert WANTED not in {each.key for each in await h.store.read(settings.get_all, session, 0.0)}


async def test_what_summaries_cost_is_written_down_to_the_conversation(home: Path, model: ScriptedModel) -> None:
    async with house(home, model) as h:
        outcomes = await talk(h, 30)
        await settled(h, outcomes[0].session)
        total = await h.store.read(usage.of_session, outcomes[0].session)
        assert total.calls == 30 + written(model)


async def test_a_compaction_of_one_conversation_does_not_hold_up_another(home: Path, model: ScriptedModel) -> None:
    """S36: it belongs to its own session."""
    model.be(Temper(marker=SUMMARY_TASK, summary="[hold pen]", windows={"*": WINDOW}))
    async with house(home, model) as h:
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
    """What is prepared beside a turn ends with its session."""
    model.be(Temper(marker=SUMMARY_TASK, summary="[hold pen]", windows={"*": WINDOW}))
    async with house(home, model) as h:
        session, _ = await until_prepared(h)
        with anyio.fail_after(WAIT):
            await model.held("pen")
        await h.service.end(session, ANNA, "test")
        with anyio.fail_after(WAIT):
            while any("summary" in task.get_name() for task in asyncio.all_tasks()):
                await anyio.sleep(0.001)
        assert not await h.store.read(summaries.prepared, session)


async def test_a_one_shot_call_that_is_too_long_is_refused(home: Path, model: ScriptedModel) -> None:
    """H22: whoever keeps the conversation shortens it; nothing of it is left out behind their back."""
    async with house(home, model) as h:
        outcome = await h.say("BEGIN " + "filling " * 20_000, None)
        assert outcome.state == "failed" and outcome.error is not None
        assert (outcome.error.status, outcome.error.code) == (400, "context_length_exceeded")
        assert "maximum context length" in outcome.error.message
    assert not model.recorded


async def test_a_one_shot_call_that_grows_by_its_tools_is_fitted(home: Path, model: ScriptedModel) -> None:
    """H22: what the agent itself adds is made to fit."""
    async with house(home, model) as h:
        outcome = await h.say("[tool clock {}] " * 3 + "filling " * 1_700, None)
        assert outcome.state == "answered", outcome.error
    assert unfit(model) == 0


def test_the_instructions_begin_with_the_task_that_models_know() -> None:
    assert INSTRUCTIONS.startswith(SUMMARY_TASK)
    assert COOLDOWN != WANTED


@pytest.mark.parametrize("share", [0.3, 0.5, 0.6, 0.68])
async def test_a_long_prompt_leaves_less_room_and_the_conversation_goes_on(
    home: Path, model: ScriptedModel, share: float
) -> None:
    """It always ends: what is said has the rest of the window, however little that is."""
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
    assert unfit(model) == 0


async def test_a_refusal_is_mended_whatever_the_prompt_takes(home: Path, model: ScriptedModel) -> None:
    """One compaction and one retry: only what is said can become less."""
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
        model.be(Temper(marker=SUMMARY_TASK, windows={"*": 3300}))
        outcome = await h.say("and now?")
        assert outcome.state == "answered", outcome.error
        assert unfit(model) >= 1


async def test_of_two_pictures_the_one_that_is_too_large_is_found(home: Path, model: ScriptedModel) -> None:
    """The older ones are told in words first; if it was the newest, that one too."""
    model.be(Temper(marker=SUMMARY_TASK))
    async with core(home, model=model) as h:
        small, large = saved(plain(20, 20), "PNG"), saved(noise(60, 60), "PNG")
        first = Message(role="user", text="one", media=(Media(media_type="image/png", data=small),))
        await h.say("", messages=(first,))
        model.be(Temper(marker=SUMMARY_TASK, image_bytes=len(large) - 1))
        second = Message(role="user", text="two", media=(Media(media_type="image/png", data=large),))
        outcome = await h.say("", messages=(second,))
        assert outcome.state == "answered", outcome.error
        assert unfit(model) == 2
        assert (await h.say("three")).state == "answered"
        assert unfit(model) == 2, "what was left out stays so"


async def test_one_shot_calls_have_nothing_prepared(home: Path, model: ScriptedModel) -> None:
    """Their next turn never comes."""
    async with house(home, model) as h:
        outcome = await h.say("w" * int(0.75 * WINDOW * 4), None)
        assert outcome.state == "answered", outcome.error
        assert not any("summary" in task.get_name() for task in asyncio.all_tasks())
    assert written(model) == 0


async def test_a_summary_that_saves_too_little_is_not_applied(home: Path, model: ScriptedModel) -> None:
    """S35: by the share that is configured."""
    more = "[context]\nleast = 0.75\nkeep = 0.2\n"
    async with house(home, model, more=more) as h:
        session = (await talk(h, 40))[-1].session
        for row in await h.store.read(summaries.shown, session):
            assert row.how == "cut", "no summary saves three quarters of a request of which a fifth is kept"
    assert unfit(model) == 0


async def test_a_count_of_the_providers_calibrates_the_estimate(home: Path, model: ScriptedModel) -> None:
    async with house(home, model) as h:
        token_estimate = h.service.runner._models.get("main").token_estimate
        before = token_estimate.tokens(100_000)
        await talk(h, 6)
        assert token_estimate.tokens(100_000) != before
        filling = await h.service.filling((await h.say("x")).session, ANNA)
        assert filling.counted


async def test_what_was_undone_while_its_summary_was_written_is_not_stored(home: Path, model: ScriptedModel) -> None:
    """The summary comes too late."""
    model.be(Temper(marker=SUMMARY_TASK, summary="[hold pen]", windows={"*": WINDOW}))
    async with house(home, model) as h:
        session, turns = await until_prepared(h)
        with anyio.fail_after(WAIT):
            await model.held("pen")
        task = preparing(h, session)
        assert task is not None
        record = h.service.presence.get(session)
        assert record is not None
        record.resident.summary_task = None  # as if nobody had ended it with the resident
        for _ in range(turns):
            await operations.undo(h.service, session, ANNA)
        model.release("pen")
        with anyio.fail_after(WAIT):
            await asyncio.wait({task})
        assert not await h.store.read(summaries.prepared, session)


async def test_a_deleted_conversation_leaves_no_summary(home: Path, model: ScriptedModel) -> None:
    async with house(home, model) as h:
        session = (await talk(h, 30))[-1].session
        await h.service.delete(session, ANNA)

        def left(db: Any) -> int:
            return sum(int(db.execute(f"SELECT count(*) FROM {table}").get) for table in ("summaries", "elisions"))

        assert await h.store.read(left) == 0
