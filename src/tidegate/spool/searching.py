"""A job for a child: search a file, line by line, for a text or a regular expression.

Guarantee: at most so many places as asked for are found, in order, each with its line, its byte and what stands around
it; the search gives up when its time is over and says where it was. It goes through the file in blocks; a line that is
longer than one is searched in pieces that overlap, so that memory is bounded. A pattern that runs away is the parent's
to end.
"""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

BLOCK = 256 * 1024

OVERLAP = 4 * 1024
"""Of the piece before, so that what lies across two pieces of a line is found, if it is no longer than this."""

AROUND = 120
"""Bytes that are shown before and after what was found."""

PLACE_BYTES = 32
"""For the numbers before what is shown."""

Find = Callable[[bytes, int], tuple[int, int] | None]
"""(a line, from where) to (where it begins, where it ends)."""

Hits = Callable[[bytes], list[int]]
"""Which lines of a block hold something, counted from 0."""


def work(order: dict[str, Any]) -> dict[str, Any]:
    """The order: `path`, `pattern`, `regex`, `offset` (lines to skip), `byte` (bytes to skip), `limit`, `bytes` (of all
    that is shown), `seconds`. Given are `places`, and `more` or `stopped`: the byte to go on from."""
    try:
        find, hits = _regex(order["pattern"]) if order["regex"] else _plain(order["pattern"])
    except (re.error, OverflowError, RecursionError) as error:
        return {"wrong": str(error)[:200]}
    try:
        with open(order["path"], "rb") as file:  # noqa: PTH123
            return _search(file, find, hits, order)
    except FileNotFoundError:
        return {"gone": True}


def _plain(text: str) -> tuple[Find, Hits]:
    needle = text.encode("utf-8", "replace")

    def find(line: bytes, start: int) -> tuple[int, int] | None:
        place = line.find(needle, start)
        return None if place < 0 else (place, place + len(needle))

    def hits(block: bytes) -> list[int]:
        if needle not in block:
            return []
        return [index for index, line in enumerate(block.split(b"\n")) if needle in line]

    return find, hits


def _regex(pattern: str) -> tuple[Find, Hits]:
    search = re.compile(pattern).search

    def find(line: bytes, start: int) -> tuple[int, int] | None:
        # Undecodable bytes count one each, so that places in the text can be told in bytes again.
        text = line.decode("utf-8", "surrogateescape")
        found = search(text, len(line[:start].decode("utf-8", "surrogateescape")))
        if found is None:
            return None
        before = len(text[: found.start()].encode("utf-8", "surrogateescape"))
        return before, before + len(found[0].encode("utf-8", "surrogateescape"))

    def hits(block: bytes) -> list[int]:
        lines = block.decode("utf-8", "surrogateescape").split("\n")
        return [index for index, line in enumerate(lines) if search(line)]

    return find, hits


def _search(file: BinaryIO, find: Find, hits: Hits, order: dict[str, Any]) -> dict[str, Any]:
    until = time.monotonic() + order["seconds"]
    room = order["bytes"]
    places: list[dict[str, Any]] = []
    for line, byte, block, seen in _blocks(file):
        if time.monotonic() > until:
            return {"places": places, "stopped": byte + seen}
        if byte + len(block) < order["byte"] or line + block.count(b"\n") < order["offset"]:
            continue
        indexes = hits(block)
        lines = block.split(b"\n") if indexes else []
        for index in indexes:
            if line + index < order["offset"]:
                continue
            begins = byte + sum(map(len, lines[:index])) + index
            for found in _in_line(find, lines[index], order["byte"] - begins, 0 if index else seen):
                shown = _around(lines[index], *found)
                room -= len(shown.encode()) + PLACE_BYTES
                if len(places) == order["limit"] or (room < 0 and places):
                    return {"places": places, "more": begins + found[0]}
                places.append({"line": line + index + 1, "byte": begins + found[0], "text": shown})
    return {"places": places}


def _blocks(file: BinaryIO) -> Iterator[tuple[int, int, bytes, int]]:
    """(number of its first line from 0, where it begins, whole lines without the last break or a piece of one line,
    how much of its beginning was in the piece before)."""
    line = byte = seen = 0
    buffer = b""
    while data := file.read(BLOCK):
        buffer += data
        cut = buffer.rfind(b"\n")
        if cut >= 0:
            block, buffer = buffer[:cut], buffer[cut + 1 :]
            yield line, byte, block, seen
            line += block.count(b"\n") + 1
            byte += cut + 1
            seen = 0
        elif len(buffer) >= BLOCK:
            yield line, byte, buffer, seen
            seen = OVERLAP
            byte += len(buffer) - seen
            buffer = buffer[-seen:]
    if len(buffer) > seen:
        yield line, byte, buffer, seen


def _in_line(find: Find, line: bytes, first: int, seen: int) -> Iterator[tuple[int, int]]:
    """Places in one line, from `first` on, that were not found in the piece before. What is shown with one is not found
    once more."""
    start = max(0, first)
    while start <= len(line) and (found := find(line, start)) is not None:
        if found[1] > seen or not seen:
            yield found
        start = max(found[0] + AROUND, found[1], start + 1)


def _around(line: bytes, start: int, end: int) -> str:
    """What was found, with what stands around it."""
    first, last = max(0, start - AROUND), min(len(line), min(end, start + AROUND) + AROUND)
    for _ in range(3):  # no character in two
        first -= first > 0 and line[first] & 0xC0 == 0x80
        last -= last < len(line) and last > start and line[last] & 0xC0 == 0x80
    text = line[first:last].decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode()
    return f"{'…' if first else ''}{text}{'…' if last < len(line) else ''}"
