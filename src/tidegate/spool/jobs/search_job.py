"""A job for a child process: searches files line by line, or texts one by one, for text, words or a regular expression.

Matches are reported in order, up to the requested number, each with its line, byte and context. If the time runs out,
the search stops and reports its position. To limit memory, files are read in blocks, and a line longer than a block is
searched in overlapping pieces. The parent kills the child if a pattern takes too long.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

BLOCK = 256 * 1024

OVERLAP = 4 * 1024
"""The number of bytes by which consecutive pieces of a long line overlap. A match that spans two pieces is found only
if it is not longer than this."""

AROUND = 120
"""Bytes of context before and after a match."""

PLACE_BYTES = 32
"""Bytes reserved for the line and byte numbers of a match."""

LENGTH_BYTES = 4
"""Size of the length prefix of each input text."""

Find = Callable[[bytes, int], tuple[int, int] | None]
"""Maps (line, offset) to the (start, end) of the next match."""

Hits = Callable[[bytes], list[int]]
"""Returns the numbers of the lines of a block that contain matches, counted from 0."""


def work(order: dict[str, Any]) -> dict[str, Any]:
    """Runs the job. The order contains either `words`, or `pattern` and `regex`. It also contains `limit`, `bytes` (for
    all matches) and `seconds`.

    To search one file, the order also contains `path`, `offset` (lines to skip) and `byte` (bytes to skip). The result
    contains `places`. If the search is incomplete, its `more` or `stopped` is the byte to continue from.

    To search several files, the order contains `paths`, and `byte` for the first file. Each place then has a `file`,
    `more` or `stopped` is [file, byte], and `gone` lists files that do not exist.

    Otherwise, the input consists of texts, each of which is searched for at most one match. Each place then has a
    `text_at`, and `more` or `stopped` is the number of the text to continue from.
    """
    try:
        if "words" in order:
            find, hits = _words(order["words"])
        else:
            find, hits = _regex(order["pattern"]) if order["regex"] else _plain(order["pattern"])
            if "path" not in order and "paths" not in order:
                return _search_texts(re.compile(order["pattern"], re.MULTILINE).search, order)
    except (re.error, OverflowError, RecursionError) as error:
        return {"wrong": str(error)[:200]}
    if "paths" in order:
        return _search_files(find, hits, order)
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

    def hits(block: bytes) -> list[int]:
        lines = block.decode("utf-8", "surrogateescape").split("\n")
        return [index for index, line in enumerate(lines) if search(line)]

    return _text_finder(search), hits


def _words(words: Sequence[str]) -> tuple[Find, Hits]:
    """Finds lines that contain all of the words. A line is one match, located at the first word in `words`."""
    searches = [re.compile(pattern).search for pattern in map(word_pattern, words)]
    plain = [word.rstrip("*").encode() for word in words if word.isascii()]

    def hits(block: bytes) -> list[int]:
        # A word without accents also matches accented spellings, but a block of ASCII contains none.
        if block.isascii() and (len(plain) < len(words) or not all(word in block.lower() for word in plain)):
            return []
        lines = block.decode("utf-8", "surrogateescape").split("\n")
        return [index for index, line in enumerate(lines) if all(search(line) for search in searches)]

    def once(line: bytes, start: int) -> tuple[int, int] | None:
        # A line is one match, however often it contains the words.
        found = first(line, 0)
        return found if found is not None and found[0] >= start else None

    first = _text_finder(searches[0])
    return once, hits


def _text_finder(search: Callable[[str, int], "re.Match[str] | None"]) -> Find:
    def find(line: bytes, start: int) -> tuple[int, int] | None:
        # An undecodable byte becomes one character, so positions in the text can be converted to bytes.
        text = line.decode("utf-8", "surrogateescape")
        found = search(text, len(line[:start].decode("utf-8", "surrogateescape")))
        if found is None:
            return None
        before = len(text[: found.start()].encode("utf-8", "surrogateescape"))
        return before, before + len(found[0].encode("utf-8", "surrogateescape"))

    return find


def word_pattern(word: str) -> str:
    """Returns a regular expression that matches a word as the search index does: complete words only, ignoring case and
    accents. A word that ends in * is a prefix. Matching takes linear time."""
    letters = "".join(f"{_variants(letter)}[\u0300-\u036f]*" for letter in word.rstrip("*"))
    end = "" if word.endswith("*") else r"(?![^\W_])"
    return rf"(?i)(?<![^\W_]){letters}{end}"


def _variants(letter: str) -> str:
    import unicodedata  # large, and needed only for words

    if not ("a" <= letter <= "z"):
        return re.escape(letter)
    # Unicode has Latin letters with accents in these two blocks.
    accented = (chr(code) for block in (range(0xC0, 0x250), range(0x1E00, 0x1F00)) for code in block)
    return f"[{letter}{''.join(each for each in accented if unicodedata.normalize('NFD', each)[0].lower() == letter)}]"


# -- one file ----------------------------------------------------------------------------------------------------------


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
                shown = _excerpt(lines[index], *found)
                room -= len(shown.encode()) + PLACE_BYTES
                if len(places) == order["limit"] or (room < 0 and places):
                    return {"places": places, "more": begins + found[0]}
                places.append({"line": line + index + 1, "byte": begins + found[0], "text": shown})
    return {"places": places}


def _blocks(file: BinaryIO) -> Iterator[tuple[int, int, bytes, int]]:
    """Yields the blocks of a file as (number of the first line, counted from 0; offset; block; overlap). A block either
    consists of complete lines, without the last line break, or is a piece of one long line. Such a piece begins with
    `overlap` bytes of the previous one."""
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
    """Yields the matches in one line from `first` on that were not found in the previous piece. Text that is shown as
    context of one match is not searched for the next one."""
    start = max(0, first)
    while start <= len(line) and (found := find(line, start)) is not None:
        if found[1] > seen or not seen:
            yield found
        start = max(found[0] + AROUND, found[1], start + 1)


def _excerpt(line: bytes, start: int, end: int) -> str:
    """Returns the match with its context."""
    first, last = max(0, start - AROUND), min(len(line), min(end, start + AROUND) + AROUND)
    for _ in range(3):  # avoids splitting a character
        first -= first > 0 and line[first] & 0xC0 == 0x80
        last -= last < len(line) and last > start and line[last] & 0xC0 == 0x80
    text = line[first:last].decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode()
    return f"{'…' if first else ''}{text}{'…' if last < len(line) else ''}"


# -- several files, and texts ------------------------------------------------------------------------------------------


def _search_files(find: Find, hits: Hits, order: dict[str, Any]) -> dict[str, Any]:
    until = time.monotonic() + order["seconds"]
    places: list[dict[str, Any]] = []
    gone: list[int] = []
    room = order["bytes"]
    for number, path in enumerate(order["paths"]):
        left = {
            "seconds": until - time.monotonic(),
            "limit": order["limit"] - len(places),
            "bytes": room,
            "offset": 0,
            "byte": 0 if number else order["byte"],
        }
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                found = _search(file, find, hits, left)
        except FileNotFoundError:
            gone.append(number)
            continue
        if not found["places"] and "more" not in found and "stopped" not in found:
            continue
        room -= sum(len(place["text"].encode()) + PLACE_BYTES for place in found["places"])
        places += ({"file": number, **place} for place in found["places"])
        for end in ("more", "stopped"):
            if end in found:
                return {"places": places, "gone": gone, end: [number, found[end]]}
    return {"places": places, "gone": gone}


def _search_texts(search: Callable[[str], "re.Match[str] | None"], order: dict[str, Any]) -> dict[str, Any]:
    until = time.monotonic() + order["seconds"]
    places: list[dict[str, Any]] = []
    room = order["bytes"]
    with os.fdopen(0, "rb") as input:
        number = 0
        while length := input.read(LENGTH_BYTES):
            text = input.read(int.from_bytes(length, "big")).decode()
            if time.monotonic() > until:
                return {"places": places, "stopped": number}
            found = search(text)
            if found is not None:
                before = len(text[: found.start()].encode())
                shown = _excerpt(text.encode(), before, before + len(found[0].encode()))
                room -= len(shown.encode()) + PLACE_BYTES
                if len(places) == order["limit"] or (room < 0 and places):
                    return {"places": places, "more": number}
                places.append({"text_at": number, "text": shown})
            number += 1
    return {"places": places}
