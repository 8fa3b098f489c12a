"""Rules of the Messages format beyond types: order of turns, pairs of calls and results, cache marks, parameters.

`check` raises Refusal where the provider does, with the location first (`messages.1.content.0: …`). It keeps nothing.
"""

import re

from bench.scripted.anthropic_request import (
    Block,
    CacheControl,
    ChoiceAny,
    ChoiceTool,
    Document,
    Image,
    Message,
    Redacted,
    Request,
    Text,
    Thinking,
    ThinkingEnabled,
    ToolResult,
    Toolset,
    ToolUse,
    UrlSource,
)
from bench.scripted.interface import Refusal
from bench.scripted.media import check_image, check_pdf

NEWEST = "2026-10-21"
LEAST_BUDGET = 1024
LONGEST_USER = 256
MOST_MARKS = 4
_ID = re.compile(r"^[a-zA-Z0-9_-]+$")
_CALL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,200}$")
_OF_USERS = (Text, Image, Document, ToolResult)
_OF_ASSISTANTS = (Text, ToolUse, Thinking, Redacted)


def check(request: Request, tools: Toolset, version: str) -> None:
    if version == NEWEST:
        _check_newest(request)
    _check_parameters(request, tools)
    for place, block in enumerate(request.system_blocks()):
        if not block.text:
            raise Refusal(f"system.{place}: text content blocks must be non-empty")
    _check_turns(request)
    _check_calls(request.messages)
    _check_marks(request, tools)


def _check_newest(request: Request) -> None:
    """Refuse fields that this version of the API no longer accepts."""
    for name in ("temperature", "top_p", "top_k"):
        if getattr(request, name) is not None:
            raise Refusal(f"{name}: Extra inputs are not permitted")
    for place, message in enumerate(request.messages):
        if message.role == "user" and any(isinstance(block, Text) and block.citations for block in message.blocks()):
            raise Refusal(f"messages.{place}: `citations` are not permitted in user messages")


def _check_parameters(request: Request, tools: Toolset) -> None:
    if request.max_tokens < 1:
        raise Refusal("max_tokens: Input should be greater than or equal to 1")
    if request.temperature is not None and not 0 <= request.temperature <= 1:
        raise Refusal("temperature: range: 0..1")
    if request.top_p is not None and not 0 <= request.top_p <= 1:
        raise Refusal("top_p: range: 0..1")
    if request.temperature is not None and request.top_p is not None:
        raise Refusal("`temperature` and `top_p` cannot both be specified for this model")
    if request.metadata is not None and len(request.metadata.user_id or "") > LONGEST_USER:
        raise Refusal(f"metadata.user_id: String should have at most {LONGEST_USER} characters")
    if request.tool_choice is not None and not tools.names:
        raise Refusal("tool_choice: may only be given together with `tools`")
    if isinstance(request.tool_choice, ChoiceTool) and request.tool_choice.name not in tools.names:
        raise Refusal(f"tool_choice: tool '{request.tool_choice.name}' is not among the `tools`")
    if request.top_k is not None and request.top_k < 0:
        raise Refusal("top_k: Input should be greater than or equal to 0")
    if any(not sequence.strip() for sequence in request.stop_sequences):
        raise Refusal("stop_sequences: each stop sequence must contain non-whitespace")
    if isinstance(request.thinking, ThinkingEnabled):
        budget = request.thinking.budget_tokens
        if budget < LEAST_BUDGET:
            raise Refusal(f"thinking.enabled.budget_tokens: Input should be greater than or equal to {LEAST_BUDGET}")
        if budget >= request.max_tokens:
            raise Refusal("`max_tokens` must be greater than `thinking.budget_tokens`")
    if not request.thinks:
        return
    if request.temperature not in (None, 1):
        raise Refusal("`temperature` may only be set to 1 when thinking is enabled")
    if request.top_k is not None:
        raise Refusal("`top_k` must be unset when thinking is enabled")
    if request.top_p is not None and request.top_p < 0.95:
        raise Refusal("`top_p` must be at least 0.95 when thinking is enabled")
    if isinstance(request.tool_choice, ChoiceAny | ChoiceTool):
        raise Refusal("Thinking may not be enabled when tool_choice forces tool use")


