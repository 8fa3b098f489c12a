"""Tasks that one agent gives another: permissions, bounds, results, and clean-up."""

import asyncio
import json
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, fill_slots, live_turn
from tests.tasks import configured, delegating, error, result, rows, task, until_idle
from tidegate.errors import Refused
from tidegate.store import principals, sessions, turns
from tidegate.tools import ToolContext, Toolset, tool

pytestmark = pytest.mark.anyio

NOTHING_LEFT = {
    "sessions": 1, "turns": 1, "intents": 0, "receipts": 0, "approvals": 0, "workspaces": 0, "spooled": 0,
}  # fmt: skip


# -- a task and its answer -------------------------------------------------------------------------------------------


async def test_a_task_is_answered_and_the_answer_is_said_to_be_the_agents(home: Path, model: ScriptedModel) -> None:
    """X19, L04: its provenance is in its structure: the result of a tool, which names the agent. Nothing of the task is
    left but its usage."""
    async with delegating(home, model) as gateway:
        outcome = await gateway.say(f"{task('helper', '[say forty two]')} [say thanks]")
        assert (outcome.state, outcome.text) == ("answered", "thanks")
        assert result(gateway) == ["The answer from agent 'helper':\n\nforty two"]
        _, given, _ = gateway.requests()
        assert given["messages"][0]["content"].startswith("You help.")
        told = json.dumps(given["messages"][1])
        assert "[say forty two]" in told and "given by the agent 'main'" in told
        await until_idle(gateway)
        assert gateway.service.census() == {**dict.fromkeys(gateway.service.census(), 0), "present": 1, "residents": 1}
        assert await rows(gateway) == NOTHING_LEFT
        assert gateway.components.delegation is not None and gateway.components.delegation.is_idle


async def test_a_failed_or_stopped_task_is_a_result_and_no_failure_of_the_turn(
    home: Path, model: ScriptedModel
) -> None:
    """The delegating model decides what to do about it."""
    async with delegating(home, model) as gateway:
        outcome = await gateway.say(f"{task('helper', '[status 400]')} [say never mind]")
        assert (outcome.state, outcome.text) == ("answered", "never mind")
        assert result(gateway)[0].startswith("The agent 'helper' failed before it had an answer. Model 'main'")
        running = await gateway.accept(f"{task('helper', '[words 5] [hang after=3]')} [say never mind]")
        child = await child_of(gateway, running.turn)
        log = gateway.service.turn_log(child)
        assert log is not None
        with anyio.fail_after(WAIT):
            while not log.draft():
                await anyio.sleep(0.001)
            await gateway.service.stop(log.session, ANNA)
        assert (await gateway.answered(running.turn)).text == "never mind"
        assert "was stopped before it had an answer. The turn was stopped by its user." in result(gateway)[-1]
        assert "Its text until then:\n\nw0" in result(gateway)[-1]
        outcome = await gateway.say(f"{task('helper', '[words 0]')} [say so be it]")
        assert (outcome.text, result(gateway)[-1]) == ("so be it", "The agent 'helper' returned an empty answer.")


async def test_a_long_answer_is_bounded_and_the_rest_is_in_the_spool(home: Path, model: ScriptedModel) -> None:
    """D1: like every tool result; the tool that reads the rest is available."""
    async with delegating(home, model, "[limits]\ntool_output_bytes = 2000") as gateway:
        await gateway.say(f"{task('helper', '[words 2000]')} [say read]")
        [shown] = result(gateway)
        assert shown.startswith("The answer from agent 'helper':") and len(shown) < 3000 and "output" in shown
        assert "output" in [each["function"]["name"] for each in gateway.requests()[0]["tools"]]
        assert (await rows(gateway))["spooled"] == 1


