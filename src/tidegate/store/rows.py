"""The store's rows as frozen values, and their encoding in columns.

A stored message is read back unchanged, whatever its text contains. Text that cannot be encoded as UTF-8 (a lone
surrogate) is refused before it reaches a row. A body is compressed only if it is long and compression saves space. Rows
are plain values: they own no resources and do not refer to a connection.
"""

import zlib
from typing import Any, Literal, NamedTuple

import msgspec

from tidegate.errors import Refused
from tidegate.security import UserRole
from tidegate.values import (
    ApprovalScope,
    Call,
    Failure,
    Frozen,
    Message,
    OnDisconnect,
    Outcome,
    Prefix,
    ToolsNote,
    TurnState,
    Usage,
)

PACK_ABOVE = 1024
"""Size, in bytes, above which a body is compressed. Compressing a shorter one costs more than it saves."""
PACK_LEVEL = 1
"""For text, level 1 already achieves most of zlib's compression, in a third of the default level's time."""
LISTED = 200
"""Default length of a list: as many rows as a page shows, read in a few milliseconds at most."""

SessionKind = Literal["named", "ephemeral"]
ApprovalKind = Literal["approval", "question"]
ApprovalState = Literal["open", "approved", "denied", "answered", "expired", "cancelled"]
Decision = Literal["approved", "denied", "answered"]
ProcessState = Literal["starting", "running", "exited", "ended", "lost"]
ProcessEnd = Literal["exited", "ended", "lost"]
WorkspaceState = Literal["live", "trash", "gone"]
SpooledKind = Literal["text", "media"]
DeliveryState = Literal["prepared", "sending", "sent", "unknown", "dead"]
KeyKind = Literal["key", "code", "cookie"]
AuditKind = Literal[
    "sign_in", "sign_out", "key", "principal", "approval", "rule", "tool", "egress", "configuration", "setting"
]
SummaryState = Literal["prepared", "applied"]
SummaryHow = Literal["model", "terse", "cut"]
"""How a summary was created: by a model, by a model that was told to be brief, or as a list without a model."""
ElisionKind = Literal["payload", "text", "media"]
About = Literal["person", "agent"]
Origin = Literal["tool", "person", "end"]
"""A note's origin: an agent's tool call in a conversation, a person, or the model call at the end of a conversation."""


class Row(msgspec.Struct, frozen=True):
    """A row as a value, with its fields in the order of the selected columns."""


class SessionRow(Row, frozen=True):
    """`prefix` identifies the frozen prompt and tools. The last `extra_length` characters of the prompt are specific to
    the session, and their digest is stored. `encoder` is the wire format version of the session's last request.
    `memory_seen` is the number of the first change to the notes that the session has not seen, or 0 if its agent has no
    memory. `caller_tools` is the digest of the caller tools in the prefix, or empty if there are none."""

    id: str
    principal: str
    channel: str
    name: str | None
    kind: SessionKind
    agent: str
    title: str
    prefix: bytes | None
    extra_length: int
    extra_digest: bytes
    encoder: int
    parent: str | None
    created: float
    active: float
    version: int
    ended: float | None
    end_reason: str | None
    memory_seen: int = 0
    caller_tools: bytes = b""


class ParentTurn(Row, frozen=True):
    """The origin of a delegated turn: the delegating turn, the delegation depth, the session of the outermost turn (the
    conversation that the task is part of), and the job to which all these turns belong."""

    turn: str
    depth: int
    conversation: str
    job: str


class StopRequest(Row, frozen=True):
    """A request to stop a turn. `by` is the reason, phrased as the end of a sentence. `abandoned` is true if the turn
    is stopped only because its caller has disconnected; a retry is then reasonable."""

    by: str
    abandoned: bool = False


class TurnRow(Row, frozen=True):
    """`usage` is the turn's usage or, while the turn is running, the usage of its finished tasks. `within` is the turn
    that delegated this one, and `conversation` is the session of the outermost turn. Both are None for a turn that was
    not delegated."""

    id: str
    session: str
    number: int
    state: TurnState
    channel: str
    call: Call
    on_disconnect: OnDisconnect
    attempts: int
    accepted: float
    started: float | None
    finished: float | None
    finish: str
    error: Failure | None
    usage: Usage
    steps: int
    job: str
    within: str | None = None
    depth: int = 0
    conversation: str | None = None
    fence: int = 0
    """Increased whenever the turn is taken. An attempt may write only as long as the fence has not been increased
    again."""
    stopping: StopRequest | None = None
    """Set if the running turn is to stop. The turn's attempt reads this value at its next commit."""

    @property
    def payer(self) -> str:
        """The session to which the turn's usage is charged."""
        return self.conversation or self.session


class TurnNews(NamedTuple):
    """Updates stored for a running turn: a request to stop it, if any, and whether steered messages are waiting."""

    stopping: StopRequest | None
    is_steered: bool


