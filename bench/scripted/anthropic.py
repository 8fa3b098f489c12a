"""The Messages format: answers as bytes, and the simulated prompt cache.

Requests are checked strictly (`anthropic_request`, `anthropic_rules`); answers are valid by the official types.
Thinking is signed, and accepted back only if it is unchanged. The cache contains the content before the marks of
earlier requests, within the look-back.
"""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from bench.scripted import anthropic_rules
from bench.scripted.anthropic_answer import (
    KINDS,
    PING,
    REQUEST_ID,
    SENTENCES,
    STOPPED,
    STREAM_KINDS,
    Said,
    block_events,
    blocks_of,
    ended,
    error_of,
    event_of,
    full_usage,
    input_of,
    started,
    stop_of,
    usage_of,
)
from bench.scripted.anthropic_request import (
    Block,
    CacheControl,
    Document,
    Image,
    Message,
    Redacted,
    Request,
    Text,
    Thinking,
    ThinkingAdaptive,
    ThinkingEnabled,
    ToolResult,
    Toolset,
    ToolUse,
    check_tools,
    read_request,
)
from bench.scripted.anthropic_thoughts import check_thoughts, thought_tail
from bench.scripted.interface import Asked, Refusal, Tokens
from bench.scripted.media import IMAGE_CHARACTERS
from bench.scripted.reuse import CHARACTERS_PER_TOKEN, Breakpoints
from bench.scripted.script import ANSWER, Plan, directs
from bench.scripted.toolset import Toolsets
from bench.scripted.wire import END, credential_of, event, framed, stream_head

VERSIONS = frozenset({"2023-06-01", anthropic_rules.NEWEST})
MESSAGE_CHARACTERS = 16
NO_TOOLS = Toolset(names=(), written=(), digests=(), marks=())
_encode = msgspec.json.encode


