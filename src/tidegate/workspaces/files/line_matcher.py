"""A program that prints the lines matching a pattern, for machines without ripgrep. It is a separate process, so that
it can be killed.

    python -I -S line_matcher.py PATTERN LIMIT DESCRIPTOR

For a pattern made by `patterns` it reports the same lines as ripgrep, at most LIMIT of them. Each is reported in
ripgrep's form `LINE:COLUMN:`, where both numbers count from 1 and the column is in bytes. It imports nothing from
Tidegate, so it starts in a few milliseconds. The caller limits its time and memory.
"""

import os
import re
import sys
from collections.abc import Iterator
from itertools import islice

CHUNK = 1024 * 1024


def blocks(source: int, chunk: int = CHUNK) -> Iterator[bytes]:
    """Yields the input in blocks of complete lines."""
    kept: list[bytes] = []
    while data := os.read(source, chunk):
        end = data.rfind(b"\n") + 1
        if end == 0:
            kept.append(data)
            continue
        yield b"".join((*kept, data[:end]))
        kept = [data[end:]]
    if rest := b"".join(kept):
        yield rest


def matching_lines(pattern: re.Pattern[str], source: int, chunk: int = CHUNK) -> Iterator[tuple[int, int]]:
    """Yields the line number of each matching line and the column of the first match."""
    number = 1
    for block in blocks(source, chunk):
        text = block.decode("utf-8", "surrogateescape")
        start, place = 0, 0
        while place < len(text) and (found := pattern.search(text, place)) is not None:
            number += text.count("\n", start, found.start())
            start = text.rfind("\n", 0, found.start()) + 1
            if start == len(text):
                break  # there is no line after the last line break
            yield number, len(text[start : found.start()].encode("utf-8", "surrogateescape")) + 1
            place = text.find("\n", found.start()) + 1 or len(text)
        number += text.count("\n", start)


def main(arguments: list[str]) -> None:
    pattern = re.compile(arguments[0], re.MULTILINE)
    for line, column in islice(matching_lines(pattern, int(arguments[2])), int(arguments[1])):
        os.write(1, b"%d:%d:\n" % (line, column))


if __name__ == "__main__":
    main(sys.argv[1:])
