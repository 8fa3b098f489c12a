"""The toolset `delegate`: giving tasks to other agents, which work on them within the turn.

A call that was interrupted by a crash is repeated. The repeated call finds its task by turn and step, and never starts
a task twice. Delegation itself has no effects, and the other agent's actions are subject to that agent's permissions.
The call therefore needs approval only in the mode in which every call needs approval.
"""

from typing import Annotated

from msgspec import Meta

from tidegate.tools.services import Delegates
from tidegate.tools.tool import ToolContext, tool


@tool(effect="write", long_results=True, contained=True, repeatable=True, parallel=True, timeout=None)
async def delegate(
    ctx: ToolContext,
    *,
    agent: Annotated[str, Meta(min_length=1, max_length=200, description="The agent's name.")],
    task: Annotated[
        str,
        Meta(
            min_length=1,
            description="The task, with everything that the agent needs to know: it sees nothing else.",
        ),
    ],
) -> str:
    """Gives a task to another agent and waits for its answer. Several calls in one step run in parallel."""
    delegates = ctx.service(Delegates, otherwise="There is no agent that you may give tasks to.")
    return await delegates.work(ctx, agent, task)
