"""What the scripted model server reads and writes: strict requests, its little script language, answers as bytes.

Guarantee: a request that a strict provider would refuse raises Refusal; how much of each conversation's previous
request came again is counted in bounded memory; the rest is pure functions and values.
"""

import base64
import binascii
import json
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

ANSWER = ("The tide", " comes in,", " the gate", " keeps", " the level.")

# Conversations whose last request is remembered, as a hash and a length.
CONVERSATIONS = 50_000
VIOLATIONS = 20
CHARACTERS_PER_TOKEN = 4
# What a message costs beside its content.
MESSAGE_CHARACTERS = 16
IMAGE_CHARACTERS = 6400
IMAGE_BYTES = 5 * 1024 * 1024
# The kinds that are taken, each with how its bytes begin.
IMAGES = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff", "gif": b"GIF8", "webp": b"RIFF"}
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
STEPS = frozenset({"tool", "together", "badargs", "unknowntool"})
_TOOL_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
_DATA_URL = re.compile(r"data:image/(png|jpeg|gif|webp);base64,")
_OPENING = re.compile(r"\[([a-z]+)")
_json = json.JSONDecoder()


class Refusal(Exception):
    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status


# -- the request, as strict as it can be typed -------------------------------------------------------------------------


NOTE = "[Note from the gateway"
"""How a note begins that the gateway adds of its own accord."""

OBEY = "[obey]"
"""In a note: it directs all the same, since a test has put it there."""


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Text(_Strict, frozen=True, tag_field="type", tag="text"):
    text: str


class ImageUrl(_Strict, frozen=True):
    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class Image(_Strict, frozen=True, tag_field="type", tag="image_url"):
    image_url: ImageUrl


class Function(_Strict, frozen=True):
    name: str
    arguments: str


class ToolCall(_Strict, frozen=True):
    id: str
    function: Function
    type: Literal["function"] = "function"


