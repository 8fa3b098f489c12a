"""Control groups: limits on a workspace that the kernel enforces, and the most reliable way to kill everything in it.

Where this gateway may create groups, each sandbox gets one below the gateway's own group, so limits on the gateway also
apply to its workspaces. A process cannot leave its group by forking. A group never has more processes than its limit,
and the kernel kills processes that exceed its memory. A process joins its group before it becomes the agent's command,
so no part of the command ever runs outside the group. Each command has a leaf group below its sandbox's group, so a
signal reaches exactly that command's processes, even if they have left their process group, session or environment.
`Cgroup.end` kills everything in the group and removes it. A group's name contains a digest of the home folder.
Leftovers of a killed gateway are recognised by this name, and other groups are never touched. Where no groups may be
created, `kernel_limits` is empty. Functions that are not `async` block and belong in worker threads.

Both versions of the kernel's interface are supported. Version 1 has a hierarchy per controller, version 2 a single one.
In version 2, a group with processes must not have groups with limits below it, so the gateway first moves itself into a
group named `gateway`. It does so only if the hierarchy was delegated to it (systemd: `Delegate=yes`).
"""

import contextlib
import errno
import itertools
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from anyio import CancelScope, to_thread

from tidegate.errors import ToolFailed
from tidegate.log import Log
from tidegate.workspaces.backends.interface import LimitEvents, SandboxLimits, owner_of
from tidegate.workspaces.kernel.cgroup_hierarchy import (
    CONTROLLERS,
    PROCESSES,
    CgroupTree,
    GroupSetting,
    counter,
    settings,
    trees,
)
from tidegate.workspaces.kernel.cgroup_members import block_new, count, kill, members, send, try_remove, write

log = Log(__name__)

END_SECONDS = 5.0
"""Time limit for killed processes to exit, so that their group can be removed."""

GATEWAY_GROUP = "gateway"
"""The group into which the gateway moves itself. systemd's `DelegateSubgroup=` may also name this group."""

GROUP_REMOVED = (
    "The control group of the workspace's commands was removed from outside. The next command creates it again."
)

JOIN_SCRIPT = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; exec "$@"'
"""A shell script that joins the groups whose files are listed before `--` and then becomes the command after `--`."""

_LOOKS = 20  # attempts to remove a leaf whose last process is just exiting
_LOOK_SECONDS = 0.005  # between two such attempts
_STEPS = 5  # attempts to move the gateway, while its helper processes come and go
_SYSTEMD = Path("/run/systemd/system")  # exists where systemd runs
_DELEGATED = ("user.delegate", "trusted.delegate")  # attributes with which systemd marks delegated groups


class Cgroups:
    """One gateway's groups, identified by its `home`."""

    def __init__(self, home: Path) -> None:
        self.prefix = f"tidegate-{owner_of(home)}-"
        self._lock = threading.Lock()
        self._trees: tuple[CgroupTree, ...] | None = None
        self._numbers = itertools.count()
        self._living: set[str] = set()
        self.kernel_limits: frozenset[str] = frozenset()
        """The settings enforced with groups; known once `detect` has returned."""

    def detect(self) -> None:
        """Finds out where groups can be created. Only the first call does anything."""
        with self._lock:
            if self._trees is None:
                self._trees = tuple(_usable(f"{self.prefix}{os.getpid()}-try"))
                self.kernel_limits = _settings_of(self._trees)

    async def make(self, limits: SandboxLimits) -> "Cgroup | None":
        """Creates a group. Returns None if no group can be created at all or at the moment."""
        await to_thread.run_sync(self.detect)
        if not self._trees:
            return None
        with self._lock:
            # The pid in the name shows which process owns the group.
            group = Cgroup(f"{self.prefix}{os.getpid()}-{next(self._numbers)}", self._trees, self._forget)
            self._living.add(group.name)
        try:
            await to_thread.run_sync(group.create, limits)
        except BaseException as error:
            with CancelScope(shield=True):
                await to_thread.run_sync(group.end)
            if not isinstance(error, OSError):
                raise
            log.warning(
                "no control group could be created for a workspace; its limits are polled",
                group=group.name,
                reason=str(error),
            )
            return None
        return group

    def sweep(self) -> None:
        """Kills everything in this home's groups that no sandbox owns, which are leftovers of a killed gateway, and
        removes them."""
        self.detect()
        trees = self._trees or ()
        with self._lock:
            left = {name for tree in trees for name in _names(tree.folder, self.prefix)} - self._living
        for name in left:
            log.info("a control group left by the previous gateway is removed", group=name)
            Cgroup(name, trees, self._forget).end()

    def _forget(self, name: str) -> None:
        with self._lock:
            self._living.discard(name)


