"""A transcription model, which converts speech to text.

The audio is sent unchanged, so the caller must limit its size (`SOUND_BYTES`). Request bodies are deterministic, so
that a recording can be replayed. The rules for model endpoints apply (`http/endpoint.py`).
"""

import hashlib
from collections.abc import Sequence

import msgspec

from tidegate.errors import ModelFailed
from tidegate.http_client import Target
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.token_counts import ReportedUsage, TokenEstimate, checked_usage
from tidegate.models.http.endpoint import ModelEndpoint
from tidegate.values import Frozen, Usage

PATH = "/audio/transcriptions"
SOUND_BYTES = 25 * 1024 * 1024
"""Maximum size of the audio that OpenAI's endpoint accepts."""
ENDINGS = {
    "audio/flac": "flac",
    "audio/m4a": "m4a",
    "audio/mp4": "mp4",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
    "audio/ogg": "ogg",
    "audio/opus": "ogg",
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/webm": "webm",
}
"""File name extensions by media type. Endpoints recognise the type of audio by the file name."""
TOKENS_PER_SECOND = 10
"""Number of tokens per second of audio, for endpoints that do not report them."""


class Transcript(Frozen, frozen=True):
    text: str
    usage: Usage


class _Answer(msgspec.Struct, frozen=True):
    text: str
    usage: msgspec.Raw = msgspec.Raw(b"{}")


class TranscriptionModel:
    def __init__(
        self, name: str, endpoint: ModelEndpoint, facts: Facts, *, provider_model: str, answer_bytes: int
    ) -> None:
        self.name = name
        self.endpoint = endpoint
        self.facts = facts
        self.provider_model = provider_model
        self.token_estimate = TokenEstimate()
        self._answer_bytes = answer_bytes

    def __repr__(self) -> str:
        return f"TranscriptionModel({self.name!r})"

    async def transcribe(
        self, sound: bytes, media_type: str, *, seconds: float, language: str = "", prompt: str = ""
    ) -> Transcript:
        """Returns the text of the speech. `seconds` is the duration of the audio, by which some providers charge;
        `language` is the ISO 639-1 code of its language; `prompt` is a text that contains the names that occur in the
        audio. Raises ModelFailed."""
        media_type = media_type.partition(";")[0].strip().lower()
        ending = ENDINGS.get(media_type)
        if ending is None:
            raise self._invalid(f"a sound of the type {media_type[:60]!r} cannot be transcribed; convert it to mp3.")
        if len(sound) > SOUND_BYTES:
            raise self._invalid(f"the sound is larger than {SOUND_BYTES} bytes; send a shorter one.")
        fields = [("model", self.provider_model), ("response_format", "json")]
        fields += [(name, text) for name, text in (("language", language), ("prompt", prompt)) if text]
        boundary, body = multipart(fields, f"sound.{ending}", media_type, sound)

        async def attempt(target: Target) -> Transcript:
            typed = target._replace(headers=_with_type(target, f"multipart/form-data; boundary={boundary}"))
            _, answer = await self.endpoint.fetch(typed, body, 2 * self._answer_bytes)
            try:
                found = msgspec.json.decode(answer, type=_Answer)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                what = "the endpoint did not answer with a transcript; check base_url."
                failure = self.endpoint.failures.failed(what, kind="protocol", retryable=False)
                failure.received_bytes = len(answer)
                raise failure from None
            return Transcript(text=found.text, usage=self._usage(found, seconds))

        return await self.endpoint.call(attempt, may_retry=lambda failure: not failure.received_bytes)

    def estimate(self, seconds: float) -> Usage:
        """Returns the estimated usage of a call that was cut off."""
        tokens = round(TOKENS_PER_SECOND * seconds)
        return self.facts.priced(Usage(input=tokens, estimated=True), seconds=seconds)

    def _usage(self, answer: _Answer, seconds: float) -> Usage:
        reported = ReportedUsage(bytes(answer.usage))
        input, output = reported.tokens("input_tokens"), reported.tokens("output_tokens")
        heard, said = round(TOKENS_PER_SECOND * seconds), len(answer.text.encode())
        if not input:
            estimated = Usage(input=heard, output=self.token_estimate.tokens(said), estimated=True)
            return self.facts.priced(estimated, seconds=seconds)
        # A second of sound is far less than a thousand tokens.
        checked = checked_usage(self, Usage(input=input, output=output), asked=100 * heard, received=said)
        return self.facts.priced(checked, seconds=seconds)

    def _invalid(self, what: str) -> ModelFailed:
        return self.endpoint.failures.failed(what, kind="invalid", retryable=False)


def multipart(
    fields: Sequence[tuple[str, str]], name: str, media_type: str, content: bytes
) -> tuple[str, tuple[bytes, ...]]:
    """Returns a boundary and a form with these fields and one file. The boundary is a digest of the parts, so no part
    can contain it."""
    digest = hashlib.sha256()
    for part in (*(text.encode() for field in fields for text in field), content):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    boundary = f"tidegate-{digest.hexdigest()[:40]}"
    head = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{text}\r\n' for field, text in fields
    )
    head += f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
    head += f"Content-Type: {media_type}\r\n\r\n"
    return boundary, (head.encode(), content, f"\r\n--{boundary}--\r\n".encode())


def _with_type(target: Target, content_type: str) -> dict[str, str]:
    return {**target.headers, "Content-Type": content_type}
