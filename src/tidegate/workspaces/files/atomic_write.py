"""A file put in the place of another, at once.

Guarantee: whoever opens the name finds the old content or the new one, whole, also after a crash; the permissions and,
where that is allowed, the owner of the old file stay. When a version is expected and another one is there, even if it
came in the last moment, nothing is changed; of several who expect the same, one wins. What cannot be finished leaves
nothing behind but, after a crash, a file named `.tidegate-….tmp`. It blocks: it is for worker threads.
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
from tidegate.workspaces.files.mounts import ResolvedPath, refer, refuse_read_only, reopened, shown

CHUNK = 256 * 1024
LOCK_SECONDS = 2.0
"""To put a file into its place takes far less than a thousandth of it."""

_LOCK_LOOKS = 0.005
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o666  # less what the process's umask takes away
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


def version(data: bytes) -> str:
    """What stands for a content."""
    return _version(len(data), hashlib.sha256(data).hexdigest())


def replace(spot: ResolvedPath, data: bytes, expected: str | None) -> int | None:
    """Puts a file of that content at a spot; the size of what was there, None when nothing was."""
    refuse_read_only(spot.path, spot.mount, spot.parent, spot.name)
    if spot.is_folder:
        raise ToolFailed(f"{shown(spot.path)} is a folder; choose the path of a file.")
    if spot.fd >= 0 and not stat.S_ISREG(spot.mode):
        raise ToolFailed(f"{shown(spot.path)} is a device, pipe or socket; choose another path.")
    before = os.fstat(spot.fd) if spot.fd >= 0 else None
    made = f".tidegate-{secrets.token_hex(8)}.tmp"
    try:
        _make(spot.parent, made, data, before)
        try:
            with _alone(spot.parent):
                _put(spot, made, expected)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(made, dir_fd=spot.parent)
            raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "the name is not valid"
        raise ToolFailed(f"{shown(spot.path)} could not be written ({why}); nothing was changed.") from None
    return before.st_size if before else None


@contextlib.contextmanager
def _alone(folder: int) -> Iterator[None]:
    """Nobody else who writes by this module is at work in that folder. One who keeps the lock for himself, as a command
    of the session could, is not waited for long: he gains nothing but that two edits at once may be one too few."""
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except PermissionError:  # one may write in it, but not look into it
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


def _put(spot: ResolvedPath, made: str, expected: str | None) -> None:
    """The file that was made gets its name."""
    if expected is None:
        os.rename(made, spot.name, src_dir_fd=spot.parent, dst_dir_fd=spot.parent)
    elif spot.fd < 0 or _version_at(spot.fd) != expected:
        raise _changed(spot)
    else:
        _swap(spot, made, expected)


def _make(parent: int, name: str, data: bytes, before: os.stat_result | None) -> None:
    """The new content under a name of its own."""
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


def _swap(spot: ResolvedPath, made: str, expected: str) -> None:
    """Exchanges the two, and looks at what came out: if that is not what was expected, they are exchanged back."""
    try:
        _exchange(spot.parent, made, spot.name)
    except FileNotFoundError:
        raise _changed(spot) from None
    except OSError as error:
        if error.errno not in _CANNOT_EXCHANGE:
            raise
        # A file system that cannot leaves a moment in which a change goes unnoticed.
        os.rename(made, spot.name, src_dir_fd=spot.parent, dst_dir_fd=spot.parent)
        return
    fd, status = refer(made, spot.parent)
    try:
        same = stat.S_ISREG(status.st_mode) and _version_at(fd) == expected
    finally:
        os.close(fd)
    if not same:
        _exchange(spot.parent, made, spot.name)
        raise _changed(spot)
    os.unlink(made, dir_fd=spot.parent)


def _exchange(folder: int, one: str, other: str) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if library.renameat2(folder, names[0], folder, names[1], _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _version_at(reference: int) -> str:
    digest = hashlib.sha256()
    size = 0
    fd = reopened(reference)
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
        f"{shown(spot.path)} was changed by someone else meanwhile; nothing was written: read it again, then repeat."
    )
