"""Frozen values that are passed between packages: messages, calls, events, outcomes, ids.

All values are immutable and have exactly one JSON form (the field order is fixed), so a value always has the same
bytes, whether it is stored, compared or sent. No value refers to a live object.
"""

import os
import time
from typing import Literal

import msgspec


class Frozen(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Base class for values, which are immutable and omit defaults from the JSON form."""


# -- ids ---------------------------------------------------------------------------------------------------------------


def new_id(prefix: str) -> str:
    """Returns a new opaque id, e.g. `s_…` for a session or `t_…` for a turn. It contains 48 bits of time, so that rows
    created together are stored together, and 80 random bits, so that ids cannot be guessed."""
    raw = int(time.time() * 1000).to_bytes(6, "big") + os.urandom(10)
    return f"{prefix}_{raw.hex()}"


# -- messages ----------------------------------------------------------------------------------------------------------

Role = Literal["system", "user", "assistant", "tool"]

BILLION = 1_000_000_000
"""Money is counted in billionths of a dollar, since one token from a cheap model costs only a few dozen of these
units."""


def dollars(billionths: int) -> str:
    """Formats an amount for display. Smaller amounts are shown with more digits."""
    amount = billionths / BILLION
    digits = 2 if amount >= 0.1 or not amount else 4 if amount >= 0.001 else 6
    return f"${amount:,.{digits}f}"


class Usage(Frozen, frozen=True):
    """Tokens as counted by the provider. `cached` is the part of `input` that was read from the provider's cache,
    `written` is the part that was written to the cache, and `reasoning` is the part of `output` that is not shown.
    `cost` is in billionths of a dollar. `estimated` is true if the provider did not count all of the tokens and the
    gateway estimated the rest."""

    input: int = 0
    cached: int = 0
    output: int = 0
    written: int = 0
    reasoning: int = 0
    cost: int = 0
    estimated: bool = False

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input=self.input + other.input,
            cached=self.cached + other.cached,
            output=self.output + other.output,
            written=self.written + other.written,
            reasoning=self.reasoning + other.reasoning,
            cost=self.cost + other.cost,
            estimated=self.estimated or other.estimated,
        )

    @property
    def tokens(self) -> int:
        return self.input + self.output


class ToolCall(Frozen, frozen=True):
    """A model's request to call a tool. `arguments` is the model's own text, stored verbatim."""

    id: str
    name: str
    arguments: str


PDF = "application/pdf"
"""The only supported document type."""


def media_kind(media_type: str) -> str:
    """Returns the kind of media: `picture`, `sound` (any audio) or `document`."""
    if media_type == PDF:
        return "document"
    return "sound" if media_type.startswith("audio/") else "picture"


class Media(Frozen, frozen=True):
    """An image, an audio clip or a document, as sent to a model. Small media are in `data`; larger media are in the
    session's spool under the id `spooled` and are loaded only while a request is being written.

    `note` describes how the media were changed, such as by scaling. Images have a `width` and a `height`. Audio clips
    have `seconds` if the duration is known. Documents have a `size` in bytes, and a file `name` if the sender specified
    one."""

    media_type: str
    data: bytes = b""
    spooled: str = ""
    width: int = 0
    height: int = 0
    seconds: float = 0.0
    note: str = ""
    name: str = ""
    size: int = 0
    detail: str = ""
    """The resolution at which the model should read an image, as requested by the caller; empty if not specified."""

    @property
    def kind(self) -> str:
        return media_kind(self.media_type)

    @property
    def is_sound(self) -> bool:
        return self.kind == "sound"

    @property
    def is_document(self) -> bool:
        return self.kind == "document"

    @property
    def about(self) -> str:
        """A short description: `audio/wav, 3.2 s`."""
        if self.is_document:
            detail = self.name
        elif self.is_sound:
            detail = f"{self.seconds:.1f} s" if self.seconds else ""
        else:
            detail = f"{self.width} x {self.height}"
        return ", ".join(filter(None, (self.media_type, detail, self.note)))

    @property
    def words(self) -> str:
        """The text that replaces the media where only text is possible, such as `[sound: audio/wav, 3.2 s]`."""
        return f"[{self.kind}: {self.about}]"


class OpaqueItem(Frozen, frozen=True):
    """An item in a model's answer that is not text but must be sent back verbatim, such as signed or encrypted
    reasoning or a mark on a call. `text` and `calls` give its position: the number of characters of text and the number
    of calls that precede it. Only the wire format in which the item was received can interpret it."""

    item: msgspec.Raw
    text: int = 0
    calls: int = 0


class Message(Frozen, frozen=True):
    """One row of a transcript, in a neutral format from which every wire format is encoded.

    `aside` is text that the gateway has added to this message, such as a notice or reminder. It was sent with the
    message and remains part of it. `finish` and `usage` are set on a model's answers: finish is stop | length |
    tool_calls | content_filter | stopped (a person stopped it) | error. User messages and tool results may have
    `media`. `carried` items are sent back only to the model that produced them (`model`), in the same wire format
    (`carrier`), and after the same frozen prefix (`bound`). `logprobs` is a JSON list with an entry for each token of
    an answer, if the caller requested it. `interrupted` marks the result of a tool call that was started but did not
    finish; its text says whether its effect is unknown. `unanswered` marks a user message that no turn has answered and
    that was added to the transcript only because the session ended.
    """

    role: Role
    text: str = ""
    aside: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    failed: bool = False
    name: str = ""
    finish: str = ""
    usage: Usage | None = None
    model: str = ""
    media: tuple[Media, ...] = ()
    carrier: str = ""
    bound: str = ""
    carried: tuple[OpaqueItem, ...] = ()
    logprobs: msgspec.Raw | None = None
    interrupted: bool = False
    unanswered: bool = False

    def without_bytes(self) -> "Message":
        """Returns the message without its media's bytes, which can be fetched separately."""
        if not any(media.data for media in self.media):
            return self
        emptied = tuple(msgspec.structs.replace(media, data=b"") for media in self.media)
        return msgspec.structs.replace(self, media=emptied)


class ToolDefinition(Frozen, frozen=True):
    """A tool's description for a model. `parameters` is a JSON schema, already encoded and therefore immutable.
    `strict` asks the provider to enforce the schema."""

    name: str
    description: str
    parameters: msgspec.Raw = msgspec.Raw(b'{"type":"object","properties":{}}')
    strict: bool = False


class Prefix(Frozen, frozen=True):
    """A session's system prompt and tool list, frozen when the session starts and stored with it. `parts` describes the
    prompt: the name and length (in characters) of each part, in order. `caller_tools` are run by the caller; with
    `caller_only` they replace the agent's own tools, otherwise they follow them."""

    prompt: str
    tools: tuple[ToolDefinition, ...] = ()
    parts: tuple[tuple[str, int], ...] = ()
    caller_tools: tuple[ToolDefinition, ...] = ()
    caller_only: bool = False

    @property
    def shadowed(self) -> frozenset[str]:
        """Names of caller tools that are not offered because the agent has tools with the same names."""
        return frozenset() if self.caller_only else self._names(self.tools) & self._names(self.caller_tools)

    @property
    def run_by_caller(self) -> frozenset[str]:
        """Names of the offered tools that the caller runs."""
        return self._names(self.caller_tools) - self.shadowed

    @property
    def offered(self) -> tuple[ToolDefinition, ...]:
        """The tools that the model may call; the agent's own tools come first."""
        own, shadowed = () if self.caller_only else self.tools, self.shadowed
        return own + tuple(tool for tool in self.caller_tools if tool.name not in shadowed)

    @staticmethod
    def _names(tools: tuple[ToolDefinition, ...]) -> frozenset[str]:
        return frozenset(tool.name for tool in tools)

    def with_caller_tools(self, tools: "CallerTools | None") -> "Prefix":
        """Returns a copy with the same prompt and agent tools but with these caller tools."""
        if tools is None:
            return msgspec.structs.replace(self, caller_tools=(), caller_only=False)
        return msgspec.structs.replace(self, caller_tools=tools.definitions, caller_only=tools.only)


# -- requests ----------------------------------------------------------------------------------------------------------

BusyMode = Literal["queue", "steer", "interrupt"]
"""How to handle a message that arrives while a turn of its session is running."""
OnDisconnect = Literal["cancel", "continue"]
Reasoning = Literal["off", "minimal", "low", "medium", "high", "max"]


class CallerTools(Frozen, frozen=True):
    """The tools in a request that the caller runs itself. `digest` identifies the set. `definitions` are dropped from
    the stored call once they are frozen with the session's prefix. `only` hides the agent's own tools. If `definitions`
    is empty, `digest` refers to the set that the session already has."""

    digest: bytes = b""
    definitions: tuple[ToolDefinition, ...] = ()
    only: bool = False


class Call(Frozen, frozen=True):
    """A request's parameters. They apply only to the turn that the request starts."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    reasoning: str | None = None
    stop: tuple[str, ...] = ()
    user: str | None = None
    metadata: dict[str, str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, int | float] | None = None
    top_logprobs: int | None = None
    """The number of alternatives to return for each token, or None if no log probabilities are requested."""
    parallel_tool_calls: bool | None = None
    service_tier: str | None = None
    verbosity: str | None = None
    prompt_cache_key: str | None = None
    extras: bytes = b""
    """Fields that only some providers support, as a JSON object; may be empty."""
    caller_tools: CallerTools | None = None
    tool_choice: bytes = b""
    response_format: bytes = b""
    """`tool_choice` and `response_format` contain the caller's JSON verbatim, or nothing if the caller did not set
    them."""
    attended: bool | None = None
    """True if a person is present who can answer questions; None means that the channel decides."""

    @property
    def tools_digest(self) -> bytes:
        """The digest of the caller tools; empty if there are none."""
        return b"" if self.caller_tools is None else self.caller_tools.digest

    @property
    def is_forced(self) -> bool:
        """True if `tool_choice` forces the model to call a tool."""
        if not self.tool_choice.startswith(b"{"):
            return self.tool_choice == b'"required"'
        allowed = msgspec.json.decode(self.tool_choice).get("allowed_tools")
        return allowed is None or allowed["mode"] == "required"

    @property
    def chosen_tools(self) -> tuple[str, ...]:
        """The names of the tools that `tool_choice` allows or forces the model to call; empty if it names none."""
        if not self.tool_choice.startswith(b"{"):
            return ()
        choice = msgspec.json.decode(self.tool_choice)
        listed = choice["allowed_tools"]["tools"] if "allowed_tools" in choice else (choice,)
        return tuple(str(each["function"]["name"]) for each in listed)

    def unforced(self) -> "Call":
        """Returns the call for the steps after a forced one. A choice of allowed tools continues to apply."""
        if not self.is_forced:
            return self
        choice = msgspec.json.decode(self.tool_choice)
        if "allowed_tools" not in choice:
            return msgspec.structs.replace(self, tool_choice=b"")
        choice["allowed_tools"]["mode"] = "auto"
        return msgspec.structs.replace(self, tool_choice=msgspec.json.encode(choice))


IDEMPOTENCY = "idempotency"
"""The source of receipts for idempotency keys chosen by callers."""

DELEGATED = "delegated"
"""The source of receipts for delegated tasks, whose key is the step that delegated the task. They ensure that a task is
delegated only once."""

RETRY_MARK, RETRY = "retry-mark", "retry"
"""Sources of receipts for official clients, which retry automatically without a key. Each first attempt leaves a mark,
and only requests that declare themselves to be retries are matched against the marks."""


class Receipt(Frozen, frozen=True):
    """An external identity of a message, used to recognise repeated deliveries.

    `source` is one of the constants above, or `channel:<name>` for a platform's message id. `digest` is the body's
    digest. `keep` is the number of seconds for which the receipt is kept.
    """

    source: str
    key: str
    digest: bytes
    keep: float = 86400.0


class Attachment(Frozen, frozen=True):
    """An image, an audio clip or a document as received from a caller, unchecked. `message` is the index of its
    message in the request, and `name` is its position in that message. `filename` is the file name given by the caller.
    `detail` is the resolution at which the model should read an image."""

    message: int
    name: str
    data: bytes
    filename: str = ""
    detail: str = ""


class Inbound(Frozen, frozen=True):
    """An incoming message. `name` is a conversation name chosen by the caller, and `session` is the id of an existing
    session. If either is set, `messages` contains only the new user message. If neither is set, the session is
    ephemeral and `messages` is the entire conversation."""

    principal: str
    channel: str
    agent: str
    messages: tuple[Message, ...]
    name: str | None = None
    session: str | None = None
    extra_prompt: str | None = None
    call: Call = Call()
    busy: BusyMode = "queue"
    on_disconnect: OnDisconnect | None = None
    receipts: tuple[Receipt, ...] = ()
    job: str = ""
    """The name of the job to which the message's tokens are charged."""
    within: str = ""
    """The turn that delegated this message as a task, if an agent did."""
    depth: int = 0
    """The delegation depth."""
    attachments: tuple[Attachment, ...] = ()
    """Files that become part of the messages as media when they are accepted."""
    new: bool = False
    """True if the message starts a new conversation that will be addressed by its id, as the web page and the terminal
    do."""


class ToolsNote(Frozen, frozen=True):
    """Information for a caller about the tools of its request."""

    shadowed: tuple[str, ...] = ()
    """Names of caller tools that were left out because the agent has tools with the same names."""
    changed: bool = False
    """True if the caller tools differ from those in the session's frozen prefix."""


class Acceptance(Frozen, frozen=True):
    """The acknowledgement that a message has been stored durably. `how` says what will happen to the message."""

    turn: str
    session: str
    how: Literal["started", "queued", "steered", "interrupting", "attached", "replayed"]
    ahead: int = 0
    tools: ToolsNote = ToolsNote()


# -- events and outcomes of a turn -------------------------------------------------------------------------------------


class TurnStarted(Frozen, frozen=True, tag="turn_started"):
    turn: str
    resumed: bool = False


class TextDelta(Frozen, frozen=True, tag="text"):
    text: str


class TextReset(Frozen, frozen=True, tag="text_reset"):
    """Withdraws the text of the current model answer, which will be sent again from its beginning."""

    reason: str


class MessageAdded(Frozen, frozen=True, tag="message"):
    """A row was committed to the transcript. `seq` is its position."""

    seq: int
    message: Message


class ToolStarted(Frozen, frozen=True, tag="tool_started"):
    call_id: str
    name: str
    arguments: str


class ToolProgress(Frozen, frozen=True, tag="tool_progress"):
    """New output from a running tool since the last such event. It is not stored."""

    call_id: str
    name: str
    text: str


class ToolEnded(Frozen, frozen=True, tag="tool_ended"):
    call_id: str
    name: str
    excerpt: str
    failed: bool = False
    media: tuple[str, ...] = ()
    """Descriptions of the images, audio clips and documents in the result."""
    interrupted: bool = False
    """True if the call was started but did not finish."""


class Notice(Frozen, frozen=True, tag="notice"):
    """Information for the user that is not part of the answer."""

    text: str


ApprovalScope = Literal["call", "conversation", "always"]
"""What an approval applies to: only its call, the rest of the conversation, or all conversations of the same person."""


class ScopeChoice(Frozen, frozen=True):
    """A scope with which an approval can be given. `allows` states what is then allowed, in one sentence."""

    scope: ApprovalScope
    allows: str


class QuestionAsked(Frozen, frozen=True, tag="asked"):
    """The turn is waiting for a person to approve an exact action or to answer a question. Clients that connect later
    receive the question again, with the same id. The question is closed when the turn ends, if not before. Followers of
    a turn also receive the questions asked by its delegated tasks; `turn` is then the task's turn, and `agent` is the
    agent that is working on the task."""

    id: str
    turn: str
    kind: Literal["approval", "question"]
    tool: str
    summary: str
    choices: tuple[str, ...] = ()
    expires: float | None = None
    agent: str = ""
    for_owner: bool = False
    """True if only the gateway's owner may answer."""
    scopes: tuple[ScopeChoice, ...] = ()
    """The scopes from which the approver can choose; empty for a question."""


class QuestionAnswered(Frozen, frozen=True, tag="answered"):
    """The end of a question. `state` is approved, denied, answered, expired or cancelled."""

    id: str
    state: str
    answer: str = ""


TurnState = Literal["queued", "running", "answered", "failed", "stopped", "refused"]


class Failure(Frozen, frozen=True):
    """The reason for a turn's failure, as reported to the caller: an HTTP status, a type and a code in OpenAI's format,
    and one sentence."""

    message: str
    type: str = "server_error"
    code: str = "internal"
    status: int = 500
    param: str | None = None
    """The faulty field in the request, if there is one."""
    retry: bool = False
    final: bool = False
    """True if clients should not retry automatically, because a retry would not help or the gateway has already
    retried."""
    retry_after: float | None = None
    """Seconds after which a retry makes sense, if specified by the model's endpoint."""


class Outcome(Frozen, frozen=True):
    """A turn's outcome. The value is the same whether it comes from a live turn, is read from the store, or is replayed
    for an idempotency key."""

    turn: str
    session: str
    state: TurnState
    agent: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    logprobs: msgspec.Raw | None = None
    finish: str = ""
    usage: Usage = Usage()
    steps: int = 0
    error: Failure | None = None
    accepted: float = 0.0
    finished: float = 0.0
    notices: tuple[str, ...] = ()
    """Notices that accompanied the answer, for clients that did not follow the turn."""


class TurnEnded(Frozen, frozen=True, tag="turn_ended"):
    outcome: Outcome


Event = (
    TurnStarted
    | TextDelta
    | TextReset
    | MessageAdded
    | ToolStarted
    | ToolProgress
    | ToolEnded
    | QuestionAsked
    | QuestionAnswered
    | Notice
    | TurnEnded
)


NO_LANGUAGE = "none"
"""The language setting of an index in which every form of a word is different."""
LANGUAGES = (
    NO_LANGUAGE, "english", "arabic", "armenian", "basque", "catalan", "czech", "danish", "dutch", "esperanto",
    "estonian", "finnish", "french", "german", "greek", "hindi", "hungarian", "indonesian", "irish", "italian",
    "lithuanian", "nepali", "norwegian", "persian", "polish", "portuguese", "romanian", "russian", "serbian",
    "spanish", "swedish", "tamil", "turkish", "yiddish",
)  # fmt: skip
"""Languages of the search index. Stores contain positions in this list, so new languages must be appended."""
