"""Running a turn's tool calls, with permission, within limits, and with events for the turn's followers.

Guarantee: a call runs only after exactly this call has been permitted and its intent has been committed. It runs within
the turn: stopping the turn stops the tool. The tool's deadline is enforced here. A call that is cut short is recorded
as interrupted, with an unknown effect unless its tool only reads. A result is always one message within the size limit.
Longer output is written to the spool, and the message says where to find it. Adjacent calls run in parallel if their
tools allow this; their results are returned in call order.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import anyio
import msgspec

from tidegate.agent.interface import EXCERPT_CHARACTERS, Effect, Parked, Turn
from tidegate.agent.tool_progress import Progress
from tidegate.agent.tool_results import cut_short, interrupted, tool_ended, tool_result, tool_step_name
from tidegate.errors import MediaLeftOut, Superseded, ToolFailed, TurnFailed
from tidegate.lifetimes import gather, is_cancelled
from tidegate.log import Log
from tidegate.store.tables.approvals import action_digest
from tidegate.tools import Result, Tool, ToolContext, Toolset
from tidegate.values import Message, Notice, ToolCall, ToolStarted

log = Log(__name__)

GATEWAY_STOPPED = "The gateway stopped while it was running."


class Permissions(Protocol):
    """Decides whether a call may run."""

    async def permit(self, turn: Turn, step: str, tool: Tool, call: ToolCall) -> str | None:
        """Returns None if the call may run, otherwise a sentence that tells the model why it may not. May wait for a
        person's decision."""
        ...

    async def ask(self, turn: Turn, step: str, question: str, choices: Sequence[str]) -> str:
        """Asks a person a question and returns the answer. The tool's time limit is suspended during the wait."""
        ...

    async def withdraw(self, turn: Turn, step: str, *, lost: bool) -> None:
        """Withdraws the open questions of a call that has ended. `lost` is true if the call was made by an earlier
        process."""
        ...


class ToolSetup(NamedTuple):
    """The context and the permissions for the tool calls of one turn."""

    context: ToolContext
    permissions: Permissions


class ToolRunner:
    """Runs one turn's tools."""

    __slots__ = ("_context", "_parallel", "_permissions", "_tools", "_turn")

    def __init__(self, turn: Turn, tools: Toolset, setup: ToolSetup, *, parallel: int) -> None:
        self._turn = turn
        self._tools = tools
        self._context, self._permissions = setup
        self._parallel = parallel

    async def run(
        self, number: int, calls: Sequence[ToolCall], *, caller_tools: frozenset[str] = frozenset()
    ) -> list[Message]:
        """Runs the calls of model step `number` and returns their results. Calls to tools in `caller_tools` are left to
        the caller."""
        results: list[Message] = []
        own = [(place, call) for place, call in enumerate(calls) if call.name not in caller_tools]
        while len(results) < len(own):
            first = len(results)
            batch = [own[first]]
            for place, call in own[first + 1 : first + self._parallel]:
                if not (self._is_parallel(batch[-1][1]) and self._is_parallel(call)):
                    break
                batch.append((place, call))
            jobs = [self._run_call(tool_step_name(number, place), call) for place, call in batch]
            results += [await jobs[0]] if len(jobs) == 1 else await gather(jobs)
        return results

    def _is_parallel(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.parallel

    async def _run_call(self, step: str, call: ToolCall) -> Message:
        tool = self._tools.get(call.name)
        self._turn.emit(ToolStarted(call_id=call.id, name=call.name, arguments=call.arguments[:EXCERPT_CHARACTERS]))
        effect = self._effect(step, tool, call)
        message = await self._turn.step(
            step, lambda: self._run_tool(step, tool, call, effect.hosts.append), effect=effect
        )
        await self._permissions.withdraw(self._turn, step, lost=message.interrupted)
        self._turn.emit(tool_ended(message))
        return message

    def _effect(self, step: str, tool: Tool | None, call: ToolCall) -> Effect:
        """Returns a call's effect. Calls to unknown tools are refused. If an earlier process knew the tool and started
        the call, the call is recorded as interrupted instead."""

        async def refused() -> Message | None:
            if tool is None:
                why: str | None = f"There is no tool named {call.name!r} here."
            else:
                why = await self._permissions.permit(self._turn, step, tool, call)
            return None if why is None else tool_result(call, Result(text=why, failed=True))

        return Effect(
            tool=call.name,
            read_only=tool is not None and tool.read_only,
            repeatable=tool is not None and tool.repeatable,
            digest=None if tool is None or tool.effect == "read" else action_digest(call.name, call.arguments),
            hosts=[],
            interrupted=lambda read_only: interrupted(call, GATEWAY_STOPPED, read_only=read_only),
            refused=refused,
        )

    async def _run_tool(self, step: str, tool: Tool | None, call: ToolCall, contacts: Callable[[str], None]) -> Message:
        assert tool is not None, "an unknown tool is refused before it runs"
        with Progress(self._turn, call) as progress:
            context = msgspec.structs.replace(
                self._context,
                step=step,
                call=call.id,
                progress=progress,
                contacts=contacts,
                ask=partial(self._permissions.ask, self._turn, step),
            )
            result = await self._outcome(tool, context, call)
        if isinstance(result, Message):
            return result
        text = await context.spool.text(tool.name, result.text, max_bytes=tool.output_bytes)
        return tool_result(call, msgspec.structs.replace(result, text=text))

    async def _outcome(self, tool: Tool, context: ToolContext, call: ToolCall) -> Result | Message:
        """Returns the tool's result, or a message that explains why the tool was cut short."""
        try:
            with anyio.move_on_after(tool.timeout):
                returned = await tool.run(context, call.arguments)
                return returned if isinstance(returned, Result) else Result(text=returned)
            return cut_short(tool, call, f"{call.name} did not finish within {tool.timeout:g} s and was stopped.")
        except ToolFailed as error:
            if isinstance(error, MediaLeftOut):
                self._turn.emit(Notice(text=error.message))
            return Result(text=error.message, failed=True)
        except (TurnFailed, Parked, Superseded):
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise  # the turn is being stopped; otherwise something the tool awaited was cancelled
            log.exception("a tool failed unexpectedly", tool=call.name, session=self._turn.session, turn=self._turn.id)
            why = f"{call.name} failed unexpectedly ({type(error).__name__}); see the operator's log."
            return cut_short(tool, call, why)
