"""A person at the terminal, who is asked what an agent wants to know.

Guarantee: a question is shown whole and asked until it is closed, here or elsewhere: what another client answers, a
stop and an expiry end the asking within moments. Words that are no clear answer are none, a slash and a word is a
command as everywhere, and a gateway that is away for a moment costs neither the question nor the answer.
"""

import os
import re
import select
import sys
from collections.abc import Callable
from typing import Any

from tidegate.cli.client import GatewayClient, GatewayUnanswered
from tidegate.cli.terminal.printer import Printer
from tidegate.cli.terminal.question_text import answer_of, described, hint
from tidegate.errors import TidegateError

_LOOK_SECONDS = 1.0  # between two looks whether the question was answered elsewhere
_LINE_BYTES = 65536
_COMMAND = re.compile(r"/[^\W\d_]+(\s|$)")


class TerminalQuestions:
    """Asks on this terminal. `command` says a line with a slash to the gateway and prints the reply."""

    def __init__(self, api: GatewayClient, printer: Printer, command: Callable[[str], None]) -> None:
        self._api = api
        self._printer = printer
        self._command = command

    def ask(self, id: str, agent: str = "") -> bool:
        """Ask until it is closed; whether it was answered here. `agent` is named where it works on a task of the one
        that the person talks with. EOFError when the person leaves."""
        question = self._api.call("GET", self._api.approval(id))
        if question["state"] != "open":
            return False
        who = f"the agent {agent}" if agent else "the agent"
        self._printer.note(f"{who} asks{' for your approval' if question['kind'] == 'approval' else ''}:")
        for line in described(question):
            self._printer.line(f"    {line}")
        while self._is_open(id):
            said = self._read(id, f"{hint(question)} ? ")
            if said is None:
                break
            if said and self._say(question, said):
                return True
        return False

    def _say(self, question: dict[str, Any], line: str) -> bool:
        """Whether this was the answer."""
        try:
            if _COMMAND.match(line):
                self._command(line)
                return False
            said = answer_of(question, line)
            if said is None:
                self._printer.line(f"That is no answer: {hint(question)}; /stop ends the turn.")
                return False
            self._api.call("POST", self._api.approval(question["id"]), said)
        except TidegateError as error:
            self._printer.line(error.message)
            return False
        return True

    def _read(self, id: str, prompt: str) -> str | None:
        """A line; None when the question was closed meanwhile. The terminal gives whole lines, one at a time."""
        self._printer.prompt(prompt)
        stdin = sys.stdin.fileno()
        while not select.select([stdin], [], [], _LOOK_SECONDS)[0]:
            if not self._is_open(id):
                self._printer.end_line()
                return None
        data = os.read(stdin, _LINE_BYTES)
        self._printer.end_line(typed=True)
        if not data:
            raise EOFError
        return data.decode(errors="replace").strip()

    def _is_open(self, id: str) -> bool:
        """As far as one knows, while the gateway is away."""
        try:
            return bool(self._api.call("GET", self._api.approval(id))["state"] == "open")
        except GatewayUnanswered:
            return True
