"""Checks that the store's path still leads to the open files, and rescues their content if it does not.

A deleted, renamed, replaced or truncated database still works in the process that has it open, but everything written
to it is lost when that process ends. `OpenFiles.lost` detects this with one `stat` per file, cheap enough for every
commit. `rescue` then copies everything committed so far to a new file beside the old path. Neither opens the database a
second time: closing such a descriptor would drop SQLite's locks.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import apsw

from tidegate.store.sqlite.files import free_name

_SUFFIXES = ("", "-wal", "-shm")


class Loss(NamedTuple):
    """A loss of the files, described by the beginning of a sentence; `intact` if the open files still hold
    everything."""

    text: str
    intact: bool = True


class OpenFiles:
    """The open database, log and index. Belongs to the writer's thread."""

    def __init__(self, path: Path) -> None:
        self._paths = tuple(path.with_name(path.name + suffix) for suffix in _SUFFIXES)
        self._known: tuple[tuple[int, int], ...] = ()
        self.bytes = 0
        self._modified = 0
        self.touched = False
        """Whether another program has written to the database since this was last set to False."""

    def remember(self) -> None:
        """Records the identity of the open files. Call it before any other process can know of them."""
        self._known = tuple(_identity(path.stat()) for path in self._paths)
        self.measure(0)

    def measure(self, least: int) -> None:
        """Records the size of the file. Call it after each checkpoint, since only checkpoints write to the file.
        `least` is the length of the database as the connection knows it: a shorter file was truncated, and is not
        measured."""
        with contextlib.suppress(OSError):  # `lost` reports a file that is gone
            found = self._paths[0].stat()
            if found.st_size >= min(self.bytes, least):
                self.bytes, self._modified = found.st_size, found.st_mtime_ns

    def lost(self, log_bytes: int, *, index: bool) -> Loss | None:
        """The loss, or None. `log_bytes` is the least length of the log; `index` says to check the index too, which
        holds nothing that is not in the log."""
        return self._lost(0, self.bytes) or self._lost(1, log_bytes) or (self._lost(2, 0) if index else None)

    def _lost(self, which: int, least: int) -> Loss | None:
        path = self._paths[which]
        try:
            found = path.stat()
        except OSError as error:
            return Loss(f"{path} is gone ({error.strerror})")
        if (found.st_dev, found.st_ino) != self._known[which]:
            return Loss(f"{path} was replaced by another file")
        if found.st_size < least:
            return Loss(f"{path} was truncated by another program ({found.st_size} bytes of {least})", intact=False)
        if which == 0 and found.st_mtime_ns != self._modified:
            self.touched, self._modified = True, found.st_mtime_ns
        return None

    def whereabouts(self) -> str | None:
        """The current path of the open database, as the kernel knows it, if it still has one."""
        for entry in Path("/proc/self/fd").iterdir():
            try:
                found = entry.stat()
                if _identity(found) == self._known[0] and found.st_nlink:
                    return str(entry.readlink())
            except OSError:
                continue  # a descriptor that was closed in the meantime
        return None


def rescue(db: apsw.Connection, path: Path) -> Path:
    """Copies everything that is committed in `db` to a new file beside `path`. Raises OSError or apsw.Error if that
    fails."""
    target = free_name(path, "rescued")
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        copy = apsw.Connection(str(target), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            with copy.backup("main", db, "main") as backup:
                while not backup.done:
                    backup.step(-1)
        finally:
            copy.close()
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return target


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
