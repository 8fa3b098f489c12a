"""The lines printed when the gateway is ready, with each agent's model and the link to the chat page."""

import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from tidegate import __version__
from tidegate.config import FILE_NAME, Config, example
from tidegate.gateway.lock import command_hint
from tidegate.status_report import AgentModel

_AGENTS_SHOWN = 20  # `tidegate status` names them all


def lines(config: Config, address: str, chat: str, expires: float) -> Iterator[str]:
    """Yields the lines. Programs wait for the line `ready ADDRESS`. The next line contains only the link to the chat
    page. The code is in the link's fragment, which a browser never sends."""
    if config.demo:
        yield "No model is configured: the built-in demo model answers."
        yield f"To use a real one, put this into {config.home / FILE_NAME} and restart the gateway:"
        for line in example().splitlines():
            if line and not line.startswith("#"):
                yield f"    {line}"
    agents = agent_models(config)
    yield from map(str, agents[:_AGENTS_SHOWN])
    if len(agents) > _AGENTS_SHOWN:
        yield f"and {len(agents) - _AGENTS_SHOWN} more agents"
    yield f"ready {address}"
    yield f"chat {chat}"
    until = time.strftime("%H:%M", time.localtime(expires))
    yield f"The link works once, until {until}; {command_hint(config.home, 'status --link')} prints a new one."
    yield f"tidegate {__version__}, home {config.home}, key in {config.home / 'api-key'}; Ctrl-C stops."


def link(address: str, code: str) -> str:
    """Returns a one-time link that signs the user in to the chat page."""
    for anywhere, here in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
        address = address.replace(anywhere, here)
    return f"{address}/#code={code}"


def agent_models(config: Config) -> list[AgentModel]:
    """Returns each agent's model, without secrets."""
    return [_agent_model(name, config) for name in sorted(config.agents)]


def _agent_model(name: str, config: Config) -> AgentModel:
    setting = config.agents[name].model
    settings = config.models[setting]
    if settings.api == "demo":
        return AgentModel(agent=name, setting=setting, model="demo", host="", demo=True)
    host = urlsplit(settings.base_url).netloc  # the settings refuse addresses with a user name or password
    return AgentModel(agent=name, setting=setting, model=settings.model, host=host, demo=False)
