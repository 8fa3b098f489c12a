"""Control groups: limits of a workspace that the kernel holds, and the surest way to end all that is in one.

Guarantee: where this gateway may make groups, each box gets one of its own, below the group that the gateway itself is
in, so that what bounds the gateway bounds its workspaces too. Who is in a group cannot leave it by forking; there are
never more processes in it than its limit, and what needs more memory than its limit is killed by the kernel. A process
joins by itself before it becomes the agent's command, so that nothing of that is ever outside. Each command has a leaf
of its own below its box's group, so that a signal reaches exactly what came of that command, whatever it has thrown
away. `Cgroup.end` kills what is in it and removes it. A group bears a digest of the home folder: what a killed gateway
left is known by it, and of others nothing is touched. Where no group may be made, none is, and `held` is empty. What is
not `async` blocks: for threads.

Both versions of the kernel's interface are served. Version 1 has a tree of folders for each controller, version 2 one
for all; there a group with processes may have no groups with limits below it, so the gateway first steps aside, into a
group `gateway` of its own. That is only done where the tree was handed over to it (systemd: `Delegate=yes`).
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
from tidegate.workspaces.kernel.cgroup_members import count, kill, members, removed, send, shut, write

log = Log(__name__)

END_SECONDS = 5.0
"""Within which what was killed is gone and its group can be removed."""

GATEWAY_GROUP = "gateway"
"""The group that the gateway steps into; also what `DelegateSubgroup=` may name."""

GROUP_REMOVED = (
    "The control group of the workspace's commands was removed from outside. It is made again with the next command."
)

JOIN_SCRIPT = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; exec "$@"'
"""For a shell, which enters the groups whose files come before `--`, and becomes the command behind it."""

_LOOKS = 20  # at a leaf whose last process is just ending
_LOOK_SECONDS = 0.005  # between two tries to remove a group whose last process is just ending
_STEPS = 5  # tries to step aside, while helpers of the gateway come and go
_SYSTEMD = Path("/run/systemd/system")  # is there where systemd rules
_DELEGATED = ("user.delegate", "trusted.delegate")  # how it marks what it has handed over


class Cgroups:
    """The groups of one gateway, which are known by its `home`."""

    def __init__(self, home: Path) -> None:
        self._prefix = f"tidegate-{owner_of(home)}-"
        self._lock = threading.Lock()
        self._trees: tuple[CgroupTree, ...] | None = None
        self._numbers = itertools.count()
        self._living: set[str] = set()
        self.kernel_limits: frozenset[str] = frozenset()
        """The settings that groups hold; known when `find` has returned."""

    def find(self) -> None:
        """Finds out, once, where groups can be made."""
        with self._lock:
            if self._trees is None:
                self._trees = tuple(_usable(f"{self._prefix}{os.getpid()}-try"))
                self.kernel_limits = _settings_of(self._trees)

    async def make(self, limits: SandboxLimits) -> "Cgroup | None":
        """A new group; None where none can be made, or not now."""
        await to_thread.run_sync(self.find)
        if not self._trees:
            return None
        with self._lock:
            # Whose it is can be seen by the number.
            group = Cgroup(f"{self._prefix}{os.getpid()}-{next(self._numbers)}", self._trees, self._forget)
            self._living.add(group.name)
        try:
            await to_thread.run_sync(group.begin, limits)
        except BaseException as error:
            with CancelScope(shield=True):
                await to_thread.run_sync(group.end)
            if not isinstance(error, OSError):
                raise
            log.warning("the kernel holds no limits of a workspace", group=group.name, reason=str(error))
            return None
        return group

    def sweep(self) -> None:
        """Ends and removes the groups of this home that no box has: what a killed gateway left."""
        self.find()
        trees = self._trees or ()
        with self._lock:
            left = {name for tree in trees for name in _names(tree.folder, self._prefix)} - self._living
        for name in left:
            log.info("a control group of the last gateway is removed", group=name)
            Cgroup(name, trees, self._forget).end()

    def _forget(self, name: str) -> None:
        with self._lock:
            self._living.discard(name)


class Cgroup:
    """One box's. It owns the folders of its name, one in each tree, and the leaves below them."""

    def __init__(self, name: str, trees: tuple[CgroupTree, ...], forget: Callable[[str], None]) -> None:
        self.name = name
        self._trees = trees
        self._forget = forget
        self._folders = tuple(tree.folder / name for tree in trees)
        # One tree is enough to know who belongs to whom; the other limits are the box's, and felt there.
        self._counting = next((at for at, tree in enumerate(trees) if "pids" in tree.controllers), 0)
        self._numbers = itertools.count()
        self._leaves: set[CommandGroup] = set()
        self._refused = 0
        self._felt = LimitEvents()
        self._counting_lock = threading.Lock()  # never held while something is waited for
        self._lock = threading.Lock()
        self._over = False
        self.kernel_limits = _settings_of(trees)
        self.joins = tuple(str(folder / PROCESSES) for folder in self._folders)
        """A process that writes 0 to each of these is in it."""

    def begin(self, limits: SandboxLimits) -> None:
        """It is there, and holds these. Nothing happens when it was ended before it came to that."""
        with self._lock:
            if self._over:
                return
            for tree, folder in zip(self._trees, self._folders, strict=True):
                folder.mkdir()
                for controller in tree.controllers:
                    for setting in settings(tree.version, controller, limits):
                        _set(folder, setting)

    def leaf(self) -> "CommandGroup":
        """A new group below it, for one command. Raises OSError when it cannot be made."""
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
        """Whether it can be joined: one in which nothing is can be removed by anybody who may."""
        return all(os.access(path, os.W_OK) for path in self.joins)

    @property
    def limit_events(self) -> LimitEvents:
        """How often its limits were felt so far; once it is gone, as it was before. Version 1 counts a refusal where
        the process is that was refused, version 2 where the limit is."""
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
        """In a leaf. In version 2 it has no counter."""
        return count(folder, *counter(self._trees[self._counting].version, "pids"))

    def end(self) -> bool:
        """Nothing is in it any more and it is gone; false when that cannot be had. May be asked again."""
        self._felt = self.limit_events
        until = time.monotonic() + END_SECONDS
        with self._lock:
            self._over = True
            for folder in self._folders:
                shut(folder)
            while not all([self._ended(folder) for folder in self._folders]):
                if time.monotonic() > until:
                    break
                time.sleep(_LOOK_SECONDS)
            else:
                self._forget(self.name)
                return True
        self._forget(self.name)  # for the next sweep to try again
        log.error("what is in a control group cannot be ended", group=self.name)
        return False

    def _ended(self, folder: Path) -> bool:
        kill(folder)
        return removed(folder)


