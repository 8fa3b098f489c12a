"""The edge to SQLite: which of our errors a foreign one becomes.

Guarantee: nothing that SQLite raises leaves this room under a foreign name, and an error that is ours passes unchanged.
A programming error (a TypeError in a function that was sent in) passes unchanged too: it is no condition of the store.
"""

import apsw

from tidegate.errors import Conflict, Refused, StoreDamaged, StoreFailed, StoreFull

_READ_FAULTS = frozenset(
    {apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS}
)


def translate_opening(error: Exception) -> BaseException:
    """As `translate`, for what goes wrong while the file is being opened."""
    if isinstance(error, OSError):
        return StoreFailed(f"The store's file cannot be used ({error}); check the home folder and its permissions.")
    return translate(error)


def translate(error: BaseException) -> BaseException:
    """Our name for `error`; `error` itself where it has none."""
    if isinstance(error, UnicodeEncodeError):
        return Refused("The text holds a lone surrogate, which no UTF-8 text can; send valid Unicode.")
    if not isinstance(error, apsw.Error):
        return error
    if isinstance(error, apsw.ConstraintError):
        return Conflict("This contradicts what is stored already.")
    if isinstance(error, apsw.FullError) or (
        isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) not in _READ_FAULTS
    ):
        return StoreFull(f"The disk has no room for the store ({error}); free some space, then try again.")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        return StoreDamaged(f"The store's file is damaged ({error}); stop the gateway and keep a copy of the file.")
    if isinstance(error, apsw.InterruptError):
        return StoreFailed("The read took longer than a snapshot may live and was interrupted; ask for less at a time.")
    if isinstance(error, apsw.TooBigError):
        return Refused("The value is larger than the store can hold in one row.")
    return StoreFailed(f"The store could not do it ({type(error).__name__}: {error}).")
