"""What the kernel tells of processes.

Guarantee: a process that ends while it is looked at counts as gone, and is no error; one that only waits to be reaped
counts as gone too. A process is known by its id and the time of its start together, since ids come back; a signal goes
to the very process that was looked at, or to none.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Iterator

from tidegate.workspaces.interface import MARK, BoxLimits, Load

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATE_FIELD, _PARENT_FIELD, _START_FIELD = 0, 1, 19  # of a stat file, counted from behind the command's name
_READ = 64 * 1024  # of one file of a process at once
_MOST_ENVIRONMENT = 4 * 1024 * 1024  # of a process; the kernel gives a new one no more than some megabytes
_KIB = 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def start_ticks(pid: int) -> int | None:
    """When it was started, in the kernel's ticks; None when there is none."""
    with _held(f"/proc/{pid}", None) as process:
        fields = _stat(process)
    return int(fields[_START_FIELD]) if fields else None


def ended(pid: int) -> bool:
    """Whether it only waits to be reaped."""
    with _held(f"/proc/{pid}", None) as process:
        fields = _stat(process)
    return bool(fields) and fields[_STATE_FIELD] == b"Z"


def ancestors(pid: int) -> frozenset[int]:
    found: set[int] = set()
    while pid not in found:
        found.add(pid)
        with _held(f"/proc/{pid}", None) as process:
            fields = _stat(process)
        pid = int(fields[_PARENT_FIELD]) if fields else 0
    return frozenset(found)


def program(pid: int) -> str:
    """The name of what it runs; empty when there is none."""
    with _held(f"/proc/{pid}", None) as process:
        return _contents(process, "comm").decode(errors="replace").strip()


class ProcessTable:
    """The processes that a folder of the kind of /proc shows. It owns the descriptor of the folder, which nobody uses
    any more once it is closed: its number may be another folder's by then."""

    def __init__(self, folder: str) -> None:
        self._folder = os.open(folder, _FOLDER)  # house: allow it is in the kernel's memory
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            if self._folder >= 0:
                os.close(self._folder)
            self._folder = -1

    def ids(self) -> frozenset[str]:
        """By the numbers that this folder calls them."""
        with self._lock:
            return frozenset(id for id, _ in self._processes())

    def load(self, limits: BoxLimits) -> Load:
        """What they use together. Memory that several share counts for each of them, unless that makes too much of it:
        then it is divided among them, which takes a closer look. Of too many processes only the number is told."""
        with self._lock:
            if (count := len(self._names())) > limits.processes:
                return Load(processes=count)
            own = [_own_bytes(process) for _, process in self._processes()]
            used = sum(own)
            if used > limits.memory_bytes:
                used = sum(_shared_bytes(process) for _, process in self._processes())
        return Load(processes=len(own), memory_bytes=used)

    def lying_in(self, folders: Iterable[str]) -> int:
        """The bytes that file systems hold, each named from here: of those that lie in memory, and are nobody's own."""
        total = 0
        with self._lock:
            for name in folders:
                with _held(name, self._folder) as folder, contextlib.suppress(OSError):
                    found = os.statvfs(folder)
                    total += (found.f_blocks - found.f_bfree) * found.f_frsize
        return total

    def is_crowded(self, most: int) -> bool:
        """Whether there are more processes than that: then to look at each may take longer than to make them."""
        with self._lock:
            return len(self._names()) > most

    def signal(self, number: int, *, besides: frozenset[str], mark: str | None) -> int:
        """To all but `besides`; with a mark, to those alone that carry it. To how many."""
        reached = 0
        with self._lock:
            for id, process in self._processes():
                if id in besides or (mark is not None and not _carries(process, mark)):
                    continue
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(process, number)
                    reached += 1
        return reached

    def _processes(self) -> Iterator[tuple[str, int]]:
        """Each living one, held by a descriptor of its own folder, through which only it can be read and signalled."""
        for name in self._names():
            with _held(name, self._folder) as process:
                fields = _stat(process)
                if fields and fields[_STATE_FIELD] not in (b"Z", b"X"):
                    yield name, process

    def _names(self) -> list[str]:
        if self._folder < 0:
            return []
        try:
            return [name for name in os.listdir(self._folder) if name.isdecimal()]  # noqa: PTH208 it has no path
        except OSError:  # the namespace is gone, and all that was in it
            return []


@contextlib.contextmanager
def _held(name: str, folder: int | None) -> Iterator[int]:
    """A process's folder; -1 when there is none."""
    try:
        fd = os.open(name, _FOLDER, dir_fd=folder)
    except OSError:
        yield -1
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _stat(process: int) -> list[bytes]:
    """What stands behind the name, which itself may hold anything; empty when it is gone."""
    return _contents(process, "stat").rpartition(b") ")[2].split()


def _carries(process: int, mark: str) -> bool:
    return f"\0{MARK}={mark}\0".encode() in b"\0" + _contents(process, "environ", _MOST_ENVIRONMENT)


def _own_bytes(process: int) -> int:
    fields = _contents(process, "statm").split()
    return max(0, int(fields[1]) - int(fields[2])) * _PAGE if len(fields) > 2 else 0


def _shared_bytes(process: int) -> int:
    for line in _contents(process, "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * _KIB
    return 0


def _contents(process: int, name: str, most: int = _READ) -> bytes:
    pieces: list[bytes] = []
    if process < 0:
        return b""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
    except OSError:
        return b""
    try:
        while most > 0 and (piece := os.read(fd, min(_READ, most))):
            pieces.append(piece)
            most -= len(piece)
    except OSError:
        return b""
    finally:
        os.close(fd)
    return b"".join(pieces)
