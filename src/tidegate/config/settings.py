"""Every setting there is: its name, type, default, rule and the line that documents it, side by side.

Guarantee: values of these types are immutable; `docs/configuration.md` and the checks of `load` are made from the
same declarations, so that neither can know a setting that the other does not.
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
    Networks,
    OneOf,
    Origins,
    Price,
    Reference,
    References,
    Several,
    Size,
    Text,
    TextLines,
    UserName,
    ValueType,
    Whole,
    Words,
)
from tidegate.errors import Misconfigured
from tidegate.values import Frozen

KiB = 1024
MiB = 1024 * KiB
HOUR = 3600.0
DAY = 24 * HOUR


class DeclaredSetting(NamedTuple):
    """One setting as declared. `default` is `msgspec.NODEFAULT` for one that must be given."""

    name: str
    rule: ValueType
    doc: str
    default: Any


def settings_of(table: type[msgspec.Struct]) -> dict[str, DeclaredSetting]:
    """The settings of a table, in the order of their declaration."""
    hints = get_type_hints(table, include_extras=True)
    found: dict[str, DeclaredSetting] = {}
    for field in msgspec.structs.fields(table):
        if (marks := getattr(hints[field.name], "__metadata__", None)) is None:
            continue
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        found[field.name] = DeclaredSetting(field.name, marks[0], marks[1], default)
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`. A name other than `localhost` counts as
    reachable from outside, since what it resolves to can change."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ServerSettings(Frozen, frozen=True):
    """Where the gateway listens."""

    host: Annotated[str, Text(needed=True, at_most=253), "BaseUrl to listen on. Anything but loopback needs TLS."] = (
        "127.0.0.1"
    )
    port: Annotated[int, Whole(0, 65535), "Port to listen on; 0 takes any free one."] = 8420
    tls_cert: Annotated[str | None, FilePath(), "Certificate chain (PEM), relative to the home folder."] = None
    tls_key: Annotated[str | None, FilePath(), "Private key of the certificate (PEM), relative to the home folder."] = (
        None
    )
    insecure: Annotated[
        bool, Flag(), "Listen beyond loopback without TLS; for a gateway behind a proxy that does TLS."
    ] = False
    one_core: Annotated[
        bool, Flag(), "Keep the gateway's threads on one core, which makes a turn cheaper; false lets them spread."
    ] = True
    origins: Annotated[
        tuple[str, ...], Origins(), "Origins of web pages, besides the gateway's own, that a browser may call it from."
    ] = ()


class StoreSettings(Frozen, frozen=True):
    """How conversations are kept on disk."""

    durability: Annotated[
        Literal["process", "power"],
        OneOf("process", "power"),
        "What an accepted message survives: the death of the process, or the loss of power too (slower).",
    ] = "process"


class ModelSettings(Frozen, frozen=True):
    """A model under a name of yours: `[models.NAME]`. With none, the built-in demo model is used and says so."""

    api: Annotated[
        Literal["demo", "openai-chat", "openai-responses", "anthropic"],
        OneOf("demo", "openai-chat", "openai-responses", "anthropic"),
        "Wire format: OpenAI's chat completions or responses, Anthropic's messages, or the built-in demo model.",
    ]
    base_url: Annotated[
        str,
        BaseUrl(),
        "Base of the API; needed for every api but demo. With a key it must be https, or on this machine.",
    ] = ""
    model: Annotated[str, Text(), "The provider's name of the model; needed for every api but demo."] = ""
    key: Annotated[
        str | None, Reference(), "Where the API key is. No key is ever taken from anywhere that is not named here."
    ] = None
    keys: Annotated[
        tuple[str, ...],
        References(),
        "Where several API keys for the endpoint are, instead of `key`: when one has no quota left, the next is used.",
    ] = ()
    headers: Annotated[
        Mapping[str, str],
        Headers(),
        "Extra HTTP headers; a value of the form of a reference is replaced by what it refers to.",
    ] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    connect_timeout: Annotated[float, Duration(0.1), "How long a connection may take to be made."] = 10.0
    first_byte_timeout: Annotated[float, Duration(0.1), "How long the first byte of an answer may take."] = 120.0
    idle_timeout: Annotated[float, Duration(0.1), "How long a begun answer may be silent."] = 60.0
    retries: Annotated[int, Whole(0, 20), "How often a call is tried again before any text was shown."] = 3
    context_window: Annotated[
        int | None, Whole(1024, 2**30), "Tokens that a request and its answer may have together; else the catalogue's."
    ] = None
    max_output: Annotated[int | None, Whole(16, 2**30), "Tokens that an answer may have; else the catalogue's."] = None
    vision: Annotated[
        bool | None, Flag(), "Whether it can be shown pictures and PDF documents; else what the catalogue says."
    ] = None
    audio: Annotated[bool | None, Flag(), "Whether it can be given sounds; else what the catalogue says."] = None
    thinking: Annotated[
        Literal["none", "effort", "adaptive", "budget"] | None,
        OneOf("none", "effort", "adaptive", "budget"),
        "How it is told how hard to think: not at all, by a word, by a word where it decides itself when to, or by a "
        "number of tokens; else what the catalogue says.",
    ] = None
    efforts: Annotated[
        tuple[str, ...] | None,
        Several("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        "The words for it that the model knows; else the catalogue's.",
    ] = None
    price_input: Annotated[
        float | None,
        Price(),
        "Dollars for a million tokens of a request; with `price_output` it replaces all prices of the catalogue.",
    ] = None
    price_output: Annotated[float | None, Price(), "Dollars for a million tokens of an answer."] = None
    price_cached: Annotated[
        float | None, Price(), "Dollars for a million tokens read from the provider's cache; else as `price_input`."
    ] = None
    price_written: Annotated[
        float | None, Price(), "Dollars for a million tokens written to the provider's cache; else as `price_input`."
    ] = None
    cache_ttl: Annotated[
        Literal["5m", "1h"] | None,
        OneOf("5m", "1h"),
        "How long the provider keeps what it cached, 5m if not set; only for api anthropic.",
    ] = None

    @property
    def references(self) -> tuple[str, ...]:
        """Where the API keys are, in the order of their use; none for an endpoint that wants none."""
        return self.keys if self.key is None else (self.key,)


class AgentSettings(Frozen, frozen=True):
    """An agent under a name of yours, which callers give as `model`: `[agents.NAME]`."""

    model: Annotated[str, Text(needed=True), "Name of one of `[models.…]`."] = "main"
    fallback: Annotated[
        tuple[str, ...], Words(once=True), "Names of models that are asked in turn when `model` fails."
    ] = ()
    fallback_for: Annotated[
        float, Duration(0), "How long a conversation stays with a fallback before the agent's own model is tried again."
    ] = 900.0
    reasoning: Annotated[
        Literal["off", "minimal", "low", "medium", "high", "max"] | None,
        OneOf("off", "minimal", "low", "medium", "high", "max"),
        "How hard its model is to think; if not set, as the provider does by itself.",
    ] = None
    prompt: Annotated[str, Text(one_line=False, at_most=1_000_000), "The system prompt."] = (
        "You are a helpful assistant. Answer briefly and truthfully."
    )
    tools: Annotated[tuple[str, ...], Words(), "Names of toolsets that the agent may use."] = ()
    caller_tools: Annotated[
        Literal["merge", "only", "ignore", "refuse"],
        OneOf("merge", "only", "ignore", "refuse", flags=("only", "refuse")),
        "`tools` in an API request: offer them after the agent's own, offer them instead, ignore them, or answer 400.",
    ] = "merge"
    workspace: Annotated[
        str | None,
        FilePath(),
        "Folder of yours that all its conversations work in, nobody's home folder and nothing of the gateway's own; by "
        "default each gets one of its own, gone with it.",
    ] = None
    description: Annotated[str, Text(), "One line for people who choose among agents."] = ""
    approvals: Annotated[
        Literal["strict", "balanced", "autonomous"],
        OneOf("strict", "balanced", "autonomous"),
        "What its tools may do without being approved, where no rule says otherwise.",
    ] = "balanced"
    rules: Annotated[
        tuple[str, ...],
        TextLines(),
        'Rules before that, the first that fits decides: `"ask terminal command=git push*"`; see docs/approvals.md.',
    ] = ()
    recall: Annotated[
        Literal["session", "person"],
        OneOf("session", "person"),
        "What the toolset `context` may look up: this conversation, or all conversations of the same person.",
    ] = "session"
    skills: Annotated[
        tuple[str, ...],
        Words(),
        "Names of the skills that it has, with the toolset `skills`; by default all that are found.",
    ] = ()
    project_files: Annotated[
        tuple[str, ...],
        TextLines(),
        "Files in its `workspace`, by their paths there, that a conversation's prompt begins with; see docs/skills.md.",
    ] = ("AGENTS.md", "CLAUDE.md")
    delegates: Annotated[
        tuple[str, ...], Words(), "Names of agents that it may give tasks to, with the toolset `delegate`."
    ] = ()
    unanswered: Annotated[
        Literal["go_on", "end"],
        OneOf("go_on", "end"),
        "What a turn does when nobody answered its question in time: it goes on and is told so, or it ends.",
    ] = "go_on"


class BudgetSettings(Frozen, frozen=True):
    """What may be spent on models, under a name of yours: `[budgets.NAME]`. Whoever has spent four fifths is told;
    whoever has spent all of it is refused until the time begins anew. See docs/usage.md."""

    per: Annotated[
        Literal["gateway", "principal", "agent", "session", "turn", "job"],
        OneOf("gateway", "principal", "agent", "session", "turn", "job"),
        "Whose spending is counted together: everybody's, or that of each principal, agent, conversation, turn or job.",
    ]
    each: Annotated[
        Literal["hour", "day", "month", "total"] | None,
        OneOf("hour", "day", "month", "total"),
        "In what time, of UTC's calendar, or `total` for ever; needed for every one but a turn's.",
    ] = None
    tokens: Annotated[int | None, Whole(1), "Tokens that may be used, those of requests and answers together."] = None
    money: Annotated[float | None, Dollars(), "Dollars that may be spent; every model needs a known price then."] = None
    only: Annotated[
        tuple[str, ...],
        TextLines(),
        "Names of the agents, principals or jobs that it is for; by default it is for each.",
    ] = ()


class LimitSettings(Frozen, frozen=True):
    """Every bound of the process. Whoever exceeds one is told its name; nothing is cut silently."""

    residents: Annotated[int, Whole(1), "Conversations kept ready in memory; the others are in the store."] = 128
    resident_bytes: Annotated[int, Size(64 * KiB), "Memory that those may take together."] = 64 * MiB
    memory_bytes: Annotated[
        int | None,
        Size(32 * MiB, auto=True),
        "Memory of the whole process above which idle conversations are unloaded; auto is three quarters of what its "
        "control group or the machine has.",
    ] = None
    idle_ttl: Annotated[float, Duration(1), "How long an unused conversation stays in memory."] = HOUR
    turns: Annotated[int, Whole(1, 10_000), "Turns that run at once; more wait."] = 64
    queue_length: Annotated[int, Whole(1, 10_000), "Turns that may wait in one conversation."] = 16
    waiting_total: Annotated[int, Whole(1), "Turns that may wait in all conversations together."] = 4096
    waiting_each: Annotated[int, Whole(1), "Turns that may wait in all conversations of one principal."] = 1024
    day_tokens: Annotated[
        int, Whole(0), "Tokens that all models together may use in a day (UTC); then turns fail until the next. 0: any."
    ] = 20_000_000
    turn_steps: Annotated[int, Whole(1, 10_000), "Model calls in one turn."] = 32
    turn_seconds: Annotated[float, Duration(1), "How long one turn may take."] = 1800.0
    repeats: Annotated[
        int, Whole(1, 1000), "Times that a turn may make the very same tool call with the same result."
    ] = 3
    resumes: Annotated[int, Whole(0, 1000), "Times that a turn is taken up again after the process died in it."] = 3
    call_messages: Annotated[int, Whole(1, 1_000_000), "Messages in one call that brings its whole conversation."] = (
        4096
    )
    body_bytes: Annotated[int, Size(1 * KiB, 2**30), "Largest body of an HTTP request."] = 16 * MiB
    message_bytes: Annotated[int, Size(1 * KiB, 2**30), "Largest text of one message."] = 12 * MiB
    answer_bytes: Annotated[int, Size(1 * KiB, 2**30), "Largest answer of a model, as it streams in."] = 4 * MiB
    tool_output_bytes: Annotated[int, Size(512), "Bytes of a tool's result that the model is shown."] = 16 * KiB
    tool_output_lines: Annotated[int, Whole(3), "TextLines of a tool's result that the model is shown."] = 400
    spool_bytes: Annotated[int, Size(1 * MiB), "Long results that one conversation keeps on disk."] = 1024 * MiB
    questions: Annotated[int, Whole(1, 100_000), "Turns that may wait for a person's answer at once."] = 256
    questions_each: Annotated[int, Whole(1, 100_000), "Turns of one principal that may wait for an answer at once."] = (
        64
    )
    event_streams: Annotated[int, Whole(1, 100_000), "Event streams that may be open at once."] = 512
    event_streams_each: Annotated[
        int,
        Whole(1, 100_000),
        "Event streams that one principal may have open; as many, up to half of all, are kept free for the owner.",
    ] = 64
    answer_within: Annotated[float, Duration(1), "How long a question or an approval waits for its answer."] = DAY
    tools_parallel: Annotated[int, Whole(1, 1000), "Tool calls of one turn that run at once."] = 8
    delegates: Annotated[int, Whole(1, 1000), "Tasks that one turn has other agents work on at once."] = 4
    delegate_depth: Annotated[int, Whole(1, 16), "How deep tasks may be handed on from agent to agent."] = 2
    receipts: Annotated[int, Whole(1), "Remembered identities of messages, by which a repeated one is recognised."] = (
        100_000
    )
    connections: Annotated[int, Whole(1, 100_000), "Open connections to model endpoints, all together."] = 128
    connections_per_host: Annotated[int, Whole(1, 100_000), "Open connections to one model endpoint."] = 64
    connection_idle: Annotated[float, Duration(0), "How long an unused connection to an endpoint is kept."] = 30.0
    readers: Annotated[int, Whole(1, 64), "Connections for reading from the store."] = 2
    snapshot_seconds: Annotated[float, Duration(0.1), "How long one reading of the store may take."] = 10.0
    wal_bytes: Annotated[int, Size(64 * KiB), "Size that the store's write-ahead log is cut back to."] = 64 * MiB
    shutdown_seconds: Annotated[float, Duration(0.1), "How long running turns may go on when the gateway stops."] = 20.0


class ContextSettings(Frozen, frozen=True):
    """How long conversations are fitted into their model's window. Nothing is ever cut from the transcript."""

    soft: Annotated[
        float,
        Fraction(0.1, 0.95),
        "Fraction of the window from which on a summary of old messages is prepared meanwhile.",
    ] = 0.7
    hard: Annotated[
        float,
        Fraction(0.1, 0.98),
        "Fraction of the window above which old messages are replaced by it before the next step.",
    ] = 0.8
    keep: Annotated[
        float, Fraction(0.02, 0.9), "Fraction of the window for the newest messages, kept word for word."
    ] = 0.2
    least: Annotated[
        float, Fraction(0.01, 0.9), "Fraction by which a request must become smaller, or nothing is replaced."
    ] = 0.2
    model: Annotated[
        str, Text(), "Name of the model in `[models.…]` that writes the summaries; by default the conversation's own."
    ] = ""
    index: Annotated[
        str,
        Text(),
        "Name of an index of your own that the toolset `context` asks for what was said; by default full text only. "
        "See docs/recall.md.",
    ] = ""
    summary_seconds: Annotated[float, Duration(1), "How long one summary may take."] = 120.0
    cooldown: Annotated[
        float, Duration(0), "How long no model is asked for a summary after one that was of no use."
    ] = 600.0


