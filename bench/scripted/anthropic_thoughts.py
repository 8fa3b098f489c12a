"""Thinking that comes back in the Messages format: signed, by the same model, as it was, where it was.

Guarantee: `check_thoughts` raises Refusal for what the provider refuses of thinking, and keeps nothing. A thought of a
model that decides itself when to think is bound to all that was said before it, as those of the newest models are:
tools, system and messages, but not the marks for a cache.
"""

import hashlib

import msgspec

from bench.scripted.anthropic_request import (
    Block,
    Message,
    Redacted,
    Request,
    Thinking,
    ThinkingAdaptive,
    ThinkingEnabled,
    ToolResult,
    Toolset,
    ToolUse,
)
from bench.scripted.interface import Refusal
from bench.scripted.seal import is_signature, signed_tail, unsealed

_DIGEST_BYTES = 8
_BOUND = "b"


def check_thoughts(request: Request, tools: Toolset) -> str:
    """Returns what a thought that follows is bound to; empty if it is to nothing."""
    adaptive = isinstance(request.thinking, ThinkingAdaptive)
    if isinstance(request.thinking, ThinkingEnabled):
        _check_turn_begins_with_a_thought(request.messages)
    thoughtful = [
        place
        for place, message in enumerate(request.messages)
        if message.role == "assistant" and any(isinstance(block, Thinking | Redacted) for block in message.blocks())
    ]
    if not thoughtful and not adaptive:
        return ""
    for place in thoughtful:
        if isinstance(request.messages[place].blocks()[-1], Thinking | Redacted):
            raise Refusal(f"messages.{place}: the final block in an assistant message cannot be `thinking`")
    before = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for text in (*tools.written, *(block.text for block in request.system_blocks())):
        before.update(msgspec.json.encode(text))
    for place, message in enumerate(request.messages):
        for index, block in enumerate(message.blocks()):
            if isinstance(block, Thinking | Redacted):
                _check_thought(block, request.model, before.hexdigest(), f"messages.{place}.content.{index}")
            before.update(message.role.encode())
            before.update(_content(block))
    return before.hexdigest() if adaptive else ""


def redacted_of(model: str, tail: str, thought: str) -> str:
    """What is sealed in a redacted block."""
    return f"{model}\0{tail}\0{thought}"


def thought_tail(bound: str, tail: str) -> str:
    """By which a thought is one answer's own, and bound to what was before it."""
    return f"{_BOUND}{bound}_{tail}" if bound else tail


def _check_thought(block: Thinking | Redacted, model: str, before: str, where: str) -> None:
    if isinstance(block, Thinking):
        if not is_signature(block.signature, model, block.thinking):
            raise Refusal(f"{where}: Invalid `signature` in `thinking` block")
        tail = signed_tail(block.signature)
    else:
        maker, _, rest = (unsealed(block.data) or "").partition("\0")
        if not rest or maker != model:
            raise Refusal(f"{where}: Invalid `data` in `redacted_thinking` block")
        tail = rest.partition("\0")[0]
    if tail.startswith(_BOUND) and tail.partition("_")[0] != _BOUND + before:
        raise Refusal(
            f"{where}: Invalid `signature` in `thinking` block. The block is bound to a different conversation"
        )


def _content(block: Block) -> bytes:
    """Without marks."""
    if isinstance(block, ToolResult) and isinstance(block.content, tuple):
        parts = tuple(msgspec.structs.replace(part, cache_control=None) for part in block.content)
        block = msgspec.structs.replace(block, content=parts)
    if not isinstance(block, Thinking | Redacted):
        block = msgspec.structs.replace(block, cache_control=None)
    return msgspec.json.encode(block, order="sorted")


def _check_turn_begins_with_a_thought(messages: tuple[Message, ...]) -> None:
    """Only while tools are being used: the last answer, if what follows it has the results of its calls."""
    place = max((place for place, message in enumerate(messages) if message.role == "assistant"), default=-1)
    if not any(isinstance(block, ToolResult) for message in messages[place + 1 :] for block in message.blocks()):
        return
    first = messages[place].blocks()[0]
    if not isinstance(first, Thinking | Redacted):
        kind = "tool_use" if isinstance(first, ToolUse) else "text"
        raise Refusal(
            f"messages.{place}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{kind}`. When `thinking` is enabled, a final `assistant` message must start with a thinking block"
        )
