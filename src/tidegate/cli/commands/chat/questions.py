"""Agents' questions and approval requests on the terminal.

A question is shown in full and stays open until it is answered, it expires, or its turn is stopped. If it is closed
elsewhere, the prompt disappears within moments. Ambiguous replies are ignored. As everywhere, a slash followed by a
word is a command. Neither the question nor the answer is lost if the gateway is briefly unavailable.
"""

import os
import re
import select
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tidegate.cli.client import GatewayClient, GatewayUnreachable
from tidegate.cli.commands.chat.printer import Printer
from tidegate.cli.output import local_time, strip_controls
from tidegate.errors import TidegateError

_POLL_SECONDS = 1.0  # interval for checking whether the question was answered elsewhere
_LINE_BYTES = 65536
_YES = ("y", "yes", "approve", "approved")
_SCOPES = {"c": "conversation", "conversation": "conversation", "always": "always"}  # nobody stores a rule by one key
_WORDS = {"conversation": "c", "always": "always"}
_FURTHER = {"conversation": "c for this conversation", "always": "always for all"}
_NO = ("n", "no", "deny", "denied")
_COMMAND = re.compile(r"/[^\W\d_]+(\s|$)")


class QuestionPrompt:
    """Asks the user questions at this terminal. `command` sends a slash command to the gateway and prints its reply."""

    def __init__(self, api: GatewayClient, printer: Printer, command: Callable[[str], None]) -> None:
        self._api = api
        self._printer = printer
        self._command = command

    def ask(self, id: str, agent: str = "") -> bool:
        """Asks until the question is closed. Returns True if it was answered here. `agent` is set if the question comes
        from another agent, to which a task was delegated. Raises EOFError if the user leaves."""
        question = self._api.call("GET", self._api.approval(id))
        if question["state"] != "open":
            return False
        who = f"the agent {agent}" if agent else "the agent"
        self._printer.note(f"{who} asks{' for your approval' if question['kind'] == 'approval' else ''}:")
        for line in question_lines(question):
            self._printer.line(f"    {line}")
        for line in scope_lines(question, _WORDS):
            self._printer.line(line)
        while self._is_open(id):
            reply = self._read(id, f"{hint(question)} ? ")
            if reply is None:
                break
            if reply and self._answer(question, reply):
                return True
        return False

    def _answer(self, question: dict[str, Any], line: str) -> bool:
        """Sends the line as an answer or command. Returns True if it was accepted as an answer."""
        try:
            if _COMMAND.match(line):
                self._command(line)
                return False
            answer = answer_of(question, line)
            if answer is None:
                self._printer.line(f"Not understood: {hint(question)}; /stop ends the turn.")
                return False
            self._api.call("POST", self._api.approval(question["id"]), answer)
        except TidegateError as error:
            self._printer.line(error.message)
            return False
        return True

    def _read(self, id: str, prompt: str) -> str | None:
        """Reads a line, or returns None if the question was closed in the meantime. The terminal delivers only complete
        lines, one at a time."""
        self._printer.prompt(prompt)
        stdin = sys.stdin.fileno()
        while not select.select([stdin], [], [], _POLL_SECONDS)[0]:
            if not self._is_open(id):
                self._printer.end_line()
                return None
        data = os.read(stdin, _LINE_BYTES)
        self._printer.end_line(typed=True)
        if not data:
            raise EOFError
        return data.decode(errors="replace").strip()

    def _is_open(self, id: str) -> bool:
        """True if the question is open, or if the gateway cannot be reached."""
        try:
            return bool(self._api.call("GET", self._api.approval(id))["state"] == "open")
        except GatewayUnreachable:
            return True


def question_lines(question: dict[str, Any]) -> list[str]:
    """Returns the complete question as lines of text, with numbered choices."""
    lines = strip_controls(question["summary"]).split("\n")
    return [
        *lines,
        *(f"{number}. {strip_controls(choice)}" for number, choice in enumerate(question.get("choices", ()), 1)),
    ]


def scope_lines(question: dict[str, Any], words: Mapping[str, str]) -> list[str]:
    """Returns a line for each larger scope: the word that approves with it, and what it then allows. The lines must be
    indented less than those of the question, which could otherwise imitate them."""
    scopes = [each for each in question.get("scopes", ()) if each["scope"] in words]
    return [f"{words[each['scope']]}: {strip_controls(each['allows'])}" for each in scopes]


def heading(question: dict[str, Any]) -> str:
    what = "an approval" if question["kind"] == "approval" else "a question"
    until = f", until {local_time(question['expires'])}" if question.get("expires") else ""
    whose = f"{strip_controls(question['person'])}'s conversation {question['conversation']}"
    return f"{question['id']}: {what} in {whose}, asked {local_time(question['asked'])}{until}"


def hint(question: dict[str, Any]) -> str:
    """Returns a list of possible replies for the prompt."""
    if question["kind"] == "approval":
        further = [_FURTHER[each["scope"]] for each in question.get("scopes", ()) if each["scope"] in _FURTHER]
        return ", ".join(["y approves this call" if further else "y approves", *further, "n [REASON] denies"])
    return f"1 to {len(question['choices'])} answers" if question.get("choices") else "type your answer"


def answer_of(question: dict[str, Any], text: str) -> dict[str, str] | None:
    """Returns the request body for an answer, or None if the text is not an answer. The gateway checks choices."""
    text = text.strip()
    if question["kind"] == "question":
        return {"decision": "answered", "text": text} if text else None
    word, _, reason = text.partition(" ")
    if word.lower() in _YES and not reason:
        return {"decision": "approved"}
    scope = _SCOPES.get((reason if word.lower() in _YES else text).strip().lower())
    if scope is not None:
        return {"decision": "approved", "scope": scope}
    if word.lower() in _NO:
        return {"decision": "denied", "text": reason.strip()}
    return None