class MemorySettings(Frozen, frozen=True):
    """What agents with the toolset `memory` remember from one conversation to the next."""

    prompt_bytes: Annotated[int, Size(256, 1 * MiB), "Notes that a conversation begins with, those of each kind."] = (
        4 * KiB
    )
    notes_bytes: Annotated[int, Size(1 * KiB, 16 * MiB), "Notes that are kept of one person or one agent."] = 64 * KiB
    at_end: Annotated[
        bool, Flag(), "Whether a model is asked once, when a conversation has ended, for what is worth remembering."
    ] = True
    model: Annotated[
        str, Text(), "Name of the model in `[models.…]` that is asked then; by default the agent's own."
    ] = ""
    provider: Annotated[
        str,
        Text(at_most=64),
        "Who keeps the notes instead of the gateway's own store: a file `memories/NAME.py` in the home folder, or a "
        "package; see docs/memory.md.",
    ] = ""


class SkillSettings(Frozen, frozen=True):
    """Where skills are looked for, besides `skills` in the gateway's home folder and in an agent's project folder; see
    docs/skills.md."""

    folders: Annotated[
        tuple[str, ...],
        TextLines(),
        "Folders of yours that hold skills; each skill is a folder with a SKILL.md in one.",
    ] = ()


class WorkspaceSettings(Frozen, frozen=True):
    """Where the agents' commands run, and what one conversation's commands may use."""

    backend: Annotated[
        Literal["auto", "bubblewrap", "local", "ssh", "none"],
        OneOf("auto", "bubblewrap", "local", "ssh", "none"),
        "How commands are kept apart; auto is bubblewrap where it works, else none. local has no wall: it is for a "
        "machine that you would let the agent have.",
    ] = "auto"
    user: Annotated[
        str,
        UserName(),
        "The user, by name or number, that commands and file tools run as where root starts the gateway; empty: the "
        "owner of the project folder, or, where that is root or there is none, a number that no other user has.",
    ] = ""
    network: Annotated[
        bool,
        Flag(),
        "Whether commands in a sandbox reach public addresses, and those of web.private. It takes the packages passt "
        "and nftables.",
    ] = False
    memory_bytes: Annotated[int, Size(16 * MiB), "Memory of all commands of one conversation."] = 1024 * MiB
    processes: Annotated[int, Whole(4, 100_000), "Processes of one conversation at once."] = 256
    disk_bytes: Annotated[int, Size(1 * MiB), "Disk that one conversation's folder may take."] = 2048 * MiB
    files: Annotated[int, Whole(100), "Files and folders that one conversation's folder may hold."] = 1_000_000
    file_bytes: Annotated[int, Size(1 * MiB), "Largest file that a command may write."] = 1024 * MiB
    cpu_seconds: Annotated[float, Duration(1), "Processor time of one command."] = HOUR
    command_seconds: Annotated[float, Duration(1), "How long a command in the terminal may take, at most."] = 600.0
    kept_processes: Annotated[int, Whole(1, 1000), "Finished background processes that are remembered."] = 20
    process_seconds: Annotated[
        float, Duration(0), "How long a background process may run before it is ended and its agent told; 0: for ever."
    ] = 7 * DAY
    process_log_bytes: Annotated[int, Size(64 * KiB), "Output that is kept of one background process."] = 4 * MiB
    trash: Annotated[float, Duration(0), "How long the folder of an ended conversation can be had back."] = 7 * DAY
    trash_bytes: Annotated[
        int, Size(1 * MiB), "Disk that those folders may take together; beyond it the oldest go earlier."
    ] = 8192 * MiB
    environment: Annotated[
        tuple[str, ...],
        Words(),
        "Variables of the gateway's own environment that commands may see; none that holds a secret.",
    ] = ("LANG", "TZ")
    read_only: Annotated[tuple[str, ...], TextLines(), "Folders outside that commands in a sandbox may read."] = ()
    ssh_host: Annotated[str, Text(), "Where commands run with the backend ssh: `host` or `user@host`."] = ""
    ssh_options: Annotated[
        tuple[str, ...], TextLines(), 'Options for ssh, one each: `"Port=2222"`, `"IdentityFile=~/.ssh/agent"`.'
    ] = ()


