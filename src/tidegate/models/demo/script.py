"""The demo model's replies: a pure function from a request to a reply.

The same request always gets the same reply, and the demo model never pretends to be a real one. docs/demo-model.md
lists the words that it understands.
"""

import re
from typing import Any, Literal

import msgspec

from tidegate.errors import ModelKind
from tidegate.models.formats.request_text import ASIDE_HEADING, NOTES_TASK, SUMMARY_TASK
from tidegate.values import Frozen, ToolCall

HIGHEST_COUNT = 100_000
LONGEST_TEXT = 1_000_000
SLOW_PAUSE = 0.1
SUMMARY_LINES = 8

HELP = (
    "I am Tidegate's built-in demo model: a small program, not a language model. You can try:\n"
    "- what time is it (in Europe/Paris)\n"
    "- read file notes.txt (from line 200)\n"
    "- run ls -l\n"
    "- ask me Tea or coffee? tea, coffee\n"
    "- say something nice\n"
    "- count to 50\n"
    "- what did I say\n"
    "- what was message 3\n"
    "- search for WORDS\n"
    "- remember that I like tea; what do you remember; forget note 1\n"
    "- delegate to NAME: TASK\n"
    '- call NAME {"argument": 1}\n'
    "- slow, fail, stumble, silence: to see how the gateway handles them"
)
CONFIGURE = (
    "I am Tidegate's built-in demo model: deterministic, offline, and not a language model. To talk to a "
    "real one, add it to tidegate.toml in Tidegate's home folder and start Tidegate again:\n\n"
    "[models.main]\n"
    'api = "openai-chat"\n'
    'base_url = "https://api.openai.com/v1"\n'
    'model = "the model\'s name"\n'
    'key = "env:OPENAI_API_KEY"'
)
GREETING = 'Hello! I am Tidegate\'s demo model, so I only know a few tricks. Say "help" to see them.'

_KINDS: dict[str, ModelKind] = {
    "authorisation": "authorisation",
    "quota": "quota",
    "rate": "rate",
    "context": "context",
    "content": "content",
    "overloaded": "overloaded",
    "network": "network",
    "timeout": "timeout",
    "invalid": "invalid",
    "protocol": "protocol",
}


