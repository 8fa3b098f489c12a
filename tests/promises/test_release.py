"""Memory of a session, counted through the real entry point: leases, ledger, records and the objects themselves."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core, settings
from tidegate.agent import Conversation
from tidegate.engine import TurnLog
from tidegate.engine.journal import Journal
from tidegate.engine.live_turn import LiveTurn
from tidegate.lifetimes import Present
from tidegate.store import sessions
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.values import Call, Message, Outcome, Prefix

pytestmark = pytest.mark.anyio

HELD = (Conversation, LiveTurn, TurnLog, Journal, Present)
"""Classes whose objects exist only while their session is present."""


def leases(gateway: Core) -> Mapping[str, int]:
    """Leases on model clients, by endpoint."""
    return gateway.clients.stats().leases


async def until_leases(gateway: Core, wanted: Mapping[str, int]) -> None:
    """Releases happen in the background: waits for them, then checks exactly."""
    with anyio.move_on_after(WAIT):
        while leases(gateway) != wanted:
            await anyio.lowlevel.checkpoint()
    assert leases(gateway) == wanted


def objects() -> dict[str, int]:
    gc.collect()
    found = gc.get_objects()
    return {kind.__name__: sum(type(thing) is kind for thing in found) for kind in HELD}


async def _model(gateway: Core, outcome: Outcome) -> None:
    await gateway.service.operations.set_setting(outcome.session, ANNA, "model", "other", source="command")
    await gateway.say("two")


async def _undo(gateway: Core, outcome: Outcome) -> None:
    await gateway.service.operations.undo(outcome.session, ANNA)


async def _retry(gateway: Core, outcome: Outcome) -> None:
    await gateway.answered((await gateway.service.operations.retry(outcome.session, ANNA)).turn)


async def _reload(gateway: Core, outcome: Outcome) -> None:
    await gateway.store.write(sessions.refreeze, outcome.session, Prefix(prompt="Another."), 1)
    await gateway.service.operations.reload(outcome.session, ANNA)


async def _end(gateway: Core, outcome: Outcome) -> None:
    await gateway.service.end(outcome.session, ANNA, "new")


async def _delete(gateway: Core, outcome: Outcome) -> None:
    await gateway.service.delete(outcome.session, ANNA)


async def _expire(gateway: Core, outcome: Outcome) -> None:
    await gateway.store.write(lambda db: db.execute("UPDATE sessions SET active = 1 WHERE id = ?", (outcome.session,)))
    assert await gateway.components.endings.expire("named", 3600.0) == 1


async def _error(gateway: Core, outcome: Outcome) -> None:
    assert (await gateway.say("[status 500]")).state == "failed"


async def _stop(gateway: Core, outcome: Outcome) -> None:
    accepted = await gateway.accept("[hang]")
    await gateway.service.stop(outcome.session, ANNA)
    await gateway.answered(accepted.turn)


async def _too_many(gateway: Core, outcome: Outcome) -> None:
    await gateway.say("one", name="other")
    for number in range(2):
        await gateway.say("one", name=f"more {number}")
    for number in range(2):
        await gateway.service.end((await gateway.say("bye", name=f"more {number}")).session, ANNA, "new")


async def _in_mid_turn(gateway: Core, outcome: Outcome) -> None:
    accepted = await gateway.accept("[hold gate]")
    with anyio.fail_after(WAIT):
        await gateway.model.held("gate")
    await gateway.service.end(accepted.session, ANNA, "new")


# How many residents the session itself has afterwards: none, or the new one.
WAYS: dict[str, tuple[Callable[[Core, Outcome], Awaitable[None]], int]] = {
    "another model": (_model, 1),
    "undo": (_undo, 0),
    "retry": (_retry, 1),
    "reload": (_reload, 0),
    "end": (_end, 0),
    "delete": (_delete, 0),
    "expiry": (_expire, 0),
    "a failing turn": (_error, 0),
    "a stopped turn": (_stop, 0),
    "too many": (_too_many, 0),
    "an end in mid-turn": (_in_mid_turn, 0),
}


@pytest.mark.parametrize("way", WAYS)
async def test_after_every_exit_only_the_remaining_residents_hold_handles(
    home: Path, model: ScriptedModel, way: str
) -> None:
    """L01, A5, B1, L06: one lease and one ledger entry for each resident; the neighbour keeps its own."""
    go, stay = WAYS[way]
    async with core(home, "[limits]\nresidents = 3" if way == "too many" else "", model=model) as gateway:
        outcome, other = await gateway.say("one"), await gateway.say("one", name="other")
        assert sum(leases(gateway).values()) == 2
        await go(gateway, outcome)
        await until_leases(gateway, {model.base_url: stay + 1})
        assert gateway.service.ledger.totals()["resident"].count == stay + 1
        record = gateway.components.presence.get(other.session)
        assert record is not None and record.resident is not None


async def test_many_turns_use_one_lease_and_one_connection(home: Path, model: ScriptedModel) -> None:
    """A1, A9: no client and no connection is made per message; one-shot calls return theirs."""
    async with core(home, model=model) as gateway:
        for number in range(10):
            await gateway.say(f"{number} [tool clock {{}}]")
            await gateway.say("once", name=None)
        assert leases(gateway) == {model.base_url: 1}
        assert model.stats()["accepted_connections"] == 1


async def test_no_object_of_a_finished_session_stays_alive(home: Path, model: ScriptedModel) -> None:
    """L07, L31, L01: after answers, failures, stops, steering, one-shot calls and readers, ended in every way, no
    object and no task is left."""

    @tool(effect="read")
    async def broken(ctx: ToolContext) -> str:
        """Fails."""
        raise RuntimeError(ctx.session)

    async with core(home, model=model, tools='"clock", "broken"', toolsets={"broken": Toolset((broken,))}) as gateway:
        before = objects()
        tasks = len(asyncio.all_tasks())
        gone: list[str] = []
        for number, script in enumerate(
            ("hello", "[tool clock {}]", "[tool broken {}]", "[status 500]", "[words 30] [cut after=4]", "[close]")
        ):
            gone.append((await gateway.say(script, name=f"talk {number}")).session)
            await gateway.say(script, name=None)
        stopped = await gateway.accept("[hold gate]", name="stopped")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        gone.append(stopped.session)
        await gateway.accept("steered", name="stopped", busy="steer")
        waiting = await gateway.accept("waiting", name="stopped")
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                async for _ in gateway.service.watch(stopped.session, ANNA):
                    pass

            group.start_soon(watch)
            await anyio.lowlevel.checkpoint()
            for number, session in enumerate(gone):
                await (
                    gateway.service.delete(session, ANNA) if number % 2 else gateway.service.end(session, ANNA, "new")
                )
        assert (await gateway.service.outcome(waiting.turn, ANNA)).state == "refused"
        with anyio.move_on_after(WAIT):
            while leases(gateway) or len(asyncio.all_tasks()) > tasks:
                await anyio.lowlevel.checkpoint()
        assert leases(gateway) == {}
        assert objects() == before == dict.fromkeys(before, 0)
        assert [task for task in asyncio.all_tasks() for session in gone if session in str(task)] == []
        assert [owner for owner, _ in gateway.service.ledger.owners() if "session s_" in owner] == []


async def test_bytes_of_residents_stay_within_their_budget_with_real_messages(home: Path, model: ScriptedModel) -> None:
    """A6, L03: histories are weighed as they grow, the least recently used are unloaded, and every user is still
    answered with their complete history."""
    budget = 1024 * 1024
    async with core(home, f'[limits]\nresident_bytes = {budget}\nmessage_bytes = "1 MiB"', model=model) as gateway:
        for turn in range(2):
            for number in range(8):
                outcome = await gateway.say(f"{number} {turn} " + "x" * 120_000, name=f"talk {number}")
                assert outcome.state == "answered"
                stats = gateway.components.presence.stats()
                assert stats.resident_bytes <= budget
                assert gateway.service.ledger.totals()["resident"].bytes >= stats.resident_bytes
        stats = gateway.components.presence.stats()
        assert stats.unloads["bytes"] >= 4 and stats.residents < 8
        assert model.stats()["reuse"] == 1.0


async def test_the_extra_prompt_and_the_frozen_prompt_are_in_the_signature(home: Path, model: ScriptedModel) -> None:
    """A2: for two sessions that are otherwise equal."""
    async with core(home, model=model) as gateway:
        found: set[bytes] = set()
        for name, extra in (("a", None), ("b", None), ("c", "Be brief."), ("d", "Be brief.."), ("e", "Be brief.")):
            outcome = await gateway.say("hello", name=name, extra_prompt=extra)
            record = gateway.components.presence.get(outcome.session)
            assert record is not None and record.resident is not None
            found.add(record.resident.signature)
        assert len(found) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"call": Call(temperature=0.2)},
        {"call": Call(max_tokens=50)},
        {"call": Call(reasoning="high")},
        {"channel": "page"},
        {"channel": "terminal", "on_disconnect": "cancel"},
        {"busy": "interrupt"},
        {"messages_with_aside": True},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_options_of_one_message_do_not_rebuild_the_resident(
    home: Path, model: ScriptedModel, change: dict[str, object]
) -> None:
    """A3, A1: parameters, channel and ways of following a message are not in the signature."""
    if change.pop("messages_with_aside", False):
        change["messages"] = (Message(role="user", text="two", aside="It is late."),)
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        record = gateway.components.presence.get(first.session)
        assert record is not None
        resident = record.resident
        assert (await gateway.say("two", **change)).state == "answered"
        assert (await gateway.say("three")).state == "answered"
        again = gateway.components.presence.get(first.session)
        assert again is not None and again.resident is resident
        assert gateway.components.presence.stats().unloads == {}


async def test_a_parameter_of_a_call_overrides_the_sessions_setting_for_that_call(
    home: Path, model: ScriptedModel
) -> None:
    """S05, H08, A3: one resolver, and the setting applies again afterwards."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        await gateway.service.operations.set_setting(first.session, ANNA, "reasoning", "low", source="command")
        await gateway.say("two", call=Call(reasoning="high"))
        assert gateway.requests()[-1]["reasoning_effort"] == "high"
        await gateway.say("three")
        assert gateway.requests()[-1]["reasoning_effort"] == "low"


