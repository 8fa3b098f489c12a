"""`tidegate chat`: a streaming terminal client of the running gateway.

Guarantee: it enters by the same door as every other client and keeps nothing of the conversation but the lines typed
(`chat-history` in the home folder). Ctrl-C stops the running turn, a second one leaves; Ctrl-D leaves; what was
accepted goes on in the gateway in any case. What an agent asks is asked here, and can be answered elsewhere as well.
With a pipe as input each line is a message, only answers are printed, and the gateway is told that nobody is there.
"""

import sys
from pathlib import Path
from typing import Any

import click

from tidegate.cli.client import GatewayClient, GatewayUnanswered
from tidegate.cli.options import home_option
from tidegate.cli.output import at_terminal, plain
from tidegate.cli.terminal.greeting import greeting, last_exchange
from tidegate.cli.terminal.interrupts import InterruptHandler, LeftTurn
from tidegate.cli.terminal.person import TerminalQuestions
from tidegate.cli.terminal.printer import Printer
from tidegate.cli.terminal.turn_follower import TurnFollower
from tidegate.errors import NotFound, TidegateError
from tidegate.gateway import command_hint

_CHANNEL = "terminal"
_NOT_UTF_8 = "This is not UTF-8 text: convert it first."


@click.command("chat")
@home_option
@click.option("--agent", help="Which agent to talk to (default: the conversation's, or the first).")
@click.option("--session", help="Go on with the conversation of this id.")
@click.option("--new", is_flag=True, help="Begin a new conversation (a pipe always does, unless --session is given).")
@click.pass_context
def command(context: click.Context, home: Path, agent: str | None, session: str | None, new: bool) -> None:
    """Talk to an agent of the running gateway.

    Without options the last conversation of this terminal client goes on. Lines that begin with a slash are commands of
    the gateway: /help lists them.
    """
    if session is not None and new:
        raise click.UsageError("Give --session or --new, not both.")
    api = GatewayClient(home)
    if agent is not None:
        _check_agent(api, agent)
    if session is not None:
        _check_session(api, home, session, agent)
    interactive = at_terminal()
    if session is None and interactive and not new:
        session = _last(api, agent)
    chat = _Chat(api, home, agent=agent, session=session, interactive=interactive)
    context.exit(_converse(chat, home) if interactive else _pipe(chat))


def _check_agent(api: GatewayClient, agent: str) -> None:
    known = [view["name"] for view in api.call("GET", "/api/agents")["agents"]]
    if agent not in known:
        from tidegate.config import nearest

        raise NotFound(f"There is no agent {agent[:100]!r}{nearest(agent, known)}")


def _check_session(api: GatewayClient, home: Path, session: str, agent: str | None) -> None:
    """Whether one can talk there: what the first message would be refused for is told before it is written."""
    view = api.call("GET", api.session(session))
    if view.get("ended"):
        raise TidegateError(
            f"The conversation {session} has ended: run {command_hint(home, 'chat --new')} and type /resume {session} "
            "to start a new one with its transcript."
        )
    if agent not in (None, view["agent"]):
        raise TidegateError(f"The conversation {session} is with agent {view['agent']}: leave --agent out.")
    # Refused, in the gateway's own words, where one may look and not speak.
    api.call("POST", "/api/messages", {"text": "/status", "session": session})


def _last(api: GatewayClient, agent: str | None) -> str | None:
    """The most recently used live conversation of this client."""
    for view in api.call("GET", "/api/sessions", query={"limit": 50})["sessions"]:
        if view["channel"] == _CHANNEL and not view.get("ended") and agent in (None, view["agent"]):
            return str(view["id"])
    return None


