"""Tasks that one agent gives another: who may, within which bounds, what comes back, and that nothing is left."""

import asyncio
import json
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core
from tests.tasks import configured, delegating, error, result, rows, still, task
from tidegate.errors import Refused
from tidegate.store import principals, sessions, turns
from tidegate.tools import ToolContext, Toolset, tool

pytestmark = pytest.mark.anyio

NOTHING_LEFT = {
    "sessions": 1, "turns": 1, "intents": 0, "receipts": 0, "approvals": 0, "workspaces": 0, "spooled": 0,
}  # fmt: skip


# -- a task and its answer -------------------------------------------------------------------------------------------


async def test_a_task_is_answered_and_the_answer_is_said_to_be_the_agents(home: Path, model: ScriptedModel) -> None:
    """X19, L04: its provenance is in its structure: the result of a tool, which says whose words follow. Nothing of the
    task is left but its usage."""
    async with delegating(home, model) as house:
        outcome = await house.say(f"{task('helper', '[say forty two]')} [say thanks]")
        assert (outcome.state, outcome.text) == ("answered", "thanks")
        assert result(house) == ["The answer of the agent 'helper':\n\nforty two"]
        _, given, _ = house.requests()
        assert given["messages"][0]["content"].startswith("You help.")
        told = json.dumps(given["messages"][1])
        assert "[say forty two]" in told and "given by the agent 'main'" in told
        await still(house)
        assert house.service.census() == {**dict.fromkeys(house.service.census(), 0), "present": 1, "residents": 1}
        assert await rows(house) == NOTHING_LEFT
        assert house.service.delegation is not None and not house.service.delegation._rooms


async def test_a_failed_or_stopped_task_is_a_result_and_no_failure_of_the_turn(
    home: Path, model: ScriptedModel
) -> None:
    """The model that gave it decides what to do about it."""
    async with delegating(home, model) as house:
        outcome = await house.say(f"{task('helper', '[status 400]')} [say never mind]")
        assert (outcome.state, outcome.text) == ("answered", "never mind")
        assert result(house)[0].startswith("The agent 'helper' failed before it had an answer. Model 'main'")
        running = await house.accept(f"{task('helper', '[words 5] [hang after=3]')} [say never mind]")
        child = await child_of(house, running.turn)
        log = house.service.live(child)
        assert log is not None
        with anyio.fail_after(WAIT):
            while not log.draft():
                await anyio.sleep(0.001)
            await house.service.stop(log.session, ANNA)
        assert (await house.answered(running.turn)).text == "never mind"
        assert "was stopped before it had an answer. The turn was stopped by its user." in result(house)[-1]
        assert "It had said until then:\n\nw0" in result(house)[-1]
        outcome = await house.say(f"{task('helper', '[words 0]')} [say so be it]")
        assert (outcome.text, result(house)[-1]) == ("so be it", "The agent 'helper' answered with nothing.")


async def test_a_long_answer_is_bounded_and_the_rest_is_in_the_spool(home: Path, model: ScriptedModel) -> None:
    """D1: as every tool's result; the tool that reads the rest comes with it."""
    async with delegating(home, model, "[limits]\ntool_output_bytes = 2000") as house:
        await house.say(f"{task('helper', '[words 2000]')} [say read]")
        [shown] = result(house)
        assert shown.startswith("The answer of the agent 'helper':") and len(shown) < 3000 and "output" in shown
        assert "output" in [each["function"]["name"] for each in house.requests()[0]["tools"]]
        assert (await rows(house))["spooled"] == 1


async def test_the_prompt_says_which_agents_there_are_and_does_not_change(home: Path, model: ScriptedModel) -> None:
    """C4: by name and description, in a fixed order, frozen with the session; nothing where there is none."""
    async with delegating(home, model) as house:
        await house.say("one")
        await house.say("two")
        first, second = house.requests()
        assert first["messages"][0] == second["messages"][0] and first["tools"] == second["tools"]
        assert first["messages"][0]["content"].endswith(
            "With the tool `delegate` you can give tasks to these agents:\n- helper: Looks things up.\n- second"
        )
        await house.store.write(lambda db: db.execute('UPDATE principals SET agents = \'["main", "second"]\''))
        await house.say("three", "other")
        assert house.requests()[-1]["messages"][0]["content"].endswith("agents:\n- second")
        await house.say("four", "third", agent="stranger")
        assert "delegate" not in json.dumps(house.requests()[-1])


