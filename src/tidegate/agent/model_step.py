"""Who answers in one turn: a conversation with a model, and one with another model when that fails.

Guarantee: a step is asked of each model at most once (with that model's own retries, and again for each thing that it
refused and that could be left out), in the order of whoever chooses them; what a failed one had shown is void before
another speaks; when none is left, the failure names all that were asked. A request that nears its model's window is
made to fit before it is sent. A conversation that was unloaded while the turn waited for a person is loaded
again before its next step. The mind belongs to its turn; the conversations are whoever's builds them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Protocol

from tidegate.agent.conversation import Conversation
from tidegate.agent.metered_call import SpendGuard, metered_call
from tidegate.agent.turn import Turn
from tidegate.errors import ModelFailed
from tidegate.models import Model
from tidegate.values import Call, Message, TextReset

Remedy = Literal["thoughts", "context", "size", "documents"]
"""What can be done about a failure, with the same model: leave out what earlier answers carried; show less of what is
old; tell media in words, or only if there are documents among them."""


TRIES: Mapping[Remedy, int] = MappingProxyType({"thoughts": 1, "context": 1, "size": 2, "documents": 2})
"""How often each is tried in one step: of media, the older ones are left out first."""


class RequestFitter(Protocol):
    """Who sees to it that a conversation can be asked."""

    def is_due(self, conversation: Conversation) -> bool:
        """Whether `fit` has anything to do: asked before every step, so that it costs next to nothing."""
        ...

    async def fit(self, conversation: Conversation) -> None:
        """Makes the conversation fit for its model's window. Raises ModelFailed when it cannot be."""
        ...

    async def mend(self, conversation: Conversation, remedy: Remedy, failure: ModelFailed) -> bool:
        """Whether the conversation is now another than the one that was refused, so that it can be asked once more."""
        ...


class ResidentAccess(Protocol):
    """Where a turn's conversation is held between its steps. It may be unloaded while the turn waits for a person."""

    def holds(self, conversation: Conversation) -> bool:
        """Whether it is still there."""
        ...

    def weigh(self) -> None:
        """It has grown or shrunk."""
        ...

    async def reload(self, conversation: Conversation) -> Conversation:
        """The same from the store, to the same point."""
        ...


FallBack = Callable[[Conversation, tuple[Model, ...], ModelFailed], Awaitable[tuple[Conversation, SpendGuard] | None]]
"""Another conversation, to the same point, with another model than those that failed in this step, the last of them
with the failure; None when there is no other."""


class ModelStep:
    __slots__ = ("_fall_back", "_fitter", "_residency", "conversation", "spend_guard")

    def __init__(
        self,
        conversation: Conversation,
        spend_guard: SpendGuard,
        fall_back: FallBack | None = None,
        fitter: RequestFitter | None = None,
        residency: ResidentAccess | None = None,
    ) -> None:
        self.conversation = conversation
        self.spend_guard = spend_guard
        self._fall_back = fall_back
        self._fitter = fitter
        self._residency = residency

    def append(self, message: Message) -> None:
        self.extend((message,))

    def extend(self, messages: Sequence[Message]) -> None:
        """Adds what was said. It is committed already: a conversation that was unloaded finds it in the store."""
        if messages and (self._residency is None or self._residency.holds(self.conversation)):
            self.conversation.extend(messages)
            self._weigh()

    def _weigh(self) -> None:
        if self._residency is not None:
            self._residency.weigh()

    async def run(self, turn: Turn, call: Call) -> Message:
        first: ModelFailed | None = None
        failed: tuple[Model, ...] = ()
        mended: tuple[Remedy, ...] = ()
        if self._residency is not None and not self._residency.holds(self.conversation):
            self.conversation = await self._residency.reload(self.conversation)
        while True:
            try:
                if self._fitter is not None and self._fitter.is_due(self.conversation):
                    await self._fitter.fit(self.conversation)
                    self._weigh()
                return await metered_call(turn, self.conversation, call, self.spend_guard)
            except ModelFailed as failure:
                if failure.param is not None and first is None:
                    raise  # the caller's mistake: another model would not answer what was asked for
                remedy = remedy_for(failure)
                if remedy is not None and mended.count(remedy) < TRIES[remedy] and await self._mend(remedy, failure):
                    mended += (remedy,)
                    if failure.shown:
                        turn.emit(TextReset(reason=failure.brief))
                    continue
                tried = (*failed, self.conversation.model)
                other = None if self._fall_back is None else await self._fall_back(self.conversation, tried, failure)
                if other is None:
                    raise failure if first is None else combined_failure(first, failure) from failure
                if failure.shown:
                    turn.emit(TextReset(reason=failure.brief))
                failed, mended = tried, ()
                # Without its trace, which holds this very frame, and with it the turn.
                first = (failure if first is None else combined_failure(first, failure)).with_traceback(None)
                self.conversation, self.spend_guard = other

    async def _mend(self, remedy: Remedy, failure: ModelFailed) -> bool:
        return self._fitter is not None and await self._fitter.mend(self.conversation, remedy, failure)


def remedy_for(failure: ModelFailed) -> Remedy | None:
    if failure.thoughts:
        return "thoughts"
    if failure.kind == "context":
        return "context"
    if failure.large:
        return "size"
    return "documents" if failure.documents else None


def combined_failure(first: ModelFailed, then: ModelFailed) -> ModelFailed:
    """One failure that tells of two; it is of the first one's kind."""
    failure = ModelFailed(
        f"{first.brief} Another model was tried. {then.brief}",
        kind=first.kind,
        retryable=first.retryable or then.retryable,
        retry_after=first.retry_after,
        upstream_status=first.upstream_status,
        said=then.said,
        shown=then.shown,
    )
    failure.retried = first.retried or then.retried
    return failure
