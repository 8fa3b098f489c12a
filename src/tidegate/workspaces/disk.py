"""A session's disk quota: measures its folders and refuses writes that would exceed the limits.

A file tool never brings the session's folders above `workspaces.disk_bytes` or `workspaces.files`; a write that makes a
file smaller always succeeds. Deleted files that a command still has open count until they are closed. Usage is measured
while commands are running and after each command. When a limit is exceeded, the running commands are killed. Until
enough has been removed, the kernel does not let commands make files larger, so files can be deleted but not written.

Usage is measured when it may have changed. If a measurement is slow, further ones are spaced out so that they take only
a small share of the time. The result is stored in the record of a present session. When the session becomes present
again, usage is measured before the first write. This module owns nothing.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from anyio import to_thread

from tidegate.errors import ToolFailed
from tidegate.workspaces.bounds import DEFAULT_BOUNDS, WorkspaceBounds
from tidegate.workspaces.files import Files, WriteResult, shown
from tidegate.workspaces.session_folders import DiskUsage, disk_usage

BLOCK = 4096
"""The size of a disk block. A file occupies a whole number of blocks, at least one."""

ENOUGH = 4
"""Measuring stops at this multiple of the limit, since it does not matter by how much a workspace exceeds it."""


class DiskLimit:
    """The disk quota for the session with these folders."""

    def __init__(self, folders: Sequence[Path], most: DiskUsage, bounds: WorkspaceBounds = DEFAULT_BOUNDS) -> None:
        self.folders = tuple(folders)
        self.most = most
        self._bounds = bounds
        self.unnamed_bytes = 0
        """Bytes in deleted files that are still open, as of the last check of the running processes."""
        self._used: DiskUsage | None = None
        self._promised = 0
        self._stale = False
        self._again = 0.0
        self._measuring = asyncio.Lock()

    @property
    def full(self) -> bool:
        """True if a limit was exceeded at the last measurement."""
        return self._used is not None and self._taken(self._used).exceeds(self.most)

    def _taken(self, used: DiskUsage) -> DiskUsage:
        return DiskUsage(used.bytes + self.unnamed_bytes, used.files)

    def changed(self) -> None:
        """Records that the files may have been changed by something other than a metered write."""
        self._stale = True

    async def check(self, *, running: bool, unnamed_bytes: int = 0) -> bool:
        """Measures usage if something may have changed, which is always the case while something is `running`. Returns
        true if the running commands must be killed because a limit has just been exceeded or usage has grown further. A
        command that is removing files may continue."""
        async with self._measuring:
            before = self._taken(self._used) if self._used is not None and self.full else None
            self.unnamed_bytes = unnamed_bytes
            used = self._used
            # Do not keep a session that may have removed files waiting for the next measurement.
            due = time.monotonic() >= self._again or (before is not None and not running)
            if used is None or ((running or self._stale) and due):
                used = await self._measure()
                self._stale |= running  # commands keep writing after this measurement
            taken = self._taken(used)
            return taken.exceeds(self.most) and (before is None or taken.exceeds(before))

    @contextlib.asynccontextmanager
    async def reserve(self, count: int) -> AsyncIterator[bool]:
        """Reserves this many bytes for the block; yields false if they do not fit. Concurrent reservations count even
        before anything is written."""
        blocks = -(-count // BLOCK) * BLOCK
        async with self._measuring:
            used = self._used
            if used is None or (not self._promised and time.monotonic() >= self._again):
                used = await self._measure()
            if self._with(used, blocks).exceeds(self.most) and self._stale and not self._promised:
                used = await self._measure()  # measure again before refusing, since files may have been removed
            fits = not self._with(used, self._promised + blocks).exceeds(self.most)
            if fits:
                self._promised += blocks
        if not fits:
            yield False
            return
        try:
            yield True
        finally:
            self._promised -= blocks
            before = self._used or DiskUsage(0, 0)
            self._used = DiskUsage(before.bytes + blocks, before.files + 1)

    def _with(self, used: DiskUsage, more: int) -> DiskUsage:
        """Returns what the usage would be after writing one more file of this size."""
        taken = self._taken(used)
        return DiskUsage(taken.bytes + more, taken.files + 1)

    async def _measure(self) -> DiskUsage:
        begun, self._stale = time.monotonic(), False
        enough = DiskUsage(ENOUGH * self.most.bytes, ENOUGH * self.most.files)
        self._used = found = await to_thread.run_sync(disk_usage, self.folders, enough)
        took = time.monotonic() - begun
        self._again = time.monotonic() + (self._bounds.measure_again * took if took > self._bounds.quick_seconds else 0)
        return found

    @property
    def limit(self) -> str:
        """The setting for the limit that is exceeded."""
        return "workspaces.files" if self._used and self._used.files >= self.most.files else "workspaces.disk_bytes"

    @property
    def _allowed(self) -> str:
        if self.limit == "workspaces.files":
            return f"{self.most.files} files and folders together ({self.limit})"
        return f"{self.most.bytes // 2**20} MiB together ({self.limit})"

    @property
    def no_space_message(self) -> str:
        return (
            f"the files of this conversation may take {self._allowed}, "
            "and there is no space left for this one; remove files that are not needed"
        )

    @property
    def exceeded_message(self) -> str:
        return (
            f"the files of this conversation take more than {self._allowed}; "
            "remove files that are not needed: until then, commands can remove files but not make them larger"
        )


class MeteredFiles:
    """A session's files with its disk quota applied to writes."""

    def __init__(self, files: Files, disk: DiskLimit) -> None:
        self._files = files
        self._disk = disk
        self.lines = files.lines
        self.load = files.load
        self.opened = files.opened
        self.list = files.list
        self.search = files.search

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> WriteResult:
        async with self._disk.reserve(len(data)) as fits:
            if not fits and len(data) > await self._size(path):
                raise ToolFailed(f"{shown(path)} was not written: {self._disk.no_space_message}.")
            return await self._files.write(path, data, expected=expected)

    async def _size(self, path: str) -> int:
        """Returns the size of the existing file that a write would replace."""
        with contextlib.suppress(ToolFailed):
            async with self._files.opened(path) as fd:
                return os.fstat(fd).st_size
        return 0