async def test_the_prompt_says_which_agents_there_are_and_does_not_change(home: Path, model: ScriptedModel) -> None:
    """C4: by name and description, in a fixed order, frozen with the session; nothing if there are none."""
    async with delegating(home, model) as gateway:
        await gateway.say("one")
        await gateway.say("two")
        first, second = gateway.requests()
        assert first["messages"][0] == second["messages"][0] and first["tools"] == second["tools"]
        assert first["messages"][0]["content"].endswith(
            "With the tool `delegate` you can delegate tasks to these agents:\n- helper: Looks things up.\n- second"
        )
        await gateway.store.write(lambda db: db.execute('UPDATE principals SET agents = \'["main", "second"]\''))
        await gateway.say("three", "other")
        assert gateway.requests()[-1]["messages"][0]["content"].endswith("agents:\n- second")
        await gateway.say("four", "third", agent="stranger")
        assert "delegate" not in json.dumps(gateway.requests()[-1])


# -- who may ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["stranger", "main", "nobody", "Helper"])
async def test_only_agents_that_are_named_are_given_tasks(home: Path, model: ScriptedModel, agent: str) -> None:
    """X23: denied by default; the error lists the available agents."""
    async with delegating(home, model) as gateway:
        await gateway.say(f"{task(agent, '[say x]')} [say ok]")
        expected = f"There is no agent {agent!r} that you may give tasks to; choose one of: helper, second."
        assert result(gateway) == [expected]
        assert len(gateway.requests()) == 2 and (await rows(gateway)) == NOTHING_LEFT


async def test_delegation_does_not_reach_agents_that_the_user_may_not_use(home: Path, model: ScriptedModel) -> None:
    """X23: even if that changed during the conversation."""
    async with delegating(home, model) as gateway:
        await gateway.store.write(lambda db: db.execute('UPDATE principals SET agents = \'["main", "second"]\''))
        await gateway.say(f"{task('helper', '[say x]')} [say ok]")
        assert result(gateway) == ["There is no agent 'helper' that you may give tasks to; choose one of: second."]
        await gateway.store.write(lambda db: db.execute("UPDATE principals SET agents = '[\"main\"]'"))
        await gateway.say(f"{task('second', '[say x]')} [say ok]")
        assert result(gateway)[-1] == "There is no agent 'second' that you may give tasks to; there is none."
        assert await gateway.store.read(principals.get, ANNA.id) is not None
        unknown = await gateway.say(f"{task('helper', '[say x]')} [say ok]", principal="p_nobody")
        assert unknown.text == "ok" and "there is none" in result(gateway)[-1]


async def test_tasks_are_handed_on_so_deep_and_no_deeper(home: Path, model: ScriptedModel) -> None:
    """limits.delegate_depth; the last agent is told so."""
    deep = f"{task('helper', task('second', '[say at the bottom]') + ' [say half way]')} [say done]"
    async with delegating(home, model, "[limits]\ndelegate_depth = 2") as gateway:
        assert (await gateway.say(deep)).text == "done"
        assert [result(gateway, number) for number in (3, 4)] == [
            ["The answer from agent 'second':\n\nat the bottom"],
            ["The answer from agent 'helper':\n\nhalf way"],
        ]
    async with delegating(home, model, "[limits]\ndelegate_depth = 1") as gateway:
        model.reset()
        assert (await gateway.say(deep)).text == "done"
        assert "been delegated 1 times (limits.delegate_depth is 1)" in result(gateway, 2)[0]
        assert len(gateway.requests()) == 4


async def test_the_delegate_channel_is_closed_to_callers(home: Path, model: ScriptedModel) -> None:
    """X23: only a running turn can give a task."""
    async with delegating(home, model) as gateway:
        done = await gateway.say("one")
        with pytest.raises(Refused, match="no channel 'delegate'"):
            await gateway.accept("a", None, channel="delegate")
        with pytest.raises(Refused, match="no channel 'http'"):
            await gateway.accept("a", None, within=done.turn)
        with pytest.raises(Refused, match="has ended"):
            await gateway.accept("a", None, within=done.turn, channel="delegate", depth=1)
        assert await rows(gateway) == NOTHING_LEFT


# -- how many at once ------------------------------------------------------------------------------------------------


