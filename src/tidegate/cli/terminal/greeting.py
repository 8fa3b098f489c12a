"""What `tidegate chat` says of the conversation that a person is in.

Guarantee: read from the gateway at the moment of asking; short, whatever the conversation holds.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.cli.client import GatewayClient
from tidegate.errors import TidegateError
from tidegate.gateway import ask

_ROWS = 50  # of the end of a transcript, in which the last exchange is looked for
_SHOWN = 300  # characters of each side of it


def greeting(api: GatewayClient, home: Path, session: str | None, agent: str | None) -> str:
    """Title, agent and model, in one line."""
    if session is None:
        agents = {view["name"]: view for view in api.call("GET", "/api/agents")["agents"]}
        name = agent or ("main" if "main" in agents else next(iter(agents), ""))
        model = agents.get(name, {}).get("model", "")
        return f"A new conversation with agent {name} ({_model(home, model)})."
    view = api.call("GET", api.session(session))
    title = f"“{_short(view['title'])}”, " if view.get("title") else ""
    return f"Conversation {title}{session}, with agent {view['agent']} ({_model(home, view['model'])})."


def _model(home: Path, setting: str) -> str:
    """The model behind a name of the configuration, if the gateway says it."""
    try:
        agents: list[dict[str, Any]] = ask(home, {"do": "status"})["agents"]
    except TidegateError:
        agents = []
    found = next((agent for agent in agents if agent["setting"] == setting), None)
    if found is None:
        return f"model {setting}"
    return "the built-in demo model" if found["demo"] else f"{found['model']} at {found['host']}"


def last_exchange(api: GatewayClient, session: str) -> Iterator[str]:
    """The last message of a person, and what was answered since."""
    rows = api.call("GET", f"{api.session(session)}/messages", query={"limit": _ROWS})["messages"]
    answer = ""
    for row in reversed(rows):
        message = row["message"]
        text = message.get("text", "")
        if message["role"] == "assistant":
            answer = answer or text
        elif message["role"] == "user" and text:
            yield f"you: {_short(text)}"
            if answer:
                yield f"answer: {_short(answer)}"
            return


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
