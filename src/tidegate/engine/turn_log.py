"""The event log of a running turn: append-only, with any number of readers at any position.

Guarantee: a reader that starts at the beginning, however late, gets every event. A slow reader costs only a cursor, not
a queue, and delays neither the turn nor other readers. Small pieces of text are joined as the log grows (never across a
reader's cursor), so the log's size depends on the length of the answer and not on the number of pieces. The log belongs
to the turn and is freed together with the turn and its last reader.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from sys import getsizeof

import msgspec

from tidegate.agent import EXCERPT_CHARACTERS
from tidegate.values import (
    Event,
    Message,
    MessageAdded,
    Notice,
    QuestionAsked,
    TextDelta,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)

FOLD_FROM = 512
"""The number of events from which on pieces of text are joined. Most answers never reach this number, and joining
pieces earlier would save nothing."""

EVENT_BYTES = 64
"""Overhead of a text event, in bytes: the value and its slot in the list."""

MESSAGE_BYTES = 256
"""Overhead of any other event, in bytes: mostly a message and its small fields."""


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
            self.fold()
        self._wake()

    def close(self) -> None:
        """Closes the log. If its last event is not an outcome, the turn continues in another process."""
        self.closed = True
        for end in self._ends:
            if not end.done():
                end.set_result(None)
        self._wake()

    @staticmethod
    def row_event(seq: int, message: Message) -> MessageAdded:
        """Returns the event for a committed row, as sent to user interfaces: without a tool result's payload and
        without the bytes of media."""
        if message.role == "tool" and len(message.text) > EXCERPT_CHARACTERS:
            message = msgspec.structs.replace(message, text=message.text[:EXCERPT_CHARACTERS])
        return MessageAdded(seq=seq, message=message.without_bytes() if message.media else message)

    @property
    def resumed(self) -> bool:
        """True if the log begins after the rows of an earlier attempt."""
        first = self.events[0] if self.events else None
        return isinstance(first, TurnStarted) and first.resumed

    async def begun(self) -> None:
        """Waits until the log has its first event or is closed."""
        if not self.events and not self.closed:
            async with aclosing(self.read()) as batches:
                await anext(batches, None)

    async def read(self, start: int = 0) -> AsyncGenerator[list[Event], None]:
        """Yields batches of the events since `start` or since the last batch. Ends when the log is closed and fully
        read."""
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
        """Waits until the log is closed, without waking up for each event."""
        while not self.closed:
            end = asyncio.get_running_loop().create_future()
            self._ends.append(end)
            try:
                await end
            finally:
                self._ends.remove(end)

    @property
    def readers(self) -> int:
        """The number of readers that follow the log or wait until it is closed."""
        return len(self._readers) + len(self._ends)

    @property
    def weight(self) -> int:
        """Memory used by the log, in bytes. The value is computed on request, so it costs the turn nothing."""
        return sum(map(_weigh, self.events))

    def draft(self) -> str:
        """Returns the part of the current model answer that has been shown since the last reset or committed row."""
        pieces: list[str] = []
        for event in reversed(self.events):
            if isinstance(event, TextDelta):
                pieces.append(event.text)
            elif not isinstance(event, Notice):
                break
        return "".join(reversed(pieces))

    def running_calls(self) -> frozenset[str]:
        """Returns the ids of the tool calls that have a start event but no end event."""
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

    def fold(self) -> None:
        """Joins neighbouring pieces of text, except where a reader's cursor is between them."""
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
