"""The components of the session service, built from the configuration.

A component that no configured agent uses is None, and its modules are not imported. Building does not open or start
anything; `Sessions.recover` does that. The caller of `build_components` owns the result, and must also enter the
context manager `web` unless it is None; until then, web access is unavailable.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.config import Config
from tidegate.engine import Engine, build_engine
from tidegate.http_client import Network
from tidegate.lifetimes import Ledger, Presence, Scope
from tidegate.log import Log
from tidegate.mcp import McpServers
from tidegate.models import Models
from tidegate.security import Secret
from tidegate.sessions.admission import Intake
from tidegate.sessions.lifecycle import EndHook, SessionEndings
from tidegate.sessions.prompt_prefix import PromptPrefixes, PromptSource
from tidegate.spool import Spool
from tidegate.store import SessionRow, Store
from tidegate.tools import Delegates, Notes, Recall, Skills, ToolServices, Toolsets
from tidegate.turns import DELEGATE, Approvals, Budgets, Channels, Compaction, Runner, ToolEnv
from tidegate.workspaces import Provenance, Workspaces

if TYPE_CHECKING:
    from tidegate.memory import Memory, NoteExtractor
    from tidegate.plugins.host import Plugin, Plugins
    from tidegate.recall import RecallService
    from tidegate.recall.vectors import MessageVectors
    from tidegate.skills import ProjectFiles, SkillLibrary
    from tidegate.tools.builtin.web.http_access import WebAccess
    from tidegate.turns.delegation import Delegation

log = Log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    scope: Scope
    store: Store
    config: Config
    models: Models
    clock: Callable[[], float]
    channels: Channels
    presence: Presence
    budgets: Budgets
    spool: Spool
    approvals: Approvals
    provenance: Provenance
    workspaces: Workspaces
    runner: Runner
    engine: Engine
    prompt_prefixes: PromptPrefixes
    intake: Intake
    endings: SessionEndings
    web: "WebAccess | None"
    skills: "SkillLibrary | None"
    project_files: "ProjectFiles | None"
    memory: "Memory | None"
    extractor: "NoteExtractor | None"
    delegation: "Delegation | None"
    recall: "RecallService | None"
    servers: McpServers


def build_components(
    scope: Scope,
    store: Store,
    config: Config,
    models: Models,
    tools: Toolsets,
    *,
    clock: Callable[[], float] = time.time,
    hooks: Mapping[str, EndHook] | None = None,
    channels: Channels | None = None,
    environment: Mapping[str, str] | None = None,
    search_key: Secret | None = None,
    plugins: "Plugins | None" = None,
    network: Network | None = None,
    secrets: Mapping[str, Secret] | None = None,
) -> Components:
    """Builds all components. `environment` is the process's environment, from which commands get the variables named in
    the settings. `search_key` is the key for the web search engine. `plugins` are the configured plug-ins. `network`
    determines how the web tools and MCP servers reach other hosts. `secrets` are the secrets of MCP servers, by
    reference."""
    channels = channels or Channels()
    budgets = Budgets(config, store, clock)
    presence = _presence(scope, config)
    spool = _spool(config, store, clock)
    # The engine and the intake are built later, so callbacks look them up when they are called.
    approvals = Approvals(store, config, channels, clock=clock, wake=lambda turn: engine.wake(turn))
    provenance = _provenance(config, store, clock)
    workspaces = Workspaces(
        scope,
        store,
        presence,
        spool,
        config,
        clock=clock,
        finished=lambda process, text: intake.process_finished(process, text),
        environment=environment or {},
        provenance=provenance,
    )
    web = _web_access(config, spool, search_key, network)
    servers = McpServers(scope, store, config, workspaces.servers, network=network, secrets=secrets, clock=clock)
    presence.ledger.view("mcp server", servers.measure)
    skills = _skills(config, provenance)
    project_files = _project_files(config, provenance)
    memory, extractor = _memory(config, store, models, budgets, clock, _plugin(plugins, "memory"))
    if memory is not None:
        presence.ledger.view("memory provider", memory.measure)
    delegation = _delegation(config, store, lambda: engine, lambda: intake)
    vectors = _vectors(config, store, models, budgets, clock, presence.ledger)
    recall = _recall(config, store, spool, scope, _plugin(plugins, "index"), vectors)
    provided: dict[type, object | None] = {
        Recall: recall,
        Notes: memory,
        Skills: _skill_reader(skills),
        Delegates: delegation,
        type(web): web,
    }
    services = ToolServices({kind: service for kind, service in provided.items() if service is not None})
    tool_env = ToolEnv(config, spool, approvals, workspaces, services)
    on_summarised = None if memory is None else memory.queue_current_notes
    compaction = Compaction(scope.child("summaries"), store, models, config.context, budgets, clock, on_summarised)
    runner = Runner(store, config, models, tools, presence, budgets, tool_env, compaction, channels, clock, servers)
    scope.on_close(runner.histories.close, name="histories")
    sources: tuple[PromptSource | None, ...] = (project_files, skills, delegation, memory, servers)
    prompt_prefixes = PromptPrefixes(
        config,
        models,
        tools,
        [source for source in sources if source is not None],
        mark=None if memory is None else memory.mark,
        servers=servers,
    )
    limits = config.limits
    engine = build_engine(
        scope, store, presence, runner, turns=limits.turns, turn_seconds=limits.turn_seconds, clock=clock
    )
    related = None if memory is None else memory.related
    intake = Intake(store, config, engine, channels, prompt_prefixes, spool, clock, related)

    endings = SessionEndings(
        store,
        presence,
        engine,
        {"workspace": partial(_end_workspace, workspaces), "servers": partial(_end_servers, servers), **(hooks or {})},
        clock,
        partial(_remove_files, workspaces, spool, recall),
        on_ended=runner.forget,
        scope=scope,
        slow={} if extractor is None else {"memory": extractor},
    )
    return Components(
        scope=scope, store=store, config=config, models=models, clock=clock, channels=channels, presence=presence,
        budgets=budgets, spool=spool, approvals=approvals, provenance=provenance, workspaces=workspaces, runner=runner,
        engine=engine, prompt_prefixes=prompt_prefixes, intake=intake, endings=endings, web=web, skills=skills,
        project_files=project_files, memory=memory, extractor=extractor, delegation=delegation, recall=recall,
        servers=servers,
    )  # fmt: skip


async def _end_workspace(workspaces: Workspaces, session: SessionRow) -> None:
    """Closes the session's workspace, as the workspaces' end hook. The hook has no effect to commit and may run twice,
    since a second run finds nothing left to do."""
    await workspaces.end(session.id)


async def _end_servers(servers: McpServers, session: SessionRow) -> None:
    """Stops the session's tool servers, as their end hook. The hook may run twice."""
    await servers.end_holder(session.id)


