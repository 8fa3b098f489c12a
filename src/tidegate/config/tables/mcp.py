"""The `[mcp.NAME]` table: servers whose tools agents can use."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec

from tidegate.config.tables.declarations import KiB, MiB
from tidegate.config.value_types import (
    Arguments,
    BaseUrl,
    Duration,
    FilePath,
    Flag,
    Headers,
    Integer,
    NameList,
    OneOf,
    Reference,
    Size,
    Text,
    TextLines,
    Variables,
)
from tidegate.values import Frozen


class McpSettings(Frozen, frozen=True):
    """An MCP server, `[mcp.NAME]`, whose tools agents can use as NAME__TOOL. The server is either a local program or a
    remote server. Requires the `mcp` extra; see docs/mcp.md."""

    command: Annotated[str, Text(at_most=4096), "The program to start; required unless `url` is set."] = ""
    args: Annotated[tuple[str, ...], Arguments(), "Arguments of the program."] = ()
    env: Annotated[
        Mapping[str, str],
        Variables(),
        "Environment variables of the program. A value that is a reference is replaced with its secret.",
    ] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    cwd: Annotated[
        str | None,
        FilePath(),
        "A folder of yours in which the program starts and which it may change; in the sandbox, the folder is "
        "/workspace. By default, the program starts in its own, initially empty folder.",
    ] = None
    url: Annotated[str, BaseUrl(), "URL of a remote server."] = ""
    transport: Annotated[
        Literal["http", "sse"],
        OneOf("http", "sse"),
        "Protocol for `url`: streamable HTTP, or the older HTTP with server-sent events.",
    ] = "http"
    headers: Annotated[
        Mapping[str, str],
        Headers(),
        "Extra HTTP headers for `url`. A value that is a reference is replaced with its secret.",
    ] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    token: Annotated[str | None, Reference(), "Reference to the bearer token for `url`."] = None
    revision: Annotated[
        Literal["auto", "2025", "2026"],
        OneOf("auto", "2025", "2026"),
        "Protocol version. auto detects it at the first connection.",
    ] = "auto"
    agents: Annotated[
        tuple[str, ...], NameList(), "Names of the agents that may use the server; default: all agents."
    ] = ()
    tools: Annotated[
        tuple[str, ...], TextLines(), 'Patterns of the tools that are offered, such as `"get_*"`; default: all tools.'
    ] = ("*",)
    without: Annotated[tuple[str, ...], TextLines(), "Patterns of the tools that are not offered."] = ()
    approve: Annotated[
        Literal["never", "writes", "always"],
        OneOf("never", "writes", "always"),
        "Which calls need approval: none, all except calls of tools that the server marks as read-only, or all. An "
        "agent's rules take precedence.",
    ] = "writes"
    scope: Annotated[
        Literal["process", "session", "principal"],
        OneOf("process", "session", "principal"),
        "Who shares one running server: everybody, the turns of one conversation, or the conversations of one user.",
    ] = "process"
    start: Annotated[
        Literal["on-demand", "eager"],
        OneOf("on-demand", "eager"),
        "Whether the server starts when it is first needed, or with the gateway (only with scope process).",
    ] = "on-demand"
    idle_stop: Annotated[
        float, Duration(0), "Idle time after which a server that was started on demand is stopped; 0 means never."
    ] = 600.0
    profile: Annotated[
        Literal["resilient", "strict", "best-effort"],
        OneOf("resilient", "strict", "best-effort"),
        "resilient: the server is restarted after failures. strict: it starts with the gateway, a failed start is "
        "logged as an error, and it is never restarted. best-effort: it is never restarted, and a failed "
        "start with the gateway is not reported.",
    ] = "resilient"
    restart: Annotated[
        Literal["never", "on-failure", "always"] | None,
        OneOf("never", "on-failure", "always"),
        "When the server is restarted; default: as `profile` says or, if a resilient server has a `url`, always.",
    ] = None
    start_timeout: Annotated[float, Duration(0.1), "Time limit for a start, including the handshake."] = 30.0
    list_timeout: Annotated[
        float, Duration(0.1), "How long a new conversation or a call waits for a server that is not ready."
    ] = 10.0
    call_timeout: Annotated[float, Duration(0.1), "Time limit for one call."] = 60.0
    message_bytes: Annotated[
        int, Size(16 * KiB, 64 * MiB), "Maximum size of a message from the server; a call with a larger result fails."
    ] = 8 * MiB
    sandbox: Annotated[
        bool,
        Flag(),
        "Whether the program runs in a sandbox, with its own home folder and without access to the user's. Without a "
        "sandbox, the program can do whatever the gateway's user can.",
    ] = True
    network: Annotated[
        bool,
        Flag(),
        "Whether a sandboxed program can reach public addresses and those in web.private. Requires the packages passt "
        "and nftables.",
    ] = True
    read_only: Annotated[tuple[str, ...], TextLines(), "Additional folders that a sandboxed program may read."] = ()
    memory_bytes: Annotated[int, Size(16 * MiB), "Memory limit for all of the program's processes."] = 1024 * MiB
    processes: Annotated[
        int, Integer(4, 100_000), "Maximum number of processes that the program may run at the same time."
    ] = 256
