"""Progress and questions of tasks, as the user sees them."""

from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, OWNER, WAIT, Core, fill_slots, live_turn
from tests.effects import EffectRecord, until
from tests.tasks import configured, delegating, result, rows, task, until_idle
from tidegate.errors import NotAllowed, NotFound
from tidegate.slash_commands import build
from tidegate.store import audit
from tidegate.values import Event, Notice, QuestionAnswered, QuestionAsked, ToolProgress

pytestmark = pytest.mark.anyio

PUSH = '[tool push {"what": "a"}] [say pushed]'


async def events_of(gateway: Core, turn: str) -> list[Event]:
    """All events of a turn, to its end."""
    log = gateway.service.turn_log(turn)
    assert log is not None
    with anyio.fail_after(WAIT):
        async with aclosing(log.read()) as batches:
            return [event async for batch in batches for event in batch]


async def questions_of(gateway: Core, turn: str, count: int = 1) -> list[QuestionAsked]:
    """The questions to readers of this turn, once there are this many."""
    log = gateway.service.turn_log(turn)
    assert log is not None
    await until(lambda: sum(isinstance(event, QuestionAsked) for event in log.events) >= count)
    await until(lambda: gateway.components.engine.stats().asking >= count)
    return [event for event in log.events if isinstance(event, QuestionAsked)]


def progress(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ToolProgress))


# -- what is seen ----------------------------------------------------------------------------------------------------


async def test_readers_of_a_turn_see_the_agent_calls_and_text_of_its_tasks(home: Path, model: ScriptedModel) -> None:
    """H11: as progress of the call, for nested tasks too, each under its own call."""
    inner = f"{task('second', '[tool clock {}] [say the time]')} [say so late]"
    async with delegating(home, model) as gateway:
        said = f"{task('helper', inner, together=(('second', '[say beside]'),))} [say done]"
        accepted = await gateway.accept(said)
        events = await events_of(gateway, accepted.turn)
        calls = {event.call_id for event in events if isinstance(event, ToolProgress)}
        first, second = (progress([e for e in events if getattr(e, "call_id", "") == id]) for id in sorted(calls))
        assert first.startswith("[helper] is working on the task\n[helper] delegate {")
        assert "[second] is working on the task\n[second] clock {}\nthe time" in first and first.endswith("so late")
        assert second == "[second] is working on the task\nbeside"


async def test_the_progress_of_a_task_is_bounded(home: Path, model: ScriptedModel) -> None:
    """D1, L21: one line per call, whatever its arguments, and in total the bound of progress."""
    long = "x" * 300
    async with delegating(home, model) as gateway:
        said = task("helper", f"[unknowntool] [words 20000] {long}") + " [say done]"
        accepted = await gateway.accept(said)
        shown = progress(await events_of(gateway, accepted.turn))
        assert "failed: There is no tool named" in shown
        assert len(shown) < 70_000 and "more output is not shown" in shown
        accepted = await gateway.accept(f"{task('helper', task('second', long))} [say done]")
        shown = progress(await events_of(gateway, accepted.turn))
        assert max(len(line) for line in shown.splitlines() if line.startswith("[")) <= 200 + len("[helper] ")


async def test_notices_of_a_task_are_sent_and_stored_with_the_turn(home: Path, model: ScriptedModel) -> None:
    """Notices of the working agent come under its name."""
    toml = configured(model).replace('prompt = "You help the helper."', 'prompt = "x"\nfallback = ["other"]', 1)
    async with delegating(home, model, toml=toml) as gateway:
        accepted = await gateway.accept(f"{task('second', '[status 500 times=1] [say at last]')} [say done]")
        events = await events_of(gateway, accepted.turn)
        outcome = await gateway.answered(accepted.turn)
        assert outcome.text == "done" and "at last" in result(gateway)[0]
        told = [event.text for event in events if isinstance(event, Notice)]
        assert told and told[0].startswith("second: ") and outcome.notices == tuple(told)


