"""All settings, each declared in one place with its name, type, default, validation rule and documentation.

Values are immutable. The validation in `load` and `docs/configuration.md` are derived from the same declarations, so
they cannot disagree.
"""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec

from tidegate.config.value_types import (
    BaseUrl,
    Dollars,
    Duration,
    FilePath,
    Flag,
    Fraction,
    Headers,
    Integer,
    NameList,
    Networks,
    OneOf,
    Origins,
    Price,
    Proxy,
    Reference,
    References,
    Size,
    Subset,
    Text,
    TextLines,
    UserName,
    ValueType,
)
from tidegate.errors import Misconfigured
from tidegate.values import LANGUAGES, Frozen

KiB = 1024
MiB = 1024 * KiB
HOUR = 3600.0
DAY = 24 * HOUR


class DeclaredSetting(NamedTuple):
    """The declaration of a setting. `default` is `msgspec.NODEFAULT` if the setting is required."""

    name: str
    rule: ValueType
    doc: str
    default: Any


def settings_of(table: type[msgspec.Struct]) -> dict[str, DeclaredSetting]:
    """Returns the settings of a table, in the order of their declaration."""
    hints = get_type_hints(table, include_extras=True)
    found: dict[str, DeclaredSetting] = {}
    for field in msgspec.structs.fields(table):
        if (marks := getattr(hints[field.name], "__metadata__", None)) is None:
            continue
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        found[field.name] = DeclaredSetting(field.name, marks[0], marks[1], default)
    return found