# -- who may ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["stranger", "main", "nobody", "Helper"])
async def test_only_agents_that_are_named_are_given_tasks(home: Path, model: ScriptedModel, agent: str) -> None:
    """X23: default deny; what is told is who there is."""
    async with delegating(home, model) as house:
        await house.say(f"{task(agent, '[say x]')} [say ok]")
        expected = f"There is no agent {agent!r} that you may give tasks to; there are: helper, second."
        assert result(house) == [expected]
        assert len(house.requests()) == 2 and (await rows(house)) == NOTHING_LEFT


async def test_a_person_reaches_no_agent_by_another_that_he_may_not_use_himself(
    home: Path, model: ScriptedModel
) -> None:
    """X23: also when that was changed while the conversation goes on."""
    async with delegating(home, model) as house:
        await house.store.write(lambda db: db.execute('UPDATE principals SET agents = \'["main", "second"]\''))
        await house.say(f"{task('helper', '[say x]')} [say ok]")
        assert result(house) == ["There is no agent 'helper' that you may give tasks to; there are: second."]
        await house.store.write(lambda db: db.execute("UPDATE principals SET agents = '[\"main\"]'"))
        await house.say(f"{task('second', '[say x]')} [say ok]")
        assert result(house)[-1] == "There is no agent 'second' that you may give tasks to; there is none."
        assert await house.store.read(principals.get, ANNA.id) is not None
        unknown = await house.say(f"{task('helper', '[say x]')} [say ok]", principal="p_nobody")
        assert unknown.text == "ok" and "there is none" in result(house)[-1]


async def test_tasks_are_handed_on_so_deep_and_no_deeper(home: Path, model: ScriptedModel) -> None:
    """limits.delegate_depth; whoever is at the end of it is told so."""
    deep = f"{task('helper', task('second', '[say at the bottom]') + ' [say half way]')} [say done]"
    async with delegating(home, model, "[limits]\ndelegate_depth = 2") as house:
        assert (await house.say(deep)).text == "done"
        assert [result(house, number) for number in (3, 4)] == [
            ["The answer of the agent 'second':\n\nat the bottom"],
            ["The answer of the agent 'helper':\n\nhalf way"],
        ]
    async with delegating(home, model, "[limits]\ndelegate_depth = 1") as house:
        model.reset()
        assert (await house.say(deep)).text == "done"
        assert "handed on 1 times already (limits.delegate_depth is 1)" in result(house, 2)[0]
        assert len(house.requests()) == 4


async def test_nobody_comes_by_that_channel_from_outside(home: Path, model: ScriptedModel) -> None:
    """X23: a task is given by a turn, and only by one that runs."""
    async with delegating(home, model) as house:
        done = await house.say("one")
        with pytest.raises(Refused, match="no channel 'delegate'"):
            await house.accept("a", None, channel="delegate")
        with pytest.raises(Refused, match="no channel 'http'"):
            await house.accept("a", None, within=done.turn)
        with pytest.raises(Refused, match="has ended"):
            await house.accept("a", None, within=done.turn, channel="delegate", depth=1)
        assert await rows(house) == NOTHING_LEFT


# -- how many at once ------------------------------------------------------------------------------------------------


async def child_of(house: Core, turn: str) -> str:
    """The turn that works on a task of this one, once it is there."""
    find = "SELECT id FROM turns WHERE within = ? LIMIT 1"
    with anyio.fail_after(WAIT):
        while True:
            found: str | None = await house.store.read(lambda db: db.execute(find, (turn,)).get)
            if found is not None:
                return found
            await anyio.sleep(0.001)


