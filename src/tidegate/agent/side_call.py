"""Model calls outside the conversation, such as for summaries or for the notes written at the end of a session.

Guarantee: a side call is charged to the same budgets as the turns of its session, is refused once these are used up,
and has a time limit. It has no tools, its text is not shown to anyone, and it leaves no row in a transcript. `calls`
records the cost of each attempt, including attempts that were cut off; the caller stores them in the same transaction
as the side call's effect. A side call owns no resources.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from tidegate.agent.model_step import SpendGuard, answer_bytes
from tidegate.errors import ModelFailed
from tidegate.models import Model, checked_usage
from tidegate.values import Call, Event, Message, Prefix, Usage

T = TypeVar("T")
NOTHING = Usage()


class SideCall:
    """The account of a side call: its session, its usage, and the model calls that were made for it."""

    def __init__(self, session: str, *, emit: Callable[[Event], None] | None = None, usage: Usage = NOTHING) -> None:
        self.session = session
        self.usage = usage
        self.calls: list[tuple[str, Usage]] = []  # lint: allow a few tries each
        self._emit = emit

    def emit(self, event: Event) -> None:
        """Forwards an event, such as a budget warning."""
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
    """Returns the model's answer. Raises BudgetSpent, or ModelFailed if the model fails or takes longer than `within`
    seconds."""
    spend_guard.check(side_call)
    wire = model.wire
    encoded = wire.encode_prefix(prefix)
    history = [wire.encode(message)]
    asked = len(encoded.system) + len(history[0])

    def charge_cut_call(received_bytes: int) -> None:
        tokens = model.token_estimate.tokens
        usage = model.facts.priced(Usage(input=tokens(asked), output=tokens(received_bytes), estimated=True))
        spend_guard.spend(side_call, usage)
        side_call.add_call(spend_guard.model, usage)

    def on_reset(_: str, received_bytes: int) -> None:
        charge_cut_call(received_bytes)
        spend_guard.check(side_call)

    try:
        with anyio.fail_after(within):
            answer = await model.ask(encoded, history, call, on_text=_discard, on_reset=on_reset)
    except TimeoutError:
        charge_cut_call(0)
        raise ModelFailed(
            f"Model {model.name!r}: no answer within {within:g} s.", kind="timeout", retryable=True
        ) from None
    except asyncio.CancelledError:
        charge_cut_call(0)
        raise
    except ModelFailed as failure:
        if failure.received_bytes:
            charge_cut_call(failure.received_bytes)
        raise
    usage = checked_usage(model, answer.usage, asked=asked, received=answer_bytes(answer))
    if not usage.estimated:
        model.token_estimate.learn(asked, usage.input)
    spend_guard.spend(side_call, usage)
    side_call.add_call(spend_guard.model, usage)
    return answer


async def run_metered(
    side_call: SideCall,
    name: str,
    spend_guard: SpendGuard,
    call: Callable[[], Awaitable[T]],
    usage_of: Callable[[T], Usage],
    estimate: Callable[[], Usage],
    *,
    within: float,
) -> T:
    """Calls a model that is not a chat model and whose configured name is `name`. `estimate` returns the usage of a
    call that was cut off. Raises BudgetSpent before the call, or ModelFailed if the model fails or takes longer than
    `within` seconds."""
    spend_guard.check(side_call)

    def charge(usage: Usage) -> None:
        spend_guard.spend(side_call, usage)
        side_call.add_call(spend_guard.model, usage)

    try:
        with anyio.fail_after(within):
            result = await call()
    except TimeoutError:
        charge(estimate())
        raise ModelFailed(f"Model {name!r}: no answer within {within:g} s.", kind="timeout", retryable=True) from None
    except asyncio.CancelledError:
        charge(estimate())
        raise
    except ModelFailed as failure:
        if failure.received_bytes:
            charge(estimate())
        raise
    charge(usage_of(result))
    return result


def _discard(text: str) -> None:
    """Ignores streamed text, because the answer is read when it is complete."""
