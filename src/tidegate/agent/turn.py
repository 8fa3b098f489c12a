"""What the loop needs of whoever runs it: the seam between the agent and an engine.

Guarantee: a loop written against `Turn` alone can be run by any engine that keeps a journal. A journal row *is* a
transcript message: `step` gives the recorded message if this turn has one of that name, and otherwise makes, commits
and gives it, so that a turn that goes on after a crash walks the same path over the same rows. Code between steps must
therefore be deterministic.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from tidegate.values import Event, Frozen, Message, ToolCall, Usage

T = TypeVar("T")

EXCERPT_CHARACTERS = 400
"""How much of a tool's result or arguments an event tells: enough to recognise it, small enough for every reader. The
whole is in the transcript."""


class Parked(Exception):
    """The gateway is stopping: the turn rests here, between two steps or in one that may be made again, and goes on in
    the next process."""


class Effect(Frozen, frozen=True):
    """What a step does to the world, declared before it is done.

    The intent is committed before the step runs. If a crash leaves an intent without a result, a `repeatable` step is
    run again; any other is never run twice, and its result is what `interrupted` gives, which is told whether the step
    was read-only when it began. `refused` is asked before the intent is committed, and may take days: what it gives is
    the result, and the step is not run. A step with a `digest`, of the exact action, is recorded in the audit log: with
    its intent, and with its result, then with the `hosts` that it has contacted.
    """

    tool: str
    read_only: bool
    repeatable: bool
    digest: bytes | None
    hosts: list[str]
    interrupted: Callable[[bool], Message]
    refused: Callable[[], Awaitable[Message | None]]


class Turn(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def session(self) -> str: ...

    @property
    def incoming(self) -> tuple[Message, ...]:
        """The messages that this turn was begun with, already in the transcript."""
        ...

    @property
    def usage(self) -> Usage:
        """What model calls have cost so far, those that broke off included: its own, and all others of the tree of
        tasks that it gave or is one of. Budgets of a turn are for all of it."""
        ...

    async def step(
        self,
        name: str,
        make: Callable[[], Awaitable[Message]],
        *,
        effect: Effect | None = None,
        ends: Callable[[Message], bool] | None = None,
    ) -> Message:
        """The message of this step, recorded or made now. When `ends` says that it ends the turn, an engine may
        commit it together with the turn's end."""
        ...

    def conclude(self, answer: Message, calls: tuple[ToolCall, ...]) -> Message:
        """Makes a committed answer the turn's last one; of its calls, these are left to the caller."""
        ...

    async def drain(self, kind: str) -> tuple[Message, ...]:
        """What was said into the running turn since the last drain, in order, now part of the transcript."""
        ...

    async def wait(self, ready: Callable[[], Awaitable[T | None]]) -> T:
        """What `ready` gives, once it gives something: it is asked at once, and again whenever the turn is signalled.
        This is how a turn waits for a person; an engine need not keep a place for it meanwhile."""
        ...

    def cut(self, model: str, usage: Usage) -> None:
        """A model call broke off. It leaves no row, but what it cost belongs to the turn."""
        ...

    def emit(self, event: Event) -> None:
        """Tell whoever follows this turn; nothing is stored."""
        ...
