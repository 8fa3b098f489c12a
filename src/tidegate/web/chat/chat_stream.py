"""A turn's events as a streamed chat completion.

A plain client gets only OpenAI's chunks and SSE comments. Text that has been sent to a plain client cannot be
withdrawn, so if an answer restarts after some text was visible, the stream ends with an error event instead. A client
that has requested all events gets every event, including withdrawn text. Each reader has its own object, which contains
only the state of one stream.
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
"""Separates the model's text before its tool calls from the text after them."""


class ChatStream:
    __slots__ = ("_chunks", "_full", "_gap", "_has_text", "_last_has_text", "_opened", "broken", "outcome")

    def __init__(self, chunks: Chunks, *, full: bool) -> None:
        self._chunks = chunks
        self._full = full
        self._opened = False
        self._has_text = False
        """True if text from the current model answer has been sent."""
        self._last_has_text = False
        """True if text from the last committed model answer has been sent."""
        self._gap = False
        self.outcome: Outcome | None = None
        self.broken = ""
        """The reason why this stream must end although its turn continues; otherwise empty."""

    def encode(self, events: list[Event]) -> bytes:
        """Returns the bytes for a batch of events. Consecutive pieces of text become one chunk."""
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
        """Returns the last chunks of an answered turn. If none of the answer's text has been sent before, they include
        it."""
        out = b""
        if outcome.text and not (self._has_text or self._last_has_text):
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
        self._has_text = True
        opening = b"" if self._opened else self._open()
        return opening + self._chunks.text(text)

    def _open(self) -> bytes:
        self._opened = True
        return self._chunks.opening()

    def _other(self, event: Event) -> bytes:
        match event:
            case MessageAdded():
                if event.message.role == "assistant":
                    self._gap = self._gap or self._has_text
                    self._last_has_text, self._has_text = self._has_text, False
                return b""
            case TextReset():
                if self._has_text and not self._full:
                    self.broken = event.reason
                self._has_text = False
                return self._named("text_reset", event) if self._full else b""
            case ToolStarted():
                return self._progress("tool_started", event, f"tool {event.name} started")
            case ToolEnded():
                ended = "interrupted" if event.interrupted else "failed" if event.failed else "ended"
                return self._progress("tool_ended", event, f"tool {event.name} {ended}")
            case ToolProgress():
                return self._named("tool_progress", event) if self._full else b""
            case QuestionAsked():
                awaited = "an approval" if event.kind == "approval" else "an answer"
                return self._progress("asked", event, f"waiting for {awaited}")
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
