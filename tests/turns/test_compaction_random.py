"""Long conversations with a model that misbehaves as a summarizer, or accepts less than estimated.

In every case the conversation continues, no request exceeds the window, its user is notified, the transcript keeps
every word, and the number of calls is bounded. Over real sockets, in every format.
"""

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.scripted.behaviour import INJECTED, Behaviour, Traced
from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core
from tests.spool.pictures import plain, saved
from tests.turns.test_fallback import follow_turn
from tests.turns.test_fallback import notices as notices_of
from tidegate.models import SUMMARY_TASK
from tidegate.store import messages, summaries
from tidegate.values import Media, Message, Outcome

pytestmark = pytest.mark.anyio

FORMATS = ("openai-chat", "openai-responses", "anthropic")
formats = pytest.mark.parametrize("api", FORMATS)
KEY = "A_KEY"
WINDOW = 4000
OUTPUT = 300
COOLDOWN = 600.0
FILLER = "the tide comes in and the tide goes out, and the gate between them keeps the level of the basin. " * 8
"""About two hundred tokens: the window holds some fifteen turns."""
TURNS = 40
"""More than two windows of them."""
BEHAVIOURS = {
    "longer": "too long",
    "empty": "empty",
    "blank": "empty",
    "refusal": "refused",
    "filtered": "refused",
    "truncated": "",  # its terser summary may be broken off: it is short, and some of it is there
    "calls": "",
    "[status 400]": "failed",
    "[status 500]": "failed",
    "[status 529]": "failed",
    "[close]": "failed",
    "[badjson after=1]": "failed",
    "[html]": "failed",
}
"""The server's behaviour as a summarizer, and a word of the notice to the user; empty if the summary is used."""


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(behaviour=Behaviour(marker=SUMMARY_TASK, by_prompt=True)) as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


def be(server: ScriptedModel, summary: str = "good", **temper: Any) -> None:
    server.behave(Behaviour(marker=SUMMARY_TASK, by_prompt=True, summary=summary, **temper))


def long(
    home: Path,
    server: ScriptedModel,
    clock: Clock,
    api: str = "openai-chat",
    *,
    window: int = WINDOW,
    context: str = "",
    agent: str = "",
    prompt: str = "You are a test.",
    tools: str = '"clock"',
    **given: Any,
) -> Any:
    text = f"""
[models.main]
api = "{api}"
base_url = "{server.base_url}"
model = "scripted"
key = "env:{KEY}"
vision = true
retries = 0
context_window = {window}
max_output = {min(OUTPUT, window // 2)}
[models.scribe]
api = "{api}"
base_url = "{server.base_url}"
model = "scribe"
key = "env:{KEY}"
retries = 0
context_window = 1500
max_output = 300
[agents.main]
model = "main"
prompt = "{prompt}"
tools = [{tools}]
approvals = "autonomous"
{agent}
[context]
summary_seconds = 1
cooldown = {COOLDOWN}
{context}
"""
    return core(home, model=server, toml=text, environment={KEY: "sesame"}, clock=clock, **given)


async def run_turn(gateway: Core, text: str, name: str | None = "talk", **fields: Any) -> tuple[Outcome, list[str]]:
    """A turn to its end, and the notices to the user."""
    outcome, events = await follow_turn(gateway, text, name, **fields)
    return outcome, notices_of(events)


def line(number: int) -> str:
    return f"Message number {number}: {FILLER}"


async def talk(gateway: Core, turns: range, *, also: str = "") -> list[str]:
    """This many turns, all answered; all notices to the user."""
    notices: list[str] = []
    for number in turns:
        outcome, heard = await run_turn(gateway, line(number) + also)
        assert outcome.state == "answered", outcome.error
        notices += heard
    return notices


def spoken(server: ScriptedModel) -> list[Traced]:
    return [one for one in server.trace if not one.summary]


def written(server: ScriptedModel) -> list[Traced]:
    return [one for one in server.trace if one.summary]


