"""Path resolution by descriptor, starting at a mount's folder.

The result of `at` is always below a mount's folder, even if folders are replaced with links in the meantime. Each step
opens one name in an open folder as a bare reference (`O_PATH`) that never follows a link, and inspects the opened file
rather than its name; `..` returns to the previous folder of the walk. A link's target is walked in the same way: links
that stay inside the mounts are followed, all others are refused. Only regular files are actually opened, through the
reference, so no pipe blocks and no device is touched. All descriptors are closed at the end of the block. The functions
block and belong in worker threads.

(A hard link is the file itself and is treated as such. A mount's folder may be a link, since it was named by the
operator.)
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.errors import ToolFailed
from tidegate.values import Frozen
from tidegate.workspaces.files.file_user import acting_as, gateway_user
from tidegate.workspaces.files.protected_paths import is_protected

LONGEST_PATH = 4096
DEEPEST = 128
"""Maximum depth of a path. Each level needs a descriptor during the walk."""

MOST_LINKS = 40
"""Maximum number of links in a path, the same as in the kernel."""

SHOWN_PATH = 200
_REFERENCE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderMissing(ToolFailed):
    """A parent folder does not exist."""


class Mount(Frozen, frozen=True):
    """A folder on this machine and the path under which commands see it. In a `guarded` folder, files that other
    programs execute are not written, because the folder belongs to the user or commands there run without a sandbox."""

    inner: str
    folder: Path
    writable: bool = True
    guarded: bool = False


@dataclass
class ResolvedPath:
    """The result of resolving a path. `fd` is a descriptor for the file, or -1 if the file does not exist; in that
    case, `parent` is a descriptor for the folder in which `name` could be created. The function that yields this closes
    the descriptors."""

    path: str
    mount: Mount
    parent: int
    name: str
    fd: int = -1
    mode: int = 0

    @property
    def is_folder(self) -> bool:
        return self.fd >= 0 and stat.S_ISDIR(self.mode)


def shown(path: str) -> str:
    """Returns a path for use in a sentence: quoted, on one line, not too long."""
    return f'"{printable(path if len(path) <= SHOWN_PATH else path[:SHOWN_PATH] + "…")}"'


def printable(text: str) -> str:
    """Escapes control characters and bytes that are not UTF-8, so that one name cannot look like two."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _written_out(character) for character in text)


def _written_out(character: str) -> str:
    code = ord(character)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else repr(character)[1:-1]


def joined(folder: str, path: str) -> str:
    """Returns the path of an entry below a folder, in its shortest form."""
    start = "/".join(_parts(folder))
    return f"{'/' if folder.startswith('/') else ''}{start}{'/' if start else ''}{path}"


@contextmanager
def at(mounts: Sequence[Mount], path: str, *, make: bool = False) -> Iterator[ResolvedPath]:
    """Resolves a path. If `make` is true, missing parent folders are created."""
    if not path or "\0" in path or len(path) > LONGEST_PATH:
        raise ToolFailed("The path must name a file or folder of the workspace.")
    walk = _Walk(mounts, path, make)
    try:
        yield walk.run()
    finally:
        walk.close()


def open_file(spot: ResolvedPath) -> int:
    """Opens the regular file at a resolved path for reading; the caller closes the descriptor."""
    if spot.fd < 0:
        raise ToolFailed(f"There is no file {shown(spot.path)}; list_files shows what is there.")
    if stat.S_ISDIR(spot.mode):
        raise ToolFailed(f"{shown(spot.path)} is a folder, not a file; list_files shows what is in it.")
    if not stat.S_ISREG(spot.mode):
        raise ToolFailed(f"{shown(spot.path)} is a device, pipe or socket, not a file; choose a file.")
    try:
        return open_for_reading(spot.fd)
    except OSError as error:
        raise ToolFailed(f"{shown(spot.path)} cannot be opened ({error.strerror}).") from None


def open_reference(name: str, folder: int) -> tuple[int, os.stat_result]:
    """Opens a reference to a name in a folder. Returns the descriptor, which the caller closes, and its stat result.
    Links are not followed."""
    fd = os.open(name, _REFERENCE, dir_fd=folder)
    try:
        return fd, os.fstat(fd)
    except BaseException:
        os.close(fd)
        raise


