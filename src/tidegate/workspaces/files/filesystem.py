"""Synchronous file operations below a session's mounts.

Nothing outside the mounts is read, written or named, whatever happens to folders and links in the meantime (see
`mounts`). Only regular files are opened. Memory use is bounded, whatever the size of a file or folder. Pages of lines
have no gaps or overlaps: each page ends where the next one begins.

Nothing is kept between calls. The methods block: they run in worker threads and also, after the code has been sent
there, on other machines.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import closing

from anyio import from_thread

from tidegate.errors import ToolFailed
from tidegate.text_parts import after_lines, page_end
from tidegate.workspaces.files.atomic_write import replace, version
from tidegate.workspaces.files.file_values import (
    HEAD_BYTES,
    FileContents,
    FileEntry,
    FileFilter,
    FileLines,
    Listing,
    WriteResult,
)
from tidegate.workspaces.files.globs import Glob
from tidegate.workspaces.files.mounts import (
    Mount,
    ResolvedPath,
    at,
    joined,
    link_target,
    open_file,
    open_reference,
    shown,
)
from tidegate.workspaces.files.walk import FolderWalk, WalkStep

CHUNK = 256 * 1024
SCANNED_AT_MOST = 512 * 1024 * 1024
"""Limit on the data read to find a line, since everything before the line must be read. Reading more would take too
long."""


class Filesystem:
    """The operations. `mounts` are the reachable folders; relative paths start in the first."""

    def __init__(self, mounts: Sequence[Mount], *, chunk: int = CHUNK) -> None:
        """`chunk` is the number of bytes per read."""
        self.mounts = tuple(mounts)
        self._chunk = chunk

    def lines(self, path: str, offset: int, lines: int, max_bytes: int) -> FileLines:
        with at(self.mounts, path) as spot:
            fd = open_file(spot)
            try:
                return page(fd, offset, lines, max_bytes, path, self._chunk)
            finally:
                os.close(fd)

    def open(self, path: str) -> int:
        with at(self.mounts, path) as spot:
            return open_file(spot)

    def load(self, path: str, limit: int) -> FileContents:
        with at(self.mounts, path) as spot:
            fd = open_file(spot)
            try:
                size = os.fstat(fd).st_size
                data = bytearray()
                while len(data) <= limit and (chunk := os.read(fd, min(self._chunk, limit + 1 - len(data)))):
                    from_thread.check_cancelled()
                    data += chunk
            finally:
                os.close(fd)
        if len(data) > limit:
            raise ToolFailed(f"{shown(path)} has {max(size, len(data))} bytes, more than the limit of {limit}.")
        return FileContents(content := bytes(data), version(content))

    def write(self, path: str, data: bytes, expected: str | None) -> WriteResult:
        if path.endswith("/"):
            raise ToolFailed(f"{shown(path)} is a folder; choose the path of a file.")
        with at(self.mounts, path, make=expected is None) as spot:
            return WriteResult(replace(spot, data, expected))

    def list(self, path: str, choice: FileFilter, recursive: bool, limit: int) -> Listing:
        glob = Glob(choice.glob)
        walk = FolderWalk(choice, recursive=recursive)
        entries: list[FileEntry] = []
        with at(self.mounts, path) as spot:
            _refuse_no_folder(spot)
            with closing(walk.steps(spot.fd)) as steps:
                for step in steps:
                    if not glob.matches(step.path):
                        continue
                    if len(entries) == limit:
                        walk.stopped = f"there are more than {limit}"
                        break
                    if (entry := _entry(step, joined(path, step.path))) is not None:
                        entries.append(entry)
        return Listing(tuple(entries), tuple(joined(path, name) for name in walk.left_out), walk.stopped)


def _refuse_no_folder(spot: ResolvedPath) -> None:
    if spot.fd < 0:
        raise ToolFailed(f"There is no folder {shown(spot.path)}; call list_files without a path to see what exists.")
    if not spot.is_folder:
        raise ToolFailed(f"{shown(spot.path)} is not a folder; read_file reads a file.")


def _entry(step: WalkStep, path: str) -> FileEntry | None:
    """Returns the entry that currently has this name, or None if it no longer exists."""
    try:
        fd, status = open_reference(step.name, step.folder)
    except OSError:
        return None
    try:
        if stat.S_ISLNK(status.st_mode):
            return FileEntry(path, "link", target=link_target(fd))
        if stat.S_ISDIR(status.st_mode):
            return FileEntry(path, "folder")
        return FileEntry(path, "file" if stat.S_ISREG(status.st_mode) else "other", status.st_size)
    finally:
        os.close(fd)


def page(fd: int, offset: int, lines: int, max_bytes: int, path: str, chunk_bytes: int = CHUNK) -> FileLines:
    """Reads at most this many lines and bytes, starting after the first `offset` lines."""
    size = os.fstat(fd).st_size
    skipped = scanned = 0
    kept = bytearray()
    head = b""
    ended_with_break = True
    while chunk := os.read(fd, chunk_bytes):
        from_thread.check_cancelled()
        if not scanned:
            head = chunk[:HEAD_BYTES]
        scanned += len(chunk)
        ended_with_break = chunk.endswith(b"\n")
        if skipped < offset:
            breaks = chunk.count(b"\n")
            if skipped + breaks < offset:
                skipped += breaks
                if scanned >= SCANNED_AT_MOST:
                    raise ToolFailed(
                        f"Line {offset} is more than {SCANNED_AT_MOST} bytes into {shown(path)}, too far to "
                        "reach; use the terminal."
                    )
                continue
            chunk = chunk[after_lines(chunk, offset - skipped) :]
            skipped = offset
        kept += chunk
        if len(kept) > max_bytes or kept.count(b"\n") > lines:
            break
    if not kept:
        total = skipped + (not ended_with_break)
        return FileLines(b"", total, total, size, head)
    end, count = page_end(kept, lines, max_bytes)
    cut = end < len(kept) and kept[end - 1] != 0x0A
    return FileLines(bytes(kept[:end]), skipped, skipped + count, size, head, more=end < len(kept) and not cut, cut=cut)
