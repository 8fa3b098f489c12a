"""The entry point to conversations for the web, the commands and the gateway.

Every message is durable, deduplicated and authorised before it is acknowledged (`accept`). Each method that takes a
session or turn id checks it against the caller's principal; a session or turn that the principal may not see is
reported as not found. Changes that users make to conversations are in `operations` and follow the same rule.

The service is built from `Components`, which own the engine, the present sessions and the code that ends sessions. It
does not expose the store or the engine.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.config import AgentSettings
from tidegate.engine import TurnLog
from tidegate.errors import NotFound
from tidegate.lifetimes import CacheStats, Ledger
from tidegate.log import Log
from tidegate.mcp import McpServers
from tidegate.security import Principal
from tidegate.sessions import event_stream, queries
from tidegate.sessions.components import Components
from tidegate.sessions.maintenance import MaintenanceTask, maintenance_tasks
from tidegate.sessions.operations import Operations
from tidegate.sessions.recovery import recover
from tidegate.sessions.views import AgentView, SessionView, view
from tidegate.status_report import (
    AuditStats,
    BudgetView,
    ModelStatus,
    QuestionStats,
    ResidentStats,
    SearchStatus,
    SessionsStatus,
)
from tidegate.store import (
    AuditKind,
    AuditRow,
    Db,
    OpenTurns,
    SessionRow,
    SettingRow,
    UsageTotal,
    audit,
    open_turns,
    search_index,
    settings,
    turns,
    usage,
    vectors,
)
from tidegate.turns import REDUCTIONS, WindowUsage
from tidegate.values import Acceptance, Event, Inbound, Media, Outcome

if TYPE_CHECKING:
    from tidegate.memory import Memory
    from tidegate.skills import SkillLibrary

log = Log(__name__)


class Sessions:
    def __init__(self, components: Components) -> None:
        self._components = components
        self._store = components.store
        self._config = components.config
        self._clock = components.clock
        self._engine = components.engine
        self._presence = components.presence
        self._intake = components.intake
        self._endings = components.endings
        self._runner = components.runner
        self._budgets = components.budgets
        self._models = components.models
        self._audit_rows = 0
        self._vectors = None if components.recall is None else components.recall.vectors
        self._search = SearchStatus(unindexed=0, former=0)
        self.questions = components.approvals
        self.provenance = components.provenance
        self.memory: Memory | None = components.memory
        self.skills: SkillLibrary | None = components.skills
        self.operations = Operations(components)
        self.accept: Callable[[Inbound], Awaitable[Acceptance]] = components.intake.accept
        """Accepts a message. When this returns, the message survives a kill."""
        self.wait: Callable[[str], Awaitable[Outcome]] = components.engine.result
        """Waits until a turn has ended and returns its outcome."""

    # -- following a turn --

    def turn_log(self, turn: str) -> TurnLog | None:
        """Returns the log of a turn that is waiting or running in this process."""
        return self._engine.follow(turn)

    async def outcome(self, turn: str, principal: Principal | None = None) -> Outcome:
        """Returns the current outcome of a turn. The state is queued or running until the turn has ended."""
        found: Outcome | None = await self._store.read(queries.outcome, turn, queries.visible_to(principal))
        if found is None:
            raise NotFound(f"There is no turn {turn}.", code="turn_not_found")
        return found

    async def abandon(self, turn: str) -> None:
        """Stops the turn if its caller requested this and no reader is left. Called when a reader has disconnected."""
        row = await self._store.read(turns.get, turn)
        log = self._engine.follow(turn)
        if row is not None and row.on_disconnect == "cancel" and log is not None and not log.readers:
            await self._engine.stop(turn, "because its caller disconnected", abandoned=True)

    # -- sessions --

    async def stop(self, session: str, principal: Principal) -> str | None:
        """Stops the running turn, if there is one, and returns its id. Waiting turns stay in the queue."""
        await self.row(session, principal)
        running = await self._store.read(open_turns.running, session)
        if running is None or not await self._engine.stop(running, "by its user"):
            return None
        return running

    async def end(self, session: str, principal: Principal, reason: str) -> bool:
        await self.row(session, principal)
        return await self._endings.end(session, reason)

    async def delete(self, session: str, principal: Principal) -> bool:
        """Ends the session, and deletes its rows as soon as no end hook is pending. Returns True if the rows have
        already been deleted, which is usually the case."""
        await self.row(session, principal)
        return await self._endings.delete(session)

    async def row(self, session: str, principal: Principal) -> SessionRow:
        """Returns the session if this principal may see it."""
        return await queries.visible_session(self._store, session, principal)

    async def session(self, session: str, principal: Principal) -> SessionView:
        row = await self.row(session, principal)
        open_of_session, held = await self._store.read(queries.details, session, self._clock())
        return self._view(row, open_of_session, held)

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
        """Returns sessions, newest first. If `everyone` is true, the owner sees all principals' sessions."""
        own = None if everyone and principal.may("configure") else principal.id
        if query:
            mentions = await queries.mentioning(self._store, query, own, ended, limit)
        else:
            mentions = [(row, "") for row in await self._store.read(queries.listing, own, ended, limit, before)]
        found = await self._store.read(open_turns.of_sessions, [row.id for row, _ in mentions])
        return [
            msgspec.structs.replace(self._view(row, found.get(row.id, OpenTurns())), excerpt=excerpt or None)
            for row, excerpt in mentions
        ]

    async def transcript(
        self,
        session: str,
        principal: Principal,
        *,
        after: int | None = 0,
        before: int | None = None,
        limit: int = 200,
    ) -> queries.TranscriptPage:
        """Returns a page of rows in order, without the bytes of media: the rows after `after` or, if `after` is None,
        the newest rows before `before`."""
        await self.row(session, principal)
        found: queries.TranscriptPage = (
            await self._store.read(queries.newest, session, before, limit)
            if after is None
            else await self._store.read(queries.page, session, after, limit)
        )
        return queries.without_bytes(found)

    async def media(self, session: str, principal: Principal, place: int, number: int) -> tuple[Media, bytes]:
        """Returns the image, audio clip or document at position `number` in a row, and its bytes."""
        await self.row(session, principal)
        found: Media | None = await self._store.read(queries.media, session, place, number)
        try:
            if found is not None:
                return found, found.data or await self._components.spool.load(session, found.spooled)
        except OSError as error:
            log.warning("media of a transcript cannot be read", session=session, error=str(error))
        raise NotFound("There is no such image, sound or document.", code="media_not_found")

    def export(self, session: str, principal: Principal) -> AsyncIterator[bytes]:
        return queries.export(self._store, self.session, session, principal)

    def watch(
        self, session: str, principal: Principal, after: int = 0
    ) -> AsyncGenerator[tuple[int | None, Event], None]:
        """Yields a session's events: the committed rows after `after`, then live events until the reader
        disconnects."""
        return event_stream.watch(self._components, session, principal, after)

    async def usage(
        self, principal: Principal, *, by: usage.By, since: float, until: float, limit: int
    ) -> tuple[list[UsageTotal], UsageTotal]:
        """Returns model usage in a period: the principal's own usage or, with the right to see all usage,
        everyone's."""
        found: tuple[list[UsageTotal], UsageTotal] = await self._store.read(
            queries.usage_in, None if principal.may("see_usage") else principal.id, by, since, until, limit
        )
        return found

    async def usage_of(self, session: str, principal: Principal) -> UsageTotal:
        """Returns one conversation's usage."""
        await self.row(session, principal)
        found: UsageTotal = await self._store.read(usage.of_session, session)
        return found

    async def window_usage(self, session: str, principal: Principal) -> WindowUsage:
        """Returns how full the context window is for the model that would answer in this conversation now."""
        row = await self.row(session, principal)
        return await self._runner.window_usage(
            row, tuple(await self._store.read(settings.get_all, session, self._clock()))
        )

    def agents(self, principal: Principal) -> tuple[AgentView, ...]:
        return tuple(
            AgentView(name=name, model=agent.model, description=agent.description, demo=self._is_demo(agent.model))
            for name, agent in sorted(self._config.agents.items())
            if principal.agents is None or name in principal.agents
        )

    def _model_states(self) -> dict[str, ModelStatus]:
        """Returns each configured model's state by name, with the number of fallbacks to that model."""
        counts = self._runner.fallbacks.counts
        return {
            name: ModelStatus(
                keys=state.keys,
                keys_resting=state.keys_resting,
                rests_until=state.rests_until,
                rests_because=state.rests_because,
                failures=dict[str, int](state.failures.items()),
                fallbacks=counts[name],
            )
            for name, state in self._models.states().items()
        }

    def agent(self, name: str) -> AgentSettings | None:
        """Returns an agent's settings, or None if the agent is not configured."""
        return self._config.agents.get(name)

    @property
    def idle_expiry(self) -> float | None:
        """Seconds without a message after which a named session ends; None means never."""
        return self._config.expiry.named_idle

    def now(self) -> float:
        """Returns the current time according to the sessions' clock."""
        return self._clock()

    async def is_running(self, session: str) -> bool:
        return await self._store.read(open_turns.running, session) is not None

    def is_extracted(self, row: SessionRow) -> bool:
        """True if notes will be extracted from this session when it ends."""
        extractor = self._components.extractor
        return extractor is not None and extractor.applies(row)

    async def settings_of_all(self, *, limit: int, before: tuple[float, str, str] | None = None) -> list[SettingRow]:
        """Returns the settings currently in force in all sessions, newest first. For the owner only."""
        return await self._store.read(settings.list_all, self._clock(), limit, before)

    async def audit_events(
        self,
        *,
        since: float,
        kind: AuditKind | None = None,
        principal: str | None = None,
        session: str | None = None,
        host: str | None = None,
        before: tuple[float, int] | None = None,
        limit: int,
    ) -> tuple[list[AuditRow], dict[str, str]]:
        """Returns events from the audit log, newest first, and all principals' names by id. `principal` is an id or a
        name. For the owner only."""
        return await self._store.read(queries.audit_events, since, kind, principal, session, host, before, limit)

    async def budgets_of(
        self, principal: Principal, session: SessionRow | None = None
    ) -> tuple[list[BudgetView], bool]:
        """Returns the budgets that this principal may see, and True if there are more."""
        return await self._budgets.visible_to(principal, session)

    async def _count_unindexed(self) -> None:
        found = await self._store.read(_search_status)
        if self._vectors is not None:
            found = msgspec.structs.replace(found, vectors=await self._vectors.status())
        self._search = found

    async def _count_audit_rows(self) -> None:
        self._audit_rows = await self._store.read(audit.count)

    @property
    def models(self) -> tuple[str, ...]:
        return self._models.names

    def _view(self, row: SessionRow, found: OpenTurns, held: tuple[Any, ...] | None = None) -> SessionView:
        """Returns the view of a session with these open turns. `held` are the session's settings. If they are missing,
        as in lists, no fallback is shown."""
        agent, fallbacks = self._config.agents.get(row.agent), self._runner.fallbacks
        model, fallback = agent.model if agent is not None else "", None
        if agent is not None and held is not None:
            model, fallback = fallbacks.model(agent, held).name, fallbacks.current(agent, held)
        return view(
            row,
            running=found.running[0] if found.running else None,
            waiting=found.waiting,
            model=model,
            demo=self._is_demo(model),
            settings=held or (),
            fallback=fallback,
        )

    def _is_demo(self, model: str) -> bool:
        configured = self._config.models.get(model)
        return configured is not None and configured.api == "demo"

    # -- for the process --

    async def recover(self) -> int:
        """Continues after a restart: loads the budgets' counts, resumes open turns, and runs pending end hooks in the
        background. Returns the number of turns that continue."""
        await self._budgets.load()
        await self._count_audit_rows()
        await self._store.write(search_index.set_language, self._components.config.context.language)
        await self._store.write(vectors.set_model, "" if self._vectors is None else self._vectors.identity)
        await self._count_unindexed()
        scope, workspaces = self._components.scope, self._components.workspaces
        await workspaces.start()
        resumed = await recover(self._components)
        await workspaces.processes.report_ends()
        await self._components.servers.start()
        scope.start(self._endings.finish, name="pending end hooks")
        if self._components.extractor is not None:
            scope.start(self._endings.finish_slow, name="pending slow end hooks")
        return resumed

    @property
    def servers(self) -> McpServers:
        """The MCP servers."""
        return self._components.servers

    async def drain(self, within: float) -> None:
        """Stops accepting messages. Running turns get this many seconds to finish; those that do not are parked until
        the next start."""
        self._intake.close()
        await self._engine.drain(within)

    @property
    def ledger(self) -> Ledger:
        """The ledger of the memory, descriptors and child processes held by this process."""
        return self._presence.ledger

    def caches(self) -> tuple[CacheStats, ...]:
        looks = (source.caches() for source in (self._components.project_files, self.skills) if source is not None)
        remembered = () if self.memory is None else self.memory.caches()
        return (
            *self._runner.caches(),
            self._components.prompt_prefixes.stats(),
            *chain.from_iterable(looks),
            *remembered,
        )

    def maintenance_tasks(self) -> list[MaintenanceTask]:
        return maintenance_tasks(self._components, self._count_audit_rows, self._count_unindexed)

    def census(self) -> dict[str, int]:
        """Returns the number of held objects by kind. All numbers return to their baseline once no session is left."""
        stats, presence = self._engine.stats(), self._presence.stats()
        return {
            "present": presence.present,
            "residents": presence.residents,
            "turns_running": stats.running,
            "turns_waiting": stats.waiting,
            "turns_asking": stats.asking,
            "turns_delegating": stats.delegating,
        }

    def status(self) -> SessionsStatus:
        presence = self._presence.stats()
        return SessionsStatus(
            turns=self._engine.stats(),
            sessions=ResidentStats(
                present=presence.present,
                residents=presence.residents,
                resident_bytes=presence.resident_bytes,
                over_cap_mid_turn=presence.over_cap_mid_turn,
                unloads=presence.unloads,
            ),
            workspaces=self._components.workspaces.status(),
            questions=QuestionStats(waiting=self.questions.waiting),
            audit=AuditStats(rows=self._audit_rows),
            search=self._search,
            context={how: self._runner.compaction.counts[how] for how in REDUCTIONS},
            budgets=self._budgets.views(),
            model_states=self._model_states(),
            models={name: meter.read() for name, meter in self._budgets.meters.items()},
            mcp=self._components.servers.status(),
        )


def _search_status(db: Db) -> SearchStatus:
    return SearchStatus(unindexed=search_index.count_unindexed(db), former=search_index.count_former(db))