def is_loopback(host: str) -> bool:
    """True if a server that listens on `host` can be reached only from this machine. Names other than `localhost` are
    assumed to be reachable from elsewhere, since their address can change."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ServerSettings(Frozen, frozen=True):
    """The address that the gateway listens on."""

    host: Annotated[
        str, Text(needed=True, at_most=253), "Address to listen on. Addresses other than loopback require TLS."
    ] = "127.0.0.1"
    port: Annotated[int, Integer(0, 65535), "Port to listen on; 0 is any free port."] = 8420
    tls_cert: Annotated[str | None, FilePath(), "Certificate chain (PEM), relative to the home folder."] = None
    tls_key: Annotated[str | None, FilePath(), "Private key of the certificate (PEM), relative to the home folder."] = (
        None
    )
    insecure: Annotated[
        bool, Flag(), "Listen beyond loopback without TLS, for a gateway behind a proxy that provides TLS."
    ] = False
    one_core: Annotated[
        bool,
        Flag(),
        "Keep the gateway's threads on one CPU core, which makes turns cheaper; false allows all cores.",
    ] = True
    origins: Annotated[
        tuple[str, ...], Origins(), "Origins of other web pages that may call the gateway from a browser."
    ] = ()


class StoreSettings(Frozen, frozen=True):
    """Storage of conversations on disk."""

    durability: Annotated[
        Literal["process", "power"],
        OneOf("process", "power"),
        "What accepted messages survive: a crash of the process, or a power failure as well (slower).",
    ] = "process"


ModelKindName = Literal["chat", "embeddings", "transcription", "speech"]
MODEL_KINDS: Mapping[str, ModelKindName] = MappingProxyType(
    {
        "demo": "chat",
        "openai-chat": "chat",
        "openai-responses": "chat",
        "anthropic": "chat",
        "openai-embeddings": "embeddings",
        "openai-transcription": "transcription",
        "openai-speech": "speech",
    }
)
"""The kind of a model by its `api`."""


class ModelSettings(Frozen, frozen=True):
    """A model, `[models.NAME]`, with a name of your choice. If there is none, the built-in demo model is used."""

    api: Annotated[
        Literal[
            "demo",
            "openai-chat",
            "openai-responses",
            "anthropic",
            "openai-embeddings",
            "openai-transcription",
            "openai-speech",
        ],
        OneOf(*MODEL_KINDS),
        "Wire format: OpenAI's chat completions or responses, Anthropic's messages, or the built-in demo model; or, "
        "for a model of another kind than chat, OpenAI's embeddings, audio transcriptions or speech.",
    ]
    base_url: Annotated[
        str,
        BaseUrl(),
        "Base URL of the API; required unless `api` is demo. With a key, it must use https or be on this machine.",
    ] = ""
    model: Annotated[str, Text(), "The provider's name for the model; required unless `api` is demo."] = ""
    key: Annotated[
        str | None, Reference(), "Reference to the API key. Keys are only read from the places named here."
    ] = None
    keys: Annotated[
        tuple[str, ...],
        References(),
        "References to several API keys, instead of `key`. When one has used up its quota, the next one is used.",
    ] = ()
    headers: Annotated[
        Mapping[str, str],
        Headers(),
        "Extra HTTP headers. A value that is a reference is replaced with its secret.",
    ] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    connect_timeout: Annotated[float, Duration(0.1), "Time limit for making a connection."] = 10.0
    first_byte_timeout: Annotated[float, Duration(0.1), "Time limit for the first byte of an answer."] = 120.0
    idle_timeout: Annotated[float, Duration(0.1), "Time limit for a pause within an answer."] = 60.0
    proxy: Annotated[
        str,
        Proxy(),
        'Proxy for this model: "environment", "none", its address, or a reference to an address with a password; '
        "default: as in [network].",
    ] = ""
    ca_file: Annotated[
        str | None,
        FilePath(),
        "Further certificate authorities (PEM) to trust for this model, relative to the home folder.",
    ] = None
    retries: Annotated[int, Integer(0, 20), "How often a failed call is retried, unless text was already shown."] = 3
    context_window: Annotated[
        int | None,
        Integer(128, 2**30),
        "Maximum tokens of a request and its answer together, at least 1024; of an embeddings model: of one text. "
        "Default: from the catalogue.",
    ] = None
    max_output: Annotated[
        int | None, Integer(16, 2**30), "Maximum tokens of an answer; default: from the catalogue."
    ] = None
    vision: Annotated[
        bool | None, Flag(), "Whether the model accepts images and PDF documents; default: from the catalogue."
    ] = None
    audio: Annotated[bool | None, Flag(), "Whether the model accepts audio; default: from the catalogue."] = None
    thinking: Annotated[
        Literal["none", "effort", "adaptive", "budget"] | None,
        OneOf("none", "effort", "adaptive", "budget"),
        "How reasoning is controlled: not at all, with an effort level, with an effort level and adaptive thinking, or "
        "with a token budget; default: from the catalogue.",
    ] = None
    efforts: Annotated[
        tuple[str, ...] | None,
        Subset("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        "Effort levels that the model supports; default: from the catalogue.",
    ] = None
    price_input: Annotated[
        float | None,
        Price(),
        "Dollars per million input tokens. Together with `price_output`, replaces all prices from the catalogue.",
    ] = None
    price_output: Annotated[float | None, Price(), "Dollars per million output tokens."] = None
    price_cached: Annotated[
        float | None, Price(), "Dollars per million tokens read from the provider's cache; default: `price_input`."
    ] = None
    price_written: Annotated[
        float | None, Price(), "Dollars per million tokens written to the provider's cache; default: `price_input`."
    ] = None
    cache_ttl: Annotated[
        Literal["5m", "1h"] | None,
        OneOf("5m", "1h"),
        "How long the provider keeps its cache; default: 5m. Only for `api` anthropic.",
    ] = None
    dimensions: Annotated[
        int | None,
        Integer(8, 8192),
        "Length of the vectors to request; default: the model's own. Shorter vectors take less disk space. Only for "
        "`api` openai-embeddings.",
    ] = None
    voice: Annotated[str, Text(at_most=128), "Name of the voice; required for, and only for, `api` openai-speech."] = ""
    price_minute: Annotated[
        float | None,
        Price(),
        "Dollars per minute of sound, instead of the prices of tokens. Only for `api` openai-transcription.",
    ] = None
    price_characters: Annotated[
        float | None,
        Price(),
        "Dollars per million characters, instead of the prices of tokens. Only for `api` openai-speech.",
    ] = None

    @property
    def kind(self) -> ModelKindName:
        """What the model is for."""
        return MODEL_KINDS[self.api]

    @property
    def references(self) -> tuple[str, ...]:
        """The references to the API keys in the order of their use. Empty if the endpoint needs no key."""
        return self.keys if self.key is None else (self.key,)


class NetworkSettings(Frozen, frozen=True):
    """How the gateway reaches models and other services; see docs/network.md."""

    proxy: Annotated[
        str,
        Proxy(),
        'Proxy for requests to other machines: "environment" (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY), "none", its '
        "address, or a reference to an address with a password. NO_PROXY names exceptions.",
    ] = "environment"
    ca_file: Annotated[
        str | None,
        FilePath(),
        "Certificate authorities (PEM) to trust in addition to the system's, relative to the home folder.",
    ] = None


class AgentSettings(Frozen, frozen=True):
    """An agent, `[agents.NAME]`, with a name of your choice, which callers use as `model`."""

    model: Annotated[str, Text(needed=True), "Name of a model in `[models.…]`."] = "main"
    fallback: Annotated[
        tuple[str, ...], NameList(once=True), "Names of models to try in this order if `model` fails."
    ] = ()
    fallback_for: Annotated[
        float, Duration(0), "How long a conversation uses a fallback before `model` is tried again."
    ] = 900.0
    reasoning: Annotated[
        Literal["off", "minimal", "low", "medium", "high", "max"] | None,
        OneOf("off", "minimal", "low", "medium", "high", "max"),
        "Reasoning effort; default: the provider's.",
    ] = None
    prompt: Annotated[str, Text(one_line=False, at_most=1_000_000), "The system prompt."] = (
        "You are a helpful assistant. Answer briefly and truthfully."
    )
    tools: Annotated[tuple[str, ...], NameList(), "Names of the toolsets that the agent may use."] = ()
    caller_tools: Annotated[
        Literal["merge", "only", "ignore", "refuse"],
        OneOf("merge", "only", "ignore", "refuse", flags=("only", "refuse")),
        "How to treat `tools` in an API request: offer them after the agent's own, offer only them, ignore them, or "
        "respond with 400.",
    ] = "merge"
    workspace: Annotated[
        str | None,
        FilePath(),
        "A folder of yours in which all conversations of the agent work. It must not be a user's home folder or a "
        "folder of the gateway. By default, each conversation has its own folder, which is removed with it.",
    ] = None
    description: Annotated[str, Text(), "One line that helps users choose an agent."] = ""
    approvals: Annotated[
        Literal["strict", "balanced", "autonomous"],
        OneOf("strict", "balanced", "autonomous"),
        "What the agent's tools may do without approval, unless a rule says otherwise.",
    ] = "balanced"
    rules: Annotated[
        tuple[str, ...],
        TextLines(),
        'Rules that override `approvals`, such as `"ask terminal command=git push*"`. The first match wins; '
        "see docs/approvals.md.",
    ] = ()
    recall: Annotated[
        Literal["session", "person"],
        OneOf("session", "person"),
        "What the toolset `context` may search: this conversation, or all conversations of the same user.",
    ] = "session"
    skills: Annotated[
        tuple[str, ...],
        NameList(),
        "Names of the skills that the toolset `skills` offers; default: all that are found.",
    ] = ()
    project_files: Annotated[
        tuple[str, ...],
        TextLines(),
        "Files in the agent's `workspace` to add to the prompt, by relative path; see docs/skills.md.",
    ] = ("AGENTS.md", "CLAUDE.md")
    delegates: Annotated[
        tuple[str, ...], NameList(), "Names of agents to which it may delegate tasks with the toolset `delegate`."
    ] = ()
    unanswered: Annotated[
        Literal["go_on", "end"],
        OneOf("go_on", "end"),
        "What a turn does if its question is not answered in time: continue without an answer, or end.",
    ] = "go_on"


class BudgetSettings(Frozen, frozen=True):
    """A spending limit for models, `[budgets.NAME]`, with a name of your choice. At 80% users are warned; at 100% their
    turns are refused until the next period begins. See docs/usage.md."""

    per: Annotated[
        Literal["gateway", "principal", "agent", "session", "turn", "job"],
        OneOf("gateway", "principal", "agent", "session", "turn", "job"),
        "What the limit applies to: the whole gateway, or each user (principal), agent, conversation, turn or job.",
    ]
    each: Annotated[
        Literal["hour", "day", "month", "total"] | None,
        OneOf("hour", "day", "month", "total"),
        'The period (UTC), or `total` for a limit that never renews; required unless `per` is "turn".',
    ] = None
    tokens: Annotated[int | None, Integer(1), "Limit in tokens, input and output together."] = None
    money: Annotated[float | None, Dollars(), "Limit in dollars; requires a known price for every model."] = None
    only: Annotated[
        tuple[str, ...],
        TextLines(),
        "Names of the agents, users or jobs that the budget applies to; default: all of them.",
    ] = ()


class LimitSettings(Frozen, frozen=True):
    """The limits of the process. If one is exceeded, the error names it; nothing is cut silently."""

    residents: Annotated[int, Integer(1), "Maximum number of conversations in memory; the others are in the store."] = (
        128
    )
    resident_bytes: Annotated[int, Size(64 * KiB), "Maximum memory of these conversations together."] = 64 * MiB
    memory_bytes: Annotated[
        int | None,
        Size(32 * MiB, auto=True),
        "Process memory above which idle conversations are unloaded; auto is three quarters of its control group's "
        "limit or of the machine's memory.",
    ] = None
    idle_ttl: Annotated[float, Duration(1), "How long an unused conversation stays in memory."] = HOUR
    turns: Annotated[int, Integer(1, 10_000), "Turns that may run at once; further turns wait."] = 64
    queue_length: Annotated[int, Integer(1, 10_000), "Turns that may wait in one conversation."] = 16
    waiting_total: Annotated[int, Integer(1), "Turns that may wait in all conversations together."] = 4096
    waiting_each: Annotated[int, Integer(1), "Turns that may wait in all conversations of one user together."] = 1024
    day_tokens: Annotated[
        int,
        Integer(0),
        "Tokens of all models together per day (UTC). Above this, turns fail until the next day. 0 means no limit.",
    ] = 20_000_000
    turn_steps: Annotated[int, Integer(1, 10_000), "Model calls in one turn."] = 32
    turn_seconds: Annotated[float, Duration(1), "Time limit of one turn."] = 1800.0
    repeats: Annotated[int, Integer(1, 1000), "How often a turn may repeat a tool call that has the same result."] = 3
    resumes: Annotated[int, Integer(0, 1000), "How often a turn is resumed after a crash of the process."] = 3
    call_messages: Annotated[
        int, Integer(1, 1_000_000), "Messages in a single call that contains a whole conversation."
    ] = 4096
    body_bytes: Annotated[int, Size(1 * KiB, 2**30), "Largest body of an HTTP request."] = 16 * MiB
    message_bytes: Annotated[int, Size(1 * KiB, 2**30), "Largest text of one message."] = 12 * MiB
    answer_bytes: Annotated[int, Size(1 * KiB, 2**30), "Largest answer of a model."] = 4 * MiB
    tool_output_bytes: Annotated[int, Size(512), "Bytes of a tool result that the model sees."] = 16 * KiB
    tool_output_lines: Annotated[int, Integer(3), "Lines of a tool result that the model sees."] = 400
    spool_bytes: Annotated[int, Size(1 * MiB), "Disk space for the long results and media of one conversation."] = (
        1024 * MiB
    )
    questions: Annotated[int, Integer(1, 100_000), "Turns that may wait for a user's answer at once."] = 256
    questions_each: Annotated[int, Integer(1, 100_000), "Turns of one user that may wait for an answer at once."] = 64
    event_streams: Annotated[int, Integer(1, 100_000), "Event streams that may be open at once."] = 512
    event_streams_each: Annotated[
        int,
        Integer(1, 100_000),
        "Event streams that one user may have open. The same number, up to half of all, is reserved for the owner.",
    ] = 64
    answer_within: Annotated[float, Duration(1), "How long a question or approval request waits for an answer."] = DAY
    tools_parallel: Annotated[int, Integer(1, 1000), "Tool calls of one turn that may run at once."] = 8
    delegates: Annotated[int, Integer(1, 1000), "Delegated tasks of one turn that may run at once."] = 4
    delegate_depth: Annotated[int, Integer(1, 16), "Depth to which agents may delegate tasks."] = 2
    receipts: Annotated[int, Integer(1), "Stored message ids, which are used to recognise repeated deliveries."] = (
        100_000
    )
    connections: Annotated[int, Integer(1, 100_000), "Connections to all model endpoints together."] = 128
    connections_per_host: Annotated[int, Integer(1, 100_000), "Connections to one model endpoint."] = 64
    connection_idle: Annotated[float, Duration(0), "How long an unused connection to an endpoint stays open."] = 30.0
    readers: Annotated[int, Integer(1, 64), "Number of connections for reading from the store."] = 2
    snapshot_seconds: Annotated[float, Duration(0.1), "Time limit of one read from the store."] = 10.0
    wal_bytes: Annotated[int, Size(64 * KiB), "Size of the store's write-ahead log above which it is truncated."] = (
        64 * MiB
    )
    shutdown_seconds: Annotated[float, Duration(0.1), "Time limit for running turns when the gateway stops."] = 20.0


class ContextSettings(Frozen, frozen=True):
    """Compaction of long conversations to fit the model's window. The transcript is never cut."""

    soft: Annotated[
        float,
        Fraction(0.1, 0.95),
        "Fraction of the window above which a summary of old messages is prepared in the background.",
    ] = 0.7
    hard: Annotated[
        float,
        Fraction(0.1, 0.98),
        "Fraction of the window above which the summary replaces old messages before the next step.",
    ] = 0.8
    keep: Annotated[
        float, Fraction(0.02, 0.9), "Fraction of the window for the newest messages, which are kept verbatim."
    ] = 0.2
    least: Annotated[
        float, Fraction(0.01, 0.9), "Minimum fraction by which a request must shrink; otherwise nothing is replaced."
    ] = 0.2
    model: Annotated[
        str, Text(), "Name of the model in `[models.…]` that writes the summaries; default: the conversation's."
    ] = ""
    index: Annotated[
        str,
        Text(),
        "Plug-in that searches messages for the toolset `context`; default: full-text search only. See "
        "docs/plugins.md.",
    ] = ""
    embeddings: Annotated[
        str,
        Text(),
        "Name of a model in `[models.…]` with `api` openai-embeddings. Messages are sent to it in the background, and "
        "searches for earlier messages also compare meanings. Requires the extra `vectors`; see docs/recall.md.",
    ] = ""
    vector_bytes: Annotated[
        int,
        Size(1 * MiB),
        "Disk space for the vectors of all messages. Once it is used up, new messages are found by their words only.",
    ] = 1024 * MiB
    language: Annotated[
        str,
        OneOf(*LANGUAGES),
        "Language whose word forms (boat, boats) a search for earlier messages treats as equal; none: every form is "
        "different. After a change, all messages are indexed again in the background.",
    ] = "english"
    summary_seconds: Annotated[float, Duration(1), "Time limit of one summary."] = 120.0
    cooldown: Annotated[float, Duration(0), "Pause after a useless summary before another one is attempted."] = 600.0


