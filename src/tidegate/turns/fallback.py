"""The choice of the model that answers in a session: the user's choice, the agent's own model, or one of the agent's
fallbacks.

A model chosen with /model has no fallback, since the fallback chain belongs to the agent's own model. A model that
fails enters a cooldown for all sessions, unless the conversation caused the failure. No model in cooldown is called
while another model in the chain is available. A session keeps its fallback for a while, even across unloading and
restarts, because each change of model costs the cached prefix. The fallback is one of the session's settings, separate
from the user's choice. The user is notified once when another model answers, and once when the agent's own model
answers again.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.agent import Turn
from tidegate.config import AgentSettings
from tidegate.engine import TakenTurn
from tidegate.errors import ModelFailed
from tidegate.log import Log
from tidegate.models import Model, Models
from tidegate.store import SettingRow, settings
from tidegate.values import Frozen, Notice

log = Log(__name__)

KEY = "fallback"
"""The key of the setting that stores a session's fallback."""

UNHELPED = frozenset({"context", "content"})
"""The kinds of failure that are caused by the conversation's content. After such a failure, no other model is
called."""


class FallbackState(Frozen, frozen=True):
    """A session's fallback: the model that answers, the model that it replaces, the kind of failure, and the time from
    which the agent's own model is tried again."""

    model: str
    instead_of: str
    why: str
    until: float


class Fallbacks:
    def __init__(self, models: Models, clock: Callable[[], float]) -> None:
        self._models = models
        self._clock = clock
        self.counts: Counter[str] = Counter()  # lint: allow one for each configured model
        """The number of fallbacks to each model."""

    def model(self, agent: AgentSettings, session_settings: tuple[SettingRow, ...]) -> Model:
        """Returns the model that would be called now."""
        chosen = self._chosen(session_settings)
        if chosen is not None:
            return self._models.get(chosen)
        if not agent.fallback:
            return self._models.get(agent.model)
        chain = (agent.model, *agent.fallback)
        state = fallback_of(session_settings)
        # A clock that was set back does not extend the fallback.
        if state is not None and state.model in chain and 0 < state.until - self._clock() <= agent.fallback_for:
            chain = (state.model, *(name for name in chain if name != state.model))
        available = (name for name in chain if self._models.cooldowns.of(name) is None)
        return self._models.get(next(available, chain[0]))

    def current(self, agent: AgentSettings, session_settings: tuple[SettingRow, ...]) -> FallbackState | None:
        """Returns the fallback that would answer now, or None if the agent's own model or the user's choice would."""
        model = self.model(agent, session_settings).name
        if model == agent.model or self._chosen(session_settings) is not None:
            return None
        rest, stored = self._models.cooldowns.of(agent.model), fallback_of(session_settings)
        until = [rest.until] if rest is not None else []
        why: str = rest.why if rest is not None else ""
        if stored is not None and stored.model == model:
            until.append(stored.until)
            why = stored.why
        return FallbackState(model=model, instead_of=agent.model, why=why, until=max(until, default=self._clock()))

    async def begin(self, turn: Turn, taken: TakenTurn, agent: AgentSettings) -> "AnsweringModel":
        """Returns the model that answers in this turn. If this is a fallback that is new to the session, the user is
        notified."""
        strict = self._chosen(taken.settings) is not None
        answering = AnsweringModel(self, turn, taken, agent, self.model(agent, taken.settings), strict)
        if not strict and answering.model.name != agent.model:
            known, rest = fallback_of(taken.settings), self._models.cooldowns.of(agent.model)
            if known is None or known.model != answering.model.name:
                await answering.note(answering.model, rest.why if rest is not None else "")
        return answering

    def _chosen(self, session_settings: tuple[SettingRow, ...]) -> str | None:
        """Returns the model that the user chose for the session, if it is still configured."""
        for setting in session_settings:
            if setting.key == "model" and setting.value in self._models.names:
                return str(setting.value)
        return None

    # -- for `AnsweringModel` --

    def begin_cooldown(self, model: Model, failure: ModelFailed) -> float | None:
        return self._models.cooldowns.begin(model.name, failure)

    def next_available(self, agent: AgentSettings, failed: tuple[Model, ...]) -> Model | None:
        """Returns the first model in the chain that is not in cooldown and not among the failed models, not even under
        another name."""
        failed_signatures = {model.signature for model in failed}
        for name in (agent.model, *agent.fallback):
            model = self._models.get(name)
            if model.signature not in failed_signatures and self._models.cooldowns.of(name) is None:
                return model
        return None

    async def remember(self, turn: Turn, state: FallbackState) -> None:
        now = self._clock()
        await turn.write(settings.put, turn.session, KEY, msgspec.to_builtins(state), KEY, now, None)

    async def forget(self, turn: Turn) -> None:
        await turn.write(settings.clear, turn.session, KEY)

    def until(self, agent: AgentSettings) -> float:
        return self._clock() + agent.fallback_for


