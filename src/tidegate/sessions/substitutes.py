"""Which model answers in a session: the one that a person chose, the agent's own, or the next of its fallbacks.

Guarantee: what a person chose by /model is asked and nothing else: the chain is the agent's. A model that failed rests
for all sessions, if the failure was its own and not the conversation's. A session that has fallen back stays with its
substitute for a while, over unload and restart, so that it does not lose its cached prefix with every recovery; that is
a row of its settings, apart from the choice of a person. Its user is told once when it falls back and once when it is
over.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.config import AgentSettings
from tidegate.engine import Journal, Taken
from tidegate.errors import ModelFailed
from tidegate.log import Log
from tidegate.models import Model, Models
from tidegate.store import Setting, Store, settings
from tidegate.values import Frozen, Notice

log = Log(__name__)

KEY = "fallback"
"""Of the setting."""

UNHELPED = frozenset({"context", "content"})
"""Failures that are about what was said: another model is not asked to overlook them."""


class Fallen(Frozen, frozen=True):
    """That a session has fallen back: to whom, from whom and why, and from when on the agent's own is tried again."""

    model: str
    instead_of: str
    why: str
    until: float


class Substitutes:
    def __init__(self, models: Models, store: Store, clock: Callable[[], float]) -> None:
        self._models = models
        self._store = store
        self._clock = clock

    def model(self, agent: AgentSettings, held: tuple[Setting, ...]) -> Model:
        """Who would be asked now."""
        for setting in held:
            if setting.key == "model" and setting.value in self._models.names:
                return self._models.get(setting.value)
        chain = (agent.model, *agent.fallback)
        fallen = fallen_of(held)
        if fallen is not None and fallen.model in chain and fallen.until > self._clock():
            chain = (fallen.model, *(name for name in chain if name != fallen.model))
        awake = (name for name in chain if self._models.rests.of(name) is None)
        return self._models.get(next(awake, agent.model))

    async def begin(self, journal: Journal, taken: Taken, agent: AgentSettings) -> Model:
        """The model that this turn begins with; a change since the last one is told."""
        model = self.model(agent, taken.settings)
        fallen = fallen_of(taken.settings)
        if _is_chosen(model.name, taken.settings):
            return model
        if model.name == agent.model:
            if fallen is not None:
                await self._store.write(settings.clear, taken.session.id, KEY)
                journal.emit(Notice(text=f"The model {agent.model} answers again."))
        elif fallen is None or fallen.model != model.name:
            rest = self._models.rests.of(agent.model)
            await self._tell(journal, taken, agent, model, rest.why if rest is not None else "overloaded")
        return model

    async def next(
        self, journal: Journal, taken: Taken, agent: AgentSettings, failed: dict[str, Model], failure: ModelFailed
    ) -> Model | None:
        """Who is asked instead of those that failed in this turn, the last of them with `failure`; None when there is
        nobody."""
        if failure.kind in UNHELPED:
            return None
        last = next(reversed(failed))
        seconds = self._models.rests.begin(last, failure)
        chain = (agent.model, *agent.fallback)
        if len(chain) == 1 or _is_chosen(last, taken.settings):
            return None
        log.warning("a model failed", model=last, why=failure.kind, rests=seconds, error=failure.brief)
        useless = {model.signature for model in failed.values()}
        for name in chain:
            model = self._models.get(name)
            if model.signature not in useless and self._models.rests.of(name) is None:
                await self._tell(journal, taken, agent, model, failure.kind)
                return model
        return None

    async def _tell(self, journal: Journal, taken: Taken, agent: AgentSettings, model: Model, why: str) -> None:
        until = self._clock() + agent.fallback_for
        fallen = Fallen(model=model.name, instead_of=agent.model, why=why, until=until)
        if taken.session.kind != "ephemeral":
            now = self._clock()
            await self._store.write(settings.put, taken.session.id, KEY, msgspec.to_builtins(fallen), KEY, now, None)
        journal.emit(Notice(text=sentence(fallen)))


def _is_chosen(model: str, held: tuple[Setting, ...]) -> bool:
    """Whether a person chose it."""
    return any(setting.key == "model" and setting.value == model for setting in held)


def fallen_of(held: tuple[Setting, ...]) -> Fallen | None:
    value: Any = next((setting.value for setting in held if setting.key == KEY), None)
    try:
        return None if value is None else msgspec.convert(value, Fallen)
    except msgspec.ValidationError:
        return None


_REASONS = {
    "authorisation": "refuses its key",
    "quota": "has no quota left",
    "rate": "is asked too often",
    "overloaded": "is overloaded",
    "network": "cannot be reached",
    "timeout": "does not answer in time",
}


def sentence(fallen: Fallen) -> str:
    why = _REASONS.get(fallen.why, "fails")
    return f"The model {fallen.instead_of} {why}, so {fallen.model} answers for now."
