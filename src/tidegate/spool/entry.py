"""One result that is being written to the spool: first its file, then its row.

A result is kept completely or not at all. Its row is written only when the file is complete. If the disk refuses it, or
it exceeds the session's quota, no file is left, `lost` gives the reason, and the writer can continue. A cancelled entry
leaves nothing behind, or a file that the sweep finds. The writer owns the entry and must end it with `keep` or `drop`.
"""

import asyncio
import os
import threading
from pathlib import Path
from typing import Protocol

from anyio import CancelScope, to_thread

from tidegate.errors import TidegateError
from tidegate.log import Log

log = Log(__name__)

QUOTA = "this conversation has used up its limits.spool_bytes"

UNSPOOLED_BYTES = 2 * 1024 * 1024
"""Bytes of media that go into messages because the spool refused them, per turn or per message of a caller: a
photograph of the size of a screen, or two minutes of speech. They are in memory with their conversation, so all turns
together (limits.turns) hold at most 128 MiB of them."""


FILE_MODE = 0o600
FOLDER_MODE = 0o700


class FileWriter:
    """One file of the spool while it is written.

    The file is new, accessible to the gateway only, and reached through no link. The methods block and are called in
    threads. In any order of calls, and even if a cancelled caller leaves a thread behind, the descriptor is closed once
    and a dropped file is removed. The writer must end it with `close` or `drop`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._fd = -1
        self._made = False
        self._ended = False

    def open(self) -> None:
        """Creates the file, and the folder if it is the session's first."""
        with self._lock:
            if self._ended:
                return
            folder = self._path.parent
            folder.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
            folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self._path, flags, FILE_MODE)
            self._made = True

    def write(self, data: bytes | bytearray) -> None:
        with self._lock:
            if self._ended:
                return
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]

    def close(self) -> None:
        """Keeps the file. Raises OSError if the disk reports a late failure."""
        with self._lock:
            self._end()

    def drop(self) -> None:
        with self._lock:
            try:
                self._end()
            finally:
                if self._made:
                    self._made = False
                    self._path.unlink(missing_ok=True)

    def _end(self) -> None:
        self._ended = True
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class InlineAllowance:
    """The part of `UNSPOOLED_BYTES` that one turn or message has left."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = UNSPOOLED_BYTES

    def take(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


class EntryFolder(Protocol):
    """The destination of an entry: the session's folder, with the rest of its quota."""

    unspooled: InlineAllowance

    async def begin(self) -> tuple[str, FileWriter, int]:
        """Returns a new id, its file, and the bytes it may use. From now on the sweep ignores it."""
        ...

    async def keep(self, id: str, bytes: int, lines: int, media_type: str) -> str:
        """Writes the row. Returns the reason if that was not possible, otherwise an empty string."""
        ...

    def refuse(self, error: OSError | None) -> None:
        """Counts an entry that was not kept because of `error` or the quota."""
        ...

    def leave(self, id: str) -> None:
        """Reports that the entry is no longer being written."""
        ...


class SpoolEntry:
    """`id` is set once the entry is kept; `lost` is the reason if it was not."""

    def __init__(self, folder: EntryFolder) -> None:
        self._folder = folder
        self._sink: FileWriter | None = None
        self._name = ""
        self._space = 0
        self.id = ""
        self.lost = ""

    async def begin(self) -> None:
        self._name, self._sink, self._space = await self._folder.begin()
        try:
            await to_thread.run_sync(self._sink.open)
        except OSError as error:
            await self._refuse(error)

    async def put(self, data: bytes | bytearray) -> None:
        if self._sink is None:
            return
        self._space -= len(data)
        if self._space < 0:
            await self._lose(QUOTA)
            return
        try:
            await to_thread.run_sync(self._sink.write, data)
        except OSError as error:
            await self._refuse(error)

    async def keep(self, *, bytes: int, lines: int = 0, media_type: str = "text/plain") -> None:
        if self._sink is None:
            return
        try:
            await to_thread.run_sync(self._sink.close)
        except OSError as error:
            await self._refuse(error)
            return
        # From here on the row may be committed even if we are cancelled, so the file must stay. If the row is not
        # committed, the sweep finds a file without a row.
        sink, self._sink = self._sink, None
        why = ""
        try:
            why = await self._folder.keep(self._name, bytes, lines, media_type)
            self._sink = sink if why else None
        except TidegateError:
            self._sink = sink
            raise
        finally:
            if self._sink is None:
                self._folder.leave(self._name)
        if why:
            await self._lose(why)
        else:
            self.id = self._name

    async def drop(self) -> None:
        """Removes the file if it was not kept. This completes before the caller continues, however often it is
        cancelled."""
        sink, self._sink = self._sink, None
        interrupted: asyncio.CancelledError | None = None
        while sink is not None:
            try:
                with CancelScope(shield=True):
                    await to_thread.run_sync(sink.drop)
            except asyncio.CancelledError as error:  # the thread may not have started
                interrupted = error
                continue
            except OSError as error:
                log.warning("a file of the spool is left to the sweep", id=self._name, error=error.strerror)
            self._folder.leave(self._name)
            break
        if interrupted is not None:
            raise interrupted

    async def _refuse(self, error: OSError) -> None:
        await self._lose(f"the disk refused it ({error.strerror})", error)

    async def _lose(self, why: str, error: OSError | None = None) -> None:
        self.lost = why
        self._folder.refuse(error)
        await self.drop()
