"""What whoever follows a turn is told of a task that it has given.

Guarantee: the text and the tool calls of the agent that works on it are told as progress of the call that gave it, in
the bounded form that progress has; its notices under its name; its questions as they are, to be answered as any other,
and each is told to be closed when nobody waits for it any more. Nothing is held but the ids of open questions.
"""

import msgspec

from tidegate.engine import EmbeddedEngine
from tidegate.tools import ToolContext
from tidegate.turns.channels import DELEGATE
from tidegate.values import (
    Event,
    Notice,
    QuestionAnswered,
    QuestionAsked,
    TextDelta,
    TextReset,
    ToolEnded,
    ToolProgress,
    ToolStarted,
)

LINE_CHARACTERS = 200
"""Of a call or a failure: what somebody who watches two agents at once takes in."""


class TaskProgress:
    def __init__(self, engine: EmbeddedEngine, ctx: ToolContext, agent: str) -> None:
        self._engine = engine
        self._ctx = ctx
        self._agent = agent
        self._asked: dict[str, None] = {}  # lint: allow the task's open questions; emptied as they are answered
        self._fresh = True

    def tell(self, event: Event) -> None:
        match event:
            case TextDelta():
                self._say(event.text)
            case TextReset():
                self._note(f"begins its answer again: {event.reason}")
            case ToolStarted():
                self._note(f"{event.name} {event.arguments}")
            case ToolProgress() if event.name == DELEGATE:
                self._say(event.text)  # what a task of the task's says; the output of other tools is its result
            case ToolEnded() if event.interrupted:
                self._note(f"{event.name}: {event.excerpt}")
            case ToolEnded() if event.failed:
                self._note(f"{event.name} failed: {event.excerpt}")
            case Notice():
                self._engine.tell(self._ctx.turn, Notice(text=f"{self._agent}: {event.text}"))
            case QuestionAsked():
                self._asked[event.id] = None
                asked = msgspec.structs.replace(event, agent=event.agent or self._agent)
                self._engine.tell(self._ctx.turn, asked)
            case QuestionAnswered():
                self._asked.pop(event.id, None)
                self._engine.tell(self._ctx.turn, event)
            case _:
                """Its rows and its end are told by the result."""

    def begin(self) -> None:
        self._note("works on the task")

    def end(self) -> None:
        """Nobody waits for what it has asked, unless it goes on in the next process and asks again."""
        if not self._engine.is_stopping:
            for id in self._asked:
                self._engine.tell(self._ctx.turn, QuestionAnswered(id=id, state="cancelled"))
        self._asked.clear()

    def _say(self, text: str) -> None:
        if text:
            self._ctx.progress(text)
            self._fresh = text.endswith("\n")

    def _note(self, text: str) -> None:
        line = " ".join(text.split())
        line = line if len(line) <= LINE_CHARACTERS else line[: LINE_CHARACTERS - 1] + "…"
        self._say(f"{'' if self._fresh else chr(10)}[{self._agent}] {line}\n")
