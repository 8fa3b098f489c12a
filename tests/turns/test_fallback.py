"""Fallback between models: announced once, kept for a while, and over when its time is; over real sockets."""

import base64
import gc
import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core import ANNA, WAIT, Core, core
from tests.faulty_model import FORMATS, KEY, NAMES, FaultyModel, toml
from tests.logs import capture_logs
from tests.spool.pictures import plain, saved
from tidegate.engine.journal import Journal
from tidegate.errors import ModelKind
from tidegate.models.http.cooldown import COOLDOWN_SECONDS
from tidegate.models.http.keyring import ROTATED
from tidegate.sessions import SessionView
from tidegate.store import messages
from tidegate.store import settings as stored
from tidegate.turns.fallback import UNHELPED
from tidegate.values import Call, Event, Notice, Outcome, TextDelta, TextReset, TurnEnded

pytestmark = pytest.mark.anyio

ANSWER = "The tide comes in, the gate keeps the level."
STAYS = 900.0
"""Seconds that a session stays with its fallback by default."""


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def server() -> AsyncIterator[FaultyModel]:
    async with FaultyModel() as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


def falling(home: Path, server: FaultyModel, clock: Clock, agent: str = "", **given: Any) -> Any:
    options = {name: given.pop(name) for name in ("formats", "more", "each") if name in given}
    given = {"toml": toml(server.base_url, agent, **options), "environment": {KEY: "sesame"}, **given}
    return core(home, model=server, clock=clock, **given)


async def follow_turn(
    gateway: Core, text: str, name: str | None = "talk", **fields: Any
) -> tuple[Outcome, list[Event]]:
    """A turn to its end, and all events for its readers."""
    with anyio.fail_after(WAIT):
        accepted = await gateway.accept(text, name, **fields)
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        events: list[Event] = []
        async with aclosing(log.read()) as batches:
            async for batch in batches:
                events += batch
    ended = events[-1]
    assert isinstance(ended, TurnEnded)
    return ended.outcome, events


