"""A scripted model server that adds directives, such as faults, to every request for a given model.

    async with FaultyModel() as server:
        server.directives["first"] = "[status 503]"

`toml` configures three models over it and an agent that falls back from one to the next."""

import json
from typing import Any

from bench.scripted_model import ScriptedModel

FORMATS = ("openai-chat", "openai-responses", "anthropic")
NAMES = ("first", "second", "third")
KEY = "FAULTY_MODEL_KEY"
"""The environment variable with the key of all three."""


class FaultyModel(ScriptedModel):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.directives: dict[str, str] = {}
        """Directives by the provider's name of a model; without an entry, only those of the message count."""
        self.requested: list[str] = []
        """The model of each request, in order."""

    def answer(self, connection: Any, form: Any, headers: dict[str, str], body: bytes) -> None:
        model = json.loads(body).get("model", "")
        self.requested.append(model)
        extra = self.directives.get(model, "")
        super().answer(connection, _ExtendedFormat(form, extra) if extra else form, headers, body)


class _ExtendedFormat:
    """A format that adds directives to every message."""

    def __init__(self, form: Any, extra: str) -> None:
        self._form = form
        self._extra = extra

    def read(self, *request: Any) -> Any:
        parsed = self._form.read(*request)
        parsed.text = f"{parsed.text} {self._extra}"
        return parsed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._form, name)


def toml(
    base_url: str, agent: str = "", *, formats: tuple[str, str, str] = (FORMATS[0],) * 3, more: str = "", each: str = ""
) -> str:
    """`each` is added to the table of every model, `agent` to that of the agent, `more` to the end."""
    always = f'base_url = "{base_url}"\nretries = 0\nkey = "env:{KEY}"\n{each}\n'
    models = "".join(
        f'[models.{name}]\napi = "{api}"\nmodel = "{name}"\n{always}' for name, api in zip(NAMES, formats, strict=True)
    )
    return f"""{models}
[agents.main]
model = "first"
fallback = ["second", "third"]
prompt = "You are a test."
tools = ["clock", "files"]
approvals = "autonomous"
{agent}
{more}
"""