class CommandGroup:
    """One command's: what is in it came of that command, and of no other. Its folder is the group's."""

    def __init__(self, folder: Path, joins: tuple[str, ...], dropped: "Callable[[CommandGroup], None]") -> None:
        self.folder = folder
        self.joins = joins
        """A process that writes 0 to each of these is in it."""
        self._dropped = dropped

    def send(self, number: int, besides: int | None = None) -> int:
        """To all that is in it but one; to how many."""
        return send(self.folder, number, besides)

    def kill(self, besides: int | None = None) -> int:
        """All that is in it but one, and nothing new begins; how many that were."""
        self._dropped(self)  # what is refused from now on is no limit that was felt
        shut(self.folder)
        return send(self.folder, signal.SIGKILL, besides)

    def remove(self) -> None:
        """Nothing is in it any more. What is not gone now goes with the group. May be asked again."""
        for _ in range(_LOOKS):
            self._dropped(self)
            if removed(self.folder):
                return
            time.sleep(_LOOK_SECONDS)


@contextlib.asynccontextmanager
async def command_group(group: Cgroup | None) -> AsyncIterator[CommandGroup | None]:
    """One for a command that is started in here, and that goes with it from then on; None where there are no groups.
    When it comes to no command, it is removed."""
    try:
        leaf = None if group is None else await to_thread.run_sync(group.leaf)
    except OSError as error:
        raise ToolFailed(f"The command cannot be started: it gets no control group ({error.strerror}).") from None
    try:
        yield leaf
    except BaseException:
        if leaf is not None:
            with CancelScope(shield=True):
                await to_thread.run_sync(leaf.remove)
        raise


def handed_over(tree: CgroupTree) -> CgroupTree | None:
    """Of a tree of version 2: where groups with limits can be made, from now on; None where that is not ours to do."""
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
        log.warning("others are in the gateway's control group, so that it can make none", group=str(root))
    except OSError as error:
        log.info("no control groups can be made here", group=str(root), reason=str(error))
    with contextlib.suppress(OSError):
        write(own / PROCESSES, "0")
        if own == root:
            (root / GATEWAY_GROUP).rmdir()
    return None


def _move_gateway_aside(root: Path) -> None:
    """This process and its children out of a group that is to have others below it."""
    aside = root / GATEWAY_GROUP
    aside.mkdir(exist_ok=True)
    me = os.getpid()
    for pid in members(root):
        if pid == me or _parent(pid) == me:
            with contextlib.suppress(ProcessLookupError):
                write(aside / PROCESSES, str(pid))


def _usable(name: str) -> Iterator[CgroupTree]:
    """The trees in which this process can make groups; `name` is one that is tried."""
    try:
        found = trees(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    except (OSError, ValueError) as error:
        log.info("the kernel tells nothing of control groups", reason=str(error))
        return
    for tree in found:
        usable = tree if tree.version == 1 else handed_over(tree)
        if usable is None:
            continue
        try:
            (usable.folder / name).mkdir()
            (usable.folder / name).rmdir()
        except OSError as error:
            log.info("no control groups can be made here", group=str(usable.folder), reason=str(error))
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
    """Whether systemd keeps its hands off what is below a group. Older ones mark that for nobody but root to read; but
    then a plain user owns a service's group only if it was handed over to him, unless all services are his."""
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