class Cgroup:
    """A sandbox's group. The object owns the folders with its name, one per hierarchy, and the leaf groups below
    them."""

    def __init__(self, name: str, trees: tuple[CgroupTree, ...], forget: Callable[[str], None]) -> None:
        self.name = name
        self._trees = trees
        self._forget = forget
        self._folders = tuple(tree.folder / name for tree in trees)
        # One hierarchy is enough to tell commands apart; the other limits apply to the sandbox as a whole.
        self._counting = next((at for at, tree in enumerate(trees) if "pids" in tree.controllers), 0)
        self._numbers = itertools.count()
        self._leaves: set[CommandGroup] = set()
        self._refused = 0
        self._felt = LimitEvents()
        self._counting_lock = threading.Lock()  # never held while waiting
        self._lock = threading.Lock()
        self._over = False
        self.kernel_limits = _settings_of(trees)
        self.joins = tuple(str(folder / PROCESSES) for folder in self._folders)
        """The files to which a process writes 0 to join."""

    def create(self, limits: SandboxLimits) -> None:
        """Creates the group with these limits. Does nothing if `end` has already been called."""
        with self._lock:
            if self._over:
                return
            for tree, folder in zip(self._trees, self._folders, strict=True):
                folder.mkdir()
                for controller in tree.controllers:
                    for setting in settings(tree.version, controller, limits):
                        _set(folder, setting)

    def leaf(self) -> "CommandGroup":
        """Creates a leaf group for one command. Raises OSError on failure."""
        with self._counting_lock:
            folder = self._folders[self._counting] / f"{self.name}-{next(self._numbers)}"
            folder.mkdir()
            others = [path for at, path in enumerate(self.joins) if at != self._counting]
            leaf = CommandGroup(folder, (str(folder / PROCESSES), *others), self._drop)
            self._leaves.add(leaf)
            return leaf

    def _drop(self, leaf: "CommandGroup") -> None:
        with self._counting_lock:
            if leaf in self._leaves:
                self._refused += self._refusals(leaf.folder)
                self._leaves.discard(leaf)

    @property
    def joinable(self) -> bool:
        """True if the group can still be joined, since an empty group may have been removed from outside."""
        return all(os.access(path, os.W_OK) for path in self.joins)

    @property
    def limit_events(self) -> LimitEvents:
        """How often the group's limits were hit; once the group has been removed, the last known numbers. Version 1
        counts a refusal in the refused process's group, version 2 in the group with the limit."""
        felt = {
            controller: count(folder, *counter(tree.version, controller))
            for tree, folder in zip(self._trees, self._folders, strict=True)
            for controller in tree.controllers
        }
        with self._counting_lock:
            refused = felt.get("pids", 0) + self._refused + sum(self._refusals(leaf.folder) for leaf in self._leaves)
            before = self._felt
            self._felt = LimitEvents(max(felt.get("memory", 0), before.killed), max(refused, before.refused))
            return self._felt

    def _refusals(self, folder: Path) -> int:
        """Returns the number of refusals counted in a leaf; 0 in version 2, where leaves have no counter."""
        return count(folder, *counter(self._trees[self._counting].version, "pids"))

    def end(self) -> bool:
        """Kills everything in the group and removes it. Returns false if this fails. May be called again."""
        self._felt = self.limit_events
        until = time.monotonic() + END_SECONDS
        with self._lock:
            self._over = True
            for folder in self._folders:
                block_new(folder)
            while not all([self._ended(folder) for folder in self._folders]):
                if time.monotonic() > until:
                    break
                time.sleep(_LOOK_SECONDS)
            else:
                self._forget(self.name)
                return True
        self._forget(self.name)  # the next sweep will try again
        log.error("the processes in a control group cannot be killed", group=self.name)
        return False

    def _ended(self, folder: Path) -> bool:
        kill(folder)
        return try_remove(folder)


