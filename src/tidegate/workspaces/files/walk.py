"""A walk through the entries below a folder.

Entries always come in the same order: sorted by bytes, with each folder before its contents. No link is followed: each
folder is opened by name in an open folder. At most `DEEPEST` descriptors are open, and at most `FOLDER_ENTRIES` names
from a folder are in memory; entries left out because of a limit are reported. The walk blocks, so it belongs in worker
threads; it stops when the caller is cancelled.
"""

import os
from collections.abc import Generator, Iterator
from typing import NamedTuple

from anyio import from_thread

from tidegate.workspaces.files.file_values import HEAVY, FileFilter, Kind
from tidegate.workspaces.files.mounts import DEEPEST

FOLDER_ENTRIES = 20_000
"""Maximum number of names in a folder, since they must be in memory to be sorted."""

MOST_ENTRIES = 100_000
"""Maximum number of entries examined in one walk, which takes about a second on an ordinary disk."""

NAMED_LEFT_OUT = 10
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READING = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class WalkStep(NamedTuple):
    """One entry. `folder` is a descriptor for its folder, valid until the next step is requested."""

    path: str
    folder: int
    name: str
    kind: Kind


class FolderWalk:
    """One walk. `left_out` and `stopped` are known when the walk has ended."""

    def __init__(
        self,
        choice: FileFilter,
        *,
        recursive: bool,
        folder_entries: int = FOLDER_ENTRIES,
        most_entries: int = MOST_ENTRIES,
    ) -> None:
        self._choice = choice
        self._recursive = recursive
        self._folder_entries = folder_entries
        self._most_entries = most_entries
        self._looked_at = 0
        self.left_out: list[str] = []
        self.stopped = ""

    def steps(self, folder: int) -> Generator[WalkStep]:
        """Yields the steps of the walk. Close the generator unless all of them are consumed."""
        open_folders: list[tuple[int, str, Iterator[tuple[str, Kind]]]] = [(folder, "", self._names(folder))]
        try:
            while open_folders:
                fd, before, names = open_folders[-1]
                for name, kind in names:
                    path = before + name
                    if self._is_left_out(name, kind):
                        self._note(path)
                        continue
                    yield WalkStep(path, fd, name, kind)
                    if kind == "folder" and self._recursive and (inner := self._entered(fd, name, path)) is not None:
                        open_folders.append((inner, path + "/", self._names(inner)))
                        break
                else:
                    open_folders.pop()
                    if fd != folder:
                        os.close(fd)
        finally:
            for fd, _before, _names in open_folders:
                if fd != folder:
                    os.close(fd)

    def _entered(self, folder: int, name: str, path: str) -> int | None:
        from_thread.check_cancelled()
        if self._looked_at > self._most_entries:
            return None
        if path.count("/") + 1 >= DEEPEST:
            self.stopped = f"folders more than {DEEPEST} levels deep were left out"
            return None
        try:
            return os.open(name, _FOLDER, dir_fd=folder)
        except OSError:  # it no longer exists, or is no longer a folder
            return None

    def _names(self, folder: int) -> Iterator[tuple[str, Kind]]:
        found: list[tuple[bytes, str, Kind]] = []
        try:
            reading = os.open(".", _READING, dir_fd=folder)
        except OSError as error:
            self.stopped = f"some folders cannot be read ({error.strerror})"
            return
        try:
            with os.scandir(reading) as entries:
                for entry in entries:
                    self._looked_at += 1
                    if self._looked_at > self._most_entries:
                        self.stopped = f"only the first {self._most_entries} names were read"
                        break
                    if len(found) == self._folder_entries:
                        self.stopped = (
                            f"of folders with more than {self._folder_entries} names, only that many were read"
                        )
                        break
                    found.append((os.fsencode(entry.name), entry.name, _kind(entry)))
        finally:
            os.close(reading)
        found.sort()
        for _bytes, name, kind in found:
            yield name, kind

    def _is_left_out(self, name: str, kind: Kind) -> bool:
        return not self._choice.hidden and (name.startswith(".") or (kind == "folder" and name in HEAVY))

    def _note(self, path: str) -> None:
        if len(self.left_out) < NAMED_LEFT_OUT:
            self.left_out.append(path)
        elif len(self.left_out) == NAMED_LEFT_OUT:
            self.left_out.append("…")


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
