"""Approvals and questions: durable, answered once, for one exact action, and denied if nobody can answer."""

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, OWNER, WAIT
from tests.effects import EffectRecord, ask, asked, asking, configured, results, until
from tidegate.errors import Conflict, NotAllowed, NotFound, Refused
from tidegate.security import Principal
from tidegate.slash_commands import build
from tidegate.store import approvals
from tidegate.values import Event, MessageAdded, QuestionAnswered, QuestionAsked, TurnEnded

pytestmark = pytest.mark.anyio

# -- what survives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drain", [None, 0.05])
async def test_an_approval_survives_the_process_and_the_tool_runs_once(
    home: Path, model: ScriptedModel, drain: float | None
) -> None:
    """S29, S31, F4: killed or stopped; the next process shows the same question, and its answer counts."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, drain=drain) as gateway:
        turn, [question] = await ask(gateway)
        assert deeds.done == []
    async with asking(home, model, deeds) as gateway:
        assert [found.id for found in await asked(gateway, turn)] == [question.id]
        assert [view.id for view in await gateway.service.questions.open_for(ANNA)] == [question.id]
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        assert (await gateway.answered(turn)).text == "done"
        assert deeds.done == ["a"]
        assert await gateway.service.questions.open_for(ANNA) == []
    async with asking(home, model, deeds):
        assert deeds.done == ["a"]


async def test_a_question_waits_over_any_number_of_kills(home: Path, model: ScriptedModel) -> None:
    """S29, F4: a waiting turn does not bring the process down, so it does not use up limits.resumes."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, drain=None) as gateway:
        turn, [question] = await ask(gateway)
        kills = gateway.components.config.limits.resumes + 2
    for _ in range(kills):
        async with asking(home, model, deeds, drain=None) as gateway:
            assert [found.id for found in await asked(gateway, turn)] == [question.id]
    async with asking(home, model, deeds) as gateway:
        await asked(gateway, turn)
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        assert (await gateway.answered(turn)).text == "done"
    assert deeds.done == ["a"]


@pytest.mark.parametrize("drain", [None, 0.05])
async def test_an_answer_given_before_the_turn_looks_again_counts(
    home: Path, model: ScriptedModel, drain: float | None
) -> None:
    """S29, S31: a client may be faster than recovery; nobody is asked twice."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, drain=drain) as gateway:
        turn, [question] = await ask(gateway)
        await gateway.store.write(
            lambda db: approvals.answer(
                db, question.id, decision="approved", principal=ANNA.id, role="member", now=gateway.components.clock()
            )
        )
    async with asking(home, model, deeds) as gateway:
        log = gateway.service.turn_log(turn)
        assert (await gateway.answered(turn)).text == "done"
        assert log is None or not any(isinstance(event, QuestionAsked) for event in log.events)
        assert deeds.done == ["a"]


@pytest.mark.parametrize("drain", [None, 0.05])
async def test_a_question_of_a_tool_survives_the_process(home: Path, model: ScriptedModel, drain: float | None) -> None:
    """S29: `ask_user` had started; it is the same question afterwards, and the model gets the answer."""
    deeds = EffectRecord()
    call = '[tool ask_user {"question": "Which?", "choices": ["red", "blue"]}] [say thanks]'
    async with asking(home, model, deeds, drain=drain) as gateway:
        turn, [question] = await ask(gateway, call)
        assert (question.kind, question.choices, question.turn) == ("question", ("red", "blue"), turn)
    async with asking(home, model, deeds) as gateway:
        assert [found.id for found in await asked(gateway, turn)] == [question.id]
        with pytest.raises(Refused, match=r"1\. red; 2\. blue"):
            await gateway.service.questions.answer(question.id, ANNA, "answered", "green")
        answered = await gateway.service.questions.answer(question.id, ANNA, "answered", "2")
        assert (answered.state, answered.answer) == ("answered", "blue")
        assert (await gateway.answered(turn)).text == "thanks"
        assert results(gateway) == ["blue"]


@pytest.mark.parametrize("drain", [None, 0.05])
async def test_calls_that_ran_beside_a_question_are_not_repeated(
    home: Path, model: ScriptedModel, drain: float | None
) -> None:
    """F4, S29: an interrupted call beside it has an unknown effect, and the question stays open."""
    deeds = EffectRecord()
    config = configured(model, rules=("allow linger",))
    call = '[together linger {"what": "x"} push {"what": "a"}] [say done]'
    async with asking(home, model, deeds, config=config, drain=drain) as gateway:
        turn, [question] = await ask(gateway, call)
        with anyio.fail_after(WAIT):
            await deeds.started.wait()
    async with asking(home, model, deeds, config=config) as gateway:
        await asked(gateway, turn)
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        assert (await gateway.answered(turn)).text == "done"
        assert deeds.done == ["x", "a"]
        assert results(gateway)[0].startswith("Interrupted") and results(gateway)[1] == "pushed a"


async def test_sweeps_and_expiry_spare_sessions_with_open_questions(home: Path, model: ScriptedModel) -> None:
    """S29, B1: however long it takes, until the question itself expires."""
    now = [1e9]
    deeds = EffectRecord()
    extra = '[limits]\nidle_ttl = "1s"\nanswer_within = "30d"\nresidents = 1\n[expiry]\nnamed_idle = "1h"'
    async with asking(home, model, deeds, extra, clock=lambda: now[0]) as gateway:
        turn, [question] = await ask(gateway)
        now[0] += 20 * 86400
        await gateway.say("[say other]", name="other")
        for chore in gateway.service.maintenance_tasks():
            await chore.run()
        gateway.components.presence.unload((await gateway.service.outcome(turn)).session, reason="pressure")
        assert [view.id for view in await gateway.service.questions.open_for(ANNA)] == [question.id]
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        assert (await gateway.answered(turn)).text == "done"


# -- how it ends -----------------------------------------------------------------------------------------------------


async def test_a_stop_cancels_open_questions(home: Path, model: ScriptedModel) -> None:
    """S30: at once; a late answer is refused with the reason, and the conversation continues."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        turn, [question] = await ask(gateway)
        session = (await gateway.service.outcome(turn)).session
        assert await gateway.service.stop(session, ANNA) == turn
        assert (await gateway.answered(turn)).state == "stopped"
        with pytest.raises(Conflict, match="it was cancelled"):
            await gateway.service.questions.answer(question.id, ANNA, "approved")
        assert (await gateway.say("[say next]")).text == "next"
        assert (
            deeds.done == []
            and gateway.components.engine.stats().asking == 0
            and gateway.service.questions.waiting == 0
        )


