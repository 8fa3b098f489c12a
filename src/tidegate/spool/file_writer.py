"""One file of the spool while it is written.

Guarantee: the file is new, the gateway's alone, and reached through no link. Its methods block and are called in
threads; whatever their order, and although a cancelled caller leaves a thread at work behind it, the descriptor is
closed once and a dropped file is gone. Owned by whoever writes it, who ends it with `close` or `drop`.
"""

import os
import threading
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700


class FileWriter:
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
