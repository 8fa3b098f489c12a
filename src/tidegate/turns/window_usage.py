"""The usage of a conversation's context window, by part.

The parts are those of the next request and add up to its size. They are read from the store, whether or not the session
is in memory. Token counts are estimates, calibrated with the provider's counts. If the provider has counted the last
request, the sum is that count plus an estimate of the messages since.
"""

from collections.abc import Iterable

from tidegate.agent import PROMPT, Conversation, part_of, weigh
from tidegate.agent.context import View, WindowMarks
from tidegate.agent.context.view import summary_message
from tidegate.agent.conversation import weigh_media
from tidegate.models import Model
from tidegate.store import SettingRow
from tidegate.values import Frozen, Message, Prefix

NAMES = {
    "prompt": "the agent's prompt",
    "project": "project files",
    "skills": "list of skills",
    "agents": "list of other agents",
    "memory": "notes",
    "caller": "the caller's own prompt",
    "tools": "tools",
    "summaries": "summaries of older messages",
    "people": "messages from people",
    "gateway": "notes from the gateway",
    "answers": "answers",
    "results": "tool calls and results",
    "media": "pictures, sounds and documents",
}
"""All parts, in the order in which they are listed, with the names shown to users."""


class WindowPart(Frozen, frozen=True, omit_defaults=False):
    """One part of the context window. `count` is the number of messages, summaries, tools or media that it contains."""

    part: str
    name: str
    tokens: int
    count: int


class WindowUsage(Frozen, frozen=True, omit_defaults=False):
    """The context window of the model that would answer now, in tokens. A summary is prepared above `soft` and applied
    above `hard`. `summarised` is the number of messages that have been replaced by summaries, and `summaries` is the
    number of summaries shown. `counted` is true if the sum is based on the provider's count of the last request.
    `resting` is the reason why no model is asked for a summary until `rests_until`."""

    model: str
    window: int
    soft: int
    hard: int
    tokens: int
    parts: tuple[WindowPart, ...]
    summaries: int
    summarised: int
    counted: bool
    resting: str | None = None
    rests_until: float | None = None


def window_usage(
    prefix: Prefix, view: View, model: Model, marks: WindowMarks, held: Conversation | None, resting: SettingRow | None
) -> WindowUsage:
    """Measures the context window. `held` is the conversation in memory, if it uses this model. `resting` is the
    setting that suspends summaries."""
    sizes = _sizes(prefix, view)
    total = sum(size for size, _ in sizes.values()) or 1
    counted = held is not None and held.has_token_count
    tokens = held.tokens if held is not None else model.token_estimate.tokens(total)
    return WindowUsage(
        model=model.name,
        window=marks.window,
        soft=marks.soft,
        hard=marks.hard,
        tokens=tokens,
        parts=tuple(
            WindowPart(part=part, name=NAMES.get(part, part), tokens=round(tokens * size / total), count=count)
            for part, (size, count) in sizes.items()
            if size
        ),
        summaries=len(view.summaries),
        summarised=view.covered,
        counted=counted,
        resting=None if resting is None else str(resting.value),
        rests_until=None if resting is None else resting.expires,
    )


def _sizes(prefix: Prefix, view: View) -> dict[str, tuple[int, int]]:
    """Returns each part's size in bytes and its count, in order."""
    sizes: dict[str, tuple[int, int]] = dict.fromkeys(NAMES, (0, 0))
    texts = {name: part_of(prefix, name) for name, _ in prefix.parts} or {PROMPT: prefix.prompt}
    for name, text in texts.items():
        sizes[name] = (len(text.encode(errors="replace")), int(bool(text)))
    tools = [len(tool.name) + len(tool.description) + len(bytes(tool.parameters)) for tool in prefix.offered]
    sizes["tools"] = (sum(tools), len(tools))
    sizes["summaries"] = (sum(weigh(summary_message(row)) for row in view.summaries), len(view.summaries))
    for part, size in _message_sizes(view.shown_rows()):
        bytes_, count = sizes[part]
        sizes[part] = (bytes_ + size, count + 1)
    return sizes


def _message_sizes(messages: Iterable[Message]) -> Iterable[tuple[str, int]]:
    """Yields the part to which each message belongs, and the message's size in bytes."""
    for message in messages:
        media = sum(map(weigh_media, message.media))
        if media:
            yield "media", media
        aside = len(message.aside.encode(errors="replace"))
        if aside:
            yield "gateway", aside
        size = weigh(message) - media - aside
        if aside and not message.text and not message.calls:
            continue
        if message.role == "tool" or message.calls:
            yield "results", size
        else:
            yield "people" if message.role == "user" else "answers", size
