"""The results of tool calls, as messages for the model and as events for clients.

Every call has a result, however its turn ends. `missing` lists the calls of a turn that have no result yet. An engine
that ends the turn early commits a result for each of them, so no provider ever sees a call without a result: `not_run`
if the call never started, `interrupted` if it did.
"""

from collections.abc import Iterable, Sequence

from tidegate.agent.interface import EXCERPT_CHARACTERS
from tidegate.tools import Result, Tool
from tidegate.values import Message, ToolCall, ToolEnded

MODEL_STEP = "model-"
"""The prefix of a model step's name in the journal, followed by the step's number."""


def tool_step_name(number: int, index: int) -> str:
    """Returns the name, in the journal, of the result of call `index` of model step `number`."""
    return f"tool-{number}-{index}"


def missing(rows: Iterable[tuple[str, Message]]) -> list[tuple[str, ToolCall]]:
    """Returns the (step, call) pairs of all calls in these rows that have no result, in order."""
    recorded: set[str] = set()
    answers: list[tuple[int, Message]] = []
    for step, message in rows:
        recorded.add(step)
        if step.startswith(MODEL_STEP) and message.calls:  # messages from the caller include their calls' results
            answers.append((int(step.removeprefix(MODEL_STEP)), message))
    return [
        (tool_step_name(number, index), call)
        for number, message in answers
        for index, call in enumerate(message.calls)
        if tool_step_name(number, index) not in recorded
    ]


def not_run(call: ToolCall, why: str) -> Message:
    """Returns the result of a call that was never started. `why` is a sentence."""
    return Message(role="tool", call_id=call.id, name=call.name, text=f"Not run: {why}", failed=True)


def interrupted(call: ToolCall, why: str, *, read_only: bool) -> Message:
    """Returns the result of a call that was started and did not finish. `why` is a sentence."""
    if read_only:
        text = f"Interrupted before it finished. {why}"
    else:
        text = f"Interrupted: its effect is unknown, and it was not run again. {why}"
    return Message(role="tool", call_id=call.id, name=call.name, text=text, failed=True, interrupted=True)


def tool_result(call: ToolCall, result: Result) -> Message:
    """Returns the message that the model reads as the result of this call."""
    return Message(
        role="tool", call_id=call.id, name=call.name, text=result.text, failed=result.failed, media=result.media
    )


def cut_short(tool: Tool, call: ToolCall, why: str) -> Message:
    """Returns the result of a call that was cut short. The call has failed if its tool only reads; otherwise it is
    interrupted, with an unknown effect."""
    if tool.read_only:
        return tool_result(call, Result(text=why, failed=True))
    return interrupted(call, why, read_only=False)


def tool_ended(result: Message) -> ToolEnded:
    """Returns the event that reports this result."""
    return ToolEnded(
        call_id=result.call_id,
        name=result.name,
        excerpt=result.text[:EXCERPT_CHARACTERS],
        failed=result.failed,
        media=tuple(each.words for each in result.media),
        interrupted=result.interrupted,
    )


def in_call_order(messages: Iterable[Message]) -> list[Message]:
    """Returns the messages with each answer's results in the order of its calls. The results of parallel tools are
    committed in the order in which the tools finish, but the model must always read them in call order."""
    ordered: list[Message] = []
    places: dict[str, int] = {}
    results: list[Message] = []
    for message in messages:
        if message.role == "tool":
            results.append(message)
            continue
        if results:
            ordered += sorted(results, key=lambda result: places.get(result.call_id, 0))
            results = []
        ordered.append(message)
        if message.calls or places:
            places = {call.id: place for place, call in enumerate(message.calls)}
    return ordered + sorted(results, key=lambda result: places.get(result.call_id, 0))


def is_balanced(messages: Sequence[Message]) -> bool:
    """True if every call is followed by its result before any other message, and every result belongs to a call."""
    open_calls: set[str] = set()
    for message in messages:
        if message.role == "tool":
            if message.call_id not in open_calls:
                return False
            open_calls.discard(message.call_id)
        elif open_calls:
            return False
        else:
            open_calls = {call.id for call in message.calls}
    return not open_calls
