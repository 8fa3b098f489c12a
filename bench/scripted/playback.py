"""Playback of a planned answer with its faults: held, slowed, cut off, damaged, or simply sent; for every format.

Every wait is bounded. An answer ends as the script says, on a connection that its server owns. `damaged` inserts bytes
that are not text, halves of characters and wrong token counts.
"""

import asyncio
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from bench.scripted.connection import LONGEST_WAIT, Connection
from bench.scripted.interface import Asked, Format
from bench.scripted.script import Directive, Plan
from bench.scripted.wire import END, credential_of, framed, reply_of

if TYPE_CHECKING:
    from bench.scripted.server import ScriptedModel

# Pieces per write, if nothing happens between them.
BATCH = 64
HUGE_PIECE = 65536
WEB_PAGE = b"<html><body>Sign in to the hotel network</body></html>"

_NAMES = {
    "input": rb"prompt_tokens|input_tokens",
    "output": rb"completion_tokens|output_tokens",
    "cached": rb"cached_tokens|cache_read_input_tokens",
    "written": rb"cache_write_tokens|cache_creation_input_tokens",
    "reasoning": rb"reasoning_tokens|thinking_tokens",
    "total": rb"total_tokens",
}
_FIELDS = {name: re.compile(rb'("(?:%b)":)\d+' % names) for name, names in _NAMES.items()}
_WHOLE = re.compile(rb'("usage":)\{(?:[^{}]|\{[^{}]*\})*\}')
_BYTE = re.compile(rb"<x([0-9A-Fa-f]{2})>")
_ESCAPE = re.compile(rb"<(u[0-9A-Fa-f]{4})>")


async def perform(
    server: "ScriptedModel", connection: Connection, form: Format, asked: Asked, plan: Plan, headers: dict[str, str]
) -> None:
    faults = plan.faults
    if "hold" in faults and not (asked.stream and "after" in faults["hold"].options):
        await server.hold(faults["hold"].words[0])
    if "close" in faults:
        connection.hang_up()
        return
    if status := faults.get("status"):
        connection.write(_failure(status, headers, form, asked))
        return
    if "html" in faults:
        connection.write(reply_of(200, WEB_PAGE, kind="text/html"))
        return
    if not asked.stream or "whole" in faults:
        if pause := faults.get("slow"):
            await asyncio.sleep(pause.number("ms", 20) / 1000)
        connection.write(reply_of(200, damaged(form.whole(asked, plan), faults), extra=form.identified))
        return
    if "hang" in faults and "after" not in faults["hang"].options:
        await asyncio.sleep(LONGEST_WAIT)
    connection.write(form.head)
    if await _stream(server, connection, form, asked, plan):
        return
    last = form.end(asked, plan, marked="nodone" not in faults)
    connection.write(_chunks(last, faults) + END)


async def _stream(server: "ScriptedModel", connection: Connection, form: Format, asked: Asked, plan: Plan) -> bool:
    """Write the pieces of the answer. Returns True if a fault ended it and nothing may follow."""
    faults = plan.faults
    slow = faults["slow"].number("ms", 20) / 1000 if "slow" in faults else 0.0
    after = {name: int(directive.number("after", 1)) for name, directive in faults.items()}
    batch: list[bytes] = []
    for place, beat in enumerate(form.beats(asked, plan)):
        if place in after.values() or slow or len(batch) >= BATCH:
            connection.write(b"".join(batch))
            batch.clear()
            await connection.writable()
            if slow and place:
                await asyncio.sleep(slow)
        if after.get("cut") == place:
            connection.hang_up()
            return True
        if after.get("hold") == place and "after" in faults["hold"].options:
            await server.hold(faults["hold"].words[0])
        if after.get("hang") == place:
            await asyncio.sleep(LONGEST_WAIT)
        if after.get("badjson") == place:
            connection.write(framed(form.spoiled))
        if after.get("error") == place:
            error = faults["error"]
            message = "Scripted error." + _quoted(error, form, asked)
            code = error.options.get("code", "server_error")
            connection.write(framed(form.complaint(asked, plan, message, code, error.words)) + END)
            return True
        if after.get("hugeline") == place:
            await _huge_line(connection, form, int(faults["hugeline"].number("bytes", 4 * 1024 * 1024)))
        if beat:  # an empty chunk would be the end of the answer
            batch.append(_chunks(beat, faults))
    connection.write(b"".join(batch))
    await connection.writable()
    return False


def _chunks(said: bytes, faults: dict[str, Directive]) -> bytes:
    said = damaged(said, faults)
    size = int(faults["garbled"].number("chunk", 0)) if "garbled" in faults else 0
    size = size or len(said)
    return b"".join(framed(said[at : at + size]) for at in range(0, len(said), size or 1))


def _quoted(directive: Directive, form: Format, asked: Asked) -> str:
    """The quotation of the message or the credential that an error contains, as some providers send."""
    return f" You said: {form.said(asked)}" if "quote" in directive.words else ""


def _failure(directive: Directive, headers: dict[str, str], form: Format, asked: Asked) -> bytes:
    options = directive.options
    message = "Scripted failure." + _quoted(directive, form, asked)
    if "echo" in directive.words:
        message += f" Your credential was {credential_of(headers)}."
    extra = f"Retry-After: {options['retry-after']}\r\n" if "retry-after" in options else ""
    status = int(directive.words[0])
    body = form.error(status, message, code=options.get("code"), kind=options.get("type", "scripted_error"))
    return reply_of(status, body, extra=extra + form.identified)


async def _huge_line(connection: Connection, form: Format, size: int) -> None:
    begin, end = form.huge
    connection.write(framed(begin))
    piece = framed(b"x" * HUGE_PIECE)
    for _ in range(size // HUGE_PIECE + 1):
        connection.write(piece)
        await connection.writable()
    connection.write(framed(end))


def damaged(said: bytes, faults: dict[str, Directive]) -> bytes:
    if usage := faults.get("usage"):
        for name, value in usage.options.items():
            if found := _WHOLE if name == "all" else _FIELDS.get(name):
                said = found.sub(rb"\g<1>" + unquote_to_bytes(value).replace(b"\\", rb"\\"), said)
    if "garbled" in faults:
        said = _BYTE.sub(lambda found: bytes.fromhex(found[1].decode()), said)
        said = _ESCAPE.sub(rb"\\\1", said)
    return said