async def test_an_end_cancels_open_questions_and_notifies_readers(home: Path, model: ScriptedModel) -> None:
    """S30, B3: the turn ends as stopped, with the reason; the question is cancelled."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        turn, [question] = await ask(gateway)
        log = gateway.service.turn_log(turn)
        session = (await gateway.service.outcome(turn)).session
        assert await gateway.service.end(session, ANNA, "new")
        outcome = await gateway.answered(turn)
        assert outcome.state == "stopped" and outcome.error is not None and "ended" in outcome.error.message
        assert log is not None and isinstance(log.events[-1], TurnEnded)
        assert (await gateway.service.questions.get(question.id, ANNA)).state == "cancelled"
        assert await gateway.service.questions.open_events(session) == []
        assert deeds.done == []


async def test_an_expired_question_is_reported_to_the_model_and_the_turn_continues(
    home: Path, model: ScriptedModel
) -> None:
    """S30: limits.answer_within; the model reads that nothing was done, and why."""
    now = [1e9]
    deeds = EffectRecord()
    async with asking(home, model, deeds, '[limits]\nanswer_within = "1h"', clock=lambda: now[0]) as gateway:
        turn, [question] = await ask(gateway)
        assert question.expires == 1e9 + 3600
        now[0] += 3600
        with pytest.raises(Conflict, match="it has expired"):
            await gateway.service.questions.answer(question.id, ANNA, "approved")
        assert await gateway.service.questions.expire() == 1
        assert (await gateway.answered(turn)).text == "done"
        assert results(gateway) == ["Nobody answered in time (limits.answer_within), so nothing was done."]
        assert deeds.done == []


@pytest.mark.parametrize("call", ['push {"what": "a"}', 'ask_user {"question": "Which?"}'])
async def test_an_agent_may_be_configured_to_end_the_turn_when_a_question_expires(
    home: Path, model: ScriptedModel, call: str
) -> None:
    """S30: `unanswered = "end"` ends the turn instead, with a sentence for its user."""
    now = [1e9]
    deeds = EffectRecord()
    config = configured(model, agent='unanswered = "end"')
    async with asking(home, model, deeds, config=config, clock=lambda: now[0]) as gateway:
        turn, _ = await ask(gateway, f"[tool {call}] [say done]")
        now[0] += 10 * 86400
        await gateway.service.questions.expire()
        outcome = await gateway.answered(turn)
        assert outcome.state == "failed" and outcome.error is not None and outcome.error.code == "unanswered"
        assert "limits.answer_within" in outcome.error.message
        assert (await gateway.say("[say next]")).text == "next"
        assert deeds.done == [] and model.stats()["refusals"] == []


async def test_a_denial_reaches_the_model_with_its_reason(home: Path, model: ScriptedModel) -> None:
    """S30: it is a result like any other: the turn continues."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        turn, [question] = await ask(gateway)
        await gateway.service.questions.answer(question.id, ANNA, "denied", "not on a Friday")
        assert (await gateway.answered(turn)).text == "done"
        assert results(gateway) == ["Not run: the person denied it, and said: not on a Friday"]
        assert deeds.done == []


