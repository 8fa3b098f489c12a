"""A model call beside the conversation: a summary, the notes at a session's end.

Guarantee: it is paid from the same purse as the turns of its session, refused where that is empty, and bounded in time.
It shows nobody any text, has no tools and leaves no row in a transcript. What its calls cost, those that broke off
included, stands in `calls`, for whoever writes down its effect to write down in the same transaction. An errand owns
nothing.
"""

import asyncio
from collections.abc import Callable

import anyio

from tidegate.agent.metered_call import SpendGuard, answer_bytes
from tidegate.errors import ModelFailed
from tidegate.models import Model, believed
from tidegate.values import Call, Event, Message, Prefix, Usage

NOTHING = Usage()


class SideCall:
    """What budgets are told of it: whose it is, and what it has used."""

    def __init__(self, session: str, *, emit: Callable[[Event], None] | None = None, usage: Usage = NOTHING) -> None:
        self.session = session
        self.usage = usage
        self.calls: list[tuple[str, Usage]] = []  # house: allow a few tries each
        self._emit = emit

    def emit(self, event: Event) -> None:
        """Warnings of budgets."""
        if self._emit is not None:
            self._emit(event)

    def add_call(self, model: str, usage: Usage) -> None:
        self.usage = self.usage + usage
        self.calls.append((model, usage))


async def run_side_call(
    side_call: SideCall,
    model: Model,
    spend_guard: SpendGuard,
    prefix: Prefix,
    message: Message,
    call: Call,
    *,
    within: float,
) -> Message:
    """The model's answer. ModelFailed, also when it takes longer than `within` seconds; BudgetSpent."""
    spend_guard.check(side_call)
    wire = model.wire
    encoded = wire.encode_prefix(prefix)
    history = [wire.encode(message)]
    asked = len(encoded.system) + len(history[0])

    def broke(heard: int) -> None:
        tokens = model.token_estimate.tokens
        usage = model.facts.priced(Usage(input=tokens(asked), output=tokens(heard), estimated=True))
        spend_guard.spend(side_call, usage)
        side_call.add_call(spend_guard.model, usage)

    def on_reset(_: str, heard: int) -> None:
        broke(heard)
        spend_guard.check(side_call)

    try:
        with anyio.fail_after(within):
            answer = await model.ask(encoded, history, call, on_text=_discard, on_reset=on_reset)
    except TimeoutError:
        broke(0)
        raise ModelFailed(
            f"Model {model.name!r}: no answer within {within:g} s.", kind="timeout", retryable=True
        ) from None
    except asyncio.CancelledError:
        broke(0)
        raise
    except ModelFailed as failure:
        if failure.heard:
            broke(failure.heard)
        raise
    usage = believed(model, answer.usage, asked=asked, received=answer_bytes(answer))
    if not usage.estimated:
        model.token_estimate.learn(asked, usage.input)
    spend_guard.spend(side_call, usage)
    side_call.add_call(spend_guard.model, usage)
    return answer


def _discard(text: str) -> None:
    """It is read when it is complete."""
