"""Writes output files.

A file is either complete or absent. Existing files are replaced only on request, and atomically. Only the owner can
read the files. Any problem with the target file is reported in one sentence.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tidegate.errors import TidegateError


def check_target(target: Path, *, force: bool) -> Path:
    """Returns the real path of the target. Raises an error if it cannot or must not be written."""
    place = Path(os.path.realpath(target))
    if place.is_dir():
        raise TidegateError(f"{target} is a folder: choose a file in it.")
    if not place.parent.is_dir():
        raise TidegateError(f"{target} cannot be created because there is no folder {place.parent}: create it first.")
    if place.exists() and not place.is_file():
        raise TidegateError(f"{target} is not a regular file: choose another, or omit -o and redirect the output.")
    if place.exists() and not force:
        raise _exists_error(target)
    return place


def write_file(target: Path, lines: Iterable[bytes], *, force: bool) -> None:
    """Writes the lines to a temporary file in the target's folder, and renames it when it is complete."""
    place = check_target(target, force=force)
    try:
        descriptor, beside = tempfile.mkstemp(prefix=f".{place.name[:100]}.", suffix=".part", dir=place.parent)
    except OSError as error:
        raise _write_error(target, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        if not force:
            # Create the target first, so that a file that has appeared in the meantime is not replaced.
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        Path(beside).replace(place)
    except FileExistsError:
        raise _exists_error(target) from None
    except OSError as error:
        raise _write_error(target, error) from error
    finally:
        Path(beside).unlink(missing_ok=True)


def _exists_error(target: Path) -> TidegateError:
    return TidegateError(f"{target} already exists: choose another file, or replace it with --force.")


def _write_error(target: Path, error: OSError) -> TidegateError:
    return TidegateError(f"{target} cannot be written ({error.strerror}): choose another file.")
