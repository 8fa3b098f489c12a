"""The door: every message enters here, whoever brings it, and every look at a session is taken through it. What a
person may change in a conversation is in `changes`, on the same terms.

Guarantee: a message is durable, deduplicated and authorised before it is acknowledged; the page, the terminal, the HTTP
API with and without a session take the same way (`accept`), with the same limits and the same end. Each method that
names a session or a turn checks it against the caller's principal; what a principal may not know does not exist for it.
The door owns the engine, the presence of sessions and their endings, all inside the scope that it was given.
"""

import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from itertools import chain
from typing import Any, Literal

import msgspec

from tidegate.config import Config
from tidegate.engine import EmbeddedEngine, TurnLog
from tidegate.errors import Busy, NotFound, Refused, Stopping, StoreLost, TooLarge
from tidegate.lifetimes import CacheStats, Ledger, Presence, Scope
from tidegate.log import Log
from tidegate.models import Models
from tidegate.security import Principal, Secret
from tidegate.sessions import event_stream, parts, queries
from tidegate.sessions.admission import Admission, NewSession, admit
from tidegate.sessions.lifecycle import EndHook, SessionEndings
from tidegate.sessions.maintenance import MaintenanceTask, maintenance_tasks
from tidegate.sessions.prompt_prefix import PromptPrefixes
from tidegate.sessions.recovery import recover
from tidegate.sessions.uploads import accept_media
from tidegate.sessions.views import AgentView, SessionView
from tidegate.spool import Spool, UploadFolder
from tidegate.store import (
    Db,
    ProcessRow,
    SessionRow,
    Store,
    UsageTotal,
    audit,
    processes,
    sessions,
    settings,
    turns,
    usage,
)
from tidegate.tools import ToolRegistry, ToolServices
from tidegate.turns.approvals import Approvals
from tidegate.turns.budgets.budgets import Budgets
from tidegate.turns.channels import DELEGATE, Channels
from tidegate.turns.compaction.compaction import HOW, Compaction
from tidegate.turns.runner import Runner
from tidegate.turns.tool_env import ToolEnv
from tidegate.turns.window_usage import WindowUsage
from tidegate.values import Acceptance, Event, Inbound, Media, Message, Outcome, new_id
from tidegate.workspaces import Workspaces

log = Log(__name__)


