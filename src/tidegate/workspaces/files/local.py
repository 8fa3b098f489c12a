"""The files of this machine, below the mounts of a session.

Guarantee: nothing outside the mounts is read, written or named, whatever becomes of folders and links meanwhile
(`mounts`); only regular files are opened; memory of a call is bounded whatever the size of a file or folder. All of it
is done in worker threads, which end soon after whoever waits is cancelled; a write that has been done stays done. It
owns nothing between calls.
"""

import os
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing

from anyio import from_thread, to_thread

from tidegate.errors import ToolFailed
from tidegate.workspaces.children import Spawner
from tidegate.workspaces.files.globs import Glob
from tidegate.workspaces.files.mounts import Mount, Spot, at, joined, link_target, open_file, refer, shown
from tidegate.workspaces.files.paging import page
from tidegate.workspaces.files.replacing import replace, version
from tidegate.workspaces.files.searching import search
from tidegate.workspaces.files.values import Choice, Entry, Found, Lines, Listing, Loaded, Query, Written
from tidegate.workspaces.files.walking import Step, Walk

CHUNK = 256 * 1024


class LocalFiles:
    """`mounts` are what can be reached; relative paths start in the first. `spawner` starts what searches, and
    `ripgrep` is false where that must not be the system's."""

    def __init__(self, mounts: Sequence[Mount], spawner: Spawner, *, ripgrep: bool = True) -> None:
        self.mounts = tuple(mounts)
        self._spawner = spawner
        self._ripgrep = ripgrep

    async def lines(self, path: str, *, offset: int, lines: int, max_bytes: int) -> Lines:
        return await to_thread.run_sync(self._lines, path, offset, lines, max_bytes)

    async def load(self, path: str, *, limit: int) -> Loaded:
        return await to_thread.run_sync(self._load, path, limit)

    @asynccontextmanager
    async def opened(self, path: str) -> AsyncIterator[int]:
        fd = await to_thread.run_sync(self._open, path)
        try:
            yield fd
        finally:
            os.close(fd)

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> Written:
        return await to_thread.run_sync(self._write, path, data, expected)

    async def list(self, path: str, choice: Choice, *, recursive: bool, limit: int) -> Listing:
        return await to_thread.run_sync(self._list, path, choice, recursive, limit)

    async def search(self, path: str, query: Query) -> Found:
        return await search(self.mounts, self._spawner, path, query, ripgrep=self._ripgrep)

    # -- in a thread --

    def _lines(self, path: str, offset: int, lines: int, max_bytes: int) -> Lines:
        with at(self.mounts, path) as spot:
            fd = open_file(spot)
            try:
                return page(fd, offset, lines, max_bytes, path)
            finally:
                os.close(fd)

    def _open(self, path: str) -> int:
        with at(self.mounts, path) as spot:
            return open_file(spot)

    def _load(self, path: str, limit: int) -> Loaded:
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
        return Loaded(whole := bytes(data), version(whole))

    def _write(self, path: str, data: bytes, expected: str | None) -> Written:
        if path.endswith("/"):
            raise ToolFailed(f"{shown(path)} names a folder; choose the path of a file.")
        with at(self.mounts, path, make=expected is None) as spot:
            return Written(replace(spot, data, expected))

    def _list(self, path: str, choice: Choice, recursive: bool, limit: int) -> Listing:
        glob = Glob(choice.glob)
        walk = Walk(choice, recursive=recursive)
        entries: list[Entry] = []
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


def _refuse_no_folder(spot: Spot) -> None:
    if spot.fd < 0:
        raise ToolFailed(f"There is no folder {shown(spot.path)}; list_files without a path shows what is there.")
    if not spot.is_folder:
        raise ToolFailed(f"{shown(spot.path)} is not a folder; read_file reads a file.")


def _entry(step: Step, path: str) -> Entry | None:
    """What is under a name now; None when it is gone."""
    try:
        fd, status = refer(step.name, step.folder)
    except OSError:
        return None
    try:
        if stat.S_ISLNK(status.st_mode):
            return Entry(path, "link", target=link_target(fd))
        if stat.S_ISDIR(status.st_mode):
            return Entry(path, "folder")
        return Entry(path, "file" if stat.S_ISREG(status.st_mode) else "other", status.st_size)
    finally:
        os.close(fd)