class OpenTurns(NamedTuple):
    """A session's open turns: the ids of the running ones, and the number of queued ones. More than one turn can be
    running only if a turn is resumed after a crash, or if there are two workers."""

    running: tuple[str, ...] = ()
    waiting: int = 0


class MessageRow(Row, frozen=True):
    id: int
    session: str
    turn: str | None
    seq: int | None
    step: str | None
    at: float
    undone: float | None
    message: Message


class IntentRow(Row, frozen=True):
    """`repeatable` is None in a row in an older format; the tool's current definition then decides."""

    tool: str
    read_only: bool
    repeatable: bool | None
    digest: bytes | None = None
    """Digest of the exact action, if it is recorded in the audit log."""


class ReceiptRow(Row, frozen=True):
    principal: str
    source: str
    key: str
    digest: bytes
    turn: str
    at: float
    expires: float
    outcome: Outcome | None
    tools: ToolsNote = ToolsNote()


class SettingRow(Row, frozen=True):
    session: str
    key: str
    value: Any
    source: str
    at: float
    expires: float | None


class RuleOffer(Frozen, frozen=True):
    """What an approval allows if it is given for more than one call: calls of `tool` by `agent` in conversations of
    `principal`. `digest` is the action digest of the only call that is allowed; None means every call of the tool.
    `fingerprint` identifies the tool's definition and `origin` is where the tool comes from. `place` is where the call
    takes effect. `grounds` are the reasons for asking that the approval covers, each an agent and what its policy
    says."""

    principal: str
    agent: str
    tool: str
    origin: str
    fingerprint: bytes
    place: str
    grounds: tuple[tuple[str, str], ...]
    digest: bytes | None = None


class ApprovalRuleRow(Row, frozen=True):
    """A stored rule: an offer that a person accepted. `session` is the conversation with which it ends, or None.
    `summary` is the only call that it allows, as it was shown, or empty. `giver_role` is the role of the person who
    gave it, None if they no longer exist."""

    id: str
    session: str | None
    offer: RuleOffer
    summary: str
    approval: str
    given_by: str
    given: float
    used: float | None
    uses: int
    giver_role: UserRole | None


class ApprovalRow(Row, frozen=True):
    """A request for approval, or a question. `digest` identifies the exact action, and `summary` is shown to the
    person. `may_answer` is the id of a principal or `role:<role>`. `offer` is what an approval with a larger scope
    allows; None if there is no such scope. `scope` is the scope with which the request was approved."""

    id: str
    session: str
    turn: str
    step: str
    kind: ApprovalKind
    tool: str
    digest: bytes
    summary: str
    choices: tuple[str, ...]
    may_answer: str
    state: ApprovalState
    asked: float
    expires: float | None
    answer: str | None
    answered_by: str | None
    answered_at: float | None
    offer: RuleOffer | None
    scope: ApprovalScope


class SummaryRow(Row, frozen=True):
    """A summary of the positions `first` to `last`. At level 0, it covers messages; at higher levels, it covers
    summaries of a lower level. `parent` is the number of the summary that covers this one; `how` says how this summary
    was created."""

    number: int
    level: int
    first: int
    last: int
    parent: int | None
    state: SummaryState
    how: SummaryHow
    model: str
    at: float
    text: str


class ElisionRow(Row, frozen=True):
    """At the positions `first` to `last`, results longer than `characters` (`payload`), all long texts (`text`) or all
    images and audio (`media`) are shown as excerpts."""

    first: int
    last: int
    kind: ElisionKind
    characters: int


class NoteRow(Row, frozen=True):
    """`whose` is a principal's id or an agent's name. `author` is the principal who wrote the note, either directly or
    in the conversation `session`; `by` is the author's display name."""

    id: int
    about: About
    whose: str
    text: str
    author: str
    source: Origin
    session: str | None
    at: float
    by: str


class NewApproval(Frozen, frozen=True):
    """A request for approval, or a question, that a step sends to a person. `digest` is the `approvals.action_digest`
    of the exact action. `may_answer` is the id of a principal or `role:<role>`; None means the session's owner. Only
    questions have choices, and only requests for approval have an offer."""

    kind: ApprovalKind
    tool: str
    digest: bytes
    summary: str
    choices: tuple[str, ...] = ()
    may_answer: str | None = None
    offer: RuleOffer | None = None


class ApprovalAnswer(Row, frozen=True):
    """An answer's effect. `counted`: the answer was accepted. `repeated`: this principal has already given the same
    answer. `closed`: somebody else answered first, or the request was cancelled. `expired`: the answer came too late.
    `unknown`: there is no request with this id that this principal may answer. `row` is the current row. `covered`
    are other requests that were approved together with it, because the stored rule covers them."""

    how: Literal["counted", "repeated", "closed", "expired", "unknown"]
    row: ApprovalRow | None
    covered: tuple[ApprovalRow, ...] = ()