# -- who could answer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [{"channel": "http"}, {"channel": "http", "name": None}, {"name": None}])
async def test_an_action_is_denied_if_nobody_can_be_asked(
    home: Path, model: ScriptedModel, where: dict[str, Any]
) -> None:
    """X11: without configuration; the model is told why, and nothing waits."""
    deeds = EffectRecord()
    config = re.sub(r'approvals = "balanced"\nrules = .*\n', "", configured(model))
    async with asking(home, model, deeds, config=config) as gateway:
        outcome = await gateway.say(
            '[tool deploy {"what": "a"}] [tool ask_user {"question": "?"}] [say done]', **{"channel": "page", **where}
        )
        assert outcome.text == "done" and deeds.done == []
        denied, unasked = results(gateway)
        assert denied.startswith(
            "Not run: it needs a person's approval (approvals = balanced), and nobody can be asked"
        )
        assert unasked.startswith("Nobody was asked: nobody can be asked on the channel")
        assert await gateway.service.questions.open_for(ANNA) == []


async def test_one_principal_cannot_take_every_place_to_wait_for_an_answer(home: Path, model: ScriptedModel) -> None:
    """X11, L21: limits.questions_each; another principal's turn may still ask."""
    deeds = EffectRecord()
    push = '[tool push {"what": "a"}] [say done]'
    async with asking(home, model, deeds, "[limits]\nquestions_each = 1") as gateway:
        own = await gateway.accept(push, channel="page")
        [first] = await asked(gateway, own.turn)
        assert (await gateway.say(push, name="other", channel="page")).text == "done"
        assert "limits.questions_each" in results(gateway)[-1]
        others = await gateway.accept(push, channel="page", principal=BERT.id)
        [second] = await asked(gateway, others.turn)
        for question, who, accepted in ((first, ANNA, own), (second, BERT, others)):
            await gateway.service.questions.answer(question.id, who, "approved")
            assert (await gateway.answered(accepted.turn)).text == "done"


async def test_no_more_turns_wait_than_may_and_a_standing_question_is_not_refused(
    home: Path, model: ScriptedModel
) -> None:
    """X11: limits.questions; a waiting turn may ask a second question, and keeps its own across a restart."""
    deeds = EffectRecord()
    extra = "[limits]\nquestions = 1"
    both = '[together push {"what": "a"} push {"what": "b"}] [say done]'
    async with asking(home, model, deeds, extra, drain=None) as gateway:
        accepted = await gateway.accept(both, channel="page")
        first = await asked(gateway, accepted.turn, 2)
        assert gateway.service.questions.waiting == 2 and gateway.components.engine.stats().asking == 1
        assert (await gateway.say('[tool push {"what": "c"}] [say no]', name="other", channel="page")).text == "no"
        assert "limits.questions" in results(gateway)[-1]
    async with asking(home, model, deeds, extra) as gateway:
        again = await asked(gateway, accepted.turn, 2)
        assert {question.id for question in again} == {question.id for question in first}
        for question in again:
            await gateway.service.questions.answer(question.id, ANNA, "approved")
        assert (await gateway.answered(accepted.turn)).text == "done"
        assert sorted(deeds.done) == ["a", "b"]
        turn, _ = await ask(gateway)
        assert gateway.service.questions.waiting == 1
        await gateway.components.engine.stop(turn, "by the test")
        await gateway.answered(turn)


# -- one exact action ------------------------------------------------------------------------------------------------


