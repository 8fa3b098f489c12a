"""The demo model: a deterministic in-process model that needs no key and no network.

It receives the same bytes as a real model and streams in small pieces. Other tasks can run between the pieces, and a
cancelled call stops immediately. Its replies say that it is the demo model. It keeps nothing between calls.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from tidegate.errors import ModelFailed
from tidegate.http_client import Lease, Transport
from tidegate.models.catalog.facts import Facts, Prices
from tidegate.models.demo.script import DemoReply, read_request, reply
from tidegate.models.formats.call_parameters import invalid, parse_tool_choice
from tidegate.models.formats.openai.chat import ChatWire
from tidegate.models.formats.stop_sequences import StopCutter
from tidegate.models.formats.token_counts import TokenEstimate
from tidegate.models.http.http_model import signature
from tidegate.models.interface import EncodedPrefix
from tidegate.values import Call, Message, Usage

MODEL = "demo"
# A rough estimate of a token's size, since the demo model has no tokenizer.
BYTES_PER_TOKEN = 4
EFFORTS = ("none", "minimal", "low", "medium", "high", "max")

FACTS = Facts(
    window=1_000_000,
    vision=True,
    audio=True,
    thinking="effort",
    efforts=EFFORTS,
    prices=Prices(input=0, output=0),
    known=True,
)

_RETRYABLE = frozenset({"rate", "overloaded", "network", "timeout"})


class DemoModel:
    def __init__(self, name: str, transport: Transport, facts: Facts = FACTS) -> None:
        self.name = name
        self.provider_model = MODEL
        self.facts = facts
        self.token_estimate = TokenEstimate()
        self.wire = ChatWire(MODEL, FACTS)
        self.signature = signature("demo", "", MODEL, {}, (), FACTS)
        self._transport = transport

    def lease(self) -> Lease:
        return self._transport.lease(MODEL)

    async def ask(
        self,
        prefix: EncodedPrefix,
        history: Sequence[bytes],
        call: Call,
        *,
        on_text: Callable[[str], None],
        on_reset: Callable[[str, int], None],
    ) -> Message:
        if call.top_logprobs is not None:
            raise invalid("The demo model returns no log probabilities; leave out `logprobs`.", "logprobs")
        if call.response_format:
            raise invalid(
                "The demo model answers in plain text; leave out `response_format`, or choose another model.",
                "response_format",
            )
        if call.tool_choice and parse_tool_choice(call.tool_choice).kind not in ("none", "auto"):
            raise invalid(
                "The demo model decides on its own whether to call a tool; leave out `tool_choice`, or choose another "
                "model.",
                "tool_choice",
            )
        body = b"".join(self.wire.body(prefix, history, call))
        try:
            planned = reply(read_request(body))
        except msgspec.DecodeError as error:
            message = f"The demo model cannot read this request: {error}."
            raise ModelFailed(message, kind="invalid", retryable=False) from error
        if planned.fail is not None:
            message = (
                f"Model {self.name!r}: the demo model failed with {planned.fail!r}, as requested; send another message."
            )
            raise ModelFailed(message, kind=planned.fail, retryable=planned.fail in _RETRYABLE)
        if planned.stumble:
            half = planned.text[: len(planned.text) // 2]
            on_text(half)
            await asyncio.sleep(0)
            on_reset(f"Model {self.name!r}: the demo model withdrew its answer, as requested.", len(half.encode()))
        cutter = StopCutter(call.stop, on_text) if call.stop else None
        show = cutter or on_text
        pieces: list[str] = []
        async for piece in _pieces(planned, call.max_tokens):
            pieces.append(piece)
            show(piece)
        text = "".join(pieces)
        wanted = str(planned.count) if planned.count else planned.text
        usage = Usage(
            input=len(body) // BYTES_PER_TOKEN,
            cached=(len(body) - len(history[-1])) // BYTES_PER_TOKEN if len(history) > 1 else 0,
            output=max(1, len(text.encode()) // BYTES_PER_TOKEN),
        )
        finish = "tool_calls" if planned.calls else "stop" if text.endswith(wanted) else "length"
        answer = Message(role="assistant", text=text, calls=planned.calls, finish=finish, usage=usage, model=MODEL)
        return answer if cutter is None else cutter.finish(answer)


async def _pieces(planned: DemoReply, most: int | None) -> AsyncIterator[str]:
    """Yields the reply word by word. `most` is the caller's token limit; a word counts as one token."""
    if planned.count:
        for number in range(1, min(planned.count, planned.count if most is None else most) + 1):
            yield str(number) if number == 1 else f" {number}"
            await asyncio.sleep(0)
        return
    for given, word in enumerate(re.findall(r"\s*\S+\s*$|\s*\S+", planned.text) if planned.text.strip() else []):
        if most is not None and given >= most:
            return
        yield word
        await asyncio.sleep(planned.pause)
