"""Processes as the kernel shows them in `/proc`.

A process that exits while it is being inspected, or is a zombie, counts as nonexistent; this is not an error. A process
is identified by its id together with its start time, since ids are reused. A signal reaches exactly the process that
was inspected, or none.
"""

import contextlib
import os
import re
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tidegate.workspaces.backends.interface import MARK, SandboxLimits, SandboxUsage

_STATE_FIELD, _PARENT_FIELD, _START_FIELD = 0, 1, 19  # of a stat file, counted after the command's name
_READ = 64 * 1024  # bytes read at a time from a process's file
_MOST_ENVIRONMENT = 4 * 1024 * 1024  # of a process; the kernel gives a new one at most a few megabytes
_KIB = 1024
_BLOCK = 512  # the unit of st_blocks on every system
_MOST_MAPS = 64 * 1024 * 1024  # of one process: more than the kernel's maximum of 65530 mappings takes
_MAP_LINE = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) \S{4} [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)")
_DELETED = b" (deleted)"
_DELETED_LINE = re.compile(rb"^.*" + re.escape(_DELETED) + rb"$", re.MULTILINE)
_OWN_FIELDS = (b"RssAnon", b"RssShmem", b"VmSwap")
_PAGE_TABLES = (b"VmPTE",)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


MOST_DESCRIPTORS = 100_000
"""Maximum number of descriptors inspected for all of a sandbox's processes together; more would take seconds."""


def start_ticks(pid: int) -> int | None:
    """Returns a process's start time in kernel ticks, or None if there is no such process."""
    with _held(f"/proc/{pid}", None) as process:
        fields = _stat(process)
    return int(fields[_START_FIELD]) if fields else None


def is_zombie(pid: int) -> bool:
    """True if a process is a zombie."""
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


def program_name(pid: int) -> str:
    """Returns the name of the program that a process is running, or an empty string if there is no such process."""
    with _held(f"/proc/{pid}", None) as process:
        return _contents(process, "comm").decode(errors="replace").strip()


_MAPPING_BYTES = 256
_INODE_BYTES = 1024
_OBJECT_BYTES = 512  # of a message queue, a set of semaphores or a segment
_MESSAGE_BYTES = 64
_SEMAPHORE_BYTES = 128
"""The kernel's memory for one object of each kind, rounded up. None of it belongs to a process, and by default, the
kernel allows gigabytes of each."""


class ProcessTable:
    """The processes shown in a folder like /proc, or those listed by `names`. The table owns the folder's descriptor,
    which is not used after `close`, since its number may belong to another file by then."""

    def __init__(self, folder: str, names: Callable[[], Iterable[str]] | None = None) -> None:
        self._folder = os.open(folder, _FOLDER)  # lint: allow it is in the kernel's memory
        self._chosen = names
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            if self._folder >= 0:
                os.close(self._folder)
            self._folder = -1

    def ids(self) -> frozenset[str]:
        """Returns the process ids, as numbered in this folder's namespace."""
        with self._lock:
            return frozenset(id for id, _ in self._processes())

    def load(self, limits: SandboxLimits, *, places: Iterable[str] = (), beside: int = 0) -> SandboxUsage:
        """Returns the combined usage of the processes, including the kernel's memory for their address spaces. `places`
        are in-memory file systems, named relative to this folder. `beside` is the size in bytes of memory that belongs
        to no process. Shared memory counts in full for every process that maps it. If the sum exceeds the limit, only
        each process's share is counted, which takes longer to read. If there are too many processes, only their number
        is returned."""
        with self._lock:
            if (count := len(self._names())) > limits.processes:
                return SandboxUsage(processes=count)
            devices, kept = self._in_memory(places)
            count, unnamed = 0, UnnamedFiles(devices)
            own = 0
            for _, process in self._processes():
                count += 1
                unnamed.add(process)
                own += _status_bytes(process, _OWN_FIELDS)
                kept += _status_bytes(process, _PAGE_TABLES)
            kept += beside + unnamed.memory_bytes + unnamed.mappings * _MAPPING_BYTES
            used = own + kept
            if kept <= limits.memory_bytes < used:
                used = kept + sum(_shared_bytes(process, unnamed) for _, process in self._processes())
        return SandboxUsage(
            processes=count,
            memory_bytes=used,
            unnamed_bytes=unnamed.disk_bytes,
            descriptors=unnamed.descriptors,
        )

    def _in_memory(self, places: Iterable[str]) -> tuple[frozenset[int], int]:
        """Returns the devices of these file systems, and the bytes in them that belong to no process."""
        devices, total = set(), 0
        for name in places:
            with _held(name, self._folder) as folder, contextlib.suppress(OSError):
                found = os.statvfs(folder)
                devices.add(os.fstat(folder).st_dev)
                total += (found.f_blocks - found.f_bfree) * found.f_frsize
                total += (found.f_files - found.f_ffree) * _INODE_BYTES
        return frozenset(devices), total

    def is_crowded(self, most: int) -> bool:
        """True if there are more processes than `most`. New processes may then be created faster than existing ones are
        inspected."""
        with self._lock:
            return len(self._names()) > most

    def signal(self, number: int, *, besides: frozenset[str], mark: str | None) -> int:
        """Signals all processes except `besides`; with a mark, only those that carry it. Returns how many were
        signalled."""
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
        """Yields each living process with a descriptor for its folder. Reading and signalling through this descriptor
        never reaches another process."""
        for name in self._names():
            with _held(name, self._folder) as process:
                fields = _stat(process)
                if fields and fields[_STATE_FIELD] not in (b"Z", b"X"):
                    yield name, process

    def _names(self) -> list[str]:
        if self._folder < 0:
            return []
        try:
            if self._chosen is not None:
                return list(self._chosen())
            return [name for name in os.listdir(self._folder) if name.isdecimal()]  # noqa: PTH208 it has no path
        except OSError:  # the namespace no longer exists, nor does anything in it
            return []


