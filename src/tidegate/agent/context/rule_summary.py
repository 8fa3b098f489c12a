"""What stands for old messages when no model has summarised them: a short list, made by rule.

Guarantee: pure and bounded, whatever the messages hold; it says what it is, and names the places of what it quotes, by
which the whole can be looked up.
"""

from collections.abc import Sequence
from typing import TypeVar

from tidegate.store import SummaryRow
from tidegate.values import Message

T = TypeVar("T")

LINES = (4, 16)
"""Of what people said, at least and at most, spread over the whole span."""

CHARACTERS = 100
"""Of each."""


def cut_messages(rows: Sequence[tuple[int, Message]], size: int) -> str:
    """For messages, of about so many characters."""
    said = [(place, message.text) for place, message in rows if message.role == "user" and message.text.strip()]
    tools = sum(message.role == "tool" for _, message in rows)
    head = f"{len(rows)} messages are not shown and were not summarised"
    results = f", {tools} of them results of tools" if tools else ""
    if not said:
        return f"{head}{results}."
    lines = [f"message {place}: {_begin(text)}" for place, text in _spread(said, size)]
    which = "The person said" if len(lines) == len(said) else f"Of what the person said, {len(lines)} of {len(said)}"
    return f"{head}{results}. {which}:\n" + "\n".join(lines)


def cut_summaries(rows: Sequence[SummaryRow], size: int) -> str:
    """For summaries, of about so many characters."""
    lines = [f"messages {row.first} to {row.last}: {_begin(row.text)}" for row in _spread(rows, size)]
    return f"The beginnings of {len(lines)} of {len(rows)} earlier summaries:\n" + "\n".join(lines)


def _begin(text: str) -> str:
    line = " ".join(text[: 4 * CHARACTERS].split())
    return line if len(line) <= CHARACTERS else f"{line[:CHARACTERS]}…"


def _spread(items: Sequence[T], size: int) -> list[T]:
    """The last of them, and as many before it as there is room for, evenly."""
    least, most = LINES
    lines = min(max(least, size // CHARACTERS), most)
    if len(items) <= lines:
        return list(items)
    return [items[(number + 1) * len(items) // lines - 1] for number in range(lines)]
