"""The tool `delegate` as a value: its definition, and its flags."""

import subprocess
import sys

import msgspec
import pytest

from tests.gateway.process import environment
from tests.tools.contexts import bare
from tidegate.errors import ToolFailed
from tidegate.security.policy import Action, Mode, decide
from tidegate.tools import Delegates, ToolContext, ToolServices, Toolsets, builtin_toolsets

pytestmark = pytest.mark.anyio

(DELEGATE,) = builtin_toolsets(["delegate"])["delegate"]


class Echo:
    """Another agent that says its task."""

    async def work(self, ctx: ToolContext, agent: str, task: str) -> str:
        return f"{ctx.agent} {ctx.step} {agent} {task}"


def test_delegate_is_repeatable_parallel_and_has_no_deadline() -> None:
    """F4: what keeps it from giving a task twice is the task's own identity; its time is the turn's."""
    assert DELEGATE.repeatable and DELEGATE.parallel and DELEGATE.timeout is None
    schema = msgspec.json.decode(DELEGATE.definition.parameters)
    assert schema["required"] == ["agent", "task"]


def test_delegate_implies_the_output_tool() -> None:
    """D1: an agent's answer may be too long to be shown whole."""
    assert Toolsets(builtin_toolsets()).resolve(["delegate"]).names == ("delegate", "output")


@pytest.mark.parametrize(("mode", "verdict"), [("strict", "ask"), ("balanced", "allow"), ("autonomous", "allow")])
def test_delegate_needs_approval_only_where_every_call_does(mode: Mode, verdict: str) -> None:
    """The other agent's own rules say what is done; a strict agent asks before it has anything done."""
    action = Action(
        tool=DELEGATE.name, effect=DELEGATE.effect, arguments={}, channel="page", contained=DELEGATE.contained
    )
    assert decide((), mode, action).decision == verdict


async def test_delegate_passes_the_task_unchanged_and_fails_without_the_service() -> None:
    """X23: whom it works for is in its context."""
    given = '{"agent": "helper", "task": "look"}'
    context = bare(services=ToolServices({Delegates: Echo()}), step="tool-0-0")
    assert await DELEGATE.run(context, given) == "main tool-0-0 helper look"
    with pytest.raises(ToolFailed, match="no agent that you may give tasks to"):
        await DELEGATE.run(bare(), given)
    for wrong in ('{"agent": "helper"}', '{"task": "x"}', '{"agent": "", "task": "x"}', '{"agent": "a", "task": ""}'):
        with pytest.raises(ToolFailed):
            await DELEGATE.run(context, wrong)


def test_nothing_of_it_is_loaded_where_no_agent_gives_tasks() -> None:
    """L22: an idle gateway does not grow by what it does not use."""
    names = ("tidegate.tools.builtin.delegate", "tidegate.turns.delegation")
    code = f"import sys, tidegate.gateway.gateway; print([name for name in {names!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert run.stdout.strip() == "[]"
