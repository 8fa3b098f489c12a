"""What a turn's events become in a streamed chat answer.

Guarantee: a plain client sees only OpenAI's chunks and comments; the text it has been shown is never taken back, so
that an answer which begins anew after visible text ends with an error event instead; a client that asked for all
events is told of everything, text that is void too. One object per reader, with no more state than where it is.
"""

import msgspec

from tidegate.values import (
    Event,
    MessageAdded,
    Notice,
    Outcome,
    QuestionAnswered,
    QuestionAsked,
    TextDelta,
    TextReset,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from tidegate.web.app import sse
from tidegate.web.chat.response import Chunks

_STEP_GAP = "\n\n"
"""Between what the model said before its tools ran and what it says after."""


class ChatStream:
    __slots__ = ("_chunks", "_full", "_gap", "_last_said", "_opened", "_said", "broken", "outcome")

    def __init__(self, chunks: Chunks, *, full: bool) -> None:
        self._chunks = chunks
        self._full = full
        self._opened = False
        self._said = False
        """Whether text of the answer that is being written was shown."""
        self._last_said = False
        """Whether text of the last committed answer was shown."""
        self._gap = False
        self.outcome: Outcome | None = None
        self.broken = ""
        """Why this stream cannot go on although its turn does."""

    def of(self, events: list[Event]) -> bytes:
        """The bytes for a batch; pieces of text that arrived together leave together."""
        out: list[bytes] = []
        pieces: list[str] = []
        for event in events:
            if type(event) is TextDelta:
                pieces.append(event.text)
                continue
            if pieces:
                out.append(self._text("".join(pieces)))
                pieces.clear()
            out.append(self._other(event))
            if self.broken:
                break
        if pieces:
            out.append(self._text("".join(pieces)))
        return b"".join(out)

    def ending(self, outcome: Outcome) -> bytes:
        """The last chunks of an answered turn, with whatever of its text was not yet shown."""
        out = b""
        if outcome.text and not (self._said or self._last_said):
            out = self._text(outcome.text)
        elif not self._opened:
            out = self._open()
        if outcome.calls:
            out += self._chunks.calls(outcome.calls)
        return out + self._chunks.ending(outcome)

    def _text(self, text: str) -> bytes:
        if self._gap:
            text = _STEP_GAP + text
            self._gap = False
        self._said = True
        opening = b"" if self._opened else self._open()
        return opening + self._chunks.text(text)

    def _open(self) -> bytes:
        self._opened = True
        return self._chunks.opening()

    def _other(self, event: Event) -> bytes:
        match event:
            case MessageAdded():
                if event.message.role == "assistant":
                    self._gap = self._gap or self._said
                    self._last_said, self._said = self._said, False
                return b""
            case TextReset():
                if self._said and not self._full:
                    self.broken = event.reason
                self._said = False
                return self._named("text_reset", event) if self._full else b""
            case ToolStarted():
                return self._progress("tool_started", event, f"tool {event.name} started")
            case ToolEnded():
                ended = "interrupted" if event.interrupted else "failed" if event.failed else "ended"
                return self._progress("tool_ended", event, f"tool {event.name} {ended}")
            case ToolProgress():
                return self._named("tool_progress", event) if self._full else b""
            case QuestionAsked():
                waits = "an approval" if event.kind == "approval" else "an answer"
                return self._progress("asked", event, f"waiting for {waits}")
            case QuestionAnswered():
                return self._progress("answered", event, f"the question was {event.state}")
            case Notice():
                return self._progress("notice", event, event.text)
            case TurnStarted():
                return self._named("turn_started", event) if self._full else b""
            case TurnEnded():
                self.outcome = event.outcome
                return self._named("turn_ended", event) if self._full else b""
        return b""

    def _progress(self, name: str, event: Event, text: str) -> bytes:
        return self._named(name, event) if self._full else sse.comment(text)

    def _named(self, name: str, event: Event) -> bytes:
        return sse.event(name, msgspec.json.encode(event))
