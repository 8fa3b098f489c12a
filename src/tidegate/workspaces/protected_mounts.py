"""Read-only mounts that keep sandboxed commands from changing project files that other programs execute.

Each file in `files.protected_paths` that exists when a sandbox is opened, up to `DEPTH` folders deep, is mounted
read-only in the sandbox. So are the configuration and hooks of the project's git repository, of its submodules and
worktrees, and of other repositories down to the same depth. Every parent folder of a protected file is a mount, too,
because a folder that merely contains a mount could be renamed and created again. `git commit` works, since objects,
references and the index stay writable.

If a bare repository is created next to `.git`, the sandbox is closed and that repository's `HEAD` is renamed.

A file that does not exist cannot be covered by a mount, so `created_files` detects files created under a protected
name. If a command may have created such a file, the sandbox is closed and the file is renamed. Symbolic links cannot be
covered, either. If a link is directly in the project folder, its target in the project is mounted instead, and
replacing the link is detected.

Mounts are identified by inode, through descriptors that do not follow links. `are_intact` compares them with what is
actually mounted. It does so before the first command, since files may have changed while the sandbox was being opened,
and again later, because a program outside the sandbox that replaces a file (as `git config` does) removes its mount.
All functions block and belong in worker threads.
"""

import contextlib
import os
import stat
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tidegate.errors import ToolFailed
from tidegate.log import Log
from tidegate.values import new_id
from tidegate.workspaces.files.file_user import User, acting_as
from tidegate.workspaces.files.mounts import open_for_reading, open_reference
from tidegate.workspaces.files.protected_paths import CONFIG_BYTES, NAMES, NAMES_ANYWHERE, REPOSITORY, named_by_git

log = Log(__name__)

DEPTH = 3
FOLDERS = 2000
"""Maximum number of folders searched for repositories when a sandbox is opened, which takes about 100 ms."""

REPOSITORIES = 32
"""Maximum number of repositories. Each adds about six mounts."""

NESTED = 64
"""Maximum number of protected files and folders below the project folder that get a mount, not counting those in
repositories."""

MOUNT_REPLACED = (
    "Everything in the workspace was killed because one of the project's protected files was replaced from outside, "
    "or a HEAD was put next to .git; the project is protected again from the next command on."
)

FILE_CREATED = (
    "Everything in the workspace was killed because a command created {names}, which other programs execute: it "
    "was renamed to end in .refused. Only the project's owner may create such files, outside the workspace."
)

NESTED_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {first: tuple(name for name in NAMES_ANYWHERE if name.split("/")[0] == first)
     for first in (name.split("/")[0] for name in NAMES_ANYWHERE)}
)  # fmt: skip
"""The names protected in any folder, by their first path component."""

_LISTED = frozenset((REPOSITORY, *NESTED_NAMES))
_CONFIG, _HOOKS, _COMMON, _HEAD = "config", "hooks", "commondir", "HEAD"
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class ProtectedMount(NamedTuple):
    """A mount below the project folder. A `writable` mount only keeps its folder from being renamed."""

    path: str
    writable: bool
    device: int
    inode: int


def find_mounts(project: Path) -> tuple[ProtectedMount, ...]:
    """Returns a project's mounts; outer mounts come before the ones inside them."""
    try:
        with _Survey(project).opened() as survey:
            for name in NAMES:
                survey.protect(survey.target(name))
            survey.repositories()
    except FileNotFoundError:  # reported when the folder is mounted
        return ()
    mounts = tuple(survey.found[path] for path in sorted(survey.found))
    rename_heads(project, mounts)
    return mounts


def are_intact(root: Path, mounts: tuple[ProtectedMount, ...]) -> bool:
    """True if all these mounts are still in place below a sandbox's folder `root` and none is bypassed. A sandbox that
    no longer exists counts as intact."""
    if not root.is_dir():
        return True
    try:
        for each in mounts:
            state = os.lstat(root / each.path)
            if (state.st_dev, state.st_ino) != (each.device, each.inode):
                return False
        heads = (root / folder / _HEAD for folder in _beside_repositories(mounts))
        return not any(head.is_symlink() or head.is_file() for head in heads)
    except OSError:
        return False


def rename_heads(project: Path, mounts: tuple[ProtectedMount, ...]) -> None:
    """Renames each `HEAD` next to a protected `.git`. If `.git` is damaged, git treats a folder with a `HEAD` as a
    repository and uses the configuration there. No link is followed, since another session may have replaced a folder
    with a link."""
    with contextlib.suppress(FileNotFoundError), _Survey(project).opened() as survey:
        for folder in _beside_repositories(mounts):
            survey.rename_head(folder)


def rename_created(project: Path, names: tuple[str, ...]) -> None:
    """Renames the files created under these names."""
    with contextlib.suppress(FileNotFoundError), _Survey(project).opened() as survey:
        for name in names:
            survey.rename_created(name)