class Sessions:
    def __init__(
        self,
        scope: Scope,
        store: Store,
        config: Config,
        models: Models,
        tools: ToolRegistry,
        *,
        clock: Callable[[], float] = time.time,
        hooks: Mapping[str, EndHook] | None = None,
        channels: Channels | None = None,
        environment: Mapping[str, str] | None = None,
        search_key: Secret | None = None,
    ) -> None:
        """`environment` is the process's own, of which commands may see what the settings name; `search_key` is the
        search engine's. Whoever owns the process enters `web` and `recall`, or the web and indexes of other makers
        stay shut."""
        limits = config.limits
        self.store = store
        self.config = config
        self.clock = clock
        self.channels = channels or Channels()
        self.audit_rows = 0
        """Rows of the audit log, as of the last time that it was pruned."""
        self.budgets = Budgets(config, store, clock)
        self.presence = _presence(scope, config)
        self.spool = _spool(config, store, clock)
        self.questions = Approvals(
            store,
            config,
            self.channels,
            clock=clock,
            signal=lambda turn: self.engine.signal(turn),
        )
        self.provenance = parts.provenance(config, store, clock)
        self.workspaces = Workspaces(
            scope,
            store,
            self.presence,
            self.spool,
            config,
            clock=clock,
            finished=self._process_finished,
            environment=environment or {},
            provenance=self.provenance,
        )
        self.web = parts.web_access(config, self.spool, search_key)
        self.skills = parts.skills(config, self.provenance)
        self.project_files = parts.project_files(config, self.provenance)
        self.memory, self.extractor = parts.remembering(config, store, models, self.budgets, clock)
        if self.memory is not None:
            self.presence.ledger.view("memory provider", self.memory.held)
        self.delegation = parts.delegation(self)
        self.recall = parts.recalling(config, store, self.spool, scope)
        self.services = ToolServices(
            recall=self.recall, notes=self.memory, skills=parts.skill_reader(self.skills), delegates=self.delegation
        )
        self.runner = self._runner(scope, models, tools)
        scope.on_close(self.runner.histories.close, name="histories")
        sources = (self.project_files, self.skills, self.delegation, self.memory)
        self.prompt_prefixes = PromptPrefixes(
            config,
            models,
            tools,
            [source for source in sources if source is not None],
            mark=None if self.memory is None else self.memory.mark,
        )
        self.engine = EmbeddedEngine(
            scope,
            store,
            self.presence,
            self.runner,
            turns=limits.turns,
            turn_seconds=limits.turn_seconds,
            clock=clock,
        )
        self.endings = self._endings(scope, hooks or {})
        self._scope = scope
        self._models = models
        self._open = True

    def _runner(self, scope: Scope, models: Models, tools: ToolRegistry) -> Runner:
        config = self.config
        remind = None if self.memory is None else self.memory.remind
        return Runner(
            self.store,
            config,
            models,
            tools,
            self.presence,
            self.budgets,
            ToolEnv(config, self.spool, self.questions, self.workspaces, self.web, self.services),
            Compaction(scope.child("summaries"), self.store, models, config.context, self.budgets, self.clock, remind),
            self.clock,
        )

    def _endings(self, scope: Scope, hooks: Mapping[str, EndHook]) -> SessionEndings:
        return SessionEndings(
            self.store,
            self.presence,
            self.engine,
            {"workspace": self._end_workspace, **hooks},
            self.clock,
            self._forget,
            unkept=self.runner.forget,
            scope=scope,
            slow={} if self.extractor is None else {"memory": self.extractor},
        )

    # -- the way in --

    async def accept(self, inbound: Inbound) -> Acceptance:
        """Take a message in. When this returns, it survives a kill."""
        terms = await self._terms(inbound)
        if inbound.attachments:
            return await accept_media(inbound, self.store, self.spool, self._accept_with)
        return await self.store.write_then(lambda admission: self._acknowledge(inbound, admission), admit, **terms)

    async def _accept_with(self, inbound: Inbound, arrivals: UploadFolder) -> Acceptance:
        terms = {**await self._terms(inbound), "arrivals": arrivals}
        return await self.store.write_then(lambda admission: self._acknowledge(inbound, admission), admit, **terms)

    async def _fresh(self, inbound: Inbound) -> NewSession | None:
        """What a session would begin with that this message makes; it makes none when it names one by its id."""
        if inbound.session is not None:
            return None
        given = inbound.call.caller_tools
        return await self.prompt_prefixes.of(
            inbound.agent, inbound.principal, inbound.extra_prompt or "", own_tools=given is None or not given.only
        )

    async def _terms(self, inbound: Inbound) -> dict[str, Any]:
        """On which it is taken in; raises when it is not to be."""
        self._check(inbound)
        return {
            "inbound": inbound,
            "turn": new_id("t"),
            "fresh": await self._fresh(inbound),
            "queue_length": self.config.limits.queue_length,
            "take": self.engine.has_room(inbound.within),
            "now": self.clock(),
        }

    def check_intake(self, principal: str, within: str = "") -> None:
        """Raises when this principal's new turn is not taken in now: of one's own, or on a task of a turn that runs."""
        if not self._open and not (within and self.engine.takes_tasks(within)):
            raise Stopping("The gateway is stopping; send this again when it is back.", retry_after=5)
        if (lost := self.store.lost) is not None:
            raise StoreLost(lost)
        if within and self.engine.has_room(within):
            return
        most, each = self.config.limits.waiting_total, self.config.limits.waiting_each
        if self.engine.waiting_total >= most:
            raise _overloaded(f"{most} turns are waiting already (limits.waiting_total)")
        if self.engine.waiting_total >= each and self.engine.waiting_of(principal) >= each:
            raise _overloaded(f"{each} turns of yours are waiting already (limits.waiting_each)")

    def _check(self, inbound: Inbound) -> None:
        self.check_intake(inbound.principal, inbound.within)
        if inbound.channel not in self.channels or (inbound.channel == DELEGATE) != bool(inbound.within):
            raise Refused(f"There is no channel {inbound.channel!r}.", code="unknown_channel")
        if inbound.agent not in self.config.agents:
            known = ", ".join(sorted(self.config.agents))
            raise NotFound(f"There is no agent {inbound.agent!r}; there are: {known}.", code="model_not_found")
        limits = self.config.limits
        if len(inbound.messages) > limits.call_messages:
            raise TooLarge(
                f"The call holds {len(inbound.messages)} messages, more than limits.call_messages "
                f"({limits.call_messages}); name a session and send only what is new.",
                limit="limits.call_messages",
                value=limits.call_messages,
                param="messages",
            )
        for text in (*(message.text for message in inbound.messages), inbound.extra_prompt or ""):
            if 4 * len(text) > limits.message_bytes and len(text.encode(errors="replace")) > limits.message_bytes:
                raise TooLarge(
                    f"A message is longer than limits.message_bytes ({limits.message_bytes} bytes).",
                    limit="limits.message_bytes",
                    value=limits.message_bytes,
                )

    def _acknowledge(self, inbound: Inbound, admission: Admission) -> Acceptance:
        """Put the turn to work and say what will happen; nothing is awaited between the commit and this."""
        session, turn = admission.session, admission.turn
        if admission.how == "steered":
            self.engine.steer(turn)
            return Acceptance(turn=turn, session=session, how="steered")
        if admission.how == "replayed":
            return Acceptance(turn=turn, session=session, how="replayed", tools=admission.tools)
        if admission.how == "attached":
            self.engine.submit(session, turn, inbound.principal, resumed=True, within=inbound.within or None)
            return Acceptance(turn=turn, session=session, how="attached", tools=admission.tools)
        running = self.engine.running(session)
        ahead = self.engine.waiting(session) + (running is not None)
        self.engine.submit(session, turn, inbound.principal, begun=admission.begun, within=inbound.within or None)
        how: Literal["started", "queued", "interrupting"] = "queued" if ahead else "started"
        if inbound.busy == "interrupt" and running is not None:
            running.stop("by a newer message")
            how = "interrupting"
        return Acceptance(turn=turn, session=session, how=how, ahead=ahead, tools=admission.tools)

    # -- following a turn --

    def live(self, turn: str) -> TurnLog | None:
        """The log of a turn that waits or runs in this process."""
        return self.engine.log(turn)

    async def wait(self, turn: str) -> Outcome:
        """Until the turn has ended."""
        outcome = await self.engine.result(turn)
        return outcome if outcome is not None else await self.outcome(turn)

    async def outcome(self, turn: str, principal: Principal | None = None) -> Outcome:
        """How the turn stands now. Its state is queued or running while it has not ended."""
        found: Outcome | None = await self.store.read(queries.outcome, turn, _own(principal))
        if found is None:
            raise NotFound(f"There is no turn {turn}.", code="turn_not_found")
        return found

    async def abandon(self, turn: str) -> None:
        """A reader went away: a turn that nobody else reads or can fetch is stopped, any other goes on."""
        row = await self.store.read(turns.get, turn)
        log = self.engine.log(turn)
        if row is not None and row.on_disconnect == "cancel" and log is not None and not log.readers:
            self.engine.interrupt(turn, "because its caller went away", abandoned=True)

    # -- sessions --

    async def stop(self, session: str, principal: Principal) -> str | None:
        """Stop the running turn, if there is one; what waits stays."""
        await self.row(session, principal)
        running = self.engine.running(session)
        if running is None:
            return None
        running.stop("by its user")
        return running.turn

    async def end(self, session: str, principal: Principal, reason: str) -> bool:
        await self.row(session, principal)
        return await self.endings.end(session, reason)

    async def delete(self, session: str, principal: Principal) -> bool:
        """End it, and remove its rows as soon as no end hook is owed: mostly before this returns. Whether it is
        gone."""
        await self.row(session, principal)
        return await self.endings.delete(session)

    async def row(self, session: str, principal: Principal) -> SessionRow:
        """The session, if this principal may know of it."""
        found: SessionRow | None = await self.store.read(queries.session, session, _own(principal))
        if found is None:
            raise NotFound(f"There is no session {session}.", code="session_not_found")
        return found

    async def session(self, session: str, principal: Principal) -> SessionView:
        row = await self.row(session, principal)
        held = tuple(await self.store.read(settings.get_all, session, self.clock()))
        return self._view(row, held)

    async def sessions(
        self,
        principal: Principal,
        *,
        limit: int = 50,
        before: tuple[float, str] | None = None,
        ended: bool | None = False,
        query: str | None = None,
        everyone: bool = False,
    ) -> list[SessionView]:
        """Newest first. `everyone` is the owner's view of all principals' sessions."""
        own = None if everyone and principal.may("configure") else principal.id
        if query:
            rows = await queries.mentioning(self.store, query, own, ended, limit)
        else:
            rows = await self.store.read(queries.listing, own, ended, limit, before)
        return [self._view(row) for row in rows]

    async def transcript(
        self,
        session: str,
        principal: Principal,
        *,
        after: int | None = 0,
        before: int | None = None,
        limit: int = 200,
    ) -> queries.TranscriptPage:
        """Rows after a place; or, without `after`, the newest ones, before a place if one is given. In order, without
        the bytes of media."""
        await self.row(session, principal)
        found: queries.TranscriptPage = (
            await self.store.read(queries.newest, session, before, limit)
            if after is None
            else await self.store.read(queries.page, session, after, limit)
        )
        return queries.without_bytes(found)

    async def media(self, session: str, principal: Principal, place: int, number: int) -> tuple[Media, bytes]:
        """The n-th picture, sound or document of a row, and its bytes."""
        await self.row(session, principal)
        found: Media | None = await self.store.read(queries.media, session, place, number)
        try:
            if found is not None:
                return found, found.data or await self.spool.load(session, found.spooled)
        except OSError as error:
            log.warning("media of a transcript cannot be read", session=session, error=str(error))
        raise NotFound("There is no such picture, sound or document.", code="media_not_found")

    def export(self, session: str, principal: Principal) -> AsyncIterator[bytes]:
        return queries.export(self, session, principal)

    def watch(
        self, session: str, principal: Principal, after: int = 0
    ) -> AsyncGenerator[tuple[int | None, Event], None]:
        """The session's events: committed rows after `after`, then what happens, until the reader leaves."""
        return event_stream.watch(self, session, principal, after)

    async def usage(
        self, principal: Principal, *, by: usage.By, since: float, until: float, limit: int
    ) -> tuple[list[UsageTotal], UsageTotal]:
        """What models have used in a time: this principal's share of it, or all of it for who may see
        everybody's."""
        found: tuple[list[UsageTotal], UsageTotal] = await self.store.read(
            queries.usage_in, None if principal.may("see_usage") else principal.id, by, since, until, limit
        )
        return found

    async def used_in(self, session: str, principal: Principal) -> UsageTotal:
        """What one conversation has used."""
        await self.row(session, principal)
        found: UsageTotal = await self.store.read(usage.of_session, session)
        return found

    async def filling(self, session: str, principal: Principal) -> WindowUsage:
        """What fills the window of the model that would answer in a conversation now."""
        row = await self.row(session, principal)
        return await self.runner.filling(row, tuple(await self.store.read(settings.get_all, session, self.clock())))

    def agents(self, principal: Principal) -> tuple[AgentView, ...]:
        return tuple(
            AgentView(name=name, model=agent.model, description=agent.description, demo=self._is_demo(agent.model))
            for name, agent in sorted(self.config.agents.items())
            if principal.agents is None or name in principal.agents
        )

    def _model_states(self) -> dict[str, Any]:
        """How the configured models stand, by name, and how often sessions fell back to each."""
        fallbacks = self.runner.fallbacks.fallbacks
        return {
            name: {**msgspec.to_builtins(state), "fallbacks": fallbacks[name]}
            for name, state in self._models.states().items()
        }

    @property
    def models(self) -> tuple[str, ...]:
        return self._models.names

    def _view(self, row: SessionRow, held: tuple[Any, ...] | None = None) -> SessionView:
        """Without its settings, as in a list, it is not told who answers instead of the agent's own model."""
        running = self.engine.running(row.id)
        agent, fallbacks = self.config.agents.get(row.agent), self.runner.fallbacks
        model, fallback = agent.model if agent is not None else "", None
        if agent is not None and held is not None:
            model, fallback = fallbacks.model(agent, held).name, fallbacks.fallen(agent, held)
        return queries.view(
            row,
            running=running.turn if running is not None else None,
            waiting=self.engine.waiting(row.id),
            model=model,
            demo=self._is_demo(model),
            settings=held or (),
            fallback=fallback,
        )

    def _is_demo(self, model: str) -> bool:
        configured = self.config.models.get(model)
        return configured is not None and configured.api == "demo"

    # -- the process's own --

    async def recover(self) -> int:
        """Take up what the last process left: its count of what was spent, its turns, and, beside everything else, what
        it owes to sessions that have ended; how many turns go on."""
        await self.budgets.load()
        self.audit_rows = await self.store.read(audit.count)
        if self.memory is not None:
            await self._scope.enter(self.memory)
        await self.workspaces.start()
        resumed = await recover(self)
        await self.workspaces.processes.tell()
        self._scope.start(self.endings.finish, name="what ended sessions are owed")
        if self.extractor is not None:
            self._scope.start(self.endings.finish_slow, name="what is to be learnt from ended sessions")
        return resumed

    async def _process_finished(self, process: ProcessRow, text: str) -> None:
        """A background process that was to be told of has ended: its session is told as by a message, once. The turn is
        one of the channel on which the process was started, with what is allowed and who can be asked there."""
        session: SessionRow | None = await self.store.read(sessions.get, process.session)
        if session is None:
            return
        told = Inbound(
            principal=session.principal,
            channel=process.channel or session.channel,
            agent=session.agent,
            session=session.id,
            messages=(Message(role="user", aside=text),),
        )
        terms = await self._terms(told)
        await self.store.write_then(lambda taken: taken and self._acknowledge(told, taken), _tell, process.id, **terms)

    async def _end_workspace(self, session: SessionRow) -> None:
        """What ran for the session ends with it. Asked again it does nothing, and there is nothing to write down."""
        await self.workspaces.end(session.id)

    async def _forget(self, session: str) -> None:
        """The rows of a session are gone: so is what lay on disk for it."""
        await self.workspaces.discard(session)
        await self.spool.remove(session)
        if self.recall is not None and self.recall.index is not None:
            await self.recall.index.forget(session)

    async def drain(self, within: float) -> None:
        """Accept nothing more; let turns finish within the budget, else park them for the next start."""
        self._open = False
        await self.engine.drain(within)

    @property
    def ledger(self) -> Ledger:
        """Who holds what in this process."""
        return self.presence.ledger

    def caches(self) -> tuple[CacheStats, ...]:
        looks = (source.caches() for source in (self.project_files, self.skills) if source is not None)
        remembered = () if self.memory is None else (self.memory.stats(),)
        return (*self.runner.caches(), self.prompt_prefixes.stats(), *chain.from_iterable(looks), *remembered)

    def maintenance_tasks(self) -> list[MaintenanceTask]:
        return maintenance_tasks(self)

    def census(self) -> dict[str, int]:
        """How many of each thing the door holds: what must be back at its baseline when sessions have gone."""
        stats, presence = self.engine.stats(), self.presence.stats()
        return {
            "present": presence.present,
            "residents": presence.residents,
            "turns_running": stats.running,
            "turns_waiting": stats.waiting,
            "turns_asking": stats.asking,
            "turns_delegating": stats.delegating,
        }

    def status(self) -> dict[str, Any]:
        stats, presence = self.engine.stats(), self.presence.stats()
        return {
            "turns": {
                "running": stats.running,
                "waiting": stats.waiting,
                "asking": stats.asking,
                "delegating": stats.delegating,
                "answered": stats.answered,
                "failed": stats.failed,
                "stopped": stats.stopped,
                "seconds": stats.seconds,
            },
            "sessions": {
                "present": presence.present,
                "residents": presence.residents,
                "resident_bytes": presence.resident_bytes,
                "over_cap_mid_turn": presence.over_cap_mid_turn,
                "unloads": presence.unloads,
            },
            "workspaces": self.workspaces.status(),
            "questions": {"waiting": self.questions.waiting},
            "audit": {"rows": self.audit_rows},
            "context": {how: self.runner.compaction.counts[how] for how in HOW},
            "budgets": msgspec.to_builtins(self.budgets.views()),
            "model_states": self._model_states(),
            "models": {name: meter.read() for name, meter in self.budgets.meters.items()},
        }


def _overloaded(what: str) -> Busy:
    return Busy(f"{what}; try again soon.", retry_after=5, code="overloaded")


def _own(principal: Principal | None) -> str | None:
    """Whose rows may be seen: an owner's view is everybody's, as is the house's own."""
    return None if principal is None or principal.may("configure") else principal.id


def _tell(db: Db, /, process: str, **terms: Any) -> Admission | None:
    """Takes in what is told of the end of a process, with the mark that it is told; None when it was."""
    return admit(db, **terms) if processes.mark_reported(db, process) else None


def _presence(scope: Scope, config: Config) -> Presence:
    limits = config.limits
    return Presence(
        scope,
        residents=limits.residents,
        resident_bytes=limits.resident_bytes,
        idle_ttl=limits.idle_ttl,
        warn=lambda message, fields: log.warning(message, **fields),
        asks=lambda turn: turn.asks,
    )


def _spool(config: Config, store: Store, clock: Callable[[], float]) -> Spool:
    return Spool(
        config.home / "spool",
        store,
        excerpt_bytes=config.limits.tool_output_bytes,
        excerpt_lines=config.limits.tool_output_lines,
        quota=config.limits.spool_bytes,
        clock=clock,
        cores=frozenset(os.sched_getaffinity(0)),
    )
