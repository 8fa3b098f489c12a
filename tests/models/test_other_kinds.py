"""Models for embeddings, transcription and speech: their requests, their checked answers, and their failures."""

import math
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import openai
import pytest

from bench.scripted.behaviour import Behaviour
from tests.models.support import CANARY, ScriptedModel, Slept, resolver, settings
from tidegate.errors import Misconfigured, ModelFailed
from tidegate.http_client import HttpClient, Transport
from tidegate.models import Models, RetryPolicy
from tidegate.models.recording import TransportRecorder, TransportReplayer
from tidegate.security import Redactor
from tidegate.values import Usage

pytestmark = pytest.mark.anyio

MP3 = b"ID3 say:the boat is red\0"


@asynccontextmanager
async def other_kinds(
    server: ScriptedModel,
    *,
    clients: Transport | None = None,
    sleep: Slept | None = None,
    dimensions: int | None = None,
    **given: Any,
) -> AsyncIterator[Models]:
    """Models named `vectors`, `ears` and `voice`."""
    common: dict[str, Any] = {"retries": 2, **given}
    own = HttpClient()
    tables = {
        "vectors": settings(
            server.base_url,
            api="openai-embeddings",
            model="text-embedding-3-small",
            dimensions=dimensions,
            **common,
        ),
        "ears": settings(server.base_url, api="openai-transcription", model="gpt-ears", **common),
        "voice": settings(server.base_url, api="openai-speech", voice="coral", model="tts-1", **common),
    }
    policy = RetryPolicy(sleep=sleep or Slept(), chance=lambda: 1.0, clock=lambda: 1_700_000_000.0)
    async with own, Models(tables, clients or own, resolver, 64 * 1024, retry_policy=policy) as models:
        yield models


async def spoken(models: Models, text: str, **given: Any) -> tuple[bytes, Any]:
    pieces: list[bytes] = []

    async def take(piece: bytes) -> None:
        pieces.append(piece)

    speech = await models.speech("voice").speak(text, take, **given)
    return b"".join(pieces), speech


def closeness(one: "array[float]", other: "array[float]") -> float:
    return sum(map(float.__mul__, one, other)) / math.hypot(*one) / math.hypot(*other)


async def test_texts_become_vectors_in_the_order_of_the_texts(server: ScriptedModel) -> None:
    async with other_kinds(server) as models:
        found = await models.embeddings("vectors").embed(["a red boat", "taxes are due", "the boats are red"])
    red, taxes, boats = found.vectors
    assert len(red) == len(taxes) == len(boats) == 256
    assert closeness(red, boats) > 0.5 > 0.3 > closeness(red, taxes)
    assert found.usage == Usage(input=12, cost=240), "12 tokens at 0.02 dollars a million"
    (request,) = server.recorded
    assert request.path == "/v1/embeddings" and request.decoded()["encoding_format"] == "float"


async def test_vectors_are_as_the_official_client_reads_them(server: ScriptedModel) -> None:
    """The official client asks for base64, ours for numbers; both are read."""
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        theirs = await client.embeddings.create(model="m", input=["a red boat"], dimensions=64)
        said = await client.audio.transcriptions.create(model="whisper-1", file=("a.mp3", MP3))
        heard = await client.audio.speech.create(model="m", input="hello", voice="coral")
    assert said.text == "the boat is red" and heard.content.startswith(b"coral say:hello")
    for mood in ("", "base64"):
        server.behave(Behaviour(services={"embeddings": mood}))
        async with other_kinds(server, dimensions=64) as models:
            (ours,) = (await models.embeddings("vectors").embed(["a red boat"])).vectors
        assert list(ours) == pytest.approx(theirs.data[0].embedding, abs=1e-6)


