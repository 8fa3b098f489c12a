"""A scripted model server on which each model can have extra directives, which are added to every request to it.

    async with Moody() as server:
        server.moods["first"] = "[status 503]"

`toml` configures three models over it and an agent that falls back from one to the next."""

import json
from typing import Any

from bench.scripted_model import ScriptedModel

FORMATS = ("openai-chat", "openai-responses", "anthropic")
NAMES = ("first", "second", "third")
KEY = "MOODY_KEY"
"""The environment variable with the key of all three."""


class Moody(ScriptedModel):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.moods: dict[str, str] = {}
        """Directives by the provider's name of a model; without an entry, only those of the message count."""
        self.asked: list[str] = []
        """The models that were asked, in order."""

    def answer(self, connection: Any, form: Any, headers: dict[str, str], body: bytes) -> None:
        model = json.loads(body).get("model", "")
        self.asked.append(model)
        mood = self.moods.get(model, "")
        super().answer(connection, _Tempered(form, mood) if mood else form, headers, body)


class _Tempered:
    """A format that adds directives to every message."""

    def __init__(self, form: Any, mood: str) -> None:
        self._form = form
        self._mood = mood

    def read(self, *request: Any) -> Any:
        asked = self._form.read(*request)
        asked.text = f"{asked.text} {self._mood}"
        return asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._form, name)


def toml(
    base_url: str, agent: str = "", *, formats: tuple[str, str, str] = (FORMATS[0],) * 3, more: str = "", each: str = ""
) -> str:
    """`each` is added to every model's table, `agent` to the agent's, `more` at the end."""
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
