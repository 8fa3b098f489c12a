"""The hand that writes a recording.

Guarantee: the file is new, its owner's alone, and reached through no link; nothing is ever overwritten. Lines are
written whole and in order, each at once, by one thread, and nobody on the loop waits for it. When the disk refuses or
does not keep up, or the file is as large as it may be, that is told once, the file ends with a whole line, and whoever
records goes on without. The pen owns its file and its thread, from `open` to `close`, both of which block.
"""

import contextlib
import errno
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from tidegate.errors import Misconfigured
from tidegate.log import Log
from tidegate.models.recording.recording_file import Event, RecordingStopped, line, opening

PENDING_BYTES = 64 * 1024 * 1024
"""Of bodies that wait to be written: some seconds of a slow disk."""
PENDING_LINES = 10_000
"""The same for what has no body."""
LAST_LINE_BYTES = 1024
"""Kept free for the line that says why it is the last."""
CLOSE_SECONDS = 10.0
"""For what waits to be written at the end; a gateway that stops cannot wait for a disk that never answers."""
FILE_MODE = 0o600

log = Log(__name__)

Making = Callable[[], Event]


class RecordingWriter:
    def __init__(self, path: Path, most_bytes: int) -> None:
        self.path = path
        self.bytes = 0
        """Written so far."""
        self.stopped: str | None = None
        """Why nothing is written any more."""
        self._most = most_bytes
        self._fd = -1
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._lines: queue.Queue[tuple[Making, int] | None] = queue.Queue(PENDING_LINES)
        self._pending = 0
        self._said = False

    @property
    def pending(self) -> int:
        """Bytes of bodies that are held to be written."""
        return self._pending

    def open(self) -> None:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self.path, flags, FILE_MODE)
            self._append(opening())
        except OSError as error:
            if self._fd >= 0:  # it is ours, and nothing is in it
                self.path.unlink(missing_ok=True)
            self._close_file()
            raise _unusable(self.path, error) from None
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    def write(self, make: Making, size: int) -> None:
        """Have a line written; it is made by the thread that writes it. `size` is about what it holds meanwhile."""
        if self.stopped is not None or self._thread is None:
            return
        try:
            if self._pending and self._pending + size > PENDING_BYTES:
                raise queue.Full
            self._lines.put_nowait((make, size))
        except queue.Full:
            self._stop("the disk does not keep up")
            return
        self._count(size)

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=CLOSE_SECONDS)
            thread.join(CLOSE_SECONDS)
        if thread.is_alive():
            self._stop("the disk did not take the rest in time")

    # -- in the thread --

    def _run(self) -> None:
        try:
            while (waiting := self._lines.get()) is not None:
                make, size = waiting
                self._write(make)
                self._count(-size)
                del waiting, make  # the next may be long in coming
            self._say_why()
        finally:
            self._close_file()

    def _write(self, make: Making) -> None:
        if self.stopped is not None:
            self._say_why()
            return
        try:
            text = line(make())
            if self.bytes + len(text) > self._most - LAST_LINE_BYTES:
                self._stop(f"it would be larger than {self._most} bytes")
            else:
                self._append(text)
        except OSError as error:
            self._stop(f"the disk refuses ({error.strerror})")
        except Exception as error:  # whatever it is, the gateway goes on, and nothing half-made is written
            log.exception("a line of the recording could not be made", file=str(self.path))
            self._stop(f"a line could not be made ({type(error).__name__})")
        self._say_why()

    def _append(self, text: bytes) -> None:
        view = memoryview(text)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.bytes)
                os.lseek(self._fd, self.bytes, os.SEEK_SET)
            raise
        self.bytes += len(text)

    def _say_why(self) -> None:
        """In the file, once, if it has been stopped."""
        if self.stopped is not None and not self._said:
            self._said = True
            with contextlib.suppress(OSError):  # it is in the log, too
                self._append(line(RecordingStopped(self.stopped)))

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # -- in either --

    def _count(self, size: int) -> None:
        with self._lock:
            self._pending += size

    def _stop(self, why: str) -> None:
        with self._lock:
            if self.stopped is not None:
                return
            self.stopped = why
        log.error("the recording stopped, and the gateway goes on without", file=str(self.path), why=why)


def check(path: Path) -> None:
    """Whether a recording could be begun there, as far as can be said without making one. Blocks."""
    if os.path.lexists(path):
        raise _unusable(path, FileExistsError())
    if not path.parent.is_dir():
        raise _unusable(path, FileNotFoundError())
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise _unusable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _unusable(path: Path, error: OSError) -> Misconfigured:
    """Why nothing can be recorded there, and what to do."""
    if isinstance(error, FileExistsError):
        return Misconfigured(
            f"{path} exists already, and a recording overwrites nothing: move it or name another file."
        )
    if isinstance(error, FileNotFoundError):
        return Misconfigured(f"The folder of {path} does not exist: make it, or record elsewhere.")
    return Misconfigured(f"{path} cannot be written ({error.strerror}): record elsewhere.")
