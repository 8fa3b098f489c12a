"""Commands that answer an agent's questions."""

from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, OWNER, Core
from tests.effects import EffectRecord, ask, asked, asking, configured, results
from tidegate.errors import Conflict, NotAllowed, NotFound, Refused
from tidegate.security import Principal
from tidegate.slash_commands import CommandReply, build

pytestmark = pytest.mark.anyio


async def run(gateway: Core, line: str, session: str | None, principal: Principal = ANNA) -> CommandReply:
    return await build(gateway.service).run(line, principal=principal, channel="page", session=session, agent="main")


async def session_of(gateway: Core, turn: str) -> str:
    return (await gateway.service.outcome(turn)).session


async def test_approve_continues_the_waiting_turn(home: Path, model: ScriptedModel) -> None:
    """S29, V19: also during a turn, and without an id if one question is open; the reply contains the turn, so that it
    can be followed."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        turn, [question] = await ask(gateway)
        session = await session_of(gateway, turn)
        assert question.id in (await run(gateway, "/status", session)).text
        reply = await run(gateway, "/approve", session)
        assert reply == CommandReply(text="Approved: push what: a", session=session, turn=turn)
        assert (await gateway.answered(turn)).text == "done"
        assert deeds.done == ["a"]
        with pytest.raises(NotFound, match="No question is open"):
            await run(gateway, "/approve", session)
        with pytest.raises(Conflict, match="it was approved"):
            await run(gateway, f"/deny {question.id}", session)
        assert question.id not in (await run(gateway, "/status", session)).text


async def test_approve_accepts_how_far_the_approval_reaches(home: Path, model: ScriptedModel) -> None:
    """S29, X14: with and without an id; the reply says what is allowed from now on, and no other word is accepted."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        turn, [question] = await ask(gateway)
        session = await session_of(gateway, turn)
        for words in ("conversations", "conversation now", "for good"):
            with pytest.raises(Refused, match=r"conversation or /approve .* always"):
                await run(gateway, f"/approve {words}", session)
        with pytest.raises(NotAllowed, match="for all conversations"):
            await run(gateway, f"/approve {question.id} always", session)
        reply = await run(gateway, "/approve conversation", session)
        assert reply.text == f"Approved: push what: a\n{question.scopes[1].allows}"
        assert (await gateway.answered(turn)).text == "done"
        assert (await gateway.say('[tool push {"what": "b"}] [say done]', channel="page")).text == "done"
        assert deeds.done == ["a", "b"]


async def test_rules_lists_and_removes_what_is_stored(home: Path, model: ScriptedModel) -> None:
    """X06, X14: only what applies in the user's own conversations, also for the owner."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, config=configured(model, rules=("ask build",))) as gateway:
        assert (await run(gateway, "/rules", None)).text == "No approval is stored for your conversations."
        turn, [question] = await ask(gateway, '[tool build {"what": "b"}] [say done]')
        session = await session_of(gateway, turn)
        await run(gateway, "/approve conversation", session)
        await gateway.answered(turn)
        listed = (await run(gateway, "/rules", session)).text
        id = listed.split()[0]
        assert listed == f"{id}  {question.scopes[1].allows}\n    build what: b"
        assert "No approval" in (await run(gateway, "/rules", None, OWNER)).text
        for words in ("remove", "remove ", "forget x", id):
            with pytest.raises(Refused, match="/rules remove ID"):
                await run(gateway, f"/rules {words}", session)
        with pytest.raises(NotFound, match="no stored approval"):
            await run(gateway, f"/rules remove {id}", None, BERT)
        await run(gateway, f"/rules remove {id}", session)
        assert "No approval" in (await run(gateway, "/rules", session)).text


async def test_deny_accepts_a_reason_with_and_without_an_id(home: Path, model: ScriptedModel) -> None:
    """S29: everything except the id is the reason."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        for named in (False, True):
            turn, [question] = await ask(gateway)
            id = f"{question.id} " if named else ""
            await run(gateway, f"/deny {id}not on a  Friday", await session_of(gateway, turn))
            await gateway.answered(turn)
            assert results(gateway)[-1].endswith("said: not on a  Friday")
        assert deeds.done == []


async def test_answer_accepts_a_choice_its_number_or_free_text(home: Path, model: ScriptedModel) -> None:
    """S29: and the reply repeats the answer."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        cases = (('"choices": ["red", "blue"]', "2", "blue"), ('"choices": []', "as you  like", "as you  like"))
        for choices, said, wanted in cases:
            turn, _ = await ask(gateway, f'[tool ask_user {{"question": "Which?", {choices}}}] [say thanks]')
            session = await session_of(gateway, turn)
            with pytest.raises(Refused, match="The answer is missing"):
                await run(gateway, "/answer", session)
            with pytest.raises(Conflict, match=r"/answer ap_.*Which"):
                await run(gateway, "/approve", session)
            assert (await run(gateway, f"/answer {said}", session)).text == f"Answered: {wanted}"
            await gateway.answered(turn)
            assert results(gateway)[-1] == wanted


async def test_with_several_open_questions_the_id_is_required(home: Path, model: ScriptedModel) -> None:
    """X14: nothing is guessed; an id works from any conversation, for users who may answer it."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        accepted = await gateway.accept('[together push {"what": "a"} push {"what": "b"}] [say done]', channel="page")
        questions = await asked(gateway, accepted.turn, 2)
        other = (await gateway.say("[say other]", name="other")).session
        with pytest.raises(Conflict) as told:
            await run(gateway, "/approve", accepted.session)
        assert all(f"/approve {question.id}" in told.value.message for question in questions)
        with pytest.raises(NotFound, match="In others"):
            await run(gateway, "/approve", other)
        with pytest.raises(Refused, match="only /deny"):
            await run(gateway, "/approve yes please", accepted.session)
        with pytest.raises(NotFound, match="that you may answer"):
            await run(gateway, f"/approve {questions[0].id}", None, BERT)
        with pytest.raises(NotFound, match="No question is open"):
            await run(gateway, "/approve", None, BERT)
        assert (await run(gateway, f"/approve {questions[0].id}", other)).turn is None
        reply = await run(gateway, "/deny", None)
        assert reply.text.startswith("Denied: push") and reply.session is None
        assert (await gateway.answered(accepted.turn)).text == "done"
        assert len(deeds.done) == 1


async def test_the_answering_commands_are_in_the_help_and_cost_nothing(home: Path, model: ScriptedModel) -> None:
    """P18: with what they do during a turn."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        overview = (await run(gateway, "/help", None)).text
        for name in ("approve", "deny", "answer"):
            assert f"/{name} [ID]" in overview
            explained = (await run(gateway, f"/help {name}", None)).text
            assert "During a turn: works immediately." in explained and "Cost" not in explained
