"""The session service: access, refusals, and the events that a watcher sees."""

from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, OWNER, WAIT, Core, core, idle
from tidegate.errors import Busy, Conflict, NotFound, Stopping, TooLarge
from tidegate.store import messages, turns
from tidegate.values import Event, MessageAdded, TextDelta, TurnEnded

pytestmark = pytest.mark.anyio


async def test_nobody_reaches_another_principals_session(home: Path, model: ScriptedModel) -> None:
    """X06, X07: not by its id, its name or its turn; it is not found. The owner may read, not write."""
    async with core(home, model=model) as gateway:
        mine = await gateway.say("private")
        service = gateway.service
        for attempt in (
            lambda: service.session(mine.session, BERT),
            lambda: service.transcript(mine.session, BERT),
            lambda: service.stop(mine.session, BERT),
            lambda: service.end(mine.session, BERT, "theft"),
            lambda: service.delete(mine.session, BERT),
            lambda: service.outcome(mine.turn, BERT),
            lambda: gateway.accept("hello", name=None, session=mine.session, principal=BERT.id),
            lambda: gateway.accept("hello", name=None, session=mine.session, principal=OWNER.id),
            lambda: gateway.accept("hello", name=None, session="../../etc"),
        ):
            with pytest.raises(NotFound):
                await attempt()
        with pytest.raises(NotFound):
            async for _ in service.watch(mine.session, BERT):
                pass
        assert await service.sessions(BERT, query="private") == []
        assert [view.id for view in await service.sessions(OWNER, everyone=True)] == [mine.session]
        assert (await service.session(mine.session, OWNER)).principal == ANNA.id
        theirs = await gateway.say("hello", principal=BERT.id)
        assert theirs.session != mine.session