class DemoReply(Frozen, frozen=True):
    """A reply, which is either text and tool calls or a failure. If `stumble` is true, the first half of the text is
    sent and withdrawn before the complete reply is sent."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    pause: float = 0.0
    fail: ModelKind | None = None
    stumble: bool = False
    count: int = 0


class _Sound(msgspec.Struct):
    data: str
    format: str


class _Url(msgspec.Struct):
    url: str


class _File(msgspec.Struct):
    filename: str
    file_data: str


class _Part(msgspec.Struct):
    text: str = ""
    input_audio: _Sound | None = None
    image_url: _Url | None = None
    file: _File | None = None

    @property
    def given(self) -> str:
        """A description of the media in this part, with its size; empty for text."""
        if self.input_audio is not None:
            return f"a sound ({self.input_audio.format}, {_size(self.input_audio.data)} bytes)"
        if self.image_url is not None:
            head, _, data = self.image_url.url.partition(";base64,")
            return f"an image ({head.rpartition('/')[2]}, {_size(data)} bytes)"
        if self.file is not None:
            return f"a document ({self.file.filename}, {_size(self.file.file_data.partition(';base64,')[2])} bytes)"
        return ""


class _Function(msgspec.Struct):
    name: str
    arguments: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _Message(msgspec.Struct):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] = []
    tool_call_id: str = ""

    @property
    def text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(part.text for part in self.content if part.text and not part.text.startswith(ASIDE_HEADING))

    @property
    def given(self) -> list[str]:
        """Descriptions of the images, audio and documents in the message."""
        return [part.given for part in self.content if part.given] if isinstance(self.content, list) else []

    @property
    def is_users(self) -> bool:
        """True if a person sent the message. Messages that contain only notes, possibly followed by media, come from
        the gateway."""
        if self.role != "user" or self.text.strip():
            return self.role == "user"
        return bool(self.given) and isinstance(self.content, list) and not any(part.text for part in self.content)


class _Tool(msgspec.Struct):
    function: _Function


class DemoRequest(msgspec.Struct):
    """The part of a chat-completions body that the demo model reads."""

    messages: list[_Message]
    tools: list[_Tool] = []


read_request = msgspec.json.Decoder(DemoRequest).decode


def _summary(request: DemoRequest) -> DemoReply | None:
    """Replies to a summary request with the first words of some of the messages."""
    if not any(message.role == "system" and message.text.startswith(SUMMARY_TASK) for message in request.messages):
        return None
    given: Any = msgspec.json.decode(request.messages[-1].text)
    said = [(each.get("message") or f"summary {each.get('summary')}", each.get("text", "")) for each in given]
    chosen = said[:: max(1, len(said) // SUMMARY_LINES)][:SUMMARY_LINES]
    return DemoReply(text="\n".join(f"({place}) {' '.join(text[:60].split())}" for place, text in chosen if text))


def _learnt(request: DemoRequest) -> DemoReply | None:
    """Replies to the request for notes at the end of a conversation with whatever the user wrote after `note:`."""
    if not any(message.role == "system" and message.text.startswith(NOTES_TASK) for message in request.messages):
        return None
    given: Any = msgspec.json.decode(request.messages[-1].text)
    said = [each["text"] for each in given["conversation"] if each["by"] == "person"]
    found = [match[1].strip() for text in said for match in re.finditer(r"(?im)\bnote:(.+)$", text)]
    return DemoReply(text=msgspec.json.encode([each for each in found if each not in given["notes"]]).decode())


def reply(request: DemoRequest) -> DemoReply:
    if (side_call := _summary(request) or _learnt(request)) is not None:
        return side_call
    asked = max((place for place, message in enumerate(request.messages) if message.is_users), default=-1)
    if asked < 0:
        return DemoReply(text=GREETING)
    said = request.messages[asked].text.strip()
    since = request.messages[asked + 1 :]
    if any(message.role == "tool" for message in since) and not re.match(r"(?i)loop\b", said):
        return _report(since)
    remembered = _remember(said, request)
    return (
        _delegate(said, request)
        or remembered
        or _skill(said, request)
        or _tools(said, request)
        or _effects(said)
        or _conversation(said, request, asked)
    )


def _report(since: list[_Message]) -> DemoReply:
    names = {call.id: call.function.name for message in since for call in message.tool_calls}
    results = [(names.get(message.tool_call_id, "A tool"), message.text) for message in since if message.role == "tool"]
    if len(results) == 1 and _tells_time(results[0][0]):
        return DemoReply(text=f"The clock says: {results[0][1]}")
    told = [f"{name} gave me this:\n{result}" for name, result in results]
    given = [each for message in since for each in message.given]
    return DemoReply(text="\n\n".join([*told, f"I was given {_and(given)}."] if given else told))


def _tells_time(name: str) -> bool:
    return "clock" in name or "time" in name


def _tools(said: str, request: DemoRequest) -> DemoReply | None:
    """Returns the tool calls for a request in plain words, or a reply that says that the tool is missing. Returns None
    for other requests."""
    made = sum(len(message.tool_calls) for message in request.messages)
    wanted: list[tuple[str, str]] = []
    if re.search(r"(?i)\bwhat(?:'s| is)? (?:the )?(?:time|date|day)\b|\bwhat time is it\b", said):
        wanted = _clock(said, request)
        if not wanted:
            return DemoReply(text="I would look at the clock, but this agent has no clock tool.")
    elif found := re.match(r"(?i)read (?:the )?(?:file )?[\"'`]?([^\s\"'`]++)[\"'`]?(?: from line (\d+))?\W*$", said):
        if not any(tool.function.name == "read_file" for tool in request.tools):
            return DemoReply(text="I would read the file, but this agent has no read_file tool.")
        arguments: dict[str, object] = {"path": found[1]}
        if found[2]:
            arguments["offset"] = max(0, int(found[2]) - 1)
        wanted = [("read_file", msgspec.json.encode(arguments).decode())]
    elif found := re.match(r"(?is)(?:run |\$ )\s*(\S.*)$", said):
        if not any(tool.function.name == "terminal" for tool in request.tools):
            return DemoReply(text="I would run that, but this agent has no terminal tool.")
        wanted = [("terminal", msgspec.json.encode({"command": found[1]}).decode())]
    elif (looked := _lookup(said)) is not None:
        if not any(tool.function.name == looked[0] for tool in request.tools):
            return DemoReply(text=f"I would look that up, but this agent has no {looked[0]} tool.")
        wanted = [looked]
    elif found := re.match(r"(?i)ask me (\S[^?]*\?)\s*+(.*)$", said):
        if not any(tool.function.name == "ask_user" for tool in request.tools):
            return DemoReply(text="I would ask you, but this agent has no ask_user tool.")
        choices = [choice.strip() for choice in found[2].split(",") if choice.strip()]
        wanted = [("ask_user", msgspec.json.encode({"question": found[1], "choices": choices}).decode())]
    elif re.match(r"(?i)(?:call|loop) ", said):
        pieces = re.split(r";\s*(?:call )?", said.partition(" ")[2])
        for piece in pieces:
            name, _, given = piece.strip().partition(" ")
            wanted.append((name, given.strip() or "{}"))
    calls = tuple(
        ToolCall(id=f"call_demo_{made + place}", name=name, arguments=given)
        for place, (name, given) in enumerate(wanted, 1)
    )
    return DemoReply(calls=calls) if calls else None


def _delegate(said: str, request: DemoRequest) -> DemoReply | None:
    """Handles `delegate to NAME: TASK`. Several of these, separated by `;`, are delegated in one step."""
    tasks = [
        re.match(r"(?is)delegate to (\S+?):\s*(\S.*)$", part) for part in re.split(r"(?i);\s*(?=delegate to )", said)
    ]
    if not all(tasks):
        return None
    if not any(tool.function.name == "delegate" for tool in request.tools):
        return DemoReply(text="I would give that to another agent, but this agent has no delegate tool.")
    made = sum(len(message.tool_calls) for message in request.messages)
    given = [{"agent": found[1], "task": found[2]} for found in tasks if found is not None]
    return DemoReply(
        calls=tuple(
            ToolCall(id=f"call_demo_{made + place}", name="delegate", arguments=msgspec.json.encode(each).decode())
            for place, each in enumerate(given, 1)
        )
    )


def _remember(said: str, request: DemoRequest) -> DemoReply | None:
    """Handles `remember that WORDS`, `remember for everybody that WORDS`, `forget note N` and `what do you
    remember`."""
    if re.match(r"(?i)what do you remember\b", said):
        lines = [line for message in request.messages if message.role == "system" for line in message.text.split("\n")]
        noted = [line for line in lines if re.match(r"- \d+ \([^)]*\): ", line)]
        return DemoReply(text="\n".join(["I remember:", *noted]) if noted else "I remember nothing.")
    if found := re.match(r"(?is)remember (for everybody )?(?:that )?(\S.*)$", said):
        about = "agent" if found[1] else "person"
        name, arguments = "remember", msgspec.json.encode({"text": found[2], "about": about}).decode()
    elif found := re.match(r"(?i)forget note (\d{1,9})\W*$", said):
        name, arguments = "forget", msgspec.json.encode({"note": int(found[1])}).decode()
    else:
        return None
    if not any(tool.function.name == name for tool in request.tools):
        return DemoReply(text=f"I would {name} that, but this agent has no {name} tool.")
    made = sum(len(message.tool_calls) for message in request.messages)
    return DemoReply(calls=(ToolCall(id=f"call_demo_{made + 1}", name=name, arguments=arguments),))


def _skill(said: str, request: DemoRequest) -> DemoReply | None:
    """Handles `use skill NAME` and `use skill NAME file PATH`."""
    found = re.match(r"(?i)use (?:the )?skill ([a-z0-9-]+)(?: file (\S+))?[.!]?$", said)
    if found is None:
        return None
    if not any(tool.function.name == "skill" for tool in request.tools):
        return DemoReply(text="I would use the skill, but this agent has no skill tool.")
    made = sum(len(message.tool_calls) for message in request.messages)
    arguments = {"name": found[1].lower(), **({"file": found[2]} if found[2] else {})}
    given = msgspec.json.encode(arguments).decode()
    return DemoReply(calls=(ToolCall(id=f"call_demo_{made + 1}", name="skill", arguments=given),))


def _lookup(said: str) -> tuple[str, str] | None:
    """Returns the tool call that answers a question about earlier messages, or None for any other text."""
    if re.match(r"(?i)what did I say first\W*$", said):
        return "context_expand", '{"first":1}'
    if found := re.match(r"(?i)what (?:was|were) messages? (\d{1,9})(?: to (\d{1,9}))?\W*$", said):
        span = {"first": int(found[1])} | ({"last": int(found[2])} if found[2] else {})
        return "context_expand", msgspec.json.encode(span).decode()
    if found := re.match(r"(?is)search (everywhere )?for (\S.*)$", said):
        sought: dict[str, object] = {"query": found[2], **({"everywhere": True} if found[1] else {})}
        return "context_search", msgspec.json.encode(sought).decode()
    return None


def _clock(said: str, request: DemoRequest) -> list[tuple[str, str]]:
    for tool in request.tools:
        name = tool.function.name
        if not _tells_time(name):
            continue
        zone = re.search(r"\bin ([A-Za-z]+(?:/[A-Za-z_+\-0-9]+)+|UTC)", said)
        schema: Any = msgspec.json.decode(tool.function.parameters)
        known = schema.get("properties", {}) if isinstance(schema, dict) else {}
        key = next((key for key in ("zone", "timezone", "tz") if key in known), None)
        arguments = {key: zone[1]} if zone and key else {}
        return [(name, msgspec.json.encode(arguments).decode())]
    return []


def _effects(said: str) -> DemoReply | None:
    """Handles the commands that demonstrate how the gateway behaves."""
    if found := re.match(r"(?i)say\s+(.+)", said, re.DOTALL):
        return DemoReply(text=found[1])
    if found := re.match(r"(?i)count to (\d{1,9})\W*$", said):
        return DemoReply(count=min(int(found[1]), HIGHEST_COUNT))
    if found := re.match(r"(?i)long (\d{1,9})\W*$", said):
        return DemoReply(text="x" * min(int(found[1]), LONGEST_TEXT))
    if found := re.match(r"(?i)slow(?: (.+))?$", said, re.DOTALL):
        words = found[1] or "I am taking my time with this answer, one word after the other, as you asked me to."
        return DemoReply(text=words, pause=SLOW_PAUSE)
    if found := re.match(r"(?i)fail(?: (\w+))?\W*$", said):
        return DemoReply(fail=_KINDS.get((found[1] or "").lower(), "overloaded"))
    if re.match(r"(?i)stumble\b", said):
        return DemoReply(text="I stumbled, took it back, and this is the whole answer.", stumble=True)
    if re.match(r"(?i)silence\W*$", said):
        return DemoReply()
    return None


def _conversation(said: str, request: DemoRequest, asked: int) -> DemoReply:
    lowered = said.lower()
    if re.match(r"(help|what can you do)\b", lowered):
        return DemoReply(text=HELP)
    if re.search(r"who are you|what are you|real model|configure|set ?up|which model|demo", lowered):
        return DemoReply(text=CONFIGURE)
    if re.match(r"(hello|hi|hey|good (morning|evening|day))\b", lowered):
        return DemoReply(text=GREETING)
    if re.match(r"(thanks|thank you)\b", lowered):
        return DemoReply(text="You are welcome.")
    earlier = [message.text.strip() for message in request.messages[:asked] if message.is_users]
    if "did i say" in lowered:
        if not earlier:
            return DemoReply(text="This is the first thing you have said to me.")
        return DemoReply(text=f"Before this you said: {_shorten(earlier[-1])}")
    turns = len(earlier) + 1
    given = request.messages[asked].given
    if given:
        words = f', and said: "{_shorten(said)}"' if said else ""
        return DemoReply(
            text=f"You gave me {_and(given)}{words}. I am only the demo model; a real one could look or listen."
        )
    return DemoReply(
        text=f"You said: {_shorten(said)} (message {turns} of this conversation). "
        'I am only the demo model; say "help" for what I can do, or "configure" for how to use a real one.'
    )


def _size(data: str) -> int:
    """Returns the decoded size of base64 data, in bytes."""
    return len(data) // 4 * 3 - data[-2:].count("=")


def _and(things: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(things[:-1]), things[-1])))


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:199] + "…"
