"""The store's files on disk: examining them before SQLite opens them, setting damaged ones aside, rescuing lost ones.

`examine` does not change the files' content. A file written by a newer program is left as it is, byte for byte. A
damaged file is renamed together with its log; it is never opened for writing and never overwritten. `examine` must run
before this process has a connection to the file, since closing a second descriptor for the file would drop SQLite's
locks.

A deleted, renamed, replaced or truncated database still works in the process that has it open, but everything written
to it is lost when that process ends. `OpenFiles.lost` detects this with one `stat` per file, cheap enough for every
commit. `rescue` then copies everything committed so far to a new file next to the old path. Neither function opens the
database a second time.
"""

import contextlib
import fcntl
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw

from tidegate.errors import StoreDamaged, StoreFailed, StoreNewer
from tidegate.store.migrations import APPLICATION_ID, CURRENT

_SUFFIXES = ("", "-wal", "-shm")
_MAGIC = b"SQLite format 3\x00"
_HEADER = 100
_WAL_HEADER = 32
_FRAME_HEADER = 24
_INDEX_LOCK = 128
"""A byte in the index that is locked by every process that has the index open. SQLite calls it the "dead man
switch"."""
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_WAL_MAGICS = (0x377F0682, 0x377F0683)
SAFE_LIBRARY = (3, 51, 3)
"""Older versions can corrupt a file in WAL mode if the log is reset while another connection writes."""


class _Broken(Exception):
    """The file is damaged. The message describes the damage and completes a sentence after "because"."""


class DatabaseLibrary(NamedTuple):
    """The database library in use. `problem` says why the store refuses it, or is None if it does not."""

    name: str
    version: str
    problem: str | None


def database_library(version: str | None = None) -> DatabaseLibrary:
    """Describes the installed library, or what it would be with the given version."""
    version = version or apsw.sqlite_lib_version()
    problem = None
    if tuple(int(part) for part in version.split(".")[:3]) < SAFE_LIBRARY:
        safe = ".".join(map(str, SAFE_LIBRARY))
        problem = f"SQLite {version} can damage a store in WAL mode; install apsw with SQLite {safe} or later."
    return DatabaseLibrary("SQLite", version, problem)


def refuse_unsafe_library(version: str | None = None) -> None:
    problem = database_library(version).problem
    if problem is not None:
        raise StoreFailed(problem)


def wal_path(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def examine(path: Path) -> str | None:
    """Checks the files. Raises StoreNewer, StoreDamaged (after setting the file aside) or StoreFailed. If the end of
    the log could not be used, returns a note for the operator with the name of the copy."""
    try:
        return _examine(path)
    except _Broken as broken:
        raise StoreDamaged(quarantine(path, str(broken))) from None
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise StoreDamaged(quarantine(path, str(error))) from None


def quarantine(path: Path, why: str) -> str:
    """Renames the file, its log and its index. Returns a message for the operator."""
    aside = free_name(path, "damaged")
    for suffix in _SUFFIXES:
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return (
        f"The store {path} is damaged ({why}) and was set aside as {aside}: put a backup in its place, and keep the"
        " damaged file for repair."
    )


def free_name(path: Path, what: str) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1, 1000):
        name = path.with_name(f"{path.name}.{what}-{stamp}" + (f"-{number}" if number > 1 else ""))
        if not name.exists() and not name.with_name(name.name + "-wal").exists():
            return name
    raise StoreFailed(f"There are too many damaged copies next to {path}; move some away.")


def _refuse_second(path: Path) -> None:
    """Raises an error if another process has the database open. Such a process holds a lock on a byte in the index."""
    try:
        descriptor = os.open(path.with_name(path.name + "-shm"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _INDEX_LOCK, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, request))
    finally:
        os.close(descriptor)
    if kind != fcntl.F_UNLCK:
        raise StoreFailed(f"Another process (pid {pid}) has {path} open; stop it, then start the gateway.")


