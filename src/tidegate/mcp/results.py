"""Conversion of the results of a server's tools to what the model sees.

Invisible characters are removed from text, and the limits for all tools apply: long text goes to the spool. Images,
audio and documents are prepared like files and reach the model as media. Content that cannot be shown is mentioned by
name. Structured content is shown as JSON unless the text repeats it. While a long text is cleaned, the event loop
regularly runs other tasks.
"""

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Any

import mcp_types as types
import msgspec

from tidegate.errors import ToolFailed
from tidegate.mcp.listing import one_line
from tidegate.safe_text import strip_invisible
from tidegate.tools import Result, ToolContext
from tidegate.values import Media

MEDIA_AT_MOST = 20
"""Maximum number of images, audio clips and documents in one result."""

_PIECE = 64 * 1024  # characters that are cleaned at once

_NO_CONTENT = "[no content]"


async def converted(ctx: ToolContext, name: str, result: types.CallToolResult) -> Result:
    """Converts a result of the tool called `name`."""
    text, media = await _blocks(ctx, name, result.content)
    structured = result.structured_content
    if structured is not None and not _repeats(result.content, structured):
        shown = await cleaned(msgspec.json.encode(structured).decode())
        text = f"{text}\n{shown}" if text else shown
    return Result(text=text or (_NO_CONTENT if not media else ""), media=media, failed=result.is_error)


async def resource(ctx: ToolContext, uri: str, contents: Sequence[Any]) -> Result:
    text, media = await _blocks(ctx, uri, [types.EmbeddedResource(type="resource", resource=each) for each in contents])
    return Result(text=text or (_NO_CONTENT if not media else ""), media=media)


async def _blocks(ctx: ToolContext, name: str, blocks: Sequence[Any]) -> tuple[str, tuple[Media, ...]]:
    texts: list[str] = []
    media: list[Media] = []

    async def add_media(what: str, kind: str, data: str, label: str) -> None:
        if len(media) >= MEDIA_AT_MOST:
            texts.append(f"[{what}: left out, since there are more than {MEDIA_AT_MOST}]")
            return
        try:
            decoded = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            texts.append(f"[{what}: {one_line(kind, 60)}, not valid base64]")
            return
        try:
            prepared = await ctx.spool.media(label, decoded)
        except ToolFailed as error:
            texts.append(f"[{what}: {error.message}]")
            return
        media.append(prepared)
        texts.append(prepared.words)

    for block in blocks:
        match block:
            case types.TextContent():
                texts.append(await cleaned(block.text))
            case types.ImageContent():
                await add_media("picture", block.mime_type, block.data, name)
            case types.AudioContent():
                await add_media("sound", block.mime_type, block.data, name)
            case types.EmbeddedResource(resource=types.TextResourceContents() as held):
                texts.append(f"[{one_line(str(held.uri), 300)}]\n{await cleaned(held.text)}")
            case types.EmbeddedResource(resource=types.BlobResourceContents() as held):
                await add_media("resource", held.mime_type or "", held.blob, str(held.uri))
            case types.ResourceLink():
                about = one_line(block.description or block.title or "", 200)
                texts.append(f"[link: {one_line(str(block.uri), 300)}{f', {about}' if about else ''}]")
            case _:
                texts.append(f"[{one_line(str(getattr(block, 'type', 'content')), 60)}: cannot be shown]")
    return "\n".join(texts), tuple(media)


def _repeats(blocks: Sequence[Any], structured: Any) -> bool:
    """True if the result's text is the structured content as JSON, which servers send for the benefit of older
    clients."""
    texts = [block.text for block in blocks if isinstance(block, types.TextContent)]
    if len(texts) != 1:
        return bool(texts) and _is_text(structured, texts)
    try:
        found = msgspec.json.decode(texts[0])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _is_text(structured, texts)
    return bool(found == structured) or _is_text(structured, texts)


def _is_text(structured: Any, texts: list[str]) -> bool:
    """True if the structured content is only a wrapper around the texts."""
    if not isinstance(structured, dict) or set(structured) != {"result"}:
        return False
    value = structured["result"]
    return bool(value == (texts[0] if len(texts) == 1 else texts))


async def cleaned(text: str) -> str:
    if len(text) <= _PIECE:
        return strip_invisible(text)
    pieces: list[str] = []
    for start in range(0, len(text), _PIECE):
        pieces.append(strip_invisible(text[start : start + _PIECE]))
        await asyncio.sleep(0)
    return "".join(pieces)
