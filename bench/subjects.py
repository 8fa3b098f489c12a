"""The measured programs: the floor and the gateway, each a process with its own folder and the same HTTP interface.

A subject starts nothing until it is entered, and all its files are in its folder. Both get the same system prompt and
the same model.
"""

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from bench.children import Child, Failed
from bench.floor import PROMPT

ANSWER_WITHIN = 60.0
Limits = Mapping[str, int | float]


class Subject(Child):
    """A server that answers `POST /v1/chat/completions` and keeps conversations by `X-Session-Id`."""

    durable = False
    """Whether conversations survive a restart."""

    @property
    def headers(self) -> dict[str, str]:
        return {}

    def ask(self, text: str, session: str | None = None) -> str:
        """One turn without streaming; returns the text of the answer."""
        body = json.dumps({"model": "main", "messages": [{"role": "user", "content": text}]})
        named = {} if session is None else {"X-Session-Id": session}
        return str(self.call("POST", "/v1/chat/completions", body, named)["choices"][0]["message"]["content"])

    def call(self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None) -> Any:
        """One request on a new connection. Any status but a success fails the run."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_WITHIN)
        try:
            asked = {"Content-Type": "application/json", **self.headers, **(headers or {})}
            connection.request(method, path, body, asked)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise Failed(f"{self.name}: {method} {path}: {answer.status} {content[:300]!r}")
        return json.loads(content) if content else None


class Floor(Subject):
    def __init__(self, folder: Path, model: str) -> None:
        super().__init__("floor", ["-m", "bench.floor", "--home", str(folder), "--model", f"{model}/v1"], folder)


class Gateway(Subject):
    durable = True

    def __init__(
        self,
        folder: Path,
        model: str,
        *,
        limits: Limits | None = None,
        tools: tuple[str, ...] = (),
        api: str = "openai-chat",
        window: int | None = None,
    ) -> None:
        super().__init__("gateway", ["-m", "tidegate", "up", "--home", str(folder), "--port", "0"], folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tidegate.toml").write_text(settings(model, limits or {}, tools, api, window))
        if api == "anthropic":
            # The scripted model accepts any key of this format, but requires one.
            (folder / "keys").mkdir(mode=0o700, exist_ok=True)
            (folder / "keys" / "model").touch(mode=0o600)
            (folder / "keys" / "model").write_text("any")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {(self.folder / 'api-key').read_text().strip()}"}

    @property
    def database(self) -> Path:
        return self.folder / "tidegate.db"


class Maker(Protocol):
    """Makes a subject in a folder. Parameters that do not apply to it are ignored."""

    def __call__(
        self,
        folder: Path,
        model: str,
        *,
        limits: Limits | None = None,
        tools: tuple[str, ...] = (),
        api: str = "openai-chat",
    ) -> Subject: ...


def make_floor(
    folder: Path,
    model: str,
    *,
    limits: Limits | None = None,
    tools: tuple[str, ...] = (),
    api: str = "openai-chat",
) -> Subject:
    return Floor(folder, model)


MAKERS: Mapping[str, Maker] = {"floor": make_floor, "gateway": Gateway}


def settings(
    model: str, limits: Limits, tools: tuple[str, ...], api: str = "openai-chat", window: int | None = None
) -> str:
    """A `tidegate.toml` for the scripted model at `model`, with a context window of `window` tokens if given. There is
    no daily cap on tokens, for the sake of long runs. For formats that send reasoning back with the conversation,
    reasoning is switched on."""
    lines = [
        "[models.main]",
        f'api = "{api}"',
        f'base_url = "{model}/v1"',
        'model = "scripted"',
        *(['key = "file:keys/model"'] if api == "anthropic" else []),
        *([] if window is None else [f"context_window = {window}"]),
        "",
        "[agents.main]",
        'model = "main"',
        f'prompt = "{PROMPT}"',
        f"tools = {json.dumps(list(tools))}",
        *([] if api == "openai-chat" else ['reasoning = "medium"']),
        "",
        "[limits]",
        *(f"{name} = {value}" for name, value in {"day_tokens": 0, **limits}.items()),
        "",
    ]
    return "\n".join(lines)


class ScriptedModel(Child):
    """The strict model server, which also counts how much of each request repeats the previous one."""

    def __init__(self, folder: Path) -> None:
        super().__init__("model", ["-m", "bench.scripted_model", "--port", "0"], folder)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_WITHIN)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise Failed(f"model: {method} {path}: {answer.status} {content[:300]!r}")
        return json.loads(content) if content else None