class WebSettings(Frozen, frozen=True):
    """What the agents' web tools may reach."""

    private: Annotated[
        tuple[str, ...],
        Networks(),
        "Addresses and networks that may be fetched although they are not public, such as your own server's.",
    ] = ()
    fetch_bytes: Annotated[int, Size(1 * KiB, 64 * MiB), "Largest page or file that is fetched, unpacked."] = 8 * MiB
    fetch_seconds: Annotated[float, Duration(1), "How long one fetch or search may take, redirects included."] = 30.0
    search: Annotated[
        Literal["none", "searxng", "brave", "tavily"],
        OneOf("none", "searxng", "brave", "tavily"),
        "Who answers searches.",
    ] = "none"
    search_url: Annotated[
        str, BaseUrl(), "Base of the search engine's API; needed for searxng, the others have one of their own."
    ] = ""
    search_key: Annotated[str | None, Reference(), "Where its API key is; needed for brave and tavily."] = None


class ExpirySettings(Frozen, frozen=True):
    """When idle conversations end, and how long what is over is kept."""

    named_idle: Annotated[float | None, Duration(60, never=True), "Idle time after which a conversation ends."] = None
    ephemeral_idle: Annotated[float, Duration(60), "Idle time after which what is left of a one-shot call ends."] = DAY
    retention: Annotated[
        float | None, Duration(60, never=True), "How long the transcript of an ended conversation is kept."
    ] = 90 * DAY
    audit: Annotated[float, Duration(DAY), "How long the rows of the audit log are kept."] = 365 * DAY


