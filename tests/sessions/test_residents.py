"""Residents and prefixes: reused while nothing changes, rebuilt to the same bytes, released in every case."""

import itertools
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core, settings
from tests.effects import until
from tidegate.agent import Conversation
from tidegate.lifetimes import Present
from tidegate.store import messages, sessions
from tidegate.values import Message, Prefix

pytestmark = pytest.mark.anyio

LONG = "the tide comes in and the tide goes out. " * 500
"""Long enough that its history is kept when it is unloaded."""


def record(gateway: Core, session: str) -> Present:
    found = gateway.components.presence.get(session)
    assert found is not None
    return found


def beginning(body: bytes) -> bytes:
    """The body of a request without its closing brackets: the next request must begin with it."""
    return body.removesuffix(b"]}")


def check_growth(model: ScriptedModel, *, from_request: int = 0) -> None:
    bodies = [request.body for request in list(model.recorded)[from_request:]]
    assert len(bodies) > 1
    for earlier, later in itertools.pairwise(bodies):
        assert later.startswith(beginning(earlier))


async def test_the_next_message_finds_the_same_resident(home: Path, model: ScriptedModel) -> None:
    """A1: nothing is built again while the configuration is the same."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say("one")
        first = record(gateway, outcome.session).resident
        await gateway.say("two")
        assert first is not None and record(gateway, outcome.session).resident is first


async def test_a_request_only_grows_at_its_end(home: Path, model: ScriptedModel) -> None:
    """P16, S32, A4: plain and tool turns, byte for byte."""
    async with core(home, model=model) as gateway:
        for text in ("one", "[tool clock {}] two", "[together clock {} clock {}] three", "four"):
            await gateway.say(text)
        check_growth(model)
        assert model.stats()["reuse"] == 1.0


async def test_after_an_unload_the_request_begins_with_the_same_bytes(home: Path, model: ScriptedModel) -> None:
    """A12, B4, S03, S32: memory is a cache; the next request, built from the store, is the same."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say("[together clock {} clock {}] one")
        await gateway.say("two ☃ \u0000 \u2028")
        assert gateway.components.presence.unload(outcome.session, reason="test")
        await gateway.say("three")
        check_growth(model)


async def kept(gateway: Core, session: str) -> None:
    """Unloads the session, and waits until its history is kept."""
    assert gateway.components.presence.unload(session, reason="test")
    await until(lambda: gateway.components.runner.histories.stats().size == 1)


async def test_a_long_conversation_comes_back_as_it_was_unloaded(home: Path, model: ScriptedModel) -> None:
    """B4, S03, P16: from the file of unloaded histories, with the same bytes; tool results and a second time too."""
    async with core(home, model=model) as gateway:
        session = (await gateway.say(f"{LONG} [together clock {{}} clock {{}}]")).session
        for number in range(3):
            await kept(gateway, session)
            await gateway.say(f"{number} [tool clock {{}}]")
            assert gateway.components.runner.histories.stats().hits == number + 1
            assert record(gateway, session).resident.weight > len(LONG)  # type: ignore[union-attr]
        check_growth(model)
        assert model.stats()["refused"] == 0


async def test_a_long_past_that_is_loaded_again_is_not_weighed_as_if_it_were_in_memory(
    home: Path, model: ScriptedModel
) -> None:
    """A6, L99: the bytes of residents are those in memory, also during a model call."""
    async with core(home, model=model) as gateway:
        session = (await gateway.say("far too long " * 40_000)).session
        gateway.components.presence.unload(session, reason="test")
        async with anyio.create_task_group() as group:
            group.start_soon(gateway.say, "on [hold gate]")
            await model.held("gate")
            resident = record(gateway, session).resident
            assert resident is not None
            assert gateway.components.presence.stats().resident_bytes <= resident.weight < 300 * 1024
            model.release("gate")


@pytest.mark.parametrize("way", ["undo", "said elsewhere", "other model"])
async def test_a_change_made_meanwhile_is_read_from_the_store(home: Path, model: ScriptedModel, way: str) -> None:
    """S34, A2: a history that was kept is used on the same terms as a resident."""
    async with core(home, model=model) as gateway:
        session = (await gateway.say(LONG)).session
        await gateway.say("to be undone")
        await kept(gateway, session)
        match way:
            case "undo":
                await gateway.service.operations.undo(session, ANNA)
            case "said elsewhere":
                said = Message(role="user", text="said elsewhere")
                await gateway.store.write(
                    lambda db: messages.append(db, session=session, turn=None, step=None, message=said, now=1.0)
                )
            case "other model":
                await gateway.service.operations.set_setting(session, ANNA, "model", "other", source="command")
        await gateway.say("on")
        said_now = [message["content"] for message in gateway.requests()[-1]["messages"]]
        assert ("to be undone" in said_now) == (way != "undo")
        assert ("said elsewhere" in said_now) == (way == "said elsewhere")
        assert LONG in said_now


