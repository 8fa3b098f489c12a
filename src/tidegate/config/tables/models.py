"""The tables `[models.NAME]` and `[network]`: models, and how the gateway reaches them and other services."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec

from tidegate.config.value_types import (
    BaseUrl,
    Duration,
    FilePath,
    Flag,
    Headers,
    Integer,
    OneOf,
    Price,
    Proxy,
    Reference,
    References,
    Subset,
    Text,
)
from tidegate.values import Frozen

ModelKindName = Literal["chat", "embeddings", "transcription", "speech"]
MODEL_KINDS: Mapping[str, ModelKindName] = MappingProxyType(
    {
        "demo": "chat",
        "openai-chat": "chat",
        "openai-responses": "chat",
        "anthropic": "chat",
        "openai-embeddings": "embeddings",
        "openai-transcription": "transcription",
        "openai-speech": "speech",
    }
)
"""The kind of a model by its `api`."""


class ModelSettings(Frozen, frozen=True):
    """A model, `[models.NAME]`, with a name of your choice. If there is none, the built-in demo model is used."""

    api: Annotated[
        Literal[
            "demo",
            "openai-chat",
            "openai-responses",
            "anthropic",
            "openai-embeddings",
            "openai-transcription",
            "openai-speech",
        ],
        OneOf(*MODEL_KINDS),
        "Wire format: OpenAI's chat completions or responses, Anthropic's messages, or the built-in demo model; or, "
        "for a model that is not a chat model, OpenAI's embeddings, audio transcriptions or speech.",
    ]
    base_url: Annotated[
        str,
        BaseUrl(),
        "Base URL of the API; required unless `api` is demo. With a key, it must use https or be on this machine.",
    ] = ""
    model: Annotated[str, Text(), "The provider's name for the model; required unless `api` is demo."] = ""
    key: Annotated[
        str | None, Reference(), "Reference to the API key. Keys are read only from the places named here."
    ] = None
    keys: Annotated[
        tuple[str, ...],
        References(),
        "References to several API keys, instead of `key`. When one key's quota is used up, the next key is used.",
    ] = ()
    headers: Annotated[
        Mapping[str, str],
        Headers(),
        "Extra HTTP headers. A value that is a reference is replaced with its secret.",
    ] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    connect_timeout: Annotated[float, Duration(0.1), "Time limit for establishing a connection."] = 10.0
    first_byte_timeout: Annotated[float, Duration(0.1), "Time limit for the first byte of an answer."] = 120.0
    idle_timeout: Annotated[float, Duration(0.1), "Time limit for a pause within an answer."] = 60.0
    proxy: Annotated[
        str,
        Proxy(),
        'Proxy for this model: "environment", "none", its address, or a reference to an address with a password; '
        "default: as in [network].",
    ] = ""
    ca_file: Annotated[
        str | None,
        FilePath(),
        "Additional certificate authorities (PEM) to trust for this model, relative to the home folder.",
    ] = None
    retries: Annotated[
        int, Integer(0, 20), "How often a failed call is retried, unless text has already been shown."
    ] = 3
    context_window: Annotated[
        int | None,
        Integer(128, 2**30),
        "Maximum number of tokens in a request and its answer together, at least 1024; for an embeddings model: in one "
        "text. Default: from the catalogue.",
    ] = None
    max_output: Annotated[
        int | None, Integer(16, 2**30), "Maximum number of tokens in an answer; default: from the catalogue."
    ] = None
    vision: Annotated[
        bool | None, Flag(), "Whether the model accepts images and PDF documents; default: from the catalogue."
    ] = None
    audio: Annotated[bool | None, Flag(), "Whether the model accepts audio; default: from the catalogue."] = None
    thinking: Annotated[
        Literal["none", "effort", "adaptive", "budget"] | None,
        OneOf("none", "effort", "adaptive", "budget"),
        "How reasoning is controlled: not at all, with an effort level, with an effort level and adaptive thinking, or "
        "with a token budget; default: from the catalogue.",
    ] = None
    efforts: Annotated[
        tuple[str, ...] | None,
        Subset("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        "Effort levels that the model supports; default: from the catalogue.",
    ] = None
    price_input: Annotated[
        float | None,
        Price(),
        "Dollars per million input tokens. Together with `price_output`, replaces all prices from the catalogue.",
    ] = None
    price_output: Annotated[float | None, Price(), "Dollars per million output tokens."] = None
    price_cached: Annotated[
        float | None, Price(), "Dollars per million tokens read from the provider's cache; default: `price_input`."
    ] = None
    price_written: Annotated[
        float | None, Price(), "Dollars per million tokens written to the provider's cache; default: `price_input`."
    ] = None
    cache_ttl: Annotated[
        Literal["5m", "1h"] | None,
        OneOf("5m", "1h"),
        "How long the provider keeps its cache; default: 5m. Only for `api` anthropic.",
    ] = None

    dimensions: Annotated[
        int | None,
        Integer(8, 8192),
        "Length of the vectors to request; default: the model's own. Shorter vectors take less disk space. Only for "
        "`api` openai-embeddings.",
    ] = None
    voice: Annotated[str, Text(at_most=128), "Name of the voice; required for, and only for, `api` openai-speech."] = ""
    price_minute: Annotated[
        float | None,
        Price(),
        "Dollars per minute of audio, instead of prices per token. Only for `api` openai-transcription.",
    ] = None
    price_characters: Annotated[
        float | None,
        Price(),
        "Dollars per million characters, instead of prices per token. Only for `api` openai-speech.",
    ] = None

    @property
    def kind(self) -> ModelKindName:
        """What the model is for."""
        return MODEL_KINDS[self.api]

    @property
    def references(self) -> tuple[str, ...]:
        """References to the API keys, in the order in which the keys are used. Empty if the endpoint needs no key."""
        return self.keys if self.key is None else (self.key,)


class NetworkSettings(Frozen, frozen=True):
    """How the gateway connects to models and other services; see docs/network.md."""

    proxy: Annotated[
        str,
        Proxy(),
        'Proxy for requests to other machines: "environment" (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY), "none", its '
        "address, or a reference to an address with a password. NO_PROXY names exceptions.",
    ] = "environment"
    ca_file: Annotated[
        str | None,
        FilePath(),
        "Certificate authorities (PEM) to trust in addition to the system's, relative to the home folder.",
    ] = None