async def test_so_many_tasks_of_a_turn_are_worked_on_at_once_and_the_others_wait(
    home: Path, model: ScriptedModel
) -> None:
    """L21: limits.delegates; the results stand in the order of the calls."""
    running = most = 0
    two_run = anyio.Event()

    @tool(effect="read", timeout=None)
    async def busy(ctx: ToolContext) -> str:
        """Is busy."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            two_run.set()
        with anyio.fail_after(WAIT):
            await two_run.wait()  # the first waits for the second, however busy the machine is
        for _ in range(200):  # long enough for a third to begin, if one could
            await anyio.lowlevel.checkpoint()
        running -= 1
        return "done"

    tasks = tuple(("second", f"[tool busy {{}}] [say {number}]") for number in range(6))
    said = f"{task(*tasks[0], together=tasks[1:])} [say all]"
    async with delegating(home, model, "[limits]\ndelegates = 2", toolsets={"busy": Toolset((busy,))}) as house:
        assert (await house.say(said)).text == "all"
        assert result(house) == [f"The answer of the agent 'second':\n\n{number}" for number in range(6)]
        assert most == 2 and running == 0
        await still(house)
        assert await rows(house) == NOTHING_LEFT


@pytest.mark.parametrize("places", [1, 2, 3])
async def test_one_place_is_enough_for_a_tree_of_tasks(home: Path, model: ScriptedModel, places: int) -> None:
    """L21: a turn that waits for its tasks gives them its place: no number of turns is too small for them."""
    inner = task("second", "[say a]", together=(("second", "[say b]"), ("second", "[say c]"))) + " [say inner]"
    said = f"{task('helper', inner, together=(('helper', inner), ('second', '[say d]')))} [say outer]"
    async with delegating(home, model, f"[limits]\nturns = {places}\nwaiting_total = 64") as house:
        outcomes: list[str] = []

        async def talk(name: str) -> None:
            outcomes.append((await house.say(said, name)).text)

        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(talk, f"talk {number}")
        assert outcomes == ["outer"] * 4
        await still(house)
        assert house.service.engine.places.taken == 0


async def test_no_more_trees_are_under_way_than_there_are_places(home: Path, model: ScriptedModel) -> None:
    """L21: a turn that waits for its tasks keeps its place for them, so that no other begins in it; who came first is
    served first."""
    async with delegating(home, model, "[limits]\nturns = 1") as house:
        parent = await house.accept(f"{task('helper', '[hold gate] [say a]')} [say first]", "one")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        other = await house.accept("[say second]", "two")
        status = house.service.status()["turns"]
        assert (status["running"], status["waiting"], status["delegating"]) == (1, 1, 1)
        assert house.service.census()["turns_delegating"] == 1
        model.release("gate")
        assert (await house.answered(parent.turn)).text == "first"
        assert (await house.answered(other.turn)).text == "second"
        texts = [request["messages"][-1] for request in house.requests()]
        assert "second" in json.dumps(texts[-1])


async def test_who_waited_for_a_place_before_gets_it_before_more_tasks_of_a_turn(
    home: Path, model: ScriptedModel
) -> None:
    """A tree has one place for itself; for more it waits as everybody does."""
    async with delegating(home, model, "[limits]\nturns = 2") as house:
        blocker = await house.accept("[hold blocker]", "zero")
        both = task("second", "[hold first] [say a]", together=(("second", "[hold second] [say b]"),))
        parent = await house.accept(f"[hold parent step=0] {both} [say all]", "one")
        with anyio.fail_after(WAIT):
            await model.held("blocker")
            await model.held("parent")
            other = await house.accept("[hold other]", "two")
            model.release("parent")
            while house.service.engine.waiting_total != 2:
                await anyio.sleep(0.001)
            assert (house.service.status()["turns"]["running"], house.service.status()["turns"]["delegating"]) == (2, 1)
            model.release("blocker")
            await house.answered(blocker.turn)
            await model.held("other")
            assert house.service.engine.waiting_total == 1
            for name in ("other", "first", "second"):
                model.release(name)
        assert (await house.answered(other.turn)).state == "answered"
        assert (await house.answered(parent.turn)).text == "all"


# -- stopped with the turn -------------------------------------------------------------------------------------------


class Holding:
    """A tool that holds something until it is told to let go, and lets go when it is cancelled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.held = 0

    def toolset(self) -> Toolset:
        @tool(effect="execute", parallel=True, timeout=None)
        async def hold(ctx: ToolContext) -> str:
            """Holds."""
            self.held += 1
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.held -= 1
            return ""

        return Toolset((hold,))


