"""A gateway's settings: the tables in `tidegate.toml`, and the value that `load` returns.

Every setting is declared once, in its table's module in `tables/`. The validation in `load` and `docs/configuration.md`
are derived from the same declarations, so they cannot disagree. Values are immutable.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from tidegate.config.tables.agents import AgentSettings, ContextSettings, MemorySettings, SkillSettings
from tidegate.config.tables.limits import BudgetSettings, ExpirySettings, LimitSettings
from tidegate.config.tables.mcp import McpSettings
from tidegate.config.tables.models import ModelSettings, NetworkSettings
from tidegate.config.tables.server import LogSettings, ServerSettings, StoreSettings
from tidegate.config.tables.workspaces import WebSettings, WorkspaceSettings
from tidegate.errors import Misconfigured
from tidegate.values import Frozen


class Config(Frozen, frozen=True):
    """All settings of a gateway. `demo` is true if the demo model is used because no model is configured."""

    home: Path
    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    models: Mapping[str, ModelSettings] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    agents: Mapping[str, AgentSettings] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    mcp: Mapping[str, McpSettings] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    limits: LimitSettings = LimitSettings()
    budgets: Mapping[str, BudgetSettings] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    workspaces: WorkspaceSettings = WorkspaceSettings()
    network: NetworkSettings = NetworkSettings()
    web: WebSettings = WebSettings()
    context: ContextSettings = ContextSettings()
    memory: MemorySettings = MemorySettings()
    skills: SkillSettings = SkillSettings()
    expiry: ExpirySettings = ExpirySettings()
    log: LogSettings = LogSettings()
    plugins: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    """The tables `[plugins.NAME]`. Each plug-in defines the keys of its table."""
    demo: bool = False

    def project(self, agent: str) -> Path | None:
        """Returns the path of the agent's `workspace` folder, which may not exist, or None if it is not set."""
        folder = self.agents[agent].workspace
        return None if folder is None else self.path(folder)

    def path(self, text: str) -> Path:
        """Resolves a path in the configuration: `~` is the user's home, and relative paths start at the gateway's home
        folder."""
        try:
            return self.home / Path(text).expanduser()
        except RuntimeError:
            raise Misconfigured(f"the path {text} starts with the home folder of an unknown user") from None


SINGLE: Mapping[str, type[Frozen]] = MappingProxyType(
    {
        "server": ServerSettings,
        "store": StoreSettings,
        "limits": LimitSettings,
        "workspaces": WorkspaceSettings,
        "network": NetworkSettings,
        "web": WebSettings,
        "context": ContextSettings,
        "memory": MemorySettings,
        "skills": SkillSettings,
        "expiry": ExpirySettings,
        "log": LogSettings,
    }
)
"""Tables that occur only once, by their name in the file."""

NAMED: Mapping[str, type[Frozen]] = MappingProxyType(
    {"models": ModelSettings, "agents": AgentSettings, "budgets": BudgetSettings, "mcp": McpSettings}
)
"""Groups of tables with user-defined names, such as `[models.NAME]`."""
