"""Lines of a file, with those around them, each as long as a line may be shown.

Guarantee: memory holds what is shown and one buffer, however long the lines are; of a long line the part around the
place that matters is kept, and no character is cut in two. It blocks: it is for worker threads.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

from anyio import from_thread

from tidegate.workspaces.files.values import HitLine

SHOWN_BYTES = 400
"""Of one line; a longer one is rarely read for its whole length."""

BEFORE_BYTES = 100
CHUNK = 64 * 1024
_LOOKS = 1024  # readings between two looks whether anybody still waits


class FileStamp(NamedTuple):
    """By which a file is known to be as it was."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


def mark(fd: int) -> FileStamp:
    status = os.fstat(fd)
    return FileStamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def lines_around(fd: int, columns: Mapping[int, int], context: int) -> tuple[HitLine, ...]:
    """The lines whose numbers `columns` has, with the column that matters, and as many around each as `context` says.
    Both count from 1."""
    wanted = {number for found in columns for number in range(max(1, found - context), found + context + 1)}
    lines: list[HitLine] = []
    with open(fd, "rb", buffering=CHUNK, closefd=False) as file:
        number, place, readings = 1, 0, 0
        part = _Part(columns.get(1, 1))
        while wanted and number <= max(wanted) and (piece := file.readline(CHUNK)):
            readings += 1
            if readings % _LOOKS == 0:
                from_thread.check_cancelled()
            if number in wanted:
                part.add(piece, place)
            place += len(piece)
            if piece.endswith(b"\n"):
                if number in wanted:
                    lines.append(part.line(number, number in columns))
                    wanted.discard(number)
                number, place = number + 1, 0
                part = _Part(columns.get(number, 1))
        if place and number in wanted:
            lines.append(part.line(number, number in columns))
    return tuple(lines)


class _Part:
    """The part of one line that is shown."""

    def __init__(self, column: int) -> None:
        # A match near the beginning is shown with the beginning.
        self._start = 0 if column <= SHOWN_BYTES - BEFORE_BYTES else column - 1 - BEFORE_BYTES
        self._kept = bytearray()
        self._after = False

    def add(self, piece: bytes, place: int) -> None:
        """A further piece of the line, which begins at that place in it."""
        piece = piece.removesuffix(b"\n").removesuffix(b"\r")
        low = max(0, self._start - place)
        high = max(low, self._start + SHOWN_BYTES - place)
        self._kept += piece[low:high]
        self._after = self._after or len(piece) > high

    def line(self, number: int, found: bool) -> HitLine:
        text = self._kept.decode("utf-8", "replace")
        if self._start:
            text = text.lstrip("\ufffd")
        if self._after:
            text = text.rstrip("\ufffd")
        return HitLine(number, text, found, before=self._start > 0, after=self._after)