def compactions(server: ScriptedModel) -> list[int]:
    """The numbers of the requests that did not extend the one before."""
    return [number for number, one in enumerate(spoken(server)) if one.came == "changed"]


async def check(gateway: Core, server: ScriptedModel, turns: int, *, window: int = WINDOW) -> None:
    """The invariants, whatever the model did."""
    assert max(one.tokens for one in server.trace if not one.refused) <= window
    rows = await gateway.store.read(messages.page, await _id(gateway), limit=10_000, most_bytes=1 << 30)
    assert [row.message.text for row in rows if row.message.role == "user"] == [line(n) for n in range(turns)]
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    changed = compactions(server)
    apart = [after - before for before, after in pairwise(changed)]
    assert min(apart, default=9) >= 3, "a compaction that is followed by another was of no use"
    assert server.stats()["refusals"] == []


async def _id(gateway: Core) -> str:
    def read(db: Any) -> str:
        return str(db.execute("SELECT id FROM sessions WHERE name = 'talk'").get)

    return await gateway.store.read(read)


# -- a model that writes summaries --


@formats
async def test_a_long_conversation_stays_within_its_window(
    home: Path, server: ScriptedModel, clock: Clock, api: str
) -> None:
    """S03, S35: each compaction is announced, nothing is cut, and between two compactions each request begins with the
    complete one before."""
    async with long(home, server, clock, api) as gateway:
        session = (await gateway.say(line(0))).session
        notices = await talk(gateway, range(1, TURNS))
        await check(gateway, server, TURNS)
        assert await _id(gateway) == session
        rows = await gateway.store.read(summaries.shown, session)
    changed = compactions(server)
    assert 2 <= len(changed) <= TURNS // 4
    assert len(notices) == len(changed)
    assert all("summary" in notice and "Nothing is deleted" in notice for notice in notices)
    assert rows and all(row.how == "model" for row in rows)
    assert len(written(server)) <= 2 * len(changed)


@formats
async def test_a_summary_by_another_model_fits_into_that_ones_window(
    home: Path, server: ScriptedModel, clock: Clock, api: str
) -> None:
    async with long(home, server, clock, api, context='model = "scribe"') as gateway:
        await talk(gateway, range(TURNS))
        await check(gateway, server, TURNS)
    assert written(server), "it was asked"
    assert max(one.tokens for one in written(server)) <= 1500
    bodies = [recorded.decoded() for recorded in server.recorded]
    assert {body["model"] for body in bodies if SUMMARY_TASK in json.dumps(body)} == {"scribe"}


@formats
@pytest.mark.parametrize("behaviour", ["good", "empty"])
async def test_the_request_is_the_same_after_an_unload_and_after_a_restart(
    home: Path, server: ScriptedModel, clock: Clock, api: str, behaviour: str
) -> None:
    """S03, S32: with summaries, and with lists written without a model."""
    be(server, behaviour)
    async with long(home, server, clock, api, drain=None) as gateway:
        await talk(gateway, range(20))
        assert compactions(server)
        before = len(compactions(server))
        gateway.components.presence.unload(await _id(gateway), reason="test")
        await talk(gateway, range(20, 21))
    async with long(home, server, clock, api) as gateway:
        await talk(gateway, range(21, 22))
        await check(gateway, server, 22)
    assert [one.came for one in spoken(server)[-2:]] == ["whole", "whole"]
    assert len(compactions(server)) == before


# -- one that misbehaves --


@formats
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
async def test_whatever_the_summary_is_like_the_conversation_goes_on(
    home: Path, server: ScriptedModel, clock: Clock, api: str, behaviour: str
) -> None:
    """S35, S36: within the window, with everything kept, and with a bounded number of calls: after a useless summary no
    model is asked for another until the cooldown is over."""
    be(server, behaviour)
    async with long(home, server, clock, api) as gateway:
        notices = await talk(gateway, range(TURNS))
        await check(gateway, server, TURNS)
        changed = compactions(server)
        assert 2 <= len(changed) <= TURNS // 4
        assert len(notices) == len(changed), "told once each"
        used = BEHAVIOURS[behaviour] == ""
        if not used:
            most = 4 if behaviour == "[close]" else 2
            assert len(written(server)) <= most, "one and a terser one; what is hung up on at once is sent again"
            assert all(BEHAVIOURS[behaviour] in notice for notice in notices), notices
    assert len(spoken(server)) == TURNS


