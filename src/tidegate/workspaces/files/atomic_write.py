"""Atomic replacement of a file.

Readers find either the complete old content or the complete new content, even after a crash. The old file's permissions
and, where allowed, its owner are kept. If a version is expected and the file has another one, nothing is written, even
if the file changed at the last moment. Of several writers expecting the same version, only one succeeds. A failed write
leaves nothing behind except, after a crash, a file named `.tidegate-….tmp`. The functions block and belong in worker
threads.
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator

from anyio import from_thread

from tidegate.errors import ToolFailed
from tidegate.workspaces.files.mounts import ResolvedPath, open_for_reading, open_reference, refuse_read_only, shown

CHUNK = 256 * 1024
LOCK_SECONDS = 2.0
"""Time limit for getting the lock. Replacing a file takes far less than a thousandth of this."""

_LOCK_LOOKS = 0.005
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o666  # reduced by the process's umask
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


def version(data: bytes) -> str:
    """Returns an identifier of this content."""
    return _version(len(data), hashlib.sha256(data).hexdigest())


def replace(spot: ResolvedPath, data: bytes, expected: str | None) -> int | None:
    """Writes this content to a path. Returns the size of the replaced file, or None if there was none."""
    refuse_read_only(spot.path, spot.mount, spot.parent, spot.name)
    if spot.is_folder:
        raise ToolFailed(f"{shown(spot.path)} is a folder; choose the path of a file.")
    if spot.fd >= 0 and not stat.S_ISREG(spot.mode):
        raise ToolFailed(f"{shown(spot.path)} is a device, pipe or socket; choose another path.")
    before = os.fstat(spot.fd) if spot.fd >= 0 else None
    temporary = f".tidegate-{secrets.token_hex(8)}.tmp"
    try:
        _make(spot.parent, temporary, data, before)
        try:
            with _locked(spot.parent):
                _put(spot, temporary, expected)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=spot.parent)
            raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "the name is not valid"
        raise ToolFailed(f"{shown(spot.path)} could not be written ({why}); nothing was changed.") from None
    return before.st_size if before else None


@contextlib.contextmanager
def _locked(folder: int) -> Iterator[None]:
    """Locks a folder against other writers that use this module. If one of the session's commands keeps holding the
    lock, this stops waiting after a short time; the only consequence is that one of two simultaneous edits may be
    lost."""
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except PermissionError:  # a folder that can be written but not listed
        yield
        return
    try:
        until = time.monotonic() + LOCK_SECONDS
        while True:
            from_thread.check_cancelled()
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    break
                time.sleep(_LOCK_LOOKS)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(fd)


def _put(spot: ResolvedPath, temporary: str, expected: str | None) -> None:
    """Moves the new file to its final name."""
    if expected is None:
        os.rename(temporary, spot.name, src_dir_fd=spot.parent, dst_dir_fd=spot.parent)
    elif spot.fd < 0 or _version_at(spot.fd) != expected:
        raise _changed(spot)
    else:
        _swap(spot, temporary, expected)


def _make(parent: int, name: str, data: bytes, before: os.stat_result | None) -> None:
    """Writes the new content under a temporary name."""
    fd = os.open(name, _NEW, _MODE, dir_fd=parent)
    try:
        rest = memoryview(data)
        while rest:
            from_thread.check_cancelled()
            rest = rest[os.write(fd, rest[:CHUNK]) :]
        if before is not None:
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):
                    os.fchown(fd, before.st_uid, before.st_gid)
            os.fchmod(fd, stat.S_IMODE(before.st_mode) & 0o777)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        raise
    finally:
        os.close(fd)


def _swap(spot: ResolvedPath, temporary: str, expected: str) -> None:
    """Exchanges the two files and checks the old one's version. If it is not the expected one, exchanges them back."""
    try:
        exchange(spot.parent, temporary, spot.name)
    except FileNotFoundError:
        raise _changed(spot) from None
    except OSError as error:
        if error.errno not in _CANNOT_EXCHANGE:
            raise
        # On a file system without exchange, there is a moment in which a change goes unnoticed.
        os.rename(temporary, spot.name, src_dir_fd=spot.parent, dst_dir_fd=spot.parent)
        return
    fd, status = open_reference(temporary, spot.parent)
    try:
        same = stat.S_ISREG(status.st_mode) and _version_at(fd) == expected
    finally:
        os.close(fd)
    if not same:
        exchange(spot.parent, temporary, spot.name)
        raise _changed(spot)
    os.unlink(temporary, dir_fd=spot.parent)


def exchange(folder: int, one: str, other: str) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if library.renameat2(folder, names[0], folder, names[1], _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _version_at(reference: int) -> str:
    digest = hashlib.sha256()
    size = 0
    fd = open_for_reading(reference)
    try:
        while chunk := os.read(fd, CHUNK):
            from_thread.check_cancelled()
            digest.update(chunk)
            size += len(chunk)
    finally:
        os.close(fd)
    return _version(size, digest.hexdigest())


def _version(size: int, digest: str) -> str:
    return f"{size}-{digest}"


def _changed(spot: ResolvedPath) -> ToolFailed:
    return ToolFailed(
        f"{shown(spot.path)} was changed by someone else in the meantime; nothing was written: read it again, then "
        "retry."
    )
