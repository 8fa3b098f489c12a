"""Error responses when a model fails."""

from pathlib import Path

import openai
import pytest

from bench.scripted_model import ScriptedModel
from tests import core, faulty_model
from tests.faulty_model import FaultyModel
from tests.in_process import InProcessGateway, in_process_gateway
from tests.web.client import chat

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        ("[status 400]", 502, "model_invalid"),
        ("[status 400 code=context_length_exceeded]", 400, "context_length_exceeded"),
        ("[status 400 code=content_filter]", 400, "content_policy_violation"),
        ("[status 401]", 502, "model_authorisation"),
        ("[status 404]", 502, "model_invalid"),
        ("[status 413]", 413, "request_too_large"),
        ("[status 429 retry-after=7]", 429, "rate_limit_exceeded"),
        ("[status 500]", 503, "model_overloaded"),
        ("[status 503]", 503, "model_overloaded"),
        ("[close]", 502, "model_network"),
        ("[html]", 502, "model_protocol"),
        ("[badjson]", 502, "model_protocol"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failing_model_has_its_status_and_says_what_happened(
    gateway: InProcessGateway, script: str, status: int, code: str, stream: bool
) -> None:
    """H22: 502, 503 or 504 (400 for what the caller can change, 429 as the endpoint says); OpenAI's own codes; whether
    a retry helps; the session accepts the next message."""
    reply = await chat(gateway, f"x {script}", session="n", stream=stream)
    assert reply.status == status, reply.body
    assert reply.error["code"] == code
    kind = {400: "invalid_request_error", 413: "invalid_request_error", 429: "rate_limit_error"}
    assert reply.error["type"] == kind.get(status, "model_error")
    assert len(reply.error["message"]) > 20
    assert reply.headers["X-Turn-Id"].startswith("t_")
    if status in (429, 503):
        assert int(reply.headers["Retry-After"]) == (7 if "retry-after=7" in script else 1)
        assert "x-should-retry" not in reply.headers, "nothing was tried again here"
    elif status == 502 and "close" not in script:
        assert reply.headers["x-should-retry"] == "false"
    assert reply.headers["x-request-id"].startswith("req_")
    assert (await chat(gateway, "and now", session="n")).status == 200


async def test_a_prompt_that_the_provider_finds_too_long_has_the_words_that_clients_recognise(
    gateway: InProcessGateway,
) -> None:
    """H22: clients without access to the error's code look for the words of OpenAI's service."""
    reply = await chat(gateway, "x [status 400 code=context_length_exceeded]")
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert "Input tokens exceed the configured limit" in reply.error["message"]


async def test_a_model_that_hangs_is_504(home: Path, model: ScriptedModel) -> None:
    """H22: before its first byte, and in the middle of its answer."""
    toml = core.settings(model).replace("retries = 0", "retries = 0\nfirst_byte_timeout = 0.2\nidle_timeout = 0.2")
    async with in_process_gateway(home, toml=toml) as h:
        silent = await chat(h, "x [hang]")
        assert silent.status == 504
        assert silent.error["code"] == "model_timeout"
        half = await chat(h, "x [words 20] [hang after=3]", stream=True)
        assert half.status == 200
        assert half.chunks[-1]["error"]["code"] == "model_timeout"
        assert half.streamed.startswith("w0")


async def test_a_model_that_drops_in_mid_stream_ends_the_stream_with_an_error(gateway: InProcessGateway) -> None:
    """H22: after visible text there is no status to send; before it there is."""
    begun = await chat(gateway, "x [words 40] [cut after=4]", stream=True)
    assert begun.status == 200
    assert begun.chunks[-1]["error"]["code"] == "model_network"
    assert b"[DONE]" not in begun.body
    whole = await chat(gateway, "x [words 40] [cut after=4]")
    assert whole.status == 502


@pytest.mark.parametrize("script", ["[badargs clock]", "[unknowntool]"])
async def test_invalid_tool_calls_are_reported_to_the_model(
    gateway: InProcessGateway, model: ScriptedModel, script: str
) -> None:
    """H22: the model gets the error, and the client gets an answer."""
    reply = await chat(gateway, f"x {script}", session="n")
    assert reply.status == 200, reply.body
    results = [m for m in model.recorded[-1].decoded()["messages"] if m["role"] == "tool"]
    assert len(results) == 1 and results[0]["content"]


async def test_a_credential_that_a_provider_echoes_does_not_reach_the_caller(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H22, X15: the error says what happened, without the key."""
    monkeypatch.setenv("TEST_PROVIDER_KEY", "sk-verysecretproviderkey42")
    async with ScriptedModel(key="sk-verysecretproviderkey42") as model:
        toml = core.settings(model).replace("retries = 0", 'retries = 0\nkey = "env:TEST_PROVIDER_KEY"')
        async with in_process_gateway(home, toml=toml) as h:
            reply = await chat(h, "x [status 401 echo]")
            assert reply.status == 502
            assert "verysecret" not in reply.body.decode()


async def test_the_gateways_retries_and_the_clients_do_not_multiply(home: Path, model: ScriptedModel) -> None:
    """H22: a client is told not to retry what the gateway has already retried."""
    toml = core.settings(model).replace("retries = 0", "retries = 2")
    async with (
        in_process_gateway(home, toml=toml) as h,
        openai.AsyncOpenAI(base_url=f"{h.url}/v1", api_key=h.key) as client,
    ):
        for script, kind in (("[status 503]", openai.InternalServerError), ("[status 429]", openai.RateLimitError)):
            before = len(model.recorded)
            with pytest.raises(kind) as caught:
                await client.chat.completions.create(
                    model="main", messages=[{"role": "user", "content": f"x {script}"}]
                )
            assert len(model.recorded) - before == 3
            assert caught.value.response.headers["x-should-retry"] == "false"


async def test_the_retries_of_a_whole_chain_and_the_clients_do_not_multiply(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H22: even when the fallback models have failed too."""
    monkeypatch.setenv(faulty_model.KEY, "sesame")
    async with FaultyModel() as server:
        toml = faulty_model.toml(server.base_url).replace("retries = 0", "retries = 1")
        async with (
            in_process_gateway(home, toml=toml) as h,
            openai.AsyncOpenAI(base_url=f"{h.url}/v1", api_key=h.key) as client,
        ):
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(
                    model="main", messages=[{"role": "user", "content": "x [status 503]"}]
                )
        assert server.requested == ["first", "first", "second", "second", "third", "third"]
        assert caught.value.response.headers["x-should-retry"] == "false"
