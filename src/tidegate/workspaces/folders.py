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
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from anyio import to_thread

from tidegate.log import Log
from tidegate.store import Store, workspaces
from tidegate.workspaces.backends.interface import SandboxSpec
from tidegate.workspaces.files import User

log = Log(__name__)

FOLDER_MODE = 0o700
BATCH = 100
"""Rows that are taken from the store at once."""

BATCHES = 100
"""Batches in one run: more than there is, and an end to it."""

MEASURE_SECONDS = 5.0
"""How long the size of one workspace is added up at most: then it is at least what was found."""

NOTES_NAME = "notes.txt"
NOTES = """These are notes for trying the demo model: it read this file with the tool read_file.

The file lies in the workspace of this conversation, the folder in which its tools work. Put your own files there.
"""

_OURS = re.compile(r"(s_[0-9a-f]{32})(\..*)?", re.DOTALL)
_BLOCK = 512  # what st_blocks counts in, on every system
_AS_ITS_ROOT = ("unshare", "--user", "--map-root-user", "--")


class Folders:
    def __init__(self, home: Path) -> None:
        self.root = home / "workspaces"
        self.trash = home / "trash"

    def of(self, session: str) -> Path:
        return self.root / session

    def private(self, session: str) -> Path:
        """For what a session's commands keep beside their work: their home and their temporary files."""
        return self.root / f"{session}.private"

    def make(self, spec: SandboxSpec, *, here: bool, notes: bool) -> None:
        """What is missing of it; the folder to work in only if that is `here`. `notes` puts the demo model's into one
        that is new."""
        self.root.mkdir(mode=FOLDER_MODE, exist_ok=True)
        spec.private.mkdir(mode=FOLDER_MODE, exist_ok=True)
        own = (spec.home, spec.temporary) if spec.project or not here else (spec.home, spec.temporary, spec.folder)
        for folder in own:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=FOLDER_MODE)
                if notes and folder == spec.folder:
                    (folder / NOTES_NAME).write_text(NOTES)
                    _give(folder / NOTES_NAME, spec.user)
                _give(folder, spec.user)

    def wrongly_owned(self, spec: SandboxSpec) -> list[Path]:
        """The session's own folders that belong to another user than they should. A project is never among them."""
        own = (spec.home, spec.temporary) if spec.project else (spec.folder, spec.home, spec.temporary)
        return [folder for folder in own if spec.user is not None and folder.stat().st_uid != spec.user.uid]

    def move_to_trash(self, session: str) -> None:
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

    def is_leftover(self, path: Path) -> bool:
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


def _give(path: Path, user: User | None) -> None:
    """What was just made belongs to that user; None is the gateway's own."""
    if user is not None:
        os.chown(path, *user)


class DiskUsage(NamedTuple):
    """What folders take on the disk, and how many files and folders are in them."""

    bytes: int
    files: int

    def exceeds(self, most: "DiskUsage") -> bool:
        return self.bytes > most.bytes or self.files > most.files


def disk_usage(folders: Iterable[Path], enough: DiskUsage) -> DiskUsage:
    """What these take; it is not looked further when that is more than `enough`, nor for ever. What lies too deep to be
    measured, or cannot be looked into, counts as too much."""
    total, count, until = 0, 0, time.monotonic() + MEASURE_SECONDS
    places = [os.fspath(folder) for folder in folders]
    waiting = list(places)
    while waiting and not DiskUsage(total, count).exceeds(enough) and time.monotonic() < until:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                        count += 1
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
        except PermissionError:
            return _used_behind_doors(places) or DiskUsage(enough.bytes + 1, count)
        except OSError as error:  # what is gone meanwhile counts nothing
            if error.errno == errno.ENAMETOOLONG:
                return DiskUsage(enough.bytes + 1, count)
    return DiskUsage(total, count)


def disk_usage_bytes(folders: Iterable[Path], enough: int) -> int:
    return disk_usage(folders, DiskUsage(enough, sys.maxsize)).bytes


def _used_behind_doors(places: list[str]) -> DiskUsage | None:
    """The same where a command has closed a folder to its own user, and so to the gateway: in a user namespace, whose
    root can read all that is that user's. None when it cannot be measured."""
    there = [place for place in places if Path(place).is_dir()]
    measure = [*_AS_ITS_ROOT, "du", "--summarize", "--total", "--block-size=1"]
    counts = []
    for besides in ([], ["--inodes"]):
        try:
            told = subprocess.run(
                [*measure, *besides, "--", *there],
                env={"PATH": "/usr/bin:/bin"},
                capture_output=True,
                timeout=MEASURE_SECONDS,
                check=True,
            )
            counts.append(int(told.stdout.splitlines()[-1].split()[0]))
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            return None
    return DiskUsage(*counts)


async def enforce_trash_quota(store: Store, folders: Folders, most: int) -> None:
    """Measure what is new in the trash, and remove what is too much."""
    for _ in range(BATCHES):
        new: list[str] = await store.read(workspaces.unmeasured, BATCH)
        for session in new:
            # On its way there it may still lie where it was.
            places = (folders.of(session), folders.trash / session)
            bytes = await to_thread.run_sync(disk_usage_bytes, places, most)
            await store.write(workspaces.measured, session, bytes)
        if len(new) < BATCH:
            break
    for _ in range(BATCHES):
        old: list[str] = await store.read(workspaces.beyond, most, BATCH)
        for session in old:
            try:
                await to_thread.run_sync(folders.remove, session)
            except OSError as error:
                log.warning("a folder in the trash cannot be removed", session=session, error=str(error))
                return  # the next look tries again
            await store.write(workspaces.remove, session)
            log.info("a folder left the trash early, which holds no more than workspaces.trash_bytes", session=session)
        if len(old) < BATCH:
            break