def _beside_repositories(mounts: tuple[ProtectedMount, ...]) -> Iterator[str]:
    for each in mounts:
        folder, _, name = each.path.rpartition("/")
        if name == REPOSITORY:
            yield folder


class _Survey:
    def __init__(self, project: Path) -> None:
        self._project = os.path.realpath(project)
        self._root = -1
        self.found: dict[str, ProtectedMount] = {}

    @contextmanager
    def opened(self) -> Iterator["_Survey"]:
        self._root = os.open(self._project, _FOLDER)
        try:
            _open_up(self._root, os.fstat(self._root), stat.S_IRUSR | stat.S_IXUSR)
            yield self
        finally:
            os.close(self._root)

    @contextmanager
    def _at(self, path: str) -> Iterator[tuple[int, os.stat_result] | None]:
        """Opens a path in the project for the block; yields a descriptor and its stat result, or None if the path is
        missing or leads through a link."""
        folder, fds, names = self._root, list[int](), path.split("/") if path else ["."]
        try:
            try:
                for name in names:
                    folder, state = open_reference(name, folder)
                    fds.append(folder)
            except OSError as error:
                if isinstance(error, PermissionError):
                    self._shut("/".join(names[: len(fds)]))
                yield None
                return
            yield folder, state
        finally:
            for fd in fds:
                os.close(fd)

    def protect(self, path: str, *, writable: bool = False) -> bool:
        """Protects a regular file or folder, and keeps its parents from being renamed. Returns false if there is no
        such file or folder."""
        with self._at(path) as there:
            if there is None or not (stat.S_ISREG(there[1].st_mode) or stat.S_ISDIR(there[1].st_mode)):
                return False
            known = self.found.get(path)
            if known is None or known.writable:
                self.found[path] = ProtectedMount(path, writable, there[1].st_dev, there[1].st_ino)
        parent = path.rpartition("/")[0]
        if parent and parent not in self.found:
            self.protect(parent, writable=True)
        return True

    def target(self, name: str) -> str:
        """Returns the path in the project to which an entry in the project folder leads: its own path, unless it is a
        link."""
        path = f"{self._project}/{name}"
        real = os.path.realpath(path) if os.path.islink(path) else ""  # noqa: PTH114 false where nothing can be read
        return real.removeprefix(f"{self._project}/") if real.startswith(f"{self._project}/") else name

    def _shut(self, path: str) -> None:
        """Makes an unreadable folder read-only as a whole, since a user who has removed the read permission could also
        restore it."""
        if not path:
            raise ToolFailed(
                f"The agent's workspace is set to {self._project}, which cannot be read, so "
                "nothing in it can be protected: give its owner permission to read it (chmod u+rwx)."
            )
        self.protect(path)

    def rename_head(self, path: str) -> None:
        """Renames the `HEAD` in a folder, if there is one."""
        with self._at(path) as there, contextlib.ExitStack() as opened:
            if there is None:
                return
            folder, state = there
            try:
                head, found = open_reference(_HEAD, folder)
            except OSError:  # it does not exist, or the folder is no longer a folder
                return
            opened.callback(os.close, head)
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                return
            where = f"{self._project}/{path}".rstrip("/")
            log.warning("a bare repository was put next to a protected one; its HEAD was renamed", folder=where)
            _rename(_HEAD, folder, state)

    def rename_created(self, path: str) -> None:
        """Renames a file or folder, or the link that leads to it."""
        parent, _, name = path.rpartition("/")
        if os.path.islink(f"{self._project}/{parent}"):  # noqa: PTH114 false where nothing can be read
            parent, _, name = parent.rpartition("/")
        with self._at(parent) as there:
            if there is not None:
                log.warning("a command created a file that other programs execute; it was renamed", path=path)
                _rename(name, *there)

    def repositories(self) -> None:
        """Protects the repositories in the project folder and in the folders below it, nearest first, and other
        protected files in those folders."""
        waiting, looked, found, nested = deque([("", 0)]), 0, 0, 0
        while waiting:
            folder, depth = waiting.popleft()
            if looked == FOLDERS or found == REPOSITORIES or nested >= NESTED:
                log.info("a project has more folders or repositories than can be protected", folder=self._project)
                return
            looked += 1
            for name in self._folders(folder, besides=_LISTED):
                path = f"{folder}/{name}".lstrip("/")
                if name == REPOSITORY:
                    found += self._repository(path if folder else self.target(path))
                elif folder and name in NESTED_NAMES:
                    nested += sum(self.protect(f"{folder}/{each}") for each in NESTED_NAMES[name])
                elif depth < DEPTH:
                    waiting.append((path, depth + 1))

    def _folders(self, path: str, besides: Collection[str] = ()) -> list[str]:
        """Returns the names of a folder's subfolders, and of its entries in `besides`."""
        with self._at(path) as there:
            if there is None or not stat.S_ISDIR(there[1].st_mode):
                return []
            try:
                with os.scandir(f"/proc/self/fd/{there[0]}") as entries:
                    return sorted(
                        entry.name for entry in entries if entry.name in besides or entry.is_dir(follow_symlinks=False)
                    )
            except PermissionError:
                self._shut(path)
                return []
            except OSError:
                return []

    def _repository(self, path: str) -> bool:
        """Protects the repository that a `.git` is or to which it points; returns false if there is none."""
        with self._at(path) as there:
            if there is None:
                return False
            is_folder, pointer = stat.S_ISDIR(there[1].st_mode), _read(*there)
        if is_folder:
            self._git_dir(path)
        elif self.protect(path) and pointer.startswith(b"gitdir:"):
            leads = Path(self._project, path).parent / os.fsdecode(pointer[7:].strip())
            if (target := os.path.normpath(leads)).startswith(f"{self._project}/"):
                self._git_dir(target.removeprefix(f"{self._project}/"))
        return True

    def _git_dir(self, path: str) -> None:
        """Protects a repository's folder, or its folder for a worktree."""
        if path in self.found or not self.protect(path, writable=True):
            return
        worktree = Path(path).parent.name == "worktrees"
        config = self._text(f"{path}/../../{_CONFIG}" if worktree else f"{path}/{_CONFIG}")
        needed = {_COMMON: b".\n"} if worktree else {_COMMON: b".\n", _CONFIG: b"", _HOOKS: None}
        if b"worktreeconfig" in config.lower():
            needed["config.worktree"] = b""
        self._complete(path, needed)
        if not all(self.protect(f"{path}/{name}") for name in needed):
            self.protect(path)  # one of them is a link or cannot be created, so make the whole folder read-only
        if worktree:
            self.protect(f"{path}/gitdir")
            return
        for named in named_by_git(self._project, f"{self._project}/{path}", self._text_at):
            self.protect(named)
        for name in self._folders(f"{path}/worktrees"):
            self._git_dir(f"{path}/worktrees/{name}")
        self._modules(f"{path}/modules")

    def _modules(self, path: str) -> None:
        """Protects submodules; their names may have several parts."""
        waiting = deque((f"{path}/{name}", 0) for name in self._folders(path))
        while waiting and len(self.found) < REPOSITORIES * len(NAMES):
            folder, depth = waiting.popleft()
            names = self._folders(folder)
            if "objects" in names:
                self._git_dir(folder)
            elif depth < DEPTH:
                waiting += ((f"{folder}/{name}", depth + 1) for name in names)

    def _complete(self, path: str, needed: Mapping[str, bytes | None]) -> None:
        """Creates missing files with the given text, and missing folders, so that no command can create different ones.
        git treats these files and folders as if they were missing. (A `commondir` that leads elsewhere would make git
        read its configuration from there.)"""
        with self._at(path) as there:
            if there is None:
                return
            folder, owner = there
            for name, text in needed.items():
                with contextlib.suppress(OSError):  # it exists, or the folder is not writable
                    _make(f"/proc/self/fd/{folder}/{name}", text, owner)

    def _text_at(self, path: str) -> bytes:
        return self._text(path.removeprefix(f"{self._project}/"))

    def _text(self, path: str) -> bytes:
        with self._at(os.path.normpath(path)) as there:
            return b"" if there is None else _read(*there)


