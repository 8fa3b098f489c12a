"""Follows a turn in the terminal by printing the events of its session.

The answer is printed in full and exactly once, no matter when the client connects. Text is printed as it arrives, and
any missed text is taken from the turn's outcome. Tool output is printed up to a limit. Each of the turn's questions is
shown to the user once.
"""

import json
import sys
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any

from tidegate.cli.client import GatewayClient, GatewayUnreachable
from tidegate.cli.commands.chat.printer import Printer
from tidegate.cli.commands.chat.questions import QuestionPrompt
from tidegate.cli.output import strip_controls

_RECONNECTS = 5  # number of lost connections before giving up
_PAUSE_SECONDS = 0.5  # multiplied by the number of lost connections
_NO_ROWS = 1 << 53  # an event id above that of any row, since committed rows are in the outcome
_PROGRESS_CHARACTERS = 4000  # printed per call, a few screens; the rest is in the result
_ROWS = 100  # rows read for a turn that was over before the stream was open
_EXCERPT_CHARACTERS = 400  # printed of a call or failure, as in the stream
_OVER = ("answered", "failed", "stopped", "refused")


class TurnFollower:
    """Follows one turn of a session.

    The gateway's stream always repeats a running turn from its beginning. This class counts the text, notes and
    progress that it has printed, so that after a reconnect the output continues where it stopped.
    """

    def __init__(
        self, api: GatewayClient, printer: Printer, session: str, turn: str, questions: QuestionPrompt | None = None
    ) -> None:
        self._api = api
        self._printer = printer
        self._turn = turn
        self._questions = questions
        self._path = api.session(session)
        self._shown = ""  # the printed part of the current model answer
        self._printed = [0, 0, 0]  # characters of text, notes, characters of progress
        self._received = [0, 0, 0]  # the same for the current stream
        self._output: dict[str, int] = {}  # characters of progress by running call
        # lint: allow lives as long as the turn; question ids, with True once the user knows the outcome
        self._asked: dict[str, bool] = {}
        self._ours = False
        self._noticed: set[str] = set()  # lint: allow lives as long as the turn

    def follow(self) -> bool:
        """Prints the turn until it has ended. Returns True if the turn was answered, or stopped by a user."""
        return self._finish(self._outcome())

    def _outcome(self) -> dict[str, Any]:
        for again in range(_RECONNECTS + 1):
            # The stream is opened before the turn is read, so the turn's end cannot be missed: it is either in the
            # stream or in the outcome.
            with closing(self._events()) as events:
                try:
                    next(events)
                    outcome: dict[str, Any] = self._api.call("GET", f"/api/turns/{self._turn}")
                    if outcome["state"] in _OVER:
                        return outcome
                    for event in events:
                        if event.get("type") == "turn_ended" and event["outcome"]["turn"] == self._turn:
                            return dict(event["outcome"])
                        self._event(event)
                except GatewayUnreachable:
                    if again == _RECONNECTS:
                        raise
            self._received, self._shown, self._ours = [0, 0, 0], "", False
            self._output.clear()
            time.sleep(again * _PAUSE_SECONDS)
        raise GatewayUnreachable(
            f"The stream of turn {self._turn} was lost {_RECONNECTS} times: use /resume to see its answer."
        )

    def _events(self) -> Generator[dict[str, Any], None, None]:
        """Yields the session's events, starting now. The first item is empty and signals that the stream is open."""
        opened = False
        for line in self._api.lines(f"{self._path}/events", headers={"Last-Event-ID": str(_NO_ROWS)}):
            if not opened:
                opened = True
                yield {}
            if line.startswith(b"data:"):
                yield json.loads(line[5:])

    def _event(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "turn_started":
            self._ours = event["turn"] == self._turn
            if self._ours and event.get("resumed"):
                self._printed, self._shown = [0, 0, 0], ""
                self._printer.note("the turn will continue after the gateway restarts")
        elif kind == "asked":
            self._question(event)  # may belong to a turn that ours is waiting for
        elif kind == "answered":
            if self._asked.get(event["id"]) is False:
                self._asked[event["id"]] = True
                self._printer.note(f"answered elsewhere: {event['state']}")
        elif not self._ours:
            return  # another turn of this conversation that ours is waiting for
        elif kind == "text":
            self._text(event["text"])
        elif kind == "text_reset":
            self._shown = ""
            self._note(f"the answer starts over: {event['reason']}")
        elif kind == "tool_started":
            self._shown = ""
            self._note(f"{event['name']} {event['arguments']}")
        elif kind == "tool_progress":
            self._progress(event["call_id"], event["text"])
        elif kind == "tool_ended":
            self._output.pop(event["call_id"], None)
            if event.get("failed"):
                self._note(_failure(event, event["excerpt"]))
            for words in event.get("media", ()):
                self._note(words)
        elif kind == "notice":
            self._noticed.add(event["text"])
            self._note(event["text"])

    def _text(self, text: str) -> None:
        self._shown += text
        self._received[0] += len(text)
        new = self._received[0] - self._printed[0]
        if new > 0:
            self._printer.text(text[-new:])
            self._printed[0] = self._received[0]

    def _progress(self, call: str, text: str) -> None:
        before = self._output.get(call, 0)
        self._output[call] = before + len(text)
        text = text[: max(0, _PROGRESS_CHARACTERS - before)]
        self._received[2] += len(text)
        new = self._received[2] - self._printed[2]
        if new > 0:
            self._printer.progress(text[-new:])
            self._printed[2] = self._received[2]
        if before <= _PROGRESS_CHARACTERS < self._output[call]:
            self._note("further output from this call is not shown")

    def _question(self, event: dict[str, Any]) -> None:
        """Asks the user once. A question that is repeated after a reconnect, or has already been answered, is
        skipped."""
        if event["id"] in self._asked:
            return
        if self._questions is not None:
            self._asked[event["id"]] = self._questions.ask(event["id"], event.get("agent", ""))
        else:
            self._asked[event["id"]] = False
            self._printer.note(f"the conversation is waiting for an answer: {event['id']}")

    def _note(self, text: str) -> None:
        self._received[1] += 1
        if self._received[1] > self._printed[1]:
            self._printer.note(text)
            self._printed[1] = self._received[1]

    def _print_calls(self) -> None:
        """Prints the tool calls from the transcript. Used if the turn ended before the stream was open."""
        rows = self._api.call("GET", f"{self._path}/messages", query={"limit": _ROWS})["messages"]
        for message in (row["message"] for row in rows if row.get("turn") == self._turn):
            for call in message.get("calls", ()):
                self._note(f"{call['name']} {call['arguments'][:_EXCERPT_CHARACTERS]}")
            if message["role"] == "tool" and message.get("failed"):
                self._note(_failure(message, message["text"][:_EXCERPT_CHARACTERS]))

    def _finish(self, outcome: dict[str, Any]) -> bool:
        text, state = outcome.get("text", ""), outcome["state"]
        if outcome.get("steps", 0) > 1 and not self._printed[1]:
            self._print_calls()
        for notice in outcome.get("notices", ()):
            if notice not in self._noticed:  # the turn was over before the stream was open
                self._printer.note(notice)
        if text.startswith(self._shown):
            self._printer.text(text[len(self._shown) :])
        self._printer.end_line()
        error = outcome.get("error")
        if state == "stopped":
            self._printer.note(error["message"] if error else "stopped")
        elif error:
            print(strip_controls(f"tidegate: {error['message']}"), file=sys.stderr)
        return state in ("answered", "stopped")


def _failure(event: dict[str, Any], text: str) -> str:
    """Describes a failed call in one line. If the call was interrupted, its text already says so."""
    return f"{event['name']}: {text}" if event.get("interrupted") else f"{event['name']} failed: {text}"
