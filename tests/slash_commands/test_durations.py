"""Settings with a time limit: set, shown, expired, cleared."""

from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, OWNER, Core, core, settings
from tidegate.errors import Refused
from tidegate.slash_commands import CommandReply, build

pytestmark = pytest.mark.anyio

HOUR = 3600.0


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


async def run(gateway: Core, line: str, session: str | None) -> CommandReply:
    return await build(gateway.service).run(line, principal=ANNA, channel="page", session=session, agent="main")


async def answering_model(gateway: Core) -> str:
    """The model that answers the next message."""
    await gateway.say("more")
    return str(gateway.requests()[-1]["model"])


async def test_a_model_chosen_for_a_time_survives_a_kill_and_ends_at_its_time(home: Path, model: ScriptedModel) -> None:
    """S05, S06: exactly on time, although nothing runs at that moment."""
    clock = Clock()
    async with core(home, model=model, clock=clock, drain=None) as gateway:
        first = await gateway.say("one")
        reply = (await run(gateway, "/model other for 2h", first.session)).text
        assert reply.startswith("other, from now on until ") and "(in 2 hours)" in reply and "rebuilt" in reply
        assert await answering_model(gateway) == "scripted-too"
    async with core(home, model=model, clock=clock) as gateway:
        clock.now += 2 * HOUR - 1
        assert await answering_model(gateway) == "scripted-too"
        assert "(in 1 second)" in (await run(gateway, "/status", first.session)).text
        clock.now += 1
        assert await answering_model(gateway) == "scripted"
        status = (await run(gateway, "/status", first.session)).text
        assert "model         main (the agent's own)" in status and "/model" not in status


async def test_reasoning_chosen_for_a_time_ends_too(home: Path, model: ScriptedModel) -> None:
    """S06: without a rebuild."""
    clock = Clock()
    async with core(home, model=model, clock=clock) as gateway:
        first = await gateway.say("one")
        assert "(in 30 minutes)" in (await run(gateway, "/reasoning high for 30m", first.session)).text
        await gateway.say("two")
        assert gateway.requests()[-1]["reasoning_effort"] == "high"
        clock.now += 1800
        await gateway.say("three")
        assert "reasoning_effort" not in gateway.requests()[-1]
        assert gateway.components.presence.stats().unloads == {}


async def test_status_shows_the_source_precedence_and_expiry_of_settings(home: Path, model: ScriptedModel) -> None:
    """S06: the same in the short forms of the commands themselves."""
    clock = Clock()
    async with core(home, model=model, clock=clock) as gateway:
        first = await gateway.say("one")
        assert "the model's own" in (await run(gateway, "/reasoning", first.session)).text
        await run(gateway, "/model other for 90m", first.session)
        await run(gateway, "/reasoning low", first.session)
        status = (await run(gateway, "/status", first.session)).text
        assert "model         other (chosen with /model, until " in status and "(in 1.5 hours))" in status
        assert "it overrides the agent's own, main; /model default resets it" in status
        assert "reasoning     low (chosen with /reasoning, until the conversation ends)" in status
        assert "it overrides the model's own, and is overridden by the reasoning of a call;\n" in status
        assert "(in 1.5 hours)" in (await run(gateway, "/model", first.session)).text
        assert "low" in (await run(gateway, "/reasoning", first.session)).text


async def test_a_changed_configuration_applies_when_the_time_is_over(home: Path, model: ScriptedModel) -> None:
    """S06, S07: until then the choice overrides it, and the status shows what applies afterwards."""
    clock = Clock()
    async with core(home, model=model, clock=clock) as gateway:
        first = await gateway.say("one")
        await run(gateway, "/model other for 1h", first.session)
    third = f'[models.third]\napi = "openai-chat"\nbase_url = "{model.base_url}"\nmodel = "scripted-third"\n'
    changed = settings(model, third).replace('model = "main"\nprompt', 'model = "third"\nprompt')
    async with core(home, model=model, clock=clock, toml=changed) as gateway:
        assert await answering_model(gateway) == "scripted-too"
        assert "the agent's own, third" in (await run(gateway, "/status", first.session)).text
        clock.now += HOUR
        assert await answering_model(gateway) == "scripted-third"


async def test_a_choice_that_is_no_longer_configured_is_shown_as_such(home: Path, model: ScriptedModel) -> None:
    """S06: the status does not call the agent's own model chosen."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        await run(gateway, "/model other", first.session)
    without = settings(model).replace("[models.other]", "[models.third]")
    async with core(home, model=model, toml=without) as gateway:
        status = (await run(gateway, "/status", first.session)).text
        assert "model         main (the agent's own)" in status
        assert "other, chosen with /model, is no longer configured; /model default clears it" in status


async def test_a_choice_for_a_time_can_be_cleared_before_it_by_its_user_and_by_the_operator(
    home: Path, model: ScriptedModel
) -> None:
    """S06: a choice without a time replaces it and its time."""
    clock = Clock()
    async with core(home, model=model, clock=clock) as gateway:
        first = await gateway.say("one")
        await run(gateway, "/model other for 1h", first.session)
        await run(gateway, "/model default", first.session)
        assert await answering_model(gateway) == "scripted"
        await run(gateway, "/model other for 1h", first.session)
        assert await gateway.service.operations.clear_setting(first.session, OWNER, "model")
        assert await answering_model(gateway) == "scripted"
        await run(gateway, "/model other for 1h", first.session)
        await run(gateway, "/model other", first.session)
        clock.now += 1000 * HOUR
        assert await answering_model(gateway) == "scripted-too"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/model other for", "30m, 2h or 7d"),
        ("/model other for ever", "30m, 2h or 7d"),
        ("/model other for 0h", "30m, 2h or 7d"),
        ("/model other for -1h", "30m, 2h or 7d"),
        ("/model other for 99999999w", "30m, 2h or 7d"),
        ("/model other 2h", "/model other for 2h"),
        ("/model other please", "/model NAME for 2h"),
        ("/model default for 2h", "/model default"),
        ("/model oter for 2h", "did you mean 'other'"),
        ("/reasoning high for 1 fortnight", "30m, 2h or 7d"),
        ("/reasoning default for 2h", "/reasoning default"),
        ("/reasoning lots for 2h", "off, minimal, low"),
    ],
)
async def test_an_invalid_time_changes_nothing(home: Path, model: ScriptedModel, line: str, sentence: str) -> None:
    """H20: one sentence shows the format."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        with pytest.raises(Refused) as refused:
            await run(gateway, line, first.session)
        assert sentence in refused.value.message
        assert (await gateway.service.session(first.session, ANNA)).settings == {}


async def test_times_are_read_with_a_space_and_in_every_unit(home: Path, model: ScriptedModel) -> None:
    """S06: seconds to weeks."""
    clock = Clock()
    async with core(home, model=model, clock=clock) as gateway:
        first = await gateway.say("one")
        for said, seconds in (("45s", 45), ("30m", 1800), ("2 h", 7200), ("7d", 604800), ("2w", 1209600)):
            await run(gateway, f"/reasoning high for {said}", first.session)
            view = await gateway.service.session(first.session, ANNA)
            assert view.settings["reasoning"].expires == clock.now + seconds