async def test_an_approval_is_of_one_call_and_its_neighbour_waits_for_its_own(home: Path, model: ScriptedModel) -> None:
    """X14: two calls side by side, two rows; the approved one runs, the other does not."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        accepted = await gateway.accept('[together push {"what": "a"} push {"what": "b"}] [say done]', channel="page")
        questions = await asked(gateway, accepted.turn, 2)
        (second,) = [question for question in questions if "what: b" in question.summary]
        (first,) = [question for question in questions if "what: a" in question.summary]
        await gateway.service.questions.answer(second.id, ANNA, "approved")
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        with anyio.fail_after(WAIT):
            async with aclosing(log.read()) as batches:
                async for batch in batches:
                    if any(isinstance(event, MessageAdded) and event.message.text == "pushed b" for event in batch):
                        break
        assert deeds.done == ["b"]
        await gateway.service.questions.answer(first.id, ANNA, "denied")
        assert (await gateway.answered(accepted.turn)).text == "done"
        assert deeds.done == ["b"]


@pytest.mark.parametrize("state", ["approved", "open"])
async def test_a_row_about_another_action_lets_nothing_run(home: Path, model: ScriptedModel, state: str) -> None:
    """X14: the digest of the exact call is compared, whatever the row of its step says."""
    deeds = EffectRecord()

    def forge(db: Any) -> None:
        other = approvals.action_digest("push", '{"what": "harmless"}')
        db.execute("UPDATE approvals SET digest = ?, state = ? WHERE state = 'open'", (other, state))

    async with asking(home, model, deeds) as gateway:
        turn, [question] = await ask(gateway)
        await gateway.store.write(forge)
        if state == "open":
            await gateway.service.questions.answer(question.id, ANNA, "approved")
        else:
            gateway.components.engine.wake(turn)
        assert (await gateway.answered(turn)).text == "done"
        assert deeds.done == [] and results(gateway)[0].startswith("Not run")


async def test_after_a_restart_a_row_about_another_action_lets_nothing_run(home: Path, model: ScriptedModel) -> None:
    """X14, S31: the same, when the step asks again."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, drain=None) as gateway:
        turn, _ = await ask(gateway)
        other = approvals.action_digest("push", '{"what": "harmless"}')
        await gateway.store.write(
            lambda db: db.execute("UPDATE approvals SET digest = ?, state = 'approved'", (other,)) and None
        )
    async with asking(home, model, deeds) as gateway:
        assert (await gateway.answered(turn)).text == "done"
        assert deeds.done == [] and "for a different action" in results(gateway)[0]


async def test_questions_of_others_are_not_found(home: Path, model: ScriptedModel) -> None:
    """X14, X06: a forged or foreign id is not found, not even for the owner of the gateway, and nothing runs."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        turn, [question] = await ask(gateway)
        for stranger in (BERT, OWNER):
            for id in (question.id, "ap_" + "0" * 32, "", "' OR 1 --"):
                with pytest.raises(NotFound, match="no question"):
                    await gateway.service.questions.answer(id, stranger, "approved")
            assert await gateway.service.questions.open_for(stranger) == []
        session = (await gateway.service.outcome(turn)).session
        assert await gateway.service.questions.of_session(session, BERT) == []
        assert deeds.done == [] and (await gateway.service.questions.get(question.id, ANNA)).state == "open"
        await gateway.service.stop(session, ANNA)
        await gateway.answered(turn)


async def test_an_answer_counts_once(home: Path, model: ScriptedModel) -> None:
    """S29: repeating the same answer is fine; another one is refused with the first."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        turn, [question] = await ask(gateway)
        answer = gateway.service.questions.answer
        for wrong in ("answered",):
            with pytest.raises(Refused, match="/approve or /deny"):
                await answer(question.id, ANNA, wrong, "yes")  # type: ignore[arg-type]
        first = await answer(question.id, ANNA, "approved")
        assert await answer(question.id, ANNA, "approved") == first
        with pytest.raises(Conflict, match="it was approved"):
            await answer(question.id, ANNA, "denied")
        await gateway.answered(turn)
        assert deeds.done == ["a"]