class MemorySettings(Frozen, frozen=True):
    """Notes that agents with the toolset `memory` keep across conversations."""

    prompt_bytes: Annotated[
        int,
        Size(256, 1 * MiB),
        "Maximum size of the notes of each kind (about the user, about the agent's work) in a new conversation.",
    ] = 4 * KiB
    notes_bytes: Annotated[
        int, Size(1 * KiB, 16 * MiB), "Maximum size of the stored notes about one user or one agent."
    ] = 64 * KiB
    at_end: Annotated[bool, Flag(), "Whether a model extracts useful notes when a conversation ends."] = True
    model: Annotated[str, Text(), "Name of the model in `[models.…]` that extracts notes; default: the agent's."] = ""
    provider: Annotated[
        str,
        Text(at_most=64),
        "Plug-in that stores the notes in place of the gateway's own store; see docs/plugins.md.",
    ] = ""


class SkillSettings(Frozen, frozen=True):
    """Folders with skills, in addition to those in the gateway's home folder and in an agent's project folder; see
    docs/skills.md."""

    folders: Annotated[
        tuple[str, ...],
        TextLines(),
        "Further folders with skills. Each skill is a subfolder with a SKILL.md.",
    ] = ()


class WorkspaceSettings(Frozen, frozen=True):
    """The environment in which agents' commands run, and the limits for the commands of one conversation."""

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
    memory_bytes: Annotated[int, Size(16 * MiB), "Memory for all commands of one conversation together."] = 1024 * MiB
    processes: Annotated[int, Integer(4, 100_000), "Processes that one conversation may run at once."] = 256
    disk_bytes: Annotated[int, Size(1 * MiB), "Disk space of one conversation's folder."] = 2048 * MiB
    files: Annotated[int, Integer(100), "Files and folders in one conversation's folder."] = 1_000_000
    file_bytes: Annotated[int, Size(1 * MiB), "Largest file that a command may write."] = 1024 * MiB
    cpu_seconds: Annotated[float, Duration(1), "CPU time of one command."] = HOUR
    command_seconds: Annotated[float, Duration(1), "Longest time limit that a terminal command can have."] = 600.0
    kept_processes: Annotated[int, Integer(1, 1000), "Finished background processes that stay listed."] = 20
    process_seconds: Annotated[
        float,
        Duration(0),
        "Time limit of a background process. When it is reached, the process is ended and its agent notified. 0 means "
        "no limit.",
    ] = 7 * DAY
    process_log_bytes: Annotated[int, Size(64 * KiB), "Stored output of one background process."] = 4 * MiB
    trash: Annotated[float, Duration(0), "How long the folder of an ended conversation can be restored."] = 7 * DAY
    trash_bytes: Annotated[
        int, Size(1 * MiB), "Disk space of these folders together; above it, the oldest are removed early."
    ] = 8192 * MiB
    environment: Annotated[
        tuple[str, ...],
        NameList(),
        "Environment variables of the gateway that commands can see. None may contain a secret.",
    ] = ("LANG", "TZ")
    read_only: Annotated[tuple[str, ...], TextLines(), "Further folders that commands in a sandbox may read."] = ()
    ssh_host: Annotated[str, Text(), "Where commands run with the backend ssh: `host` or `user@host`."] = ""
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
        int, Size(1 * KiB, 64 * MiB), "Largest page or file that is fetched, after decompression."
    ] = 8 * MiB
    fetch_seconds: Annotated[float, Duration(1), "Time limit of one fetch or search, including redirects."] = 30.0
    search: Annotated[
        Literal["none", "searxng", "brave", "tavily"],
        OneOf("none", "searxng", "brave", "tavily"),
        "The search engine.",
    ] = "none"
    search_url: Annotated[
        str, BaseUrl(), "Base URL of the search engine's API; required for searxng, while the others have a default."
    ] = ""
    search_key: Annotated[
        str | None, Reference(), "Reference to the search engine's API key; required for brave and tavily."
    ] = None


