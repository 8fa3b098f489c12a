"""The tools of the toolset `memory`."""

from typing import Any

import pytest

from tests.tools.contexts import bare
from tidegate.errors import ToolFailed
from tidegate.security.policy import Action, decide
from tidegate.tools import Notes, ToolContext, ToolServices, builtin_toolsets

pytestmark = pytest.mark.anyio

REMEMBER, FORGET = sorted(builtin_toolsets()["memory"].tools, key=lambda tool: tool.name, reverse=True)


class RecordedNotes:
    """Notes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def remember(self, ctx: ToolContext, text: str, *, about: str, replaces: int | None) -> str:
        self.asked.append((ctx.principal, text, about, replaces))
        return "done"

    async def forget(self, ctx: ToolContext, note: int) -> str:
        self.asked.append((ctx.principal, note))
        return "done"


async def test_the_tools_pass_text_and_context_to_the_service() -> None:
    """X20: who speaks is in the context, and no argument changes that."""
    said = RecordedNotes()
    ctx = bare(principal="p_anna", services=ToolServices({Notes: said}))
    assert await REMEMBER.run(ctx, '{"text": "likes tea"}') == "done"
    await REMEMBER.run(ctx, '{"text": "likes cake", "about": "agent", "replaces": 3}')
    await FORGET.run(ctx, '{"note": 3}')
    assert said.asked == [
        ("p_anna", "likes tea", "person", None),
        ("p_anna", "likes cake", "agent", 3),
        ("p_anna", 3),
    ]
    for wrong in ('{"text": "x", "principal": "p_owner"}', '{"text": "x", "about": "everybody"}', "{}"):
        with pytest.raises(ToolFailed):
            await REMEMBER.run(ctx, wrong)


async def test_without_the_notes_service_the_tools_fail() -> None:
    with pytest.raises(ToolFailed, match="Nothing can be remembered"):
        await FORGET.run(bare(), '{"note": 3}')


def test_they_write_need_no_approval_in_balanced_mode_and_never_run_twice() -> None:
    """X11, P05: strict asks, a rule may too."""
    for tool in (REMEMBER, FORGET):
        assert (tool.effect, tool.repeatable, tool.parallel) == ("write", False, False)
        action = Action(tool=tool.name, effect=tool.effect, arguments={}, channel="page", contained=tool.contained)
        assert decide((), "balanced", action).decision == "allow"
        assert decide((), "strict", action).decision == "ask"
