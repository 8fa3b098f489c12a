"""One result on its way into the spool: its file, then its row.

Guarantee: it is kept whole or not at all. A row is written only when the file is complete; what the disk refuses, or
the session's quota has no room for, leaves no file and says why in `lost`, and whoever writes goes on. Cancelled at any
point, it leaves nothing, or a file that the sweep finds. Owned by whoever writes it, who ends it with `keep` or `drop`.
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
"""Of media that the spool refuses and that goes into messages instead, in one turn or with one message of a caller: a
photograph at the size of a screen, or two minutes of speech. It is held in memory with its conversation, so all turns
at once (limits.turns) hold 128 MiB of it at most."""


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
        """Makes the file, and its folder if it is the session's first."""
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
        """The file stays. A disk that refuses late says so here."""
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
    """How much of that is left to one turn or message."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = UNSPOOLED_BYTES

    def take(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


class EntryFolder(Protocol):
    """Where an entry goes: the session's folder, and what is left of its quota."""

    unspooled: InlineAllowance

    async def begin(self) -> tuple[str, FileWriter, int]:
        """A new id, its file, and the bytes that it may take. From now on the sweep leaves it alone."""
        ...

    async def keep(self, id: str, bytes: int, lines: int, media_type: str) -> str:
        """Writes down that it is there; why that could not be, or nothing."""
        ...

    def refuse(self, error: OSError | None) -> None:
        """Counts one that was not kept: because of `error`, or for want of quota."""
        ...

    def leave(self, id: str) -> None:
        """It is no longer written to."""
        ...


class SpoolEntry:
    """`id` is its name once it is kept; `lost` says why it was not."""

    def __init__(self, place: EntryFolder) -> None:
        self._place = place
        self._sink: FileWriter | None = None
        self._name = ""
        self._room = 0
        self.id = ""
        self.lost = ""

    async def begin(self) -> None:
        self._name, self._sink, self._room = await self._place.begin()
        try:
            await to_thread.run_sync(self._sink.open)
        except OSError as error:
            await self._refuse(error)

    async def put(self, data: bytes | bytearray) -> None:
        if self._sink is None:
            return
        self._room -= len(data)
        if self._room < 0:
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
        # From here on the row may be committed although we are cancelled, so the file has to stay; if it is not, the
        # sweep finds a file without a row.
        sink, self._sink = self._sink, None
        why = ""
        try:
            why = await self._place.keep(self._name, bytes, lines, media_type)
            self._sink = sink if why else None
        except TidegateError:
            self._sink = sink
            raise
        finally:
            if self._sink is None:
                self._place.leave(self._name)
        if why:
            await self._lose(why)
        else:
            self.id = self._name

    async def drop(self) -> None:
        """The file, if it is still ours. It goes before the caller does, however often that is cancelled."""
        sink, self._sink = self._sink, None
        interrupted: asyncio.CancelledError | None = None
        while sink is not None:
            try:
                with CancelScope(shield=True):
                    await to_thread.run_sync(sink.drop)
            except asyncio.CancelledError as error:  # then the thread may not have begun
                interrupted = error
                continue
            except OSError as error:
                log.warning("a file of the spool is left to the sweep", id=self._name, error=error.strerror)
            self._place.leave(self._name)
            break
        if interrupted is not None:
            raise interrupted

    async def _refuse(self, error: OSError) -> None:
        await self._lose(f"the disk refused it ({error.strerror})", error)

    async def _lose(self, why: str, error: OSError | None = None) -> None:
        self.lost = why
        self._place.refuse(error)
        await self.drop()