def notices(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def shown(events: list[Event]) -> str:
    """The text of a client that applies resets."""
    text = ""
    for event in events:
        text = "" if isinstance(event, TextReset) else text + event.text if isinstance(event, TextDelta) else text
    return text


async def view(gateway: Core, session: str) -> SessionView:
    return await gateway.service.session(session, ANNA)


FELL = "The model first is overloaded, so second answers for now."
AGAIN = "The model first answers again."


async def test_a_session_falls_back_and_returns_and_its_user_is_notified_once(
    home: Path, server: FaultyModel, clock: Clock
) -> None:
    async with falling(home, server, clock) as gateway:
        server.directives["first"] = "[status 503]"
        outcome, events = await follow_turn(gateway, "one")
        assert (outcome.state, outcome.text) == ("answered", ANSWER)
        assert notices(events) == [FELL]
        del server.directives["first"]
        clock.now += COOLDOWN_SECONDS["overloaded"] + 1
        for text in ("two", "three"):
            _, events = await follow_turn(gateway, text)
            assert notices(events) == []
        assert server.requested == ["first", "second", "second", "second"], "the first is back, but the session stays"
        clock.now += STAYS
        _, events = await follow_turn(gateway, "four")
        assert notices(events) == [AGAIN]
        _, events = await follow_turn(gateway, "five")
        assert notices(events) == []
    assert server.requested[4:] == ["first", "first"]
    assert server.stats()["refused"] == 0


async def test_a_model_that_keeps_failing_is_not_reported_again(home: Path, server: FaultyModel, clock: Clock) -> None:
    server.directives["first"] = "[status 503]"
    async with falling(home, server, clock) as gateway:
        _, events = await follow_turn(gateway, "one")
        assert notices(events) == [FELL]
        for _ in range(3):
            clock.now += STAYS + 1
            outcome, events = await follow_turn(gateway, "again")
            assert (outcome.state, notices(events)) == ("answered", [])
        assert server.requested == ["first", "second"] * 4
        found = (await view(gateway, outcome.session)).fallback
        assert found is not None and found.until == clock.now + STAYS


async def test_another_session_does_not_ask_a_model_that_rests(home: Path, server: FaultyModel, clock: Clock) -> None:
    """It is notified as if it had fallen back itself, with the true reason."""
    server.directives["first"] = "[status 402]"
    async with falling(home, server, clock) as gateway:
        await follow_turn(gateway, "one", "a")
        _, events = await follow_turn(gateway, "two", "b")
        assert notices(events) == ["The model first has no quota left, so second answers for now."]
        assert server.requested == ["first", "second", "second"]
        clock.now += COOLDOWN_SECONDS["quota"] + 1
        del server.directives["first"]
        _, events = await follow_turn(gateway, "three", "c")
        assert notices(events) == []
        assert server.requested[3:] == ["first"], "who never fell back asks it as soon as it has rested"


async def test_the_substitute_survives_unload_and_restart(home: Path, server: FaultyModel, clock: Clock) -> None:
    """S05: cooldowns are forgotten with the process, the session's own setting is not."""
    server.directives["first"] = "[status 503]"
    async with falling(home, server, clock, drain=None) as gateway:
        session = (await gateway.say("one")).session
        gateway.components.presence.unload(session, reason="test")
        await gateway.say("two")
    del server.directives["first"]
    async with falling(home, server, clock) as gateway:
        _, events = await follow_turn(gateway, "three")
        assert notices(events) == []
        assert server.requested == ["first", "second", "second", "second"]
        fallback = (await view(gateway, session)).fallback
        assert fallback is not None
        assert (fallback.model, fallback.instead_of, fallback.why) == ("second", "first", "overloaded")
        clock.now += STAYS + 1
        _, events = await follow_turn(gateway, "four")
        assert notices(events) == [AGAIN]
        assert (await view(gateway, session)).fallback is None


async def test_a_chosen_model_is_used_without_fallback(home: Path, server: FaultyModel, clock: Clock) -> None:
    """Choice and fallback are separate settings, and neither changes the other."""
    async with falling(home, server, clock) as gateway:
        session = (await gateway.say("one")).session
        await gateway.service.operations.set_setting(session, ANNA, "model", "third", source="command")
        server.directives["third"] = "[status 503]"
        outcome, events = await follow_turn(gateway, "two")
        assert outcome.state == "failed" and outcome.error is not None
        assert outcome.error.message.startswith("Model 'third'")
        assert notices(events) == []
        assert server.requested == ["first", "third"]
        outcome, _ = await follow_turn(gateway, "three")
        assert outcome.state == "failed", "it rests for who could have another, not for who chose it"
        assert server.requested == ["first", "third", "third"]
        seen = await view(gateway, session)
        assert (seen.model, seen.settings["model"].value, seen.fallback) == ("third", "third", None)

        server.directives = {"first": "[status 503]"}
        await gateway.service.operations.clear_setting(session, ANNA, "model")
        await gateway.say("four")
        await gateway.service.operations.set_setting(session, ANNA, "model", "first", source="command")
        outcome, _ = await follow_turn(gateway, "five")
        assert outcome.state == "failed", "the agent's own too, when a person chose it by name"
        await gateway.service.operations.clear_setting(session, ANNA, "model")
        assert (await view(gateway, session)).model == "second"
        assert "fallback" not in (await view(gateway, session)).settings


@pytest.mark.parametrize("code", ["context_length_exceeded", "content_filter"])
async def test_a_failure_about_the_content_does_not_fall_back(
    home: Path, server: FaultyModel, clock: Clock, code: str
) -> None:
    async with falling(home, server, clock) as gateway:
        outcome, events = await follow_turn(gateway, f"[status 400 code={code}]")
        assert outcome.state == "failed" and notices(events) == []
        outcome, _ = await follow_turn(gateway, "and now")
        assert outcome.state == "answered"
    assert server.requested == ["first", "first"], "it does not rest"


async def test_one_conversations_fault_takes_no_model_from_the_others(
    home: Path, server: FaultyModel, clock: Clock
) -> None:
    """An invalid request is tried with another model, since each accepts other things; the model gets no cooldown."""
    async with falling(home, server, clock) as gateway:
        outcome, events = await follow_turn(gateway, "[status 413 times=1]", "a")
        assert (outcome.state, notices(events)) == ("answered", ["The model first fails, so second answers for now."])
        await gateway.say("two", "a")
        await gateway.say("three", "b")
    assert server.requested == ["first", "second", "second", "first"]


async def test_the_error_names_every_model_of_the_chain(home: Path, server: FaultyModel, clock: Clock) -> None:
    server.directives = {"first": "[status 429]", "second": "[cut after=0]"}
    async with falling(home, server, clock) as gateway:
        outcome, events = await follow_turn(gateway, "one")
        assert outcome.state == "answered"
        assert notices(events) == [
            "The model first is over its rate limit, so second answers for now.",
            "The model first is over its rate limit, so third answers for now.",
        ]
        assert list(outcome.notices) == notices(events)
        assert await gateway.service.outcome(outcome.turn, ANNA) == outcome, "who did not follow is told the same"
        server.directives["third"] = "[status 500]"
        outcome, events = await follow_turn(gateway, "two")
        assert outcome.state == "failed" and outcome.error is not None
        assert outcome.error.message.startswith("Model 'third'")
        assert "Not tried, because they failed recently and are in cooldown: first, second." in outcome.error.message
        assert server.requested == [*NAMES, "third"], "who rests is not asked, not even at the last"
        outcome, events = await follow_turn(gateway, "three")
        assert server.requested == [*NAMES, "third", "third"], "when all rest, the session asks whom it has"
        clock.now += COOLDOWN_SECONDS["rate"] + 1
        server.directives = {"third": "[status 500]"}
        outcome, events = await follow_turn(gateway, "four")
        assert (outcome.state, notices(events)) == ("answered", [AGAIN])
        assert server.requested[5:] == ["third", "first"], "a substitute that fails is left for the agent's own"


async def test_two_names_of_one_model_are_asked_once(home: Path, server: FaultyModel, clock: Clock) -> None:
    text = toml(server.base_url).replace('model = "second"', 'model = "first"')
    server.directives["first"] = "[status 503]"
    async with falling(home, server, clock, toml=text) as gateway:
        assert (await gateway.say("one")).state == "answered"
    assert server.requested == ["first", "third"]


async def test_a_time_of_nothing_means_that_the_own_model_is_tried_each_time(
    home: Path, server: FaultyModel, clock: Clock
) -> None:
    server.directives["first"] = "[status 400]"
    async with falling(home, server, clock, "fallback_for = 0") as gateway:
        assert [len(notices((await follow_turn(gateway, text))[1])) for text in ("one", "two", "three")] == [1, 0, 0]
    assert server.requested == ["first", "second"] * 3


async def test_a_clock_that_is_set_back_does_not_keep_a_substitute(
    home: Path, server: FaultyModel, clock: Clock
) -> None:
    server.directives["first"] = "[status 503]"
    async with falling(home, server, clock) as gateway:
        await gateway.say("one")
        del server.directives["first"]
        clock.now -= 1_000_000
        await gateway.say("two")
    assert server.requested == ["first", "second", "first"]


async def test_a_chain_that_was_changed_is_obeyed(home: Path, server: FaultyModel, clock: Clock) -> None:
    """The setting names a model that is no longer in it, or no longer configured."""
    server.directives["first"] = "[status 503]"
    async with falling(home, server, clock) as gateway:
        session = (await gateway.say("one")).session
    text = toml(server.base_url).replace('fallback = ["second", "third"]', 'fallback = ["third"]')
    text = text.replace("[models.second]", "[models.renamed]")
    async with falling(home, server, clock, toml=text) as gateway:
        assert (await view(gateway, session)).model == "first"
        _, events = await follow_turn(gateway, "two")
        assert notices(events) == ["The model first is overloaded, so third answers for now."]
    assert server.requested == ["first", "second", "first", "third"]


async def test_an_unreadable_fallback_setting_is_ignored(home: Path, server: FaultyModel, clock: Clock) -> None:
    async with falling(home, server, clock) as gateway:
        session = (await gateway.say("one")).session
        await gateway.store.write(stored.put, session, "fallback", {"model": 7}, "fallback", clock(), None)
        assert (await gateway.say("two")).state == "answered"
        assert (await view(gateway, session)).fallback is None


# -- in the middle of a turn --


@pytest.mark.parametrize(("own", "other"), list(itertools.product(FORMATS, FORMATS)))
async def test_a_turn_goes_on_in_mid_turn_in_another_format(
    home: Path, server: FaultyModel, clock: Clock, own: str, other: str
) -> None:
    """P05, S32: after tool calls, once, and in the next turn; no committed step is repeated."""
    script = (
        '[saying first] [tool clock {}] [together clock {} write_file {"path": "a", "content": "x"}] [tool clock {}]'
    )
    async with falling(home, server, clock, formats=(own, other, own)) as gateway:
        await gateway.say("before [tool clock {}]")
        before = len(server.requested)
        server.directives["first"] = "[status 503 step=2]"
        outcome, events = await follow_turn(gateway, script)
        assert (outcome.state, outcome.steps) == ("answered", 4), outcome.error
        assert server.requested[before:] == ["first"] * 3 + ["second"] * 2
        assert notices(events) == [FELL]
        rows = await gateway.store.read(messages.journal, outcome.turn)
        assert len(rows) == len({row.step for row in rows})
        assert sum(row.message.role == "tool" for row in rows) == 4
        assert (await gateway.say("after [tool clock {}]")).state == "answered"
        assert server.requested[before + 5 :] == ["second"] * 2
        gateway.components.presence.unload(outcome.session, reason="test")
        clock.now += 2 * STAYS
        del server.directives["first"]
        assert (await gateway.say("back")).state == "answered"
        assert server.requested[-1] == "first"
    assert server.stats()["refusals"] == []


async def test_a_message_during_a_failing_call_is_delivered_once(home: Path, server: FaultyModel, clock: Clock) -> None:
    """S14: it waits for the next step, whatever model is called."""
    server.directives["first"] = "[hold gate] [status 503]"
    async with falling(home, server, clock) as gateway:
        accepted = await gateway.accept("one [tool clock {}]")
        with anyio.fail_after(WAIT):
            await server.held("gate")
        steered = await gateway.accept("and this too", busy="steer")
        assert steered.how == "steered"
        server.release("gate")
        outcome = await gateway.answered(accepted.turn)
        assert outcome.state == "answered"
        last = server.recorded[-1].decoded()["messages"]
        assert [message["content"] for message in last if message["role"] == "user"] == [
            "one [tool clock {}]",
            "and this too",
        ]


async def test_text_that_was_shown_is_void_and_every_broken_call_is_paid_for_once(
    home: Path, server: FaultyModel, clock: Clock
) -> None:
    """Each under its own model's name, in the rows and in the turn's count."""
    server.directives = dict.fromkeys(NAMES[:2], "[saying some words before it breaks off] [cut after=4]")
    async with falling(home, server, clock) as gateway:
        outcome, events = await follow_turn(gateway, "one [tool clock {}]")
        assert outcome.state == "answered"
        assert shown(events) == outcome.text == ANSWER
        assert sum(isinstance(event, TextReset) for event in events) == 2
        rows, total = await gateway.store.read(_used)
        assert rows == {"first": (1, 1), "second": (1, 1), "third": (2, 0)}
        assert total == outcome.usage.tokens


def _used(db: Any) -> tuple[dict[str, tuple[int, int]], int]:
    """Calls and estimated ones by model, and all tokens."""
    found: dict[str, tuple[int, int]] = {}
    total = 0
    for model, estimated, tokens in db.execute("SELECT model, estimated, input + output FROM usage ORDER BY id"):
        calls, guessed = found.get(model, (0, 0))
        found[model] = (calls + 1, guessed + estimated)
        total += tokens
    return found, total


async def test_every_call_is_recorded_with_its_agent_channel_and_job(
    home: Path, server: FaultyModel, clock: Clock
) -> None:
    """X22: calls of several steps, broken and repeated ones, a fallback's, those of a failed turn and of a
    stopped one."""
    text = toml(server.base_url).replace("retries = 0", "retries = 1").replace("[agents.main]", "[agents.helper]")
    made_for = {"agent": "helper", "channel": "terminal", "job": "news"}
    async with falling(home, server, clock, toml=text) as gateway:
        server.directives["first"] = "[saying some words] [cut after=4]"
        outcome, _ = await follow_turn(gateway, "one [tool clock {}]", **made_for)
        assert outcome.state == "answered"
        server.directives = dict.fromkeys(NAMES, "[words 9] [cut after=4]")
        clock.now += STAYS
        assert (await follow_turn(gateway, "two", **made_for))[0].state == "failed"
        server.directives = dict.fromkeys(NAMES, "[words 9] [hang after=4]")
        clock.now += STAYS
        accepted = await gateway.accept("three", "talk", **made_for)
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        with anyio.fail_after(WAIT):
            async with aclosing(log.read()) as batches:
                async for batch in batches:
                    if any(isinstance(event, TextDelta) for event in batch):
                        break
        await gateway.service.stop(outcome.session, ANNA)
        assert (await gateway.answered(accepted.turn)).state == "stopped"

        def whose(db: Any) -> tuple[int, set[Any]]:
            rows = [*db.execute("SELECT session, principal, agent, channel, job FROM usage")]
            return len(rows), set(rows)

        count, found = await gateway.store.read(whose)
        assert count == 2 + 2 + 2 * len(NAMES) + 1
        assert found == {(outcome.session, ANNA.id, *made_for.values())}


async def test_calls_that_broke_off_in_a_turn_that_failed_are_paid_for_once(
    home: Path, server: FaultyModel, clock: Clock
) -> None:
    """With the turn's end, since the last ones have no row to be recorded with."""
    server.directives = dict.fromkeys(NAMES, "[words 9] [cut after=4]")
    async with falling(home, server, clock) as gateway:
        outcome, _ = await follow_turn(gateway, "one")
        assert outcome.state == "failed"
        rows, total = await gateway.store.read(_used)
        assert rows == dict.fromkeys(NAMES, (1, 1))
        assert total == outcome.usage.tokens


@pytest.mark.parametrize("api", FORMATS)
@pytest.mark.parametrize("again", [False, True])
async def test_a_call_that_broke_off_before_its_first_word_is_paid_for(
    home: Path, server: FaultyModel, clock: Clock, api: str, again: bool
) -> None:
    """X22: the call was made, and the provider bills it. Nothing is withdrawn, since nobody saw it; and it is not
    retried if nothing is left to pay for it."""
    server.directives["first"] = "[cut after=3 times=1]"
    text = toml(server.base_url, formats=(api,) * 3).replace("retries = 0", f"retries = {again:d}")
    async with falling(home, server, clock, toml=text) as gateway:
        outcome, events = await follow_turn(gateway, "one [tool clock {}]", None)
        assert (outcome.state, shown(events)) == ("answered", ANSWER)
        assert not any(isinstance(event, TextReset) for event in events)
        rows, total = await gateway.store.read(_used)
        assert rows == ({"first": (3, 1)} if again else {"first": (1, 1), "second": (2, 0)})
        assert total == outcome.usage.tokens
    server.reset()
    poor = '[budgets.turn]\nper = "turn"\ntokens = 1\n'
    async with falling(home, server, clock, toml=text + poor) as gateway:
        outcome, _ = await follow_turn(gateway, "one [tool clock {}]", None)
        assert outcome.error is not None and outcome.error.code == "budget_spent"
        assert len(server.recorded) == 1


@pytest.mark.parametrize(("own", "other"), list(itertools.product(FORMATS, FORMATS)))
async def test_a_picture_of_a_tool_is_described_only_to_models_without_vision(
    home: Path, server: FaultyModel, clock: Clock, own: str, other: str
) -> None:
    """D3, A5: from any format to any other and back; no request is refused."""
    picture = saved(plain(4, 3), "PNG")
    folder = home.with_name("pictures")
    folder.mkdir()
    (folder / "a.png").write_bytes(picture)
    text = toml(server.base_url, f'fallback_for = 0\nworkspace = "{folder}"', formats=(own, other, own))
    text = text.replace("[models.first]", "[models.first]\nvision = true") + '[workspaces]\nbackend = "local"\n'
    sent = base64.b64encode(picture)
    async with falling(home, server, clock, toml=text) as gateway:
        for mood, asked, sees in (("", "first", True), ("[status 400]", "second", False), ("", "first", True)):
            server.directives["first"] = mood
            outcome, _ = await follow_turn(gateway, 'look [tool read_file {"path": "a.png"}]')
            assert outcome.state == "answered", outcome.error
            body = server.recorded[-1].body
            assert (server.requested[-1], sent in body, b"cannot see" in body) == (asked, sees, not sees)
    assert server.stats()["refusals"] == []


async def test_a_one_shot_call_falls_back_too_and_leaves_nothing(home: Path, server: FaultyModel, clock: Clock) -> None:
    server.directives["first"] = "[status 503 step=1]"
    async with falling(home, server, clock) as gateway:
        outcome, events = await follow_turn(gateway, "one [tool clock {}]", None)
        assert (outcome.state, notices(events)) == ("answered", [FELL])
        assert server.requested == ["first", "first", "second"]
        assert await gateway.store.read(stored.list_all, clock()) == []
        assert gateway.components.presence.stats().present == 0
        outcome, _ = await follow_turn(gateway, "two", None, call=Call(max_tokens=2))
        assert outcome.text == "The tide comes in,"
        assert server.requested[-1] == "second", "the first rests"


async def test_a_caller_that_leaves_during_a_fallback_leaves_nothing_behind(
    home: Path, server: FaultyModel, clock: Clock
) -> None:
    server.directives = {"first": "[status 503]", "second": "[hold there]"}
    async with falling(home, server, clock) as gateway:
        accepted = await gateway.accept("one", None)
        with anyio.fail_after(WAIT):
            await server.held("there")
        await gateway.components.engine.stop(accepted.turn, "by a test")
        assert (await gateway.answered(accepted.turn)).state == "stopped"
        assert gateway.components.presence.stats().present == 0
        assert list((await gateway.store.read(_used))[0]) == ["second"], "only it was cut off"
    assert server.requested == ["first", "second"]


async def test_the_residents_of_failed_models_are_let_go(home: Path, server: FaultyModel, clock: Clock) -> None:
    """A turn that falls back repeatedly holds only the answering model's conversation."""
    server.directives = {"first": "[status 400]", "second": "[status 400]"}
    async with falling(home, server, clock) as gateway:
        session = (await gateway.say("one")).session
        record = gateway.components.presence.get(session)
        assert record is not None and record.resident is not None and record.detached == ()
        assert gateway.components.presence.stats().residents == 1
        before = record.resident
        await gateway.say("two")
        assert record.resident is before, "the substitute's resident is kept as any other"


async def test_a_step_of_another_model_is_kept_when_the_turn_is_replayed(
    home: Path, server: FaultyModel, clock: Clock
) -> None:
    """P06, P16: a crash after the fallback's first step; the next process continues with it."""
    server.directives = {"first": "[status 503]", "second": "[hold there step=1]"}
    async with falling(home, server, clock, drain=None) as gateway:
        accepted = await gateway.accept("one [tool clock {}]")
        with anyio.fail_after(WAIT):
            await server.held("there")
    server.directives = {}
    server.release("there")
    async with falling(home, server, clock) as gateway:
        assert (await gateway.answered(accepted.turn)).state == "answered"
        rows = await gateway.store.read(messages.journal, accepted.turn)
        assert [row.message.model for row in rows if row.message.role == "assistant"] == ["second", "second"]
    assert server.requested == ["first", "second", "second", "second"]


async def test_a_failing_model_is_logged_with_its_fallback(home: Path, server: FaultyModel, clock: Clock) -> None:
    server.directives["first"] = "[status 503 quote]"
    with capture_logs() as lines:
        async with falling(home, server, clock) as gateway:
            await gateway.say("a private word")
    line = next(line for line in lines if line["event"] == "a model failed")
    assert (line["model"], line["why"], line["rests"], line["instead"]) == ("first", "overloaded", 60.0, "second")
    assert "private" not in str(lines)


# -- any sequence --

MOODS = {
    "": None,
    "[status 429 retry-after=20]": 20.0,
    "[status 503]": 60.0,
    "[status 402]": 600.0,
    "[status 400]": None,
    "[words 9] [cut after=4]": 60.0,
    "[cut after=0]": 60.0,
}
moods = st.sampled_from(sorted(MOODS))
turns = st.lists(
    st.tuples(st.tuples(moods, moods, moods), st.sampled_from([0.0, 15.0, 61.0, 700.0])), min_size=1, max_size=8
)


@given(turns)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_fails_each_is_asked_once_and_none_that_rests(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[tuple[str, str, str], float]]
) -> None:
    """Over a chain of three with a moving clock: no model in cooldown is called while another is available, none twice
    in a step, every turn ends, and the journal has exactly one answer for each answered turn."""
    clock = Clock()
    home = tmp_path_factory.mktemp("chain")
    async with FaultyModel() as server, falling(home, server, clock) as gateway:
        until = dict.fromkeys(NAMES, 0.0)
        for tempers, pause in steps:
            server.directives = {name: mood for name, mood in zip(NAMES, tempers, strict=True) if mood}
            server.requested.clear()
            outcome, events = await follow_turn(gateway, "say something")
            assert 1 <= len(server.requested) == len(set(server.requested)) <= 3
            works = [name for name in NAMES if not server.directives.get(name)]
            for name in server.requested:
                awake = [one for one in NAMES if until[one] <= clock.now]
                assert name in awake or (not awake and server.requested == [name])
                cooldowns = MOODS[server.directives.get(name, "")]
                if cooldowns is not None:
                    until[name] = clock.now + cooldowns
            rows = await gateway.store.read(messages.journal, outcome.turn)
            answers = [row.message.model for row in rows if row.message.role == "assistant"]
            if server.requested[-1] in works:
                assert (outcome.state, answers) == ("answered", [server.requested[-1]])
                assert shown(events) == outcome.text == ANSWER
            else:
                assert (outcome.state, answers) == ("failed", [])
            assert len(notices(events)) <= len(server.requested)
            clock.now += pause
        assert server.stats()["refusals"] == []