class Message(_Strict, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[Text | Image, ...] | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def text(self) -> str:
        content = self.content
        if isinstance(content, str):
            return content
        return "\n".join(part.text for part in content if isinstance(part, Text)) if content else ""

    def images(self) -> list[Image]:
        return [part for part in self.content or () if isinstance(part, Image)]

    def directs(self) -> bool:
        """Whether it is a person's: a message that is nothing but a note of the gateway gives no directions, unless it
        says so."""
        text = "" if isinstance(self.content, str) else self.text()
        return self.role == "user" and (not text.startswith(NOTE) or OBEY in text)


class StreamOptions(_Strict, frozen=True):
    include_usage: bool = False


class Request(_Strict, frozen=True):
    model: str
    messages: tuple[Message, ...]
    stream: bool = False
    stream_options: StreamOptions | None = None
    tools: msgspec.Raw = msgspec.Raw()
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    response_format: Any = None
    seed: int | None = None
    n: int | None = None


class ToolFunction(_Strict, frozen=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Strict, frozen=True):
    type: Literal["function"]
    function: ToolFunction


read_request = msgspec.json.Decoder(Request).decode
_tools = msgspec.json.Decoder(list[Tool]).decode


def check_messages(messages: tuple[Message, ...]) -> None:
    """Raises Refusal where a provider would: balance of calls and results, and nothing empty."""
    if not messages:
        raise Refusal("'messages' must not be empty.", param="messages")
    open_calls: set[str] = set()
    for place, message in enumerate(messages):
        where = f"messages.[{place}]"
        role = message.role
        if role == "tool":
            if message.tool_call_id is None or message.tool_call_id not in open_calls:
                raise Refusal(
                    "messages with role 'tool' must be a response to a preceding message with 'tool_calls', once each.",
                    param=where,
                )
            if message.content is None or message.images():
                raise Refusal("a tool result needs content, and takes text only.", param=where)
            open_calls.discard(message.tool_call_id)
            continue
        if open_calls:
            raise Refusal(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. Not answered: {', '.join(sorted(open_calls))}",
                param=where,
            )
        if message.tool_call_id is not None:
            raise Refusal("only a tool message has a 'tool_call_id'.", param=where)
        if role != "assistant":
            if message.tool_calls is not None:
                raise Refusal("only an assistant message has 'tool_calls'.", param=where)
            images = message.images()
            if not message.text().strip() and not images:
                raise Refusal(f"a {role} message must not be empty.", param=where)
            if images:
                check_images(images, role, where)
        elif message.tool_calls is not None:
            open_calls = {call.id for call in message.tool_calls}
            if not open_calls or len(open_calls) != len(message.tool_calls):
                raise Refusal("'tool_calls' must not be empty, and each id must be its own.", param=where)
        elif message.content is None:
            raise Refusal("an assistant message needs content or 'tool_calls'.", param=where)
    if open_calls:
        raise Refusal(f"tool calls without results: {', '.join(sorted(open_calls))}", param="messages")


def check_images(images: list[Image], role: str, where: str) -> None:
    """Raises Refusal for what is no picture in the request itself: an address, an unknown kind, other bytes."""
    if role != "user":
        raise Refusal("only a user message may contain images.", param=where)
    for image in images:
        found = _DATA_URL.match(image.image_url.url)
        if found is None:
            raise Refusal("Invalid image: a base64 data URL of a PNG, JPEG, GIF or WebP is needed.", param=where)
        try:
            data = base64.b64decode(image.image_url.url[found.end() :], validate=True)
        except binascii.Error:
            raise Refusal("Invalid image: its base64 is broken.", param=where) from None
        if not data.startswith(IMAGES[found[1]]):
            raise Refusal(f"Invalid image: it is not what it says, {found[1]}.", param=where)
        if len(data) > IMAGE_BYTES:
            raise Refusal(f"Invalid image: it is larger than {IMAGE_BYTES} bytes.", param=where)


def check_tools(raw: bytes) -> tuple[tuple[str, ...], int]:
    """The names, and a hash of the canonical content."""
    tools = _tools(raw)
    names = tuple(tool.function.name for tool in tools)
    for name in names:
        if not _TOOL_NAME.match(name):
            raise Refusal(f"Invalid tool name {name!r}.", param="tools")
    if len(set(names)) != len(names):
        doubled = sorted(name for name, times in Counter(names).items() if times > 1)
        raise Refusal(f"Tool names must be unique; twice: {', '.join(doubled)}.", param="tools")
    if not names:
        raise Refusal("'tools' must not be an empty list.", param="tools")
    return names, hash(json.dumps(msgspec.json.decode(raw), sort_keys=True))


def tokens_of(messages: tuple[Message, ...]) -> int:
    """About as a provider counts them: by content, however the request was written."""
    size = 0
    for message in messages:
        content = message.content
        if isinstance(content, str):
            size += MESSAGE_CHARACTERS + len(content)
        else:
            size += MESSAGE_CHARACTERS + len(message.text()) + IMAGE_CHARACTERS * len(message.images())
        if message.tool_calls is not None:
            size += sum(len(call.function.name) + len(call.function.arguments) for call in message.tool_calls)
    return size // CHARACTERS_PER_TOKEN


# -- reuse of prefixes -------------------------------------------------------------------------------------------------


class Reuse:
    """Whether each conversation's previous request is the beginning of its next one."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._last: OrderedDict[int, tuple[int, int, int, int]] = OrderedDict()
        self.seen = 0
        self.followups = 0
        self.whole = 0
        self.repeats = 0
        self.violations: deque[dict[str, Any]] = deque(maxlen=VIOLATIONS)

    def note(self, request: Request, tools: int, tokens: int) -> tuple[int, int]:
        """Takes one request; returns the conversation and how many of its tokens a provider would have cached."""
        messages = request.messages
        tag = request.user or (request.metadata or {}).get("conversation")
        first = tag or next((message.text() for message in messages if message.role == "user"), "")
        key = hash(first)
        last = self._last.get(key)
        cached = 0
        if last is None:
            self.seen += 1
            if len(self._last) >= CONVERSATIONS:
                self._last.popitem(last=False)
        else:
            self._last.move_to_end(key)
            count, digest, old_tools, old_tokens = last
            same_messages = count <= len(messages) and hash(messages[:count]) == digest
            if same_messages and old_tools == tools:
                cached = min(old_tokens, tokens)
                if count == len(messages):
                    self.repeats += 1
                else:
                    self.followups += 1
                    self.whole += 1
            else:
                self.followups += 1
                reason = "messages changed" if not same_messages else "tools changed"
                if count > len(messages):
                    reason = "messages went missing"
                self.violations.append(
                    {"conversation": first[:80], "reason": reason, "before": count, "now": len(messages)}
                )
        self._last[key] = (len(messages), hash(messages), tools, tokens)
        return key, cached

    def view(self) -> dict[str, Any]:
        return {
            "conversations": self.seen,
            "followups": self.followups,
            "repeats": self.repeats,
            "whole_prefix": self.whole,
            "reuse": self.whole / self.followups if self.followups else 1.0,
            "violations": list(self.violations),
        }


# -- the script --------------------------------------------------------------------------------------------------------


class Directive:
    """`[name word word key=value {json}]`; the text of JSON is kept verbatim."""

    __slots__ = ("name", "options", "words")

    def __init__(self, name: str, items: list[str]) -> None:
        self.name = name
        self.words = [item for item in items if item[:1] == "{" or "=" not in item]
        self.options = dict(item.split("=", 1) for item in items if item[:1] != "{" and "=" in item)

    def number(self, option: str, default: float) -> float:
        return float(self.options.get(option, default))

    def calls(self) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        for word in self.words:
            if word[0] == "{" and pairs:
                pairs[-1] = (pairs[-1][0], word)
            else:
                pairs.append((word, "{}"))
        return pairs


def read_script(text: str) -> list[Directive]:
    found: list[Directive] = []
    position = 0
    while opening := _OPENING.search(text, position):
        position = opening.end()
        items: list[str] = []
        while position < len(text) and text[position] != "]":
            if text[position].isspace():
                position += 1
                continue
            end = position
            if text[position] == "{":
                try:
                    _, end = _json.raw_decode(text, position)
                except json.JSONDecodeError:
                    break
            else:
                while end < len(text) and not text[end].isspace() and text[end] != "]":
                    end += 1
            items.append(text[position:end])
            position = end
        if position < len(text) and text[position] == "]":
            found.append(Directive(opening[1], items))
    return found


class Plan:
    """One answer: its pieces, and what is to go wrong."""

    __slots__ = ("calls", "faults", "finish", "pieces")

    def __init__(self, pieces: tuple[str, ...], calls: list[tuple[str, str, str]], finish: str) -> None:
        self.pieces, self.calls, self.finish = pieces, calls, finish
        self.faults: dict[str, Directive] = {}


# -- bytes -------------------------------------------------------------------------------------------------------------


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event_of(model: bytes, delta: bytes, finish: bytes = b"null") -> bytes:
    return (
        b'data: {"id":"chatcmpl-scripted","object":"chat.completion.chunk","created":1700000000,"model":%b,'
        b'"choices":[{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}],"usage":null}\n\n'
        % (model, delta, finish)
    )


def usage_of(prompt: int, cached: int, output: int) -> bytes:
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}'
        % (prompt, output, prompt + output, cached)
    )


def usage_event_of(model: bytes, usage: bytes) -> bytes:
    return (
        b'data: {"id":"chatcmpl-scripted","object":"chat.completion.chunk","created":1700000000,"model":%b,'
        b'"choices":[],"usage":%b}\n\n' % (model, usage)
    )


def reply_of(
    status: int, body: bytes, *, kind: str = "application/json", extra: str = "", close: bool = False
) -> bytes:
    head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}"
    return head.encode() + (b"Connection: close\r\n\r\n" if close else b"\r\n") + body


def error_of(
    message: str, *, param: str | None = None, code: str | None = None, kind: str = "invalid_request_error"
) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def events_of(plan: Plan, model: bytes) -> Iterator[bytes]:
    encode = msgspec.json.encode
    yield event_of(model, b'{"role":"assistant","content":%b}' % (b'""' if plan.pieces else b"null"))
    for piece in plan.pieces:
        yield event_of(model, b'{"content":%b}' % encode(piece))
    for place, (identity, name, arguments) in enumerate(plan.calls):
        begun = {"index": place, "id": identity, "type": "function", "function": {"name": name, "arguments": ""}}
        yield event_of(model, encode({"tool_calls": [begun]}))
        half = len(arguments) // 2
        for part in (arguments[:half], arguments[half:]):
            if part:
                yield event_of(model, encode({"tool_calls": [{"index": place, "function": {"arguments": part}}]}))
    yield event_of(model, b"{}", encode(plan.finish))


def completion_of(plan: Plan, model: bytes, usage: bytes) -> bytes:
    calls = [
        {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
        for identity, name, arguments in plan.calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(plan.pieces) or None, "refusal": None}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": plan.finish}
    return (
        b'{"id":"chatcmpl-scripted","object":"chat.completion","created":1700000000,"model":%b,"choices":[%b],"usage":%b}'
        % (
            model,
            msgspec.json.encode(choice),
            usage,
        )
    )
