"""The settings of a gateway, read once from `tidegate.toml` in its home folder.

Guarantee: what `load` returns is immutable, complete (every default filled in) and checked: each value lies in its
range, each agent's model exists, no secret stands in it as text, and the server cannot be reached from outside the
machine without TLS unless that was asked for by name. Everything else raises `Misconfigured` with the file, the key
and what would be right. Nothing here opens anything but that one file.
"""

from tidegate.config.loader import FILE_NAME, home_folder, load, read
from tidegate.config.reference import example, reference, show
from tidegate.config.settings import (
    AgentSettings,
    BudgetSettings,
    Config,
    ContextSettings,
    ExpirySettings,
    LimitSettings,
    LogSettings,
    MemorySettings,
    ModelSettings,
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
    "MemorySettings",
    "ModelSettings",
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
    "read",
    "reference",
    "show",
]
