"""Secrets of models in a real process: sent where the configuration says, and found nowhere else."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.error import HTTPError

import anyio
import pytest

from tests.faulty_model import FORMATS, KEY, NAMES, FaultyModel, toml
from tests.gateway.process import GatewayProcess, tidegate
from tests.gateway.test_fallback import away, running

pytestmark = pytest.mark.anyio

CANARIES = {
    "TIDE_PLAIN": "herring gulls at the breakwater",
    "TIDE_ONE": "canary-one-kittiwake-4417",
    "TIDE_TWO": "canary-two-guillemot-9923",
    "TIDE_HEADER": "canary-header-razorbill-3306",
}
"""Some look like keys, one like nothing that a pattern could know."""

AMBIENT = {
    "OPENAI_API_KEY": "ambient-openai-0001",
    "ANTHROPIC_API_KEY": "ambient-anthropic-0002",
    "ANTHROPIC_AUTH_TOKEN": "ambient-token-0003",
    "OPENROUTER_API_KEY": "ambient-openrouter-0004",
    "GEMINI_API_KEY": "ambient-gemini-0005",
    "AZURE_OPENAI_API_KEY": "ambient-azure-0006",
    "OPENAI_ORG_ID": "ambient-org-0007",
    "OPENAI_BASE_URL": "http://127.0.0.1:1/ambient-0008",
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:1/ambient-0009",
    "HTTP_PROXY": "http://ambient:0010@127.0.0.1:1",
    "http_proxy": "http://ambient:0010@127.0.0.1:1",
    "ALL_PROXY": "http://ambient:0011@127.0.0.1:1",
}


@pytest.fixture
async def server() -> AsyncIterator[FaultyModel]:
    async with FaultyModel() as server:
        yield server


def configured(server: FaultyModel) -> str:
    """One model with a key, two with rings of them, all with a header that is a secret; commands run right here."""
    text = toml(server.base_url, formats=FORMATS, each='headers = { "X-Harbour" = "env:TIDE_HEADER" }')
    first, *others = text.split(f'key = "env:{KEY}"')
    text = first + 'key = "env:TIDE_PLAIN"' + 'keys = ["env:TIDE_ONE", "env:TIDE_TWO"]'.join(others)
    text = text.replace('tools = ["clock", "files"]', 'tools = ["clock", "files", "terminal"]')
    return text + '[log]\nlevel = "debug"\n[workspaces]\nbackend = "local"\n'


def read(gateway: GatewayProcess, path: str, body: object = None) -> str:
    """Whatever is answered there, as text, with all that a stream tells."""
    try:
        return json.dumps(gateway.call("POST" if body is not None else "GET", path, body, **{"X-Events": "full"}))
    except json.JSONDecodeError as plain:
        return plain.doc
    except HTTPError as refused:
        with refused:
            return refused.read().decode()


def chat(text: str, *, stream: bool) -> dict[str, object]:
    return {"model": "main", "messages": [{"role": "user", "content": text}], "stream": stream}


async def test_a_models_secret_appears_only_in_requests_to_that_model(tmp_path: Path, server: FaultyModel) -> None:
    """X15: not in answers, streams, events, transcripts, exports, status, metrics, logs at their most talkative, what
    prints the configuration, the environment of children, or any file of the gateway's."""
    home = tmp_path / "home"
    seen: dict[str, str] = {}
    async with running(home, configured(server), **CANARIES) as gateway:

        async def note(path: str, body: object = None) -> str:
            seen[f"{path} {body or ''}"] = told = await away(read, gateway, path, body)
            return told

        for stream in (False, True):
            for script in (
                "[status 401 echo]",
                "[status 500 echo]",
                "[status 400 echo quote]",
                "[words 9] [cut after=4]",
            ):
                server.directives = dict.fromkeys(NAMES, script)
                await note("/v1/chat/completions", chat(f"{stream} {script}", stream=stream))
        server.directives = {"first": "[status 402 echo]"}
        for number in range(3):
            await note("/v1/chat/completions", chat(f"hello {number}", stream=False))
        server.directives = {}
        run = '[tool terminal {"command": "env; cat /proc/$PPID/environ"}]'
        accepted = await away(gateway.call, "POST", "/api/messages", {"text": run, "agent": "main"})
        turn = f"/api/turns/{accepted['turn']}"
        with anyio.fail_after(30):
            while (await away(gateway.call, "GET", turn))["state"] not in ("answered", "failed"):
                pass
        session = f"/api/sessions/{accepted['session']}"
        for path in (
            turn,
            session,
            f"{session}/messages",
            f"{session}/export",
            "/api/status",
            "/metrics",
            "/api/settings",
        ):
            await note(path)
        assert "PATH=" in seen[f"{session}/messages "], "the command has run, and its output is there"
        for command in (["config", "show", "--json"], ["config", "show"], ["config", "check"], ["models", "--json"],
                        ["models"], ["status", "--json"], ["usage", "--json"], ["doctor"]):  # fmt: skip
            ran = await away(tidegate, *command, home=home)
            seen[" ".join(command)] = ran.stdout + ran.stderr
        assert "env:TIDE_ONE" in seen["config show"], "where it comes from is no secret"
    seen["log"] = gateway.log.read_text()
    for file in home.rglob("*"):
        if file.is_file():
            seen[str(file)] = file.read_bytes().decode("latin-1")
    assert "a key is in cooldown" in seen["log"] and "a model failed" in seen["log"]
    sent = {value for request in server.recorded for value in (request.authorization, request.headers["x-harbour"])}
    plain, one, two, header = CANARIES.values()
    assert sent >= {f"Bearer {plain}", f"Bearer {one}", f"Bearer {two}", one, header}, "each way of sending was used"
    leaks = [(where, name) for where, told in seen.items() for name, secret in CANARIES.items() if secret in told]
    assert leaks == []


@pytest.mark.parametrize("api", FORMATS)
async def test_only_variables_that_the_configuration_names_are_read_from_the_environment(
    tmp_path: Path, server: FaultyModel, api: str
) -> None:
    """X22: no key, no address, no proxy, whatever others take from there; nor do they reach a command."""
    text = toml(server.base_url, formats=(api,) * 3).replace(f'key = "env:{KEY}"', "")
    text = text.replace('tools = ["clock", "files"]', 'tools = ["terminal"]') + '[workspaces]\nbackend = "local"\n'
    async with running(tmp_path / "home", text, **AMBIENT) as gateway:
        told = await away(
            read, gateway, "/v1/chat/completions", chat('[tool terminal {"command": "env"}]', stream=False)
        )
        assert server.recorded, told
        assert ("authorisation" in told) == (api == "anthropic"), "this one insists on a key"
    for request in server.recorded:
        assert request.authorization == ""
        assert "ambient" not in str(request.headers) + request.body.decode()
        assert request.headers["host"] == server.root.removeprefix("http://")
    assert "ambient" not in told + gateway.log.read_text()


async def test_without_a_configured_model_no_provider_is_called_even_if_there_are_keys(tmp_path: Path) -> None:
    """X22: the built-in demo model answers and says so."""
    async with running(tmp_path / "home", "", **AMBIENT) as gateway:
        assert any("demo model" in line for line in gateway.said)
        assert json.loads(await away(read, gateway, "/api/status"))["demo"] is True