@pytest.mark.parametrize(("api", "behaviour"), [("openai-chat", "[hang]"), ("anthropic", "[words 40] [hang after=9]")])
async def test_a_summary_that_never_comes_is_not_waited_for(
    home: Path, server: ScriptedModel, clock: Clock, api: str, behaviour: str
) -> None:
    be(server, behaviour)
    async with long(home, server, clock, api) as gateway:
        notices = await talk(gateway, range(TURNS))
        await check(gateway, server, TURNS)
    assert len(written(server)) <= 2
    assert any("no answer within" in notice for notice in notices), notices


async def test_a_terser_summary_is_asked_for_once_and_used(home: Path, server: ScriptedModel, clock: Clock) -> None:
    be(server, "longer", times=1)
    async with long(home, server, clock) as gateway:
        await talk(gateway, range(20))
        rows = await gateway.store.read(summaries.shown, await _id(gateway))
    assert [row.how for row in rows][:1] == ["terse"]
    assert len(written(server)) >= 2


@formats
async def test_the_cooldown_is_kept_over_turns_and_over_a_restart(
    home: Path, server: ScriptedModel, clock: Clock, api: str
) -> None:
    """S35: then the model is asked again."""
    be(server, "empty")
    async with long(home, server, clock, api, drain=None) as gateway:
        await talk(gateway, range(20))
        asked = len(written(server))
        assert 1 <= asked <= 2 and compactions(server)
    async with long(home, server, clock, api) as gateway:
        await talk(gateway, range(20, TURNS))
        assert len(written(server)) == asked
        clock.now += COOLDOWN + 1
        be(server, "good")
        await talk(gateway, range(TURNS, TURNS + 15))
        await check(gateway, server, TURNS + 15)
        rows = await gateway.store.read(summaries.shown, await _id(gateway))
    assert len(written(server)) > asked
    assert rows[-1].how == "model"


async def test_one_conversations_cooldown_is_no_other_ones(home: Path, server: ScriptedModel, clock: Clock) -> None:
    """S36"""
    be(server, "empty", times=1)
    async with long(home, server, clock) as gateway:
        await talk(gateway, range(20))
        asked = len(written(server))
        for number in range(20):
            outcome, _ = await run_turn(gateway, line(number), "another")
            assert outcome.state == "answered"
    assert len(written(server)) > asked


async def test_one_conversations_summary_holds_up_no_other(home: Path, server: ScriptedModel, clock: Clock) -> None:
    """S36: another is answered while the first waits for its summary."""
    be(server, "[hold summary]")
    async with long(home, server, clock, context="soft = 0.79") as gateway, anyio.create_task_group() as group:
        group.start_soon(talk, gateway, range(20))
        with anyio.fail_after(WAIT):
            await server.held("summary")
            for number in range(3):
                outcome, _ = await run_turn(gateway, f"quick {number}", "other")
                assert outcome.state == "answered"
        server.release("summary")


@pytest.mark.parametrize("behaviour", ["good", "empty"])
async def test_compactions_stay_apart_however_long_it_goes_on(
    home: Path, server: ScriptedModel, clock: Clock, behaviour: str
) -> None:
    """S35: with summaries, and with lists written without a model; the part for old messages does not grow without
    bound."""
    be(server, behaviour)
    async with long(home, server, clock) as gateway:
        await talk(gateway, range(4 * TURNS))
        await check(gateway, server, 4 * TURNS)
    assert len(compactions(server)) <= 4 * TURNS // 5


