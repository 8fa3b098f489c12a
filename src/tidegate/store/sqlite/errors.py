"""The mapping of SQLite's errors to the error tree.

No SQLite exception leaves this package untranslated. A full disk is reported as such; any other disk error is reported
with the system's own message if SQLite has kept it. Programming errors, such as a TypeError in a submitted function,
are passed through unchanged, since they are not failures of the store.
"""

import errno
import os
import zlib
from pathlib import Path

import apsw
import msgspec

from tidegate.errors import Conflict, DiskFailed, Refused, StoreBusy, StoreDamaged, StoreFailed, StoreFull

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No space left on the disk, in a quota, or for a file of this size."""
_DAMAGE = (apsw.CorruptError, apsw.NotADBError, zlib.error, msgspec.DecodeError, UnicodeDecodeError)
"""Errors caused by a damaged page, or by a row whose content cannot be decoded."""


def translate_opening(error: Exception) -> BaseException:
    """Translates an error raised while the file was being opened, like `translate`."""
    if isinstance(error, OSError):
        return StoreFailed(f"The store's file cannot be used ({error}); check the home folder and its permissions.")
    return translate(error)


def translate(error: BaseException, db: apsw.Connection | None = None) -> BaseException:
    """Returns the store's error for `error`, or `error` itself if it has no counterpart. `db` is the connection that
    has just raised it."""
    if isinstance(error, UnicodeEncodeError):
        return Refused("The text contains a lone surrogate, which cannot be encoded as UTF-8; send valid Unicode.")
    if isinstance(error, _DAMAGE):
        return StoreDamaged(
            "Part of the database that this needs is damaged; other conversations may still work, so start a new one,"
            " and have the operator run `tidegate doctor`."
        )
    if not isinstance(error, apsw.Error):
        return error
    code = getattr(error, "extendedresult", 0)
    if isinstance(error, apsw.ConstraintError):
        return Conflict("This conflicts with the stored data.")
    if isinstance(error, apsw.NoMemError) or code == apsw.SQLITE_IOERR_NOMEM:
        return StoreFailed(
            "The store does not have enough memory for this; request less at a time, or try again later."
        )
    if isinstance(error, (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError)):
        return _disk_error(error, db)
    if isinstance(error, apsw.InterruptError):
        return StoreFailed("The read took longer than a snapshot may last and was interrupted; request less at a time.")
    if isinstance(error, apsw.TooBigError):
        return Refused("The value is larger than the store can hold in one row.")
    return StoreFailed(f"The store failed ({type(error).__name__}: {error}).")


def disk_failure(number: int, why: str, what: str = "the database") -> StoreFull | DiskFailed | StoreBusy:
    """Returns the error for a system call that has failed with this errno. `why` is the reason in words."""
    if number in (errno.EMFILE, errno.ENFILE):
        return StoreBusy(f"No file descriptors are left for {what}; try again soon.")
    if number in NO_SPACE:
        return StoreFull(f"The disk has no space for {what} ({why}); free some space, then try again.")
    return DiskFailed(
        f"The disk refuses {what} ({why}); acknowledged data is safe: have the operator check the system log"
        " and run `tidegate doctor`."
    )


def _disk_error(error: apsw.Error, db: apsw.Connection | None) -> StoreFull | DiskFailed | StoreBusy:
    number = 0
    if db is not None and isinstance(error, (apsw.IOError, apsw.CantOpenError)):
        number = db.system_errno  # SQLite keeps the errno only for these errors
    if isinstance(error, apsw.FullError) or (number == 0 and db is not None and _no_space(db)):
        number = errno.ENOSPC
    code = apsw.mapping_extended_result_codes.get(getattr(error, "extendedresult", 0), type(error).__name__)
    return disk_failure(number, os.strerror(number) if number else f"{error}, {code}")


def _no_space(db: apsw.Connection) -> bool:
    """True if the file system is full. The check is needed because SQLite keeps no errno for some of its own files."""
    try:
        found = os.statvfs(Path(db.filename).parent)
    except OSError:
        return False
    return found.f_bavail == 0
