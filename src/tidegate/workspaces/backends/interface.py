"""The interface of backends, which run one session's commands together, isolated from everything else.

The rest of the package knows backends only through these names. A `Sandbox` is one session's sandbox, connection or set
of guardians; closing it kills everything that is running in it. A command is a bash script with three streams: its
input (which begins with the script), its output, and the *state channel*, on which the wrapper reports what it has
saved. That is all that a namespace, a process group, an ssh connection and a container have in common, and all that is
needed.
"""

import hashlib
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from tidegate.security.addresses import Network
from tidegate.values import Frozen
from tidegate.workspaces.files import Files, User

Enforcement = Literal["cgroup", "namespace", "rlimit", "polled", "none"]

POLLED: Mapping[str, Enforcement] = MappingProxyType(
    {
        "memory_bytes": "polled",
        "processes": "polled",
        "disk_bytes": "polled",
        "files": "polled",
        "file_bytes": "rlimit",
        "cpu_seconds": "rlimit",
    }
)
"""How limits are enforced without control groups or other means."""


def enforced(
    kernel_limits: Iterable[str], besides: Mapping[str, Enforcement] | None = None
) -> Mapping[str, Enforcement]:
    """Returns how each limit is enforced if control groups enforce some of them; `besides` overrides the defaults for
    the others."""
    return MappingProxyType({**POLLED, **(besides or {}), **dict.fromkeys(kernel_limits, "cgroup")})


LIMIT_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "processes": "process count",
        "memory_bytes": "memory",
        "disk_bytes": "disk",
        "files": "number of files",
        "file_bytes": "file size",
        "cpu_seconds": "processor time",
    }
)
"""The limits' names in messages to people."""

FILES_IN_SOCKETS = "files in transit through sockets that no process has open"
BUFFERS = "buffers of sockets and pipes, and the kernel's memory for open files, timers and watches"
SEGMENTS = "System V shared memory that is not mapped, messages and semaphores"
UNMAPPED = "memfds and shared memory that are not mapped, messages and semaphores, and memory for address spaces"
CLOSED = "memfds and deleted files of processes that may not be inspected (PR_SET_DUMPABLE)"
"""Resources that no file in /proc shows to the gateway, so polled limits do not count them."""


def uncounted(enforced: Mapping[str, Enforcement], *besides: str) -> tuple[str, ...]:
    """Returns the resources that a backend on this machine does not count. Resources in `besides` are included only if
    no control group counts memory. If the gateway runs as root, it can inspect every process."""
    unseen = (FILES_IN_SOCKETS,) if os.geteuid() == 0 else (CLOSED, FILES_IN_SOCKETS)
    return unseen if enforced["memory_bytes"] == "cgroup" else (BUFFERS, *besides, *unseen)


MARK = "TIDEGATE_MARK"
"""The environment variable used to find one command's processes, even if they have left its process group."""

OWNER = "TIDEGATE_OWNER"
"""The environment variable that identifies a process's gateway (`owner_of`). It allows the next gateway with the same
home folder to kill the processes that a killed gateway has left behind."""


def owner_of(home: Path) -> str:
    """Returns an identifier for a home folder's gateway, for use in processes and control groups. The identifier is a
    digest and reveals nothing about the folder."""
    return hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:16]


class SandboxLimits(Frozen, frozen=True):
    """The limits for all of one session's commands together, except for `cpu_seconds` and `file_bytes`, which apply to
    each process."""

    memory_bytes: int
    processes: int
    disk_bytes: int
    file_bytes: int
    cpu_seconds: float
    files: int = 1_000_000


class SandboxSpec(Frozen, frozen=True):
    """The specification of a sandbox. `folder` is the working folder: for a `project`, one of the user's folders on the
    machine where commands run; otherwise the session's own folder, which exists on this machine only if commands run
    here. `private` is the gateway's own folder, always on this machine, for the session's home and temporary files, so
    that they neither clutter a project nor are lost with the sandbox. If `network` is true, commands reach public
    addresses and those in `reachable`. Commands and file tools run as `user`; None means the gateway's own user, who is
    then not root. A command's environment is exactly `environment` plus the variables that the backend itself sets,
    such as HOME."""

    session: str
    folder: Path
    private: Path
    limits: SandboxLimits
    project: bool = False
    network: bool = False
    reachable: tuple[Network, ...] = ()
    environment: Mapping[str, str] = {}
    read_only: tuple[Path, ...] = ()
    user: User | None = None

    @property
    def home(self) -> Path:
        return self.private / "home"

    @property
    def temporary(self) -> Path:
        return self.private / "tmp"


