"""A gateway's status as frozen values with one JSON form.

`GET /api/status`, the control socket and `tidegate status --json` return this form, and the metrics are read from the
same values. Field names are public JSON keys. Each package provides its part of the report on request. No value refers
to a live object. This module has no expensive imports, so the CLI can decode a report quickly.
"""

from typing import Literal

import msgspec

from tidegate.values import Frozen


class AgentModel(Frozen, frozen=True, omit_defaults=False):
    """An agent's model, without secrets."""

    agent: str
    setting: str
    """The model's name in the configuration."""
    model: str
    host: str
    demo: bool

    @property
    def title(self) -> str:
        return "the built-in demo model" if self.demo else f"{self.model} at {self.host}"

    def __str__(self) -> str:
        return f"agent {self.agent}: {self.title}"


# -- sessions ----------------------------------------------------------------------------------------------------------


class EngineStats(Frozen, frozen=True):
    """The number of turns in this process by state, including those that have ended since it started, and the total run
    time of those that have ended."""

    running: int
    waiting: int
    asking: int
    delegating: int
    answered: int
    failed: int
    stopped: int
    seconds: float


class ResidentStats(Frozen, frozen=True):
    """Sessions in memory. `over_cap_mid_turn` counts the residents beyond the cap that were kept because of a running
    turn."""

    present: int
    residents: int
    resident_bytes: int
    over_cap_mid_turn: int
    unloads: dict[str, int]
    """The number of unloaded residents by reason."""


ServiceState = Literal["stopped", "starting", "ready", "restarting", "failed"]
ServiceFault = Literal[
    "transport",
    "unavailable",
    "crashed",
    "start-timeout",
    "capability-missing",
    "authorization-required",
    "not-started",
]


class ServiceStatus(Frozen, frozen=True):
    """A supervised service: its state and since when it has been in it, how often it was reconnected, and its last
    error."""

    name: str
    state: ServiceState = "stopped"
    since: float = 0.0
    restarts: int = 0
    fault: ServiceFault | None = None
    error: str = ""


class WorkspacesStatus(Frozen, frozen=True):
    """Where commands run, how their limits are enforced, and how many commands are running."""

    backend: str
    problem: str
    warning: str
    sandboxed: bool
    enforced: dict[str, str]
    limits: str
    uncounted: list[str]
    boxes: int
    processes: int


class QuestionStats(Frozen, frozen=True):
    """Approval requests and questions that are waiting for an answer."""

    waiting: int


class AuditStats(Frozen, frozen=True):
    rows: int


class BudgetView(Frozen, frozen=True, omit_defaults=False):
    """A budget and one account's spending. `money` is in dollars. `used` is the used share of the token limit or the
    money limit, whichever is higher. `opens` is the start of the next period, or null if the budget never renews."""

    setting: str
    per: str
    each: str
    key: str
    name: str
    tokens: int
    tokens_limit: int | None
    money: float
    money_limit: float | None
    used: float
    opens: float | None


class ModelStatus(Frozen, frozen=True, omit_defaults=False):
    """A configured model: its keys, its cooldown after a failure and the reason for it, the number of failed requests
    by kind, and how often sessions have fallen back to it."""

    keys: int
    keys_resting: int
    rests_until: float | None
    rests_because: str | None
    failures: dict[str, int]
    fallbacks: int


class ModelUsage(Frozen, frozen=True):
    """One model's usage since the process started. `cost` is in dollars."""

    calls: int
    input: int
    cached: int
    written: int
    output: int
    cost: float


class VectorsStatus(Frozen, frozen=True):
    """The vectors of messages: their model and length, their size and its limit, the number of conversations with
    messages that wait for one, and why no vectors are made at present."""

    model: str
    dimensions: int
    bytes: int
    limit: int
    waiting: int
    problem: str


class SearchStatus(Frozen, frozen=True, omit_defaults=False):
    """The approximate number of messages that searches do not find yet, and of messages that only the index in an
    earlier format contains. Both decrease in the background. `vectors` is null without an embeddings model."""

    unindexed: int
    former: int
    vectors: VectorsStatus | None = None


class McpStatus(Frozen, frozen=True, omit_defaults=False):
    """A configured MCP server. `state` and `since` are those of its worst running server if there are several, and
    `running` is the number of those that are ready. `memory` is the bytes of its processes; `tools` is null until it
    has been listed once."""

    name: str
    transport: str
    scope: str
    state: ServiceState
    since: float
    restarts: int
    fault: ServiceFault | None
    error: str
    pid: int | None
    memory: int
    revision: str
    server: str
    tools: int | None
    running: int
    calls: int
    warnings: list[str]


