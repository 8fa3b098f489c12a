"""A model for embeddings: it turns texts into vectors of numbers, which are close to each other for related texts.

Every answer is checked: one vector for each text, all of the same length, and of the configured length if there is one,
with finite numbers only. Any other answer raises ModelFailed. The numbers are parsed outside the event loop. The rules
for model endpoints apply (`http/endpoint.py`).
"""

import base64
import hashlib
import math
import sys
from array import array
from collections.abc import Sequence

import msgspec
from anyio import to_thread

from tidegate.errors import ModelFailed
from tidegate.http_client import Target
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.token_counts import ReportedUsage, TokenEstimate, checked_usage
from tidegate.models.http.endpoint import ModelEndpoint
from tidegate.values import Frozen, Usage

PATH = "/embeddings"
TEXTS = 32
"""Maximum number of texts in one call. Some servers accept no more."""
DIMENSIONS = 8192
"""Maximum length of a vector."""
TEXT_ANSWER_BYTES = 256 * 1024
"""Maximum size of an answer for each text. A number takes about twenty bytes, so this is enough for ten thousand
numbers."""


class Embeddings(Frozen, frozen=True):
    """The vectors of some texts, in the order of the texts."""

    vectors: tuple["array[float]", ...]
    usage: Usage


class _Item(msgspec.Struct, frozen=True):
    index: int
    embedding: list[float] | str


class _Answer(msgspec.Struct, frozen=True):
    data: list[_Item]
    usage: msgspec.Raw = msgspec.Raw(b"{}")


class _Garbage(Exception):
    """The answer is not what was requested. The exception's text says why."""


class EmbeddingsModel:
    """One configured model. Vectors can be compared only if they have the same `identity`, a digest of the endpoint,
    the provider's model and the length of the vectors."""

    def __init__(
        self,
        name: str,
        endpoint: ModelEndpoint,
        facts: Facts,
        *,
        base_url: str,
        provider_model: str,
        dimensions: int | None,
    ) -> None:
        self.name = name
        self.endpoint = endpoint
        self.facts = facts
        self.provider_model = provider_model
        self.token_estimate = TokenEstimate()
        self._dimensions = dimensions
        parts = msgspec.json.encode((base_url.rstrip("/"), provider_model, dimensions))
        self.identity = hashlib.sha256(parts).hexdigest()

    def __repr__(self) -> str:
        return f"EmbeddingsModel({self.name!r})"

    async def embed(self, texts: Sequence[str]) -> Embeddings:
        """Returns the vectors of at most `TEXTS` texts, none of which may be empty. Raises ModelFailed."""
        if not 0 < len(texts) <= TEXTS or not all(texts):
            raise ValueError(f"expected 1 to {TEXTS} texts that are not empty")
        request: dict[str, object] = {"model": self.provider_model, "input": list(texts), "encoding_format": "float"}
        if self._dimensions is not None:
            request["dimensions"] = self._dimensions
        body = msgspec.json.encode(request)
        asked = sum(len(text.encode()) for text in texts)

        async def attempt(target: Target) -> Embeddings:
            _, answer = await self.endpoint.fetch(target, [body], TEXT_ANSWER_BYTES * (1 + len(texts)))
            try:
                vectors, reported = await to_thread.run_sync(_read, answer, len(texts), self._dimensions)
            except _Garbage as error:
                failure = self.endpoint.failures.failed(
                    f"{error}; check base_url and `model`.", kind="protocol", retryable=False
                )
                failure.received_bytes = len(answer)
                raise failure from None
            usage = checked_usage(self, self.facts.priced(reported), asked=asked, received=0)
            if not usage.estimated:
                self.token_estimate.learn(asked, usage.input)
            return Embeddings(vectors=vectors, usage=usage)

        return await self.endpoint.call(attempt, may_retry=_unbilled)

    def estimate(self, texts: Sequence[str]) -> Usage:
        """Returns the estimated usage of a call that was cut off."""
        tokens = self.token_estimate.tokens(sum(len(text.encode()) for text in texts))
        return self.facts.priced(Usage(input=tokens, estimated=True))


def _unbilled(failure: ModelFailed) -> bool:
    """True unless part of an answer had arrived, for which the provider may charge."""
    return not failure.received_bytes


def _read(answer: bytes, texts: int, dimensions: int | None) -> tuple[tuple["array[float]", ...], Usage]:
    """Returns the vectors in the order of the texts, and the reported usage. Raises _Garbage."""
    try:
        found = msgspec.json.decode(answer, type=_Answer)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise _Garbage("the endpoint did not answer with embeddings") from None
    vectors: dict[int, array[float]] = {}
    for item in found.data:
        if not 0 <= item.index < texts or item.index in vectors:
            raise _Garbage("the endpoint numbered its embeddings wrongly")
        vectors[item.index] = _vector(item.embedding)
    if len(vectors) != texts:
        raise _Garbage(f"the endpoint answered with {len(vectors)} embeddings for {texts} texts")
    lengths = {len(vector) for vector in vectors.values()}
    length = min(lengths)
    if len(lengths) > 1 or not 0 < length <= DIMENSIONS:
        raise _Garbage("the endpoint answered with embeddings of different or impossible lengths")
    if dimensions is not None and length != dimensions:
        raise _Garbage(f"the endpoint answered with embeddings of {length} numbers instead of {dimensions}")
    usage = Usage(input=ReportedUsage(bytes(found.usage)).tokens("prompt_tokens"))
    return tuple(vectors[number] for number in range(texts)), usage


def _vector(numbers: list[float] | str) -> "array[float]":
    vector: array[float] = array("f")
    try:
        if isinstance(numbers, str):
            vector.frombytes(base64.b64decode(numbers, validate=True))
            if sys.byteorder == "big":
                vector.byteswap()
        else:
            vector.extend(numbers)
    except (ValueError, OverflowError):
        raise _Garbage("the endpoint answered with embeddings that cannot be read") from None
    if not math.isfinite(math.hypot(*vector)):
        raise _Garbage("the endpoint answered with embeddings that contain impossible numbers")
    return vector
