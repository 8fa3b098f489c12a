"""Following a turn in the terminal: from the session's event stream to printed text.

Guarantee: the answer of a turn is printed once and whole, whenever the client came to it: text as it streams; the
rest, or all of it, from the outcome if the stream came too late or broke. What a tool puts out is printed up to a
bound. What the conversation waits for a person to answer is put to the one who is here, once.
"""

import json
import sys
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any

from tidegate.cli.client import GatewayClient, GatewayUnanswered
from tidegate.cli.output import plain
from tidegate.cli.terminal.person import TerminalQuestions
from tidegate.cli.terminal.printer import Printer

_RECONNECTS = 5  # broken streams before giving up
_PAUSE_SECONDS = 0.5  # longer after each of them
_NO_ROWS = 1 << 53  # an event id that no row has: committed rows are told by the outcome
_PROGRESS_CHARACTERS = 4000  # printed of what one call puts out: some screens of it; the rest is in its result
_ROWS = 100  # of a turn that was over before it was seen, the newest
_EXCERPT_CHARACTERS = 400  # of a call or a failure, as the stream tells them
_OVER = ("answered", "failed", "stopped", "refused")


class TurnFollower:
    """Follows one turn of one session.

    The gateway's stream tells a running turn from its beginning to whoever opens it. So what was printed is counted,
    text, notes and progress, and a stream that is opened again after a break goes on where the last one stopped.
    """

    def __init__(
        self, api: GatewayClient, printer: Printer, session: str, turn: str, person: TerminalQuestions | None = None
    ) -> None:
        self._api = api
        self._printer = printer
        self._turn = turn
        self._person = person
        self._path = api.session(session)
        self._shown = ""  # of the model answer that is being streamed
        self._printed = [0, 0, 0]  # characters of text, notes, characters of progress that are on the screen
        self._told = [0, 0, 0]  # the same, of the stream that is being read
        self._put_out: dict[str, int] = {}  # characters of progress, by the calls that run
        # lint: allow it ends with the turn; what was asked, and whether the person knows what became of it
        self._asked: dict[str, bool] = {}
        self._ours = False
        self._noticed: set[str] = set()  # lint: allow it ends with the turn

    def follow(self) -> bool:
        """Print the turn until it has ended; True if it was answered (or stopped by a person)."""
        return self._ended(self._outcome())

    def _outcome(self) -> dict[str, Any]:
        for again in range(_RECONNECTS + 1):
            # The stream is opened first and the turn asked for second: a turn that is still live then will be seen to
            # end on the stream, and one that is over is told by its outcome.
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
                except GatewayUnanswered:
                    if again == _RECONNECTS:
                        raise
            self._told, self._shown, self._ours = [0, 0, 0], "", False
            self._put_out.clear()
            time.sleep(again * _PAUSE_SECONDS)
        raise GatewayUnanswered(
            f"The stream of the turn {self._turn} broke {_RECONNECTS} times: its answer will be in /resume."
        )

    def _events(self) -> Generator[dict[str, Any], None, None]:
        """The session's events from now on; the first item, empty, says that the stream is open."""
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
                self._printer.note("the turn goes on after a restart of the gateway")
        elif kind == "asked":
            self._question(event)  # also of a turn that ours waits for
        elif kind == "answered":
            if self._asked.get(event["id"]) is False:
                self._asked[event["id"]] = True
                self._printer.note(f"answered elsewhere: {event['state']}")
        elif not self._ours:
            return  # another turn of this conversation, which ours waits for
        elif kind == "text":
            self._text(event["text"])
        elif kind == "text_reset":
            self._shown = ""
            self._note(f"the answer begins again: {event['reason']}")
        elif kind == "tool_started":
            self._shown = ""
            self._note(f"{event['name']} {event['arguments']}")
        elif kind == "tool_progress":
            self._progress(event["call_id"], event["text"])
        elif kind == "tool_ended":
            self._put_out.pop(event["call_id"], None)
            if event.get("failed"):
                self._note(_failure(event, event["excerpt"]))
            for words in event.get("media", ()):
                self._note(words)
        elif kind == "notice":
            self._noticed.add(event["text"])
            self._note(event["text"])

    def _text(self, text: str) -> None:
        self._shown += text
        self._told[0] += len(text)
        new = self._told[0] - self._printed[0]
        if new > 0:
            self._printer.text(text[-new:])
            self._printed[0] = self._told[0]

    def _progress(self, call: str, text: str) -> None:
        before = self._put_out.get(call, 0)
        self._put_out[call] = before + len(text)
        text = text[: max(0, _PROGRESS_CHARACTERS - before)]
        self._told[2] += len(text)
        new = self._told[2] - self._printed[2]
        if new > 0:
            self._printer.progress(text[-new:])
            self._printed[2] = self._told[2]
        if before <= _PROGRESS_CHARACTERS < self._put_out[call]:
            self._note("more of its output is not shown here")

    def _question(self, event: dict[str, Any]) -> None:
        """Put to the person once; what is told again after a break, or was answered before, is not."""
        if event["id"] in self._asked:
            return
        if self._person is not None:
            self._asked[event["id"]] = self._person.ask(event["id"], event.get("agent", ""))
        else:
            self._asked[event["id"]] = False
            self._printer.note(f"the conversation waits for an answer: {event['id']}")

    def _note(self, text: str) -> None:
        self._told[1] += 1
        if self._told[1] > self._printed[1]:
            self._printer.note(text)
            self._printed[1] = self._told[1]

    def _tell_calls(self) -> None:
        """What the turn's tools were called with, from its rows: it was over before the stream was open."""
        rows = self._api.call("GET", f"{self._path}/messages", query={"limit": _ROWS})["messages"]
        for message in (row["message"] for row in rows if row.get("turn") == self._turn):
            for call in message.get("calls", ()):
                self._note(f"{call['name']} {call['arguments'][:_EXCERPT_CHARACTERS]}")
            if message["role"] == "tool" and message.get("failed"):
                self._note(_failure(message, message["text"][:_EXCERPT_CHARACTERS]))

    def _ended(self, outcome: dict[str, Any]) -> bool:
        text, state = outcome.get("text", ""), outcome["state"]
        if outcome.get("steps", 0) > 1 and not self._printed[1]:
            self._tell_calls()
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
            print(plain(f"tidegate: {error['message']}"), file=sys.stderr)
        return state in ("answered", "stopped")


def _failure(told: dict[str, Any], text: str) -> str:
    """One line about a call that failed; the text of an interrupted one says itself what happened."""
    return f"{told['name']}: {text}" if told.get("interrupted") else f"{told['name']} failed: {text}"
