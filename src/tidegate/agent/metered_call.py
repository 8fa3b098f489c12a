"""One model call with its cost.

Guarantee: no call is made for which a budget has nothing left. The tokens of every call are reported to the budgets and
to the turn: as counted by the provider, or as an estimate that is marked as one. A provider counts at the end of its
answer, so a call that is cut off has no count of its own. A call that restarts after part of its answer has arrived,
shown or not, counts as two calls. Nothing is kept between calls.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from tidegate.agent.conversation import Conversation
from tidegate.agent.turn import Turn
from tidegate.errors import ModelFailed
from tidegate.models import checked_usage
from tidegate.values import Call, Event, Frozen, Message, TextDelta, TextReset, Usage


class Payer(Protocol):
    """The turn or side call that a model call is charged to."""

    @property
    def session(self) -> str: ...

    @property
    def usage(self) -> Usage:
        """Its usage so far."""
        ...

    def emit(self, event: Event) -> None: ...


class Budget(Protocol):
    """A spending limit: of the gateway, a principal, a session or a turn."""

    def check(self, payer: Payer) -> None:
        """Raises BudgetSpent if nothing is left."""
        ...

    def spend(self, payer: Payer, usage: Usage) -> None:
        """Charges a call of this payer that is not part of the payer's own usage yet."""
        ...


class SpendGuard(Frozen, frozen=True):
    """The budgets that a turn's model calls are charged to. `model` is the provider's name of the model; `count`
    receives all usage, for the statistics."""

    model: str
    budgets: tuple[Budget, ...] = ()
    count: Callable[[Usage], None] | None = None

    def check(self, payer: Payer) -> None:
        for budget in self.budgets:
            budget.check(payer)

    def spend(self, payer: Payer, usage: Usage) -> None:
        if self.count is not None:
            self.count(usage)
        for budget in self.budgets:
            budget.spend(payer, usage)

    def spend_cut_call(self, turn: Turn, usage: Usage) -> None:
        """Charges a call that was cut off."""
        self.spend(turn, usage)
        turn.cut(self.model, usage)


async def metered_call(turn: Turn, conversation: Conversation, call: Call, spend_guard: SpendGuard) -> Message:
    """The model's answer with its usage; the turn's followers see the text as it arrives."""
    spend_guard.check(turn)
    shown = 0

    def on_text(text: str) -> None:
        nonlocal shown
        shown += _size(text)
        turn.emit(TextDelta(text=text))

    def on_reset(why: str, heard: int) -> None:
        nonlocal shown
        spend_guard.spend_cut_call(turn, _estimate(conversation, heard))
        if shown:
            turn.emit(TextReset(reason=why))
        shown = 0
        spend_guard.check(turn)  # a restarted answer is another call

    try:
        answer = await conversation.ask(call, on_text=on_text, on_reset=on_reset)
    except (asyncio.CancelledError, ModelFailed) as error:
        # An endpoint that failed before it produced output bills nothing. For a call that we cut off, this is unknown.
        heard = shown if isinstance(error, asyncio.CancelledError) else error.heard
        if isinstance(error, asyncio.CancelledError) or heard:
            spend_guard.spend_cut_call(turn, _estimate(conversation, heard))
        raise
    usage = checked_usage(
        conversation.model, answer.usage, asked=conversation.estimated_bytes, received=answer_bytes(answer)
    )
    if not usage.estimated:
        conversation.set_token_count(usage.input)
    spend_guard.spend(turn, usage)
    return msgspec.structs.replace(answer, usage=usage)


def _estimate(conversation: Conversation, heard: int) -> Usage:
    model = conversation.model
    tokens = model.token_estimate.tokens
    return model.facts.priced(Usage(input=tokens(conversation.estimated_bytes), output=tokens(heard), estimated=True))


def answer_bytes(answer: Message) -> int:
    """Bytes of an answer: text, tool arguments and reasoning."""
    called = sum(_size(call.arguments) for call in answer.calls)
    return _size(answer.text) + called + sum(len(bytes(one.item)) for one in answer.carried)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
