"""Damage to what a provider says: bytes that are no text, halves of characters, counts that are none.

Pure functions over the bytes of an event or of a whole body, the same in every format.
"""

import re
from urllib.parse import unquote_to_bytes

from bench.scripted.script import Directive

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


def damaged(said: bytes, faults: dict[str, Directive]) -> bytes:
    if usage := faults.get("usage"):
        for name, value in usage.options.items():
            if found := _WHOLE if name == "all" else _FIELDS.get(name):
                said = found.sub(rb"\g<1>" + unquote_to_bytes(value).replace(b"\\", rb"\\"), said)
    if "garbled" in faults:
        said = _BYTE.sub(lambda found: bytes.fromhex(found[1].decode()), said)
        said = _ESCAPE.sub(rb"\\\1", said)
    return said