@pytest.mark.parametrize("share", [0.15, 0.3])
async def test_a_long_prompt_takes_its_part_of_the_window_and_the_rest_is_used_as_well(
    home: Path, server: ScriptedModel, clock: Clock, share: float
) -> None:
    """S35: large prompts and tool lists are common; a good summary helps all the same."""
    prompt = (FILLER * 10)[: int(4 * share * WINDOW)]
    async with long(home, server, clock, prompt=prompt) as gateway:
        await talk(gateway, range(2 * TURNS))
        await check(gateway, server, 2 * TURNS)
        rows = await gateway.store.read(summaries.shown, await _id(gateway))
    assert {row.how for row in rows} == {"model"}


async def test_a_kill_while_a_summary_is_written_loses_nothing(home: Path, server: ScriptedModel, clock: Clock) -> None:
    """P06: the turn is resumed by the next process, and compacted there."""
    async with long(home, server, clock, context="soft = 0.79", drain=None) as gateway:
        be(server, "[hold summary]")
        accepted = None
        for number in range(20):
            accepted = await gateway.accept(line(number), "talk")
            with anyio.move_on_after(WAIT):
                async with anyio.create_task_group() as group:
                    group.start_soon(_until, gateway.service.wait, accepted.turn, group.cancel_scope)
                    group.start_soon(_until, server.held, "summary", group.cancel_scope)
            if server.latch("summary").arrived.is_set():
                break
    assert accepted is not None
    server.release("summary")
    be(server)
    async with long(home, server, clock, context="soft = 0.79") as gateway:
        assert (await gateway.answered(accepted.turn)).state == "answered"
        await talk(gateway, range(number + 1, 20))
        await check(gateway, server, 20)


async def _until(wait: Any, what: str, scope: anyio.CancelScope) -> None:
    await wait(what)
    scope.cancel()


blocks = st.lists(st.sampled_from(["good", *BEHAVIOURS]), min_size=3, max_size=6)


@given(blocks)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_the_summaries_are_like_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, moods: list[str]
) -> None:
    """S35: with changing behaviour and a moving clock."""
    clock = Clock()
    async with ScriptedModel() as server:
        be(server)
        async with long(tmp_path_factory.mktemp("moods"), server, clock) as gateway:
            for number, behaviour in enumerate(moods):
                be(server, behaviour)
                await talk(gateway, range(12 * number, 12 * (number + 1)))
                clock.now += COOLDOWN / 2
            await check(gateway, server, 12 * len(moods))
        assert len(written(server)) <= 4 * len(compactions(server)) + 4


# -- within one turn --


async def test_a_turn_with_many_long_results_is_worked_to_its_end(
    home: Path, server: ScriptedModel, clock: Clock
) -> None:
    """Larger than the window: no call is separated from its result, which the strict server would refuse."""
    page = json.dumps({"path": "page.txt", "content": FILLER * 3})
    steps = '[tool read_file {"path": "page.txt"}] ' * 15
    folder = home.with_name("project")
    folder.mkdir()
    folder.chmod(0o777)  # where root has made it, agents are another user
    more = f'workspace = "{folder}"\n[workspaces]\nbackend = "local"\n[limits]\nrepeats = 100'
    async with long(home, server, clock, agent=more, tools='"files"', window=2 * WINDOW) as gateway:
        await run_turn(gateway, f"[tool write_file {page}]")
        outcome, notices = await run_turn(gateway, f"Read it many times. {steps}")
        assert outcome.state == "answered", outcome.error
        assert notices
        rows = await gateway.store.read(messages.journal, outcome.turn)
        assert len(rows) == len({row.step for row in rows}), "no step was made twice"
        outcome, _ = await run_turn(gateway, "and now")
        assert outcome.state == "answered"
    assert max(one.tokens for one in server.trace) <= 2 * WINDOW
    assert server.stats()["refusals"] == []


