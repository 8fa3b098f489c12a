"""Confined access to skill and project files, by descriptor.

An opened file is always inside the requested folder, even if something is replaced with a link in the meantime
(`workspaces.files` resolves agents' own paths in the same way). Only regular files are opened, so reads never wait for
a pipe, and reads are bounded. `InvalidSkill` means that the file must not be used, and `OSError` that the system
refused access. Every descriptor is closed at the end of its block. The functions block, so call them only in worker
threads and on the command line.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tidegate.errors import ToolFailed
from tidegate.skills.frontmatter import InvalidSkill
from tidegate.skills.skill import SkillFolder
from tidegate.workspaces.files import FileStamp, Mount, file_stamp
from tidegate.workspaces.files.mounts import FolderMissing, ResolvedPath, at, open_file

FOLDERS = 1000
"""Maximum number of folders in a skill folder. Each of them is examined."""

DIGEST_BYTES = 1024 * 1024
"""Number of bytes of a file covered by its digest. At most this much of a file is shown at a time."""

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_READING = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

ASTRAY = (
    "its path leads out of its folder, through something that is not a folder, or to where the gateway has no access; "
    "put the file itself there."
)


class FoundFile(NamedTuple):
    """An existing file, and its real path."""

    mark: FileStamp
    path: str


class FileContent(NamedTuple):
    """The beginning of a file, or the entire file if `complete` is True. `path` is its real path, and `digest` covers
    the part that may be shown."""

    data: bytes
    mark: FileStamp
    complete: bool
    path: str
    digest: bytes


def mount(folder: Path) -> Mount:
    """Returns the folder as a mount that no path can leave. Links that contain the folder's own path stay inside."""
    return Mount(inner=str(folder), folder=folder, writable=False)


def mount_of(descriptor: int) -> Mount:
    """Returns the folder behind a descriptor as a mount, whatever the folder's path refers to by now."""
    link = Path(f"/proc/self/fd/{descriptor}")
    return Mount(inner=str(link.readlink()), folder=link, writable=False)


@contextmanager
def resolve(where: Mount, path: str) -> Iterator[ResolvedPath | None]:
    """Resolves a path in a folder. Yields None if it does not exist. Raises `InvalidSkill` if the path leads out of the
    folder."""
    with ExitStack() as stack:
        try:
            spot = stack.enter_context(at((where,), path))
        except FolderMissing:
            yield None
            return
        except ToolFailed:
            raise InvalidSkill(ASTRAY) from None
        yield spot if spot.fd >= 0 else None


@contextmanager
def open_folder(where: SkillFolder) -> Iterator[int | None]:
    """Opens a folder that may contain skills. Yields None if it does not exist."""
    if where.project is not None:
        if not where.project.is_dir():
            yield None
            return
        with resolve(mount(where.project), where.within) as spot:
            yield spot.fd if spot is not None and spot.is_folder else None
        return
    try:
        fd = os.open(where.folder, _FOLDER)
    except FileNotFoundError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_skill_folder(where: SkillFolder, folder: int, name: str) -> Iterator[int | None]:
    """Opens the folder with this name in an open skill folder. Yields None if it does not exist."""
    if where.project is not None:
        with resolve(mount(where.project), f"{where.within}/{name}") as spot:
            yield spot.fd if spot is not None and spot.is_folder else None
        return
    try:
        fd = os.open(name, _FOLDER, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def folder_names(folder: int) -> list[str]:
    """Returns, in order, the names of folders that could be skills."""
    reading = os.open(".", _READING, dir_fd=folder)
    found: list[str] = []
    try:
        with os.scandir(reading) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not (entry.is_symlink() or entry.is_dir(follow_symlinks=False)):
                    continue
                if len(found) == FOLDERS:
                    raise InvalidSkill(
                        f"it has more than {FOLDERS} folders; move folders that are not skills elsewhere."
                    )
                found.append(entry.name)
    finally:
        os.close(reading)
    return sorted(found)


def find_file(where: Mount, path: str) -> FoundFile | None:
    """Returns the stamp and real path of a file without opening it, or None if it does not exist."""
    with resolve(where, path) as spot:
        if spot is None:
            return None
        if not stat.S_ISREG(spot.mode):
            raise InvalidSkill("it is not a regular file; put one there.")
        return FoundFile(file_stamp(spot.fd), _path(spot.fd))


def _path(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def load(where: Mount, path: str, limit: int) -> FileContent | None:
    """Reads at most `limit` bytes of a file. Returns None if it does not exist."""
    with resolve(where, path) as spot:
        if spot is None:
            return None
        if not stat.S_ISREG(spot.mode):
            raise InvalidSkill("it is not a regular file; choose one.")
        try:
            fd = open_file(spot)
        except ToolFailed:
            raise InvalidSkill("it cannot be opened; allow the gateway to read it.") from None
        try:
            data = bytearray()
            most = max(limit, DIGEST_BYTES)
            while len(data) <= most and (chunk := os.read(fd, most + 1 - len(data))):
                data += chunk
            digest = hashlib.sha256(data[:DIGEST_BYTES]).digest()
            return FileContent(bytes(data[:limit]), file_stamp(fd), len(data) <= limit, _path(fd), digest)
        finally:
            os.close(fd)
