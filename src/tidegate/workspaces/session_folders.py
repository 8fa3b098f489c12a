"""The folders of sessions' workspaces below the gateway's home, and the trash for ended sessions' folders.

A session's folder is private to the user who runs the gateway and is named after the session's id, so no
caller-supplied text ever becomes a file name. Moving a folder to the trash is a rename. Removal is complete at any
depth, whatever permissions were left behind. Only folders with such names are ever touched; a user's project folder
never has such a name. Folders without an owner are found by name; the store records which session owns which folders.

The trash never exceeds its quota for long: `enforce_trash_quota` removes the oldest folders first, even if they have
not reached the maximum age. Each folder is measured only once, since nothing writes to it any more, and its size is
stored in the session's row. (`Workspaces.tidy` enforces the maximum age.)

Functions that are not `async` block and belong in worker threads.
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
"""Number of rows read from the store at a time."""

BATCHES = 100
"""Number of batches per run: more than are ever needed, but a bound on the loop."""

MEASURE_SECONDS = 5.0
"""Time limit for measuring one workspace. If it is exceeded, the result is a lower bound."""

NOTES_NAME = "notes.txt"
NOTES = """These are notes for trying the demo model: it read this file with the tool read_file.

This file is in the workspace of this conversation, the folder in which its tools work. Put your own files there.
"""

_OURS = re.compile(r"(s_[0-9a-f]{32})(\..*)?", re.DOTALL)
_BLOCK = 512  # the unit of st_blocks on every system
_AS_ITS_ROOT = ("unshare", "--user", "--map-root-user", "--")


class Folders:
    def __init__(self, home: Path) -> None:
        self.root = home / "workspaces"
        self.trash = home / "trash"

    def of(self, session: str) -> Path:
        return self.root / session

    def private(self, session: str) -> Path:
        """Returns the folder for the home and temporary files of a session's commands, which is separate from their
        working folder."""
        return self.root / f"{session}.private"

    def make(self, spec: SandboxSpec, *, here: bool, notes: bool) -> None:
        """Creates a workspace's missing folders. The working folder is created only if it is on this machine (`here`).
        `notes` adds the demo model's notes to a new working folder."""
        self.root.mkdir(mode=FOLDER_MODE, exist_ok=True)
        spec.private.mkdir(mode=FOLDER_MODE, exist_ok=True)
        own = (spec.home, spec.temporary) if spec.project or not here else (spec.home, spec.temporary, spec.folder)
        for folder in own:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=FOLDER_MODE)
                if notes and folder == spec.folder:
                    (folder / NOTES_NAME).write_text(NOTES)
                    give(folder / NOTES_NAME, spec.user)
                give(folder, spec.user)

    def wrongly_owned(self, spec: SandboxSpec) -> list[Path]:
        """Returns the session's own folders that have the wrong owner. Project folders are never among them."""
        own = (spec.home, spec.temporary) if spec.project else (spec.folder, spec.home, spec.temporary)
        return [folder for folder in own if spec.user is not None and folder.stat().st_uid != spec.user.uid]

    def move_to_trash(self, session: str) -> None:
        """Moves the session's folders to the trash. The next sweep removes the private folder."""
        self.trash.mkdir(mode=FOLDER_MODE, exist_ok=True)
        for folder in (self.of(session), self.private(session)):
            place = self.trash / folder.name
            with contextlib.suppress(FileNotFoundError):
                folder.chmod(FOLDER_MODE)  # a folder without write permission cannot be moved
                try:
                    folder.rename(place)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    remove(place)
                    folder.rename(place)

    def remove(self, session: str) -> None:
        """Removes all of the session's folders, both in the workspaces and in the trash."""
        for folder in (self.of(session), self.private(session)):
            remove(folder)
            remove(self.trash / folder.name)

    def sessions(self) -> dict[str, list[Path]]:
        """Returns all folders found, by session id."""
        found: dict[str, list[Path]] = {}
        for folder in (self.root, self.trash):
            with contextlib.suppress(FileNotFoundError):
                for entry in folder.iterdir():
                    if (named := _OURS.fullmatch(entry.name)) is not None:
                        found.setdefault(named[1], []).append(entry)
        return found

    def is_leftover(self, path: Path) -> bool:
        """True if this folder should be removed even though its session could be used again."""
        return path.parent == self.trash and "." in path.name


