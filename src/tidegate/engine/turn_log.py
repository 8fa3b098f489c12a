"""What a running turn tells: an append-only log that any number of readers follow from any point.

Guarantee: a reader that starts at the beginning, however late, gets everything that was said; a slow reader costs a
cursor and never a queue, and delays nobody. Runs of small text pieces are folded together as the log grows (never
across a reader's cursor), so that it holds about as many bytes as the answer, not as many objects as it had pieces.
The log belongs to the turn and dies with it and its last reader.
"""

import asyncio
from collections.abc import AsyncGenerator
from sys import getsizeof

from tidegate.values import (
    Event,
    MessageAdded,
    Notice,
    QuestionAsked,
    TextDelta,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    TurnEnded,
)

FOLD_FROM = 512
"""Events before the first folding: most answers never reach it, and below it folding would save nothing."""

EVENT_BYTES = 64
"""Bytes of a piece of text beside the text: the value and its slot in the list."""

MESSAGE_BYTES = 256
"""Bytes of any other event beside its text: mostly those of a message and its small fields."""


class _Reader:
    __slots__ = ("at", "wake")

    def __init__(self, at: int) -> None:
        self.at = at
        self.wake: asyncio.Future[None] | None = None


class TurnLog:
    __slots__ = ("__weakref__", "_ends", "_fold_at", "_readers", "closed", "events", "session", "turn")

    def __init__(self, turn: str, session: str) -> None:
        self.turn = turn
        self.session = session
        self.events: list[Event] = []
        self.closed = False
        self._readers: list[_Reader] = []
        self._ends: list[asyncio.Future[None]] = []
        self._fold_at = FOLD_FROM

    def append(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, TurnEnded):
            self.close()
            return
        if len(self.events) >= self._fold_at:
            self._fold()
        self._wake()

    def close(self) -> None:
        """Nothing more is said. Without an outcome as its last event, the turn goes on in another process."""
        self.closed = True
        for end in self._ends:
            if not end.done():
                end.set_result(None)
        self._wake()

    async def read(self, start: int = 0) -> AsyncGenerator[list[Event], None]:
        """Batches of what is new since `start` or the last batch; ends when the log is closed and read."""
        reader = _Reader(start)
        self._readers.append(reader)
        try:
            while True:
                batch = self.events[reader.at :]
                if batch:
                    reader.at += len(batch)
                    yield batch
                elif self.closed:
                    return
                else:
                    reader.wake = asyncio.get_running_loop().create_future()
                    await reader.wake
        finally:
            self._readers.remove(reader)

    async def ended(self) -> None:
        """Until the log is closed, without being woken by what it says."""
        while not self.closed:
            end = asyncio.get_running_loop().create_future()
            self._ends.append(end)
            try:
                await end
            finally:
                self._ends.remove(end)

    @property
    def readers(self) -> int:
        """How many follow it or wait for its end now."""
        return len(self._readers) + len(self._ends)

    @property
    def weight(self) -> int:
        """Bytes that it holds, counted when asked for: the turn pays nothing for it."""
        return sum(map(_weigh, self.events))

    def draft(self) -> str:
        """What is shown of the model answer that is being written: its text since the last reset or committed row."""
        pieces: list[str] = []
        for event in reversed(self.events):
            if isinstance(event, TextDelta):
                pieces.append(event.text)
            elif not isinstance(event, Notice):
                break
        return "".join(reversed(pieces))

    def running_calls(self) -> frozenset[str]:
        """The ids of the tool calls that were told to start and not to end."""
        running: set[str] = set()
        for event in self.events:
            if isinstance(event, ToolStarted):
                running.add(event.call_id)
            elif isinstance(event, ToolEnded):
                running.discard(event.call_id)
        return frozenset(running)

    def _wake(self) -> None:
        for reader in self._readers:
            wake, reader.wake = reader.wake, None
            if wake is not None and not wake.done():
                wake.set_result(None)

    def _fold(self) -> None:
        cursors = {reader.at for reader in self._readers}
        folded: list[Event] = []
        pieces: list[str] = []
        moved: dict[int, int] = {}

        def flush() -> None:
            if pieces:
                folded.append(TextDelta(text="".join(pieces)))
                pieces.clear()

        for index, event in enumerate(self.events):
            if index in cursors:
                flush()
                moved[index] = len(folded)
            if isinstance(event, TextDelta):
                pieces.append(event.text)
            else:
                flush()
                folded.append(event)
        flush()
        moved[len(self.events)] = len(folded)
        self.events = folded
        for reader in self._readers:
            reader.at = moved[reader.at]
        self._fold_at = max(FOLD_FROM, 2 * len(folded))


def _weigh(event: Event) -> int:
    if isinstance(event, TextDelta | ToolProgress):
        return EVENT_BYTES + getsizeof(event.text)
    if isinstance(event, QuestionAsked):
        return MESSAGE_BYTES + getsizeof(event.summary)
    if isinstance(event, MessageAdded):
        message = event.message
        return MESSAGE_BYTES + getsizeof(message.text) + sum(getsizeof(call.arguments) for call in message.calls)
    return MESSAGE_BYTES
