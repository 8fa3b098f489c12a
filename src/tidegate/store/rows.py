"""What the store hands out: one frozen value per row, and the one way a value becomes bytes in a column.

Guarantee: a message that was stored comes back equal, whatever its text holds; a text that has no UTF-8 form (a lone
surrogate) is refused before it reaches a row. A body is packed only when it is long and packing saves space. Rows are
plain values: they own nothing and refer to no connection.
"""

import zlib
from collections.abc import Sequence
from typing import Any, Literal

import apsw
import msgspec

from tidegate.errors import Refused
from tidegate.security import UserRole
from tidegate.values import Call, Failure, Frozen, Message, OnDisconnect, Outcome, Prefix, ToolsNote, TurnState, Usage

Db = apsw.Connection
"""What a function that runs in the store is given; it is valid for the length of that call."""

PACK_ABOVE = 1024
"""Bytes. Below this a packed body saves less than the work of packing costs."""
PACK_LEVEL = 1
"""Level 1 already gives most of what zlib can give on text, at a third of the time of the default."""
LISTED = 200
"""Rows of a list, where its caller does not say: what a page shows, and some milliseconds at most."""

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
AuditKind = Literal["sign_in", "sign_out", "key", "principal", "approval", "tool", "egress", "configuration", "setting"]
SummaryState = Literal["prepared", "applied"]
SummaryHow = Literal["model", "terse", "cut"]
"""A summary by a model, one that was asked to be short, or a list made without a model."""
ElisionKind = Literal["payload", "text", "media"]
About = Literal["person", "agent"]
Origin = Literal["tool", "person", "end"]
"""Who wrote a note: an agent in a conversation, a person, or the model step at a conversation's end."""


class Row(msgspec.Struct, frozen=True):
    """A row as a value; its fields stand in the order of the columns that are selected for it."""


class SessionRow(Row, frozen=True):
    """`prefix` is the identity of the frozen prompt and tools. What the session brought of its own is the last
    `extra_length` characters of that prompt, known by their digest. `encoder` is the version of the wire format in
    which its last request was made. `memory_seen` is the first change of notes that it was not told of, 0 where its
    agent has no memory. `caller_tools` is the digest of the caller tools in its prefix, empty without any."""

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
    """Of a turn that another has given as a task: that turn, how many turns it is within, the session of the outermost
    of them, which it is a part of, and the job that all of it comes from."""

    turn: str
    depth: int
    conversation: str
    job: str


class TurnRow(Row, frozen=True):
    """`usage` is what it has used; while it runs, what the tasks that it gave and that are over have used. `within` is
    the turn that gave it its task, `conversation` the session of the outermost one; None for a turn of its own."""

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

    @property
    def payer(self) -> str:
        """The session that what it uses is written down to."""
        return self.conversation or self.session


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
    """`repeatable` is None in a row of an older format: then the tool of today decides."""

    tool: str
    read_only: bool
    repeatable: bool | None
    digest: bytes | None = None
    """Of the exact action, where it is recorded in the audit log."""


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


class ApprovalRow(Row, frozen=True):
    """What a person is asked. `digest` is of the exact action, `summary` what is shown of it. `may_answer` is the id of
    a principal or `role:<role>`."""

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


class SummaryRow(Row, frozen=True):
    """Covers the places `first` to `last`: messages at level 0, summaries of a lower level above it. `parent` is the
    number of the one that covers it; `how` says who wrote it."""

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
    """In the places `first` to `last` results that are longer than `characters` (`payload`), all long text (`text`) or
    all pictures and sounds (`media`) are shown by an excerpt."""

    first: int
    last: int
    kind: ElisionKind
    characters: int


class NoteRow(Row, frozen=True):
    """`whose` is a principal's id or an agent's name; `author` is the principal who wrote it, himself or by the
    conversation `session`, and `by` what people call him."""

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
    """What a step wants to ask. `digest` is `approvals.action_digest` of the exact action. `may_answer` is the id of a
    principal or `role:<role>`; None is the session's owner. Only a question has choices."""

    kind: ApprovalKind
    tool: str
    digest: bytes
    summary: str
    choices: tuple[str, ...] = ()
    may_answer: str | None = None