@pytest.mark.parametrize("api", FORMATS)
@pytest.mark.parametrize("mood", ["", "[status 400 step=1]", "[saying some words] [cut after=3 step=1]"])
@pytest.mark.parametrize("failing", [1, 3])
async def test_a_turn_that_has_ended_is_let_go_at_once(
    home: Path, server: FaultyModel, clock: Clock, api: str, mood: str, failing: int
) -> None:
    """L99: in every case, nothing waits for the garbage collector; a turn's log holds all of its text."""
    async with falling(home, server, clock, formats=(api, api, api)) as gateway:
        await gateway.say("warm up")
        server.directives = dict.fromkeys(NAMES[:failing], mood)
        gc.collect()
        gc.disable()
        try:
            outcome = await gateway.say("one [tool clock {}]", "other")
            assert outcome.state == ("failed" if mood and failing == 3 else "answered")
            with anyio.fail_after(WAIT):
                while any(isinstance(held, Journal) for held in gc.get_objects()):
                    await anyio.sleep(0.01)
        finally:
            gc.enable()


def test_the_documented_table_of_failures_matches() -> None:
    """docs/model-failures.md"""
    page = (Path(__file__).parents[2] / "docs" / "model-failures.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    table = {row[0].strip("`"): row[3:6] for row in rows if len(row) == 7}
    assert set(table) == set(get_args(ModelKind))
    for kind, (key, model, cooldowns) in table.items():
        assert key == ("yes" if kind in ROTATED else "no")
        assert model == ("no" if kind in UNHELPED else "yes")
        seconds = COOLDOWN_SECONDS.get(kind)  # type: ignore[call-overload]
        assert cooldowns == ("no" if seconds is None else f"{seconds / 60:g} min")
