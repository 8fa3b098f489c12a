"""A gateway's settings, read once from `tidegate.toml` in its home folder.

`load` returns an immutable, complete (with all defaults) and validated configuration: each value is in its range, each
agent's model exists, the file contains no plain-text secrets, and the server is not reachable from other machines
without TLS unless a setting allows it. Otherwise, it raises `Misconfigured` with a message that names the file, the key
and the valid values. No other file is opened here.
"""

from tidegate.config.loader import FILE_NAME, home_folder, load, read
from tidegate.config.plugin_tables import references as plugin_references
from tidegate.config.reference import example, reference, show
from tidegate.config.settings import Config
from tidegate.config.tables.agents import AgentSettings, ContextSettings, MemorySettings
from tidegate.config.tables.limits import BudgetSettings, ExpirySettings, LimitSettings
from tidegate.config.tables.mcp import McpSettings
from tidegate.config.tables.models import ModelSettings, NetworkSettings
from tidegate.config.tables.server import LogSettings, ServerSettings, StoreSettings, is_loopback
from tidegate.config.tables.workspaces import WebSettings, WorkspaceSettings
from tidegate.config.value_types import SENSITIVE_HEADER, Duration, InvalidValue, is_reference, looks_secret, nearest

__all__ = [
    "FILE_NAME",
    "SENSITIVE_HEADER",
    "AgentSettings",
    "BudgetSettings",
    "Config",
    "ContextSettings",
    "Duration",
    "ExpirySettings",
    "InvalidValue",
    "LimitSettings",
    "LogSettings",
    "McpSettings",
    "MemorySettings",
    "ModelSettings",
    "NetworkSettings",
    "ServerSettings",
    "StoreSettings",
    "WebSettings",
    "WorkspaceSettings",
    "example",
    "home_folder",
    "is_loopback",
    "is_reference",
    "load",
    "looks_secret",
    "nearest",
    "plugin_references",
    "read",
    "reference",
    "show",
]
