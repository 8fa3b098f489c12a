"""The lines that fit a pattern, for machines without ripgrep: a program of its own, so that it can be killed.

    python -I -S matching.py PATTERN LIMIT DESCRIPTOR

Guarantee: for a pattern that `patterns` has made, it tells the same lines as ripgrep, in the same form, `LINE:COLUMN:`,
both counted from 1, the column in bytes; at most LIMIT of them. It imports nothing of ours: it starts in a few
milliseconds. Whoever starts it bounds its time and memory.
"""

import os
import re
import sys
from collections.abc import Iterator
from itertools import islice

CHUNK = 1024 * 1024


def blocks(source: int) -> Iterator[bytes]:
    """What is read, in blocks of whole lines."""
    kept: list[bytes] = []
    while data := os.read(source, CHUNK):
        end = data.rfind(b"\n") + 1
        if end == 0:
            kept.append(data)
            continue
        yield b"".join((*kept, data[:end]))
        kept = [data[end:]]
    if rest := b"".join(kept):
        yield rest


def fitting(pattern: re.Pattern[str], source: int) -> Iterator[tuple[int, int]]:
    """The line and column of the first match in each line that has one."""
    number = 1
    for block in blocks(source):
        text = block.decode("utf-8", "surrogateescape")
        start, place = 0, 0
        while place < len(text) and (found := pattern.search(text, place)) is not None:
            number += text.count("\n", start, found.start())
            start = text.rfind("\n", 0, found.start()) + 1
            if start == len(text):
                break  # behind the last line break there is no line
            yield number, len(text[start : found.start()].encode("utf-8", "surrogateescape")) + 1
            place = text.find("\n", found.start()) + 1 or len(text)
        number += text.count("\n", start)


def main(arguments: list[str]) -> None:
    pattern = re.compile(arguments[0], re.MULTILINE)
    for line, column in islice(fitting(pattern, int(arguments[2])), int(arguments[1])):
        os.write(1, b"%d:%d:\n" % (line, column))


if __name__ == "__main__":
    main(sys.argv[1:])
