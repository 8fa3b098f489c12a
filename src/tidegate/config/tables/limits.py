"""The tables `[limits]`, `[budgets.NAME]` and `[expiry]`: limits on numbers, sizes, money and time."""

from typing import Annotated, Literal

from tidegate.config.tables.declarations import DAY, HOUR, KiB, MiB
from tidegate.config.value_types import Dollars, Duration, Integer, OneOf, Size, TextLines
from tidegate.values import Frozen


class LimitSettings(Frozen, frozen=True):
    """Limits for the gateway process. If a limit is exceeded, the error names it; nothing is cut silently."""

    residents: Annotated[
        int,
        Integer(1),
        "Maximum number of conversations kept in memory; the others are loaded from the store when needed.",
    ] = 128
    resident_bytes: Annotated[int, Size(64 * KiB), "Maximum memory for these conversations together."] = 64 * MiB
    memory_bytes: Annotated[
        int | None,
        Size(32 * MiB, auto=True),
        "Process memory above which idle conversations are unloaded; auto is three quarters of its control group's "
        "limit or of the machine's memory.",
    ] = None
    idle_ttl: Annotated[float, Duration(1), "How long an unused conversation stays in memory."] = HOUR
    turns: Annotated[
        int, Integer(1, 10_000), "Maximum number of turns that run at the same time; further turns wait."
    ] = 64
    queue_length: Annotated[int, Integer(1, 10_000), "Maximum number of turns that may wait in one conversation."] = 16
    waiting_total: Annotated[
        int, Integer(1), "Maximum number of turns that may wait in all conversations together."
    ] = 4096
    waiting_each: Annotated[
        int, Integer(1), "Maximum number of turns that may wait in all of one user's conversations together."
    ] = 1024
    day_tokens: Annotated[
        int,
        Integer(0),
        "Maximum tokens per day (UTC), for all models together. Once they are used up, turns fail until the next "
        "day. 0 means no limit.",
    ] = 20_000_000
    turn_steps: Annotated[int, Integer(1, 10_000), "Maximum number of model calls in one turn."] = 32
    turn_seconds: Annotated[float, Duration(1), "Time limit for one turn."] = 1800.0
    repeats: Annotated[
        int, Integer(1, 1000), "How often a turn may repeat a tool call that returns the same result."
    ] = 3
    resumes: Annotated[int, Integer(0, 1000), "How often a turn is resumed after the process has crashed."] = 3
    call_messages: Annotated[
        int,
        Integer(1, 1_000_000),
        "Maximum number of messages in a one-shot call that contains an entire conversation.",
    ] = 4096
    body_bytes: Annotated[int, Size(1 * KiB, 2**30), "Maximum size of an HTTP request's body."] = 16 * MiB
    message_bytes: Annotated[int, Size(1 * KiB, 2**30), "Maximum size of one message's text."] = 12 * MiB
    answer_bytes: Annotated[int, Size(1 * KiB, 2**30), "Maximum size of a model's answer."] = 4 * MiB
    tool_output_bytes: Annotated[int, Size(512), "Maximum number of bytes of a tool result that the model sees."] = (
        16 * KiB
    )
    tool_output_lines: Annotated[int, Integer(3), "Maximum number of lines of a tool result that the model sees."] = 400
    spool_bytes: Annotated[int, Size(1 * MiB), "Disk space for one conversation's long results and media."] = 1024 * MiB
    questions: Annotated[
        int, Integer(1, 100_000), "Maximum number of turns that may wait for a user's answer at the same time."
    ] = 256
    questions_each: Annotated[
        int, Integer(1, 100_000), "Maximum number of one user's turns that may wait for an answer at the same time."
    ] = 64
    event_streams: Annotated[int, Integer(1, 100_000), "Maximum number of event streams open at the same time."] = 512
    event_streams_each: Annotated[
        int,
        Integer(1, 100_000),
        "Maximum number of event streams that one user may have open. The same number of streams, up to half of all, "
        "is reserved for the owner.",
    ] = 64
    answer_within: Annotated[float, Duration(1), "How long a question or approval request waits for an answer."] = DAY
    tools_parallel: Annotated[
        int, Integer(1, 1000), "Maximum number of one turn's tool calls that run at the same time."
    ] = 8
    delegates: Annotated[
        int, Integer(1, 1000), "Maximum number of one turn's delegated tasks that run at the same time."
    ] = 4
    delegate_depth: Annotated[int, Integer(1, 16), "How deeply tasks may be nested when agents delegate them."] = 2
    receipts: Annotated[int, Integer(1), "Number of message ids stored to recognise repeated deliveries."] = 100_000
    connections: Annotated[
        int, Integer(1, 100_000), "Maximum number of connections to all model endpoints together."
    ] = 128
    connections_per_host: Annotated[
        int, Integer(1, 100_000), "Maximum number of connections to one model endpoint."
    ] = 64
    connection_idle: Annotated[float, Duration(0), "How long an unused connection to an endpoint stays open."] = 30.0
    readers: Annotated[int, Integer(1, 64), "Number of database connections for reading from the store."] = 2
    snapshot_seconds: Annotated[float, Duration(0.1), "Time limit for one read from the store."] = 10.0
    wal_bytes: Annotated[int, Size(64 * KiB), "Size above which the store's write-ahead log is truncated."] = 64 * MiB
    shutdown_seconds: Annotated[float, Duration(0.1), "Time limit for running turns when the gateway stops."] = 20.0


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


class ExpirySettings(Frozen, frozen=True):
    """The expiry of idle conversations and the retention of ended ones."""

    named_idle: Annotated[float | None, Duration(60, never=True), "Idle time after which a conversation is ended."] = (
        None
    )
    ephemeral_idle: Annotated[float, Duration(60), "Idle time after which an unfinished one-shot call is ended."] = DAY
    retention: Annotated[
        float | None, Duration(60, never=True), "How long an ended conversation's transcript is kept."
    ] = 90 * DAY
    audit: Annotated[float, Duration(DAY), "How long entries of the audit log are kept."] = 365 * DAY