@pytest.mark.parametrize("way", ["end", "delete"])
@pytest.mark.parametrize("resident", [True, False])
async def test_nothing_is_kept_of_a_session_that_is_over(
    home: Path, model: ScriptedModel, way: str, resident: bool
) -> None:
    """B1, B3: whether it was in memory at its end or not."""
    async with core(home, model=model) as gateway:
        session = (await gateway.say(LONG)).session
        if not resident:
            await kept(gateway, session)
        if way == "end":
            await gateway.service.end(session, ANNA, "test")
        else:
            await gateway.service.delete(session, ANNA)
        await until(lambda: not gateway.components.presence.releasing)
        assert gateway.components.runner.histories.stats().size == 0


async def test_after_a_restart_the_request_begins_with_the_same_bytes(home: Path, model: ScriptedModel) -> None:
    """S32, S33, V08: the prompt and tool list come from the store."""
    async with core(home, model=model) as gateway:
        await gateway.say("[tool clock {}] one")
    async with core(home, model=model) as gateway:
        await gateway.say("two")
    check_growth(model)


async def test_after_a_crash_in_mid_turn_the_request_begins_with_the_same_bytes(
    home: Path, model: ScriptedModel
) -> None:
    """P16, P06: the replayed turn sends the same request."""
    async with core(home, model=model, drain=None) as gateway:
        await gateway.say("one")
        accepted = await gateway.accept("[together clock {} clock {}] two [hold gate step=1]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
    model.release("gate")
    async with core(home, model=model) as gateway:
        await gateway.answered(accepted.turn)
    bodies = [request.body for request in model.recorded]
    assert bodies[-1] == bodies[-2]
    check_growth(model)


async def test_an_edit_of_prompt_or_tools_reaches_only_new_sessions(home: Path, model: ScriptedModel) -> None:
    """A4, P19, S33: existing sessions keep theirs until /reload."""
    async with core(home, model=model) as gateway:
        old = await gateway.say("one")
    edited = settings(model, tools='"clock"').replace("You are a test.", "You are another test.")
    async with core(home, model=model, toml=edited) as gateway:
        await gateway.say("two")
        check_growth(model)
        new = await gateway.say("one", name="new talk")
        assert b"another test" in model.recorded[-1].body and b"read_file" not in model.recorded[-1].body
        assert await gateway.service.operations.reload(old.session, ANNA)
        await gateway.say("three")
        assert b"another test" in model.recorded[-1].body
        assert not await gateway.service.operations.reload(new.session, ANNA)


async def test_reasoning_changes_in_place(home: Path, model: ScriptedModel) -> None:
    """A3: the resident and its prompt stay; only the next request says it."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say("one")
        first = record(gateway, outcome.session).resident
        await gateway.service.operations.set_setting(outcome.session, ANNA, "reasoning", "high", source="command")
        await gateway.say("two")
        assert record(gateway, outcome.session).resident is first
        assert gateway.requests()[-1]["reasoning_effort"] == "high"


async def test_another_model_makes_another_resident_and_leaves_other_sessions_alone(
    home: Path, model: ScriptedModel
) -> None:
    """A2, A5, S05, S07: the choice is the session's own; the agent's configuration is untouched."""
    async with core(home, model=model) as gateway:
        one, other = await gateway.say("one"), await gateway.say("one", name="other")
        kept = record(gateway, other.session).resident
        first = record(gateway, one.session).resident
        await gateway.service.operations.set_setting(one.session, ANNA, "model", "other", source="command")
        await gateway.say("two")
        assert gateway.requests()[-1]["model"] == "scripted-too"
        assert record(gateway, one.session).resident is not first
        assert record(gateway, other.session).resident is kept
        await gateway.say("two", name="other")
        assert gateway.requests()[-1]["model"] == "scripted"
        await gateway.service.operations.clear_setting(one.session, ANNA, "model")
        await gateway.say("three")
        assert gateway.requests()[-1]["model"] == "scripted"


async def test_the_same_model_configured_otherwise_under_another_name_is_another(
    home: Path, model: ScriptedModel
) -> None:
    """A2, A5: its own configuration applies; the provider's cache sees the same bytes."""
    once = f'api = "openai-chat"\nbase_url = "{model.base_url}"\nmodel = "scripted"\nretries = 0\n'
    prices = "price_input = {0}\nprice_output = {0}\n"
    toml = f"[models.main]\n{once}{prices.format(1)}[models.dear]\n{once}{prices.format(1000)}"
    toml += '[agents.main]\nmodel = "main"\nprompt = "You are a test."\n'
    async with core(home, model=model, toml=toml) as gateway:
        cheap = await gateway.say("one")
        await gateway.service.operations.set_setting(cheap.session, ANNA, "model", "dear", source="command")
        dear = await gateway.say("two")
        assert cheap.usage.cost == cheap.usage.tokens * 1000
        assert dear.usage.cost == dear.usage.tokens * 1000 * 1000
        check_growth(model)


async def test_the_signature_tells_configurations_apart_and_shows_no_secret(home: Path, model: ScriptedModel) -> None:
    """A2: each of model, address, credential (two that share a prefix), toolsets and extra prompt counts."""
    (home / "keys").mkdir(parents=True)
    (home / "keys" / "a").write_text("secret-prefix-a")
    (home / "keys" / "b").write_text("secret-prefix-b")
    base = settings(model)
    variants = {
        "same": base,
        "again": base,
        "model": base.replace('model = "scripted"', 'model = "scripted-2"'),
        "address": base.replace("127.0.0.1", "localhost"),
        "key a": base.replace('model = "scripted"', 'model = "scripted"\nkey = "file:keys/a"'),
        "key b": base.replace('model = "scripted"', 'model = "scripted"\nkey = "file:keys/b"'),
        "tools": settings(model, tools='"clock"'),
    }
    signatures: dict[str, bytes] = {}
    for name, toml in variants.items():
        async with core(home, model=model, toml=toml) as gateway:
            outcome = await gateway.say("hello", name="fixed")
            row = await gateway.store.read(sessions.get, outcome.session)
            assert row is not None
            agent = gateway.components.runner.agent("main")
            signatures[name] = gateway.components.runner.signature(
                row, agent, gateway.components.runner.fallbacks.model(agent, ())
            )
    assert signatures["same"] == signatures["again"]
    assert len(set(signatures.values())) == len(variants) - 1
    assert all(b"secret" not in signature for signature in signatures.values())


async def test_the_least_recently_used_is_unloaded_beyond_the_cap(home: Path, model: ScriptedModel) -> None:
    """A6, L03: through the real service, and the unloaded one answers as before."""
    async with core(home, "[limits]\nresidents = 2", model=model) as gateway:
        for name in ("a", "b", "a", "c"):
            await gateway.say(f"hello {name}", name=name)
        stats = gateway.components.presence.stats()
        assert (stats.residents, stats.unloads) == (2, {"count": 1})
        await gateway.say("again", name="b")
        assert model.stats()["reuse"] == 1.0


async def test_a_hundred_first_messages_build_one_session_and_one_resident(home: Path, model: ScriptedModel) -> None:
    """A9, L25: they are queued in one session, each answered in its own turn."""
    async with core(home, "[limits]\nqueue_length = 200", model=model) as gateway:
        accepted: list[Any] = []

        async def one(number: int) -> None:
            accepted.append(await gateway.accept(f"message {number}"))

        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(one, number)
        for each in accepted:
            assert (await gateway.answered(each.turn)).state == "answered"
        assert len({each.session for each in accepted}) == 1
        assert gateway.components.presence.stats().unloads == {}
        assert model.stats()["reuse"] == 1.0


async def test_a_resident_that_the_store_has_left_behind_is_not_used(home: Path, model: ScriptedModel) -> None:
    """S34, S19: the session's version decides whether it is up to date, not a count."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say("one")
        await gateway.store.write(
            lambda db: messages.append(
                db,
                session=outcome.session,
                turn=None,
                step=None,
                message=Message(role="user", text="said elsewhere"),
                now=gateway.components.clock(),
            )
        )
        await gateway.say("two")
        assert gateway.components.presence.stats().unloads == {"stale": 1}
        assert "said elsewhere" in [message["content"] for message in gateway.requests()[-1]["messages"]]
        check_growth(model)


async def test_a_change_that_the_model_does_not_see_keeps_the_resident(home: Path, model: ScriptedModel) -> None:
    """A1, S34: a new title, and a reload that finds nothing new."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say("one")
        first = record(gateway, outcome.session).resident
        await gateway.service.operations.set_title(outcome.session, ANNA, "a title")
        assert not await gateway.service.operations.reload(outcome.session, ANNA)
        await gateway.say("two")
        assert record(gateway, outcome.session).resident is first
        assert gateway.components.presence.stats().unloads == {}
        assert (await gateway.service.session(outcome.session, ANNA)).title == "a title"


async def test_sessions_that_run_together_never_see_each_other(home: Path, model: ScriptedModel) -> None:
    """L26, X23: a canary for every field of each session; no request of one holds another's."""
    async with core(home, model=model) as gateway:

        async def talk(number: int) -> None:
            for turn in range(3):
                await gateway.say(
                    f"canary-{number}- [tool clock {{}}] {turn}",
                    name=f"talk {number}",
                    extra_prompt=f"canary-{number}-prompt",
                )

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(talk, number)
        for request in gateway.requests():
            text = msgspec.json.encode(request["messages"])
            assert sum(f"canary-{number}-".encode() in text for number in range(8)) == 1


@pytest.mark.parametrize("way", ["model", "undo", "retry", "reload", "end", "delete", "idle", "error", "stop"])
async def test_every_way_out_releases_the_resident(home: Path, model: ScriptedModel, way: str) -> None:
    """A5, L01, B1: through the one removal path, and other sessions are untouched."""
    async with core(home, model=model) as gateway:
        outcome, other = await gateway.say("one"), await gateway.say("one", name="other")
        kept = record(gateway, other.session).resident
        resident = record(gateway, outcome.session).resident
        assert isinstance(resident, Conversation)
        service = gateway.service
        match way:
            case "model":
                await service.operations.set_setting(outcome.session, ANNA, "model", "other", source="command")
                await gateway.say("two")
            case "undo":
                await service.operations.undo(outcome.session, ANNA)
            case "retry":
                await gateway.answered((await service.operations.retry(outcome.session, ANNA)).turn)
            case "reload":
                await gateway.store.write(sessions.refreeze, outcome.session, Prefix(prompt="Another."), 1)
                await service.operations.reload(outcome.session, ANNA)
            case "end":
                await service.end(outcome.session, ANNA, "test")
            case "delete":
                await service.delete(outcome.session, ANNA)
            case "idle":
                gateway.components.presence.sweep(now=1e12)
            case "error":
                await gateway.say("[status 500]")
            case "stop":
                accepted = await gateway.accept("[hang]")
                await service.stop(outcome.session, ANNA)
                await gateway.answered(accepted.turn)
        with anyio.fail_after(WAIT):
            while resident.history.parts:
                await anyio.lowlevel.checkpoint()
        present = gateway.components.presence.get(outcome.session)
        assert present is None or present.resident is not resident
        if way != "idle":
            assert record(gateway, other.session).resident is kept


async def test_arguments_are_sent_back_as_the_model_wrote_them(home: Path, model: ScriptedModel) -> None:
    """P17: spaces, order and escapes of a tool call's arguments, live and from the store."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say('[tool clock {"zone":   "Europe\\/Berlin"}] one')
        gateway.components.presence.unload(outcome.session, reason="test")
        await gateway.say("two")
        rows = (await gateway.service.transcript(outcome.session, ANNA)).rows
        written = next(row.message.calls[0].arguments for row in rows if row.message.calls)
        sent = [
            call["function"]["arguments"]
            for request in gateway.requests()
            for message in request["messages"]
            for call in message.get("tool_calls", ())
        ]
        assert set(sent) == {written} and len(sent) == 2


async def test_a_note_stays_with_the_message_it_was_sent_with(home: Path, model: ScriptedModel) -> None:
    """P17, P16: the gateway's aside to a message is the same, byte for byte, after a reload."""
    async with core(home, model=model) as gateway:
        said = Message(role="user", text="one", aside="The disk is nearly full.")
        outcome = await gateway.say("", messages=(said,))
        assert b"The disk is nearly full." in model.recorded[-1].body
        gateway.components.presence.unload(outcome.session, reason="test")
        await gateway.say("two")
        assert b"The disk is nearly full." in model.recorded[-1].body
        check_growth(model)


async def test_a_session_finds_its_folder_after_an_unload_and_a_restart(home: Path, model: ScriptedModel) -> None:
    """B2, V09: the file that was there is there."""
    async with core(home, model=model) as gateway:
        await gateway.say('[tool write_file {"path": "notes.txt", "content": "remember the milk"}]')
    for _ in range(2):
        async with core(home, model=model) as gateway:
            for _ in range(2):
                outcome = await gateway.say('[tool read_file {"path": "notes.txt"}]')
                rows = (await gateway.service.transcript(outcome.session, ANNA)).rows
                assert "remember the milk" in [row.message for row in rows if row.message.role == "tool"][-1].text
                gateway.components.presence.unload(outcome.session, reason="test")
