"""Files that a command writes for a person.

Guarantee: a file is whole or not there; what was there before is replaced only if that was asked for, and then in one
step; a transcript is readable by its owner only. Whatever is wrong with the place is one sentence.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tidegate.errors import TidegateError


def check_place(target: Path, *, force: bool) -> Path:
    """Where a file of that name would be, links followed; refuses what cannot or must not be written."""
    place = Path(os.path.realpath(target))
    if place.is_dir():
        raise TidegateError(f"{target} is a folder: name a file in it.")
    if not place.parent.is_dir():
        raise TidegateError(f"{target} cannot be made, since there is no folder {place.parent}: make it first.")
    if place.exists() and not place.is_file():
        raise TidegateError(f"{target} is no ordinary file: name another, or leave -o out and redirect the output.")
    if place.exists() and not force:
        raise _exists(target)
    return place


def write_whole(target: Path, lines: Iterable[bytes], *, force: bool) -> None:
    """Write the lines as they come beside the target, and give them its name when they are all there."""
    place = check_place(target, force=force)
    try:
        descriptor, beside = tempfile.mkstemp(prefix=f".{place.name[:100]}.", suffix=".part", dir=place.parent)
    except OSError as error:
        raise _refused(target, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        if not force:
            # Claimed by name first: a file that appeared meanwhile is somebody else's.
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        Path(beside).replace(place)
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        raise _refused(target, error) from error
    finally:
        Path(beside).unlink(missing_ok=True)


def _exists(target: Path) -> TidegateError:
    return TidegateError(f"{target} exists: name another file, or replace it with --force.")


def _refused(target: Path, error: OSError) -> TidegateError:
    return TidegateError(f"{target} cannot be written ({error.strerror}): name another place.")
