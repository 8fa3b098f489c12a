"""The interface between the agent loop and the engine that runs it.

Guarantee: any engine that keeps a journal can run a loop that uses only `Turn`. Each journal row *is* a transcript
message. If the turn already has a message for a step, `step` returns it; otherwise it creates, commits and returns one.
A turn that continues after a crash therefore takes the same path through the same rows. Code between steps must be
deterministic.
"""

from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from tidegate.store import Db
from tidegate.values import Event, Frozen, Message, ToolCall, Usage

P = ParamSpec("P")
T = TypeVar("T")

EXCERPT_CHARACTERS = 400
"""Maximum length of a tool's result or arguments in an event: enough to recognise them, yet cheap to send to every
reader. The full text is in the transcript."""


class Parked(Exception):
    """Raised when the gateway is stopping. The turn pauses between two steps, or in a step that may be repeated, and
    continues in the next process."""


class Effect(Frozen, frozen=True):
    """A step's effect, declared in advance.

    The intent is committed before the step runs. If a crash leaves an intent without a result, a `repeatable` step is
    run again. Any other step is never run twice; its result is then whatever `interrupted` returns. The argument of
    `interrupted` is true if the step was read-only when it began. `refused` is called before the intent is committed
    and may take days; if it returns a message, that message is the result and the step is not run. If a step has a
    `digest` of the exact action, its intent and result are recorded in the audit log, the result together with the
    `hosts` that were contacted.
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
        """The messages with which this turn was started. They are already in the transcript."""
        ...

    @property
    def usage(self) -> Usage:
        """The usage so far of all model calls in this turn's task tree, including calls that were cut off. Turn budgets
        apply to the whole tree."""
        ...

    @property
    def steps(self) -> int:
        """The number of model answers so far."""
        ...

    @property
    def is_resumed(self) -> bool:
        """True if an earlier attempt has recorded steps of this turn."""
        ...

    @property
    def is_stopped(self) -> bool:
        """True if the turn was stopped or has exceeded its time limit. Such a turn does not continue in another
        attempt."""
        ...

    def add_usage(self, usage: Usage) -> None:
        """Counts a model call made outside the turn's steps. The caller records it in the store."""
        ...

    async def step(
        self,
        name: str,
        make: Callable[[], Awaitable[Message]],
        *,
        effect: Effect | None = None,
        ends: Callable[[Message], bool] | None = None,
    ) -> Message:
        """Returns this step's message, either from the journal or newly created. If `ends` returns True for the
        message, an engine may commit it together with the end of the turn."""
        ...

    def conclude(self, answer: Message, calls: tuple[ToolCall, ...]) -> Message:
        """Makes a committed answer the turn's last one. `calls` are that answer's calls that are left to the caller."""
        ...

    async def drain(self, kind: str) -> tuple[Message, ...]:
        """Returns the messages steered into the running turn since the last call, in order, and adds them to the
        transcript."""
        ...

    async def wait(self, ready: Callable[[], Awaitable[T | None]]) -> T:
        """Waits until `ready` returns a value other than None, and returns it. `ready` is called immediately and again
        whenever the turn is signalled. This is how a turn waits for a person; it needs no slot in the meantime."""
        ...

    def cut(self, model: str, usage: Usage) -> None:
        """Records the usage of a model call that was cut off. The call leaves no row, but is charged to the turn."""
        ...

    async def write(self, fn: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `fn(db, …)` in a transaction of the store, if this attempt still holds the turn; raises Superseded
        otherwise. Everything that a turn stores in addition to its steps is written this way."""
        ...

    def emit(self, event: Event) -> None:
        """Sends an event to the turn's followers. The event is not stored."""
        ...
