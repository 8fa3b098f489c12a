"""The cost of making a request: a message and an answer are added to a conversation of 10, 100 or 1,000 messages, and
the body of the next request is assembled, in each wire format.

The cost must not depend on the length of the conversation. It is the CPU time of this process without a network; the
cost of sending is in other figures.
"""

import asyncio
import time
from typing import Any

from bench.report import Figure
from bench.suite import Bench
from tidegate.agent import Conversation
from tidegate.config import ModelSettings
from tidegate.http_client import HttpClient
from tidegate.models import Model, Models
from tidegate.security import Secret
from tidegate.tools import Toolset
from tidegate.values import Call, Message, Prefix, ToolDefinition

APIS = ("openai-chat", "openai-responses", "anthropic")
LENGTHS = (10, 100, 1000)
GOAL = 1.5
"""Ratio of the longest conversation to the shortest, with a margin for noise of kernel and allocator."""
TURNS = 16
"""Turns that are measured before the conversation is rebuilt: so few that its length hardly changes."""
US = 1_000_000.0
WORDS = "the tide comes in and the tide goes out, and the gate between them keeps the level of the basin. "
PREFIX = Prefix(
    prompt="You are a helpful assistant.",
    tools=tuple(ToolDefinition(name=f"tool_{n}", description=WORDS) for n in range(8)),
)


def run(bench: Bench) -> list[Figure]:
    return [measure(bench, api) for api in APIS]


def measure(bench: Bench, api: str) -> Figure:
    bench.say(f"encoding, {api}")
    taken = asyncio.run(take(api, bench.scale.encoding_repeats))
    shortest, longest = taken[LENGTHS[0]], taken[LENGTHS[-1]]
    return Figure(
        name=f"encoding-{api}",
        title=f"encoding a turn after {LENGTHS[-1]:,} messages, against {LENGTHS[0]}, {api}",
        unit="µs",
        value=longest,
        floor=shortest,
        goal=f"≤ {GOAL:g} ×",
        met=longest <= GOAL * shortest,
        note=", ".join(f"{length:,} messages {spent:.1f} µs" for length, spent in taken.items()),
        detail={str(length): spent for length, spent in taken.items()},
    )


async def take(api: str, repeats: int) -> dict[int, float]:
    """Microseconds of CPU time per turn, the least of all repeats, by length of the conversation."""
    settings = ModelSettings(api=api, base_url="http://127.0.0.1:9/v1", model="scripted")  # type: ignore[arg-type]
    async with HttpClient() as client, Models({"main": settings}, client, Secret, 1_000_000) as models:
        model = models.get("main")
        taken: dict[int, float] = {}
        for _ in range(repeats):
            for length in LENGTHS:
                spent = await one(model, api, length)
                taken[length] = min(spent, taken.get(length, spent))
        return taken


async def one(model: Model, api: str, length: int) -> float:
    conversation = Conversation(
        model=model,
        lease=model.lease(),
        prefix=model.wire.encode_prefix(PREFIX),
        tools=Toolset(),
        signature=b"",
        messages=[message for place in range(length // 2) for message in said(model, api, place)],
    )
    new = [said(model, api, place) for place in range(TURNS)]
    size = 0
    began = time.process_time()
    for asked, answered in new:
        conversation.append(asked)
        pieces = model.wire.body(conversation.prefix, await conversation.history.read(), Call())  # type: ignore[arg-type]
        size += len(pieces)
        conversation.append(answered)
    spent = time.process_time() - began
    await conversation.release()
    return spent / TURNS * US


def said(model: Model, api: str, place: int) -> tuple[Message, Message]:
    asked = Message(role="user", text=f"Message {place}: {WORDS}")
    answered: dict[str, Any] = {"role": "assistant", "text": WORDS, "finish": "stop", "model": model.provider_model}
    return asked, Message(**answered)