class SandboxUsage(Frozen, frozen=True):
    """A sandbox's current usage. `unnamed_bytes` is the disk space of deleted files that are still open."""

    processes: int = 0
    memory_bytes: int = 0
    unnamed_bytes: int = 0
    descriptors: int = 0


class LimitEvents(NamedTuple):
    """How often the kernel has enforced a sandbox's limits: the number of processes killed because of their memory, and
    the number of new processes refused."""

    killed: int = 0
    refused: int = 0


class Child(Protocol):
    """A command that has been started. The command has ended when `wait` returns; its streams can be read until `close`
    is called."""

    @property
    def pid(self) -> int | None:
        """The command's pid on this machine, if it has one. The process leads a process group."""
        ...

    async def write(self, data: bytes) -> None:
        """Writes to the command's input, after the script. Raises ToolFailed if the command no longer reads."""
        ...

    def close_input(self) -> None: ...

    async def read(self) -> bytes:
        """Reads the next piece of output; empty at the end."""
        ...

    async def read_state(self) -> bytes:
        """Reads the next piece of the state channel; empty at the end."""
        ...

    async def wait(self) -> int:
        """Waits for the command to end. Returns its exit code, which is negative if it was killed by a signal."""
        ...

    async def end(self, grace: float) -> int:
        """Stops the command's whole process tree, even if the command itself has ended, with SIGTERM, then SIGKILL
        after `grace` seconds. When this returns, no process in the tree is running; the output can still be read.
        Returns how many processes the command had left behind. May be called again."""
        ...

    def close(self) -> None:
        """Closes the streams. May be called again."""
        ...


class Sandbox(Protocol):
    @property
    def alive(self) -> bool:
        """True if commands can still be started in the sandbox; false once it has ended, for whatever reason."""
        ...

    @property
    def pid(self) -> int | None: ...

    close_reason: str
    """The reason why the sandbox closed itself, as a sentence; empty if it did not."""

    kernel_limits: frozenset[str]
    """The settings whose limits the kernel enforces for the whole sandbox, so that they need not be polled."""

    @property
    def limit_events(self) -> LimitEvents: ...

    async def spawn(self, script: bytes, mark: str, *, full: bool = False) -> Child:
        """Starts bash with a script. All of its processes carry the mark. If the disk is `full`, the command can remove
        files but not make any larger."""
        ...

    async def load(self) -> SandboxUsage: ...

    async def is_intact(self) -> bool:
        """True if protected files are still protected. Otherwise, the sandbox closes itself and sets `close_reason`."""
        ...

    async def wait(self) -> None:
        """Waits until the sandbox is no longer alive."""
        ...

    async def close(self) -> None:
        """Kills everything that is running in the sandbox, and waits until this is done. May be called again."""
        ...


OpenSandbox = Callable[[], Awaitable[Sandbox]]


class Backend(Protocol):
    name: str
    sandboxed: bool
    """True if commands can reach nothing but their folders. Approvals depend on this."""

    @property
    def enforced(self) -> Mapping[str, Enforcement]:
        """How each limit is enforced, by the setting's name."""
        ...

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Resources that commands can use without counting towards a limit."""
        ...

    def inner(self, folder: Path) -> str:
        """Returns the path of the session's folder as commands see it."""
        ...

    def files(self, spec: SandboxSpec, open_sandbox: OpenSandbox) -> Files:
        """Returns the files that the session's commands see. The call does not open anything; `open_sandbox` opens the
        session's sandbox when it is needed."""
        ...

    async def check(self) -> str | None:
        """Returns the reason why the backend does not work here, in one sentence, or None if it works."""
        ...

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """Opens a sandbox; the folders of `spec` exist. Raises ToolFailed on failure."""
        ...


@runtime_checkable
class RemoteBackend(Protocol):
    """A backend whose sessions have their folders on another machine, so these are not created, measured or removed
    here."""

    host: str
    """The machine's name."""

    async def discard_folders(self, session: str, *, keep: bool, age: float) -> None:
        """Removes an ended session's folders: with `keep`, moves them to the trash on that machine; otherwise, deletes
        them. Then deletes everything that has been in that trash for `age` seconds. Raises ToolFailed if this is
        currently not possible."""
        ...