class ExpirySettings(Frozen, frozen=True):
    """Expiry of idle conversations, and retention of ended ones."""

    named_idle: Annotated[float | None, Duration(60, never=True), "Idle time after which a conversation ends."] = None
    ephemeral_idle: Annotated[float, Duration(60), "Idle time after which an unfinished one-shot call ends."] = DAY
    retention: Annotated[
        float | None, Duration(60, never=True), "How long the transcript of an ended conversation is kept."
    ] = 90 * DAY
    audit: Annotated[float, Duration(DAY), "How long entries of the audit log are kept."] = 365 * DAY


class LogSettings(Frozen, frozen=True):
    """The log on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        OneOf("debug", "info", "warning", "error"),
        "Lowest severity that is logged.",
    ] = "info"
    format: Annotated[
        Literal["text", "json"], OneOf("text", "json"), "Text for people, or one JSON object per line."
    ] = "text"


class Config(Frozen, frozen=True):
    """All settings of a gateway. `demo` is true if the demo model is used because no model is configured."""

    home: Path
    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    models: Mapping[str, ModelSettings] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    agents: Mapping[str, AgentSettings] = msgspec.field(default_factory=lambda: MappingProxyType({}))
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
"""The tables that occur once, by their name in the file."""

NAMED: Mapping[str, type[Frozen]] = MappingProxyType(
    {"models": ModelSettings, "agents": AgentSettings, "budgets": BudgetSettings}
)
"""The groups of tables with names chosen by the user, such as `[models.NAME]`."""