class Messages:
    """POST /v1/messages."""

    name = "anthropic"
    path = "/messages"
    identified = f"request-id: {REQUEST_ID}\r\n"
    head = stream_head(identified.encode())
    spoiled = event(b"content_block_delta", b'{"type": [oops')
    huge = (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",'
        b'"text":"',
        b'"}}\n\n',
    )

    def __init__(self) -> None:
        self.ledger = Breakpoints()
        self._toolsets = Toolsets(check_tools)
        self._canned = b""

    def admit(self, headers: dict[str, str], key: str | None) -> None:
        given = credential_of(headers).removeprefix("Bearer ")
        if not given:
            raise Refusal("x-api-key header is required", status=401)
        if key is not None and given != key:
            raise Refusal("invalid x-api-key", status=401)
        version = headers.get("anthropic-version")
        if version is None:
            raise Refusal("anthropic-version: header is required")
        if version not in VERSIONS:
            raise Refusal(f"anthropic-version: {version} is not a valid version")

    def read(self, body: bytes, headers: dict[str, str]) -> Asked:
        request = read_request(body)
        raw = bytes(request.tools)
        tools = self._toolsets.of(raw) if raw else NO_TOOLS
        anthropic_rules.check(request, tools, headers.get("anthropic-version", ""))
        bound = check_thoughts(request, tools)
        system = "\n".join(text.text for text in request.system_blocks())
        key, tokens = self._account(request, tools, system)
        messages = request.messages
        last = max((place for place, message in enumerate(messages) if _directs(message)), default=-1)
        return Asked(
            request=request,
            model=request.model,
            stream=request.stream,
            text=messages[last].text() if last >= 0 else "",
            last=last,
            names=tools.names,
            key=key,
            tokens=tokens,
            most=request.max_tokens,
            canned=request.stream
            and not request.thinks
            and not request.stop_sequences
            and request.max_tokens >= len(ANSWER),
            stops=request.stop_sequences,
            thinks=request.thinks,
            system=system,
            bound=bound,
        )

    def _account(self, request: Request, tools: Toolset, system: str) -> tuple[int, Tokens]:
        """Account for the cache block by block: tools, system, messages, in the provider's order."""
        digests, sizes = list(tools.digests), [len(text) for text in tools.written]
        found = list(tools.marks)
        for text in request.system_blocks():
            digests.append(hash(("system", text.text)))
            sizes.append(len(text.text))
            found.append(text.cache_control)
        frozen = len(digests)
        for message in request.messages:
            overhead = MESSAGE_CHARACTERS
            for block in message.blocks():
                digest, size = _measured(message.role, block)
                digests.append(digest)
                sizes.append(size + overhead)
                found.append(_mark_of(block))
                overhead = 0
        found[-1] = found[-1] or request.cache_control
        chain: list[int] = []
        entries: list[int] = []
        so_far, entry, characters = 0, hash(request.model), 0
        for place, digest in enumerate(digests):
            if place == frozen:
                # Other settings for thinking or tool choice invalidate the cached messages.
                entry = hash((entry, request.thinking, request.tool_choice))
            so_far, entry = hash((so_far, digest)), hash((entry, digest))
            characters += sizes[place]
            chain.append(so_far)
            entries.append(entry)
            sizes[place] = characters
        marks = [place for place, mark in enumerate(found) if mark is not None]
        tag = (request.metadata.user_id if request.metadata else None) or _first_words(request.messages)
        tag = system if self.ledger.by_prompt else tag
        key, read, written = self.ledger.note_marked(tag, chain, entries, sizes, marks)
        long = max((sizes[place] for place in marks if (mark := found[place]) and mark.ttl == "1h"), default=0)
        lasting = max(long // CHARACTERS_PER_TOKEN - read, 0)
        return key, Tokens(characters // CHARACTERS_PER_TOKEN, read, written, lasting)

    def step(self, asked: Asked) -> int:
        since = asked.request.messages[asked.last + 1 :]
        return sum(any(isinstance(block, ToolUse) for block in message.blocks()) for message in since)

    def said(self, asked: Asked) -> str:
        said: str = asked.request.messages[-1].text()
        return said

    def heard(self, asked: Asked) -> str:
        return "\n".join(message.text() for message in asked.request.messages)

    def call_id(self, asked: Asked, place: int) -> str:
        return f"toolu_{_tail(asked)}_{place}"

    # -- answers -------------------------------------------------------------------------------------------------------

    def plain(self, asked: Asked) -> bytes:
        middle = self._canned or self._can()
        last = ended(b'"end_turn"', b"null", usage_of(asked.tokens, len(ANSWER))) + STOPPED
        return b"".join((self.head, framed(_opening(asked)), middle, framed(last), END))

    def _can(self) -> bytes:
        events = b"".join(block_events(0, *block) for block in blocks_of("", "", Plan(ANSWER, [], "stop"), shown=True))
        self._canned = framed(events)
        return self._canned

    def beats(self, asked: Asked, plan: Plan) -> Iterator[bytes]:
        yield _opening(asked)
        before = b""
        for index, (begun, deltas, stops) in enumerate(_blocks(asked, plan)):
            before += event_of("content_block_start", {"index": index, "content_block": begun})
            if begun["type"] == "tool_use":
                yield before
                before = b""
            for delta in deltas:
                yield before + event_of("content_block_delta", {"index": index, "delta": delta})
                before = b""
            before += b"".join(event_of("content_block_delta", {"index": index, "delta": delta}) for delta in stops)
            before += event_of("content_block_stop", {"index": index})
        reason, details = stop_of(plan)
        usage = usage_of(asked.tokens, plan.tokens, len(plan.thoughts))
        yield before + ended(_encode(reason), details, usage, _encode(plan.stopped_by))

    def end(self, asked: Asked, plan: Plan, *, marked: bool) -> bytes:
        return STOPPED if marked else b""

    def whole(self, asked: Asked, plan: Plan) -> bytes:
        content: list[dict[str, Any]] = []
        for begun, deltas, stops in _blocks(asked, plan):
            block = dict(begun)
            for delta in (*deltas, *stops):
                kind = delta["type"]
                if kind == "input_json_delta":
                    block["partial"] = block.get("partial", "") + delta["partial_json"]
                else:
                    name = kind.removesuffix("_delta")
                    block[name] += delta[name]
            if (partial := block.pop("partial", None)) is not None:
                block["input"] = input_of(partial)
            content.append(block)
        reason, details = stop_of(plan)
        usage = msgspec.Raw(full_usage(asked.tokens, plan.tokens, len(plan.thoughts)))
        return _encode(
            {
                "id": f"msg_{_tail(asked)}",
                "type": "message",
                "role": "assistant",
                "model": asked.model,
                "content": content,
                "stop_reason": reason,
                "stop_sequence": plan.stopped_by,
                "stop_details": msgspec.Raw(details),
                "usage": usage,
            }
        )

    def error(
        self, status: int, message: str, *, code: str | None = None, kind: str | None = None, param: str | None = None
    ) -> bytes:
        if kind is None or kind == "scripted_error":
            kind = KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        if code is not None:
            message = f"{SENTENCES.get(code, code)}. {message}"
        return error_of(kind, message)

    def complaint(self, asked: Asked, plan: Plan, message: str, code: str, words: list[str]) -> bytes:
        return event(b"error", error_of(STREAM_KINDS.get(code, code), message))


def _directs(message: Message) -> bool:
    """Whether a message can contain directives: one with tool results only if it also has a user's text."""
    if message.role != "user":
        return False
    plain = isinstance(message.content, str)
    text = "" if plain else message.text()
    if not text and any(isinstance(block, ToolResult) for block in message.blocks()):
        return False
    return directs(text, plain=plain)


def _first_words(messages: tuple[Message, ...]) -> str:
    return next((message.text() for message in messages if message.role == "user"), "")


def _measured(role: str, block: Block) -> tuple[int, int]:
    """A hash of a block's content, without its mark, and its size in characters."""
    if isinstance(block, Text):
        return hash((role, block.text)), len(block.text)
    if isinstance(block, ToolResult):
        parts: Any = block.content
        size = len(parts) if isinstance(parts, str) else 0
        if isinstance(parts, tuple):
            measured = [_measured(role, part) for part in parts]
            parts, size = tuple(digest for digest, _ in measured), sum(size for _, size in measured)
        return hash(("result", block.tool_use_id, parts, block.is_error)), size
    if isinstance(block, ToolUse):
        given = json.dumps(block.input, sort_keys=True)
        return hash(("use", block.id, block.name, given)), len(block.name) + len(given)
    if isinstance(block, Image):
        return hash(("image", block.source)), IMAGE_CHARACTERS
    if isinstance(block, Document):
        return hash(("document", block.source)), len(block.source.data)
    if isinstance(block, Thinking):
        return hash(block), len(block.thinking)
    return hash(block), len(block.data)


def _mark_of(block: Block) -> CacheControl | None:
    """The block's own mark, or one inside a tool result."""
    if isinstance(block, Thinking | Redacted):
        return None
    if isinstance(block, ToolResult) and isinstance(block.content, tuple):
        inside = (part.cache_control for part in block.content if part.cache_control is not None)
        return block.cache_control or next(inside, None)
    return block.cache_control


def _shows(request: Request) -> bool:
    thinking = request.thinking
    return not (isinstance(thinking, ThinkingEnabled | ThinkingAdaptive) and thinking.display == "omitted")


def _tail(asked: Asked) -> str:
    """A suffix that makes the ids of one answer unique: its position, and the size before it."""
    return f"{len(asked.request.messages)}_{asked.tokens.prompt}"


def _opening(asked: Asked) -> bytes:
    return started(f"msg_{_tail(asked)}", asked.model, asked.tokens) + PING


def _blocks(asked: Asked, plan: Plan) -> Iterator[Said]:
    return blocks_of(asked.model, thought_tail(asked.bound, _tail(asked)), plan, shown=_shows(asked.request))