class LogSettings(Frozen, frozen=True):
    """What is logged, to standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        OneOf("debug", "info", "warning", "error"),
        "The least severity that is logged.",
    ] = "info"
    format: Annotated[
        Literal["text", "json"], OneOf("text", "json"), "TextLines for people, or one JSON object a line."
    ] = "text"


class Config(Frozen, frozen=True):
    """All settings of one gateway. `demo` says that no model is configured and the demo model stands in."""

    home: Path
    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    models: Mapping[str, ModelSettings] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    agents: Mapping[str, AgentSettings] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    limits: LimitSettings = LimitSettings()
    budgets: Mapping[str, BudgetSettings] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    workspaces: WorkspaceSettings = WorkspaceSettings()
    web: WebSettings = WebSettings()
    context: ContextSettings = ContextSettings()
    memory: MemorySettings = MemorySettings()
    skills: SkillSettings = SkillSettings()
    expiry: ExpirySettings = ExpirySettings()
    log: LogSettings = LogSettings()
    demo: bool = False

    def project(self, agent: str) -> Path | None:
        """The folder of the user's own that an agent's conversations work in, where one is set. It need not exist."""
        given = self.agents[agent].workspace
        return None if given is None else self.path(given)

    def path(self, text: str) -> Path:
        """A path of the configuration: `~` is the user's home, a relative one starts at the gateway's home folder."""
        try:
            return self.home / Path(text).expanduser()
        except RuntimeError:
            raise Misconfigured(f"the path {text} starts with the home of a user that is not known here") from None


SINGLE: Mapping[str, type[Frozen]] = MappingProxyType(
    {
        "server": ServerSettings,
        "store": StoreSettings,
        "limits": LimitSettings,
        "workspaces": WorkspaceSettings,
        "web": WebSettings,
        "context": ContextSettings,
        "memory": MemorySettings,
        "skills": SkillSettings,
        "expiry": ExpirySettings,
        "log": LogSettings,
    }
)
"""Tables that occur once, by their name in the file."""

NAMED: Mapping[str, type[Frozen]] = MappingProxyType(
    {"models": ModelSettings, "agents": AgentSettings, "budgets": BudgetSettings}
)
"""Tables of tables, under names that the user chooses."""
