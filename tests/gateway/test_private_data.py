"""What a running gateway keeps to itself: the words of a conversation, and the secrets of its models."""

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError

import anyio
import pytest

from bench.subjects import ScriptedModel
from tests.gateway.process import GatewayProcess, gateway
from tidegate.gateway.gateway import Gateway
from tidegate.log import Log

SECRET = "lantern on the north quay"
"""Looks like nothing that a pattern could know for a key."""
WORD = "oystercatcher"
VARIABLE = "HARBOUR_WORD"


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ScriptedModel]:
    with ScriptedModel(tmp_path / "model") as model:
        yield model


def _home(tmp_path: Path, model: ScriptedModel, more: str) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    text = f"""
        [models.main]
        api = "openai-chat"
        base_url = "{model.url}/v1"
        model = "scripted"
        key = "env:{VARIABLE}"
        retries = 1
        [limits]
        message_bytes = 1024
        {more}
    """
    (home / "tidegate.toml").write_text(text)
    return home


def _told(
    running: GatewayProcess, text: str, *, agent: str = "main", stream: bool = False, session: str | None = None
) -> str:
    """Everything that a caller reads, whatever the outcome of the message."""
    body = {"model": agent, "messages": [{"role": "user", "content": text}], "stream": stream}
    headers = {} if session is None else {"X-Session-Id": session}
    try:
        return json.dumps(running.call("POST", "/v1/chat/completions", body, **headers))
    except HTTPError as refused:
        with closing(refused):
            return refused.read().decode()
    except json.JSONDecodeError as streamed:
        return streamed.doc


FAILURES = (
    "[status 400 quote]",
    "[status 401 quote]",
    "[status 404 quote]",
    "[status 413 quote]",
    "[status 429 quote retry-after=0]",
    "[status 500 quote retry-after=0]",
    "[error after=1 quote]",
    "[words 9] [error after=4 code=invalid_request_error quote]",
)


@pytest.mark.parametrize("format", ["text", "json"])
def test_the_log_holds_no_word_of_a_conversation(tmp_path: Path, model: ScriptedModel, format: str) -> None:
    """X16: answered, failed or refused, whole or streamed, at the most talkative level; also when the provider's
    complaint quotes what was said, which its sender is told."""
    home = _home(tmp_path, model, f'[log]\nlevel = "debug"\nformat = "{format}"')
    with gateway(home, **{VARIABLE: SECRET}) as running:
        for stream in (False, True):
            assert WORD in _told(running, f"[say {WORD} {stream}]", stream=stream, session="talk")
            for failure in FAILURES:
                assert WORD in _told(running, f"{WORD} {stream} {failure}", stream=stream, session=failure), failure
            assert "limits.message_bytes" in _told(running, f"{WORD} " * 100, stream=stream)
            assert WORD in _told(running, "hello", agent=WORD, stream=stream)
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
    log = running.log.read_text()
    assert log.count("a turn failed") == 2 * len(FAILURES)
    assert "the endpoint rejected the key (401)" in log
    assert WORD not in log


def test_a_models_secret_is_in_no_answer_and_in_no_log(tmp_path: Path, model: ScriptedModel) -> None:
    """X15, X22: a key of any form, echoed by the provider, or said by a caller who should not know it."""
    home = _home(tmp_path, model, '[log]\nlevel = "debug"')
    with gateway(home, **{VARIABLE: SECRET}) as running:
        for status in (400, 401, 500):
            told = _told(running, f"hello [status {status} echo retry-after=0]")
            assert "Your credential was" in told
            assert SECRET not in told
        assert model.call("GET", "/requests")[0]["authorised"]
        told = _told(running, "hello", agent=SECRET)
        assert "There is no model" in told and SECRET not in told
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
    log = running.log.read_text()
    assert "a turn failed" in log
    assert SECRET not in log


@pytest.mark.anyio
async def test_a_models_secret_is_redacted_whoever_logs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """X15: the gateway's log hides the secrets of its models by value."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    settings = '[models.main]\napi = "openai-chat"\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\n'
    (home / "tidegate.toml").write_text(f'{settings}key = "env:{VARIABLE}"\n')
    monkeypatch.setenv(VARIABLE, SECRET)
    server = Gateway(home, port=0, say=lambda line: None)
    with anyio.fail_after(30):
        assert await server.build()
        try:
            Log("tidegate.test").warning("somebody was careless", header=f"Bearer {SECRET}")
        finally:
            await server.close()
    written = capsys.readouterr().err
    assert "somebody was careless" in written
    assert SECRET not in written
