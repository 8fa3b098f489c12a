"""The gateway that clients are run against: a real process, with the scripted model as another.

Its agents `main`, `responses` and `anthropic` use the three wire formats; `small` has a model with a short context
window. The gateway's home is `.tidegate` in `home`, so that the examples of the documentation find its key.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.subjects import Gateway, ScriptedModel
from tests.clients.environments import ROOT

WINDOW = 4096
"""Of the agent `small`, in tokens."""

NOWHERE = "http://127.0.0.1:9"

SETTINGS = """
[server]
origins = ["{origin}"]

[models.chat]
api = "openai-chat"
base_url = "{model}/v1"
model = "scripted"
context_window = 200_000
vision = true

[models.responses]
api = "openai-responses"
base_url = "{model}/v1"
model = "scripted"
context_window = 200_000
vision = true

[models.anthropic]
api = "anthropic"
base_url = "{model}/v1"
model = "scripted"
context_window = 200_000
vision = true
key = "file:keys/model"

[models.small]
api = "openai-chat"
base_url = "{model}/v1"
model = "scripted-small"
context_window = {window}

[agents.main]
model = "chat"
prompt = "You are a test."
tools = ["clock"]

[agents.responses]
model = "responses"
prompt = "You are a test."
tools = ["clock"]

[agents.anthropic]
model = "anthropic"
prompt = "You are a test."
tools = ["clock"]

[agents.small]
model = "small"
prompt = "You are a test."

[limits]
day_tokens = 0
"""


@dataclass(frozen=True)
class Running:
    home: Path
    environment: dict[str, str]
    """The environment of a client's process."""


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Running]:
    """The gateway and its model, until the block ends."""
    home = folder / "home"
    # A page of this origin may call the gateway; the server of the page binds the port.
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        page_port = found.getsockname()[1]
    with ScriptedModel(folder / "model") as model:
        model.call("POST", "/behaviour", {"windows": {"scripted-small": WINDOW}})
        gateway = Gateway(home / ".tidegate", model.url, api="anthropic")
        text = SETTINGS.format(origin=f"http://127.0.0.1:{page_port}", model=model.url, window=WINDOW)
        (gateway.folder / "tidegate.toml").write_text(text)
        with gateway:
            environment = {
                "PATH": os.environ["PATH"],
                "LANG": "C.UTF-8",
                "TERM": "dumb",
                "HOME": str(home),
                "PYTHONPATH": str(ROOT),
                "PYTHONDONTWRITEBYTECODE": "1",
                # Requests of a client to the internet fail at once: nothing listens on the discard port.
                "HTTP_PROXY": NOWHERE,
                "HTTPS_PROXY": NOWHERE,
                "NO_PROXY": "127.0.0.1,localhost",
                "TIDEGATE": gateway.url,
                "TIDEGATE_KEY": (gateway.folder / "api-key").read_text().strip(),
                "SCRIPTED_MODEL": model.url,
                "PAGE_PORT": str(page_port),
                "CLIENTS_PAGE": str(ROOT / "docs" / "clients.md"),
            }
            yield Running(home, environment)