async def test_a_tool_may_ask_again_and_each_time_is_a_question(home: Path, model: ScriptedModel) -> None:
    """S29: after a crash in between, the given answers stay valid."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, drain=None) as gateway:
        turn, [first] = await ask(gateway, '[tool insist {"times": 2}] [say done]')
        with pytest.raises(Refused, match="The answer is empty"):
            await gateway.service.questions.answer(first.id, ANNA, "answered", " ")
        with pytest.raises(Refused, match="/answer"):
            await gateway.service.questions.answer(first.id, ANNA, "approved")
        await gateway.service.questions.answer(first.id, ANNA, "answered", "YES")
        _, second = await asked(gateway, turn, 2)
        assert second.id != first.id
    async with asking(home, model, deeds) as gateway:
        (again,) = await asked(gateway, turn)
        assert again.id == second.id
        with pytest.raises(Conflict, match="it was answered"):
            await gateway.service.questions.answer(first.id, ANNA, "answered", "no")
        await gateway.service.questions.answer(second.id, ANNA, "answered", "no")
        assert (await gateway.answered(turn)).text == "done"
        assert results(gateway) == ["yes, no"]


async def test_questions_close_with_their_call(home: Path, model: ScriptedModel) -> None:
    """S30: a tool that has timed out asks nobody any more: readers are notified, and a late answer is refused."""
    async with asking(home, model, EffectRecord()) as gateway:
        turn, [question] = await ask(gateway, "[tool hurry {}] [hold gate step=1] [say done]")
        log = gateway.service.turn_log(turn)
        with anyio.fail_after(WAIT):
            await model.held("gate")
        assert log is not None and _states(log.events) == ["cancelled"]
        assert await gateway.service.questions.open_for(ANNA) == []
        with pytest.raises(Conflict, match="it was cancelled"):
            await gateway.service.questions.answer(question.id, ANNA, "answered", "late")
        model.release("gate")
        assert (await gateway.answered(turn)).text == "done"


async def test_questions_of_a_lost_call_close_too(home: Path, model: ScriptedModel) -> None:
    """S29, S30: a call that is not repeated after a crash waits for no answer."""
    deeds = EffectRecord()
    deeds.goes_on.set()
    config = configured(model, rules=("allow linger",))
    text = '[tool linger {"what": "a", "then": "Why?"}] [hold gate step=1] [say done]'
    async with asking(home, model, deeds, config=config, drain=None) as gateway:
        turn, [question] = await ask(gateway, text)
    async with asking(home, model, deeds, config=config) as gateway:
        with anyio.fail_after(WAIT):
            await model.held("gate")
        assert (await gateway.service.questions.get(question.id, ANNA)).state == "cancelled"
        model.release("gate")
        assert (await gateway.answered(turn)).text == "done"
        assert results(gateway)[0].startswith("Interrupted") and deeds.done == ["a"]


def _states(events: Sequence[Event]) -> list[str]:
    return [event.state for event in events if isinstance(event, QuestionAnswered)]


async def test_a_tool_that_was_approved_may_still_ask(home: Path, model: ScriptedModel) -> None:
    """X14: the approval of a call and its questions are different rows."""
    deeds = EffectRecord()
    deeds.goes_on.set()
    async with asking(home, model, deeds) as gateway:
        turn, [leave] = await ask(gateway, '[tool linger {"what": "a", "then": "Why?"}] [say done]')
        await gateway.service.questions.answer(leave.id, ANNA, "approved")
        _, question = await asked(gateway, turn, 2)
        await gateway.service.questions.answer(question.id, ANNA, "answered", "because")
        assert (await gateway.answered(turn)).text == "done"
        assert results(gateway) == ["because"] and deeds.done == ["a"]


async def test_the_approver_sees_hidden_characters(home: Path, model: ScriptedModel) -> None:
    """X14: no line can imitate another argument, nothing is invisible or reversed, and a long action is shown
    completely."""
    deeds = EffectRecord()
    long = "begin " + "x" * 20_000 + " end"
    blank = "\u3164\ufe0f\U000e0100\u115f\u2800\u034f"
    tricks = ["ls\nforce: false", "rm \u202e sl\u200b \x1b[31m", f"rm a{blank} \u2764\ufe0f", long]
    async with asking(home, model, deeds) as gateway:
        for number, what in enumerate(tricks):
            call = json.dumps({"what": what, "force": True})
            turn, [question] = await ask(gateway, f"[tool push {call}] [say done]", name=f"t{number}")
            lines = question.summary.split("\n")
            assert lines[0] == "push" and lines[-1] == "force: true" and question.summary.isprintable() == (number == 9)
            assert sum(line.startswith("force:") for line in lines) == 1
            assert not any(
                hidden in question.summary for hidden in "\u202e\u200b\x1b\u3164\U000e0100\u115f\u2800\u034f"
            )
            assert "a\ufe0f" not in question.summary and ("\u2764\ufe0f" in question.summary) == ("\u2764" in what)
            if what is long:
                assert question.summary == f"push\nwhat: {long}\nforce: true"
            await gateway.service.questions.answer(question.id, ANNA, "approved")
            await gateway.answered(turn)
        assert deeds.done == tricks


async def test_an_action_too_long_to_show_is_refused_without_asking(home: Path, model: ScriptedModel) -> None:
    """X14: nobody approves an action unseen; escaped characters count at their displayed length."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        for what in ("x" * approvals.SUMMARY_CHARACTERS, "\u200b" * 11_000):
            await gateway.say(f"[tool push {json.dumps({'what': what})}] [say done]", channel="page")
            (result,) = results(gateway)[-1:]
            assert "65,536 characters that can be shown to a person" in result
        assert deeds.done == [] and await gateway.service.questions.open_for(ANNA) == []