async def _stop(house: Core, session: str) -> None:
    await house.service.stop(session, ANNA)


async def _interrupt(house: Core, session: str) -> None:
    await house.accept("[say instead]", None, session=session, busy="interrupt")


async def _end(house: Core, session: str) -> None:
    await house.service.end(session, ANNA, "new")


async def _delete(house: Core, session: str) -> None:
    await house.service.delete(session, ANNA)


async def _expire(house: Core, session: str) -> None:
    live = house.service.engine.running(session)
    assert live is not None
    live.expire()  # what the timer of limits.turn_seconds calls


WAYS = {"stop": _stop, "interrupt": _interrupt, "end": _end, "delete": _delete, "timeout": _expire}


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_whichever_way_the_turn_ends_its_tasks_end_before_it(
    home: Path, model: ScriptedModel, way: str, deep: bool
) -> None:
    """B3, V01, S30: as stopped, with all that they hold, down to the last; whoever is told that the turn has ended
    finds nothing of them."""
    holding = Holding()
    said = task("second", "[tool hold {}]")
    if deep:
        said = task("helper", said, together=(("second", "[hang]"), ("second", "[hang after=1]")))
    async with delegating(home, model, toolsets={"holding": holding.toolset()}) as house:
        accepted = await house.accept(said)
        with anyio.fail_after(WAIT):
            await holding.started.wait()
        child = await child_of(house, accepted.turn)
        log = house.service.live(child)
        seen: list[int] = []

        async def told() -> None:
            outcome = await house.answered(accepted.turn)
            assert outcome.state == ("failed" if way == "timeout" else "stopped")
            seen.append(holding.held)

        async with anyio.create_task_group() as group:
            group.start_soon(told)
            await anyio.lowlevel.checkpoint()
            await WAYS[way](house, accepted.session)
        assert seen == [0]
        assert log is not None and log.closed and log.events[-1].outcome.state == "stopped"  # type: ignore[union-attr]
        assert error(log.events[-1].outcome).endswith("the turn that gave it its task has ended.")  # type: ignore[union-attr]
        await still(house)
        left = await rows(house)
        assert (left["sessions"], left["receipts"], left["intents"]) == (0 if way == "delete" else 1, 0, 0)
        assert house.service.delegation is not None and not house.service.delegation._rooms


async def test_a_caller_who_leaves_takes_the_tasks_with_him(home: Path, model: ScriptedModel) -> None:
    """S18, H16: of a one-shot call nothing is left at all."""
    holding = Holding()
    async with delegating(home, model, toolsets={"holding": holding.toolset()}) as house:
        accepted = await house.accept(task("second", "[tool hold {}]"), None)
        with anyio.fail_after(WAIT):
            await holding.started.wait()
        await house.service.abandon(accepted.turn)
        await still(house)
        assert holding.held == 0 and set((await rows(house)).values()) == {0}
        assert not any(house.service.census().values())


