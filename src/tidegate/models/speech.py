"""A speech model, which converts text to audio.

The audio is passed on in pieces as it arrives and is never held in memory as a whole. A call is not retried after a
piece has been passed on. The rules for model endpoints apply (`http/endpoint.py`).
"""

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from tidegate.errors import ModelFailed
from tidegate.http_client import Target
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.token_counts import TokenEstimate
from tidegate.models.http.endpoint import ModelEndpoint
from tidegate.values import Frozen, Usage

PATH = "/audio/speech"
TEXT_CHARACTERS = 4096
"""The longest text that OpenAI's endpoint accepts."""
SOUND_BYTES = 64 * 1024 * 1024
"""Maximum size of one answer: several minutes of uncompressed audio, which is more than any accepted text needs."""
TOKENS_PER_CHARACTER = 1.4
"""Number of audio tokens per character of text: about fifteen characters are spoken per second, and a second of audio
is about twenty tokens. No endpoint reports the tokens in a plain answer."""

SoundFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


class Speech(Frozen, frozen=True):
    """The end of a call. `media_type` is the type of the audio."""

    media_type: str
    bytes: int
    usage: Usage


class SpeechModel:
    def __init__(self, name: str, endpoint: ModelEndpoint, facts: Facts, *, provider_model: str, voice: str) -> None:
        self.name = name
        self.endpoint = endpoint
        self.facts = facts
        self.provider_model = provider_model
        self.voice = voice
        self._estimate = TokenEstimate()

    def __repr__(self) -> str:
        return f"SpeechModel({self.name!r})"

    async def speak(
        self,
        text: str,
        on_sound: Callable[[bytes], Awaitable[None]],
        *,
        format: SoundFormat = "mp3",
        voice: str = "",
    ) -> Speech:
        """Converts a text to speech. `on_sound` receives the pieces of audio in order. Raises ModelFailed."""
        if not text or len(text) > TEXT_CHARACTERS:
            what = f"a text to be spoken needs 1 to {TEXT_CHARACTERS} characters; divide a longer one."
            raise self.endpoint.failures.failed(what, kind="invalid", retryable=False)
        body = msgspec.json.encode(
            {"model": self.provider_model, "input": text, "voice": voice or self.voice, "response_format": format}
        )
        passed = 0

        async def take(media_type: str, piece: bytes) -> None:
            nonlocal passed
            if media_type in ("application/json", "text/html", "text/event-stream"):
                what = f"the endpoint answered with {media_type}, not with a sound; check base_url."
                raise self.endpoint.failures.failed(what, kind="protocol", retryable=False)
            passed += len(piece)
            await on_sound(piece)

        async def attempt(target: Target) -> Speech:
            media_type, _ = await self.endpoint.fetch(target, [body], SOUND_BYTES, take)
            if not passed:
                what = "the endpoint answered without a sound; try again."
                raise self.endpoint.failures.failed(what, kind="protocol", retryable=True)
            return Speech(media_type=media_type, bytes=passed, usage=self.estimate(text))

        def may_retry(failure: ModelFailed) -> bool:
            failure.received_bytes = passed
            return not passed

        return await self.endpoint.call(attempt, may_retry=may_retry)

    def estimate(self, text: str) -> Usage:
        """Returns the usage of a call. Only the number of characters, by which some providers charge, is known."""
        input = self._estimate.tokens(len(text.encode()))
        output = round(TOKENS_PER_CHARACTER * len(text))
        return self.facts.priced(Usage(input=input, output=output, estimated=True), characters=len(text))
