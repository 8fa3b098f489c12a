"""The tables `[workspaces]` and `[web]`: where agents' commands run, and what their web tools can reach."""

from typing import Annotated, Literal

from tidegate.config.tables.declarations import DAY, HOUR, KiB, MiB
from tidegate.config.value_types import (
    BaseUrl,
    Duration,
    Flag,
    Integer,
    NameList,
    Networks,
    OneOf,
    Proxy,
    Reference,
    Size,
    Text,
    TextLines,
    UserName,
)
from tidegate.values import Frozen


class WorkspaceSettings(Frozen, frozen=True):
    """The environment in which agents' commands run, and the limits for each conversation's commands."""

    backend: Annotated[
        Literal["auto", "bubblewrap", "local", "ssh", "none"],
        OneOf("auto", "bubblewrap", "local", "ssh", "none"),
        "How commands are isolated. auto means bubblewrap if it works, else none. local has no isolation: use it only "
        "on a machine that the agent may control.",
    ] = "auto"
    user: Annotated[
        str,
        UserName(),
        "User name or id for commands and file tools if the gateway runs as root; default: the owner of the project "
        "folder or, if that is root or there is no such folder, an unused id.",
    ] = ""
    network: Annotated[
        bool,
        Flag(),
        "Whether commands in a sandbox can reach public addresses and those in web.private. Requires the packages "
        "passt and nftables.",
    ] = False
    memory_bytes: Annotated[int, Size(16 * MiB), "Memory for all of one conversation's commands together."] = 1024 * MiB
    processes: Annotated[
        int, Integer(4, 100_000), "Maximum number of processes that one conversation may run at the same time."
    ] = 256
    disk_bytes: Annotated[int, Size(1 * MiB), "Disk space of one conversation's folder."] = 2048 * MiB
    files: Annotated[int, Integer(100), "Maximum number of files and folders in one conversation's folder."] = 1_000_000
    file_bytes: Annotated[int, Size(1 * MiB), "Maximum size of a file that a command writes."] = 1024 * MiB
    cpu_seconds: Annotated[float, Duration(1), "CPU time for one command."] = HOUR
    command_seconds: Annotated[
        float, Duration(1), "Longest time limit that an agent can set for a terminal command."
    ] = 600.0
    kept_processes: Annotated[int, Integer(1, 1000), "Number of finished background processes that stay listed."] = 20
    process_seconds: Annotated[
        float,
        Duration(0),
        "Time limit for a background process. When it is reached, the process is killed and its agent notified. 0 "
        "means "
        "no limit.",
    ] = 7 * DAY
    process_log_bytes: Annotated[int, Size(64 * KiB), "Maximum amount of output stored for one background process."] = (
        4 * MiB
    )
    trash: Annotated[float, Duration(0), "How long an ended conversation's folder can be restored."] = 7 * DAY
    trash_bytes: Annotated[
        int,
        Size(1 * MiB),
        "Disk space for all these folders together; when it is exceeded, the oldest are removed early.",
    ] = 8192 * MiB
    environment: Annotated[
        tuple[str, ...],
        NameList(),
        "The gateway's environment variables that commands can see. None of them may contain a secret.",
    ] = ("LANG", "TZ")
    read_only: Annotated[tuple[str, ...], TextLines(), "Additional folders that commands in a sandbox may read."] = ()
    ssh_host: Annotated[
        str, Text(), "The machine on which commands run with the backend ssh: `host` or `user@host`."
    ] = ""
    ssh_options: Annotated[
        tuple[str, ...], TextLines(), 'Options for ssh, such as `"Port=2222"` or `"IdentityFile=~/.ssh/agent"`.'
    ] = ()


class WebSettings(Frozen, frozen=True):
    """The addresses and the search engine that agents can use with web tools."""

    private: Annotated[
        tuple[str, ...],
        Networks(),
        "Private addresses and networks that agents may access, such as those of your own servers.",
    ] = ()
    proxy: Annotated[
        str,
        Proxy(),
        'Proxy for fetches and searches: "none", "environment", its address, or a reference to an address with a '
        "password. The proxy then resolves names, so it must itself refuse private addresses.",
    ] = "none"
    fetch_bytes: Annotated[
        int, Size(1 * KiB, 64 * MiB), "Maximum size of a fetched page or file, after decompression."
    ] = 8 * MiB
    fetch_seconds: Annotated[float, Duration(1), "Time limit for one fetch or search, including redirects."] = 30.0
    search: Annotated[
        Literal["none", "searxng", "brave", "tavily"],
        OneOf("none", "searxng", "brave", "tavily"),
        "The search engine.",
    ] = "none"
    search_url: Annotated[
        str, BaseUrl(), "Base URL of the search engine's API; required for searxng; the others have a default."
    ] = ""
    search_key: Annotated[
        str | None, Reference(), "Reference to the search engine's API key; required for brave and tavily."
    ] = None