def _rename(name: str, folder: int, state: os.stat_result) -> None:
    _open_up(folder, state, stat.S_IWUSR)
    refused = f"{name}.refused"
    if Path(f"/proc/self/fd/{folder}/{refused}").is_dir():
        refused = new_id(refused)
    with contextlib.suppress(FileNotFoundError):
        os.rename(name, refused, src_dir_fd=folder, dst_dir_fd=folder)


def _open_up(folder: int, state: os.stat_result, needed: int) -> None:
    """Restores access to a folder after a command has revoked access for its own user, which may also be the gateway's
    user."""
    if ~state.st_mode & needed:
        with contextlib.suppress(PermissionError):  # it belongs to another user
            Path(f"/proc/self/fd/{folder}").chmod(stat.S_IMODE(state.st_mode) | stat.S_IRWXU)


def _read(reference: int, state: os.stat_result) -> bytes:
    if not stat.S_ISREG(state.st_mode):
        return b""
    try:
        fd = open_for_reading(reference)
    except OSError:
        return b""
    try:
        return os.read(fd, CONFIG_BYTES)
    finally:
        os.close(fd)


def _make(path: str, text: bytes | None, owner: os.stat_result) -> None:
    """Creates a file or folder. If the gateway runs as root, this is done with the rights of the repository's owner; if
    chown were used afterwards, the path might lead elsewhere by then."""
    with acting_as(User(owner.st_uid, owner.st_gid) if os.geteuid() == 0 else None):
        if text is None:
            Path(path).mkdir()
            return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)