# -- whose it is to approve ------------------------------------------------------------------------------------------

DEPLOY = '[tool deploy {"what": "d"}] [say done]'


async def test_effects_outside_the_sandbox_are_the_owners_to_approve(home: Path, model: ScriptedModel) -> None:
    """X11, X14: in anyone's conversation; the refusal names the right and who has it."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        adam = Principal(id="p_adam", name="adam", role="admin")
        await gateway.know(adam)
        for person in (ANNA, adam):
            turn, [question] = await ask(gateway, DEPLOY, principal=person.id)
            assert question.for_owner and await gateway.service.questions.open_for(person) == []
            with pytest.raises(
                NotAllowed, match="effects outside the sandbox: this requires the role owner, and yours"
            ):
                await gateway.service.questions.answer(question.id, person, "approved")
            with pytest.raises(NotFound):
                await gateway.service.questions.answer(question.id, BERT, "approved")
            commands = build(gateway.service)
            session = (await gateway.service.outcome(turn)).session
            for line in ("/approve", f"/approve {question.id}"):
                with pytest.raises(NotAllowed, match="effects outside the sandbox"):
                    await commands.run(line, principal=person, channel="page", session=session, agent="main")
            [view] = await gateway.service.questions.open_for(OWNER)
            assert deeds.done == [] and view.id == question.id
            await gateway.service.questions.answer(question.id, OWNER, "approved")
            assert (await gateway.answered(turn)).text == "done"
            assert deeds.done == ["d"]
            deeds.done.clear()
        turn, [question] = await ask(gateway, DEPLOY, principal=OWNER.id)
        await gateway.service.questions.answer(question.id, OWNER, "approved")
        assert (await gateway.answered(turn)).text == "done" and deeds.done == ["d"]


async def test_a_guest_approves_nothing_and_answers_questions(home: Path, model: ScriptedModel) -> None:
    """X11: approvals in their conversations wait for the owner."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        gwen = Principal(id="p_gwen", name="gwen", role="guest")
        await gateway.know(gwen)
        turn, [question] = await ask(gateway, principal=gwen.id)
        with pytest.raises(NotAllowed, match="actions in your own conversations: this requires the role owner or"):
            await gateway.service.questions.answer(question.id, gwen, "approved")
        await gateway.service.questions.answer(question.id, OWNER, "denied")
        assert (await gateway.answered(turn)).text == "done" and deeds.done == []
        turn, [question] = await ask(gateway, '[tool ask_user {"question": "Why?"}] [say ok]', principal=gwen.id)
        await gateway.service.questions.answer(question.id, gwen, "answered", "because")
        assert (await gateway.answered(turn)).text == "ok"


