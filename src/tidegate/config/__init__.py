"""The settings of a gateway, read once from `tidegate.toml` in its home folder.

The result of `load` is immutable, complete (with all defaults) and validated: each value is in its range, each agent's
model exists, the file contains no plain-text secret, and the server is not reachable from other machines without TLS
unless a setting allows it. Otherwise `Misconfigured` is raised, and its message names the file, the key and the valid
values. No other file is opened here.
"""

from tidegate.config.loader import FILE_NAME, home_folder, load, read
from tidegate.config.plugin_tables import references as plugin_references
from tidegate.config.reference import example, reference, show
from tidegate.config.settings import (
    AgentSettings,
    BudgetSettings,
    Config,
    ContextSettings,
    ExpirySettings,
    LimitSettings,
    LogSettings,
    McpSettings,
    MemorySettings,
    ModelSettings,
    NetworkSettings,
    ServerSettings,
    StoreSettings,
    WebSettings,
    WorkspaceSettings,
    is_loopback,
)
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
