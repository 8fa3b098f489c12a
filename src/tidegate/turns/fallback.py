"""Which model answers in a session: the one that a person chose, the agent's own, or the next of its fallbacks.

Guarantee: what a person chose by /model is asked and nothing else: the chain is the agent's. A model that failed rests
for all sessions, if the failure was its own and not the conversation's; no model is asked that rests while one of the
chain does not. A session that has fallen back stays with its substitute for a while, over unload and restart, so that
it does not lose its cached prefix with every recovery; that is a row of its settings, apart from a person's choice. Its
user is told once when another model answers, and once when the agent's own has answered again.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.config import AgentSettings
from tidegate.engine import Journal, TakenTurn
from tidegate.errors import ModelFailed
from tidegate.log import Log
from tidegate.models import Model, Models
from tidegate.store import SettingRow, Store, settings
from tidegate.values import Frozen, Notice

log = Log(__name__)

KEY = "fallback"
"""Of the setting."""

UNHELPED = frozenset({"context", "content"})
"""Failures that are about what was said: another model is not asked to overlook them."""


class FallbackState(Frozen, frozen=True):
    """That a session has fallen back: who answers, instead of whom and why (the kind of its failure), and from when on
    the agent's own model is tried again."""

    model: str
    instead_of: str
    why: str
    until: float


class Fallbacks:
    def __init__(self, models: Models, store: Store, clock: Callable[[], float]) -> None:
        self._models = models
        self._store = store
        self._clock = clock
        self.fallbacks: Counter[str] = Counter()  # lint: allow one for each configured model
        """How often a session fell back to a model, by the model."""

    def model(self, agent: AgentSettings, held: tuple[SettingRow, ...]) -> Model:
        """Who would be asked now."""
        chosen = self._chosen(held)
        if chosen is not None:
            return self._models.get(chosen)
        chain = (agent.model, *agent.fallback)
        fallen = fallback_of(held)
        # A clock that was set back does not make it longer.
        if fallen is not None and fallen.model in chain and 0 < fallen.until - self._clock() <= agent.fallback_for:
            chain = (fallen.model, *(name for name in chain if name != fallen.model))
        awake = (name for name in chain if self._models.cooldowns.of(name) is None)
        return self._models.get(next(awake, chain[0]))

    def fallen(self, agent: AgentSettings, held: tuple[SettingRow, ...]) -> FallbackState | None:
        """That another than the agent's own would be asked now, if nobody chose that."""
        model = self.model(agent, held).name
        if model == agent.model or self._chosen(held) is not None:
            return None
        rest, stored = self._models.cooldowns.of(agent.model), fallback_of(held)
        until = [rest.until] if rest is not None else []
        why: str = rest.why if rest is not None else ""
        if stored is not None and stored.model == model:
            until.append(stored.until)
            why = stored.why
        return FallbackState(model=model, instead_of=agent.model, why=why, until=max(until, default=self._clock()))

    async def begin(self, journal: Journal, taken: TakenTurn, agent: AgentSettings) -> "AnsweringModel":
        """Who answers in this turn. A substitute that is new to the session is told of."""
        strict = self._chosen(taken.settings) is not None
        standing = AnsweringModel(self, journal, taken, agent, self.model(agent, taken.settings), strict)
        known, rest = fallback_of(taken.settings), self._models.cooldowns.of(agent.model)
        if not strict and (known is None or known.model != standing.model.name):
            await standing.note(standing.model, rest.why if rest is not None else "")
        return standing

    def _chosen(self, held: tuple[SettingRow, ...]) -> str | None:
        """What a person chose, if it is still configured."""
        names = self._models.names
        return next((setting.value for setting in held if setting.key == "model" and setting.value in names), None)

    # -- for a turn's standing --

    def rest(self, model: Model, failure: ModelFailed) -> float | None:
        return self._models.cooldowns.begin(model.name, failure)

    def awake(self, agent: AgentSettings, failed: tuple[Model, ...]) -> Model | None:
        """The first of the chain that neither rests nor is one of those, under whatever name."""
        useless = {model.signature for model in failed}
        for name in (agent.model, *agent.fallback):
            model = self._models.get(name)
            if model.signature not in useless and self._models.cooldowns.of(name) is None:
                return model
        return None

    async def remember(self, session: str, fallen: FallbackState) -> None:
        now = self._clock()
        await self._store.write(settings.put, session, KEY, msgspec.to_builtins(fallen), KEY, now, None)

    async def forget(self, session: str) -> None:
        await self._store.write(settings.clear, session, KEY)

    def until(self, agent: AgentSettings) -> float:
        return self._clock() + agent.fallback_for