async def child_of(gateway: Core, turn: str) -> str:
    """The turn of a task of this one, once it exists."""
    find = "SELECT id FROM turns WHERE within = ? LIMIT 1"
    with anyio.fail_after(WAIT):
        while True:
            found: str | None = await gateway.store.read(lambda db: db.execute(find, (turn,)).get)
            if found is not None:
                return found
            await anyio.sleep(0.001)


async def test_so_many_tasks_of_a_turn_are_worked_on_at_once_and_the_others_wait(
    home: Path, model: ScriptedModel
) -> None:
    """L21: limits.delegates; the results are in the order of the calls."""
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
    async with delegating(home, model, "[limits]\ndelegates = 2", toolsets={"busy": Toolset((busy,))}) as gateway:
        assert (await gateway.say(said)).text == "all"
        assert result(gateway) == [f"The answer from agent 'second':\n\n{number}" for number in range(6)]
        assert most == 2 and running == 0
        await until_idle(gateway)
        assert await rows(gateway) == NOTHING_LEFT


@pytest.mark.parametrize("places", [1, 2, 3])
async def test_one_place_is_enough_for_a_tree_of_tasks(home: Path, model: ScriptedModel, places: int) -> None:
    """L21: a turn that waits for its tasks lends them its slot, so that any number of slots suffices."""
    inner = task("second", "[say a]", together=(("second", "[say b]"), ("second", "[say c]"))) + " [say inner]"
    said = f"{task('helper', inner, together=(('helper', inner), ('second', '[say d]')))} [say outer]"
    async with delegating(home, model, f"[limits]\nturns = {places}\nwaiting_total = 64") as gateway:
        outcomes: list[str] = []

        async def talk(name: str) -> None:
            outcomes.append((await gateway.say(said, name)).text)

        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(talk, f"talk {number}")
        assert outcomes == ["outer"] * 4
        await until_idle(gateway)
        await fill_slots(gateway, places)


async def test_no_more_trees_are_in_progress_than_there_are_places(home: Path, model: ScriptedModel) -> None:
    """L21: a turn that waits for its tasks keeps its slot for them, so that no other starts in it; first come, first
    served."""
    async with delegating(home, model, "[limits]\nturns = 1") as gateway:
        parent = await gateway.accept(f"{task('helper', '[hold gate] [say a]')} [say first]", "one")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        other = await gateway.accept("[say second]", "two")
        status = gateway.service.status().turns
        assert (status.running, status.waiting, status.delegating) == (1, 1, 1)
        assert gateway.service.census()["turns_delegating"] == 1
        model.release("gate")
        assert (await gateway.answered(parent.turn)).text == "first"
        assert (await gateway.answered(other.turn)).text == "second"
        texts = [request["messages"][-1] for request in gateway.requests()]
        assert "second" in json.dumps(texts[-1])


async def test_earlier_waiters_get_a_slot_before_further_tasks_of_a_turn(home: Path, model: ScriptedModel) -> None:
    """A tree has one slot; for more it waits like any other turn."""
    async with delegating(home, model, "[limits]\nturns = 2") as gateway:
        blocker = await gateway.accept("[hold blocker]", "zero")
        both = task("second", "[hold first] [say a]", together=(("second", "[hold second] [say b]"),))
        parent = await gateway.accept(f"[hold parent step=0] {both} [say all]", "one")
        with anyio.fail_after(WAIT):
            await model.held("blocker")
            await model.held("parent")
            other = await gateway.accept("[hold other]", "two")
            model.release("parent")
            while gateway.components.engine.stats().waiting != 2:
                await anyio.sleep(0.001)
            assert (gateway.service.status().turns.running, gateway.service.status().turns.delegating) == (2, 1)
            model.release("blocker")
            await gateway.answered(blocker.turn)
            await model.held("other")
            assert gateway.components.engine.stats().waiting == 1
            for name in ("other", "first", "second"):
                model.release(name)
        assert (await gateway.answered(other.turn)).state == "answered"
        assert (await gateway.answered(parent.turn)).text == "all"


