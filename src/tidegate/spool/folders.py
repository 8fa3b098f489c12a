"""The spool's folders: listing and sharing files, and removing orphans. All functions block, so call them in threads.

Only files with names given by the spool are touched, so files that belong to an operator or a file system stay in
place. If a file cannot be removed, this is logged and the file is left to the next sweep. Links are not followed.
"""

import math
import os
import re
import shutil
from pathlib import Path

from tidegate.log import Log

log = Log(__name__)

_FOLDER = re.compile(r"s_\w+")
_FILE = re.compile(r"((?:sp|pr)_\w+)(?:\.\w+)*")
"""A result's file is named after its id, and a process's output after the process's id."""


def folders(root: Path) -> dict[str, float]:
    """Returns the sessions that have a folder, each with the time of the folder's last change."""
    found: dict[str, float] = {}
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if _FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    found[entry.name] = entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:  # nothing has been spooled yet
        return {}
    return found


def files(folder: Path, before: float) -> dict[str, str]:
    """Returns the files in the folder that were last written before this time, each with the id at the start of its
    name."""
    found: dict[str, str] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                named = _FILE.fullmatch(entry.name)
                if named is not None and entry.stat(follow_symlinks=False).st_mtime < before:
                    found[entry.name] = named[1]
    except FileNotFoundError:  # its session was deleted in the meantime
        return {}
    return found


def link(source: Path, target: Path) -> None:
    """Hard-links the results in one folder into another. Process logs are skipped, since they are not results."""
    names = [name for name, id in files(source, math.inf).items() if id.startswith("sp_")]
    if names:
        target.mkdir(mode=0o700, exist_ok=True)
    for name in names:
        os.link(source / name, target / name)


def remove_files(folder: Path, names: list[str]) -> int:
    removed = 0
    for name in names:
        try:
            (folder / name).unlink()
            removed += 1
        except OSError as error:
            log.warning("a spool file cannot be removed", file=str(folder / name), error=error.strerror)
    return removed


def remove_folder(folder: Path) -> bool:
    """Removes the folder. Returns True if it no longer exists."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return True
    except OSError as error:
        log.warning("a spool folder cannot be removed", folder=str(folder), error=error.strerror)
        return False
    return True
