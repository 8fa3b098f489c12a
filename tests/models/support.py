"""Shared helpers of these tests: a configured model against the scripted server, and a listener."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bench.scripted_model import ScriptedModel
from tidegate.config import ModelSettings
from tidegate.http_client import HttpClient, Transport
from tidegate.models import Model, Models, RetryPolicy, Wire
from tidegate.security import Secret
from tidegate.values import Call, Message, Prefix, ToolDefinition

ANSWER_BYTES = 64 * 1024
CANARY = "canary-4f9d1c77-key"
TOOLS = (
    ToolDefinition(name="clock", description="Tells the time."),
    ToolDefinition(name="read_file", description="Reads a file."),
)
PREFIX = Prefix(prompt="You are a test.", tools=TOOLS)


class Slept:
    """A sleep that does not wait, and records its calls."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.pauses.append(seconds)


class Listener:
    """The text that a turn shows: appended as it arrives, cleared by a reset."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.resets: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def reset(self, reason: str, heard: int) -> None:
        self.resets.append(reason)
        self.pieces.clear()


def settings(base_url: str, **given: Any) -> ModelSettings:
    return ModelSettings(**{"api": "openai-chat", "base_url": base_url, "model": "some-model", **given})


def resolver(reference: str) -> Secret:
    assert reference == "env:CANARY"
    return Secret(CANARY)


@asynccontextmanager
async def configured(
    base_url: str,
    *,
    sleep: Slept | None = None,
    chance: Callable[[], float] = lambda: 1.0,
    answer_bytes: int = ANSWER_BYTES,
    clients: Transport | None = None,
    **given: Any,
) -> AsyncIterator[Model]:
    retry_policy = RetryPolicy(sleep=sleep or Slept(), chance=chance, clock=lambda: 1_700_000_000.0)
    own = HttpClient()
    async with (
        own,
        Models(
            {"main": settings(base_url, **given)}, clients or own, resolver, answer_bytes, retry_policy=retry_policy
        ) as models,
    ):
        yield models.get("main")


def encoded_by(wire: Wire, message: Message) -> bytes:
    """A message in wire format. A tool result stands for all results of its step."""
    return wire.encode_results([message]) if message.role == "tool" else wire.encode(message)


async def ask(
    model: Model,
    messages: str | Sequence[Message],
    listener: Listener | None = None,
    *,
    call: Call | None = None,
    prefix: Prefix = PREFIX,
) -> Message:
    listener = listener or Listener()
    if isinstance(messages, str):
        messages = [Message(role="user", text=messages)]
    history = [encoded for message in messages if (encoded := encoded_by(model.wire, message))]
    return await model.ask(
        model.wire.encode_prefix(prefix),
        history,
        call or Call(),
        on_text=listener.pieces.append,
        on_reset=listener.reset,
    )


__all__ = ["ANSWER_BYTES", "CANARY", "PREFIX", "Listener", "ScriptedModel", "Slept", "ask", "configured", "settings"]