@formats
async def test_a_message_that_is_longer_than_the_window_is_shown_by_an_excerpt(
    home: Path, server: ScriptedModel, clock: Clock, api: str
) -> None:
    """Nothing is cut silently: the user is notified, the model sees that something is left out, and it is stored."""
    giant = "start " + FILLER * 60 + " end"
    async with long(home, server, clock, api) as gateway:
        await run_turn(gateway, "hello")
        outcome, notices = await run_turn(gateway, giant)
        assert outcome.state == "answered", outcome.error
        assert len(notices) == 1 and "excerpt" in notices[0]
        rows = await gateway.store.read(messages.page, outcome.session, limit=10, most_bytes=1 << 30)
        assert rows[2].message.text == giant
    body = server.recorded[-1].body.decode()
    assert "start the tide" in body and "left out" in body
    assert max(one.tokens for one in server.trace) <= WINDOW


# -- a window that is too small --


@formats
async def test_a_window_too_small_for_the_prompt_is_reported_at_once(
    home: Path, server: ScriptedModel, clock: Clock, api: str
) -> None:
    """One sentence says what to do, and no model is called in vain."""
    async with long(home, server, clock, api, window=1024, prompt=FILLER * 10) as gateway:
        outcome, _ = await run_turn(gateway, "hello")
        assert outcome.state == "failed" and outcome.error is not None
        assert "window of 1,024 tokens" in outcome.error.message and "larger window" in outcome.error.message
        assert not server.trace
        rows = await gateway.store.read(messages.page, outcome.session)
        assert rows[0].message.text == "hello"


@pytest.mark.parametrize("window", [1200, 2000, 3000])
async def test_a_small_window_holds_a_conversation_all_the_same(
    home: Path, server: ScriptedModel, clock: Clock, window: int
) -> None:
    async with long(home, server, clock, window=window) as gateway:
        for number in range(30):
            outcome, _ = await run_turn(gateway, f"Message number {number}: {FILLER[:200]}")
            assert outcome.state == "answered", outcome.error
    assert max(one.tokens for one in server.trace) <= window
    assert len(server.trace) <= 2 * 30


# -- a provider that takes less than was thought --


@formats
async def test_a_request_that_is_too_long_is_compacted_and_tried_once_more(
    home: Path, server: ScriptedModel, clock: Clock, api: str
) -> None:
    """The provider's own error message, in each format; the next request after a refusal is accepted."""
    be(server, windows={"*": 2000})
    async with long(home, server, clock, api, window=8000) as gateway:
        notices = await talk(gateway, range(TURNS))
        await check(gateway, server, TURNS)
    requests = spoken(server)
    refused = [number for number, one in enumerate(requests) if one.refused]
    assert refused and all(not requests[number + 1].refused for number in refused)
    assert len(refused) <= TURNS // 4
    assert len(notices) >= len(refused)


@formats
async def test_a_request_that_is_still_too_long_fails_and_is_not_tried_a_third_time(
    home: Path, server: ScriptedModel, clock: Clock, api: str
) -> None:
    async with long(home, server, clock, api, window=8000) as gateway:
        await talk(gateway, range(10))
        be(server, windows={"*": 20})
        before = len(spoken(server))
        outcome, _ = await run_turn(gateway, "one more")
        assert outcome.state == "failed" and outcome.error is not None
        assert "too long" in outcome.error.message
        assert len(spoken(server)) - before == 2
        be(server)
        outcome, _ = await run_turn(gateway, "again")
        assert outcome.state == "answered"
    assert server.stats()["refusals"] == []


@formats
async def test_a_body_that_is_too_large_is_made_smaller_once(
    home: Path, server: ScriptedModel, clock: Clock, api: str
) -> None:
    async with long(home, server, clock, api, window=8000) as gateway:
        await talk(gateway, range(10))
        be(server, body_bytes=9000)
        before = len(spoken(server))
        outcome, notices = await run_turn(gateway, line(10))
        assert outcome.state == "answered", outcome.error
        assert len(spoken(server)) - before == 2
        assert notices
        rows = await gateway.store.read(messages.page, outcome.session, limit=100)
        assert [row.message.text for row in rows if row.message.role == "user"] == [line(n) for n in range(11)]


