"""Search of the files below a folder for lines that match a pattern.

This module determines, by descriptor and below the mounts, which files are searched, in which order, and what is shown.
Each file is opened once: its matches are found and its lines are read through the same descriptor.

A search needs memory only for what is shown and for a few blocks, however long files and lines are. Of a long line,
only the part around the match is shown, and no character is cut in two. The functions block: they run in worker threads
and also, after the code has been sent there, on other machines.
"""

import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from anyio import from_thread

from tidegate.line_search import LinePattern, blocks
from tidegate.workspaces.files.file_values import FileHit, HitLine, SearchQuery, SearchResult, file_stamp
from tidegate.workspaces.files.globs import Glob
from tidegate.workspaces.files.mounts import Mount, at, joined, open_file, open_for_reading, open_reference
from tidegate.workspaces.files.walk import FolderWalk

FILE_BYTES = 32 * 1024 * 1024


class SearchBounds(NamedTuple):
    """The limits on one search."""

    seconds: float = 20.0
    """Time limit. If it is too short, a narrower search is the better option."""
    files: int = 20_000
    total_bytes: int = 1024 * 1024 * 1024


DEFAULT_BOUNDS = SearchBounds()

BINARY_WITHIN = 8192
"""A file counts as binary if there is a zero byte among this many bytes at its beginning."""

SHOWN_BYTES = 400
"""Number of bytes shown of one line. Longer lines are rarely read in full."""

BEFORE_BYTES = 100
LINE_CHUNK = 64 * 1024
_LOOKS = 1024  # reads between two checks for cancellation


def search(
    mounts: Sequence[Mount], path: str, query: SearchQuery, pattern: LinePattern, bounds: SearchBounds = DEFAULT_BOUNDS
) -> SearchResult:
    """Returns the matching lines in a file, or in the files below a folder. `pattern` is the query's compiled
    pattern."""
    return _Search(path, query, pattern, bounds).run(mounts)


class _Search:
    def __init__(self, path: str, query: SearchQuery, pattern: LinePattern, bounds: SearchBounds) -> None:
        self._path = path
        self._query = query
        self._pattern = pattern
        self._bounds = bounds
        self._until = time.monotonic() + bounds.seconds
        self._hits: list[FileHit] = []  # lint: allow (bounded by the query's limit)
        self._left = query.limit
        self._files = self._bytes = self._large = self._binary = 0
        self._more = False
        self._stopped = ""

    def run(self, mounts: Sequence[Mount]) -> SearchResult:
        walk = FolderWalk(self._query.choice, recursive=True)
        with at(mounts, self._path) as spot:
            if spot.is_folder:
                self._folder(walk, spot.fd)
            else:
                fd = open_file(spot)
                try:
                    self._file(fd, self._path)
                finally:
                    os.close(fd)
        if self._more:
            return SearchResult(hits=tuple(self._hits), files=self._files, more=True)
        return SearchResult(
            hits=tuple(self._hits),
            files=self._files,
            stopped=self._stopped or walk.stopped,
            left_out=tuple(joined(self._path, name) for name in walk.left_out),
            large=self._large,
            binary=self._binary,
        )

    def _folder(self, walk: FolderWalk, folder: int) -> None:
        glob = Glob(self._query.choice.glob)
        with closing(walk.steps(folder)) as steps:
            for step in steps:
                if step.kind != "file" or not glob.matches(step.path):
                    continue
                if self._files == self._bounds.files or self._bytes > self._bounds.total_bytes:
                    self._stopped = f"only {self._files} files were searched; use a path or a glob"
                    return
                self._found(step.folder, step.name, joined(self._path, step.path))
                if self._more or self._stopped:
                    return

    def _found(self, folder: int, name: str, path: str) -> None:
        fds: list[int] = []
        try:
            try:
                reference, status = open_reference(name, folder)
                fds.append(reference)
                if not stat.S_ISREG(status.st_mode):
                    return
                fds.append(open_for_reading(reference))
            except OSError:  # it no longer exists, or we may not read it
                return
            self._file(fds[1], path)
        finally:
            for fd in fds:
                os.close(fd)

    def _file(self, fd: int, path: str) -> None:
        stamp = file_stamp(fd)
        if stamp.size > FILE_BYTES:
            self._large += 1
            return
        if b"\0" in (head := os.pread(fd, BINARY_WITHIN, 0)):
            self._binary += 1
            return
        self._files += bool(head)
        columns = dict(self._columns(fd))
        if columns:
            lines = lines_around(fd, columns, self._query.context)
            changed = file_stamp(fd) != stamp
            self._hits.append(FileHit(path, () if changed else lines, changed=changed))

    def _columns(self, fd: int) -> Iterator[tuple[int, int]]:
        """Yields the number of each matching line and the column of its first match, both counted from 1."""
        left = FILE_BYTES  # it may grow while it is being read

        def read(size: int) -> bytes:
            nonlocal left
            data = os.read(fd, min(size, left))
            left -= len(data)
            self._bytes += len(data)
            return data

        last = 0
        for block in blocks(read):
            from_thread.check_cancelled()
            if time.monotonic() > self._until:
                self._stopped = (
                    f"the search was stopped after {self._bounds.seconds:g} s; use a simpler pattern, a path or a glob"
                )
                return
            for match in block.matches(self._pattern, 0):
                if match.line == last:  # found in an earlier piece of the line
                    continue
                if self._left == 0:
                    self._more = True
                    return
                last = match.line
                self._left -= 1
                yield match.line, match.column


def lines_around(fd: int, columns: Mapping[int, int], context: int) -> tuple[HitLine, ...]:
    """Returns the matching lines with `context` lines around each. `columns` maps each matching line's number to the
    column of its match, both counted from 1."""
    wanted = {number for found in columns for number in range(max(1, found - context), found + context + 1)}
    lines: list[HitLine] = []
    os.lseek(fd, 0, os.SEEK_SET)
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
        # A match near the beginning of a line is shown together with the beginning.
        self._start = 0 if column <= SHOWN_BYTES - BEFORE_BYTES else column - 1 - BEFORE_BYTES
        self._kept = bytearray()
        self._after = False

    def add(self, piece: bytes, place: int) -> None:
        """Adds the next piece of the line, which starts at this offset."""
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