# -- what is asked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["id", "/approve", "task's own"])
async def test_questions_of_a_task_reach_the_person_in_their_conversation(
    home: Path, model: ScriptedModel, how: str
) -> None:
    """S29, S31: through the turn that they follow; answered like any other, while the turn waits."""
    deeds = EffectRecord()
    toolsets = {"deeds": deeds.toolset()}
    async with delegating(home, model, toolsets=toolsets, approvals="balanced") as gateway:
        said = f"{task('helper', task('second', PUSH))} [say done]"
        accepted = await gateway.accept(said, channel="page")
        [question] = await questions_of(gateway, accepted.turn)
        assert (question.agent, question.tool, question.kind) == ("second", "push", "approval")
        assert question.turn != accepted.turn and "what: a" in question.summary
        status = gateway.service.status().turns
        assert (status.running, status.asking, status.delegating) == (0, 1, 2)
        # Who comes later is asked too, in this conversation; nobody else is.
        assert [each.id for each in await gateway.service.questions.open_events(accepted.session)] == [question.id]
        assert [each.agent for each in await gateway.service.questions.open_events(accepted.session)] == ["second"]
        [view] = await gateway.service.questions.open_for(ANNA, session=accepted.session)
        assert view.id == question.id and await gateway.service.questions.open_for(BERT) == []
        with pytest.raises(NotFound):
            await gateway.service.questions.answer(question.id, BERT, "approved")
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        if how == "/approve":
            commands = build(gateway.service)
            reply = await commands.run(
                "/approve", principal=ANNA, channel="page", session=accepted.session, agent="main"
            )
            assert reply.text.startswith("Approved: push")
        elif how == "id":
            await gateway.service.questions.answer(question.id, ANNA, "approved")
        else:
            [view] = await gateway.service.questions.open_for(ANNA, session=view.session)
            await gateway.service.questions.answer(view.id, ANNA, "approved")
        assert (await gateway.answered(accepted.turn)).text == "done"
        assert deeds.done == ["a"]
        closed = [event for event in log.events if isinstance(event, QuestionAnswered)]
        assert [(event.id, event.state) for event in closed] == [(question.id, "approved")]


@pytest.mark.parametrize(
    ("giver", "helper", "verdict"),
    [
        ('rules = ["deny push"]', "", "deny"),
        ('rules = ["deny push"]', 'rules = ["allow push"]', "deny"),
        ("", 'rules = ["deny push"]', "deny"),
        ('rules = ["ask push"]', 'rules = ["allow push"]', "ask"),
        ('approvals = "strict"', 'approvals = "autonomous"', "ask"),
        ('approvals = "autonomous"', 'approvals = "strict"', "ask"),
        ('approvals = "autonomous"', 'approvals = "autonomous"', "allow"),
    ],
)
@pytest.mark.parametrize("deep", [False, True])
async def test_a_task_is_never_less_restricted_than_its_parent(
    home: Path, model: ScriptedModel, giver: str, helper: str, verdict: str, deep: bool
) -> None:
    """X11: the strictest of all policies on the way decides, even if an agent in between has a milder one."""
    deeds = EffectRecord()
    toml = agents_with(model, giver, 'approvals = "autonomous"' if deep else helper, helper)
    said = task("helper", task("second", PUSH) + " [say ok]" if deep else PUSH) + " [say done]"
    async with delegating(home, model, toml=toml, toolsets={"deeds": deeds.toolset()}) as gateway:
        accepted = await gateway.accept(said, channel="page")
        if verdict == "ask":
            [question] = await questions_of(gateway, accepted.turn)
            assert question.tool == "push" and deeds.done == []
            await gateway.service.questions.answer(question.id, ANNA, "denied")
        assert (await gateway.answered(accepted.turn)).text == "done"
        assert deeds.done == (["a"] if verdict == "allow" else [])


