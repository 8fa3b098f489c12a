"""What the files of one session take on the disk, and a wall for the tools that write them.

Guarantee: what a tool writes does not bring the session's folders above `workspaces.disk_bytes`; what makes a file
smaller is always let through. (What commands write is looked at while they run.) The folders are measured when first
something is written, and again when commands may have changed them; in between is added up what is written. It owns
nothing: it lives as long as the handle that it was made for.
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from anyio import to_thread

from tidegate.errors import ToolFailed
from tidegate.workspaces.files import Files, Written, shown
from tidegate.workspaces.folders import used_bytes

BLOCK = 4096
"""What a file takes at least, and in whole numbers of."""


class Disk:
    """Of the session with these folders."""

    def __init__(self, folders: Sequence[Path], most: int) -> None:
        self._folders = tuple(folders)
        self._most = most
        self._used: int | None = None
        self._measuring = asyncio.Lock()

    def changed(self) -> None:
        """Somebody else may have written."""
        self._used = None

    async def take(self, count: int) -> bool:
        """So many bytes are to be written; false when there is no room for them."""
        async with self._measuring:
            if self._used is None:
                self._used = await to_thread.run_sync(used_bytes, self._folders, self._most)
            blocks = -(-count // BLOCK) * BLOCK
            if self._used + blocks > self._most:
                return False
            self._used += blocks
            return True

    @property
    def full(self) -> str:
        return (
            f"the files of this conversation may take {self._most // 2**20} MiB together (workspaces.disk_bytes), "
            "and there is no room left for it; remove what is not needed"
        )


class MeteredFiles:
    """The files of a session, whose writes are metered."""

    def __init__(self, files: Files, disk: Disk) -> None:
        self._files = files
        self._disk = disk
        self.lines = files.lines
        self.load = files.load
        self.opened = files.opened
        self.list = files.list
        self.search = files.search

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> Written:
        if not await self._disk.take(len(data)) and len(data) > await self._size(path):
            raise ToolFailed(f"{shown(path)} was not written: {self._disk.full}.")
        return await self._files.write(path, data, expected=expected)

    async def _size(self, path: str) -> int:
        """Of what is there already and would be replaced."""
        with contextlib.suppress(ToolFailed):
            async with self._files.opened(path) as fd:
                return os.fstat(fd).st_size
        return 0
