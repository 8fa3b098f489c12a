"""The loop: ask the model, run the tools it asks for, until it answers.

Guarantee: each model answer and each tool result is one journal step, in an order that a replay walks again; what was
steered into the turn joins between steps, never inside one; every call gets a result before the model is asked again.
The loop owns nothing: the conversation is its resident's, the journal its engine's, and its tools run inside the turn.
"""

from collections.abc import Sequence

import anyio
import structlog

from tidegate.agent.balance import model_step, tool_step
from tidegate.agent.conversation import Conversation
from tidegate.agent.repeats import Repeats, Verdict
from tidegate.agent.turn import Effect, Turn
from tidegate.errors import ToolFailed, TurnFailed
from tidegate.lifetimes import gather
from tidegate.tools import Tool, ToolContext, bound_text
from tidegate.values import Call, Frozen, Message, TextDelta, TextReset, ToolCall, ToolEnded, ToolStarted

log = structlog.stdlib.get_logger(__name__)

EXCERPT_CHARACTERS = 400
"""How much of a tool's result a user interface is told: enough to recognise it, small enough for every event."""

LOST = "Interrupted: the gateway stopped while this ran, so its effect is unknown. It was not run again."
REPEATED = "[You have made this very call {count} times with this same result. Do something else, or answer.]"


class Bounds(Frozen, frozen=True):
    """What one turn may do."""

    steps: int
    parallel: int
    repeats: int
    output_bytes: int
    output_lines: int


async def run(turn: Turn, conversation: Conversation, context: ToolContext, call: Call, bounds: Bounds) -> Message:
    """Work the turn to its answer, which is given back."""
    conversation.extend(turn.incoming)
    repeats = Repeats(bounds.repeats)
    caller_drives = bool(call.tools)

    async def ask() -> Message:
        return await conversation.ask(
            call, on_text=lambda text: turn.emit(TextDelta(text=text)), on_reset=lambda why: turn.emit(_reset(why))
        )

    for number in range(bounds.steps):
        conversation.extend(await turn.drain("steer"))
        answer = await turn.step(model_step(number), ask, ends=lambda said: caller_drives or not said.calls)
        conversation.append(answer)
        if caller_drives or not answer.calls:
            return answer
        results = await _run_tools(turn, conversation, context, number, answer.calls, bounds)
        verdict = repeats.round(answer, results)
        if verdict is Verdict.STOP:
            raise TurnFailed(
                f"The agent made the same tool call {2 * bounds.repeats} times in a row with the same result, so its "
                "turn was ended; say differently what you need, or raise limits.repeats.",
                code="loop",
            )
        conversation.extend(results)
        if verdict is Verdict.WARN:
            conversation.extend(await _warn(turn, number, bounds.repeats))
    raise TurnFailed(
        f"The agent used all {bounds.steps} steps of its turn without an answer; say 'go on' to continue, or raise "
        "limits.turn_steps.",
        code="step_limit",
    )


def _reset(why: str) -> TextReset:
    return TextReset(reason=why)


async def _warn(turn: Turn, number: int, count: int) -> tuple[Message, ...]:
    """A row of its own after the results, so that the results themselves stay what the tools said."""

    async def make() -> Message:
        return Message(role="user", aside=REPEATED.format(count=count))

    return (await turn.step(f"note-{number}", make),)


async def _run_tools(
    turn: Turn,
    conversation: Conversation,
    context: ToolContext,
    number: int,
    calls: Sequence[ToolCall],
    bounds: Bounds,
) -> list[Message]:
    """The results of these calls in the order of the calls. Neighbours that allow it run side by side."""
    results: list[Message] = []
    index = 0
    while index < len(calls):
        batch = [calls[index]]
        while (
            index + len(batch) < len(calls)
            and len(batch) < bounds.parallel
            and all(_is_parallel(conversation, call) for call in (batch[-1], calls[index + len(batch)]))
        ):
            batch.append(calls[index + len(batch)])
        jobs = [
            _run_tool(turn, conversation.tools.get(call.name), context, tool_step(number, index + offset), call, bounds)
            for offset, call in enumerate(batch)
        ]
        results += [await jobs[0]] if len(jobs) == 1 else await gather(jobs)
        index += len(batch)
    return results


def _is_parallel(conversation: Conversation, call: ToolCall) -> bool:
    tool = conversation.tools.get(call.name)
    return tool is not None and tool.parallel


async def _run_tool(
    turn: Turn, tool: Tool | None, context: ToolContext, step: str, call: ToolCall, bounds: Bounds
) -> Message:
    def result(text: str, *, failed: bool = False) -> Message:
        shown = bound_text(text, max_bytes=bounds.output_bytes, max_lines=bounds.output_lines)
        return Message(role="tool", call_id=call.id, name=call.name, text=shown, failed=failed)

    async def make() -> Message:
        if tool is None:
            return result(f"There is no tool named {call.name!r} here.", failed=True)
        try:
            with anyio.fail_after(tool.timeout):
                return result(await tool.run(context, call.arguments))
        except TimeoutError:
            return result(f"{call.name} did not finish within {tool.timeout:g} s and was stopped.", failed=True)
        except ToolFailed as error:
            return result(error.message, failed=True)
        except Exception as error:
            log.exception("a tool broke", tool=call.name, session=turn.session, turn=turn.id)
            return result(f"{call.name} broke ({type(error).__name__}); the operator's log says more.", failed=True)

    turn.emit(ToolStarted(call_id=call.id, name=call.name, arguments=call.arguments[:EXCERPT_CHARACTERS]))
    effect = Effect(tool=call.name, repeatable=tool is None or tool.repeatable, lost=result(LOST, failed=True))
    message = await turn.step(step, make, effect=effect)
    turn.emit(
        ToolEnded(call_id=call.id, name=call.name, excerpt=message.text[:EXCERPT_CHARACTERS], failed=message.failed)
    )
    return message