async def test_a_turn_that_fails_beside_its_tasks_stops_them(home: Path, model: ScriptedModel) -> None:
    """V01: here because nobody answered what another of its calls asked, and its agent is to end then."""
    holding, now = Holding(), [1e9]
    toml = configured(model, tools="holding").replace('"delegate", "clock"', '"delegate", "asking"', 1)
    toml = toml.replace('prompt = "You are a test."', 'prompt = "You are a test."\nunanswered = "end"', 1)

    @tool(effect="read", parallel=True, timeout=None)
    async def wonder(ctx: ToolContext) -> str:
        """Asks."""
        return await ctx.ask("Well?", ())

    toolsets = {"holding": holding.toolset(), "asking": Toolset((wonder,))}
    async with delegating(home, model, toml=toml, toolsets=toolsets, clock=lambda: now[0]) as house:
        both = task("second", "[tool hold {}]")[:-1].replace("[tool", "[together") + " wonder {}]"
        accepted = await house.accept(both, channel="page")
        with anyio.fail_after(WAIT):
            await holding.started.wait()
            while not house.service.questions.waiting:
                await anyio.sleep(0.001)
        now[0] += 10 * 86400
        await house.service.questions.expire()
        outcome = await house.answered(accepted.turn)
        assert outcome.state == "failed" and outcome.error is not None and outcome.error.code == "unanswered"
        assert holding.held == 0
        await still(house)
        assert (await rows(house))["sessions"] == 1


# -- where it works --------------------------------------------------------------------------------------------------


async def test_a_task_works_in_a_folder_of_its_own_that_is_gone_with_it(home: Path, model: ScriptedModel) -> None:
    """V10, L29: neither sees the other's files; what is to be kept is in the answer."""
    write, read = '[tool write_file {"path": "a.txt", "content": "x"}]', '[tool read_file {"path": "a.txt"}]'
    async with delegating(home, model) as house:
        await house.say(f"{task('helper', f'{write} [say written]')} [say ok]")
        assert "written" in result(house)[0]
        await house.say(f"{task('helper', f'{read} [say looked]')} [say ok]")
        looked = next(found for number in (-2, -3) for found in result(house, number) if "a.txt" in found)
        assert "no" in looked.lower()
        await still(house)
        assert [path for path in (home / "workspaces").rglob("a.txt")] == []
        assert (await rows(house))["workspaces"] == 0


async def test_a_task_of_an_agent_with_a_project_works_in_the_project(home: Path, model: ScriptedModel) -> None:
    """V10: what it writes there stays, as everything in a folder of the user's."""
    (home / "project").mkdir(parents=True)
    (home / "project").chmod(0o777)  # where root has made it, agents are another user
    extra = '[agents.writer]\nmodel = "main"\nworkspace = "project"\ntools = ["files"]\napprovals = "autonomous"'
    write = '[tool write_file {"path": "a.txt", "content": "kept"}]'
    toml = configured(model, extra).replace('delegates = ["helper", "second"]', 'delegates = ["writer"]', 1)
    async with delegating(home, model, toml=toml) as house:
        await house.say(f"{task('writer', f'{write} [say written]')} [say ok]")
        assert "written" in result(house)[0]
        await still(house)
    assert (home / "project" / "a.txt").read_text() == "kept"


# -- what is stored --------------------------------------------------------------------------------------------------


async def test_a_task_is_a_turn_with_its_place_in_the_tree(home: Path, model: ScriptedModel) -> None:
    """One door; the rows say whose it is, how deep, on which channel and in which conversation."""
    said = task("helper", task("second", "[hold gate]"))
    async with delegating(home, model) as house:
        accepted = await house.accept(said, job="nightly")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        first = await house.store.read(turns.get, await child_of(house, accepted.turn))
        assert first is not None
        second = await house.store.read(turns.get, await child_of(house, first.id))
        assert second is not None
        for depth, (turn, parent) in enumerate(((first, accepted.turn), (second, first.id)), start=1):
            assert (turn.channel, turn.within, turn.depth, turn.job) == ("delegate", parent, depth, "nightly")
            assert turn.conversation == accepted.session
            session = await house.store.read(sessions.get, turn.session)
            assert session is not None and (session.kind, session.principal) == ("ephemeral", ANNA.id)
        # A task is no conversation of its own to people, though who knows its id may look at it.
        assert [view.id for view in await house.service.sessions(ANNA)] == [accepted.session]
        assert (await house.service.session(first.session, ANNA)).running == first.id
        assert (await house.store.read(turns.outermost, second.id)).id == accepted.turn  # type: ignore[union-attr]
        model.release("gate")
        assert (await house.answered(accepted.turn)).state == "answered"
        assert await house.store.read(lambda db: db.execute("SELECT count(*) FROM messages").get) == 4
