"""Repair of JSON received from model endpoints.

Bytes that are not UTF-8 and halves of surrogate pairs become U+FFFD, the replacement character, so every string in an
answer can be stored, encoded and sent. A usage object that is not JSON is replaced, so that only its counts are lost
and the answer remains usable. The time is linear in the size of the data. Intact data is returned unchanged.
"""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from tidegate.models.formats.token_counts import USAGE_BYTES

T = TypeVar("T")

REPLACEMENT = "\ufffd"

_ESCAPES = re.compile(
    rb"((?:\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})++)|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""Matches escaped backslashes and complete surrogate pairs (in the group), or one half of a pair."""

_USAGE = re.compile(rb'"usage"\s*:\s*')
_SCALAR = re.compile(rb"[^][{},]*")
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[][{}]', re.DOTALL)
_UNREADABLE = b'"unreadable"'


def repair_json(data: bytes) -> bytes:
    """Returns the same JSON with U+FFFD in place of anything that a string cannot contain."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            data = data.decode(errors="replace").encode()
    if b"\\u" in data and (b"\\ud" in data or b"\\uD" in data):
        pieces = _ESCAPES.split(data)
        data = b"".join([rb"\ufffd" if piece is None else piece for piece in pieces])
    return data


def repair_json_text(text: str) -> str:
    """Applies `repair_json` to JSON inside a string, such as the arguments of a tool call."""
    return repair_json(text.encode(errors="replace")).decode() if "\\ud" in text or "\\uD" in text else text


def decode_tolerantly(decode: Callable[[bytes], T], data: bytes) -> T:
    """Decodes one event or body. If that fails, decodes it again without usage objects that are not JSON."""
    try:
        return decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError):
        without = _without_usage(data)
        if without == data:
            raise
        return decode(without)


def _without_usage(data: bytes) -> bytes:
    made: list[bytes] = []
    place = 0
    while found := _USAGE.search(data, place):
        made += (data[place : found.end()], _UNREADABLE)
        place = _end_of_value(data, found.end())
    made.append(data[place:])
    return b"".join(made)


def _end_of_value(data: bytes, start: int) -> int:
    """Returns the end of the value that starts here: after its last bracket, or before the next comma or bracket."""
    if data[start : start + 1] not in (b"{", b"["):
        scalar = _SCALAR.match(data, start)
        return scalar.end() if scalar else start
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(data, start, start + USAGE_BYTES):
        depth += (found[0] in (b"{", b"[")) - (found[0] in (b"}", b"]"))
        if not depth:
            return found.end()
    return len(data)
