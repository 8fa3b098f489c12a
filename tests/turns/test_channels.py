"""Channels: each decides how an interrupted turn is recovered, and words the report."""

from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core
from tidegate.errors import Refused
from tidegate.turns import CHANNELS, Channel, Channels
from tidegate.values import Acceptance, Outcome

pytestmark = pytest.mark.anyio

HOOK = Channel(name="hook", resume="report", unread="stop", interactive=False)
CHAT = Channel(name="chat", resume="report", unread="stop", interactive=True)
MORE = Channels((*CHANNELS, HOOK, CHAT))

PERSONAL = ("say it again", "what next", "you ")
"""Words that only make sense to a person."""


async def cut_off(gateway: Core, channel: str, gate: str = "gate") -> Acceptance:
    """A turn interrupted in its second step."""
    accepted = await gateway.accept(f"[tool clock {{}}] [hold {gate} step=1] [say done]", name="talk", channel=channel)
    with anyio.fail_after(WAIT):
        await gateway.model.held(gate)
    return accepted


async def after_a_crash(
    home: Path, model: ScriptedModel, channel: str, later: Channels | None = MORE, extra: str = ""
) -> Outcome:
    async with core(home, extra, model=model, drain=None, channels=MORE) as gateway:
        accepted = await cut_off(gateway, channel)
    model.release("gate")
    async with core(home, extra, model=model, channels=later) as gateway:
        outcome = await gateway.answered(accepted.turn)
        assert await gateway.service.outcome(accepted.turn, ANNA) == outcome
        assert (await gateway.say("[say free]", channel="http")).text == "free"
        assert model.stats()["refusals"] == []
        return outcome


@pytest.mark.parametrize("channel", ["http", "page", "terminal"])
async def test_a_turn_of_a_named_session_goes_on_after_a_crash(home: Path, model: ScriptedModel, channel: str) -> None:
    """S18, S16: on every channel of today."""
    assert (await after_a_crash(home, model, channel)).text == "done"


@pytest.mark.parametrize("channel", ["hook", "chat"])
async def test_a_channel_that_wants_a_report_gets_one_and_no_model_is_asked(
    home: Path, model: ScriptedModel, channel: str
) -> None:
    """S18: the turn ends with a report; its steps stay in the transcript and are counted."""
    outcome = await after_a_crash(home, model, channel)
    assert outcome.state == "failed" and outcome.error is not None
    assert outcome.error.code == "interrupted" and f"'{channel}'" in outcome.error.message
    assert outcome.steps == 1 and outcome.usage.input > 0
    assert any(words in outcome.error.message for words in PERSONAL) == MORE.of(channel).interactive
    asked = [request["messages"][-1]["role"] for request in (recorded.decoded() for recorded in model.recorded)]
    assert asked == ["user", "tool", "user"]


async def test_a_turn_that_was_only_waiting_is_resumed(home: Path, model: ScriptedModel) -> None:
    """S18, V05: a channel's report is about turns that had started."""
    async with core(home, model=model, drain=None, channels=MORE) as gateway:
        running = await cut_off(gateway, "hook")
        waiting = await gateway.accept("[say later]", channel="hook")
    model.release("gate")
    async with core(home, model=model, channels=MORE) as gateway:
        assert (await gateway.answered(running.turn)).state == "failed"
        assert (await gateway.answered(waiting.turn)).text == "later"


async def test_an_orderly_stop_is_no_interruption(home: Path, model: ScriptedModel) -> None:
    """S18, F1: a parked turn continues in the next process, whatever its channel does after a crash."""
    async with core(home, model=model, drain=0.05, channels=MORE) as gateway:
        accepted = await cut_off(gateway, "hook")
    model.release("gate")
    async with core(home, model=model, channels=MORE) as gateway:
        assert (await gateway.answered(accepted.turn)).text == "done"


async def test_a_turn_of_a_removed_channel_is_reported_and_not_run(home: Path, model: ScriptedModel) -> None:
    """S18: nobody would receive its answer."""
    outcome = await after_a_crash(home, model, "chat", later=None)
    assert outcome.error is not None and outcome.error.code == "interrupted"
    assert not any(words in outcome.error.message for words in PERSONAL)


async def test_the_budget_of_resumes_holds_for_every_channel(home: Path, model: ScriptedModel) -> None:
    """S18, S17: in words that suit the reader."""
    for channel in ("http", "page"):
        gate = f"gate-{channel}"
        async with core(home / channel, "[limits]\nresumes = 0", model=model, drain=None) as gateway:
            accepted = await cut_off(gateway, channel, gate)
        model.release(gate)
        async with core(home / channel, "[limits]\nresumes = 0", model=model) as gateway:
            outcome = await gateway.answered(accepted.turn)
        assert outcome.error is not None and outcome.error.code == "resume_budget"
        assert any(words in outcome.error.message for words in PERSONAL) == (channel == "page")


async def test_the_table_of_channels_is_closed(home: Path, model: ScriptedModel) -> None:
    """S18: a message of an unknown channel is not accepted."""
    async with core(home, model=model) as gateway:
        with pytest.raises(Refused, match="no channel 'pigeon'"):
            await gateway.accept("hello", channel="pigeon")
        assert await gateway.service.sessions(ANNA) == []
