"""`tidegate chat`: a streaming terminal client of the running gateway.

Guarantee: it enters by the same door as every other client and keeps nothing of the conversation but the lines typed
(`chat-history` in the home folder). Ctrl-C stops the running turn, a second one leaves; Ctrl-D leaves; what was
accepted goes on in the gateway in any case. With a pipe as input each line is a message and only answers are printed.
"""

import sys
from pathlib import Path
from typing import Any

import click

from tidegate.cli.api import Api
from tidegate.cli.greeting import greeting, last_exchange
from tidegate.cli.options import home_option
from tidegate.cli.output import plain
from tidegate.cli.transcriber import Follower, Printer
from tidegate.errors import TidegateError

_CHANNEL = "terminal"


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
    api = Api(home)
    if session is not None:
        api.call("GET", f"/api/sessions/{session}")
    interactive = sys.stdin.isatty()
    if session is None and interactive and not new:
        session = _last(api, agent)
    chat = _Chat(api, home, agent=agent, session=session, interactive=interactive)
    context.exit(_converse(chat, home) if interactive else _pipe(chat))


def _last(api: Api, agent: str | None) -> str | None:
    """The most recently used live conversation of this client."""
    for view in api.call("GET", "/api/sessions", query={"limit": 50})["sessions"]:
        if view["channel"] == _CHANNEL and not view.get("ended") and agent in (None, view["agent"]):
            return str(view["id"])
    return None


class _Chat:
    """One conversation at a time, which a command may change."""

    def __init__(self, api: Api, home: Path, *, agent: str | None, session: str | None, interactive: bool) -> None:
        self._api = api
        self._home = home
        self._agent = agent
        self.session = session
        self._printer = Printer(interactive=interactive)

    def say(self, text: str) -> bool:
        """Send one line and print what comes of it; False if the turn failed."""
        body: dict[str, Any] = {"text": text, "channel": _CHANNEL}
        if self.session is not None:
            body["session"] = self.session
        elif self._agent is not None:
            body["agent"] = self._agent
        answer = self._api.call("POST", "/api/messages", body)
        if "reply" in answer:
            return self._replied(answer["reply"])
        return self._follow(answer["session"], answer["turn"], answer.get("how", ""), answer.get("ahead", 0))

    def greet(self) -> None:
        """Say which conversation this is, who answers in it, and where it had got to."""
        self._printer.note(greeting(self._api, self._home, self.session, self._agent))
        for line in last_exchange(self._api, self.session) if self.session else ():
            self._printer.note(line)

    def _replied(self, reply: dict[str, Any]) -> bool:
        if reply.get("text"):
            self._printer.line(reply["text"])
        before, self.session = (
            self.session,
            reply.get("session"),
        )  # where the person is now; None: the next message begins a new one
        if self.session not in (None, before):
            self.greet()
        if reply.get("turn") and self.session:
            return self._follow(self.session, reply["turn"], "", 0)
        return True

    def _follow(self, session: str, turn: str, how: str, ahead: int) -> bool:
        self.session = session
        if how == "queued" and ahead:
            self._printer.note(f"queued behind {ahead}")
        return Follower(self._api, self._printer, session, turn).follow()


def _pipe(chat: _Chat) -> int:
    code = 0
    for raw in sys.stdin:
        if (line := raw.strip()) and not chat.say(line):
            code = 1
    return code


def _converse(chat: _Chat, home: Path) -> int:
    from tidegate.cli.lines import line_reader

    chat.greet()
    print("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.")
    read = line_reader(home / "chat-history")
    while True:
        try:
            line = read("> ").strip()
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print("(Ctrl-D leaves)")
            continue
        if not line:
            continue
        try:
            chat.say(line)
        except TidegateError as error:  # a refusal ends the message, not the conversation
            print(plain(f"tidegate: {error.message}"), file=sys.stderr)