@formats
async def test_a_picture_that_is_too_large_is_described_in_words(
    home: Path, server: ScriptedModel, clock: Clock, api: str
) -> None:
    """Not by a summary: the picture itself is handled."""
    be(server, image_bytes=50)
    picture = Media(media_type="image/png", data=saved(plain(64, 64), "PNG"), width=64, height=64)
    shown = Message(role="user", text="What is this?", media=(picture,))
    async with long(home, server, clock, api, window=8000) as gateway:
        outcome, notices = await run_turn(gateway, "", messages=(shown,))
        assert outcome.state == "answered", outcome.error
        assert len(notices) == 1 and "image" in notices[0]
        assert [one.refused for one in spoken(server)] == [True, False]
        outcome, notices = await run_turn(gateway, "and now")
        assert (outcome.state, notices) == ("answered", [])
        assert [one.refused for one in spoken(server)] == [True, False, False]
        rows = await gateway.store.read(messages.page, outcome.session)
        assert rows[0].message.media, "it is kept"
    assert written(server) == []


@formats
async def test_a_refused_document_is_described_in_words(
    home: Path, server: ScriptedModel, clock: Clock, api: str
) -> None:
    """D3, D5: a damaged document, or an endpoint that accepts none, does not end the conversation."""
    be(server, documents=False)
    document = Media(media_type="application/pdf", data=b"%PDF-1.7", name="tides.pdf", size=8)
    shown = Message(role="user", text="What is this?", media=(document,))
    async with long(home, server, clock, api, window=8000) as gateway:
        outcome, notices = await run_turn(gateway, "", messages=(shown,))
        assert outcome.state == "answered", outcome.error
        assert len(notices) == 1 and "refused a document" in notices[0]
        assert b"[document: application/pdf, tides.pdf, left out here]" in server.recorded[-1].body
        outcome, notices = await run_turn(gateway, "and now")
        assert (outcome.state, notices) == ("answered", [])
        assert [one.refused for one in spoken(server)] == [True, False, False]
        rows = await gateway.store.read(messages.page, outcome.session)
        assert rows[0].message.media, "it is kept"


@formats
async def test_a_provider_that_holds_its_window_refuses_nothing(
    home: Path, server: ScriptedModel, clock: Clock, api: str
) -> None:
    """With tools in between, and signed reasoning where the format has it."""
    be(server, windows={"*": WINDOW - OUTPUT})
    async with long(home, server, clock, api, agent='reasoning = "medium"') as gateway:
        for number in range(2 * TURNS):
            outcome, _ = await run_turn(gateway, line(number) + (" [tool clock {}]" if number % 3 == 0 else ""))
            assert outcome.state == "answered", outcome.error
    assert len(compactions(server)) >= 3
    assert (server.stats()["refusals"], server.stats()["too_much"]) == ([], 0)


async def test_another_script_is_counted_as_the_provider_counts_it(
    home: Path, server: ScriptedModel, clock: Clock
) -> None:
    """Tokens per byte differ by language; the estimate of one is wrong for the other, and is corrected."""
    be(server, windows={"*": WINDOW})
    texts = {0: "潮が満ち、潮が引く。" * 80, 1: FILLER * 2}
    async with long(home, server, clock) as gateway:
        for number in range(2 * TURNS):
            outcome, _ = await run_turn(gateway, f"{number}: {texts[number // 10 % 2]}")
            assert outcome.state == "answered", outcome.error
    assert server.stats()["too_much"] <= 2


async def test_a_writer_of_summaries_that_takes_less_than_was_thought_is_done_without(
    home: Path, server: ScriptedModel, clock: Clock
) -> None:
    be(server, windows={"scribe": 300})
    async with long(home, server, clock, context='model = "scribe"') as gateway:
        notices = await talk(gateway, range(TURNS))
        await check(gateway, server, TURNS)
    assert len(written(server)) <= 2
    assert notices and all("too long" in notice for notice in notices)