@pytest.mark.parametrize(
    ("mood", "kind", "said"),
    [
        ("garbage", "protocol", "did not answer with embeddings"),
        ("html", "protocol", "did not answer with embeddings"),
        ("fewer", "protocol", "answered with 1 embeddings for 2 texts"),
        ("twice", "protocol", "numbered its embeddings wrongly"),
        ("mixed", "protocol", "of different or impossible lengths"),
        ("impossible", "protocol", "impossible numbers"),
        ("cut", "network", "broke"),
        ("status 401", "authorisation", "rejected the key (401)"),
        ("status 429", "rate", "limiting the request rate"),
        ("status 500", "overloaded", "overloaded or failing (500)"),
        ("refuse boat", "invalid", "refused the request (400)"),
    ],
)
async def test_an_endpoint_that_misbehaves_is_one_sentence_with_the_name_of_the_model(
    server: ScriptedModel, mood: str, kind: str, said: str
) -> None:
    """An answer of another shape is never half used; failures are those of chat models."""
    server.behave(Behaviour(services={"embeddings": mood}))
    async with other_kinds(server) as models:
        with pytest.raises(ModelFailed, match="Model 'vectors': ") as caught:
            await models.embeddings("vectors").embed(["a red boat", "taxes"])
        assert caught.value.kind == kind and said in caught.value.message
        assert models.states()["vectors"].failures[caught.value.kind] >= 1


async def test_vectors_of_another_length_than_configured_are_refused(server: ScriptedModel) -> None:
    server.behave(Behaviour(services={"embeddings": "dimensions 7"}))
    table = settings(server.base_url, api="openai-embeddings", dimensions=8, retries=0)
    own = HttpClient()
    async with own, Models({"vectors": table}, own, resolver, 1000) as models:
        with pytest.raises(ModelFailed, match="of 7 numbers instead of 8; check base_url and `model`"):
            await models.embeddings("vectors").embed(["boat"])


async def test_a_failing_endpoint_is_asked_again_and_a_hanging_one_is_given_up(server: ScriptedModel) -> None:
    """Retries and deadlines are those of chat models."""
    slept = Slept()
    server.behave(Behaviour(services={"embeddings": "status 503"}, service_times=2))
    async with other_kinds(server, sleep=slept) as models:
        assert len((await models.embeddings("vectors").embed(["boat"])).vectors) == 1
    assert len(slept.pauses) == 2 and server.counts["embeddings"] == 3
    server.behave(Behaviour(services=dict.fromkeys(("embeddings", "audio/transcriptions", "audio/speech"), "hang")))
    async with other_kinds(server, first_byte_timeout=0.2) as models:
        with pytest.raises(ModelFailed, match="first_byte_timeout"):
            await models.embeddings("vectors").embed(["boat"])
        with pytest.raises(ModelFailed, match="first_byte_timeout"):
            await models.transcription("ears").transcribe(MP3, "audio/mpeg", seconds=1)
        with pytest.raises(ModelFailed, match="first_byte_timeout"):
            await spoken(models, "hello")


async def test_tokens_that_are_not_reported_are_estimated(server: ScriptedModel) -> None:
    server.behave(Behaviour(services=dict.fromkeys(("embeddings", "audio/transcriptions"), "nousage")))
    async with other_kinds(server) as models:
        found = await models.embeddings("vectors").embed(["a red boat is here"])
        assert found.usage.estimated and found.usage.input == 5
        said = await models.transcription("ears").transcribe(MP3, "audio/mpeg", seconds=30)
        assert said.usage.estimated and said.usage.input == 300


async def test_a_sound_is_transcribed(server: ScriptedModel) -> None:
    async with other_kinds(server) as models:
        ears = models.transcription("ears")
        said = await ears.transcribe(MP3, "audio/mpeg", seconds=1, language="en", prompt="Skerry\r\n--Point")
        assert said.text == "the boat is red" and not said.usage.estimated and said.usage.input == 10
        with pytest.raises(ModelFailed, match="'video/x' cannot be transcribed"):
            await ears.transcribe(MP3, "video/x", seconds=1)
        with pytest.raises(ModelFailed, match="larger than"):
            await ears.transcribe(bytes(26 * 1024 * 1024), "audio/mpeg", seconds=1)
        server.behave(Behaviour(services={"audio/transcriptions": "garbage"}))
        with pytest.raises(ModelFailed, match="did not answer with a transcript"):
            await ears.transcribe(MP3, "audio/mpeg", seconds=1)
    assert server.counts["refused"] == 0