class SessionsStatus(Frozen, frozen=True):
    """The part of the status provided by `Sessions`."""

    turns: EngineStats
    sessions: ResidentStats
    workspaces: WorkspacesStatus
    questions: QuestionStats
    audit: AuditStats
    search: SearchStatus
    context: dict[str, int]
    """The number of requests reduced to fit a model's window, by method."""
    budgets: list[BudgetView]
    """The budgets for the whole gateway. The first is limits.day_tokens."""
    model_states: dict[str, ModelStatus]
    models: dict[str, ModelUsage]
    mcp: list[McpStatus]


# -- the process -------------------------------------------------------------------------------------------------------


class Check(Frozen, frozen=True, omit_defaults=False):
    ok: bool
    detail: str


class Readiness(Frozen, frozen=True, omit_defaults=False):
    ready: bool
    checks: dict[str, Check]


class ConnectionStats(Frozen, frozen=True):
    """Client connections and file descriptors. A `descriptors_limit` of 0 means no limit."""

    open: int
    limit: int
    over_limit: int
    not_accepted: int
    descriptors: int
    descriptors_limit: int


class RecorderStatus(Frozen, frozen=True, tag_field="does", tag="records"):
    """The current recording of model traffic. If the recording has stopped, `stopped` is the reason."""

    file: str
    exchanges: int
    bytes: int
    stopped: str | None


class ReplayerStatus(Frozen, frozen=True, tag_field="does", tag="replays"):
    """A replay of recorded model traffic. `again` counts answers replayed more than once. `unknown` counts requests
    that are not in the recording."""

    file: str
    exchanges: int
    replayed: int
    again: int
    unknown: int


class MaintenanceStatus(Frozen, frozen=True):
    """A maintenance task. `last` is the number of seconds since its last success. `error` is its latest failure since
    then."""

    name: str
    interval: float
    runs: int
    failures: int
    last: float | None
    took: float
    error: str = ""


class Holding(msgspec.Struct, frozen=True):
    """An entry of the ledger: a number of objects, and their bytes, file descriptors and child processes."""

    count: int = 0
    bytes: int = 0
    fds: int = 0
    children: int = 0

    def __add__(self, other: "Holding") -> "Holding":
        return Holding(
            self.count + other.count, self.bytes + other.bytes, self.fds + other.fds, self.children + other.children
        )

    @property
    def weight(self) -> tuple[int, int, int, int]:
        """Sort key that ranks owners by size, bytes first."""
        return (self.bytes, self.children, self.fds, self.count)


class OwnerHolding(Frozen, frozen=True):
    """One owner's total holdings, with a breakdown by kind."""

    owner: str
    count: int
    bytes: int
    fds: int
    children: int
    kinds: dict[str, Holding]


class PressureStatus(Frozen, frozen=True, omit_defaults=False):
    """The memory ceiling. `short` is true while memory is short. `spells` counts the shortages so far."""

    ceiling: int = 0
    short: bool = False
    spells: int = 0


class MemoryStatus(Frozen, frozen=True, omit_defaults=False):
    """The process's memory as counted by the kernel, and the state of `MemoryPressure`."""

    rss: int
    anonymous: int
    file: int
    swap: int
    peak: int
    ceiling: int
    short: bool
    spells: int


class MemoryBreakdown(MemoryStatus, frozen=True, omit_defaults=False):
    """`MemoryStatus` with a breakdown of private memory by kind and owner."""

    private: int
    explained: float
    unexplained: int
    growth: int
    growth_explained: float
    threads: int
    descriptors: int
    kinds: dict[str, Holding]
    owners: list[OwnerHolding]


class PluginStatus(Frozen, frozen=True, omit_defaults=False):
    """A plug-in that the configuration uses. `state` is `running`, `failed` or `not running`; `fault` is the last error
    with its file and line."""

    name: str
    kind: str
    state: str
    file: str
    fault: str


class StatusReport(Frozen, frozen=True, omit_defaults=False):
    """A gateway's status as read by the CLI: `GatewayStatus` without the fields for the store and the model
    clients. In JSON, the fields of `SessionsStatus` are at the top level."""

    version: str
    pid: int
    home: str
    address: str
    uptime: float
    demo: bool
    agents: list[AgentModel]
    turns: EngineStats
    sessions: ResidentStats
    workspaces: WorkspacesStatus
    questions: QuestionStats
    audit: AuditStats
    search: SearchStatus
    context: dict[str, int]
    budgets: list[BudgetView]
    model_states: dict[str, ModelStatus]
    models: dict[str, ModelUsage]
    census: dict[str, int]
    """Counts that must return to their initial values once no session is left."""
    health: Readiness
    connections: ConnectionStats
    tape: RecorderStatus | ReplayerStatus | None
    plugins: list[PluginStatus]
    mcp: list[McpStatus]
    chores: list[MaintenanceStatus]
    memory: MemoryStatus
    """The process's memory; a `MemoryBreakdown` if one was requested."""