class AnsweringModel:
    """The model that answers in one turn. Notifies the user when it changes. Owned by the turn."""

    def __init__(
        self, fallbacks: Fallbacks, turn: Turn, taken: TakenTurn, agent: AgentSettings, model: Model, strict: bool
    ) -> None:
        self._fallbacks = fallbacks
        self._turn = turn
        self._taken = taken
        self._agent = agent
        self._strict = strict
        self._state = fallback_of(taken.settings)
        self._kept = taken.session.kind != "ephemeral"
        self.model = model

    async def next(self, failed: tuple[Model, ...], failure: ModelFailed) -> Model | None:
        """Returns the next model to call, or None if there is none. `failed` are the models that have failed in this
        step, and `failure` is the last one's failure."""
        if failure.kind in UNHELPED:
            return None
        last = failed[-1]
        seconds = self._fallbacks.begin_cooldown(last, failure)
        if self._strict or not self._agent.fallback:
            return None
        other = self._fallbacks.next_available(self._agent, failed)
        log.warning(
            "a model failed",
            model=last.name,
            why=failure.kind,
            rests=seconds,
            instead=other.name if other is not None else "none",
            error=failure.brief,
        )
        if other is None:
            self._add_cooldowns(failed, failure)
        else:
            known = "" if self._state is None else self._state.why
            await self.note(other, failure.kind if last.name == self._agent.model else known)
            self.model = other
        return other

    def _add_cooldowns(self, failed: tuple[Model, ...], failure: ModelFailed) -> None:
        names = {model.name for model in failed}
        cooling = [name for name in (self._agent.model, *self._agent.fallback) if name not in names]
        if cooling:
            failure.add(f"Not tried, because they failed recently and are in cooldown: {', '.join(cooling)}.")

    async def note(self, model: Model, why: str) -> None:
        """Records that this model answers from now on. `why` is the kind of failure that made the agent's own model
        unavailable."""
        if model.name == self._agent.model:
            return
        is_news = self._state is None or self._state.model != model.name
        until = self._fallbacks.until(self._agent)
        self._state = FallbackState(model=model.name, instead_of=self._agent.model, why=why, until=until)
        if self._kept:
            await self._fallbacks.remember(self._turn, self._state)
        if is_news:
            self._fallbacks.counts[model.name] += 1
            self._turn.emit(Notice(text=sentence(self._state)))

    async def answered(self) -> None:
        """Ends the fallback if the agent's own model has answered. Called when the turn has its answer."""
        if self._state is None or self._strict or self.model.name != self._agent.model:
            return
        if self._kept:
            await self._fallbacks.forget(self._turn)
        self._turn.emit(Notice(text=f"The model {self._agent.model} answers again."))


def fallback_of(session_settings: tuple[SettingRow, ...]) -> FallbackState | None:
    """Returns the stored fallback, whether or not it is still in force."""
    value: Any = next((setting.value for setting in session_settings if setting.key == KEY), None)
    try:
        return None if value is None else msgspec.convert(value, FallbackState)
    except msgspec.ValidationError:
        return None


_REASONS = {
    "authorisation": "refuses its key",
    "quota": "has no quota left",
    "rate": "is over its rate limit",
    "overloaded": "is overloaded",
    "network": "cannot be reached",
    "timeout": "does not answer in time",
}


def fallback_reason(state: FallbackState) -> str:
    """Returns, in words, the reason why the agent's own model is not used."""
    return _REASONS.get(state.why, "fails")


def sentence(state: FallbackState) -> str:
    return f"The model {state.instead_of} {fallback_reason(state)}, so {state.model} answers for now."