async def test_a_full_queue_is_refused_with_the_limits_name(home: Path, model: ScriptedModel) -> None:
    """H14, L21: and what was accepted before is all answered."""
    async with core(home, "[limits]\nqueue_length = 2", model=model) as gateway:
        running = await gateway.accept("[hold gate]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        waiting = [await gateway.accept("hello") for _ in range(2)]
        with pytest.raises(Busy, match=r"limits\.queue_length"):
            await gateway.accept("one too many")
        model.release("gate")
        for accepted in (running, *waiting):
            assert (await gateway.answered(accepted.turn)).state == "answered"


async def test_steering_has_the_length_of_the_queue(home: Path, model: ScriptedModel) -> None:
    """H14, L21: the messages that a running turn has not taken yet are bounded, and every accepted one is in the
    transcript."""
    async with core(home, "[limits]\nqueue_length = 2", model=model) as gateway:
        running = await gateway.accept("[hold gate]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        for number in range(2):
            assert (await gateway.accept(f"steer {number}", busy="steer")).how == "steered"
        with pytest.raises(Busy, match=r"limits\.queue_length") as refused:
            await gateway.accept("one too many", busy="steer")
        assert refused.value.code == "queue_full"
        model.release("gate")
        await gateway.answered(running.turn)
        with anyio.fail_after(WAIT):
            await idle(gateway, running.session)
        said = [row.message.text for row in (await gateway.service.transcript(running.session, ANNA)).rows]
        assert [text for text in said if text.startswith(("steer", "one"))] == ["steer 0", "steer 1"]


async def test_a_message_of_another_channel_does_not_join_the_running_turn(home: Path, model: ScriptedModel) -> None:
    """X20: it is queued as a turn of its own channel, so that the rules of that channel apply."""
    async with core(home, model=model) as gateway:
        running = await gateway.accept("[hold gate]", channel="page")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        assert (await gateway.accept("same", busy="steer", channel="page")).how == "steered"
        other = await gateway.accept("other", busy="steer", channel="http")
        assert other.how == "queued" and other.turn != running.turn
        model.release("gate")
        await gateway.answered(other.turn)
        turn = await gateway.store.read(turns.get, other.turn)
        assert turn is not None and turn.channel == "http"


async def test_all_queues_together_have_a_limit_too(home: Path, model: ScriptedModel) -> None:
    """L21, P15: limits.waiting_total."""
    async with core(home, "[limits]\nwaiting_total = 1\nturns = 1", model=model) as gateway:
        running = await gateway.accept("[hold gate]")
        waiting = await gateway.accept("hello", name="other")
        with pytest.raises(Busy, match=r"limits\.waiting_total"):
            await gateway.accept("hello", name="third")
        model.release("gate")
        for accepted in (running, waiting):
            await gateway.answered(accepted.turn)


async def test_one_principal_cannot_fill_the_queues_of_all(home: Path, model: ScriptedModel) -> None:
    """L21, P15: limits.waiting_each; another principal's message is still accepted."""
    async with core(home, "[limits]\nwaiting_each = 1\nturns = 1", model=model) as gateway:
        turns = [await gateway.accept("[hold gate]"), await gateway.accept("hello", name="other")]
        with pytest.raises(Busy, match=r"1 of your turns .*limits\.waiting_each") as refused:
            await gateway.accept("hello", name="third")
        assert refused.value.retry_after
        turns.append(await gateway.accept("hello", principal=BERT.id))
        model.release("gate")
        for accepted in turns:
            await gateway.answered(accepted.turn)
        turns.append(await gateway.accept("hello", name="third"))
        await gateway.answered(turns[-1].turn)


async def test_a_message_over_the_limit_is_refused_and_one_at_it_is_taken(home: Path, model: ScriptedModel) -> None:
    """H20, L24: counted in bytes, with the limit's name and value."""
    async with core(home, "[limits]\nmessage_bytes = 2048", model=model) as gateway:
        with pytest.raises(TooLarge, match=r"limits\.message_bytes \(2048 bytes\)"):
            await gateway.accept("☃" * 683)
        assert (await gateway.say("☃" * 682)).state == "answered"
        assert (await gateway.say("x" * 2048)).state == "answered"


async def test_a_session_keeps_the_system_message_and_agent_it_began_with(home: Path, model: ScriptedModel) -> None:
    """H06: an equal one is ignored, a different one is a conflict."""
    async with core(home, '[agents.second]\nmodel = "main"', model=model) as gateway:
        await gateway.say("one", extra_prompt="Be brief.")
        assert "Be brief." in gateway.requests()[-1]["messages"][0]["content"]
        assert (await gateway.say("two", extra_prompt="Be brief.")).state == "answered"
        assert (await gateway.say("three")).state == "answered"
        with pytest.raises(Conflict, match="another system message"):
            await gateway.accept("four", extra_prompt="Be long.")
        with pytest.raises(Conflict, match="belongs to the agent"):
            await gateway.accept("five", agent="second")
        with pytest.raises(NotFound, match="main, second"):
            await gateway.accept("six", agent="secnd", name="other")


async def test_when_the_gateway_stops_nothing_more_is_accepted(home: Path, model: ScriptedModel) -> None:
    """F1: intake stops first, and says so."""
    async with core(home, model=model) as gateway:
        await gateway.service.drain(1)
        with pytest.raises(Stopping):
            await gateway.accept("too late")


async def collect(gateway: Core, session: str, after: int, last: int) -> list[tuple[int | None, Event]]:
    """The events of a watcher until row `last` has arrived."""
    seen: list[tuple[int | None, Event]] = []
    with anyio.fail_after(WAIT):
        stream = gateway.service.watch(session, ANNA, after)
        async for item in stream:
            seen.append(item)
            if item[0] == last:
                break
        await stream.aclose()  # type: ignore[attr-defined]
    return seen


async def test_a_watcher_sees_each_row_once_and_comes_back_by_its_id(home: Path, model: ScriptedModel) -> None:
    """S19, H15, V01: rows after the last id, then the running turn from its beginning, then new events."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        running = await gateway.accept("[hold gate step=0] [say two]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        async with anyio.create_task_group() as group:
            seen: list[tuple[int | None, Event]] = []

            async def watch() -> None:
                seen.extend(await collect(gateway, first.session, 0, 6))

            group.start_soon(watch)
            await anyio.lowlevel.checkpoint()
            model.release("gate")
            await gateway.answered(running.turn)
            await gateway.say("three")
        ids = [id for id, event in seen if isinstance(event, MessageAdded)]
        assert ids == [1, 2, 3, 4, 5, 6]
        assert any(isinstance(event, TextDelta) for _, event in seen)

        again = await collect(gateway, first.session, 4, 6)
        assert [id for id, event in again if isinstance(event, MessageAdded)] == [5, 6]


async def test_watching_keeps_no_resident_and_ends_with_the_session(home: Path, model: ScriptedModel) -> None:
    """L16, B7: a client that is always connected does not keep a session in memory."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say("one")
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                async for _ in gateway.service.watch(outcome.session, ANNA, 0):
                    pass

            group.start_soon(watch)
            with anyio.fail_after(WAIT):
                while (
                    gateway.components.presence.get(outcome.session) is None
                    or not gateway.components.presence.get(outcome.session).watchers
                ):  # type: ignore[union-attr]
                    await anyio.lowlevel.checkpoint()
            assert gateway.components.presence.sweep(now=1e12) == 1
            await gateway.service.end(outcome.session, ANNA, "new")
        assert gateway.service.census()["present"] == 0


async def test_an_export_holds_the_session_and_every_row(home: Path, model: ScriptedModel) -> None:
    """S19, V06: JSON lines, undone rows marked."""

    async with core(home, model=model) as gateway:
        outcome = await gateway.say("one")
        await gateway.say("two")
        await gateway.service.operations.undo(outcome.session, ANNA)
        lines = [msgspec.json.decode(line) async for line in gateway.service.export(outcome.session, ANNA)]
        assert lines[0]["id"] == outcome.session
        assert [line["undone"] is not None for line in lines[1:]] == [False, False, True, True]


async def test_abandoning_a_turn_follows_its_policy(home: Path, model: ScriptedModel) -> None:
    """H15, H16: a named turn goes on, a one-shot call is stopped, and either can choose otherwise."""
    async with core(home, model=model) as gateway:
        cases = {("talk", None): "answered", (None, None): "stopped", ("t2", "cancel"): "stopped"}
        cases[(None, "continue")] = "answered"
        for (name, choice), state in cases.items():
            gate = f"gate-{name}-{choice}"
            accepted = await gateway.accept(f"[hold {gate}]", name=name, on_disconnect=choice)
            with anyio.fail_after(WAIT):
                await model.held(gate)
            log = gateway.service.turn_log(accepted.turn)
            assert log is not None
            await gateway.service.abandon(accepted.turn)
            model.release(gate)
            with anyio.fail_after(WAIT):
                await log.ended()
            ended = log.events[-1]
            assert isinstance(ended, TurnEnded) and ended.outcome.state == state


async def test_every_door_takes_the_same_way(home: Path, model: ScriptedModel) -> None:
    """V18, A13: named, by id and one-shot leave the same kind of rows and the same request."""
    async with core(home, model=model) as gateway:
        named = await gateway.say("the very same")
        by_id = await gateway.accept("the very same", name=None, new=True, channel="page")
        await gateway.answered(by_id.turn)
        await gateway.say("the very same", name=None)
        bodies = {request.body for request in model.recorded}
        assert len(bodies) == 1

        for session in (named.session, by_id.session):
            rows = await gateway.store.read(lambda db, session=session: messages.page(db, session))
            assert [row.step for row in rows] == ["in-0", "model-0"]
