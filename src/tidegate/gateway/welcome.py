"""What a person sees when the gateway is ready."""

from collections.abc import Iterator

from tidegate import __version__
from tidegate.config import FILE_NAME, Config, example


def lines(config: Config, address: str, chat: str) -> Iterator[str]:
    """The first line says `ready` and where, for programs that wait for it; the second is the link to the chat page.
    The code stands in the fragment, which a browser keeps to itself."""
    if config.demo:
        yield "No model is configured: the built-in demo model answers."
        yield f"To use a real one, put this into {config.home / FILE_NAME} and start again:"
        for line in example().splitlines():
            if line and not line.startswith("#"):
                yield f"    {line}"
    yield f"ready {address}"
    yield f"chat {chat} (opens once; `tidegate status --link` gives another)"
    yield f"tidegate {__version__}, home {config.home}, key in {config.home / 'api-key'}; Ctrl-C stops."


def link(address: str, code: str) -> str:
    """A link that signs in to the chat page once."""
    for anywhere, here in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
        address = address.replace(anywhere, here)
    return f"{address}/#code={code}"
