"""The agent loop: calls the model, runs the tools that it requests, and repeats this until the model answers.

Guarantee: each model answer and each tool result is one journal step, and a replay takes the steps in the same order.
Steering messages are added between steps, never within one. Every call has a result before the model is called again.
If a model keeps making the same calls with the same results, it is first warned, then stopped. The loop owns no
objects: the turn owns the model step and the tool runner, and the engine owns the journal.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial

from tidegate.agent.interface import Turn
from tidegate.agent.model_step import ModelStep
from tidegate.agent.tool_results import MODEL_STEP
from tidegate.agent.tool_runner import ToolRunner
from tidegate.errors import TurnFailed
from tidegate.values import Call, Frozen, Message

REPEATED = "[You have made the same call {count} times with the same result. Do something else, or answer.]"


class Bounds(Frozen, frozen=True):
    """The limits for one turn."""

    steps: int
    repeats: int


async def run(
    turn: Turn, model_step: ModelStep, make_tool_runner: Callable[[], ToolRunner], call: Call, bounds: Bounds
) -> Message:
    """Runs the turn and returns its answer. Most turns call no tools, so the tool runner is created only when the first
    tool is called.

    A step with calls to the caller's tools ends the turn: first the step's calls to the agent's own tools are run; the
    remaining calls are left to the caller. A `tool_choice` that forces a call applies only to the first step; otherwise
    the turn would never end.
    """
    model_step.extend(turn.incoming)
    tool_runner: ToolRunner | None = None
    repeats = LoopDetector(bounds.repeats)
    caller_tools = model_step.conversation.prefix.caller_tools

    def is_last(answer: Message) -> bool:
        return not answer.calls or all(each.name in caller_tools for each in answer.calls)

    for number in range(bounds.steps):
        model_step.extend(await turn.drain("steer"))
        answer = await turn.step(f"{MODEL_STEP}{number}", partial(model_step.run, turn, call), ends=is_last)
        model_step.extend((answer,))
        if is_last(answer):
            return answer
        if tool_runner is None:
            tool_runner = make_tool_runner()
        results = await tool_runner.run(number, answer.calls, caller_tools=caller_tools)
        model_step.extend(results)
        if len(results) < len(answer.calls):
            return turn.conclude(answer, tuple(each for each in answer.calls if each.name in caller_tools))
        call = call.unforced()
        verdict = repeats.round(answer, results)
        if verdict is RepeatVerdict.STOP:
            raise TurnFailed(
                f"The agent made the same tool call {2 * bounds.repeats} times in a row with the same result, so its "
                f"turn was stopped; rephrase your request, or raise limits.repeats.",
                code="loop",
            )
        if verdict is RepeatVerdict.WARN:
            model_step.extend(await _warn(turn, number, bounds.repeats))
    raise TurnFailed(
        f"The agent used all {bounds.steps} steps of its turn without reaching an answer; say 'go on' to continue, "
        f"or raise "
        "limits.turn_steps.",
        code="step_limit",
    )


async def _warn(turn: Turn, number: int, count: int) -> tuple[Message, ...]:
    """Adds the warning as a separate row after the results, so that the results stay unchanged."""

    async def make() -> Message:
        return Message(role="user", aside=REPEATED.format(count=count))

    return (await turn.step(f"note-{number}", make),)


class RepeatVerdict(Enum):
    FINE = "fine"
    WARN = "warn"
    STOP = "stop"


class LoopDetector:
    """Counts consecutive identical rounds. A round consists of the calls in one model answer and their results.

    A pure function of the turn's messages, so a replayed turn reaches the same verdicts.
    """

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._last: tuple[object, ...] = ()
        self._count = 0

    def round(self, answer: Message, results: Sequence[Message]) -> RepeatVerdict:
        current = (
            tuple((call.name, call.arguments) for call in answer.calls),
            tuple((result.text, result.failed) for result in results),
        )
        self._count = self._count + 1 if current == self._last else 1
        self._last = current
        if self._count >= 2 * self._allowed:
            return RepeatVerdict.STOP
        return RepeatVerdict.WARN if self._count >= self._allowed else RepeatVerdict.FINE
