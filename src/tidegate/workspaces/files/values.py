"""What is known of files, and `Files`, by which tools reach those of a session, wherever they lie.

Guarantee: everything here is immutable. What cannot be done is a `ToolFailed` in one sentence that says what to do.
A path is relative to the workspace, or absolute as the session's commands see it. What is returned is bounded, and says
so when it is not all.
"""

import os
from contextlib import AbstractAsyncContextManager
from typing import Literal, NamedTuple, Protocol

from tidegate.values import Frozen
from tidegate.workspaces.files.patterns import Pattern

Kind = Literal["file", "folder", "link", "other"]

HEAD_BYTES = 32
"""Of a file, by which pictures and sounds are recognised."""


class FileEntry(NamedTuple):
    """One name in a listing. `path` is what reaches it from the workspace; `target` is where a link points to."""

    path: str
    kind: Kind
    size: int = 0
    target: str = ""


class FileLines(NamedTuple):
    """Lines of a file: those from `first` up to `after`, counted from 0; empty past the end, where `first` is how many
    there are. `more` says that some follow; `cut` that the one line here is longer than was asked for, this is its
    beginning, and what follows it was not looked for. `size` and `head` are the whole file's."""

    data: bytes
    first: int
    after: int
    size: int
    head: bytes
    more: bool = False
    cut: bool = False


class FileContents(NamedTuple):
    """A whole file. `version` stands for its content, for a `write` that must not overwrite another."""

    data: bytes
    version: str


class WriteResult(NamedTuple):
    """`replaced` is the size of the file that was there before; None when there was none."""

    replaced: int | None


class FileFilter(Frozen, frozen=True):
    """Which files below a folder: those that fit `glob` (all when it is empty). Names that begin with a dot and what
    `HEAVY` names are left out, with all below them, unless `hidden`."""

    glob: str = ""
    hidden: bool = False


HEAVY = frozenset({"node_modules", "__pycache__"})
"""Folders of files that nobody wrote, and that are more than all others together."""


class Listing(NamedTuple):
    """`left_out` are the first names that were left out by the rule of `FileFilter`; `stopped` says why it is not all."""

    entries: tuple[FileEntry, ...]
    left_out: tuple[str, ...] = ()
    stopped: str = ""


class SearchQuery(Frozen, frozen=True):
    """What to search for: lines that fit `pattern`, with `context` lines around each, at most `limit` of them."""

    pattern: Pattern
    choice: FileFilter = FileFilter()
    context: int = 0
    limit: int = 50


class HitLine(NamedTuple):
    """A line that was found, or stands near one. `text` is the part around the match when the line is long; `before`
    and `after` say that something of it is missing there."""

    number: int
    text: str
    found: bool
    before: bool = False
    after: bool = False


class FileHit(NamedTuple):
    """A file in which something was found, and the lines in order; `changed` says that it was changed meanwhile, and
    that its lines are not known."""

    path: str
    lines: tuple[HitLine, ...]
    changed: bool = False


class SearchResult(NamedTuple):
    """`files` is how many were searched. `more` says that there are more lines than the limit, and that nothing behind
    them was searched; `stopped` why not all was searched; `large` and `binary` count the files that were left out for
    being so."""

    hits: tuple[FileHit, ...]
    files: int
    more: bool = False
    stopped: str = ""
    left_out: tuple[str, ...] = ()
    large: int = 0
    binary: int = 0


class FileStamp(NamedTuple):
    """By which a file is known to be as it was."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


def file_stamp(fd: int) -> FileStamp:
    status = os.fstat(fd)
    return FileStamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Files(Protocol):
    """The files of one session."""

    async def lines(self, path: str, *, offset: int, lines: int, max_bytes: int) -> FileLines:
        """At most so many lines and bytes of a file after the first `offset` lines; whole lines, if one fits."""
        ...

    async def load(self, path: str, *, limit: int) -> FileContents:
        """All of a file that has at most `limit` bytes."""
        ...

    def opened(self, path: str) -> AbstractAsyncContextManager[int]:
        """A descriptor of a file, for who hands it on; closed at the end of the block."""
        ...

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> WriteResult:
        """Puts a whole file in the place of what was there, at once; folders on the way are made. With `expected`, only
        if the content is still that version."""
        ...

    async def list(self, path: str, choice: FileFilter, *, recursive: bool, limit: int) -> Listing:
        """What is in a folder, in the order of names, a folder followed by what is in it. Links are not followed."""
        ...

    async def search(self, path: str, query: SearchQuery) -> SearchResult:
        """The lines that fit, in a file or below a folder, in the order of `list`."""
        ...