class CommandGroup:
    """A command's leaf group. Everything in it was started by that command and no other."""

    def __init__(self, folder: Path, joins: tuple[str, ...], dropped: "Callable[[CommandGroup], None]") -> None:
        self.folder = folder
        self.joins = joins
        """The files to which a process writes 0 to join."""
        self._dropped = dropped

    def send(self, number: int, besides: int | None = None) -> int:
        """Signals every process in the group except one. Returns how many were signalled."""
        return send(self.folder, number, besides)

    def kill(self, besides: int | None = None) -> int:
        """Kills every process in the group except one and prevents new ones. Returns how many were killed."""
        self._dropped(self)  # from now on, refusals do not mean that a limit was hit
        block_new(self.folder)
        return send(self.folder, signal.SIGKILL, besides)

    def remove(self) -> None:
        """Removes the empty group. If that fails, it is removed later with the sandbox's group. May be called again."""
        for _ in range(_LOOKS):
            self._dropped(self)
            if try_remove(self.folder):
                return
            time.sleep(_LOOK_SECONDS)


@contextlib.asynccontextmanager
async def command_group(group: Cgroup | None) -> AsyncIterator[CommandGroup | None]:
    """Creates a leaf group for a command that is started in the block and owns the group from then on. Yields None if
    there are no groups. If the block fails, the leaf group is removed."""
    try:
        leaf = None if group is None else await to_thread.run_sync(group.leaf)
    except OSError as error:
        raise ToolFailed(
            f"The command cannot be started: its control group cannot be created ({error.strerror})."
        ) from None
    try:
        yield leaf
    except BaseException:
        if leaf is not None:
            with CancelScope(shield=True):
                await to_thread.run_sync(leaf.remove)
        raise


def delegated_tree(tree: CgroupTree) -> CgroupTree | None:
    """Prepares the version 2 hierarchy so that groups with limits can be created in it, and returns it, or None if we
    may not change it."""
    own = tree.folder
    root = own.parent if own.name == GATEWAY_GROUP else own
    try:
        if _SYSTEMD.exists() and not _is_delegated(root):
            return None
        there = (root / "cgroup.controllers").read_text().split()
        usable = CgroupTree(2, root, tuple(name for name in tree.controllers if name in there))
        if not usable.controllers:
            return None
        wanted = " ".join(f"+{name}" for name in usable.controllers)
        for _ in range(_STEPS):
            try:
                write(root / "cgroup.subtree_control", wanted)
                return usable
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            _move_gateway_aside(root)
        log.warning(
            "the gateway's control group contains other processes, so no groups can be created in it", group=str(root)
        )
    except OSError as error:
        log.info("no control groups can be created here", group=str(root), reason=str(error))
    with contextlib.suppress(OSError):
        write(own / PROCESSES, "0")
        if own == root:
            (root / GATEWAY_GROUP).rmdir()
    return None


def _move_gateway_aside(root: Path) -> None:
    """Moves this process and its children out of a group, so that groups with limits can be created below it."""
    aside = root / GATEWAY_GROUP
    aside.mkdir(exist_ok=True)
    me = os.getpid()
    for pid in members(root):
        if pid == me or _parent(pid) == me:
            with contextlib.suppress(ProcessLookupError):
                write(aside / PROCESSES, str(pid))


def _usable(name: str) -> Iterator[CgroupTree]:
    """Yields the hierarchies in which this process can create groups. `name` is the name for a group created as a
    test."""
    try:
        found = trees(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    except (OSError, ValueError) as error:
        log.info("control groups cannot be read from the kernel", reason=str(error))
        return
    for tree in found:
        usable = tree if tree.version == 1 else delegated_tree(tree)
        if usable is None:
            continue
        try:
            (usable.folder / name).mkdir()
            (usable.folder / name).rmdir()
        except OSError as error:
            log.info("no control groups can be created here", group=str(usable.folder), reason=str(error))
        else:
            yield usable


def _settings_of(trees: tuple[CgroupTree, ...]) -> frozenset[str]:
    return frozenset(CONTROLLERS[name] for tree in trees for name in tree.controllers)


def _names(folder: Path, prefix: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder) if entry.name.startswith(prefix)]
    except OSError:
        return []


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


def _is_delegated(folder: Path) -> bool:
    """True if systemd delegated the group to us. Older versions of systemd mark this with an attribute that only root
    can read. If it cannot be read, the group's owner is decisive: an ordinary user owns a service's group only if it
    was delegated, except in the user's own systemd instance."""
    if any(_attribute(folder, name) == b"1" for name in _DELEGATED):
        return True
    me = os.geteuid()
    return me != 0 and folder.stat().st_uid == me and not any(part.startswith("user@") for part in folder.parts)


def _attribute(folder: Path, name: str) -> bytes:
    try:
        return os.getxattr(folder, name)
    except OSError:
        return b""


def _set(folder: Path, setting: GroupSetting) -> None:
    try:
        write(folder / setting.file, setting.value)
    except OSError:
        if setting.needed:
            raise
