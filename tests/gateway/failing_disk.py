"""The program with a disk that fails: `python -m tests.gateway.failing_disk FILE up …`.

While FILE exists, every write to the database's log fails with an input/output error, as the kernel would report it.
"""

import errno
import sys
from pathlib import Path
from typing import Any

import apsw

from tidegate.__main__ import main

BASE = "unix"


class FailingFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], broken: Path) -> None:
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        self._broken = broken
        super().__init__(BASE, name, flags)

    def xWrite(self, data: Any, offset: int) -> None:
        if self._path.endswith("-wal") and self._broken.exists():
            error = apsw.IOError("the disk fails")
            error.extendedresult = apsw.SQLITE_IOERR_WRITE
            raise error
        super().xWrite(data, offset)


class FailingDisk(apsw.VFS):
    def __init__(self, broken: Path) -> None:
        self._broken = broken
        super().__init__("failing", BASE, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> FailingFile:
        return FailingFile(name, flags, self._broken)

    def xGetLastError(self) -> tuple[int, str]:
        return errno.EIO, ""


if __name__ == "__main__":
    disk = FailingDisk(Path(sys.argv.pop(1)))
    main()