async def _remove_files(workspaces: Workspaces, spool: Spool, recall: "RecallService | None", session: str) -> None:
    """Deletes the files of a session whose rows have been deleted."""
    await workspaces.discard(session)
    await spool.remove(session)
    if recall is not None and recall.index is not None:
        await recall.index.forget(session)


def _presence(scope: Scope, config: Config) -> Presence:
    limits = config.limits
    return Presence(
        scope,
        residents=limits.residents,
        resident_bytes=limits.resident_bytes,
        idle_ttl=limits.idle_ttl,
        warn=lambda message, fields: log.warning(message, **fields),
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


def _provenance(config: Config, store: Store, clock: Callable[[], float]) -> Provenance:
    """Returns the provenance of the project files included in prompts. The skills package is imported when the files
    are first examined."""

    def digests(folder: Path) -> Mapping[str, bytes]:
        from tidegate.skills import prompt_file_digests

        return prompt_file_digests(config, folder)

    return Provenance(store, digests, clock)


# Each of the following imports its module only if an agent uses it.


def _web_access(config: Config, spool: Spool, key: Secret | None, network: Network | None) -> "WebAccess | None":
    if not _uses(config, "web"):
        return None
    from tidegate.tools.builtin.web.http_access import WebAccess

    return WebAccess(config.web, workers=spool.workers, key=key, network=network)


def _skills(config: Config, provenance: Provenance) -> "SkillLibrary | None":
    if not _uses(config, "skills"):
        return None
    from tidegate.skills import SkillLibrary

    return SkillLibrary(config, provenance)


def _skill_reader(library: "SkillLibrary | None") -> Skills | None:
    if library is None:
        return None
    from tidegate.turns.skill_reader import SkillReader

    return SkillReader(library)


def _project_files(config: Config, provenance: Provenance) -> "ProjectFiles | None":
    if not any(agent.workspace and agent.project_files for agent in config.agents.values()):
        return None
    from tidegate.skills import ProjectFiles

    return ProjectFiles(config, provenance)


def _memory(
    config: Config,
    store: Store,
    models: Models,
    budgets: Budgets,
    clock: Callable[[], float],
    provider: "Plugin | None",
) -> "tuple[Memory | None, NoteExtractor | None]":
    if not _uses(config, "memory"):
        return None, None
    from tidegate.memory import Memory, NoteExtractor

    memory = Memory(config, store, clock, provider)
    if not config.memory.at_end:
        return memory, None
    return memory, NoteExtractor(memory, config, store, models, budgets.spend_guard, clock)


def _delegation(
    config: Config, store: Store, engine: Callable[[], Engine], intake: Callable[[], Intake]
) -> "Delegation | None":
    if not any(agent.delegates and DELEGATE in agent.tools for agent in config.agents.values()):
        return None
    from tidegate.turns.delegation import Delegation

    return Delegation(config, store, engine, lambda inbound: intake().accept(inbound))


def _vectors(
    config: Config, store: Store, models: Models, budgets: Budgets, clock: Callable[[], float], ledger: Ledger
) -> "MessageVectors | None":
    if not config.context.embeddings or not _uses(config, "context"):
        return None
    from tidegate.recall.vectors import MessageVectors

    return MessageVectors(
        config.context.embeddings,
        models,
        store,
        budgets.spend_guard,
        clock,
        vector_bytes=config.context.vector_bytes,
        ledger=ledger,
    )


def _recall(
    config: Config,
    store: Store,
    spool: Spool,
    scope: Scope,
    index: "Plugin | None",
    vectors: "MessageVectors | None",
) -> "RecallService | None":
    if not _uses(config, "context"):
        return None
    from tidegate.recall import RecallService

    return RecallService(config, store, spool, scope, index, vectors)


def _plugin(plugins: "Plugins | None", kind: str) -> "Plugin | None":
    """Returns the plug-in of this kind, of which there is at most one."""
    return None if plugins is None else next(iter(plugins.of_kind(kind)), None)


def _uses(config: Config, toolset: str) -> bool:
    return any(toolset in agent.tools for agent in config.agents.values())