def remove(folder: Path) -> None:
    """Removes a folder and everything in it. Subfolders are moved up before they are emptied, so neither the path nor
    the stack grows. Folders left behind by a crash have the session's name and are removed by the next sweep."""
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
                    Path(entry.path).chmod(FOLDER_MODE)  # needed to move it
                    Path(entry.path).rename(above)
                    waiting.append(above)
            try:
                place.rmdir()
                break
            except OSError as error:
                # A directory scan may miss entries while others are being removed.
                if error.errno != errno.ENOTEMPTY or not found:
                    raise


def give(path: Path, user: User | None) -> None:
    """Gives a new file or folder to this user; None means the gateway's own user."""
    if user is not None:
        os.chown(path, *user)


class DiskUsage(NamedTuple):
    """The number of bytes on disk, and the number of files and folders."""

    bytes: int
    files: int

    def exceeds(self, most: "DiskUsage") -> bool:
        return self.bytes > most.bytes or self.files > most.files


def disk_usage(folders: Iterable[Path], enough: DiskUsage) -> DiskUsage:
    """Measures the disk usage of these folders. Stops once it exceeds `enough`, or after MEASURE_SECONDS. Folders that
    are too deep or cannot be read count as exceeding the limit."""
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
            return _usage_in_namespace(places) or DiskUsage(enough.bytes + 1, count)
        except OSError as error:  # an entry that has just been removed is not counted
            if error.errno == errno.ENAMETOOLONG:
                return DiskUsage(enough.bytes + 1, count)
    return DiskUsage(total, count)


def disk_usage_bytes(folders: Iterable[Path], enough: int) -> int:
    return disk_usage(folders, DiskUsage(enough, sys.maxsize)).bytes


def _usage_in_namespace(places: list[str]) -> DiskUsage | None:
    """Measures folders that can no longer be read because a command has revoked access for its own user, and thereby
    for the gateway. This runs in a user namespace in which root can read all of that user's files. Returns None if
    measuring fails."""
    existing = [place for place in places if Path(place).is_dir()]
    measure = [*_AS_ITS_ROOT, "du", "--summarize", "--total", "--block-size=1"]
    counts = []
    for besides in ([], ["--inodes"]):
        try:
            measured = subprocess.run(
                [*measure, *besides, "--", *existing],
                env={"PATH": "/usr/bin:/bin"},
                capture_output=True,
                timeout=MEASURE_SECONDS,
                check=True,
            )
            counts.append(int(measured.stdout.splitlines()[-1].split()[0]))
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            return None
    return DiskUsage(*counts)


async def enforce_trash_quota(store: Store, folders: Folders, most: int) -> None:
    """Measures new folders in the trash and removes the oldest until the trash fits its quota."""
    for _ in range(BATCHES):
        new: list[str] = await store.read(workspaces.unmeasured_trash, BATCH)
        for session in new:
            # It may still be in its old place, about to be moved to the trash.
            places = (folders.of(session), folders.trash / session)
            bytes = await to_thread.run_sync(disk_usage_bytes, places, most)
            await store.write(workspaces.set_trash_size, session, bytes)
        if len(new) < BATCH:
            break
    for _ in range(BATCHES):
        old: list[str] = await store.read(workspaces.over_quota, most, BATCH)
        for session in old:
            try:
                await to_thread.run_sync(folders.remove, session)
            except OSError as error:
                log.warning("a folder in the trash cannot be removed", session=session, error=str(error))
                return  # the next run will try again
            await store.write(workspaces.remove, session)
            log.info(
                "a folder was removed from the trash early, to stay within workspaces.trash_bytes", session=session
            )
        if len(old) < BATCH:
            break
