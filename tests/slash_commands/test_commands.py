"""Slash commands."""

from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, OWNER, WAIT, Core, core, settings
from tidegate.errors import Conflict, Misconfigured, NotAllowed, NotFound, Refused
from tidegate.slash_commands import CommandContext, CommandReply, Commands, SlashCommand, build

pytestmark = pytest.mark.anyio


async def run(gateway: Core, line: str, session: str | None) -> CommandReply:
    return await build(gateway.service).run(line, principal=ANNA, channel="page", session=session, agent="main")


async def test_new_ends_this_conversation_and_the_next_message_begins_another(home: Path, model: ScriptedModel) -> None:
    """V19, S02, S04: during a turn, it stops the turn first."""
    async with core(home, model=model) as gateway:
        accepted = await gateway.accept("[hang]")
        reply = await run(gateway, "/new", accepted.session)
        assert reply.session is None
        assert (await gateway.service.outcome(accepted.turn, ANNA)).state == "stopped"
        assert (await gateway.service.session(accepted.session, ANNA)).end_reason == "new"
        assert (await run(gateway, "/reset", None)).session is None


async def test_new_with_arguments_is_refused_and_ends_nothing(home: Path, model: ScriptedModel) -> None:
    """H20: arguments are refused with a sentence."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        for line in ("/new Holiday plans", "/reset x"):
            with pytest.raises(Refused, match="/title"):
                await run(gateway, line, first.session)
        assert (await gateway.service.session(first.session, ANNA)).ended is None


async def test_model_states_when_it_applies_and_its_cost(home: Path, model: ScriptedModel) -> None:
    """S05, S06, P18, V19: during a turn, it applies from the next turn; /status shows what it overrides; `default`
    clears it."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        assert "main, other" in (await run(gateway, "/model", first.session)).text
        reply = await run(gateway, "/model other", first.session)
        assert "from now on" in reply.text and "rebuilt" in reply.text
        running = await gateway.accept("[hold gate]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        assert "from the next turn on" in (await run(gateway, "/model main", first.session)).text
        model.release("gate")
        await gateway.answered(running.turn)
        assert gateway.requests()[-1]["model"] == "scripted-too"
        await gateway.say("two")
        assert gateway.requests()[-1]["model"] == "scripted"
        await run(gateway, "/model other", first.session)
        status = (await run(gateway, "/status", first.session)).text
        assert "chosen with /model" in status and "overrides the agent's own, main" in status
        await run(gateway, "/model default", first.session)
        assert "chosen here" not in (await run(gateway, "/status", first.session)).text
        with pytest.raises(Refused, match="main, other"):
            await run(gateway, "/model gpt", first.session)


async def test_status_shows_the_usage_of_this_conversation(home: Path, model: ScriptedModel) -> None:
    """X22: of all its turns, and of no other conversation."""
    async with core(home, model=model) as gateway:
        await gateway.say("one", name="other")
        first, second = await gateway.say("one"), await gateway.say("two")
        used = first.usage + second.usage
        line = next(line for line in (await run(gateway, "/status", first.session)).text.splitlines() if "used" in line)
        share = f" ({used.cached / used.input:.0%} cached)"
        assert line == f"used          {used.input:,} tokens in{share}, {used.output:,} out"
        assert used.cached > 0


async def test_reasoning_rebuilds_nothing(home: Path, model: ScriptedModel) -> None:
    """A3: the reply says so, and the next request confirms it."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        assert "Nothing is rebuilt" in (await run(gateway, "/reasoning high", first.session)).text
        await gateway.say("two")
        assert gateway.requests()[-1]["reasoning_effort"] == "high"
        assert gateway.components.presence.stats().unloads == {}
        await run(gateway, "/reasoning default", first.session)
        await gateway.say("three")
        assert "reasoning_effort" not in gateway.requests()[-1]
        with pytest.raises(Refused, match="off, minimal, low"):
            await run(gateway, "/reasoning lots", first.session)


async def test_undo_and_retry_change_the_models_view(home: Path, model: ScriptedModel) -> None:
    """P18, A5: the undone turn is gone from the request and still in the export; retry asks again."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        await gateway.say("two")
        reply = await run(gateway, "/retry", first.session)
        assert reply.turn is not None and "rebuilt" in reply.text
        assert (await gateway.answered(reply.turn)).state == "answered"
        said = [message["content"] for message in gateway.requests()[-1]["messages"] if message["role"] == "user"]
        assert said == ["one", "two"]
        await run(gateway, "/undo", first.session)
        await gateway.say("three")
        said = [message["content"] for message in gateway.requests()[-1]["messages"] if message["role"] == "user"]
        assert said == ["one", "three"]
        await run(gateway, "/undo", first.session)
        await run(gateway, "/undo", first.session)
        with pytest.raises(Conflict, match="nothing to undo"):
            await run(gateway, "/undo", first.session)


async def test_reload_states_its_effect_and_its_cost(home: Path, model: ScriptedModel) -> None:
    """A4, P18: the next request has the new prompt; without a change nothing happens and nothing is charged."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("one")
        reply = await run(gateway, "/reload", first.session)
        assert (reply.text, reply.session) == ("Prompt and tools had not changed.", first.session)
        assert gateway.components.presence.stats().unloads == {}
    edited = settings(model).replace("You are a test.", "You are another test.")
    async with core(home, model=model, toml=edited) as gateway:
        await gateway.say("two")
        reply = await run(gateway, "/reload", first.session)
        assert reply.session == first.session
        assert reply.text.startswith("Prompt and tools were updated. ")
        assert "rebuilt" in reply.text and "cached" in reply.text
        assert gateway.components.presence.stats().unloads == {"reload": 1}
        await gateway.say("three")
        before, after = (request["messages"][0]["content"] for request in gateway.requests()[-2:])
        assert "You are a test." in before and "You are another test." in after


async def test_commands_that_rebuild_are_refused_in_mid_turn(home: Path, model: ScriptedModel) -> None:
    """V19: with advice."""
    async with core(home, model=model) as gateway:
        accepted = await gateway.accept("[hold gate]")
        for line in ("/undo", "/retry", "/reload"):
            with pytest.raises(Conflict, match="/stop it first"):
                await run(gateway, line, accepted.session)
        assert (await run(gateway, "/stop", accepted.session)).text == "Stopped."
        await gateway.answered(accepted.turn)
        assert (await run(gateway, "/stop", accepted.session)).text == "Nothing is running."


async def test_conversations_are_listed_titled_found_and_resumed(home: Path, model: ScriptedModel) -> None:
    """V16, X06: by number in the plain list or by id, only the user's own; a search shows ids, never numbers."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("about marmalade", name="a")
        second = await gateway.say("about bread", name="b")
        await run(gateway, "/title Breakfast", first.session)
        listed = (await run(gateway, "/sessions", second.session)).text
        assert "Breakfast" in listed and len(listed.splitlines()) == 2
        found = (await run(gateway, "/sessions marmalade", second.session)).text
        assert found.startswith(first.session) and "Breakfast" in found
        assert found.splitlines()[1:] == ["    about marmalade"]
        assert (await run(gateway, f"/resume {found.split()[0]}", second.session)).session == first.session
        assert "No conversation" in (await run(gateway, "/sessions gooseberry", second.session)).text
        assert (await run(gateway, "/resume 2", second.session)).session == first.session
        await gateway.service.end(first.session, ANNA, "new")
        resumed = await run(gateway, f"/resume {first.session}", second.session)
        assert resumed.session not in (None, first.session)
        with pytest.raises(Refused, match="There is no number 9"):
            await run(gateway, "/resume 9", None)
        with pytest.raises(NotFound):
            await build(gateway.service).run(
                f"/resume {second.session}", principal=BERT, channel="page", session=None, agent=None
            )


async def test_help_is_made_from_the_registry(home: Path, model: ScriptedModel) -> None:
    """P18: every command is there, with its cost where it has one."""
    async with core(home, model=model) as gateway:
        commands = build(gateway.service)
        names = {info.name for info in commands.catalogue()}
        expected = {"new", "stop", "retry", "undo", "model", "reasoning", "reload", "status", "sessions", "resume"}
        assert names == expected | {
            "title",
            "help",
            "approve",
            "deny",
            "answer",
            "rules",
            "skills",
            "memory",
            "mcp",
            "prompt",
            "context",
            "compact",
        }
        overview = (await run(gateway, "/help", None)).text
        assert all(f"/{name}" in overview for name in names)
        assert "Cost:" in (await run(gateway, "/help undo", None)).text
        assert "/reset" in (await run(gateway, "/help /new", None)).text


async def test_an_unknown_command_is_answered_with_the_nearest_one(home: Path, model: ScriptedModel) -> None:
    """H20: and never sent to a model; a path is no command."""
    async with core(home, model=model) as gateway:
        with pytest.raises(Refused, match="did you mean /status"):
            await run(gateway, "/statsu", None)
        with pytest.raises(Refused, match="/help lists all commands"):
            await run(gateway, "/zzzz", None)
        with pytest.raises(Refused, match="send a message first"):
            await run(gateway, "/status", None)
        assert Commands.is_command("/new") and Commands.is_command("/model x")
        assert not Commands.is_command("/usr/bin/env") and not Commands.is_command("/ hello")
        assert model.counts["requests"] == 0


async def test_names_are_unique_and_owner_commands_need_the_owner(home: Path, model: ScriptedModel) -> None:
    """C3, X06: two commands of one name are refused when they are registered."""

    async def hello(context: CommandContext, words: str) -> CommandReply:
        return CommandReply(text=f"hello {words}")

    async with core(home, model=model) as gateway:
        with pytest.raises(Misconfigured, match="/help"):
            Commands(gateway.service, [SlashCommand(name="help", help="Mine.", handler=hello)])
        commands = Commands(gateway.service, [SlashCommand(name="hi", help="Hi.", handler=hello, owner_only=True)])
        with pytest.raises(NotAllowed):
            await commands.run("/hi", principal=ANNA, channel="page", session=None, agent=None)
        reply = await commands.run("/HI there", principal=OWNER, channel="page", session=None, agent=None)
        assert reply.text == "hello there"