async def test_somebody_whom_the_store_does_not_know_approves_nothing(home: Path, model: ScriptedModel) -> None:
    """X11: a principal without a row has no rights."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        nobody = Principal(id="p_nobody", name="nobody")
        turn, [question] = await ask(gateway, principal=nobody.id)
        with pytest.raises(NotAllowed):
            await gateway.service.questions.answer(question.id, nobody, "approved")
        await gateway.service.stop((await gateway.service.outcome(turn)).session, nobody)
        await gateway.answered(turn)
        assert deeds.done == []


async def test_leave_given_in_a_sandbox_does_not_hold_without_one(home: Path, model: ScriptedModel) -> None:
    """X14, S31: approved by a member, then the gateway restarts with another backend before the call has run."""
    deeds = EffectRecord()
    asks = configured(model, '[workspaces]\nbackend = "bubblewrap"', rules=("ask build",))
    build = '[tool build {"what": "b"}] [say done]'
    async with asking(home, model, deeds, config=asks, drain=None) as gateway:
        turn, [question] = await ask(gateway, build)
        await gateway.store.write(
            lambda db: approvals.answer(
                db, question.id, decision="approved", principal=ANNA.id, role="member", now=gateway.components.clock()
            )
        )
    async with asking(home, model, deeds, config=asks.replace("bubblewrap", "local")) as gateway:
        assert (await gateway.answered(turn)).text == "done"
        assert deeds.done == [] and "for a different action" in results(gateway)[0]


async def test_arguments_that_no_tool_could_read_are_asked_about_and_fail(home: Path, model: ScriptedModel) -> None:
    """X14: also those that are nested too deeply to be read."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        for number, call in enumerate(
            ("[badargs push] [say done]", f"[tool push {'[' * 5000 + ']' * 5000}] [say done]")
        ):
            turn, [question] = await ask(gateway, call, name=f"t{number}")
            await gateway.service.questions.answer(question.id, ANNA, "approved")
            assert (await gateway.answered(turn)).text == "done"
            assert results(gateway)[0].startswith("push: ")
        assert deeds.done == []


# -- rules -----------------------------------------------------------------------------------------------------------


async def test_rules_come_before_the_mode(home: Path, model: ScriptedModel) -> None:
    """X11: allow, ask and deny, by tool, argument and channel; a denial names its rule."""
    deeds = EffectRecord()
    rules = ("allow push what=a", "deny push what=b", "ask note channel:page", "deny effect:read")
    async with asking(home, model, deeds, config=configured(model, rules=rules)) as gateway:
        await gateway.say(
            '[tool push {"what": "a"}] [tool push {"what": "b"}] [tool clock {}] [say done]', channel="page"
        )
        assert deeds.done == ["a"]
        assert results(gateway)[1] == "Not run: denied (rule: deny push what=b)."
        assert "rule: deny effect:read" in results(gateway)[2]
        assert (await gateway.say('[tool note {"what": "n"}] [say done]', channel="http")).text == "done"
        turn, [question] = await ask(gateway, '[tool note {"what": "m"}] [say done]')
        assert question.tool == "note"
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        await gateway.answered(turn)
        assert deeds.done == ["a", "n", "m"]


async def test_actions_allowed_in_balanced_mode_need_no_approval(home: Path, model: ScriptedModel) -> None:
    """X11: writing in the workspace and reading, on a channel without a person."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        assert (await gateway.say('[tool note {"what": "n"}] [tool clock {}] [say done]')).text == "done"
        assert deeds.done == ["n"]


@pytest.mark.parametrize(("backend", "asks"), [("bubblewrap", False), ("local", True)])
async def test_execution_needs_approval_unless_it_is_sandboxed(
    home: Path, model: ScriptedModel, backend: str, asks: bool
) -> None:
    """X11: balanced mode, by the session's own workspace; a tool that runs its commands elsewhere asks anyway."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, f'[workspaces]\nbackend = "{backend}"') as gateway:
        accepted = await gateway.accept('[tool build {"what": "b"}] [say done]', channel="page")
        if asks:
            (question,) = await asked(gateway, accepted.turn)
            assert question.tool == "build" and question.for_owner and deeds.done == []
            await gateway.service.questions.answer(question.id, OWNER, "approved")
        assert (await gateway.answered(accepted.turn)).text == "done"
        assert deeds.done == ["b"]
        turn, [question] = await ask(gateway)
        await gateway.service.questions.answer(question.id, ANNA, "denied")
        await gateway.answered(turn)
        assert deeds.done == ["b"]


# -- its place and its time ------------------------------------------------------------------------------------------


