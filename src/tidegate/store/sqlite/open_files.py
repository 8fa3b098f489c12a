"""Whether the store's path still leads to the files that are open, and a copy of them when it does not.

A deleted, renamed, replaced or truncated database goes on working in the process that has it open, and everything that
is written to it is gone when that process ends. `OpenFiles.lost` finds out with one `stat` per file, so that the
writer can afford it before every commit. `rescue` then writes everything committed so far to a new file beside the old
path. Neither opens the database a second time: closing such a descriptor would drop SQLite's locks.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import apsw

from tidegate.store.sqlite.files import free_name

_SUFFIXES = ("", "-wal", "-shm")


class Loss(NamedTuple):
    """What became of the files, as the beginning of a sentence; `whole` when what is open still holds everything."""

    text: str
    whole: bool = True


class OpenFiles:
    """The database, its log and its index, as they are open. Belongs to the writer's thread."""

    def __init__(self, path: Path) -> None:
        self._paths = tuple(path.with_name(path.name + suffix) for suffix in _SUFFIXES)
        self._known: tuple[tuple[int, int], ...] = ()
        self.bytes = 0
        self._modified = 0
        self.touched = False
        """Whether another program has written to the database since this was last set to False."""

    def remember(self) -> None:
        """Takes the files as they are now for the open ones; to be called before anybody else knows of them."""
        self._known = tuple(_identity(path.stat()) for path in self._paths)
        self.measure(0)

    def measure(self, least: int) -> None:
        """Only a checkpoint writes to the file: to be called after each. `least` is the length of the database as the
        connection knows it: a file that became shorter than that was cut off, and is not measured."""
        with contextlib.suppress(OSError):  # `lost` tells of a file that is gone
            found = self._paths[0].stat()
            if found.st_size >= min(self.bytes, least):
                self.bytes, self._modified = found.st_size, found.st_mtime_ns

    def lost(self, log_bytes: int, *, index: bool) -> Loss | None:
        """What is wrong; None when all is as it should be. `log_bytes` is how long the log is at least; `index` says to
        look at the index too, which holds nothing that is not in the log."""
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
            return Loss(f"{path} was cut off by another program ({found.st_size} bytes of {least})", whole=False)
        if which == 0 and found.st_mtime_ns != self._modified:
            self.touched, self._modified = True, found.st_mtime_ns
        return None

    def whereabouts(self) -> str | None:
        """Where the open database is now, if it still has a name; as the kernel knows it."""
        for entry in Path("/proc/self/fd").iterdir():
            try:
                found = entry.stat()
                if _identity(found) == self._known[0] and found.st_nlink:
                    return str(entry.readlink())
            except OSError:
                continue  # a descriptor that was closed meanwhile
        return None


def rescue(db: apsw.Connection, path: Path) -> Path:
    """Copies everything that is committed in `db` to a new file beside `path`. OSError or apsw.Error when it cannot."""
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
