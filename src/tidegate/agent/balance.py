"""Tool calls and results in balance, whatever happened.

Guarantee: `missing` names exactly the results that a turn's rows still owe, so that an engine which ends a turn early
(stop, error, exhausted resume budget) can commit them with its end and no provider ever sees an orphan.
"""

from collections.abc import Iterable, Sequence

from tidegate.values import Message


def model_step(number: int) -> str:
    return f"model-{number}"


def tool_step(number: int, index: int) -> str:
    """The journal's name for the result of call `index` of model step `number`."""
    return f"tool-{number}-{index}"


def missing(rows: Iterable[tuple[str, Message]], text: str) -> list[tuple[str, Message]]:
    """(step, message) for every call of these rows that has no result, in order; `text` tells the model why."""
    recorded: set[str] = set()
    asked: list[tuple[int, Message]] = []
    for step, message in rows:
        recorded.add(step)
        if message.role == "assistant" and message.calls:
            asked.append((int(step.removeprefix("model-")), message))
    return [
        (tool_step(number, index), Message(role="tool", call_id=call.id, name=call.name, text=text, failed=True))
        for number, message in asked
        for index, call in enumerate(message.calls)
        if tool_step(number, index) not in recorded
    ]


def in_call_order(messages: Iterable[Message]) -> list[Message]:
    """The same messages with each answer's results in the order of its calls. Tools that run side by side are committed
    as they finish; a model has always read them in this order, and must again when they come from the store."""
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
    """Whether every call is followed by its results before anything else is said, and no result is unasked for."""
    owed: set[str] = set()
    for message in messages:
        if message.role == "tool":
            if message.call_id not in owed:
                return False
            owed.discard(message.call_id)
        elif owed:
            return False
        else:
            owed = {call.id for call in message.calls}
    return not owed