async def test_a_turn_that_waits_gives_its_place_to_others(home: Path, model: ScriptedModel) -> None:
    """S29: with one slot, another session is answered meanwhile; the status shows how many wait."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, "[limits]\nturns = 1") as gateway:
        turn, [question] = await ask(gateway)
        assert (await gateway.say("[say meanwhile]", name="other")).text == "meanwhile"
        status = gateway.service.status()
        assert status.turns.running == 0 and status.turns.waiting == 0
        assert status.turns.asking == 1 and status.questions.waiting == 1
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        assert (await gateway.answered(turn)).text == "done"
        assert gateway.service.status().questions.waiting == 0
        assert gateway.service.census()["turns_asking"] == 0


async def _put_on(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Advance the loop's clock and run everything that is due."""
    loop = asyncio.get_running_loop()
    before, due = loop.time, asyncio.Event()
    loop.call_later(seconds, due.set)
    monkeypatch.setattr(loop, "time", lambda: before() + seconds)
    with anyio.fail_after(WAIT):
        await due.wait()  # it became due after everything that was to come earlier


async def test_the_time_of_a_question_does_not_count(
    home: Path, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S29: limits.turn_seconds is for work."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, '[limits]\nturn_seconds = "1s"') as gateway:
        turn, [question] = await ask(gateway)
        await _put_on(monkeypatch, 3)
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        assert (await gateway.answered(turn)).text == "done"


async def test_a_second_question_that_comes_later_does_not_shorten_the_turn(
    home: Path, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S29: of two concurrent calls, one asks after the other has waited longer than a turn may take."""
    deeds = EffectRecord()
    config = configured(model, '[limits]\nturn_seconds = "1s"', rules=("allow linger",))
    async with asking(home, model, deeds, config=config) as gateway:
        turn, [first] = await ask(
            gateway, '[together push {"what": "a"} linger {"what": "b", "then": "Why?"}] [say done]'
        )
        await _put_on(monkeypatch, 3)
        deeds.goes_on.set()
        _, second = await asked(gateway, turn, 2)
        await gateway.service.questions.answer(first.id, ANNA, "approved")
        await gateway.service.questions.answer(second.id, ANNA, "answered", "because")
        assert (await gateway.answered(turn)).text == "done"


# -- who comes later -------------------------------------------------------------------------------------------------


async def test_late_readers_get_open_questions_first(home: Path, model: ScriptedModel) -> None:
    """S29: before the rows; also while the asking turn still waits for a slot after a restart."""
    deeds = EffectRecord()
    extra = "[limits]\nturns = 1"
    async with asking(home, model, deeds, extra, drain=None) as gateway:
        busy = await gateway.accept("[hold gate] [say held]", name="busy", channel="page")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        waiting = await gateway.accept('[tool push {"what": "a"}] [say done]', channel="page")
        model.release("gate")
        await gateway.answered(busy.turn)
        (question,) = await asked(gateway, waiting.turn)
        blocker = await gateway.accept("[hold other] [say held]", name="busy", channel="page")
        with anyio.fail_after(WAIT):
            await model.held("other")
    async with asking(home, model, deeds, extra) as gateway:
        async with aclosing(gateway.service.watch(waiting.session, ANNA, 0)) as events:
            with anyio.fail_after(WAIT):
                _, first = await anext(events)
            assert isinstance(first, QuestionAsked) and first.id == question.id
        answer = await gateway.service.questions.answer(question.id, ANNA, "approved")
        assert answer.state == "approved"
        model.release("other")
        await gateway.answered(blocker.turn)
        assert (await gateway.answered(waiting.turn)).text == "done"
        assert deeds.done == ["a"]


@pytest.mark.parametrize("drain", [None, 0.05])
async def test_after_a_restart_a_watcher_misses_no_row_of_the_turn_that_waits(
    home: Path, model: ScriptedModel, drain: float | None
) -> None:
    """S14, S19, S29: the rows of the last process come once each, and then the turn's questions."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, drain=drain) as gateway:
        turn, [question] = await ask(gateway)
        session = (await gateway.service.outcome(turn)).session
    async with asking(home, model, deeds) as gateway:
        await asked(gateway, turn)
        told: list[Event] = []
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                with anyio.fail_after(WAIT):
                    async with aclosing(gateway.service.watch(session, ANNA, 0)) as events:
                        async for _, event in events:
                            told.append(event)
                            if isinstance(event, TurnEnded):
                                return

            group.start_soon(listen)
            await until(lambda: sum(isinstance(event, QuestionAsked) for event in told) == 2)
            await gateway.service.questions.answer(question.id, ANNA, "approved")
        rows = [event.seq for event in told if isinstance(event, MessageAdded)]
        assert rows == [1, 2, 3, 4]
        assert [event.id for event in told if isinstance(event, QuestionAsked)] == [question.id] * 2
        assert [event.state for event in told if isinstance(event, QuestionAnswered)] == ["approved"]
