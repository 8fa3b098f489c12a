"""The configured models, by name.

Each model is created once, on entry, from its settings and the catalogue. A credential is used only for the models
whose settings name it, and a missing one is reported at startup, not during the first turn. A model that has failed
gets a cooldown, so that callers with a fallback can choose another one. The connections belong to the transport.
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import anyio
import msgspec

from tidegate.config import ModelSettings, is_reference
from tidegate.errors import Misconfigured, ModelKind
from tidegate.http_client import Network, Transport
from tidegate.models.catalog.catalog import Catalog
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.format import format_for
from tidegate.models.http.cooldown import Cooldowns
from tidegate.models.http.http_model import HttpModel
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
        self._key_cooldowns = Cooldowns(self._retry_policy.clock)
        self.cooldowns = Cooldowns(self._retry_policy.clock)
        """The models' cooldowns, by model name."""

    async def __aenter__(self) -> Self:
        # Keys may be in files on a slow disk.
        self._models = await anyio.to_thread.run_sync(self._build_all)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._models = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._models)

    def get(self, name: str) -> Model:
        model = self._models.get(name)
        if model is None:
            known = ", ".join(self._models) or "none"
            raise Misconfigured(f"There is no model {name!r}; the configured models are: {known}.")
        return model

    def states(self) -> dict[str, ModelState]:
        return {name: self._state(name, model) for name, model in self._models.items()}

    def _state(self, name: str, model: Model) -> ModelState:
        cooldown = self.cooldowns.of(name)
        http = model if isinstance(model, HttpModel) else None
        return ModelState(
            keys=sum(key.secret is not None for key in http.keys.keys) if http is not None else 0,
            keys_resting=http.keys.in_cooldown if http is not None else 0,
            rests_until=cooldown.until if cooldown is not None else None,
            rests_because=cooldown.why if cooldown is not None else None,
            failures=dict(http.failures) if http is not None else {},
        )

    def _build_all(self) -> dict[str, Model]:
        catalogue = Catalog.shipped()
        return {name: self._build(name, model, catalogue.facts_of(model)) for name, model in self._settings.items()}

    def _build(self, name: str, settings: ModelSettings, facts: Facts) -> Model:
        if settings.api == "demo":
            from tidegate.models.demo.model import DemoModel  # loaded only when it is configured

            return DemoModel(name, self._transport, facts)
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
        return HttpModel(
            name,
            settings,
            format_for(settings, facts),
            keys=KeyRing(keys, self._key_cooldowns, settings.base_url),
            headers=headers,
            redact=Redactor(secrets).text,
            transport=self._transport,
            answer_bytes=self._answer_bytes,
            retry_policy=self._retry_policy,
            proxy=self._proxy_for(settings),
        )

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