@formats
async def test_a_substitute_with_a_smaller_window_is_asked_within_it(
    home: Path, server: ScriptedModel, clock: Clock, api: str
) -> None:
    be(server, windows={"scribe": 1500})
    async with long(home, server, clock, api, window=4 * WINDOW, agent='fallback = ["scribe"]') as gateway:
        await talk(gateway, range(TURNS))
        assert compactions(server) == []
        before = len(spoken(server))
        outcome, notices = await run_turn(gateway, f"[status 503 times=1] {FILLER}")
        assert outcome.state == "answered", outcome.error
        assert len(notices) == 2, "who answers, and what is shown"
        for number in range(5):
            outcome, _ = await run_turn(gateway, line(number))
            assert outcome.state == "answered", outcome.error
    asked = spoken(server)[before:]
    assert len(asked) == 7 and all(one.tokens <= 1500 and not one.refused for one in asked[1:])
    assert server.stats()["refusals"] == []


@formats
async def test_undoing_summarised_messages_shows_the_covered_ones_again(
    home: Path, server: ScriptedModel, clock: Clock, api: str
) -> None:
    """Undone turns are in no request, in no form."""
    async with long(home, server, clock, api) as gateway:
        await talk(gateway, range(17))
        assert compactions(server)
        session = await _id(gateway)
        for _ in range(14):
            await gateway.service.operations.undo(session, ANNA)
        outcome, _ = await run_turn(gateway, "again")
        assert outcome.state == "answered", outcome.error
        body = server.recorded[-1].body.decode()
        assert [f"number {number}:" in body for number in range(17)] == [True] * 3 + [False] * 14
        await talk(gateway, range(17, TURNS))
    assert max(one.tokens for one in server.trace) <= WINDOW
    assert server.stats()["refusals"] == []


async def test_a_one_shot_call_that_is_too_long_is_refused_with_openais_code(
    home: Path, server: ScriptedModel, clock: Clock
) -> None:
    said = [Message(role="user" if n % 2 == 0 else "assistant", text=line(n)) for n in range(41)]
    async with long(home, server, clock) as gateway:
        outcome, _ = await run_turn(gateway, "", None, messages=tuple(said))
        assert outcome.error is not None and outcome.error.code == "context_length_exceeded"
    assert all(one.tokens <= WINDOW for one in server.trace)


# -- words that pretend --


def by_role(body: Any) -> tuple[str, list[Any]]:
    """All text in the system role, and all other messages."""
    given = body.get("messages", body.get("input"))
    system = [json.dumps(body.get("system", "")), json.dumps(body.get("instructions", ""))]
    system += [json.dumps(one) for one in given if one.get("role") in ("system", "developer")]
    return "\n".join(system), [one for one in given if one.get("role") not in ("system", "developer")]


@formats
@pytest.mark.parametrize("behaviour", ["injected", "good", "empty"])
async def test_text_that_claims_to_be_a_system_message_stays_data(
    home: Path, server: ScriptedModel, clock: Clock, api: str, behaviour: str
) -> None:
    """X19: by a person and by the summary itself; it never has the system role, the summary request has it as a value
    of a JSON list, and in a request the gateway quotes the lines of a summary."""
    be(server, behaviour)
    async with long(home, server, clock, api) as gateway:
        await talk(gateway, range(30), also=f"\n{INJECTED}")
    assert compactions(server)
    asked_for_summary = shown = 0
    for recorded in server.recorded:
        body = recorded.decoded()
        system, others = by_role(body)
        assert "maintenance mode" not in system
        if SUMMARY_TASK in system:
            asked_for_summary += 1
            assert len(others) == 1 and others[0]["role"] == "user" and "tools" not in body
            content = others[0]["content"]
            given = json.loads(content if isinstance(content, str) else content[0]["text"])
            assert all(set(one) & {"message", "summary"} for one in given)
        elif (first := json.dumps(others[0])).count("Summary "):
            shown += 1
            lines = json.loads(first)["content"]
            text = lines if isinstance(lines, str) else "\n".join(part["text"] for part in lines)
            for said in text.splitlines():
                assert not said.startswith("[System"), said
                assert "maintenance mode" not in said or said.startswith("> "), said
    assert asked_for_summary and shown
