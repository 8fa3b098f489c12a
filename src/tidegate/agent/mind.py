"""Who answers in one turn: a conversation with a model, and one with another model when that fails.

Guarantee: a step is asked of each model at most once (with that model's own retries, and once more if what it refused
could be left out), in the order of whoever chooses them; what a failed one had shown is void before another speaks;
when none is left, the failure names all that were asked. The mind belongs to its turn; the conversations are whoever's
builds them.
"""

from collections.abc import Awaitable, Callable, Iterable

from tidegate.agent.asking import Purse, ask
from tidegate.agent.conversation import Conversation
from tidegate.agent.turn import Turn
from tidegate.errors import ModelFailed
from tidegate.models import Model
from tidegate.values import Call, Message, TextReset

FallBack = Callable[[Conversation, tuple[Model, ...], ModelFailed], Awaitable[tuple[Conversation, Purse] | None]]
"""Another conversation, to the same point, with another model than those that failed in this step, the last of them
with the failure, or the same one without what was refused; None when there is no other."""


class Mind:
    __slots__ = ("_fall_back", "conversation", "purse")

    def __init__(self, conversation: Conversation, purse: Purse, fall_back: FallBack | None = None) -> None:
        self.conversation = conversation
        self.purse = purse
        self._fall_back = fall_back

    def append(self, message: Message) -> None:
        self.conversation.append(message)

    def extend(self, messages: Iterable[Message]) -> None:
        self.conversation.extend(messages)

    async def ask(self, turn: Turn, call: Call) -> Message:
        first: ModelFailed | None = None
        failed: tuple[Model, ...] = ()
        while True:
            try:
                return await ask(turn, self.conversation, call, self.purse)
            except ModelFailed as failure:
                tried = (*failed, self.conversation.model)
                other = None if self._fall_back is None else await self._fall_back(self.conversation, tried, failure)
                if other is None:
                    raise failure if first is None else both(first, failure) from failure
                if failure.shown:
                    turn.emit(TextReset(reason=failure.brief))
                if other[0] is self.conversation:
                    continue  # it was mended
                failed = tried
                # Without its trace, which holds this very frame, and with it the turn.
                first = (failure if first is None else both(first, failure)).with_traceback(None)
                self.conversation, self.purse = other


def both(first: ModelFailed, then: ModelFailed) -> ModelFailed:
    """One failure that tells of two; it is of the first one's kind."""
    return ModelFailed(
        f"{first.brief} Another was asked instead. {then.brief}",
        kind=first.kind,
        retryable=first.retryable or then.retryable,
        retry_after=first.retry_after,
        upstream_status=first.upstream_status,
        said=then.said,
        shown=then.shown,
    )
