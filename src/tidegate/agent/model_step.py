"""One model step of a turn, with its cost and with fallback to other models.

Each model of the agent's chain is tried at most once per step, after its own retries. If a request is refused because
of content that can be left out, that content is removed first and the request is sent to the same model again
(`Remedy`). Text already streamed from a failed model is withdrawn before the next model starts. If every model fails,
the error names all of them. A request that comes close to the limit of its model's window is reduced before it is sent.
If the conversation was unloaded while the turn was waiting for a person, it is reloaded before the next step.

No model is called once a budget is used up. The tokens of every call count towards the budgets and the turn's usage,
either as reported by the provider or as an estimate, which is marked as such. Providers report token counts at the end
of an answer, so the usage of a call that is cut off can only be estimated. A call that restarts after part of its
answer has arrived, whether streamed to the user or not, counts as two calls.

The turn owns its model step. Each conversation is owned by the component that built it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import msgspec

from tidegate.agent.conversation import Conversation
from tidegate.agent.interface import Turn
from tidegate.errors import ModelFailed
from tidegate.lifetimes import Presence, Present
from tidegate.models import Model, checked_usage
from tidegate.status_report import ModelUsage
from tidegate.values import BILLION, Call, Event, Frozen, Message, TextDelta, TextReset, Usage

Remedy = Literal["thoughts", "context", "size", "documents"]
"""Ways to change a refused request so that the same model may accept it: leave out the reasoning carried by earlier
answers, shorten old messages, or replace media (or only documents) with a short text."""


TRIES: Mapping[Remedy, int] = MappingProxyType({"thoughts": 1, "context": 1, "size": 2, "documents": 2})
"""How often each remedy is tried in one step. Media get two attempts, because the first one leaves out only older
media."""


class Payer(Protocol):
    """The turn or side call to which a model call is charged."""

    @property
    def session(self) -> str: ...

    @property
    def usage(self) -> Usage:
        """The payer's usage so far."""
        ...

    def emit(self, event: Event) -> None: ...


class Budget(Protocol):
    """A spending limit for the gateway, a principal, a session or a turn."""

    def check(self, payer: Payer) -> None:
        """Raises BudgetSpent if the budget is used up."""
        ...

    def spend(self, payer: Payer, usage: Usage) -> None:
        """Charges a call that the payer's usage does not include yet."""
        ...


class Meter:
    """One model's usage since the process started, for the metrics."""

    __slots__ = ("cached", "calls", "cost", "input", "output", "written")

    def __init__(self) -> None:
        self.calls = self.input = self.cached = self.written = self.output = self.cost = 0

    def count(self, used: Usage) -> None:
        self.calls += 1
        self.input += used.input
        self.cached += used.cached
        self.written += used.written
        self.output += used.output
        self.cost += used.cost

    def read(self) -> ModelUsage:
        return ModelUsage(
            calls=self.calls,
            input=self.input,
            cached=self.cached,
            written=self.written,
            output=self.output,
            cost=self.cost / BILLION,
        )


class SpendGuard(Frozen, frozen=True):
    """The budgets to which a turn's model calls are charged. `model` is the provider's name for the model. `meter`
    counts the model's entire usage, for the metrics."""

    model: str
    budgets: tuple[Budget, ...] = ()
    meter: Meter | None = None

    def check(self, payer: Payer) -> None:
        for budget in self.budgets:
            budget.check(payer)

    def spend(self, payer: Payer, usage: Usage) -> None:
        if self.meter is not None:
            self.meter.count(usage)
        for budget in self.budgets:
            budget.spend(payer, usage)

    def spend_cut_call(self, turn: Turn, usage: Usage) -> None:
        """Charges a call that was cut off."""
        self.spend(turn, usage)
        turn.cut(self.model, usage)


class RequestFitter(Protocol):
    """Changes a conversation so that its model can accept it."""

    async def fit(self, conversation: Conversation) -> None:
        """Reduces the conversation to fit its model's window. Raises ModelFailed if that is impossible."""
        ...

    async def apply_remedy(self, conversation: Conversation, remedy: Remedy) -> bool:
        """Changes a conversation that the model has refused. Returns True if it was changed and can be sent again."""
        ...


class TurnResident(NamedTuple):
    """Access to a turn's resident conversation between steps, through the session's record. The conversation may be
    unloaded while the turn is waiting for a person; `reload` then loads it from the store again, up to the same point
    in the turn."""

    presence: Presence
    record: Present
    reload: Callable[[Conversation], Awaitable[Conversation]]

    def holds(self, conversation: Conversation) -> bool:
        """True if the conversation is still loaded."""
        record = self.record
        return conversation in (record.resident, record.temporary, *record.detached)


FallBack = Callable[[Conversation, tuple[Model, ...], ModelFailed], Awaitable[tuple[Conversation, SpendGuard] | None]]
"""Returns the conversation, up to the same point, with the next model that has not failed in this step, or None if
every model has failed. The arguments are the current conversation, the models that have failed, and the last
failure."""


