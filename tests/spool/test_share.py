"""A session that begins with another's transcript can read the results it refers to."""

from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, core
from tidegate.tools import ToolContext, Toolset, tool

pytestmark = pytest.mark.anyio


@tool(effect="read")
async def talk(ctx: ToolContext) -> str:
    """Prints a lot."""
    return "\n".join(f"line {number} of many" for number in range(5000))


async def test_a_resumed_conversation_still_reads_its_long_results(home: Path, model: ScriptedModel) -> None:
    """D1, D4: even after the original conversation is deleted."""
    toolsets = {"talk": Toolset((talk,))}
    async with core(home, model=model, tools='"talk", "output"', toolsets=toolsets) as c:
        first = await c.say("[tool talk {}]")
        rows = (await c.service.transcript(first.session, ANNA)).rows
        text = next(row.message.text for row in rows if row.message.role == "tool")
        name = next(word.strip(",.;:") for word in text.split() if word.startswith("sp_"))
        await c.service.end(first.session, ANNA, "new")
        again, is_new = await c.service.operations.resume(first.session, ANNA)
        assert is_new
        await c.service.delete(first.session, ANNA)
        spool = c.components.spool.of(again, None)
        assert "line 3210 of many" in await spool.page(name, offset=3210, lines=1)
        await c.service.delete(again, ANNA)
        assert not list((home / "spool").rglob("sp_*"))