class AnsweringModel:
    """Who answers in one turn, and what its user knows of that. It belongs to the turn."""

    def __init__(
        self, house: Fallbacks, journal: Journal, taken: TakenTurn, agent: AgentSettings, model: Model, strict: bool
    ) -> None:
        self._house = house
        self._journal = journal
        self._taken = taken
        self._agent = agent
        self._strict = strict
        self._fallen = fallback_of(taken.settings)
        self._kept = taken.session.kind != "ephemeral"
        self.model = model

    async def next(self, failed: tuple[Model, ...], failure: ModelFailed) -> Model | None:
        """Who is asked instead of those that failed in this step, the last of them with `failure`; None when there is
        nobody."""
        if failure.kind in UNHELPED:
            return None
        last = failed[-1]
        seconds = self._house.rest(last, failure)
        if self._strict or not self._agent.fallback:
            return None
        other = self._house.awake(self._agent, failed)
        log.warning(
            "a model failed",
            model=last.name,
            why=failure.kind,
            cooldowns=seconds,
            instead=other.name if other is not None else "nobody",
            error=failure.brief,
        )
        if other is None:
            self._tell_who_rests(failed, failure)
        else:
            known = "" if self._fallen is None else self._fallen.why
            await self.note(other, failure.kind if last.name == self._agent.model else known)
            self.model = other
        return other

    def _tell_who_rests(self, failed: tuple[Model, ...], failure: ModelFailed) -> None:
        asked = {model.name for model in failed}
        resting = [name for name in (self._agent.model, *self._agent.fallback) if name not in asked]
        if resting:
            failure.add(f"Not asked, since they failed before and are left alone for now: {', '.join(resting)}.")

    async def note(self, model: Model, why: str) -> None:
        """This one answers from now on, because of what the agent's own does."""
        if model.name == self._agent.model:
            return
        is_news = self._fallen is None or self._fallen.model != model.name
        until = self._house.until(self._agent)
        self._fallen = FallbackState(model=model.name, instead_of=self._agent.model, why=why, until=until)
        if self._kept:
            await self._house.remember(self._taken.session.id, self._fallen)
        if is_news:
            self._house.fallbacks[model.name] += 1
            self._journal.emit(Notice(text=sentence(self._fallen)))

    async def answered(self) -> None:
        """The turn has its answer: if that is the agent's own model's, falling back is over."""
        if self._fallen is None or self._strict or self.model.name != self._agent.model:
            return
        if self._kept:
            await self._house.forget(self._taken.session.id)
        self._journal.emit(Notice(text=f"The model {self._agent.model} answers again."))


def fallback_of(held: tuple[SettingRow, ...]) -> FallbackState | None:
    """What is written down of it, whether or not it is over."""
    value: Any = next((setting.value for setting in held if setting.key == KEY), None)
    try:
        return None if value is None else msgspec.convert(value, FallbackState)
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


def reason(fallen: FallbackState) -> str:
    """What the agent's own model does, in words."""
    return _REASONS.get(fallen.why, "fails")


def sentence(fallen: FallbackState) -> str:
    return f"The model {fallen.instead_of} {reason(fallen)}, so {fallen.model} answers for now."
