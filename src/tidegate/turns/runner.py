"""Running a turn: obtaining its session's resident, resolving its settings, and running the agent loop.

As long as the configuration does not change, turns reuse the resident, whose history matches the store. If a turn ends
without an answer, the resident is dropped and the next turn starts from the store. Settings are resolved here and
nowhere else; an override never changes the agent's own configuration.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from tidegate.agent import (
    Bounds,
    Conversation,
    HistoryCache,
    HistoryState,
    ModelStep,
    Parked,
    SpendGuard,
    ToolRunner,
    Turn,
    TurnResident,
    run,
)
from tidegate.agent.context import View
from tidegate.config import AgentSettings, Config
from tidegate.engine import TakenTurn
from tidegate.errors import Conflict, GivenUp, Misconfigured, ModelFailed, Superseded
from tidegate.lifetimes import BoundedCache, CacheStats, Holding, Presence, Present
from tidegate.log import Log
from tidegate.models import EncodedPrefix, Model, Models
from tidegate.store import SessionRow, SettingRow, Store, sessions, settings
from tidegate.tools import Toolset, Toolsets
from tidegate.turns.budgets.budgets import Budgets
from tidegate.turns.channel_recovery import Channels
from tidegate.turns.compaction.compaction import (
    COMPACTION_REQUESTED,
    REASONING_ERA,
    SUMMARY_COOLDOWN,
    Compaction,
    TurnFitter,
    read_view,
)
from tidegate.turns.fallback import Fallbacks
from tidegate.turns.prefix_drift import KEY as DRIFT
from tidegate.turns.prefix_drift import PrefixDrift, drift_of
from tidegate.turns.resumption import check_resumption
from tidegate.turns.tool_env import ToolEnv
from tidegate.turns.window_usage import WindowUsage, window_usage
from tidegate.values import Call, Frozen, Message, Notice, Outcome

log = Log(__name__)

PREFIXES_KEPT = 256
"""Number of encoded prefixes kept for sharing. An agent's sessions share a prefix, so few prefixes are in use at a
time."""


PREFIX_BYTES = 16 * 1024 * 1024
"""Maximum total size of these prefixes in bytes, since callers may send large system messages."""

ENCODED_ANEW = (
    "This conversation is being encoded again because its model's wire format has changed; the provider bills all of "
    "it in full once."
)


TOOLS_CHANGED = (
    "The caller's tools differ from those of the previous request, so the conversation's prefix was rebuilt; the "
    "provider bills all of it in full once."
)


class SentPrefix(NamedTuple):
    """A frozen prefix as it is sent, and its drift from the agent's configuration."""

    encoded: EncodedPrefix
    drift: PrefixDrift | None
    tools: Toolset

    @property
    def bytes(self) -> int:
        return prefix_bytes(self.encoded)


class ServerTools(Protocol):
    """The tools of servers, which may change while the gateway runs."""

    generation: int
    """Raised with every change."""

    def toolset(self, agent: str, base: Toolset) -> Toolset:
        """Returns the tools with which a conversation of this agent would begin now."""
        ...

    def frozen_toolset(self, agent: str, base: Toolset, names: Iterable[str]) -> Toolset:
        """Returns the tools of a conversation that began with these names."""
        ...


KeptHistory = tuple[HistoryState, list[bytes]]


class BuildPoint(Frozen, frozen=True):
    """The point in a turn at which a conversation is built: before the first step or, with `mid_turn`, after all
    messages so far. `resumed` is true if an earlier process has run steps of the turn. `era` is known only in
    mid-turn."""

    mid_turn: bool = False
    resumed: bool = False
    era: int | None = None


