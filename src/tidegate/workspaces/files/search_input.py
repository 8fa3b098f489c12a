"""The searched files as one stream of text, and the excerpts shown for matching lines.

This module decides, by descriptor and below the mounts, which files are searched, in which order, and what is shown.
The engine gets one stream of text and reports line numbers, so it never receives a file that must not be read.

Excerpts take only the memory of what is shown and of one buffer, however long the lines are. Of a long line, only the
part around the match is kept, and no character is cut in two. The functions block: they run in worker threads and also,
after the code has been sent there, on other machines.
"""

import os
import stat
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from anyio import from_thread

from tidegate.errors import ToolFailed
from tidegate.workspaces.files.file_values import (
    FileFilter,
    FileHit,
    FileStamp,
    HitLine,
    SearchQuery,
    SearchResult,
    file_stamp,
)
from tidegate.workspaces.files.globs import Glob
from tidegate.workspaces.files.mounts import Mount, at, joined, open_file, open_for_reading, open_reference
from tidegate.workspaces.files.walk import FolderWalk

FILE_BYTES = 32 * 1024 * 1024


class SearchBounds(NamedTuple):
    """Limits of one search."""

    seconds: float = 20.0
    """Time limit. If it is not enough, a narrower search works better."""
    files: int = 20_000
    """The number of files is limited because a record of each is kept during the search."""
    total_bytes: int = 1024 * 1024 * 1024
    child_memory: int = 1024 * 1024 * 1024
    """Address space of the search process; a line of `FILE_BYTES` fits easily."""


DEFAULT_BOUNDS = SearchBounds()

BINARY_WITHIN = 8192
"""A file with a zero byte within its first bytes, up to this many, counts as binary."""

CHUNK = 256 * 1024

SHOWN_BYTES = 400
"""The number of bytes shown of one line. Longer lines are rarely read in full."""

BEFORE_BYTES = 100
LINE_CHUNK = 64 * 1024
_LOOKS = 1024  # reads between two checks for cancellation


class SearchedFile(NamedTuple):
    """A file in the stream. `first` is the number of its first line, counted from 1 over all files."""

    first: int
    path: str
    stamp: FileStamp


class SearchInput:
    """The searched files as one text."""

    def __init__(
        self, mounts: Sequence[Mount], path: str, choice: FileFilter, bounds: SearchBounds = DEFAULT_BOUNDS
    ) -> None:
        self._mounts = mounts
        self._bounds = bounds
        self.path = path
        self._glob = Glob(choice.glob)
        self._next = 1
        self._bytes = 0
        self.walk = FolderWalk(choice, recursive=True)
        self.searched: list[SearchedFile] = []
        self.stopped = ""
        self.large = 0
        self.binary = 0

    def text(self) -> Generator[bytes]:
        with at(self._mounts, self.path) as spot:
            if not spot.is_folder:
                fd = open_file(spot)
                try:
                    yield from self._file(fd, self.path)
                finally:
                    os.close(fd)
                return
            with closing(self.walk.steps(spot.fd)) as steps:
                for step in steps:
                    if step.kind != "file" or not self._glob.matches(step.path):
                        continue
                    if len(self.searched) == self._bounds.files or self._bytes > self._bounds.total_bytes:
                        self.stopped = f"only {len(self.searched)} files were searched; use a path or a glob"
                        return
                    yield from self._found(step.folder, step.name, joined(self.path, step.path))

    def _found(self, folder: int, name: str, path: str) -> Iterator[bytes]:
        fds: list[int] = []
        try:
            try:
                reference, status = open_reference(name, folder)
                fds.append(reference)
                if not stat.S_ISREG(status.st_mode):
                    return
                fds.append(open_for_reading(reference))
            except OSError:  # it is gone, or we may not read it
                return
            yield from self._file(fds[1], path)
        finally:
            for fd in fds:
                os.close(fd)

    def _file(self, fd: int, path: str) -> Iterator[bytes]:
        """The content of a file, ending with a line break."""
        stamp = file_stamp(fd)
        if stamp.size > FILE_BYTES:
            self.large += 1
            return
        left = FILE_BYTES  # it may grow while it is read
        first, last = True, b""
        while left > 0 and (chunk := os.read(fd, min(CHUNK, left))):
            if first:
                if b"\0" in chunk[:BINARY_WITHIN]:
                    self.binary += 1
                    return
                self.searched.append(SearchedFile(self._next, path, stamp))
                first = False
            left -= len(chunk)
            self._bytes += len(chunk)
            self._next += chunk.count(b"\n")
            last = chunk
            yield chunk
        if last and not last.endswith(b"\n"):
            self._next += 1
            yield b"\n"


def search_result(
    feed: SearchInput, mounts: Sequence[Mount], places: Sequence[tuple[int, int]], query: SearchQuery
) -> SearchResult:
    """Returns the search result for these matching lines and columns. One more than the limit means that there are
    further matches."""
    shown = hits(mounts, feed.searched, places[: query.limit], query.context)
    if len(places) > query.limit:
        # How far the stream had been read by then is arbitrary, so it is not reported.
        return SearchResult(hits=shown, files=_index(feed.searched, places[query.limit][0]) + 1, more=True)
    return SearchResult(
        hits=shown,
        files=len(feed.searched),
        stopped=feed.stopped or feed.walk.stopped,
        left_out=tuple(joined(feed.path, name) for name in feed.walk.left_out),
        large=feed.large,
        binary=feed.binary,
    )


def hits(
    mounts: Sequence[Mount], searched: Sequence[SearchedFile], places: Sequence[tuple[int, int]], context: int
) -> tuple[FileHit, ...]:
    """The matches by file, with the text of the lines."""
    lines_of: dict[int, dict[int, int]] = {}
    for number, column in places:
        index = _index(searched, number)
        lines_of.setdefault(index, {})[number - searched[index].first + 1] = column
    shown: list[FileHit] = []
    for index, columns in lines_of.items():
        file = searched[index]
        try:
            with at(mounts, file.path) as spot:
                fd = open_file(spot)
                try:
                    lines = lines_around(fd, columns, context) if file_stamp(fd) == file.stamp else None
                finally:
                    os.close(fd)
        except ToolFailed:
            lines = None
        shown.append(FileHit(file.path, lines or (), changed=lines is None))
    return tuple(shown)


def _index(searched: Sequence[SearchedFile], number: int) -> int:
    """Returns the index of the file that contains this line of the stream."""
    return bisect_right(searched, number, key=lambda file: file.first) - 1


def lines_around(fd: int, columns: Mapping[int, int], context: int) -> tuple[HitLine, ...]:
    """Returns the matching lines with `context` lines around each. `columns` maps the number of each matching line to
    the column of its match. Both count from 1."""
    wanted = {number for found in columns for number in range(max(1, found - context), found + context + 1)}
    lines: list[HitLine] = []
    with open(fd, "rb", buffering=LINE_CHUNK, closefd=False) as file:
        number, place, readings = 1, 0, 0
        part = _Part(columns.get(1, 1))
        while wanted and number <= max(wanted) and (piece := file.readline(LINE_CHUNK)):
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
    """The shown part of one line."""

    def __init__(self, column: int) -> None:
        # A match near the beginning is shown together with the beginning.
        self._start = 0 if column <= SHOWN_BYTES - BEFORE_BYTES else column - 1 - BEFORE_BYTES
        self._kept = bytearray()
        self._after = False

    def add(self, piece: bytes, place: int) -> None:
        """Add the next piece of the line. The piece starts at this offset in the line."""
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
