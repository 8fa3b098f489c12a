"""The kernel's names in control group hierarchies of both versions.

Pure functions on text: they find a process's hierarchies in two of the kernel's files, and name the files that set and
count a limit for each version and controller.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tidegate.workspaces.backends.interface import SandboxLimits

CONTROLLERS: Mapping[str, str] = MappingProxyType({"pids": "processes", "memory": "memory_bytes"})
"""The setting that each controller enforces."""

PROCESSES = "cgroup.procs"
"""The file that lists a group's processes; a process joins by writing 0 to it."""


class CgroupTree(NamedTuple):
    """A cgroup directory, its hierarchy's version (1 or 2) and the controllers available in it."""

    version: int
    folder: Path
    controllers: tuple[str, ...]


class GroupSetting(NamedTuple):
    """A value written to a file in a new group. The file may be missing unless the setting is `needed`."""

    file: str
    value: str
    needed: bool = True


def settings(version: int, controller: str, limits: SandboxLimits) -> tuple[GroupSetting, ...]:
    """Returns the values to write for each limit. Swap counts as memory, so that a group that has run out of memory
    cannot continue in swap."""
    if controller == "pids":
        return (GroupSetting("pids.max", str(limits.processes)),)
    most = str(limits.memory_bytes)
    if version == 1:
        return GroupSetting("memory.limit_in_bytes", most), GroupSetting(
            "memory.memsw.limit_in_bytes", most, needed=False
        )
    return GroupSetting("memory.max", most), GroupSetting("memory.swap.max", "0", needed=False)


def counter(version: int, controller: str) -> tuple[str, str]:
    """Returns the file that counts how often a limit was hit, and the key for that number in the file."""
    if controller == "pids":
        return "pids.events", "max"
    return ("memory.oom_control" if version == 1 else "memory.events"), "oom_kill"


def trees(cgroup: str, mountinfo: str) -> tuple[CgroupTree, ...]:
    """Returns a process's hierarchies, based on the content of /proc/self/cgroup and /proc/self/mountinfo. The
    hierarchies are the version 1 hierarchies that have our controllers or, if there are none, the version 2 hierarchy
    with all controllers that it may have."""
    mounts = list(_mounts(mountinfo))
    found = []
    for line in cgroup.splitlines():
        number, names, path = line.split(":", 2)
        ours = tuple(name for name in CONTROLLERS if name in names.split(","))
        version = 2 if (number, names) == ("0", "") else 1
        for mount in mounts:
            fits = mount.version == version and (version == 2 or set(names.split(",")) <= mount.options)
            if fits and (ours or version == 2) and (folder := mount.place(path)) is not None:
                found.append(CgroupTree(version, folder, ours or tuple(CONTROLLERS)))
                break
    first = [tree for tree in found if tree.version == 1]
    return tuple(first or found)


class _Mount(NamedTuple):
    version: int
    root: str
    point: Path
    options: frozenset[str]

    def place(self, path: str) -> Path | None:
        """Returns a control group's folder under this mount, or None if the mount does not include it."""
        inner = "" if path == self.root else path.removeprefix(f"{self.root.rstrip('/')}/")
        return None if inner == path or ".." in inner.split("/") else self.point / inner


def _mounts(text: str) -> Iterator[_Mount]:
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = before.split(" ")[3:5]
            yield _Mount(2 if kind == "cgroup2" else 1, root, Path(point), frozenset(options.split(",")))
