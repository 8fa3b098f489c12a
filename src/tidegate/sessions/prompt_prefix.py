"""The prompt and tools of a new session, including notes, project files and skills.

Equal prefixes are built once and shared. The prefix of an agent without notes, project files or skills depends only on
the agent's settings, so no files are read for it. The sources are read when a session begins; later changes to them do
not affect that session.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from tidegate.agent import EXTRA, PROMPT, build_prefix
from tidegate.config import AgentSettings, Config
from tidegate.errors import Misconfigured
from tidegate.lifetimes import BoundedCache, CacheStats
from tidegate.models import Models
from tidegate.tools import Toolsets
from tidegate.turns import ServerTools
from tidegate.values import Frozen, Prefix

KEPT = 256
"""Number of prefixes kept for sharing. Most of an agent's sessions have the same prefix."""

KEPT_BYTES = 4 * 1024 * 1024
"""Maximum total size of these prompts, in bytes."""


class NewSession(Frozen, frozen=True):
    """The initial data of a new session, prepared outside the transaction."""

    prefix: Prefix
    encoder: int
    memory_seen: int = 0


class PromptSource(Protocol):
    """Provides the part of the prompt with this name. A source does its own caching."""

    name: str
    needs_tools: bool
    """True if the part is about a tool. Such a part is left out if the caller's tools replace the agent's."""

    def serves(self, agent: str) -> bool:
        """True if this source may have a part for this agent, according to the configuration."""
        ...

    async def part(self, agent: str, principal: str) -> str:
        """Returns the text of the part for a new session of this principal; empty if there is none."""
        ...


class PromptPrefixes:
    def __init__(
        self,
        config: Config,
        models: Models,
        tools: Toolsets,
        sources: Sequence[PromptSource] = (),
        *,
        mark: Callable[[str], Awaitable[int]] | None = None,
        servers: ServerTools | None = None,
    ) -> None:
        """`mark` returns the number of the first change to the notes to be announced in a new session of this agent, or
        0 if there is none. `servers` adds the tools of MCP servers."""
        self._mark = mark
        self._servers = servers
        self._config = config
        self._models = models
        self._tools = tools
        self._sources = {name: tuple(source for source in sources if source.serves(name)) for name in config.agents}
        self._kept: BoundedCache[tuple[str, bool, tuple[str, ...], int], NewSession] = BoundedCache(
            "prompt prefixes", cap=KEPT, max_bytes=KEPT_BYTES, weigh=lambda fresh: 2 * len(fresh.prefix.prompt)
        )

    async def of(self, agent: str, principal: str, extra: str = "", *, own_tools: bool = True) -> NewSession:
        """Prepares a new session of this agent for this principal. If `own_tools` is false, the agent may not use its
        tools, and the prompt does not mention them."""
        settings = self._config.agents.get(agent)
        if settings is None:
            raise Misconfigured(f"The agent {agent!r} is no longer configured; add [agents.{agent}] to tidegate.toml.")
        sources = tuple(each for each in self._sources[agent] if own_tools or not each.needs_tools)
        # This must come before the notes are read, so that a change in between is reported twice rather than never.
        seen = 0 if self._mark is None else await self._mark(agent)
        texts = tuple([await source.part(agent, principal) for source in sources]) if sources else ()
        key = (agent, own_tools, texts, 0 if self._servers is None else self._servers.generation)
        known = self._kept.get(key) if not extra else None
        if known is None:
            parts = zip((source.name for source in sources), texts, strict=True)
            known = self._make(agent, settings, [(PROMPT, settings.prompt), *parts, (EXTRA, extra)])
            if not extra:
                self._kept.put(key, known)
        return known if known.memory_seen == seen else msgspec.structs.replace(known, memory_seen=seen)

    def _make(self, name: str, agent: AgentSettings, parts: list[tuple[str, str]]) -> NewSession:
        tools = self._tools.resolve(agent.tools)
        if self._servers is not None:
            tools = self._servers.toolset(name, tools)
        return NewSession(prefix=build_prefix(parts, tools), encoder=self._models.get(agent.model).wire.version)

    def stats(self) -> CacheStats:
        return self._kept.stats()