class ApprovalAnswer(Row, frozen=True):
    """What became of an answer. `counted`: it is the one that holds. `repeated`: this principal has given this very
    answer before. `closed`: somebody was quicker, or it was cancelled. `expired`: it came too late. `unknown`: there is
    nothing of that id that this principal may answer. The row is as it stands now."""

    how: Literal["counted", "repeated", "closed", "expired", "unknown"]
    row: ApprovalRow | None


class ProcessRow(Row, frozen=True):
    """A background process of a session. `pid` and `start_ticks` (its start, as the kernel counts) are known once it
    runs, and only together name it. `log` is the name of its output in the spool; `channel` is that of the turn which
    started it, empty where that is not known."""

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
    told: bool
    channel: str


class WorkspaceRow(Row, frozen=True):
    """Where a session works. `project` says that the folder is the user's own: it is never moved nor removed."""

    session: str
    backend: str
    folder: str
    project: bool
    state: WorkspaceState
    trashed_at: float | None


class SpooledRow(Row, frozen=True):
    """A result or medium whose content lies in the spool."""

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
    """A key without its digest: nothing that was handed out can be rebuilt from it."""

    id: str
    principal: str
    kind: KeyKind
    label: str
    created: float
    expires: float | None
    used: float | None
    revoked: float | None


class AuditRow(Row, frozen=True):
    """One event of the audit log. `principal` is whoever acted, None for the gateway itself; `subject` holds ids,
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
    """Sums of `calls` model calls under one key; `name` is what people call it, where that is something else. `cost` is
    in billionths of a dollar; of so many calls as `estimated` says, tokens were not counted by their provider."""

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
    """What was used up of a budget: tokens, and billionths of a dollar."""

    tokens: int
    cost: int


_encode = msgspec.json.Encoder().encode
_message = msgspec.json.Decoder(Message).decode
_call = msgspec.json.Decoder(Call).decode
_failure = msgspec.json.Decoder(Failure).decode
_outcome = msgspec.json.Decoder(Outcome).decode
_prefix = msgspec.json.Decoder(Prefix).decode
_EMPTY_CALL = Call()
_EMPTY_CALL_BYTES = _encode(_EMPTY_CALL)


def encode(value: object) -> bytes:
    """The JSON form of a value. Refuses text that has no UTF-8 form."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        raise Refused("The text holds a lone surrogate, which no UTF-8 text can; send valid Unicode.") from None


def encode_ids(ids: Sequence[str]) -> str:
    """For `json_each`: however many there are, the statement is the same one."""
    return encode(tuple(ids)).decode()


def squeeze(body: bytes) -> tuple[bytes, int]:
    """The bytes to store and whether they are packed."""
    if len(body) > PACK_ABOVE:
        packed = zlib.compress(body, PACK_LEVEL)
        if len(packed) < len(body):
            return packed, 1
    return body, 0


def unsqueeze(body: bytes, packed: int) -> bytes:
    return zlib.decompress(body) if packed else body


def pack(message: Message) -> tuple[bytes, int]:
    """The body of a message row and whether it is packed."""
    return squeeze(encode(message))


def unpack(body: bytes, packed: int) -> Message:
    return _message(zlib.decompress(body) if packed else body)


decode_message = _message
"""The message of a body that is not packed."""


def encode_call(call: Call) -> bytes:
    return _EMPTY_CALL_BYTES if call == _EMPTY_CALL else encode(call)


def decode_call(body: bytes) -> Call:
    return _EMPTY_CALL if body == _EMPTY_CALL_BYTES else _call(body)


def decode_failure(body: bytes | None) -> Failure | None:
    return None if body is None else _failure(body)


def decode_outcome(body: bytes | None) -> Outcome | None:
    return None if body is None else _outcome(body)


def decode_prefix(body: bytes) -> Prefix:
    return _prefix(body)
