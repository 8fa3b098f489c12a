"""The folders of the sessions' workspaces, below the gateway's home.

Guarantee: a session's folder is the running user's alone and has the session's id for its name, so that nothing that a
caller says names a file. It goes to the trash by being renamed; what is removed is removed whole, however deep it is
and whatever permissions were left in it. Nothing without a name of ours is ever touched, and a project folder of the
user's has none. All of it blocks: for threads. (What nobody owns is found by name; who owns what is in the store.)
"""

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from tidegate.workspaces.interface import BoxSpec

FOLDER_MODE = 0o700
MEASURE_SECONDS = 5.0
"""How long the size of one workspace is added up at most: then it is at least what was found."""

NOTES_NAME = "notes.txt"
NOTES = """These are notes for trying the demo model: it read this file with the tool read_file.

The file lies in the workspace of this conversation, the folder in which its tools work. Put your own files there.
"""

_OURS = re.compile(r"(s_[0-9a-f]{32})(\..*)?", re.DOTALL)
_BLOCK = 512  # what st_blocks counts in, on every system


class Folders:
    def __init__(self, home: Path) -> None:
        self.root = home / "workspaces"
        self.trash = home / "trash"

    def of(self, session: str) -> Path:
        return self.root / session

    def private(self, session: str) -> Path:
        """For what a session's commands keep beside their work: their home and their temporary files."""
        return self.root / f"{session}.private"

    def make(self, spec: BoxSpec, *, here: bool, notes: bool) -> None:
        """What is missing of it; the folder to work in only if that is `here`. `notes` puts the demo model's into one
        that is new."""
        self.root.mkdir(mode=FOLDER_MODE, exist_ok=True)
        for folder in (spec.private, spec.home, spec.temporary):
            folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        if spec.project or not here:
            return
        with contextlib.suppress(FileExistsError):
            spec.folder.mkdir(mode=FOLDER_MODE)
            if notes:
                (spec.folder / NOTES_NAME).write_text(NOTES)

    def throw_away(self, session: str) -> None:
        """Its folder to the trash, and what it kept beside it; that is removed with the next sweep."""
        self.trash.mkdir(mode=FOLDER_MODE, exist_ok=True)
        for folder in (self.of(session), self.private(session)):
            place = self.trash / folder.name
            with contextlib.suppress(FileNotFoundError):
                folder.chmod(FOLDER_MODE)  # a folder that may not be written cannot be moved elsewhere
                try:
                    folder.rename(place)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    remove(place)
                    folder.rename(place)

    def remove(self, session: str) -> None:
        """Everything of it, wherever it is."""
        for folder in (self.of(session), self.private(session)):
            remove(folder)
            remove(self.trash / folder.name)

    def sessions(self) -> dict[str, list[Path]]:
        """What is there, by the session whose name it bears."""
        found: dict[str, list[Path]] = {}
        for folder in (self.root, self.trash):
            with contextlib.suppress(FileNotFoundError):
                for entry in folder.iterdir():
                    if (named := _OURS.fullmatch(entry.name)) is not None:
                        found.setdefault(named[1], []).append(entry)
        return found

    def is_rubbish(self, path: Path) -> bool:
        """Whether it is to go although its session may still want its folder back."""
        return path.parent == self.trash and "." in path.name


def remove(folder: Path) -> None:
    """All of it. What lies deeper is moved up before it is emptied, so that neither a path nor a stack gets long; what
    a crash leaves of that bears the session's name and is swept."""
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
        return
    waiting, count, token = [folder], 0, os.urandom(4).hex()
    while waiting:
        place = waiting.pop()
        while True:
            place.chmod(FOLDER_MODE)
            found = 0
            with os.scandir(place) as entries:
                for entry in entries:
                    found += 1
                    if not entry.is_dir(follow_symlinks=False):
                        Path(entry.path).unlink()
                        continue
                    count += 1
                    above = folder.with_name(f"{folder.name.partition('.')[0]}.{token}-{count}")
                    Path(entry.path).chmod(FOLDER_MODE)  # else it could not be moved
                    Path(entry.path).rename(above)
                    waiting.append(above)
            try:
                place.rmdir()
                break
            except OSError as error:
                # A look at a folder that is being emptied may miss some of it.
                if error.errno != errno.ENOTEMPTY or not found:
                    raise


def used_bytes(folders: Iterable[Path], enough: int) -> int:
    """What these take on the disk; it is not looked further when that is more than `enough`, nor for ever. What lies
    too deep to be measured counts as too much."""
    total, until = 0, time.monotonic() + MEASURE_SECONDS
    waiting = [os.fspath(folder) for folder in folders]
    while waiting and total <= enough and time.monotonic() < until:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
        except OSError as error:  # what is gone meanwhile, or closed to everybody, counts nothing
            if error.errno == errno.ENAMETOOLONG:
                return enough + 1
    return total
