"""The files below the mounts of a session, one call after the other.

Guarantee: nothing outside the mounts is read, written or named, whatever becomes of folders and links meanwhile
(`mounts`); only regular files are opened; memory of a call is bounded whatever the size of a file or folder. It owns
nothing between calls. It blocks: it is for worker threads, and, sent there, for other machines.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import closing

from anyio import from_thread

from tidegate.errors import ToolFailed
from tidegate.workspaces.files.atomic_write import replace, version
from tidegate.workspaces.files.globs import Glob
from tidegate.workspaces.files.line_pages import page
from tidegate.workspaces.files.mounts import Mount, ResolvedPath, at, joined, link_target, open_file, refer, shown
from tidegate.workspaces.files.values import FileContents, FileEntry, FileFilter, FileLines, Listing, WriteResult
from tidegate.workspaces.files.walk import FolderWalk, WalkStep

CHUNK = 256 * 1024


class Filesystem:
    """`mounts` are what can be reached; relative paths start in the first."""

    def __init__(self, mounts: Sequence[Mount]) -> None:
        self.mounts = tuple(mounts)

    def lines(self, path: str, offset: int, lines: int, max_bytes: int) -> FileLines:
        with at(self.mounts, path) as spot:
            fd = open_file(spot)
            try:
                return page(fd, offset, lines, max_bytes, path)
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
                while len(data) <= limit and (chunk := os.read(fd, min(CHUNK, limit + 1 - len(data)))):
                    from_thread.check_cancelled()
                    data += chunk
            finally:
                os.close(fd)
        if len(data) > limit:
            raise ToolFailed(f"{shown(path)} has {max(size, len(data))} bytes, more than the {limit} that fit here.")
        return FileContents(whole := bytes(data), version(whole))

    def write(self, path: str, data: bytes, expected: str | None) -> WriteResult:
        if path.endswith("/"):
            raise ToolFailed(f"{shown(path)} names a folder; choose the path of a file.")
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
                    if not glob.fits(step.path):
                        continue
                    if len(entries) == limit:
                        walk.stopped = f"there are more than {limit}"
                        break
                    if (entry := _entry(step, joined(path, step.path))) is not None:
                        entries.append(entry)
        return Listing(tuple(entries), tuple(joined(path, name) for name in walk.left_out), walk.stopped)


def _refuse_no_folder(spot: ResolvedPath) -> None:
    if spot.fd < 0:
        raise ToolFailed(f"There is no folder {shown(spot.path)}; list_files without a path shows what is there.")
    if not spot.is_folder:
        raise ToolFailed(f"{shown(spot.path)} is not a folder; read_file reads a file.")


def _entry(step: WalkStep, path: str) -> FileEntry | None:
    """What is under a name now; None when it is gone."""
    try:
        fd, status = refer(step.name, step.folder)
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