@contextlib.contextmanager
def _held(name: str, folder: int | None) -> Iterator[int]:
    """Opens a folder, such as a process's, for the block. Yields the descriptor, or -1 if the folder cannot be
    opened."""
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
    """Returns the fields of the `stat` file that follow the name, since a name may contain any character. Empty if the
    process has exited."""
    return _contents(process, "stat").rpartition(b") ")[2].split()


def _carries(process: int, mark: str) -> bool:
    return f"\0{MARK}={mark}\0".encode() in b"\0" + _contents(process, "environ", _MOST_ENVIRONMENT)


class UnnamedFiles:
    """Files without a name that processes have open, each counted once: memfds, which are in memory, and deleted files,
    which take up disk space until they are closed. Files on `counted` devices are already counted elsewhere."""

    def __init__(self, counted: frozenset[int]) -> None:
        self._counted = counted
        self._sizes: dict[tuple[int, int], int] = {}  # lint: allow bounded, and kept only for one measurement
        self._anonymous = _anonymous_device()
        self.descriptors = 0
        self.mappings = 0

    @property
    def memory_bytes(self) -> int:
        return sum(size for (device, _), size in self._sizes.items() if device == self._anonymous)

    @property
    def disk_bytes(self) -> int:
        return sum(size for (device, _), size in self._sizes.items() if device != self._anonymous)

    def counts(self, device: int, inode: int) -> bool:
        """True if a file is already included or is on a device in `counted`."""
        return device in self._counted or (device, inode) in self._sizes

    def add(self, process: int) -> None:
        """Adds the files that a process has open. Nothing is added beyond `MOST_DESCRIPTORS`."""
        with _held("fd", process if process >= 0 else None) as folder:
            try:
                names = [] if folder < 0 else os.listdir(folder)  # noqa: PTH208 it has no path
            except OSError:  # the process has exited in the meantime
                names = []
            self.descriptors += len(names)
            if self.descriptors > MOST_DESCRIPTORS:
                return
            for name in names:
                with contextlib.suppress(OSError):  # closed in the meantime
                    found = os.stat(name, dir_fd=folder)
                    if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                        self._add(found.st_dev, found.st_ino, found.st_blocks * _BLOCK)
        maps = _contents(process, "maps", _MOST_MAPS)
        self.mappings += maps.count(b"\n")
        for mapped in _mapped(found[0] for found in _DELETED_LINE.finditer(maps)):
            if mapped.deleted and mapped.device != self._anonymous:  # memfds are already part of the process's memory
                self._add(mapped.device, mapped.inode, mapped.size)

    def _add(self, device: int, inode: int, size: int) -> None:
        if device not in self._counted:
            self._sizes[device, inode] = max(size, self._sizes.get((device, inode), 0))


class _Mapped(NamedTuple):
    """One line of a process's memory map."""

    device: int
    inode: int
    size: int
    path: bytes

    @property
    def deleted(self) -> bool:
        return self.path.endswith(_DELETED)

    @property
    def is_segment(self) -> bool:
        """True if it is System V shared memory, which is counted separately."""
        return self.path.startswith(b"/SYSV")


def _mapped(lines: Iterable[bytes]) -> Iterator[_Mapped]:
    for line in lines:
        if (found := _MAP_LINE.match(line)) is not None:
            start, end, major, minor = (int(found[index], 16) for index in range(1, 5))
            yield _Mapped(os.makedev(major, minor), int(found[5]), end - start, found[6])


def _anonymous_device() -> int:
    """Returns the device on which the kernel keeps memfds and other shared memory."""
    fd = os.memfd_create("device")
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def ipc_bytes(listed: bytes) -> int:
    """Returns the size of System V shared memory (including swapped-out memory), message queues and semaphores, from
    the content of the files in /proc/sysvipc. Each of them begins with the names of its columns."""
    names: list[bytes] = []
    total = 0
    for line in listed.splitlines():
        fields = line.split()
        if fields[:1] == [b"key"]:
            names = fields
            continue
        row = {name: int(field) for name, field in zip(names, fields, strict=False) if name in _SIZES}
        total += _OBJECT_BYTES + sum(value * _SIZES[name] for name, value in row.items())
    return total


_SIZES = {b"rss": 1, b"swap": 1, b"cbytes": 1, b"qnum": _MESSAGE_BYTES, b"nsems": _SEMAPHORE_BYTES}


def _status_bytes(process: int, names: tuple[bytes, ...]) -> int:
    """Returns the sum of these fields in a process's status. None of them include pages mapped from files."""
    status = dict(line.split(b":", 1) for line in _contents(process, "status").splitlines() if b":" in line)
    return sum(int(status[name].split()[0]) * _KIB for name in names if name in status)


def _shared_bytes(process: int, counted: UnnamedFiles) -> int:
    """Returns the process's share of shared memory, without memory that is already counted."""
    total, skipped = 0, False
    for line in _contents(process, "smaps", _MOST_MAPS).splitlines():
        if line.startswith((b"Pss:", b"SwapPss:")):
            total += 0 if skipped else int(line.split()[1]) * _KIB
        elif mapped := next(_mapped([line]), None):
            skipped = mapped.is_segment or counted.counts(mapped.device, mapped.inode)
    return total


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