# -- stopped with the turn -------------------------------------------------------------------------------------------


class Holding:
    """A tool that holds something until it is released or cancelled."""

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


async def _stop(gateway: Core, session: str) -> None:
    await gateway.service.stop(session, ANNA)


async def _interrupt(gateway: Core, session: str) -> None:
    await gateway.accept("[say instead]", None, session=session, busy="interrupt")


async def _end(gateway: Core, session: str) -> None:
    await gateway.service.end(session, ANNA, "new")


async def _delete(gateway: Core, session: str) -> None:
    await gateway.service.delete(session, ANNA)


async def _expire(gateway: Core, session: str) -> None:
    live = live_turn(gateway, session)
    live.expire()  # what the timer of limits.turn_seconds calls


WAYS = {"stop": _stop, "interrupt": _interrupt, "end": _end, "delete": _delete, "timeout": _expire}


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_whichever_way_the_turn_ends_its_tasks_end_before_it(
    home: Path, model: ScriptedModel, way: str, deep: bool
) -> None:
    """B3, V01, S30: as stopped, with everything they hold, at every depth; when the turn's end is reported nothing of
    them is left."""
    holding = Holding()
    said = task("second", "[tool hold {}]")
    if deep:
        said = task("helper", said, together=(("second", "[hang]"), ("second", "[hang after=1]")))
    async with delegating(home, model, toolsets={"holding": holding.toolset()}) as gateway:
        accepted = await gateway.accept(said)
        with anyio.fail_after(WAIT):
            await holding.started.wait()
        child = await child_of(gateway, accepted.turn)
        log = gateway.service.turn_log(child)
        seen: list[int] = []

        async def told() -> None:
            outcome = await gateway.answered(accepted.turn)
            assert outcome.state == ("failed" if way == "timeout" else "stopped")
            seen.append(holding.held)

        async with anyio.create_task_group() as group:
            group.start_soon(told)
            await anyio.lowlevel.checkpoint()
            await WAYS[way](gateway, accepted.session)
        assert seen == [0]
        assert log is not None and log.closed and log.events[-1].outcome.state == "stopped"  # type: ignore[union-attr]
        assert error(log.events[-1].outcome).endswith("the turn that delegated this task has ended.")  # type: ignore[union-attr]
        await until_idle(gateway)
        left = await rows(gateway)
        assert (left["sessions"], left["receipts"], left["intents"]) == (0 if way == "delete" else 1, 0, 0)
        assert gateway.components.delegation is not None and gateway.components.delegation.is_idle


async def test_tasks_stop_when_their_caller_leaves(home: Path, model: ScriptedModel) -> None:
    """S18, H16: a one-shot call leaves nothing at all."""
    holding = Holding()
    async with delegating(home, model, toolsets={"holding": holding.toolset()}) as gateway:
        accepted = await gateway.accept(task("second", "[tool hold {}]"), None)
        with anyio.fail_after(WAIT):
            await holding.started.wait()
        await gateway.service.abandon(accepted.turn)
        await until_idle(gateway)
        assert holding.held == 0 and set((await rows(gateway)).values()) == {0}
        assert not any(gateway.service.census().values())


async def test_a_turn_that_fails_beside_its_tasks_stops_them(home: Path, model: ScriptedModel) -> None:
    """V01: here because a question of another call expired, and the agent is configured to end the turn."""
    holding, now = Holding(), [1e9]
    toml = configured(model, tools="holding").replace('"delegate", "clock"', '"delegate", "asking"', 1)
    toml = toml.replace('prompt = "You are a test."', 'prompt = "You are a test."\nunanswered = "end"', 1)

    @tool(effect="read", parallel=True, timeout=None)
    async def wonder(ctx: ToolContext) -> str:
        """Asks."""
        return await ctx.ask("Well?", ())

    toolsets = {"holding": holding.toolset(), "asking": Toolset((wonder,))}
    async with delegating(home, model, toml=toml, toolsets=toolsets, clock=lambda: now[0]) as gateway:
        both = task("second", "[tool hold {}]")[:-1].replace("[tool", "[together") + " wonder {}]"
        accepted = await gateway.accept(both, channel="page")
        with anyio.fail_after(WAIT):
            await holding.started.wait()
            while not gateway.service.questions.waiting:
                await anyio.sleep(0.001)
        now[0] += 10 * 86400
        await gateway.service.questions.expire()
        outcome = await gateway.answered(accepted.turn)
        assert outcome.state == "failed" and outcome.error is not None and outcome.error.code == "unanswered"
        assert holding.held == 0
        await until_idle(gateway)
        assert (await rows(gateway))["sessions"] == 1


