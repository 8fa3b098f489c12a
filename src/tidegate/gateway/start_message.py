"""What a person sees when the gateway is ready."""

import time
from collections.abc import Iterator

from tidegate import __version__
from tidegate.config import FILE_NAME, Config, example
from tidegate.gateway.answering import agent_models
from tidegate.gateway.hint import hint

_AGENTS_SHOWN = 20  # `tidegate status` names them all


def lines(config: Config, address: str, chat: str, expires: float) -> Iterator[str]:
    """The line `ready` says where, for programs that wait for it; the next is the link to the chat page, and nothing
    else stands on it. The code is in the fragment, which a browser keeps to itself."""
    if config.demo:
        yield "No model is configured: the built-in demo model answers."
        yield f"To use a real one, put this into {config.home / FILE_NAME} and start again:"
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
    yield f"The link works once, until {until}; {hint(config.home, 'status --link')} gives another."
    yield f"tidegate {__version__}, home {config.home}, key in {config.home / 'api-key'}; Ctrl-C stops."


def link(address: str, code: str) -> str:
    """A link that signs in to the chat page once."""
    for anywhere, here in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
        address = address.replace(anywhere, here)
    return f"{address}/#code={code}"