class _Chat:
    """One conversation at a time, which a command may change."""

    def __init__(
        self, api: GatewayClient, home: Path, *, agent: str | None, session: str | None, interactive: bool
    ) -> None:
        self._api = api
        self._home = home
        self._agent = agent
        self.session = session
        self._attended = interactive  # nobody reads a pipe who could be asked
        self._printer = Printer(interactive=interactive)
        self._person = TerminalQuestions(api, self._printer, self._command) if interactive else None

    def say(self, text: str) -> bool:
        """Send one message and print what comes of it; False if the turn failed."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise TidegateError(_NOT_UTF_8) from None
        with InterruptHandler() as interrupts:
            return self._said(text, interrupts)

    def catch_up(self) -> None:
        """Follow a turn of this conversation that waits for an answer, so that it can be given."""
        if self.session is None or self._person is None:
            return
        waiting = self._api.call("GET", "/api/approvals", query={"session": self.session, "limit": 1})["approvals"]
        # It may be a task's of the turn that runs here, which is the one to follow.
        turn = self._api.call("GET", self._api.session(self.session))["running"] if waiting else None
        if turn is not None:
            with InterruptHandler() as interrupts:
                self._follow(self.session, turn, interrupts)

    def _command(self, line: str) -> None:
        """Say a command in mid-turn; what it says is printed, and what runs is followed already."""
        reply = self._send(line)["reply"]
        self._printer.line(reply["text"])
        self.session = reply.get("session")

    def _send(self, text: str) -> Any:
        body: dict[str, Any] = {"text": text, "attended": self._attended}
        if self.session is not None:
            body["session"] = self.session
        elif self._agent is not None:
            body["agent"] = self._agent
        return self._api.call("POST", "/api/messages", body)

    def _said(self, text: str, interrupts: InterruptHandler) -> bool:
        answer = self._send(text)
        if "reply" in answer:
            return self._replied(answer["reply"], interrupts)
        if answer.get("how") == "queued" and answer.get("ahead"):
            self._printer.note(f"queued behind {answer['ahead']}")
        return self._follow(answer["session"], answer["turn"], interrupts)

    def greet(self) -> None:
        """Say which conversation this is, who answers in it, and where it had got to."""
        self._printer.note(greeting(self._api, self._home, self.session, self._agent))
        for line in last_exchange(self._api, self.session) if self.session else ():
            self._printer.note(line)

    def _replied(self, reply: dict[str, Any], interrupts: InterruptHandler) -> bool:
        if reply.get("text"):
            self._printer.line(reply["text"])
        # Where the person is now; None: the next message begins a new one.
        before, self.session = self.session, reply.get("session")
        if self.session not in (None, before):
            self.greet()
        if reply.get("turn") and self.session:
            return self._follow(self.session, reply["turn"], interrupts)
        if self.session != before:
            self.catch_up()
        return True

    def _follow(self, session: str, turn: str, interrupts: InterruptHandler) -> bool:
        self.session = session
        interrupts.stops(self._stop)
        return TurnFollower(self._api, self._printer, session, turn, self._person).follow()

    def _stop(self) -> None:
        try:
            stopped = self._api.call("POST", f"{self._api.session(self.session or '')}/stop")["stopped"]
        except TidegateError as error:
            self._printer.note(error.message)
        else:
            if stopped is None:
                self._printer.note("nothing runs yet that could be stopped; Ctrl-C again leaves")


def _pipe(chat: _Chat) -> int:
    """Each line is a message. One that is refused or fails is told, and does not keep the next ones."""
    code = 0
    for number, raw in enumerate(sys.stdin.buffer if sys.stdin is not None else (), 1):
        try:
            if (line := raw.decode().strip()) and not chat.say(line):
                code = 1
        except GatewayUnanswered:
            raise  # nor would the next line be
        except (TidegateError, UnicodeDecodeError) as error:
            why = error.message if isinstance(error, TidegateError) else _NOT_UTF_8
            print(plain(f"tidegate: line {number}: {why}"), file=sys.stderr)
            code = 1
    return code


def _converse(chat: _Chat, home: Path) -> int:
    from tidegate.cli.terminal.line_input import line_reader

    chat.greet()
    print("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.")
    read = line_reader(home / "chat-history")
    fresh = True
    while True:
        try:
            if fresh:
                fresh = False
                chat.catch_up()
            if line := read("> ").strip():
                chat.say(line)
        except EOFError:
            return 0
        except LeftTurn:
            raise
        except KeyboardInterrupt:
            print("(Ctrl-D leaves)")
        except TidegateError as error:  # a refusal ends the message, not the conversation
            print(plain(f"tidegate: {error.message}"), file=sys.stderr)
