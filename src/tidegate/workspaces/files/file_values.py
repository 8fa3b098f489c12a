"""Values that describe files, and `Files`, the protocol through which tools access a session's files, wherever they
are.

All values are immutable. Failures raise `ToolFailed` with one sentence that says what to do. Paths are relative to the
workspace, or absolute as seen by the session's commands. Results are bounded and say if they are incomplete.
"""

import os
from contextlib import AbstractAsyncContextManager
from typing import Literal, NamedTuple, Protocol

from tidegate.values import Frozen

Kind = Literal["file", "folder", "link", "other"]

HEAD_BYTES = 32
"""Number of bytes at the beginning of a file used to recognise images and audio."""


class FileEntry(NamedTuple):
    """One entry in a listing. `path` leads from the workspace to the entry; `target` is where a link points."""

    path: str
    kind: Kind
    size: int = 0
    target: str = ""


class FileLines(NamedTuple):
    """Lines from a file, from `first` (inclusive) to `after` (exclusive), counted from 0. If the requested start is
    past the end of the file, `data` is empty and `first` is the file's line count. `more` is true if there are further
    lines. `cut` is true if the first requested line exceeds the byte limit; only its beginning is then included, and
    the rest has not been examined. `size` is the size of the whole file, and `head` its first bytes."""

    data: bytes
    first: int
    after: int
    size: int
    head: bytes
    more: bool = False
    cut: bool = False


class FileContents(NamedTuple):
    """A complete file. `version` identifies its content; pass it to `write` to avoid overwriting a different
    version."""

    data: bytes
    version: str


class WriteResult(NamedTuple):
    """The result of writing a file. `replaced` is the size of the replaced file, or None if there was none."""

    replaced: int | None


class FileFilter(Frozen, frozen=True):
    """Selects the files below a folder that match `glob` (all if it is empty). Names that begin with a dot and names in
    `HEAVY` are left out, with everything below them, unless `hidden` is set."""

    glob: str = ""
    hidden: bool = False


HEAVY = frozenset({"node_modules", "__pycache__"})
"""Folders with generated files, which usually outnumber all other files."""


class Listing(NamedTuple):
    """A list of entries. `left_out` are the first names left out by `FileFilter`; `stopped` says why the listing is
    incomplete."""

    entries: tuple[FileEntry, ...]
    left_out: tuple[str, ...] = ()
    stopped: str = ""


class SearchQuery(Frozen, frozen=True):
    """A search: lines that match `pattern` (see `tidegate.line_search`), with `context` lines around each, at most
    `limit` matches."""

    pattern: str
    literal: bool = False
    ignore_case: bool = False
    choice: FileFilter = FileFilter()
    context: int = 0
    limit: int = 50


class HitLine(NamedTuple):
    """A matching line, or one near a match. If the line is long, `text` is the part around the match; `before` and
    `after` are true if text is missing on that side."""

    number: int
    text: str
    found: bool
    before: bool = False
    after: bool = False


class FileHit(NamedTuple):
    """A file with matches, and its lines in order. `changed` is true if the file changed during the search, so its
    lines are unknown."""

    path: str
    lines: tuple[HitLine, ...]
    changed: bool = False


class SearchResult(NamedTuple):
    """The result of a search. `files` is the number of searched files. `more` is true if there are more matches than
    the limit; nothing after them was searched. `stopped` says why the search is incomplete. `large` and `binary` count
    the files left out because they are too large or binary."""

    hits: tuple[FileHit, ...]
    files: int
    more: bool = False
    stopped: str = ""
    left_out: tuple[str, ...] = ()
    large: int = 0
    binary: int = 0


class FileStamp(NamedTuple):
    """The identity of a file's state: equal stamps mean that it has not changed."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


def file_stamp(fd: int) -> FileStamp:
    status = os.fstat(fd)
    return FileStamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Files(Protocol):
    """A session's files."""

    async def lines(self, path: str, *, offset: int, lines: int, max_bytes: int) -> FileLines:
        """Reads at most this many lines and bytes from a file, starting after the first `offset` lines. If at least one
        complete line fits, only complete lines are returned."""
        ...

    async def load(self, path: str, *, limit: int) -> FileContents:
        """Reads the complete content of a file, which must not exceed `limit` bytes."""
        ...

    def opened(self, path: str) -> AbstractAsyncContextManager[int]:
        """Opens a file for reading. The descriptor can be passed on and is closed at the end of the block."""
        ...

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> WriteResult:
        """Writes or replaces a file atomically. Missing parent folders are created. If `expected` is given, the file is
        written only if its current content has that version."""
        ...

    async def list(self, path: str, choice: FileFilter, *, recursive: bool, limit: int) -> Listing:
        """Returns the entries in a folder, sorted by name, each subfolder followed by its contents. Links are not
        followed."""
        ...

    async def search(self, path: str, query: SearchQuery) -> SearchResult:
        """Returns the matching lines in a file or below a folder, in the order of `list`."""
        ...
