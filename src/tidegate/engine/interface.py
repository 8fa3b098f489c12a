"""The interface between engines and the packages above them.

Guarantee: an engine runs each accepted turn once. A session's turns run one at a time, in the order in which they were
accepted. The store knows which turns are queued, running or to be stopped; a turn's rows are committed before the
engine is told about it. `submit` and `wake` are therefore only hints, which may be repeated or lost, and `can_start`
may always be false. `EmbeddedEngine` implements this interface within one process; another engine could run turns in
several (docs/decisions/0041-an-engine-gets-hints.md).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from tidegate.agent import Turn
from tidegate.engine.turn_log import TurnLog
from tidegate.lifetimes import Present
from tidegate.status_report import EngineStats
from tidegate.store import Db, IntentRow, MessageRow, ParentTurn, SessionRow, SettingRow, TurnRow
from tidegate.values import Call, Event, Frozen, Message, OnDisconnect, Outcome

PARENT_ENDED = "because the turn that delegated this task has ended"


class NewTurn(Frozen, frozen=True):
    """A turn to be accepted, with its messages. If it is a task, `within` is the turn that delegates it."""

    id: str
    channel: str
    call: Call
    on_disconnect: OnDisconnect
    messages: Sequence[Message]
    job: str = ""
    within: ParentTurn | None = None


class TakenTurn(Frozen, frozen=True):
    """A turn as its handler receives it, with the rows that it had when it was taken."""

    turn: TurnRow
    session: SessionRow
    settings: tuple[SettingRow, ...]
    tools_changed: bool = False
    """True if the frozen prefix was replaced because the caller's tools have changed."""
    interruptions: int = 0
    """The number of earlier attempts that were interrupted while working. Orderly stops do not count, nor does an exit
    of the process while the turn was waiting for a person or a task."""


class StartedTurn(Frozen, frozen=True):
    """A turn that is ready to run: its incoming messages with their sequence numbers, and the rows of an earlier
    attempt."""

    taken: TakenTurn
    incoming: tuple[tuple[int, Message], ...]
    recorded: tuple[MessageRow, ...] = ()
    intents: dict[str, IntentRow] = msgspec.field(default_factory=dict)
    """The intents of steps that were started in an earlier attempt and left no row."""


class Handler(Protocol):
    """The work of a turn. An engine calls the handler for each attempt to run a turn."""

    async def __call__(self, turn: Turn, taken: TakenTurn, /) -> None: ...

    def turn_ended(self, record: Present, outcome: Outcome, version: int) -> None:
        """Called when a turn has ended, before its record is released. `version` is the session's current version in
        the store."""
        ...


class Engine(Protocol):
    def accept(self, db: Db, session: SessionRow, turn: NewTurn, now: float, *, start: bool) -> StartedTurn | None:
        """Stores an accepted turn, in the caller's transaction. If `start` is true, the session has no open turn and
        `can_start` was true, so the engine may start the turn in the same transaction; it then returns the started
        turn, which the caller passes to `submit`."""
        ...

    def submit(self, session: str, turn: str, *, within: str | None = None, started: StartedTurn | None = None) -> None:
        """Receives an accepted turn once it has been committed. Called again if nobody seems to be running the turn.
        Idempotent: nothing happens if the engine already has the turn or if the turn has ended. `within` is the turn
        that delegated it; a task ends no later than that turn."""
        ...

    def wake(self, turn: str) -> None:
        """Tells the engine that there is news for this turn in the store: a steering message, an answer to a question,
        or a request to stop. If this call is lost, the turn finds the news at its next commit."""
        ...

    async def stop(self, turn: str, by: str, *, abandoned: bool = False) -> bool:
        """Stops a turn, wherever it is running. A queued turn has ended when this call returns; a running one ends soon
        and keeps the text that it has shown. The request is stored, so it survives a crash. `by` is the reason, phrased
        as the end of a sentence. Returns False if the turn is not open."""
        ...

    async def stop_session(self, session: str, by: str, within: float) -> bool:
        """Stops all turns of a session, and waits up to `within` seconds until they have ended. Returns True if they
        have."""
        ...

    def follow(self, turn: str) -> TurnLog | None:
        """Returns the event log of a waiting or running turn, or None if there is nothing to follow. If the log is
        closed and its last event is not an outcome, another attempt is running the turn: follow it again, or ask for
        its result."""
        ...

    def follow_session(self, session: str) -> TurnLog | None:
        """Returns the log of the session's running turn, as far as this process knows."""
        ...

    async def result(self, turn: str) -> Outcome:
        """Waits until the turn has ended, wherever it is running, and returns its outcome. Raises NotFound if there is
        no such turn, and Stopping if this process stops first."""
        ...

    def tell(self, turn: str, event: Event) -> None:
        """Sends an event that did not originate in this turn to the turn's followers."""
        ...

    def delegating(self, turn: str) -> AbstractContextManager[None]:
        """Counts one of the turn's tool calls as waiting for a task that it delegated, for the duration of the block.
        The engine need not reserve a slot for the turn during that time. Raises Parked if the process is stopping and
        no longer starts tasks."""
        ...

    def can_start(self, within: str = "") -> bool:
        """True if a turn that is accepted now could start immediately, as a task of the turn `within` if one is given.
        False is always a correct answer."""
        ...

    async def drain(self, within: float) -> None:
        """Stops starting turns. Running turns get this many seconds to finish; those that do not finish are left to
        another attempt after their current step."""
        ...

    def stats(self) -> EngineStats:
        """Statistics about this process's turns."""
        ...