def _check_turns(request: Request) -> None:
    messages = request.messages
    if not messages:
        raise Refusal("messages: at least one message is required")
    if messages[0].role != "user":
        raise Refusal("messages: first message must use the user role")
    for place, message in enumerate(messages):
        if isinstance(message.content, str):
            _check_text(message.content, f"messages.{place}")
            continue
        if not message.content:
            raise Refusal(f"messages.{place}: all messages must have non-empty content")
        allowed = _OF_USERS if message.role == "user" else _OF_ASSISTANTS
        for index, block in enumerate(message.content):
            where = f"messages.{place}.content.{index}"
            if not isinstance(block, allowed):
                raise Refusal(f"{where}: such a block is not permitted in {message.role} messages")
            _check_block(block, where)
    if messages[-1].role != "user":
        raise Refusal("This model does not support assistant message prefill; the last message must be a user's")


def _check_block(block: Block, where: str) -> None:
    if isinstance(block, Text):
        _check_text(block.text, where)
    elif isinstance(block, Image):
        _check_image(block, where)
    elif isinstance(block, Document):
        check_pdf(block.source.data, where)
    elif isinstance(block, ToolUse):
        if not _ID.match(block.id):
            raise Refusal(f"{where}.tool_use.id: String should match pattern '{_ID.pattern}'")
        if not _CALL_NAME.match(block.name):
            raise Refusal(f"{where}.tool_use.name: String should match pattern '{_CALL_NAME.pattern}'")
    elif isinstance(block, ToolResult) and isinstance(block.content, tuple):
        for index, part in enumerate(block.content):
            if block.is_error and not isinstance(part, Text):
                raise Refusal(f"{where}.tool_result: all content must be type `text` if `is_error` is true")
            _check_block(part, f"{where}.tool_result.content.{index}")


def _check_text(text: str, where: str) -> None:
    if not text:
        raise Refusal(f"{where}: text content blocks must be non-empty")
    if text.isspace():
        raise Refusal(f"{where}: text content blocks must contain non-whitespace text")


def _check_image(block: Image, where: str) -> None:
    if isinstance(block.source, UrlSource):
        raise Refusal(f"{where}.image.source.url: the file could not be downloaded")
    try:
        check_image(block.source.media_type, block.source.data, where)
    except Refusal as refusal:
        raise Refusal(f"{where}.image.source.base64: {refusal.message}") from refusal


def _check_calls(messages: tuple[Message, ...]) -> None:
    """Each call has exactly one result at the start of the next message, and each result has its call."""
    seen: set[str] = set()
    waiting: list[str] = []
    for place, message in enumerate(messages):
        answered: set[str] = set()
        calls: list[str] = []
        leading = True
        for index, block in enumerate(message.blocks()):
            where = f"messages.{place}.content.{index}"
            if isinstance(block, ToolUse):
                if block.id in seen:
                    raise Refusal(f"{where}: `tool_use` ids must be unique")
                seen.add(block.id)
                calls.append(block.id)
            elif not isinstance(block, ToolResult):
                leading = False
            elif block.tool_use_id not in waiting:
                raise Refusal(
                    f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {block.tool_use_id}. "
                    "The message before has no such `tool_use` block"
                )
            elif block.tool_use_id in answered:
                raise Refusal(f"{where}: each tool_use must have a single result; twice: {block.tool_use_id}")
            elif leading:
                answered.add(block.tool_use_id)
        _check_answered(waiting, answered, place - 1)
        waiting = calls
    _check_answered(waiting, set(), len(messages) - 1)


def _check_answered(waiting: list[str], answered: set[str], place: int) -> None:
    if missing := [one for one in waiting if one not in answered]:
        raise Refusal(
            f"messages.{place}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)}. The next message must begin with a `tool_result` for each of them"
        )


def _marks_of(request: Request) -> list[CacheControl]:
    """All cache marks except those of tools, in the order of the request, including those inside tool results."""
    found: list[CacheControl | None] = [block.cache_control for block in request.system_blocks()]
    for message in request.messages:
        if isinstance(message.content, str):
            continue
        for block in message.content:
            if isinstance(block, ToolResult) and isinstance(block.content, tuple):
                found.extend(part.cache_control for part in block.content)
            if isinstance(block, Text | Image | Document | ToolUse | ToolResult):
                found.append(block.cache_control)
    found.append(request.cache_control)
    return [mark for mark in found if mark is not None]


def _check_marks(request: Request, tools: Toolset) -> None:
    marks = [mark for mark in tools.marks if mark is not None] + _marks_of(request)
    if len(marks) > MOST_MARKS:
        raise Refusal(f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {len(marks)}.")
    lives = [mark.ttl for mark in marks]
    if "5m" in lives and "1h" in lives[lives.index("5m") :]:
        raise Refusal("a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block")