def _examine(path: Path) -> str | None:
    _refuse_second(path)
    size = path.stat().st_size if path.exists() else 0
    wal = wal_path(path)
    log = wal.stat().st_size if wal.exists() else 0
    if size == 0:
        if log > _WAL_HEADER:
            raise _Broken("it has a log, but the file itself is missing or empty")
        return None
    page_size, pages = _read_header(path, size)
    salts = _read_wal_header(wal, page_size) if log > _WAL_HEADER else None
    valid = _ask_sqlite(path, logged=log > 0)
    frames = _frames(wal, page_size) if salts is not None else []
    in_log = {page for page, _, _ in frames[:valid]}
    missing = set(range(size // page_size + 1, pages + 1))
    if not missing <= in_log:
        raise _Broken(f"it is truncated: {pages} pages of {page_size} bytes are expected, it has {size} bytes")
    if any(commit and salt == salts for _, commit, salt in frames[valid:]):
        return _keep_log(path, wal, len(frames) - valid)
    return None


def _read_header(path: Path, size: int) -> tuple[int, int]:
    with path.open("rb") as file:
        header = file.read(_HEADER)
    if len(header) < _HEADER or not header.startswith(_MAGIC):
        raise _Broken("its header is not that of an SQLite file")
    page_size = int.from_bytes(header[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    if page_size < 512 or page_size & (page_size - 1):
        raise _Broken(f"its header specifies a page size of {page_size}")
    counted = header[24:28] == header[92:96]
    return page_size, int.from_bytes(header[28:32], "big") if counted else size // page_size


def _read_wal_header(wal: Path, page_size: int) -> tuple[int, int] | None:
    """Returns the salts in the log's header, or None if the header is empty or all zeros, which means that nothing was
    ever synced."""
    with wal.open("rb") as file:
        raw = file.read(_WAL_HEADER)
    if not any(raw):
        return None
    magic, _, log_page, _, salt1, salt2, sum1, sum2 = struct.unpack(">8I", raw)
    if magic not in _WAL_MAGICS or log_page != page_size:
        raise _Broken("its log does not begin with a log header")
    if (sum1, sum2) != _checksum(raw[:24], "<" if magic == _WAL_MAGICS[0] else ">"):
        raise _Broken("its log's header has a wrong checksum")
    return salt1, salt2


def _checksum(data: bytes, order: str) -> tuple[int, int]:
    first = second = 0
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second


def _frames(wal: Path, page_size: int) -> list[tuple[int, int, tuple[int, int]]]:
    """Returns (page, size of the file after this commit or 0, salts) for each complete frame. The pages themselves are
    not read."""
    found: list[tuple[int, int, tuple[int, int]]] = []
    descriptor = os.open(wal, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at = _WAL_HEADER
        while len(raw := os.pread(descriptor, _FRAME_HEADER, at)) == _FRAME_HEADER:
            page, commit, salt1, salt2 = struct.unpack(">4I", raw[:16])
            found.append((page, commit, (salt1, salt2)))
            at += _FRAME_HEADER + page_size
    finally:
        os.close(descriptor)
    return found


def _ask_sqlite(path: Path, *, logged: bool) -> int:
    """Raises an error if the file is not a Tidegate store or was written by a newer program. Returns the number of
    valid frames in its log. Nothing is written, and the log is kept. A file without a log is opened as immutable, so
    that SQLite does not create a log."""
    name = f"file:{quote(str(path.absolute()))}" + ("" if logged else "?immutable=1")
    db = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        version = int(db.execute("PRAGMA user_version").get)
        application = int(db.execute("PRAGMA application_id").get)
        tables = int(db.execute("SELECT count(*) FROM sqlite_schema").get)
        if tables and application != APPLICATION_ID:
            raise StoreFailed(f"{path} is another program's SQLite file; choose another home folder.")
        if version > CURRENT:
            raise StoreNewer(
                f"{path} was written by a newer Tidegate (format {version}, this one knows {CURRENT}); start that one."
            )
        valid, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    finally:
        db.close()
    return max(valid, 0)


def _keep_log(path: Path, wal: Path, frames: int) -> str:
    """Copies a log whose tail contains a commit that SQLite will not read because of a power loss or damage before it.
    SQLite continues from the last valid commit and will overwrite the rest."""
    aside = free_name(path, "damaged-log")
    with wal.open("rb") as source, aside.open("xb") as target:
        while piece := source.read(1 << 20):
            target.write(piece)
    return f"The last {frames} pages of the log of {path} could not be read; a copy of the log was kept as {aside}."


# -- while the database is open --


class Loss(NamedTuple):
    """The path no longer leads to the open files. `text` describes the loss, phrased as the beginning of a sentence;
    `intact` means that the open files still contain everything."""

    text: str
    intact: bool = True


class OpenFiles:
    """The open database, log and index. Used only by the writer's thread."""

    def __init__(self, path: Path) -> None:
        self._paths = tuple(path.with_name(path.name + suffix) for suffix in _SUFFIXES)
        self._known: tuple[tuple[int, int], ...] = ()
        self.bytes = 0
        self._modified = 0
        self.touched = False
        """True if another program has written to the database since this was last set to False."""

    def remember(self) -> None:
        """Records the identity of the open files. Call this before any other process can know about them."""
        self._known = tuple(_identity(path.stat()) for path in self._paths)
        self.measure(0)

    def measure(self, least: int) -> None:
        """Records the file's size. Call this after each checkpoint, since only checkpoints write to the file. `least`
        is the length of the database according to the connection. A shorter file has been truncated, and its size is
        not recorded."""
        with contextlib.suppress(OSError):  # `lost` reports a missing file
            found = self._paths[0].stat()
            if found.st_size >= min(self.bytes, least):
                self.bytes, self._modified = found.st_size, found.st_mtime_ns

    def lost(self, log_bytes: int, *, index: bool) -> Loss | None:
        """Returns the loss, or None if the files are in place. `log_bytes` is the minimum length of the log. With
        `index`, the index is checked, too; it contains nothing that is not in the log."""
        return self._lost(0, self.bytes) or self._lost(1, log_bytes) or (self._lost(2, 0) if index else None)

    def _lost(self, which: int, least: int) -> Loss | None:
        path = self._paths[which]
        try:
            found = path.stat()
        except OSError as error:
            return Loss(f"{path} no longer exists ({error.strerror})")
        if (found.st_dev, found.st_ino) != self._known[which]:
            return Loss(f"{path} was replaced by another file")
        if found.st_size < least:
            return Loss(f"{path} was truncated by another program ({found.st_size} bytes of {least})", intact=False)
        if which == 0 and found.st_mtime_ns != self._modified:
            self.touched, self._modified = True, found.st_mtime_ns
        return None

    def current_path(self) -> str | None:
        """Returns the current path of the open database according to the kernel, or None if it has none."""
        for entry in Path("/proc/self/fd").iterdir():
            try:
                found = entry.stat()
                if _identity(found) == self._known[0] and found.st_nlink:
                    return str(entry.readlink())
            except OSError:
                continue  # this descriptor was closed in the meantime
        return None


def rescue(db: apsw.Connection, path: Path) -> Path:
    """Copies everything that is committed in `db` to a new file next to `path`. Raises OSError or apsw.Error on
    failure."""
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