async def test_prices_by_the_minute_and_by_the_character_are_charged(server: ScriptedModel) -> None:
    own = HttpClient()
    tables = {
        "ears": settings(server.base_url, api="openai-transcription", model="whisper-1"),
        "voice": settings(server.base_url, api="openai-speech", voice="coral", model="m", price_characters=20),
    }
    async with own, Models(tables, own, resolver, 1000) as models:
        said = await models.transcription("ears").transcribe(MP3, "audio/mpeg", seconds=90)
        assert said.usage.cost == 9_000_000, "a minute and a half at 0.006 dollars"
        _, speech = await spoken(models, "x" * 500)
        assert speech.usage.cost == 10_000_000, "500 characters at 20 dollars a million"


async def test_a_text_is_spoken_in_pieces(server: ScriptedModel) -> None:
    async with other_kinds(server) as models:
        sound, speech = await spoken(models, "hello " * 100)
        assert sound.startswith(b"coral say:hello hello") and len(sound) == speech.bytes > 10_000
        assert speech.media_type == "audio/mpeg" and speech.usage.estimated
        sound, speech = await spoken(models, "hello", voice="ash", format="opus")
        assert sound.startswith(b"ash say:hello") and speech.media_type == "audio/opus"
        with pytest.raises(ModelFailed, match="1 to 4096 characters"):
            await spoken(models, "x" * 5000)


@pytest.mark.parametrize("mood", ["html", "garbage"])
async def test_what_is_not_a_sound_is_never_passed_on(server: ScriptedModel, mood: str) -> None:
    server.behave(Behaviour(services={"audio/speech": mood}))
    async with other_kinds(server) as models:
        with pytest.raises(ModelFailed, match=r"not with a sound|without a sound"):
            await spoken(models, "hello")


async def test_the_key_is_sent_to_every_kind_and_appears_in_no_error(server: ScriptedModel) -> None:
    """X15."""
    async with other_kinds(server, key="env:CANARY") as models:
        await models.embeddings("vectors").embed(["boat"])
        await models.transcription("ears").transcribe(MP3, "audio/mpeg", seconds=1)
        await spoken(models, "hello")
        assert [request.authorization for request in server.recorded] == [f"Bearer {CANARY}"] * 3
        assert models.states()["ears"].keys == 1
        with pytest.raises(ModelFailed) as caught:
            server.behave(Behaviour(services={"embeddings": "status 401"}))
            await models.embeddings("vectors").embed(["boat"])
        assert CANARY not in str(msgspec.to_builtins(caught.value.message)) + caught.value.endpoint_message


async def test_a_model_of_another_kind_is_not_a_chat_model(server: ScriptedModel) -> None:
    async with other_kinds(server) as models:
        assert models.names == ()
        with pytest.raises(Misconfigured, match="There is no chat model 'vectors'"):
            models.get("vectors")
        with pytest.raises(Misconfigured, match="There is no model 'voice' for embeddings; the configured ones are: v"):
            models.embeddings("voice")


async def test_calls_of_every_kind_are_recorded_and_replayed(server: ScriptedModel, tmp_path: Path) -> None:
    """The replayed answers are the recorded ones; nothing is called."""
    file = tmp_path / "recording"

    async def results(models: Models) -> tuple[Any, ...]:
        found = await models.embeddings("vectors").embed(["a red boat", "taxes"])
        said = await models.transcription("ears").transcribe(MP3, "audio/mpeg", seconds=1)
        return found, said, await spoken(models, "hello")

    async with (
        HttpClient() as clients,
        TransportRecorder(clients, file, Redactor()) as recorder,
        other_kinds(server, clients=recorder) as models,
    ):
        before = await results(models)
    replayer = TransportReplayer(file, Redactor())
    await anyio.to_thread.run_sync(replayer.open)
    asked = server.counts["requests"]
    async with other_kinds(server, clients=replayer) as models:
        assert await results(models) == before
    assert server.counts["requests"] == asked == 3
