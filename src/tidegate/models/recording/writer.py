"""The writer of a recording file.

The file is always new, private to its owner (0600) and not reached through a symbolic link; nothing is ever
overwritten. One thread writes complete lines in order and without delay; the event loop never waits for it. If the disk
fails or cannot keep up, or the file reaches its limit, the gateway logs this once and continues without recording. The
file then ends with a complete line. The writer owns its file and its thread from `open` to `close`, both of which
block.
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
"""Maximum total size of the bodies that are waiting to be written. Even a slow disk writes them in a few seconds."""
PENDING_LINES = 10_000
"""Maximum number of lines that are waiting to be written, which limits the lines without a body."""
LAST_LINE_BYTES = 1024
"""Number of bytes reserved for the last line, which says why the recording stopped."""
CLOSE_SECONDS = 10.0
"""Time limit, in seconds, for writing the remaining lines at the end. A gateway that is stopping cannot wait for a disk
that never responds."""
FILE_MODE = 0o600

log = Log(__name__)

Making = Callable[[], Event]


class RecordingWriter:
    def __init__(self, path: Path, most_bytes: int) -> None:
        self.path = path
        self.bytes = 0
        """The number of bytes written so far."""
        self.stopped: str | None = None
        """The reason why no more lines are written; None while recording."""
        self._most = most_bytes
        self._fd = -1
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._lines: queue.Queue[tuple[Making, int] | None] = queue.Queue(PENDING_LINES)
        self._pending = 0
        self._said = False

    @property
    def pending(self) -> int:
        """Total size of the bodies that are waiting to be written."""
        return self._pending

    def open(self) -> None:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self.path, flags, FILE_MODE)
            self._append(opening())
        except OSError as error:
            if self._fd >= 0:  # the file is ours and empty
                self.path.unlink(missing_ok=True)
            self._close_file()
            raise _unusable(self.path, error) from None
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    def write(self, make: Making, size: int) -> None:
        """Queues a line. `make` is called in the writer's thread; `size` is roughly the memory that the line needs
        until then."""
        if self.stopped is not None or self._thread is None:
            return
        try:
            if self._pending and self._pending + size > PENDING_BYTES:
                raise queue.Full
            self._lines.put_nowait((make, size))
        except queue.Full:
            self._stop("the disk cannot keep up")
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
            self._stop("the disk did not finish in time")

    # -- in the writer's thread --

    def _run(self) -> None:
        try:
            while (waiting := self._lines.get()) is not None:
                make, size = waiting
                self._write(make)
                self._count(-size)
                del waiting, make  # free them: it may be long until the next line
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
            self._stop(f"writing to the disk failed ({error.strerror})")
        except Exception as error:  # the gateway must continue, and no partial line is written
            log.exception("a line of the recording could not be encoded", file=str(self.path))
            self._stop(f"a line could not be encoded ({type(error).__name__})")
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
        """If recording has stopped, writes the reason as the last line, once."""
        if self.stopped is not None and not self._said:
            self._said = True
            with contextlib.suppress(OSError):  # the log has it too
                self._append(line(RecordingStopped(self.stopped)))

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # -- in either thread --

    def _count(self, size: int) -> None:
        with self._lock:
            self._pending += size

    def _stop(self, why: str) -> None:
        with self._lock:
            if self.stopped is not None:
                return
            self.stopped = why
        log.error("the recording stopped; the gateway continues without it", file=str(self.path), why=why)


def check(path: Path) -> None:
    """Raises Misconfigured if a recording could not be started at this path. Creates no file."""
    if os.path.lexists(path):
        raise _unusable(path, FileExistsError())
    if not path.parent.is_dir():
        raise _unusable(path, FileNotFoundError())
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise _unusable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _unusable(path: Path, error: OSError) -> Misconfigured:
    """Returns the error for a path that cannot be used, with advice."""
    if isinstance(error, FileExistsError):
        return Misconfigured(
            f"{path} already exists, and a recording never overwrites a file: move it or name another file."
        )
    if isinstance(error, FileNotFoundError):
        return Misconfigured(f"The folder of {path} does not exist: create it, or record elsewhere.")
    return Misconfigured(f"{path} cannot be written ({error.strerror}): record elsewhere.")
