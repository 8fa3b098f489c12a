"""After /model, the next model is told once which model gave the earlier answers."""

from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, OWNER, Core, core
from tests.slash_commands.test_durations import HOUR, Clock, run

pytestmark = pytest.mark.anyio

TO_OTHER = "The user switched this conversation from model main to model other; earlier answers are main's."
TO_MAIN = "The user switched this conversation from model other to model main; earlier answers are other's."


def switch_notices(gateway: Core) -> list[str]:
    """The notices about switches in the last request, in order."""
    texts = [str(message["content"]) for message in gateway.requests()[-1]["messages"]]
    return [sentence for text in texts for sentence in (TO_OTHER, TO_MAIN) if sentence in text]


async def test_a_switch_is_reported_once_with_the_next_message_across_a_restart(
    home: Path, model: ScriptedModel
) -> None:
    """S05, S32, B4: the notice stays in its place and is not repeated, whatever is unloaded or killed."""
    async with core(home, model=model, drain=None) as gateway:
        first = await gateway.say("one")
        await run(gateway, "/model other", first.session)
    async with core(home, model=model, drain=None) as gateway:
        await gateway.say("two")
        assert switch_notices(gateway) == [TO_OTHER]
        assert TO_OTHER in str(gateway.requests()[-1]["messages"][-1]["content"])
        await gateway.say("three")
        assert switch_notices(gateway) == [TO_OTHER]
        assert gateway.components.presence.unload(first.session, reason="test")
    async with core(home, model=model) as gateway:
        await gateway.say("four")
        assert switch_notices(gateway) == [TO_OTHER]
        earlier, later = (request.body for request in list(model.recorded)[-2:])
        assert later.startswith(earlier.removesuffix(b"]}")), "the request only grows"
        await run(gateway, "/model default", first.session)
        await gateway.say("five")
        assert switch_notices(gateway) == [TO_OTHER, TO_MAIN]
        assert model.stats()["refused"] == 0


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["/model other", "/model main"], []),
        (["/model other", "/model default"], []),
        (["/model main"], []),
        (["/model other for 1h", "/model default"], []),
        (["/model main", "/model other"], [TO_OTHER]),
        (["/model other", "/model default", "/model other for 1h"], [TO_OTHER]),
        (["/reasoning low"], []),
    ],
)
async def test_only_the_net_change_is_reported(
    home: Path, model: ScriptedModel, lines: list[str], expected: list[str]
) -> None:
    """S05: a switch that is reverted before the next message is not reported."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        for line in lines:
            await run(gateway, line, first.session)
        await gateway.say("two")
        assert switch_notices(gateway) == expected
        view = await gateway.service.session(first.session, ANNA)
        assert set(view.settings) <= {"model", "reasoning"}


async def test_without_an_earlier_answer_there_is_nothing_to_tell(home: Path, model: ScriptedModel) -> None:
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        await run(gateway, "/undo", first.session)
        await run(gateway, "/model other", first.session)
        await gateway.say("two")
        assert gateway.requests()[-1]["model"] == "scripted-too"
        assert switch_notices(gateway) == []


async def test_a_temporary_choice_is_reported_at_its_start_and_end(home: Path, model: ScriptedModel) -> None:
    """S06: not at all if there was no message in between."""
    clock = Clock()
    async with core(home, model=model, clock=clock) as gateway:
        first = await gateway.say("one")
        await run(gateway, "/model other for 1h", first.session)
        await gateway.say("two")
        assert switch_notices(gateway) == [TO_OTHER]
        clock.now += HOUR
        await gateway.say("three")
        assert (switch_notices(gateway), gateway.requests()[-1]["model"]) == ([TO_OTHER, TO_MAIN], "scripted")
        await run(gateway, "/model other for 1h", first.session)
        clock.now += HOUR
        await gateway.say("four")
        assert switch_notices(gateway) == [TO_OTHER, TO_MAIN]
        await run(gateway, "/model other", first.session)
        await gateway.service.operations.clear_setting(first.session, OWNER, "model")
        await gateway.say("five")
        assert switch_notices(gateway) == [TO_OTHER, TO_MAIN]


async def test_a_fallback_is_no_switch(home: Path, model: ScriptedModel) -> None:
    """S07: nobody chose it; the user is notified, the model is not."""
    async with core(home, 'fallback = ["other"]\n', model=model) as gateway:
        await gateway.say("one")
        outcome = await gateway.say("[status 503 times=1] two")
        assert outcome.state == "answered" and gateway.requests()[-1]["model"] == "scripted-too"
        assert switch_notices(gateway) == []
