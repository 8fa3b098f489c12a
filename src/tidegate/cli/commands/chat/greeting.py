"""The greeting of `tidegate chat`: the current conversation, its agent and model, and its last exchange.

The content is read from the gateway when it is printed. The greeting stays short even if the conversation is long.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidegate.cli.client import GatewayClient
from tidegate.errors import TidegateError
from tidegate.gateway import ask
from tidegate.status_report import AgentModel

_ROWS = 50  # read from the end of the transcript, to find the last exchange
_MESSAGE_CHARACTERS = 300  # printed of each message of that exchange


def greeting(api: GatewayClient, home: Path, session: str | None, agent: str | None) -> str:
    """Returns one line with the conversation's title, agent and model."""
    if session is None:
        agents = {view["name"]: view for view in api.call("GET", "/api/agents")["agents"]}
        name = agent or ("main" if "main" in agents else next(iter(agents), ""))
        model = agents.get(name, {}).get("model", "")
        return f"A new conversation with agent {name} ({_model(home, model)})."
    view = api.call("GET", api.session(session))
    title = f"“{_shorten(view['title'])}”, " if view.get("title") else ""
    return f"Conversation {title}{session}, with agent {view['agent']} ({_model(home, view['model'])})."


def _model(home: Path, setting: str) -> str:
    """Returns the display name of a configured model, or its name in the configuration if the gateway cannot be
    reached."""
    try:
        agents = msgspec.convert(ask(home, {"do": "status"})["agents"], list[AgentModel])
    except TidegateError:
        agents = []
    return next((agent.title for agent in agents if agent.setting == setting), f"model {setting}")


def last_exchange(api: GatewayClient, session: str) -> Iterator[str]:
    """Yields the user's last message and the agent's answer, one line each."""
    rows = api.call("GET", f"{api.session(session)}/messages", query={"limit": _ROWS})["messages"]
    answer = ""
    for row in reversed(rows):
        message = row["message"]
        text = message.get("text", "")
        if message["role"] == "assistant":
            answer = answer or text
        elif message["role"] == "user" and text:
            yield f"you: {_shorten(text)}"
            if answer:
                yield f"answer: {_shorten(answer)}"
            return


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE_CHARACTERS else line[: _MESSAGE_CHARACTERS - 1] + "…"
