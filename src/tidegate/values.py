"""Frozen values that cross from one room to another: messages, calls, events, outcomes, ids.

Guarantee: everything here is immutable and has one JSON form (field order is fixed), so that what is stored, compared
and sent is the same bytes. Nothing here refers to a live thing.
"""

import os
import time
from typing import Literal

import msgspec


class Frozen(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A value: immutable, defaults left out of its JSON form."""


# -- ids ---------------------------------------------------------------------------------------------------------------


def new_id(prefix: str) -> str:
    """An opaque id of ours, e.g. `s_…` for sessions and `t_…` for turns: 48 bits of time, so that rows made together
    lie together, and 80 bits of chance, so that none can be guessed."""
    raw = int(time.time() * 1000).to_bytes(6, "big") + os.urandom(10)
    return f"{prefix}_{raw.hex()}"


# -- messages ----------------------------------------------------------------------------------------------------------

Role = Literal["system", "user", "assistant", "tool"]

BILLION = 1_000_000_000
"""Money is counted in billionths of a dollar: one token of a cheap model costs some tens of them."""


def dollars(billionths: int) -> str:
    """An amount as people read it; the smaller it is, the more of it is shown."""
    amount = billionths / BILLION
    digits = 2 if amount >= 0.1 or not amount else 4 if amount >= 0.001 else 6
    return f"${amount:,.{digits}f}"


class Usage(Frozen, frozen=True):
    """Tokens as the provider counted them: `cached` is the part of `input` that was read from its cache, `written` the
    part that it wrote to its cache, `reasoning` the part of `output` that nobody is shown. `cost` is in billionths of a
    dollar. `estimated` says that the provider did not count a part of them, and that we did."""

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
    """A model's wish to call a tool. `arguments` is the model's own text, kept verbatim."""

    id: str
    name: str
    arguments: str


PDF = "application/pdf"
"""The only kind of document."""


def media_kind(media_type: str) -> str:
    """The word for it: picture, sound or document."""
    if media_type == PDF:
        return "document"
    return "sound" if media_type.startswith("audio/") else "picture"


class Media(Frozen, frozen=True):
    """A picture, a sound or a document for a model, as it is sent. Small ones are `data`; larger ones lie in the
    session's spool under the id `spooled` and are loaded only while a request is written.

    `note` says what was done to it (scaled). Pictures have a `width` and a `height`; sounds have `seconds` where
    their length is known. Documents have a `size` in bytes, and the `name` of their file if the sender gave one."""

    media_type: str
    data: bytes = b""
    spooled: str = ""
    width: int = 0
    height: int = 0
    seconds: float = 0.0
    note: str = ""
    name: str = ""
    size: int = 0

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
        """What it is, in a few words: `audio/wav, 3.2 s`."""
        if self.is_document:
            detail = self.name
        elif self.is_sound:
            detail = f"{self.seconds:.1f} s" if self.seconds else ""
        else:
            detail = f"{self.width} x {self.height}"
        return ", ".join(filter(None, (self.media_type, detail, self.note)))

    @property
    def words(self) -> str:
        """What stands for it where there is nothing but text: `[sound: audio/wav, 3.2 s]`."""
        return f"[{self.kind}: {self.about}]"


class OpaqueItem(Frozen, frozen=True):
    """Something in a model's answer that is no word of it but must go back with it, verbatim: a signed thought, an
    encrypted one, a mark on a call. It stood after so many characters of the text and so many of the calls; what it
    means, only the wire format that brought it knows."""

    item: msgspec.Raw
    text: int = 0
    calls: int = 0


class Message(Frozen, frozen=True):
    """One row of a transcript, in the neutral format that every wire format is encoded from.

    `aside` is what varies per message (a notice, a reminder): it was sent with this message and stays with it.
    `finish` and `usage` are set on what a model answered: finish is stop | length | tool_calls | content_filter |
    stopped (a person stopped it) | error. `media` stands on user messages and on tools' results. `carried` are things
    that go back only to the same `model` in the same format, `carrier`, and after the same frozen prefix, `bound`.
    `logprobs` is a JSON list with an entry for each token of an answer, where the caller asked for it.
    `interrupted` marks the result of a tool call that began and did not come to its end; its text says whether its
    effect is unknown. `unanswered` marks a user message that entered the transcript only because the session ended.
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


class ToolDefinition(Frozen, frozen=True):
    """The description of a tool for a model. `parameters` is a JSON schema, already encoded, so that it is immutable.
    `strict` asks the provider to enforce the schema."""

    name: str
    description: str
    parameters: msgspec.Raw = msgspec.Raw(b'{"type":"object","properties":{}}')
    strict: bool = False


class Prefix(Frozen, frozen=True):
    """System prompt and tool list of a session, frozen when it starts and persisted with it. `parts` says what the
    prompt is made of: the name and the length in characters of each part, in order. `caller_tools` are run by the
    caller; with `caller_only` they replace the agent's own, otherwise they follow them."""

    prompt: str
    tools: tuple[ToolDefinition, ...] = ()
    parts: tuple[tuple[str, int], ...] = ()
    caller_tools: tuple[ToolDefinition, ...] = ()
    caller_only: bool = False

    @property
    def shadowed(self) -> frozenset[str]:
        """Names of caller tools that are not offered, because the agent has tools of the same names."""
        return frozenset() if self.caller_only else self._names(self.tools) & self._names(self.caller_tools)

    @property
    def run_by_caller(self) -> frozenset[str]:
        """Names of the offered tools that the caller runs."""
        return self._names(self.caller_tools) - self.shadowed

    @property
    def offered(self) -> tuple[ToolDefinition, ...]:
        """The tools that the model may call, the agent's own first."""
        own, shadowed = () if self.caller_only else self.tools, self.shadowed
        return own + tuple(tool for tool in self.caller_tools if tool.name not in shadowed)

    @staticmethod
    def _names(tools: tuple[ToolDefinition, ...]) -> frozenset[str]:
        return frozenset(tool.name for tool in tools)

    def with_caller_tools(self, given: "CallerTools | None") -> "Prefix":
        """The same prompt and tools of the agent's own, with these caller tools."""
        if given is None:
            return msgspec.structs.replace(self, caller_tools=(), caller_only=False)
        return msgspec.structs.replace(self, caller_tools=given.definitions, caller_only=given.only)


# -- what a caller asks for --------------------------------------------------------------------------------------------

Busyness = Literal["queue", "steer", "interrupt"]
OnDisconnect = Literal["cancel", "continue"]
Reasoning = Literal["off", "minimal", "low", "medium", "high", "max"]


class CallerTools(Frozen, frozen=True):
    """Tools that a caller runs itself, as one request gave them. `digest` identifies the set; `definitions` are dropped
    from the stored call once they are frozen with the session's prefix. `only` hides the agent's own tools. Without
    definitions it stands for the set that the session has."""

    digest: bytes = b""
    definitions: tuple[ToolDefinition, ...] = ()
    only: bool = False


class Call(Frozen, frozen=True):
    """Parameters of one call, honoured for its turn only."""

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
    logit_bias: dict[str, float] | None = None
    top_logprobs: int | None = None
    """How many alternatives are told for each token; None for no log probabilities at all."""
    parallel_tool_calls: bool | None = None
    service_tier: str | None = None
    verbosity: str | None = None
    prompt_cache_key: str | None = None
    extras: bytes = b""
    """Fields that only some providers know, a JSON object; empty without any."""
    caller_tools: CallerTools | None = None
    tool_choice: bytes = b""
    response_format: bytes = b""
    """These two are the caller's JSON, verbatim; empty when not given."""
    attended: bool | None = None
    """Whether somebody is there who can be asked; None leaves it to the channel."""

    @property
    def tools_digest(self) -> bytes:
        """Identifies the set of caller tools; empty without any."""
        return b"" if self.caller_tools is None else self.caller_tools.digest

    @property
    def is_forced(self) -> bool:
        """Whether `tool_choice` makes the model call a tool."""
        return self.tool_choice not in (b"", b'"auto"', b'"none"')

    @property
    def chosen_tool(self) -> str:
        """The name of the tool that `tool_choice` makes the model call; empty when it names none."""
        if not self.tool_choice.startswith(b"{"):
            return ""
        return str(msgspec.json.decode(self.tool_choice)["function"]["name"])


IDEMPOTENCY = "idempotency"
"""Source of a receipt: a key that the caller chose."""

DELEGATED = "delegated"
"""Source of a receipt: the step of a turn that has given a task, so that it is given once."""

RETRY_MARK, RETRY = "retry-mark", "retry"
"""Sources of receipts of an official client that retries by itself, without a key: each of its first attempts leaves a
mark, and only what says that it is a retry is matched against the marks."""


class Receipt(Frozen, frozen=True):
    """An outer identity of a message, by which a second delivery of it is recognised.

    `source` is one of those above, or `channel:<name>` for a platform's message id. `digest` is of the body.
    """

    source: str
    key: str
    digest: bytes
    keep: float = 86400.0


class Attachment(Frozen, frozen=True):
    """A picture, a sound or a document as a caller gave it, unchecked. `message` is the place of its message among
    those it came with, `name` says where it stood, `filename` is the caller's own name for it."""

    message: int
    name: str
    data: bytes
    filename: str = ""


class Inbound(Frozen, frozen=True):
    """A message at the door. `name` is the caller's own name of a conversation, `session` our id of an existing one;
    with neither, the session is ephemeral and `messages` is the whole conversation. With either, `messages` is the
    one new user message."""

    principal: str
    channel: str
    agent: str
    messages: tuple[Message, ...]
    name: str | None = None
    session: str | None = None
    extra_prompt: str | None = None
    call: Call = Call()
    busy: Busyness = "queue"
    on_disconnect: OnDisconnect | None = None
    receipts: tuple[Receipt, ...] = ()
    job: str = ""
    """The name of the job that it comes from, to which its tokens are written down."""
    within: str = ""
    """The turn that it is a part of: an agent has delegated it."""
    depth: int = 0
    """How many turns it is within."""
    brought: tuple[Attachment, ...] = ()
    """What becomes media of the messages when they are taken in."""
    new: bool = False
    """Start a new conversation that will be addressed by its id (the page's and the terminal's way)."""


class ToolsNote(Frozen, frozen=True):
    """What a caller is told of the tools that its request brought."""

    shadowed: tuple[str, ...] = ()
    """Names of caller tools that were left out, because the agent has tools of the same names."""
    changed: bool = False
    """Whether they differ from those that the session's prefix was frozen with."""


class Acceptance(Frozen, frozen=True):
    """The door's acknowledgement: the message is durable, and `how` says truly what will happen to it."""

    turn: str
    session: str
    how: Literal["started", "queued", "steered", "interrupting", "attached", "replayed"]
    ahead: int = 0
    tools: ToolsNote = ToolsNote()


# -- what a turn tells -------------------------------------------------------------------------------------------------


class TurnStarted(Frozen, frozen=True, tag="turn_started"):
    turn: str
    resumed: bool = False


class TextDelta(Frozen, frozen=True, tag="text"):
    text: str


class TextReset(Frozen, frozen=True, tag="text_reset"):
    """What was shown of the current model answer is void: it will be given again from its beginning."""

    reason: str


class MessageAdded(Frozen, frozen=True, tag="message"):
    """A row was committed to the transcript; `seq` is its place."""

    seq: int
    message: Message


class ToolStarted(Frozen, frozen=True, tag="tool_started"):
    call_id: str
    name: str
    arguments: str


class ToolProgress(Frozen, frozen=True, tag="tool_progress"):
    """What a running tool has put out since the last one of these; nothing of it is stored."""

    call_id: str
    name: str
    text: str


class ToolEnded(Frozen, frozen=True, tag="tool_ended"):
    call_id: str
    name: str
    excerpt: str
    failed: bool = False
    media: tuple[str, ...] = ()
    """Pictures, sounds and documents that came with the result, in words."""
    interrupted: bool = False
    """Whether the call began and did not come to its end."""


class Notice(Frozen, frozen=True, tag="notice"):
    """Something a person should know that is no part of the answer."""

    text: str


class QuestionAsked(Frozen, frozen=True, tag="asked"):
    """The turn waits for a person: to approve one exact action, or to answer a question. It is told again to whoever
    comes later, under the same id; when the turn ends, so does the question. Whoever follows a turn is told as well
    what is asked by the tasks that it has given: then `turn` is the task's, and `agent` who works on it."""

    id: str
    turn: str
    kind: Literal["approval", "question"]
    tool: str
    summary: str
    choices: tuple[str, ...] = ()
    expires: float | None = None
    agent: str = ""
    for_owner: bool = False
    """Whether only the owner of the gateway may answer it."""


class QuestionAnswered(Frozen, frozen=True, tag="answered"):
    """What became of a question: approved, denied, answered, expired or cancelled."""

    id: str
    state: str
    answer: str = ""


TurnState = Literal["queued", "running", "answered", "failed", "stopped", "refused"]


class Failure(Frozen, frozen=True):
    """Why a turn failed, as a caller is told: an HTTP status, OpenAI's type and code, one sentence."""

    message: str
    type: str = "server_error"
    code: str = "internal"
    status: int = 500
    param: str | None = None
    """The field of the request that is at fault, where one is."""
    retry: bool = False
    final: bool = False
    """Whether a client that tries again by itself should not: it would be of no use, or the gateway has done so."""
    retry_after: float | None = None
    """Seconds after which trying again makes sense, where the model's side said so."""


class Outcome(Frozen, frozen=True):
    """How a turn ended. The same value live, from the store, and replayed under an idempotency key."""

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
    """What its user was told beside the answer, for who did not follow it."""


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