class ProcessRow(Row, frozen=True):
    """A session's background process. `pid` and `start_ticks` (its start time in kernel ticks) are set once the process
    is running; only both together identify the process. `log` is the name of its output in the spool. `channel` is the
    channel of the turn that started the process, or empty if unknown. `end_reported` is True if the agent has been told
    that the process has ended."""

    id: str
    session: str
    name: str
    command: str
    backend: str
    pid: int | None
    start_ticks: int | None
    state: ProcessState
    exit_code: int | None
    restart: bool
    notify: bool
    started: float
    ended: float | None
    log: str
    end_reported: bool
    channel: str


class WorkspaceRow(Row, frozen=True):
    """A session's folder. If `project` is True, it is the user's own folder and is never moved or removed."""

    session: str
    backend: str
    folder: str
    project: bool
    state: WorkspaceState
    trashed_at: float | None


class SpooledRow(Row, frozen=True):
    """A tool result, image or audio file whose content is in the spool."""

    id: str
    session: str
    turn: str | None
    kind: SpooledKind
    bytes: int
    lines: int
    media_type: str
    name: str
    created: float


class DeliveryRow(Row, frozen=True):
    id: str
    session: str | None
    turn: str | None
    channel: str
    target: str
    body: bytes
    state: DeliveryState
    attempts: int
    created: float
    due: float
    expires: float
    external: str | None
    error: str | None


class PrincipalRow(Row, frozen=True):
    id: str
    name: str
    role: UserRole
    agents: tuple[str, ...] | None
    created: float


class KeyRow(Row, frozen=True):
    """A key without its digest, so this row cannot be used to verify or reconstruct the credential."""

    id: str
    principal: str
    kind: KeyKind
    label: str
    created: float
    expires: float | None
    used: float | None
    revoked: float | None


class AuditRow(Row, frozen=True):
    """One event in the audit log. `principal` is the actor, or None for the gateway itself; `subject` contains ids,
    separated by spaces."""

    id: int
    at: float
    kind: AuditKind
    principal: str | None
    session: str | None
    subject: str
    outcome: str
    digest: bytes | None


class UsageTotal(Row, frozen=True):
    """The sums over `calls` model calls with one key; `name` is the key's display name, if it has one. `cost` is in
    billionths of a dollar. `estimated` is the number of calls whose tokens were estimated because the provider did not
    report them."""

    key: str
    name: str
    calls: int
    input: int
    cached: int
    written: int
    output: int
    reasoning: int
    cost: int
    estimated: int


class SpentTotal(Row, frozen=True):
    """The amount spent from a budget, in tokens and in billionths of a dollar."""

    tokens: int
    cost: int


_encode = msgspec.json.Encoder().encode
_message = msgspec.json.Decoder(Message).decode
_call = msgspec.json.Decoder(Call).decode
_failure = msgspec.json.Decoder(Failure).decode
_stop = msgspec.json.Decoder(StopRequest).decode
_outcome = msgspec.json.Decoder(Outcome).decode
_prefix = msgspec.json.Decoder(Prefix).decode
_EMPTY_CALL = Call()
_EMPTY_CALL_BYTES = _encode(_EMPTY_CALL)


def encode(value: object) -> bytes:
    """Encodes a value as JSON. Refuses text that cannot be encoded as UTF-8."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        raise Refused(
            "The text contains a lone surrogate, which cannot be encoded as UTF-8; send valid Unicode."
        ) from None


def compress(body: bytes) -> tuple[bytes, int]:
    """Returns the bytes to store, and 1 if they are compressed, otherwise 0."""
    if len(body) > PACK_ABOVE:
        packed = zlib.compress(body, PACK_LEVEL)
        if len(packed) < len(body):
            return packed, 1
    return body, 0


def decompress(body: bytes, packed: int) -> bytes:
    return zlib.decompress(body) if packed else body


def pack(message: Message) -> tuple[bytes, int]:
    """Returns the body of a message row, and 1 if it is compressed, otherwise 0."""
    return compress(encode(message))


def unpack(body: bytes, packed: int) -> Message:
    return _message(zlib.decompress(body) if packed else body)


decode_message = _message
"""Decodes a body that is not compressed."""


def encode_call(call: Call) -> bytes:
    return _EMPTY_CALL_BYTES if call == _EMPTY_CALL else encode(call)


def decode_call(body: bytes) -> Call:
    return _EMPTY_CALL if body == _EMPTY_CALL_BYTES else _call(body)


def decode_failure(body: bytes | None) -> Failure | None:
    return None if body is None else _failure(body)


def decode_stop(body: bytes | None) -> StopRequest | None:
    return None if body is None else _stop(body)


def decode_outcome(body: bytes | None) -> Outcome | None:
    return None if body is None else _outcome(body)


def decode_prefix(body: bytes) -> Prefix:
    return _prefix(body)
