"""Commands that answer an agent's questions."""

from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, Core
from tests.effects import Deeds, ask, asked, asking, results
from tidegate.commands import CommandReply, build
from tidegate.errors import Conflict, NotFound, Refused
from tidegate.security import Principal

pytestmark = pytest.mark.anyio


async def run(house: Core, line: str, session: str | None, principal: Principal = ANNA) -> CommandReply:
    return await build(house.service).run(line, principal=principal, channel="page", session=session, agent="main")


async def session_of(house: Core, turn: str) -> str:
    return (await house.service.outcome(turn)).session


async def test_approve_lets_the_waiting_turn_go_on(home: Path, model: ScriptedModel) -> None:
    """S29, V19: in mid-turn, and without an id if one question is open; the reply names the turn, so that it can be
    followed."""
    deeds = Deeds()
    async with asking(home, model, deeds) as house:
        turn, [question] = await ask(house)
        session = await session_of(house, turn)
        assert question.id in (await run(house, "/status", session)).text
        reply = await run(house, "/approve", session)
        assert reply == CommandReply(text="Approved: push what: a", session=session, turn=turn)
        assert (await house.answered(turn)).text == "done"
        assert deeds.done == ["a"]
        with pytest.raises(NotFound, match="No question is open"):
            await run(house, "/approve", session)
        with pytest.raises(Conflict, match="it was approved"):
            await run(house, f"/deny {question.id}", session)
        assert question.id not in (await run(house, "/status", session)).text


async def test_deny_takes_a_reason_with_and_without_an_id(home: Path, model: ScriptedModel) -> None:
    """S29: everything but the id is the reason."""
    deeds = Deeds()
    async with asking(home, model, deeds) as house:
        for named in (False, True):
            turn, [question] = await ask(house)
            id = f"{question.id} " if named else ""
            await run(house, f"/deny {id}not on a  Friday", await session_of(house, turn))
            await house.answered(turn)
            assert results(house)[-1].endswith("said: not on a  Friday")
        assert deeds.done == []


async def test_answer_takes_a_choice_its_number_or_free_text(home: Path, model: ScriptedModel) -> None:
    """S29: and repeats the answer."""
    deeds = Deeds()
    async with asking(home, model, deeds) as house:
        cases = (('"choices": ["red", "blue"]', "2", "blue"), ('"choices": []', "as you  like", "as you  like"))
        for choices, said, wanted in cases:
            turn, _ = await ask(house, f'[tool ask_user {{"question": "Which?", {choices}}}] [say thanks]')
            session = await session_of(house, turn)
            with pytest.raises(Refused, match="Add the answer"):
                await run(house, "/answer", session)
            with pytest.raises(Conflict, match=r"/answer ap_.*Which"):
                await run(house, "/approve", session)
            assert (await run(house, f"/answer {said}", session)).text == f"Answered: {wanted}"
            await house.answered(turn)
            assert results(house)[-1] == wanted


async def test_one_of_several_questions_must_be_named_and_others_are_listed(home: Path, model: ScriptedModel) -> None:
    """X14: nothing is guessed; an id works from any conversation, for those who may answer it."""
    deeds = Deeds()
    async with asking(home, model, deeds) as house:
        accepted = await house.accept('[together push {"what": "a"} push {"what": "b"}] [say done]', channel="page")
        questions = await asked(house, accepted.turn, 2)
        other = (await house.say("[say other]", name="other")).session
        with pytest.raises(Conflict) as told:
            await run(house, "/approve", accepted.session)
        assert all(f"/approve {question.id}" in told.value.message for question in questions)
        with pytest.raises(NotFound, match="elsewhere"):
            await run(house, "/approve", other)
        with pytest.raises(Refused, match="only a denial"):
            await run(house, "/approve yes please", accepted.session)
        with pytest.raises(NotFound, match="that you may answer"):
            await run(house, f"/approve {questions[0].id}", None, BERT)
        with pytest.raises(NotFound, match="No question is open"):
            await run(house, "/approve", None, BERT)
        assert (await run(house, f"/approve {questions[0].id}", other)).turn is None
        reply = await run(house, "/deny", None)
        assert reply.text.startswith("Denied: push") and reply.session is None
        assert (await house.answered(accepted.turn)).text == "done"
        assert len(deeds.done) == 1


async def test_the_answering_commands_are_in_the_help_and_cost_nothing(home: Path, model: ScriptedModel) -> None:
    """P18: what they do in mid-turn too."""
    deeds = Deeds()
    async with asking(home, model, deeds) as house:
        overview = (await run(house, "/help", None)).text
        for name in ("approve", "deny", "answer"):
            assert f"/{name} [ID]" in overview
            explained = (await run(house, f"/help {name}", None)).text
            assert "In mid-turn: works at once." in explained and "Cost" not in explained
