"""What the files of one session take on the disk, and a wall for whoever writes them.

Guarantee: what a tool writes does not bring the session's folders above `workspaces.disk_bytes` and `workspaces.files`;
what makes a file smaller is always let through. Deleted files that a command holds open count until it closes them.
What commands write is measured after each of them, and while they run: when it is too much, they are ended, and as long
as it is too much the kernel lets no command make a file larger, so that things can be removed and nothing else. It is
measured when it may have changed, unless that takes long: then so seldom that it takes a small part of the time. The
measure hangs on the session's record while anything of the session is present, and is made anew before anything is
written after that. It owns nothing.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from anyio import to_thread

from tidegate.errors import ToolFailed
from tidegate.workspaces.files import Files, WriteResult, shown
from tidegate.workspaces.folders import DiskUsage, disk_usage

BLOCK = 4096
"""What a file takes at least, and in whole numbers of."""

QUICK_SECONDS = 0.02
"""A measurement that takes no longer than this, as of some thousand files, is made whenever it is asked for."""

MEASURE_AGAIN = 30.0
"""Times that a longer one took, until the next: so that it takes at most some percent of the time."""

ENOUGH = 4
"""Times the limit, beyond which it is not measured how much larger a workspace is."""


class DiskLimit:
    """Of the session with these folders."""

    def __init__(self, folders: Sequence[Path], most: DiskUsage) -> None:
        self.folders = tuple(folders)
        self.most = most
        self.unnamed_bytes = 0
        """In deleted files that are open: at the last look at what runs."""
        self._used: DiskUsage | None = None
        self._promised = 0
        self._stale = False
        self._again = 0.0
        self._measuring = asyncio.Lock()

    @property
    def full(self) -> bool:
        """Whether there was too much at the last look."""
        return self._used is not None and self._taken(self._used).exceeds(self.most)

    def _taken(self, used: DiskUsage) -> DiskUsage:
        return DiskUsage(used.bytes + self.unnamed_bytes, used.files)

    def changed(self) -> None:
        """Somebody else may have written."""
        self._stale = True

    async def look(self, *, running: bool, unnamed_bytes: int = 0) -> bool:
        """Measure if something may have changed, as it always may while something is `running`. Whether that has to
        end: there has come to be too much, or even more than that. Who removes files is let go on."""
        async with self._measuring:
            before = self._taken(self._used) if self._used is not None and self.full else None
            self.unnamed_bytes = unnamed_bytes
            used = self._used
            if used is None or ((running or self._stale) and time.monotonic() >= self._again):
                used = await self._measure()
                self._stale |= running  # it goes on
            taken = self._taken(used)
            return taken.exceeds(self.most) and (before is None or taken.exceeds(before))

    @contextlib.asynccontextmanager
    async def room_for(self, count: int) -> AsyncIterator[bool]:
        """So many bytes are to be written in here; false when there is no room for them. What others are writing just
        now counts before it is there."""
        blocks = -(-count // BLOCK) * BLOCK
        async with self._measuring:
            used = self._used
            if used is None or (not self._promised and time.monotonic() >= self._again):
                used = await self._measure()
            if self._with(used, blocks).exceeds(self.most) and self._stale and not self._promised:
                used = await self._measure()  # nobody is refused for what may be gone
            there_is = not self._with(used, self._promised + blocks).exceeds(self.most)
            if there_is:
                self._promised += blocks
        if not there_is:
            yield False
            return
        try:
            yield True
        finally:
            self._promised -= blocks
            before = self._used or DiskUsage(0, 0)
            self._used = DiskUsage(before.bytes + blocks, before.files + 1)

    def _with(self, used: DiskUsage, more: int) -> DiskUsage:
        """With one more file, of so many bytes."""
        taken = self._taken(used)
        return DiskUsage(taken.bytes + more, taken.files + 1)

    async def _measure(self) -> DiskUsage:
        begun, self._stale = time.monotonic(), False
        enough = DiskUsage(ENOUGH * self.most.bytes, ENOUGH * self.most.files)
        self._used = found = await to_thread.run_sync(disk_usage, self.folders, enough)
        took = time.monotonic() - begun
        self._again = time.monotonic() + (MEASURE_AGAIN * took if took > QUICK_SECONDS else 0)
        return found

    @property
    def limit(self) -> str:
        """The setting that there is too much for."""
        return "workspaces.files" if self._used and self._used.files >= self.most.files else "workspaces.disk_bytes"

    @property
    def _allowed(self) -> str:
        if self.limit == "workspaces.files":
            return f"{self.most.files} files and folders together ({self.limit})"
        return f"{self.most.bytes // 2**20} MiB together ({self.limit})"

    @property
    def no_room(self) -> str:
        return (
            f"the files of this conversation may take {self._allowed}, "
            "and there is no room left for it; remove what is not needed"
        )

    @property
    def too_much(self) -> str:
        return (
            f"the files of this conversation take more than {self._allowed}; "
            "remove what is not needed: until then commands can remove files, and make none larger"
        )


class MeteredFiles:
    """The files of a session, whose writes are metered."""

    def __init__(self, files: Files, disk: DiskLimit) -> None:
        self._files = files
        self._disk = disk
        self.lines = files.lines
        self.load = files.load
        self.opened = files.opened
        self.list = files.list
        self.search = files.search

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> WriteResult:
        async with self._disk.room_for(len(data)) as there_is:
            if not there_is and len(data) > await self._size(path):
                raise ToolFailed(f"{shown(path)} was not written: {self._disk.no_room}.")
            return await self._files.write(path, data, expected=expected)

    async def _size(self, path: str) -> int:
        """Of what is there already and would be replaced."""
        with contextlib.suppress(ToolFailed):
            async with self._files.opened(path) as fd:
                return os.fstat(fd).st_size
        return 0