async def test_a_reader_that_reconnects_builds_nothing(home: Path, model: ScriptedModel) -> None:
    """L25, A1: a client that keeps reconnecting finds the same session, and no model is asked."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        record = gateway.components.presence.get(first.session)
        assert record is not None
        resident, asked = record.resident, model.counts["requests"]
        for _ in range(50):
            stream = gateway.service.watch(first.session, ANNA)
            assert (await anext(stream))[0] == 1
            await stream.aclose()
        assert gateway.components.presence.get(first.session) is record and record.resident is resident
        assert record.held == 0 and not [watcher for watcher in record.watchers if not watcher.done()]
        assert (leases(gateway), model.counts["requests"]) == ({model.base_url: 1}, asked)
        assert gateway.components.presence.unload(first.session, reason="test")
        for _ in range(50):
            stream = gateway.service.watch(first.session, ANNA)
            await anext(stream)
            await stream.aclose()
        assert len(gateway.components.presence) == 0
        await until_leases(gateway, {})


async def test_a_changed_address_or_credential_applies_from_the_next_turn_and_keeps_the_prefix(
    home: Path, model: ScriptedModel
) -> None:
    """P19, A4, S33: the new endpoint gets the new key and every byte that the old one was sent."""
    (home / "keys").mkdir(parents=True)
    (home / "keys" / "new").write_text("a-new-key")
    async with core(home, model=model) as gateway:
        await gateway.say("[tool clock {}] one")
    async with ScriptedModel() as elsewhere:
        toml = settings(elsewhere).replace('model = "scripted"', 'model = "scripted"\nkey = "file:keys/new"')
        async with core(home, model=elsewhere, toml=toml) as gateway:
            assert (await gateway.say("two")).state == "answered"
        (asked,) = elsewhere.recorded
        assert asked.authorization == "Bearer a-new-key"
        assert asked.body.startswith(model.recorded[-1].body.removesuffix(b"]}"))


async def test_a_changed_tool_description_does_not_change_a_running_conversation(
    home: Path, model: ScriptedModel
) -> None:
    """A4, S33, P16: the tool list comes from the store, not from the current descriptions."""

    @tool(effect="read")
    async def weather(ctx: ToolContext) -> str:
        """Tells the weather."""
        return "rain"

    described = msgspec.structs.replace(weather.definition, description="Tells the weather, better.")
    better = msgspec.structs.replace(weather, definition=described)
    async with core(home, model=model, tools='"weather"', toolsets={"weather": Toolset((weather,))}) as gateway:
        await gateway.say("one")
    async with core(home, model=model, tools='"weather"', toolsets={"weather": Toolset((better,))}) as gateway:
        assert (await gateway.say("[tool weather {}] two")).state == "answered"
        assert b"better" not in model.recorded[-1].body
        assert model.recorded[-1].body.startswith(model.recorded[0].body.removesuffix(b"]}"))
        await gateway.say("one", name="another")
        assert b"better" in model.recorded[-1].body
