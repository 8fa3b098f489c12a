"""The table `[mcp.NAME]`: servers whose tools agents can use."""

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
    """An MCP server, `[mcp.NAME]`, whose tools agents can use as NAME__TOOL. It is started with a command or reached at
    an address. Requires the extra `mcp`; see docs/mcp.md."""

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
        "A folder of yours that the program may change and in which it starts; in the sandbox, it is /workspace. By "
        "default, it starts in an empty folder of its own.",
    ] = None
    url: Annotated[str, BaseUrl(), "Address of a server that is already running."] = ""
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
        "Revision of the protocol. auto detects it at the first connection.",
    ] = "auto"
    agents: Annotated[tuple[str, ...], NameList(), "Names of the agents that may use it; default: all agents."] = ()
    tools: Annotated[
        tuple[str, ...], TextLines(), 'Patterns of its tools that are offered, such as `"get_*"`; default: all.'
    ] = ("*",)
    without: Annotated[tuple[str, ...], TextLines(), "Patterns of its tools that are not offered."] = ()
    approve: Annotated[
        Literal["never", "writes", "always"],
        OneOf("never", "writes", "always"),
        "Which calls need approval: none, those of tools that the server does not mark as only reading, or all. Rules "
        "of the agent take precedence.",
    ] = "writes"
    scope: Annotated[
        Literal["process", "session", "principal"],
        OneOf("process", "session", "principal"),
        "Who shares one running server: everybody, the turns of one conversation, or the conversations of one user.",
    ] = "process"
    start: Annotated[
        Literal["on-demand", "eager"],
        OneOf("on-demand", "eager"),
        "Whether it is started when it is needed, or with the gateway (only with scope process).",
    ] = "on-demand"
    idle_stop: Annotated[
        float, Duration(0), "Idle time after which a server that was started on demand is stopped; 0 means never."
    ] = 600.0
    profile: Annotated[
        Literal["resilient", "strict", "best-effort"],
        OneOf("resilient", "strict", "best-effort"),
        "resilient restarts it after failures. strict never restarts it, and reports at the start of the gateway that "
        "it is missing. best-effort neither restarts nor reports it.",
    ] = "resilient"
    restart: Annotated[
        Literal["never", "on-failure", "always"] | None,
        OneOf("never", "on-failure", "always"),
        "When it is restarted; default: by `profile` and, with `url`, always.",
    ] = None
    start_timeout: Annotated[float, Duration(0.1), "Time limit of a start, including the handshake."] = 30.0
    list_timeout: Annotated[
        float, Duration(0.1), "How long a new conversation or a call waits for a server that is not ready."
    ] = 10.0
    call_timeout: Annotated[float, Duration(0.1), "Time limit of one call."] = 60.0
    message_bytes: Annotated[
        int, Size(16 * KiB, 64 * MiB), "Largest message of the server; a larger result fails its call."
    ] = 8 * MiB
    sandbox: Annotated[
        bool,
        Flag(),
        "Whether the program runs in a sandbox, with its own home folder and without the user's. Without one, it can "
        "do whatever the gateway's user can.",
    ] = True
    network: Annotated[
        bool,
        Flag(),
        "Whether a sandboxed program can reach public addresses and those in web.private. Requires the packages passt "
        "and nftables.",
    ] = True
    read_only: Annotated[tuple[str, ...], TextLines(), "Further folders that a sandboxed program may read."] = ()
    memory_bytes: Annotated[int, Size(16 * MiB), "Memory for all processes of the program together."] = 1024 * MiB
    processes: Annotated[int, Integer(4, 100_000), "Processes that the program may run at once."] = 256