def agents_with(model: ScriptedModel, *settings_of: str) -> str:
    """Three agents in a row with these settings; delegation itself is allowed."""
    text = configured(model, tools="deeds")
    first, helper, second = text.index("[agents.main]"), text.index("[agents.helper]"), text.index("[agents.second]")
    parts = [text[:first], text[first:helper], text[helper:second], text[second:]]
    for place, given in enumerate(settings_of, start=1):
        if not given.startswith("rules"):
            given += '\nrules = ["allow delegate"]\n'
        kept = "" if "approvals" in given else 'approvals = "autonomous"\n'
        parts[place] = parts[place].replace('approvals = "autonomous"\n', f"{kept}{given}\n")
    return "".join(parts)


async def test_actions_outside_the_sandbox_need_the_owner_in_tasks_too(home: Path, model: ScriptedModel) -> None:
    """X11, X14: delegation gives nobody a right."""
    deeds = EffectRecord()
    async with delegating(home, model, toolsets={"deeds": deeds.toolset()}, approvals="balanced") as gateway:
        said = task("helper", '[tool deploy {"what": "d"}] [say ok]') + " [say done]"
        accepted = await gateway.accept(said, channel="page")
        [question] = await questions_of(gateway, accepted.turn)
        assert question.for_owner
        with pytest.raises(NotAllowed):
            await gateway.service.questions.answer(question.id, ANNA, "approved")
        commands = build(gateway.service)
        with pytest.raises(NotAllowed):
            await commands.run("/approve", principal=ANNA, channel="page", session=accepted.session, agent="main")
        await gateway.service.questions.answer(question.id, OWNER, "approved")
        assert (await gateway.answered(accepted.turn)).text == "done" and deeds.done == ["d"]


async def test_a_stop_closes_the_questions_of_tasks(home: Path, model: ScriptedModel) -> None:
    """S30: readers of the turn are notified before it ends."""
    deeds = EffectRecord()
    async with delegating(home, model, toolsets={"deeds": deeds.toolset()}, approvals="balanced") as gateway:
        accepted = await gateway.accept(task("second", PUSH, together=(("second", PUSH),)), channel="page")
        questions = await questions_of(gateway, accepted.turn, 2)
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        await gateway.service.stop(accepted.session, ANNA)
        assert (await gateway.answered(accepted.turn)).state == "stopped"
        closed = [event for event in log.events if isinstance(event, QuestionAnswered)]
        assert {event.id: event.state for event in closed} == {each.id: "cancelled" for each in questions}
        await until_idle(gateway)
        assert deeds.done == [] and gateway.service.questions.waiting == 0 and (await rows(gateway))["approvals"] == 0


@pytest.mark.parametrize("name", ["talk", None])
async def test_a_task_cannot_ask_where_its_parent_cannot(home: Path, model: ScriptedModel, name: str | None) -> None:
    """S30: decided by the outermost conversation, whatever agents are in between."""
    deeds = EffectRecord()
    async with delegating(home, model, toolsets={"deeds": deeds.toolset()}, approvals="balanced") as gateway:
        said = f"{task('second', PUSH)} [say done]"
        channel = "http" if name else "page"
        assert (await gateway.say(said, name, channel=channel)).text == "done"
        asked = result(gateway, -2)
        assert len(asked) == 1 and f"nobody can be asked on the channel {channel}" in asked[0]
        assert deeds.done == []


async def test_rules_about_a_channel_are_about_the_one_at_which_the_person_is(home: Path, model: ScriptedModel) -> None:
    """X23: an agent that must not do something there does not do it as a task either."""
    deeds = EffectRecord()
    toml = configured(model, tools="deeds").replace(
        'prompt = "You help the helper."', 'prompt = "x"\nrules = ["deny push channel:terminal"]', 1
    )
    said = task("helper", task("second", PUSH) + " [say ok]") + " [say done]"
    async with delegating(home, model, toml=toml, toolsets={"deeds": deeds.toolset()}) as gateway:
        await gateway.say(said, "one", channel="terminal")
        assert deeds.done == []
        await gateway.say(said, "two", channel="page")
        assert deeds.done == ["a"]