def open_for_reading(reference: int) -> int:
    """Opens a reference to a regular file for reading."""
    return os.open(f"/proc/self/fd/{reference}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


def link_target(reference: int) -> str:
    return os.readlink("", dir_fd=reference)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


@dataclass
class _Walk:
    mounts: Sequence[Mount]
    path: str
    make: bool
    _folders: list[int] = field(default_factory=list)
    _links: int = 0
    _mount: Mount = field(init=False)

    def run(self) -> ResolvedPath:
        rest = self._start(self.path) if self.path.startswith("/") else self._enter(self.mounts[0], _parts(self.path))
        rest.reverse()
        while rest:
            name = rest.pop()
            if name == "..":
                if len(self._folders) == 1:
                    raise ToolFailed(f"{shown(self.path)} leads out of the workspace; choose a path inside it.")
                os.close(self._folders.pop())
                continue
            try:
                fd, status = open_reference(name, self._folders[-1])
            except FileNotFoundError:
                if not rest:
                    return ResolvedPath(self.path, self._mount, self._folders[-1], name)
                self._missing(name)
                rest.append(name)
                continue
            except (OSError, ValueError) as error:
                raise ToolFailed(_reason(error, self.path)) from None
            self._folders.append(fd)
            if stat.S_ISLNK(status.st_mode):
                rest += reversed(self._follow())
            elif not stat.S_ISDIR(status.st_mode):
                if rest:
                    raise ToolFailed(f"{shown(self.path)} leads through something that is not a folder.")
                return ResolvedPath(self.path, self._mount, self._folders[-2], name, fd, status.st_mode)
            elif len(self._folders) > DEEPEST:
                raise ToolFailed(f"{shown(self.path)} has more than {DEEPEST} levels; choose a path with fewer.")
        top = self._folders[-1]
        return ResolvedPath(self.path, self._mount, top, "", top, stat.S_IFDIR)

    def close(self) -> None:
        while self._folders:
            os.close(self._folders.pop())

    def _start(self, path: str) -> list[str]:
        """Enters the mount that contains an absolute path or link target. Returns the remaining parts."""
        parts = _parts(path)
        best: tuple[int, Mount] | None = None
        for mount in self.mounts:
            inner = _parts(mount.inner)
            if parts[: len(inner)] == inner and (best is None or len(inner) > best[0]):
                best = len(inner), mount
        if best is None:
            through = "leads through a symbolic link" if self._links else "is"
            raise ToolFailed(
                f"{shown(self.path)} {through} outside the workspace; "
                f"choose a path relative to it, or below {', '.join(mount.inner for mount in self.mounts)}."
            )
        return self._enter(best[1], parts[best[0] :])

    def _enter(self, mount: Mount, rest: list[str]) -> list[str]:
        self.close()
        self._mount = mount
        try:
            with acting_as(gateway_user()):  # the folder may be in a place that only the gateway's user can reach
                self._folders.append(os.open(mount.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            raise ToolFailed(
                f"The folder {shown(mount.inner)} cannot be opened ({error.strerror}); the operator must create it or "
                "grant access to it."
            ) from None
        return rest

    def _follow(self) -> list[str]:
        """Returns the parts of the target of the link opened last."""
        self._links += 1
        if self._links > MOST_LINKS:
            raise ToolFailed(f"{shown(self.path)} leads through too many symbolic links, or in circles.")
        link = self._folders.pop()
        try:
            target = link_target(link)
        except OSError as error:
            raise ToolFailed(_reason(error, self.path)) from None
        finally:
            os.close(link)
        return self._start(target) if target.startswith("/") else _parts(target)

    def _missing(self, name: str) -> None:
        """Creates a missing parent folder, or raises FolderMissing."""
        if not self.make:
            raise FolderMissing(f"There is no {shown(self.path)}; list_files shows what is there.")
        refuse_read_only(self.path, self._mount, self._folders[-1], name)
        try:
            os.mkdir(name, dir_fd=self._folders[-1])
        except FileExistsError:
            return  # created concurrently
        except OSError as error:
            raise ToolFailed(_reason(error, self.path)) from None


def refuse_read_only(path: str, mount: Mount, folder: int, name: str) -> None:
    """Raises ToolFailed unless `name` may be written in this open folder inside a mount."""
    if not mount.writable:
        raise ToolFailed(f"{shown(path)} is in {shown(mount.inner)}, which is read-only; write elsewhere.")
    with acting_as(gateway_user()):  # git's configuration may be in a place that only the gateway's user can reach
        protected = mount.guarded and is_protected(str(mount.folder), folder, name)
    if protected:
        raise ToolFailed(
            f"{shown(path)} is read-only: other programs would execute it; tell the project's owner what to write "
            "there."
        )


def _reason(error: OSError | ValueError, path: str) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.ENOTDIR:
        return f"{shown(path)} leads through something that is not a folder."
    return f"{shown(path)} cannot be opened ({os.strerror(code) if code else 'the path is not valid'})."
