"""The configured models, by name.

Each model is created once, on entry, from its settings and the catalogue. A credential is used only for the models
whose settings name it, and a missing one is reported at startup, not during the first turn. A model that has failed
gets a cooldown, so that callers with a fallback can choose another one. The connections belong to the transport.
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import anyio
import msgspec

from tidegate.config import ModelSettings, is_reference
from tidegate.errors import Misconfigured, ModelKind
from tidegate.http_client import Network, Transport
from tidegate.models.catalog.catalog import Catalog
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.format import format_for
from tidegate.models.http.cooldown import Cooldowns
from tidegate.models.http.endpoint import ModelEndpoint, json_headers
from tidegate.models.http.http_model import HttpModel, signature
from tidegate.models.http.keyring import Key, KeyRing
from tidegate.models.http.retry import RetryPolicy
from tidegate.models.interface import Model
from tidegate.security import Redactor, Secret
from tidegate.values import Frozen


class ModelState(Frozen, frozen=True, omit_defaults=False):
    """A model's state. `keys` is the number of its keys, and `keys_resting` the number of keys in cooldown.
    `rests_until` and `rests_because` are the end of and the reason for the model's own cooldown. `failures` counts
    failed requests by kind since the process started."""

    keys: int = 0
    keys_resting: int = 0
    rests_until: float | None = None
    rests_because: ModelKind | None = None
    failures: Mapping[ModelKind, int] = msgspec.field(default_factory=dict)


if TYPE_CHECKING:
    from tidegate.models.embeddings import EmbeddingsModel
    from tidegate.models.speech import SpeechModel
    from tidegate.models.transcription import TranscriptionModel

    OtherModel = EmbeddingsModel | TranscriptionModel | SpeechModel
    Other = TypeVar("Other", EmbeddingsModel, TranscriptionModel, SpeechModel)

DEMO = "demo"


class Models:
    def __init__(
        self,
        settings: Mapping[str, ModelSettings],
        transport: Transport,
        resolve: Callable[[str], Secret],
        answer_bytes: int,
        *,
        retry_policy: RetryPolicy | None = None,
        network: Network | None = None,
    ) -> None:
        self._network = network
        self._settings = settings
        self._transport = transport
        self._resolve = resolve
        self._answer_bytes = answer_bytes
        self._retry_policy = retry_policy or RetryPolicy()
        self._models: dict[str, Model] = {}
        self._others: dict[str, OtherModel] = {}
        self._key_cooldowns = Cooldowns(self._retry_policy.clock)
        self.cooldowns = Cooldowns(self._retry_policy.clock)
        """The models' cooldowns, by model name."""

    async def __aenter__(self) -> Self:
        # Keys may be in files on a slow disk.
        await anyio.to_thread.run_sync(self._build_all)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._models, self._others = {}, {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the chat models."""
        return tuple(self._models)

    def get(self, name: str) -> Model:
        """Returns a chat model."""
        model = self._models.get(name)
        if model is None:
            known = ", ".join(self._models) or "none"
            raise Misconfigured(f"There is no chat model {name!r}; the configured chat models are: {known}.")
        return model

    def embeddings(self, name: str) -> "EmbeddingsModel":
        from tidegate.models.embeddings import EmbeddingsModel

        return self._other(name, EmbeddingsModel, "for embeddings")

    def transcription(self, name: str) -> "TranscriptionModel":
        from tidegate.models.transcription import TranscriptionModel

        return self._other(name, TranscriptionModel, "for transcription")

    def speech(self, name: str) -> "SpeechModel":
        from tidegate.models.speech import SpeechModel

        return self._other(name, SpeechModel, "for speech")

    def _other(self, name: str, kind: "type[Other]", what: str) -> "Other":
        model = self._others.get(name)
        if not isinstance(model, kind):
            known = ", ".join(name for name, other in self._others.items() if isinstance(other, kind)) or "none"
            raise Misconfigured(f"There is no model {name!r} {what}; the configured ones are: {known}.")
        return model

    def states(self) -> dict[str, ModelState]:
        """Returns the states of the models of all kinds."""
        return {name: self._state(name, {**self._models, **self._others}[name]) for name in self._settings}

    def _state(self, name: str, model: "Model | OtherModel") -> ModelState:
        cooldown = self.cooldowns.of(name)
        endpoint = getattr(model, "endpoint", None)
        if not isinstance(endpoint, ModelEndpoint):
            return ModelState()
        return ModelState(
            keys=sum(key.secret is not None for key in endpoint.keys.keys),
            keys_resting=endpoint.keys.in_cooldown,
            rests_until=cooldown.until if cooldown is not None else None,
            rests_because=cooldown.why if cooldown is not None else None,
            failures=dict(endpoint.failed_requests),
        )

    def _build_all(self) -> None:
        catalogue = Catalog.shipped()
        for name, settings in self._settings.items():
            facts = catalogue.facts_of(settings)
            if settings.api == "demo":
                from tidegate.models.demo.model import DemoModel  # loaded only when it is configured

                self._models[name] = DemoModel(name, self._transport, facts)
            elif settings.kind == "chat":
                self._models[name] = self._build(name, settings, facts)
            else:
                self._others[name] = self._build_other(name, settings, facts)

    def _build(self, name: str, settings: ModelSettings, facts: Facts) -> HttpModel:
        format = format_for(settings, facts)
        endpoint, headers = self._endpoint(
            name, settings, format.path, lambda key: json_headers(format.headers(key), "text/event-stream")
        )
        secrets = [key.secret for key in endpoint.keys.keys]
        return HttpModel(
            name,
            endpoint,
            format,
            provider_model=settings.model,
            signature=signature(format.api, settings.base_url, settings.model, headers, secrets, facts),
            answer_bytes=self._answer_bytes,
        )

    def _build_other(self, name: str, settings: ModelSettings, facts: Facts) -> "OtherModel":
        """Returns a model of a kind other than chat. Only the kinds that the configuration uses are imported."""
        model = settings.model
        if settings.kind == "embeddings":
            from tidegate.models import embeddings

            endpoint, _ = self._endpoint(name, settings, embeddings.PATH, _bearer)
            return embeddings.EmbeddingsModel(
                name,
                endpoint,
                facts,
                base_url=settings.base_url,
                provider_model=model,
                dimensions=settings.dimensions,
            )
        if settings.kind == "transcription":
            from tidegate.models import transcription

            endpoint, _ = self._endpoint(name, settings, transcription.PATH, _bearer)
            return transcription.TranscriptionModel(
                name, endpoint, facts, provider_model=model, answer_bytes=self._answer_bytes
            )
        from tidegate.models import speech

        endpoint, _ = self._endpoint(name, settings, speech.PATH, _bearer)
        return speech.SpeechModel(name, endpoint, facts, provider_model=model, voice=settings.voice)

    def _endpoint(
        self,
        name: str,
        settings: ModelSettings,
        path: str,
        headers_for: Callable[[str | None], Mapping[str, str]],
    ) -> tuple[ModelEndpoint, dict[str, str]]:
        """Returns the endpoint, and the configured headers with their secrets."""
        for field in ("base_url", "model"):
            if not getattr(settings, field):
                raise Misconfigured(f'[models.{name}] needs `{field}` for api = "{settings.api}"; set it.')
        if settings.model == DEMO:
            raise Misconfigured(
                f'[models.{name}] model = "{DEMO}" is reserved for the built-in model, whose usage costs nothing; use '
                "another name for the endpoint's model."
            )
        secrets: list[Secret] = []
        setting = f"[models.{name}] {'keys' if settings.keys else 'key'}"
        keys = [Key(reference, self._reveal(setting, reference, secrets)) for reference in settings.references]
        headers = {
            header: self._reveal(f"[models.{name}] headers.{header}", value, secrets) if is_reference(value) else value
            for header, value in settings.headers.items()
        }
        endpoint = ModelEndpoint(
            name,
            settings,
            path,
            keys=KeyRing(keys, self._key_cooldowns, settings.base_url),
            headers_for=headers_for,
            headers=headers,
            redact=Redactor(secrets).text,
            transport=self._transport,
            retry_policy=self._retry_policy,
            proxy=self._proxy_for(settings),
        )
        return endpoint, headers

    def _proxy_for(self, settings: ModelSettings) -> Secret | None:
        if self._network is None:
            return None
        return self._network.secret_proxy_for(settings.base_url, settings.proxy)

    def _reveal(self, setting: str, reference: str, secrets: list[Secret]) -> str:
        """Returns the secret behind a reference. Raises Misconfigured if a header cannot contain its value. The value
        is added to `secrets` so that it is redacted."""
        secret = self._resolve(reference)
        text = secret.reveal()
        if not text or not text.isascii() or not text.isprintable():
            raise Misconfigured(
                f"{setting} = {reference!r} refers to a value that is empty or has characters that are not allowed "
                f"in headers; correct the value."
            )
        secrets.append(secret)
        return text


def _bearer(key: str | None) -> dict[str, str]:
    return json_headers({} if key is None else {"Authorization": f"Bearer {key}"}, "*/*")