async def test_the_time_of_a_turn_does_not_count_while_a_task_of_its_asks(home: Path, model: ScriptedModel) -> None:
    """S29: nor that of any turn in between; afterwards it counts again."""
    deeds = EffectRecord()
    async with delegating(home, model, toolsets={"deeds": deeds.toolset()}, approvals="balanced") as gateway:
        accepted = await gateway.accept(f"{task('helper', task('second', PUSH))} [hold gate step=1]", channel="page")
        [question] = await questions_of(gateway, accepted.turn)
        live = live_turn(gateway, accepted.session)
        family = [live, *live.children.values()]
        family += [each for child in live.children.values() for each in child.children.values()]
        assert len(family) == 3 and not any(each.is_timed for each in family)
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        assert live.is_timed
        model.release("gate")
        assert (await gateway.answered(accepted.turn)).state == "answered"
        assert not live.is_timed


async def test_a_question_of_a_task_survives_the_process(home: Path, model: ScriptedModel) -> None:
    """S29, F4: across any number of kills; turn and task keep waiting, and neither is given up for it."""
    deeds = EffectRecord()
    options: dict[str, Any] = {"toolsets": {"deeds": deeds.toolset()}, "approvals": "balanced"}
    said = task("helper", task("second", PUSH) + " [say ok]") + " [say done]"
    async with delegating(home, model, drain=None, **options) as gateway:
        accepted = await gateway.accept(said, channel="page")
        [question] = await questions_of(gateway, accepted.turn)
        kills = gateway.config.limits.resumes + 2
    for kill in range(kills):
        async with delegating(home, model, drain=None if kill % 2 else 0.05, **options) as gateway:
            assert [each.id for each in await questions_of(gateway, accepted.turn)] == [question.id]
    async with delegating(home, model, **options) as gateway:
        await questions_of(gateway, accepted.turn)
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        assert (await gateway.answered(accepted.turn)).text == "done"
        await until_idle(gateway)
        assert deeds.done == ["a"] and (await rows(gateway))["sessions"] == 1


async def test_a_task_that_asks_keeps_no_place(home: Path, model: ScriptedModel) -> None:
    """S29, L21: neither its own slot nor that of its parent; more of its tasks may run meanwhile."""
    deeds = EffectRecord()
    options: dict[str, Any] = {"toolsets": {"deeds": deeds.toolset()}, "approvals": "balanced"}
    async with delegating(home, model, "[limits]\nturns = 1", **options) as gateway:
        both = task("second", PUSH, together=(("second", "[say quick]"),))
        accepted = await gateway.accept(f"{both} [say done]", channel="page")
        [question] = await questions_of(gateway, accepted.turn)
        assert (await gateway.say("[say other]", "other")).text == "other"
        await gateway.service.questions.answer(question.id, ANNA, "denied", "no")
        assert (await gateway.answered(accepted.turn)).text == "done"
        assert result(gateway)[1].endswith("quick") and deeds.done == []
        await fill_slots(gateway, 1)


async def test_actions_of_a_task_are_audited_under_its_conversation(home: Path, model: ScriptedModel) -> None:
    """X24: its own session is gone with it; the principal and the approver are known."""
    toolsets = {"deeds": EffectRecord().toolset()}
    async with delegating(home, model, toolsets=toolsets, approvals="balanced") as gateway:
        accepted = await gateway.accept(f"{task('helper', task('second', PUSH))} [say done]", channel="page")
        [question] = await questions_of(gateway, accepted.turn)
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        await gateway.answered(accepted.turn)
        found = [row for row in await gateway.store.read(audit.listing) if row.kind != "principal"]
        assert {(row.session, row.principal) for row in found} == {(accepted.session, ANNA.id)}
        steps = [(row.kind, row.outcome) for row in reversed(found) if " push " in f" {row.subject} "]
        assert steps == [("approval", "asked"), ("approval", "approved"), ("tool", "begun"), ("tool", "done")]