# -- where it works --------------------------------------------------------------------------------------------------


async def test_a_task_has_its_own_folder_which_is_removed_with_it(home: Path, model: ScriptedModel) -> None:
    """V10, L29: neither sees the other's files; only the answer is kept."""
    write, read = '[tool write_file {"path": "a.txt", "content": "x"}]', '[tool read_file {"path": "a.txt"}]'
    async with delegating(home, model) as gateway:
        await gateway.say(f"{task('helper', f'{write} [say written]')} [say ok]")
        assert "written" in result(gateway)[0]
        await gateway.say(f"{task('helper', f'{read} [say looked]')} [say ok]")
        looked = next(found for number in (-2, -3) for found in result(gateway, number) if "a.txt" in found)
        assert "no" in looked.lower()
        await until_idle(gateway)
        assert [path for path in (home / "workspaces").rglob("a.txt")] == []
        assert (await rows(gateway))["workspaces"] == 0


async def test_a_task_of_an_agent_with_a_project_works_in_the_project(home: Path, model: ScriptedModel) -> None:
    """V10: files written there stay, as in any folder of the user."""
    (home / "project").mkdir(parents=True)
    (home / "project").chmod(0o777)  # where root has made it, agents are another user
    extra = '[agents.writer]\nmodel = "main"\nworkspace = "project"\ntools = ["files"]\napprovals = "autonomous"'
    write = '[tool write_file {"path": "a.txt", "content": "kept"}]'
    toml = configured(model, extra).replace('delegates = ["helper", "second"]', 'delegates = ["writer"]', 1)
    async with delegating(home, model, toml=toml) as gateway:
        await gateway.say(f"{task('writer', f'{write} [say written]')} [say ok]")
        assert "written" in result(gateway)[0]
        await until_idle(gateway)
    assert (home / "project" / "a.txt").read_text() == "kept"


# -- what is stored --------------------------------------------------------------------------------------------------


async def test_a_task_is_a_turn_with_its_place_in_the_tree(home: Path, model: ScriptedModel) -> None:
    """One entry point; the rows have its principal, depth, channel and conversation."""
    said = task("helper", task("second", "[hold gate]"))
    async with delegating(home, model) as gateway:
        accepted = await gateway.accept(said, job="nightly")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        first = await gateway.store.read(turns.get, await child_of(gateway, accepted.turn))
        assert first is not None
        second = await gateway.store.read(turns.get, await child_of(gateway, first.id))
        assert second is not None
        for depth, (turn, parent) in enumerate(((first, accepted.turn), (second, first.id)), start=1):
            assert (turn.channel, turn.within, turn.depth, turn.job) == ("delegate", parent, depth, "nightly")
            assert turn.conversation == accepted.session
            session = await gateway.store.read(sessions.get, turn.session)
            assert session is not None and (session.kind, session.principal) == ("ephemeral", ANNA.id)
        # A task is no conversation of its own to people, though who knows its id may look at it.
        assert [view.id for view in await gateway.service.sessions(ANNA)] == [accepted.session]
        assert (await gateway.service.session(first.session, ANNA)).running == first.id
        assert (await gateway.store.read(turns.outermost, second.id)).id == accepted.turn  # type: ignore[union-attr]
        model.release("gate")
        assert (await gateway.answered(accepted.turn)).state == "answered"
        assert await gateway.store.read(lambda db: db.execute("SELECT count(*) FROM messages").get) == 4
