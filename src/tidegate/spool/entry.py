"""Writing a result to the spool: first its file, then its row.

A result is stored completely or not at all: its row is written only when the file is complete. If the file cannot be
written, or exceeds the session's quota, it is removed, `lost` contains the reason, and the caller can continue. If
writing is cancelled, at most a file is left behind, which the next sweep removes. The caller must finish an entry with
`keep` or `drop`.
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
"""The limit, per turn or per message from a caller, for media that are stored inside messages because the spool refused
them. It is enough for a full-screen photograph or for two minutes of speech. These media stay in memory with their
conversation: at most 128 MiB for all turns together (limits.turns)."""


FILE_MODE = 0o600
FOLDER_MODE = 0o700


class FileWriter:
    """Writes one file in the spool.

    The file is always new, private to the gateway, and opened without following links. The methods block and are called
    in threads, in any order: the descriptor is closed exactly once, and a dropped file is removed even if a cancelled
    caller leaves a thread behind. The caller must finally call `close` or `drop`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._fd = -1
        self._made = False
        self._ended = False

    def open(self) -> None:
        """Creates the file, and the session's folder if it does not exist."""
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
        """Closes the file and keeps it. Raises OSError if the disk reports an error belatedly."""
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
    """The unused part of `UNSPOOLED_BYTES` in one turn or message."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = UNSPOOLED_BYTES

    def take(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


class EntryFolder(Protocol):
    """An entry's destination: a session's folder and its remaining quota."""

    unspooled: InlineAllowance

    async def begin(self) -> tuple[str, FileWriter, int]:
        """Returns a new id, a writer for its file, and the maximum size. From then on, the sweep ignores the file."""
        ...

    async def keep(self, id: str, bytes: int, lines: int, media_type: str) -> str:
        """Writes the row. Returns the reason if it was refused, otherwise an empty string."""
        ...

    def refuse(self, error: OSError | None) -> None:
        """Counts an entry that was lost because of `error` or the quota."""
        ...

    def leave(self, id: str) -> None:
        """Marks the entry as no longer being written."""
        ...


class SpoolEntry:
    """A result that is being written. `id` is set once the result is stored; `lost` is the reason if it could not be
    stored."""

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
        # From here on, the row may be committed even if we are cancelled, so the file must not be removed. If the row
        # is not committed, the sweep removes the file.
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
        """Removes the file unless it has been kept. The file is removed even if the caller is cancelled repeatedly."""
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
                log.warning("a spool file could not be removed yet", id=self._name, error=error.strerror)
            self._folder.leave(self._name)
            break
        if interrupted is not None:
            raise interrupted

    async def _refuse(self, error: OSError) -> None:
        await self._lose(f"it could not be written ({error.strerror})", error)

    async def _lose(self, why: str, error: OSError | None = None) -> None:
        self.lost = why
        self._folder.refuse(error)
        await self.drop()
