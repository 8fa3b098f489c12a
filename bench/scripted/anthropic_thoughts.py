"""Returned thinking in the Messages format: it must be signed by the same model, unchanged and at its position.

`check_thoughts` raises Refusal where the provider does, and keeps nothing. Thinking of a model that decides when to
think is bound to everything before it, as with the newest models: tools, system and messages, but not cache marks.
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
    """Check returned thinking. Returns the digest that the next thinking is bound to; empty if it is not bound."""
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
    """The sealed content of a redacted block."""
    return f"{model}\0{tail}\0{thought}"


def thought_tail(bound: str, tail: str) -> str:
    """The signature's suffix, which ties thinking to one answer and to everything before it."""
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
    """A block's content without cache marks."""
    if isinstance(block, ToolResult) and isinstance(block.content, tuple):
        parts = tuple(msgspec.structs.replace(part, cache_control=None) for part in block.content)
        block = msgspec.structs.replace(block, content=parts)
    if not isinstance(block, Thinking | Redacted):
        block = msgspec.structs.replace(block, cache_control=None)
    return msgspec.json.encode(block, order="sorted")


def _check_turn_begins_with_a_thought(messages: tuple[Message, ...]) -> None:
    """Applies only during tool use: to the last answer, if the results of its calls follow."""
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
