"""A background process's output, of which the latest part is stored on disk.

However much a process writes, its log never exceeds its limit. It has two files; the older one is dropped when the
newer one reaches half of the limit. Positions are absolute offsets that stay valid when output is dropped and after a
restart. Dropped output is reported as a number of bytes. If writing to the disk fails, the process continues, and the
output that could not be written counts as dropped. The log owns its two files. All methods block and belong in worker
threads.
"""

import contextlib
import os
import threading
from pathlib import Path
from typing import NamedTuple

from tidegate.log import Log

log = Log(__name__)

NEW, OLD = ".log", ".old"
FILE_MODE = 0o600
FOLDER_MODE = 0o700
_HEADER = 21  # the offset of a file's first byte in twenty digits, and a line break


class LogPiece(NamedTuple):
    """Bytes from the output and their offset; `total` is the length of all output."""

    data: bytes
    start: int
    total: int


class ProcessLog:
    """A process's log. Only its supervisor writes to it; anybody may read it."""

    def __init__(self, base: Path, limit: int) -> None:
        self._base = base
        self._half = limit // 2
        self._lock = threading.Lock()
        self._fd = -1
        self._in_file = 0
        self._refused = False
        self.total = 0

    @property
    def _new(self) -> Path:
        return self._base.with_name(self._base.name + NEW)

    @property
    def _old(self) -> Path:
        return self._base.with_name(self._base.name + OLD)

    # -- writing --

    def append(self, data: bytes) -> None:
        with self._lock:
            view = memoryview(data)
            while view:
                if self._fd < 0 or self._in_file >= self._half:
                    self._begin()
                piece = view[: self._half - self._in_file]
                self._write(piece)
                self._in_file += len(piece)
                self.total += len(piece)
                view = view[len(piece) :]

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _begin(self) -> None:
        """Turns the newer file into the older one and starts a new file at this offset."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._in_file = 0
        try:
            self._base.parent.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
            self._base.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                self._new.replace(self._old)
            self._fd = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
            os.write(self._fd, b"%020d\n" % self.total)
        except OSError as error:
            self._refuse(error)

    def _write(self, data: memoryview) -> None:
        if self._fd < 0:
            return
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            # The written part has the right offsets, but whatever follows would not, so a new file is started.
            os.close(self._fd)
            self._fd = -1
            self._refuse(error)

    def _refuse(self, error: OSError) -> None:
        if not self._refused:
            log.warning(
                "a process's output is not stored: writing to the disk failed", file=self._new.name, error=str(error)
            )
        self._refused = True

    # -- reading --

    def read(self, since: int | None, limit: int) -> LogPiece:
        """Reads at most `limit` bytes from offset `since` or, if that is None, the last `limit` bytes. Dropped output
        is skipped."""
        with self._lock:
            parts = [part for part in map(_part, (self._old, self._new)) if part is not None]
            end = max((start + size for _, start, size in parts), default=0)
            total = max(self.total, end)
            at = max(0, end - limit) if since is None else since
            found, first = bytearray(), None
            for path, start, size in parts:
                if len(found) >= limit or at >= start + size:
                    continue
                if first is not None and start > at:
                    break  # output between the two files was not kept
                at = max(at, start)
                first = at if first is None else first
                piece = _copied(path, _HEADER + at - start, min(limit - len(found), start + size - at))
                found += piece
                at += len(piece)
            return LogPiece(bytes(found), total if first is None else first, total)

    def remove(self) -> None:
        with self._lock:
            for path in (self._new, self._old):
                path.unlink(missing_ok=True)


def _part(path: Path) -> tuple[Path, int, int] | None:
    """Returns one of the log's files, the offset of its first byte, and its length in bytes."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
            size = os.fstat(file.fileno()).st_size - _HEADER
        return (path, int(header), size) if size >= 0 else None
    except (OSError, ValueError):
        return None


def _copied(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
