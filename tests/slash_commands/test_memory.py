"""`/memory`: shows and changes notes."""

from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, OWNER, Core, core
from tidegate.errors import NotAllowed, NotFound, Refused
from tidegate.security import Principal
from tidegate.slash_commands import build

pytestmark = pytest.mark.anyio


async def run(gateway: Core, line: str, session: str | None = None, who: Principal = ANNA) -> str:
    reply = await build(gateway.service).run(line, principal=who, channel="page", session=session, agent="main")
    assert reply.session == session
    return reply.text


async def test_notes_are_shown_added_edited_and_forgotten(home: Path, model: ScriptedModel) -> None:
    """X20: before and in a conversation, each with its author."""
    async with core(home, model=model, tools='"memory"') as gateway:
        assert (await run(gateway, "/memory")).split("\n")[0] == "There are no notes about you."
        assert "note 1." in await run(gateway, "/memory add likes tea")
        session = (await gateway.say("hello")).session
        assert "was changed" in await run(gateway, "/memory edit 1 likes green tea", session)
        shown = await run(gateway, "/memory", session)
        assert "[1] likes green tea  (written by p_anna)" in shown and "(15 of 65536 bytes)" in shown
        assert "There are no notes about the work of the agent main." in shown
        await gateway.say("again")
        assert "(p_anna wrote): likes green tea" in str(gateway.requests()[-1]["messages"][-1])
        assert await run(gateway, "/memory forget [1]", session) == "Forgotten: likes green tea"


async def test_the_agents_notes_are_everybodys_to_see_and_the_owners_to_write(home: Path, model: ScriptedModel) -> None:
    """X20: decided by the principal."""
    async with core(home, model=model, tools='"memory"') as gateway:
        await run(gateway, "/memory agent add deploy on Tuesdays", who=OWNER)
        assert "deploy on Tuesdays" in await run(gateway, "/memory agent")
        assert "deploy on Tuesdays" in await run(gateway, "/memory")
        for line in ("/memory agent add I am the owner", "/memory agent edit 1 x", "/memory agent forget 1"):
            with pytest.raises(NotAllowed):
                await run(gateway, line)
        with pytest.raises(NotFound, match="no note 1 here"):
            await run(gateway, "/memory forget 1")


@pytest.mark.parametrize(
    "line", ["/memory burn", "/memory forget", "/memory edit x y", "/memory add", "/memory edit 1"]
)
async def test_invalid_arguments_are_refused_with_a_sentence(home: Path, model: ScriptedModel, line: str) -> None:
    """H20: and changes nothing."""
    async with core(home, model=model, tools='"memory"') as gateway:
        await run(gateway, "/memory add likes tea")
        with pytest.raises(Refused):
            await run(gateway, line)
        assert "likes tea" in await run(gateway, "/memory")


async def test_memory_commands_report_if_no_agent_has_a_memory(home: Path, model: ScriptedModel) -> None:
    async with core(home, model=model) as gateway:
        with pytest.raises(NotFound, match="'memory' toolset"):
            await run(gateway, "/memory")
        session = (await gateway.say("hello")).session
        reply = await build(gateway.service).run("/new", principal=ANNA, channel="page", session=session, agent="main")
        assert reply.text == "A new conversation begins with your next message."


@pytest.mark.parametrize(("at_end", "says"), [("true", True), ("false", False)])
async def test_new_announces_the_extraction_of_notes(home: Path, model: ScriptedModel, at_end: str, says: bool) -> None:
    """S04: if notes will be extracted."""
    async with core(home, f"[memory]\nat_end = {at_end}", model=model, tools='"memory"') as gateway:
        session = (await gateway.say("hello")).session
        reply = await build(gateway.service).run("/new", principal=ANNA, channel="page", session=session, agent="main")
        assert ("/memory shows them" in reply.text) == says