class Runner:
    def __init__(
        self,
        store: Store,
        config: Config,
        models: Models,
        tools: Toolsets,
        presence: Presence,
        budgets: Budgets,
        tool_env: ToolEnv,
        compaction: Compaction,
        channels: Channels,
        clock: Callable[[], float],
        servers: "ServerTools | None" = None,
    ) -> None:
        """`servers` adds the tools of MCP servers to those of the agents."""
        self._servers = servers
        self._store = store
        self._config = config
        self._models = models
        self.tools = tools
        self.presence = presence
        self._budgets = budgets
        self.fallbacks = Fallbacks(models, clock)
        self._clock = clock
        self._tool_env = tool_env
        self.compaction = compaction
        self._channels = channels
        self.histories = HistoryCache(tool_env.spool.temporary_file)
        self.prefixes: BoundedCache[tuple[bytes, bytes, str, int], SentPrefix] = BoundedCache(
            "prefixes", cap=PREFIXES_KEPT, max_bytes=PREFIX_BYTES, weigh=lambda sent_prefix: sent_prefix.bytes
        )
        presence.ledger.view("model request", self._measure_requests)
        presence.ledger.view("prefix", self._measure_prefixes)
        presence.ledger.view("history file", self._measure_files)
        limits = config.limits
        self._bounds = Bounds(
            steps=limits.turn_steps,
            repeats=limits.repeats,
        )

    async def __call__(self, turn: Turn, taken: TakenTurn) -> None:
        session = taken.session
        if taken.interruptions:
            await self._check_resumption(taken)
        agent = self.agent(session.agent)
        answering = await self.fallbacks.begin(turn, taken, agent)
        model = answering.model
        if session.encoder != model.wire.version:
            # Users who have changed the model already know. The first format, chat completions, had no number.
            if (session.encoder // 1000 or 1) == model.wire.version // 1000:
                turn.emit(Notice(text=ENCODED_ANEW))
            await turn.write(sessions.reencode, session.id, model.wire.version)
        if taken.tools_changed:
            turn.emit(Notice(text=TOOLS_CHANGED))
        spend_guard = await self.spend_guard(taken, model)

        async def fall_back(
            last: Conversation, failed: tuple[Model, ...], failure: ModelFailed
        ) -> tuple[Conversation, SpendGuard] | None:
            other = await answering.next(failed, failure)
            if other is None:
                return None
            paying = await self.spend_guard(taken, other)
            return await self._with_model(taken, agent, last, other), paying

        record = self.presence.obtain(session.id)
        resident, found = TurnResident(self.presence, record, partial(self._reload, taken, agent)), record.resident
        # Nothing may be awaited between this line and the `try`, which finally releases the conversation.
        conversation = await self._conversation(taken, agent, model, BuildPoint(resumed=turn.is_resumed))
        model_step = ModelStep(
            conversation,
            spend_guard,
            fall_back,
            partial(TurnFitter, self.compaction, turn, taken),
            resident,
            fit_first=any(setting.key == COMPACTION_REQUESTED for setting in taken.settings),
        )
        tool_runner: ToolRunner | None = None

        def make_tool_runner() -> ToolRunner:
            nonlocal tool_runner
            setup, parallel = self._tool_env.setup(turn, taken), self._config.limits.tools_parallel
            tool_runner = ToolRunner(turn, conversation.tools, setup, parallel=parallel)
            return tool_runner

        continues = False
        try:
            if conversation is not found:
                await self._report_drift(turn, taken, model)
            await run(turn, model_step, make_tool_runner, self.call(taken, agent), self._bounds)
            await answering.answered()
        except Superseded:
            continues = True
            raise
        except (Parked, asyncio.CancelledError):
            continues = not turn.is_stopped  # a turn that continues needs its files
            raise
        finally:
            if session.kind == "ephemeral":
                await model_step.conversation.release()
                if not continues and (tool_runner is not None or turn.is_resumed or _is_spooled(turn.incoming)):
                    await self._tool_env.remove_files(session.id)

    async def _check_resumption(self, taken: TakenTurn) -> None:
        channel, resumes = self._channels.of(taken.turn.channel), self._config.limits.resumes
        try:
            check_resumption(taken, channel, resumes)
        except GivenUp:
            if taken.session.kind == "ephemeral":
                await self._tool_env.remove_files(taken.session.id)
            raise

    def turn_ended(self, record: Present, outcome: Outcome, version: int) -> None:
        if outcome.state != "answered":
            self.presence.unload(record.key, reason="turn not answered")
        elif isinstance(record.resident, Conversation):
            record.resident.version = version

    # -- settings of a session --

    def agent(self, name: str) -> AgentSettings:
        agent = self._config.agents.get(name)
        if agent is None:
            raise Misconfigured(f"The agent {name!r} is no longer configured; add [agents.{name}] to tidegate.toml.")
        return agent

    async def spend_guard(self, taken: TakenTurn, model: Model) -> SpendGuard:
        """Returns the budgets to which this turn's calls of this model are charged."""
        common = self._budgets.common.get(model.name)
        return common or await self._budgets.spend_guard(model, taken.session, taken.turn.job)

    def call(self, taken: TakenTurn, agent: AgentSettings) -> Call:
        """Returns the call with its reasoning setting resolved: the request's own parameter comes first, then the
        session's setting, then the agent's."""
        call = taken.turn.call
        if call.reasoning is not None:
            return call
        chosen = (setting.value for setting in taken.settings if setting.key == "reasoning")
        reasoning = next(chosen, agent.reasoning)
        return call if reasoning is None else msgspec.structs.replace(call, reasoning=reasoning)

    async def window_usage(self, session: SessionRow, held: tuple[SettingRow, ...]) -> WindowUsage:
        """Returns how full the context window is for the model that would answer now."""
        model = self.fallbacks.model(self.agent(session.agent), held)
        record = self.presence.get(session.id)
        resident = record.resident if record is not None else None
        same = resident if isinstance(resident, Conversation) and resident.model is model else None
        view = await self._store.read(read_view, session.id, None)
        prefix = await self._store.read(sessions.prefix, _frozen(session))
        resting = next((setting for setting in held if setting.key == SUMMARY_COOLDOWN), None)
        return window_usage(prefix, view, model, self.compaction.marks(model), same, resting)

    def signature(self, session: SessionRow, agent: AgentSettings, model: Model) -> bytes:
        """Returns a digest that is equal for equal settings. The digest covers the model, endpoint, credential,
        toolsets and prompt, including the extra prompt. Secrets are included only through the model's digest. The name
        is included because the same model may be configured under two names, with different prices and retries."""
        parts = (
            model.name.encode(),
            model.signature,
            _frozen(session),
            *(name.encode() for name in agent.tools),
            str(self._generation).encode(),
        )
        return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()

    def caches(self) -> tuple[CacheStats, ...]:
        return (self.prefixes.stats(), self.histories.stats(), self.tools.stats(), self._budgets.stats())

    def forget(self, session: str) -> None:
        """Drops everything that is kept for a session's next turn. Called when the session has ended."""
        record = self.presence.get(session)
        if record is not None and isinstance(record.resident, Conversation):
            record.resident.version = -1
        self.histories.forget(session)

    # -- for the ledger --

    def _conversations(self) -> Iterator[tuple[str, Conversation]]:
        for record in self.presence:
            for held in (record.resident, record.temporary, *record.detached):
                if isinstance(held, Conversation):
                    yield f"session {record.key}", held

    def _measure_requests(self) -> Iterator[tuple[str, Holding]]:
        """Measures the requests in progress."""
        for owner, conversation in self._conversations():
            if size := conversation.request_bytes:
                yield owner, Holding(1, size)

    def _measure_files(self) -> Iterator[tuple[str, Holding]]:
        """Measures the files of long histories and the history cache's file."""
        if self.histories.has_file:
            yield "process", Holding(1, fds=1)
        for owner, conversation in self._conversations():
            if conversation.history.has_file:
                yield owner, Holding(1, fds=1)

    def _measure_prefixes(self) -> Iterator[tuple[str, Holding]]:
        """Measures the prefixes that are held by conversations but not by the cache. A shared prefix is attributed to
        the first of its conversations."""
        seen = {id(sent_prefix.encoded) for sent_prefix in self.prefixes.values()}
        for owner, conversation in self._conversations():
            prefix = conversation.prefix
            if id(prefix) not in seen:
                seen.add(id(prefix))
                yield owner, Holding(1, prefix_bytes(prefix))

    # -- residents --

    async def _conversation(
        self, taken: TakenTurn, agent: AgentSettings, model: Model, point: BuildPoint
    ) -> Conversation:
        if taken.session.kind != "ephemeral":
            return await self._resident(taken, agent, model, point)
        conversation = await self._build(taken, model, b"", point)
        self.presence.set_temporary(taken.session.id, conversation)
        return conversation

    async def _with_model(
        self, taken: TakenTurn, agent: AgentSettings, failed: Conversation, model: Model
    ) -> Conversation:
        """Returns the conversation with another model, built from the store up to the same point."""
        conversation = await self._conversation(taken, agent, model, BuildPoint(mid_turn=True))
        await failed.release()  # a long turn may fall back often, and must hold only one conversation
        return conversation

    async def _reload(self, taken: TakenTurn, agent: AgentSettings, unloaded: Conversation) -> Conversation:
        """Reloads a conversation that was unloaded in mid-turn, up to the same point."""
        point = BuildPoint(mid_turn=True, era=unloaded.era)
        conversation = await self._conversation(taken, agent, unloaded.model, point)
        conversation.cooldown = unloaded.cooldown
        return conversation

    async def _resident(self, taken: TakenTurn, agent: AgentSettings, model: Model, point: BuildPoint) -> Conversation:
        session = taken.session
        signature = self.signature(session, agent, model)
        record = self.presence.get(session.id)
        held = record.resident if record is not None else None
        # Taking the turn has increased the version by one. The resident knows nothing about any other change.
        known = session.version - 1
        if not point.mid_turn and isinstance(held, Conversation) and held.version != known:
            self.presence.unload(session.id, reason="stale", only=held)

        async def build() -> Conversation:
            kept = None if point.mid_turn else await self.histories.find(session.id, signature, known)
            return await self._build(taken, model, signature, point, kept)

        conversation = await self.presence.resident(session.id, signature, build)
        conversation.version = -1  # until the turn has ended
        return conversation

    async def _build(
        self,
        taken: TakenTurn,
        model: Model,
        signature: bytes,
        point: BuildPoint,
        kept: KeptHistory | None = None,
    ) -> Conversation:
        """Builds a conversation. `kept` is the history that was cached when the conversation was unloaded."""
        sent_prefix = await self._sent_prefix(taken, model)
        era = point.era
        if era is None:
            era = next((setting.value for setting in taken.settings if setting.key == REASONING_ERA), 0)
        if kept is not None and kept[0].era != era:
            kept = None
        past = View() if kept is not None else await self._read(taken, point)
        conversation = Conversation(
            model=model,
            messages=past.messages(),
            lease=model.lease(),
            prefix=sent_prefix.encoded,
            tools=sent_prefix.tools,
            signature=signature,
            load=partial(self._tool_env.spool.load, taken.session.id),
            overflow=self._tool_env.spool.temporary_file,
            era=era,
            mark=past.mark,
            fit_above=self.compaction.marks(model).soft,
            keep=partial(self.histories.keep, taken.session.id) if signature else None,
        )
        if kept is not None:
            conversation.restore(*kept)
        conversation.is_outdated = past.inside
        try:
            await conversation.history.settle()  # before it is weighed, since a long history does not stay in memory
        except BaseException:
            await conversation.release()
            raise
        return conversation

    async def _read(self, taken: TakenTurn, point: BuildPoint) -> View:
        """Returns a view of the messages before this point. Before the first turn, there are none."""
        is_first = taken.turn.number == 1 and taken.session.parent is None
        if is_first and not point.mid_turn and not point.resumed:
            return View()
        return await self.compaction.view(taken, past=not point.mid_turn)

    async def _sent_prefix(self, taken: TakenTurn, model: Model) -> SentPrefix:
        session = taken.session

        async def make() -> SentPrefix:
            prefix = await self._store.read(sessions.prefix, _frozen(session))
            agent = self.agent(session.agent)
            encoded = msgspec.structs.replace(model.wire.encode_prefix(prefix), caller_tools=prefix.run_by_caller)
            base = self._toolset(agent)
            if self._servers is None:
                return SentPrefix(encoded, drift_of(prefix, agent.prompt, base), base)
            current = self._servers.toolset(session.agent, base)
            tools = self._servers.frozen_toolset(session.agent, base, [tool.name for tool in prefix.tools])
            return SentPrefix(encoded, drift_of(prefix, agent.prompt, current), tools)

        return await self.prefixes.get_or_make(self._prefix_key(session, model), make)

    async def _report_drift(self, turn: Turn, taken: TakenTurn, model: Model) -> None:
        """Notifies the user once of each configuration change. Called when the conversation has just been built, so its
        prefix is in the cache."""
        session = taken.session
        sent_prefix = self.prefixes.get(self._prefix_key(session, model))
        if session.kind == "ephemeral" or sent_prefix is None:
            return
        drift = sent_prefix.drift
        if drift is None:
            if any(setting.key == DRIFT for setting in taken.settings):
                await turn.write(settings.clear, session.id, DRIFT)
        elif not drift.is_reported(taken.settings, turn.id):
            turn.emit(Notice(text=drift.text))
            notice = [drift.mark, turn.id]
            await turn.write(settings.put, session.id, DRIFT, notice, "configuration", self._clock())

    @property
    def _generation(self) -> int:
        return 0 if self._servers is None else self._servers.generation

    def _prefix_key(self, session: SessionRow, model: Model) -> tuple[bytes, bytes, str, int]:
        return _frozen(session), model.signature, session.agent, self._generation

    def _toolset(self, agent: AgentSettings) -> Toolset:
        return self.tools.resolve(agent.tools)


def prefix_bytes(prefix: EncodedPrefix) -> int:
    return len(prefix.system) + len(prefix.tools)


def _is_spooled(messages: Iterable[Message]) -> bool:
    return any(media.spooled for message in messages for media in message.media)


def _frozen(session: SessionRow) -> bytes:
    """Returns the id of the session's frozen prefix. Every session gets one in the transaction that creates it."""
    if session.prefix is None:
        raise Conflict("This conversation has no frozen prompt; use /reload to give it one.")
    return session.prefix
