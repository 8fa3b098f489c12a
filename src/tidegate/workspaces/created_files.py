"""Detection of files created by a command in a project under a protected name, since no mount can cover a file that
does not exist yet.

A file counts as created by a command if it has appeared, or replaced a symbolic link, between two checks and a command
was running at any time between them. Any other new file comes from elsewhere, such as the owner's editor, and is only
reported as new. The project folder is checked each time. Folders below it are listed, too, to the same depth as in
`protected_mounts`; if listing them is slow, further listings are spaced out so that they take only a small share of the
time.

Each sandbox owns one `CreatedFiles`. `check` blocks and belongs in a worker thread.
"""

import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tidegate.workspaces.files.protected_paths import NAMES, REPOSITORY
from tidegate.workspaces.protected_mounts import DEPTH, FOLDERS, NESTED_NAMES, ProtectedMount

QUICK_SECONDS = 0.02
"""A listing that takes no longer than this (a few hundred folders) is repeated at every check."""

LIST_AGAIN = 30.0
"""After a slower listing, the next one is delayed by this many times its duration."""


_Link = tuple[int, int]


class FoundFiles(NamedTuple):
    """New files since the last check: those in `created` were created by a command, those in `appeared` came from
    elsewhere."""

    created: tuple[str, ...]
    appeared: tuple[str, ...]


class CreatedFiles:
    def __init__(self, mounts: tuple[ProtectedMount, ...]) -> None:
        self._covered = frozenset(each.path for each in mounts)
        self._top = _Names()
        self._nested = _Names()
        self._started = 0
        self._list_again = 0.0
        self._lock = threading.Lock()

    def command_started(self) -> None:
        self._started += 1

    def check(self, root: Path, *, running: bool, completely: bool = False) -> FoundFiles:
        """Looks for new files below `root`. `running` is true if a command is running when this is called. With
        `completely`, the folders are listed even if they have just been listed."""
        with self._lock:
            started = self._started
            found = self._top.compare(self._names(root, _top_names), started, running)
            begun = time.monotonic()
            if begun < self._list_again and not completely:
                return found
            nested = self._nested.compare(self._names(root, _nested_names), started, running)
            took = time.monotonic() - begun
            self._list_again = time.monotonic() + LIST_AGAIN * took if took > QUICK_SECONDS else 0.0
            return FoundFiles(found.created + nested.created, found.appeared + nested.appeared)

    def _names(self, root: Path, list_names: Callable[[Path], Iterator[str]]) -> dict[str, _Link | None]:
        return {name: _link(root / name) for name in list_names(root) if name not in self._covered}


class _Names:
    """The names in one listing that no mount covers. A check that finds created files leaves the state unchanged, so
    the next check finds them again."""

    def __init__(self) -> None:
        self._known: Mapping[str, _Link | None] = {}
        self._settled = 0  # commands that had started, and ended, before the last check

    def compare(self, found: Mapping[str, _Link | None], started: int, running: bool) -> FoundFiles:
        new = tuple(
            sorted(name for name, link in found.items() if name not in self._known or link != self._known[name])
        )
        # A command may create a repository where there was none.
        created = tuple(name for name in new if name != REPOSITORY or name in self._known)
        if created and started > self._settled:
            return FoundFiles(created, ())
        self._known = found
        self._settled = started - 1 if running else started
        return FoundFiles((), new)


def _link(path: Path) -> _Link | None:
    """Returns a symbolic link's inode and change time, since no mount can cover a link, or None for anything else."""
    try:
        state = path.lstat()
    except OSError:
        return None
    return (state.st_ino, state.st_ctime_ns) if stat.S_ISLNK(state.st_mode) else None


def _top_names(root: Path) -> Iterator[str]:
    return (name for name in (REPOSITORY, *NAMES) if os.path.lexists(root / name))


def _nested_names(root: Path) -> Iterator[str]:
    waiting = deque([("", 0)])
    for _ in range(FOLDERS):
        if not waiting:
            return
        folder, depth = waiting.popleft()
        try:
            with os.scandir(root / folder) as entries:
                found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:  # it was removed, or a command revoked its own access
            continue
        for first in NESTED_NAMES.keys() & found.keys() if folder else ():
            yield from (f"{folder}/{name}" for name in NESTED_NAMES[first] if os.path.lexists(root / folder / name))
        if depth < DEPTH:
            below = sorted(name for name, is_folder in found.items() if is_folder and name not in _SKIPPED)
            waiting += ((f"{folder}/{name}".lstrip("/"), depth + 1) for name in below)


_SKIPPED = frozenset((REPOSITORY, *NESTED_NAMES))
