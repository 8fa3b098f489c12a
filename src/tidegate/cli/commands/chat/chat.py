"""`tidegate chat`: a streaming terminal client of the running gateway.

It uses the same API as every other client. The only part of a conversation that it stores is what the user typed
(`chat-history` in the home folder). Ctrl-C stops the running turn; a second Ctrl-C, or Ctrl-D, exits. In either case,
the gateway still processes the messages that it has accepted. Agents' questions are shown here, but can also be
answered elsewhere. If the input is a pipe, each line is sent as an unattended message, and only the answers are
printed.
"""

import sys
from pathlib import Path
from typing import Any

import click

from tidegate.cli.client import GatewayClient, GatewayUnreachable
from tidegate.cli.commands.chat.greeting import greeting, last_exchange
from tidegate.cli.commands.chat.interrupts import InterruptHandler, LeaveRequested
from tidegate.cli.commands.chat.printer import Printer
from tidegate.cli.commands.chat.questions import QuestionPrompt
from tidegate.cli.commands.chat.turn_follower import TurnFollower
from tidegate.cli.options import home_option
from tidegate.cli.output import at_terminal, strip_controls
from tidegate.errors import NotFound, TidegateError
from tidegate.gateway import command_hint

_CHANNEL = "terminal"
_NOT_UTF_8 = "This is not UTF-8 text: convert it first."


@click.command("chat")
@home_option
@click.option("--agent", help="The agent to talk to (default: the conversation's agent, or the first one).")
@click.option("--session", help="Continue the conversation with this id.")
@click.option("--new", is_flag=True, help="Start a new conversation (the default for a pipe without --session).")
@click.pass_context
def command(context: click.Context, home: Path, agent: str | None, session: str | None, new: bool) -> None:
    """Talk to one of the running gateway's agents.

    Without options, your last terminal conversation continues. Lines that start with a slash are commands; /help lists
    them.
    """
    if session is not None and new:
        raise click.UsageError("Use either --session or --new, not both.")
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
    """Checks that the conversation accepts messages, before the user types the first one."""
    view = api.call("GET", api.session(session))
    if view.get("ended"):
        raise TidegateError(
            f"The conversation {session} has ended: to continue it in a new one, run "
            f"{command_hint(home, 'chat --new')} and type /resume {session}."
        )
    if agent not in (None, view["agent"]):
        raise TidegateError(f"The conversation {session} is with agent {view['agent']}: omit --agent.")
    # The gateway refuses a command in a conversation that the user may only read.
    api.call("POST", "/api/messages", {"text": "/status", "session": session})


def _last(api: GatewayClient, agent: str | None) -> str | None:
    """Finds the most recently used live conversation that was started in a terminal."""
    for view in api.call("GET", "/api/sessions", query={"limit": 50})["sessions"]:
        if view["channel"] == _CHANNEL and not view.get("ended") and agent in (None, view["agent"]):
            return str(view["id"])
    return None


class _Chat:
    """The current conversation. A command can switch to another one."""

    def __init__(
        self, api: GatewayClient, home: Path, *, agent: str | None, session: str | None, interactive: bool
    ) -> None:
        self._api = api
        self._home = home
        self._agent = agent
        self.session = session
        self._attended = interactive  # if the input is a pipe, there is nobody to ask
        self._printer = Printer(interactive=interactive)
        self._questions = QuestionPrompt(api, self._printer, self._command) if interactive else None

    def send_message(self, text: str) -> bool:
        """Sends one message and prints the result. Returns False if the turn failed."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise TidegateError(_NOT_UTF_8) from None
        with InterruptHandler() as interrupts:
            return self._send_and_follow(text, interrupts)

    def catch_up(self) -> None:
        """Follows the running turn if it is waiting for the user, so that they can reply."""
        if self.session is None or self._questions is None:
            return
        waiting = self._api.call("GET", "/api/approvals", query={"session": self.session, "limit": 1})["approvals"]
        # The question may belong to a task delegated by the running turn, so follow the running turn.
        turn = self._api.call("GET", self._api.session(self.session))["running"] if waiting else None
        if turn is not None:
            with InterruptHandler() as interrupts:
                self._follow(self.session, turn, interrupts)

    def _command(self, line: str) -> None:
        """Sends a command while a turn is being followed, and prints the reply."""
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

    def _send_and_follow(self, text: str, interrupts: InterruptHandler) -> bool:
        answer = self._send(text)
        if "reply" in answer:
            return self._show_reply(answer["reply"], interrupts)
        if answer.get("how") == "queued" and answer.get("ahead"):
            self._printer.note(f"queued behind {answer['ahead']}")
        return self._follow(answer["session"], answer["turn"], interrupts)

    def greet(self) -> None:
        """Prints the conversation, its agent and model, and its last exchange."""
        self._printer.note(greeting(self._api, self._home, self.session, self._agent))
        for line in last_exchange(self._api, self.session) if self.session else ():
            self._printer.note(line)

    def _show_reply(self, reply: dict[str, Any], interrupts: InterruptHandler) -> bool:
        if reply.get("text"):
            self._printer.line(reply["text"])
        # The current conversation; None means that the next message starts a new one.
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
        interrupts.on_press(self._stop)
        return TurnFollower(self._api, self._printer, session, turn, self._questions).follow()

    def _stop(self) -> None:
        try:
            stopped = self._api.call("POST", f"{self._api.session(self.session or '')}/stop")["stopped"]
        except TidegateError as error:
            self._printer.note(error.message)
        else:
            if stopped is None:
                self._printer.note("no turn is running yet; press Ctrl-C again to exit")


def _pipe(chat: _Chat) -> int:
    """Sends each line as a message. If a message is refused or its turn fails, prints the error and continues with the
    next line."""
    code = 0
    for number, raw in enumerate(sys.stdin.buffer if sys.stdin is not None else (), 1):
        try:
            if (line := raw.decode().strip()) and not chat.send_message(line):
                code = 1
        except GatewayUnreachable:
            raise  # the remaining lines would fail as well
        except (TidegateError, UnicodeDecodeError) as error:
            why = error.message if isinstance(error, TidegateError) else _NOT_UTF_8
            print(strip_controls(f"tidegate: line {number}: {why}"), file=sys.stderr)
            code = 1
    return code


def _converse(chat: _Chat, home: Path) -> int:
    from tidegate.cli.commands.chat.line_input import line_reader

    chat.greet()
    print("/help lists the commands, Ctrl-C stops an answer, Ctrl-D exits.")
    read = line_reader(home / "chat-history")
    fresh = True
    while True:
        try:
            if fresh:
                fresh = False
                chat.catch_up()
            if line := read("> ").strip():
                chat.send_message(line)
        except EOFError:
            return 0
        except LeaveRequested:
            raise
        except KeyboardInterrupt:
            print("(Ctrl-D exits)")
        except TidegateError as error:  # a refusal ends the message, not the conversation
            print(strip_controls(f"tidegate: {error.message}"), file=sys.stderr)