class ModelStep:
    """Runs the model steps of one turn with its conversation."""

    __slots__ = ("_fall_back", "_fit_first", "_fitter", "_make_fitter", "_resident", "conversation", "spend_guard")

    def __init__(
        self,
        conversation: Conversation,
        spend_guard: SpendGuard,
        fall_back: FallBack | None = None,
        make_fitter: Callable[[], RequestFitter] | None = None,
        resident: TurnResident | None = None,
        *,
        fit_first: bool = False,
    ) -> None:
        """`make_fitter` is not called until a conversation does not fit its model's window, which most never reach. If
        `fit_first` is true, the first request is fitted whatever its size."""
        self.conversation = conversation
        self.spend_guard = spend_guard
        self._fall_back = fall_back
        self._make_fitter = make_fitter
        self._fitter: RequestFitter | None = None
        self._fit_first = fit_first
        self._resident = resident

    def extend(self, messages: Sequence[Message]) -> None:
        """Appends messages that are already committed. If the conversation is unloaded, nothing is appended, since it
        reads the messages from the store when it is reloaded."""
        if messages and (self._resident is None or self._resident.holds(self.conversation)):
            self.conversation.extend(messages)
            self._weigh()

    def _weigh(self) -> None:
        if self._resident is not None:
            self._resident.presence.reweigh(self._resident.record)

    async def run(self, turn: Turn, call: Call) -> Message:
        """Returns the answer of the first model that succeeds. Later steps of the turn use that model too."""
        first: ModelFailed | None = None
        failed: tuple[Model, ...] = ()
        applied: tuple[Remedy, ...] = ()
        if self._resident is not None and not self._resident.holds(self.conversation):
            self.conversation = await self._resident.reload(self.conversation)
        while True:
            try:
                if self._fit_first or self.conversation.needs_fitting:
                    await self._fit()
                return await metered_call(turn, self.conversation, call, self.spend_guard)
            except ModelFailed as failure:
                if failure.param is not None and first is None:
                    raise  # the request itself is at fault; another model would refuse it too
                remedy = remedy_for(failure)
                if remedy is not None and applied.count(remedy) < TRIES[remedy] and await self._apply_remedy(remedy):
                    applied += (remedy,)
                    if failure.partial_answer:
                        turn.emit(TextReset(reason=failure.brief))
                    continue
                tried = (*failed, self.conversation.model)
                other = None if self._fall_back is None else await self._fall_back(self.conversation, tried, failure)
                if other is None:
                    raise failure if first is None else combined_failure(first, failure) from failure
                if failure.partial_answer:
                    turn.emit(TextReset(reason=failure.brief))
                failed, applied = tried, ()
                # The traceback is removed because it would keep this frame, and with it the turn, alive.
                first = (failure if first is None else combined_failure(first, failure)).with_traceback(None)
                self.conversation, self.spend_guard = other

    async def _fit(self) -> None:
        self._fit_first = False
        if (fitter := self._get_fitter()) is not None:
            await fitter.fit(self.conversation)
            self._weigh()

    async def _apply_remedy(self, remedy: Remedy) -> bool:
        fitter = self._get_fitter()
        return fitter is not None and await fitter.apply_remedy(self.conversation, remedy)

    def _get_fitter(self) -> RequestFitter | None:
        if self._fitter is None and self._make_fitter is not None:
            self._fitter = self._make_fitter()
        return self._fitter


def remedy_for(failure: ModelFailed) -> Remedy | None:
    if failure.reasoning:
        return "thoughts"
    if failure.kind == "context":
        return "context"
    if failure.large:
        return "size"
    return "documents" if failure.documents else None


def combined_failure(first: ModelFailed, then: ModelFailed) -> ModelFailed:
    """Returns a single failure that reports both, with the kind of the first."""
    failure = ModelFailed(
        f"{first.brief} Another model was tried. {then.brief}",
        kind=first.kind,
        retryable=first.retryable or then.retryable,
        retry_after=first.retry_after,
        upstream_status=first.upstream_status,
        endpoint_message=then.endpoint_message,
        partial_answer=then.partial_answer,
    )
    failure.retried = first.retried or then.retried
    return failure


async def metered_call(turn: Turn, conversation: Conversation, call: Call, spend_guard: SpendGuard) -> Message:
    """Returns the model's answer with its usage. The turn's followers receive the text as it arrives."""
    spend_guard.check(turn)
    streamed = 0

    def on_text(text: str) -> None:
        nonlocal streamed
        streamed += _size(text)
        turn.emit(TextDelta(text=text))

    def on_reset(why: str, received_bytes: int) -> None:
        nonlocal streamed
        spend_guard.spend_cut_call(turn, _estimate(conversation, received_bytes))
        if streamed:
            turn.emit(TextReset(reason=why))
        streamed = 0
        spend_guard.check(turn)  # a restarted answer is another call

    try:
        answer = await conversation.ask(call, on_text=on_text, on_reset=on_reset)
    except (asyncio.CancelledError, ModelFailed) as error:
        # An endpoint that fails before producing output does not charge for the call. If we cut the call off, we cannot
        # know.
        received_bytes = streamed if isinstance(error, asyncio.CancelledError) else error.received_bytes
        if isinstance(error, asyncio.CancelledError) or received_bytes:
            spend_guard.spend_cut_call(turn, _estimate(conversation, received_bytes))
        raise
    usage = checked_usage(
        conversation.model, answer.usage, asked=conversation.estimated_bytes, received=answer_bytes(answer)
    )
    if not usage.estimated:
        conversation.set_token_count(usage.input)
    spend_guard.spend(turn, usage)
    return msgspec.structs.replace(answer, usage=usage)


def _estimate(conversation: Conversation, received_bytes: int) -> Usage:
    model = conversation.model
    tokens = model.token_estimate.tokens
    return model.facts.priced(
        Usage(input=tokens(conversation.estimated_bytes), output=tokens(received_bytes), estimated=True)
    )


def answer_bytes(answer: Message) -> int:
    """Returns an answer's size in bytes, including its text, tool arguments and reasoning."""
    called = sum(_size(call.arguments) for call in answer.calls)
    return _size(answer.text) + called + sum(len(bytes(one.item)) for one in answer.carried)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
