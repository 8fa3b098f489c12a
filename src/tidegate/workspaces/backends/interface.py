"""What a backend is: a way to keep the commands of one session together, and apart from everything else.

Guarantee: the rest of the room knows no backend but through these few names. A `Sandbox` is one session's sandbox,
connection or guardian; closing it ends everything that runs in it. A command is a script for bash and three streams:
script in, output out, and the *state channel*, by which the wrapper tells what it saved. That is all that a namespace,
a process group, an ssh connection and a container have in common, and all that is needed.
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
"""How limits are kept where nothing else is there to keep them."""


def enforced(
    kernel_limits: Iterable[str], besides: Mapping[str, Enforcement] | None = None
) -> Mapping[str, Enforcement]:
    """How limits are kept where control groups hold some, and `besides` says more of the others."""
    return MappingProxyType({**POLLED, **(besides or {}), **dict.fromkeys(kernel_limits, "cgroup")})


LIMIT_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "processes": "process count",
        "memory_bytes": "memory",
        "disk_bytes": "disk",
        "files": "number of files",
        "file_bytes": "size of a file",
        "cpu_seconds": "processor time",
    }
)
"""What the limits are called where people are told of them."""

FILES_IN_SOCKETS = "files that lie in sockets and are open in no process"
BUFFERS = "buffers of sockets and pipes"
SEGMENTS = "shared memory of System V that is not mapped"
UNMAPPED = "memfds and shared memory that are not mapped"
CLOSED = "memfds and deleted files of processes that no other may look at (PR_SET_DUMPABLE)"
"""What no file below /proc shows to the gateway, so that it counts for no limit that is looked at."""


def uncounted(enforced: Mapping[str, Enforcement], *besides: str) -> tuple[str, ...]:
    """Of a backend on this machine; `besides` only where no control group counts memory. To root, no process is
    closed."""
    unseen = (FILES_IN_SOCKETS,) if os.geteuid() == 0 else (CLOSED, FILES_IN_SOCKETS)
    return unseen if enforced["memory_bytes"] == "cgroup" else (BUFFERS, *besides, *unseen)


MARK = "TIDEGATE_MARK"
"""The variable by which the processes of one command are found again, also those that left its group."""

OWNER = "TIDEGATE_OWNER"
"""The variable that says which gateway a process belongs to (`owner_of`), so that the next one of the same home can end
what a killed one left."""


def owner_of(home: Path) -> str:
    """What the gateway of a home folder is called in processes and control groups: a digest, so that nothing is told of
    the folder."""
    return hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:16]


class SandboxLimits(Frozen, frozen=True):
    """What the commands of one session may use together; `cpu_seconds` and `file_bytes` hold for each process."""

    memory_bytes: int
    processes: int
    disk_bytes: int
    file_bytes: int
    cpu_seconds: float
    files: int = 1_000_000


class SandboxSpec(Frozen, frozen=True):
    """What a box is made from. `folder` is where the session works: if it is a `project`, a folder of the user's own on
    the machine that commands run on; else one that is the session's own, which only exists here if that is this
    machine. `private` is the gateway's own folder, always here, for the session's home and temporary files, so that
    neither clutters a project nor is lost with the box. With `network` commands reach what is public and what is
    `reachable`. Commands and file tools run as `user`; None is the gateway's own, which is never root. All that a
    command finds in its environment is `environment` and what the backend adds to tell where things are."""

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
    """What the processes of a box use now. `unnamed_bytes` are on the disk, in deleted files that are open."""

    processes: int = 0
    memory_bytes: int = 0
    unnamed_bytes: int = 0
    descriptors: int = 0


class LimitEvents(NamedTuple):
    """How often the kernel held a box to its limits: processes that it killed for want of memory, and those that it did
    not let begin."""

    killed: int = 0
    refused: int = 0


class Child(Protocol):
    """A command that was started. It is over when `wait` returns; its streams may be read until `close`."""

    @property
    def pid(self) -> int | None:
        """On this machine, where it has one; it leads a process group."""
        ...

    async def write(self, data: bytes) -> None:
        """To what the command reads, behind the script. Raises ToolFailed when it no longer reads."""
        ...

    def close_input(self) -> None: ...

    async def read(self) -> bytes:
        """Some output; empty at its end."""
        ...

    async def read_state(self) -> bytes:
        """Some of the state channel; empty at its end."""
        ...

    async def wait(self) -> int:
        """The exit code, negative for a signal."""
        ...

    async def end(self, grace: float) -> int:
        """Ends its whole tree, also when the command itself is over: asked first, killed after `grace` seconds.
        Returns when nothing of it runs; what it had put out can still be read. How many processes it was that the
        command had left behind. May be called again."""
        ...

    def close(self) -> None:
        """Lets go of its streams. May be called again."""
        ...


class Sandbox(Protocol):
    @property
    def alive(self) -> bool:
        """Whether commands can still be started in it. One that was removed from outside is not."""
        ...

    @property
    def pid(self) -> int | None: ...

    close_reason: str
    """Why it closed itself, in a sentence; empty when it did not."""

    kernel_limits: frozenset[str]
    """The settings among its limits that the kernel holds for all that is in it together: nobody has to look."""

    @property
    def limit_events(self) -> LimitEvents: ...

    async def spawn(self, script: bytes, mark: str, *, full: bool = False) -> Child:
        """Starts bash on a script. Whatever comes of it carries the mark. Where the disk is `full`, it can remove files
        and make none larger."""
        ...

    async def load(self) -> SandboxUsage: ...

    async def is_intact(self) -> bool:
        """Whether what it protects is still protected. One in which it is not closes itself, and says why."""
        ...

    async def wait(self) -> None:
        """Until it is no longer alive."""
        ...

    async def close(self) -> None:
        """Everything that runs in it is gone when this returns. May be called again."""
        ...


OpenSandbox = Callable[[], Awaitable[Sandbox]]


class Backend(Protocol):
    name: str
    sandboxed: bool
    """Whether a command can reach nothing but its folders: what approvals go by."""

    @property
    def enforced(self) -> Mapping[str, Enforcement]:
        """How each limit is kept, by the name of its setting."""
        ...

    @property
    def uncounted(self) -> tuple[str, ...]:
        """What commands can use that counts for none of the limits."""
        ...

    def inner(self, folder: Path) -> str:
        """The path of the session's folder as commands see it."""
        ...

    def files(self, spec: SandboxSpec, open_sandbox: OpenSandbox) -> Files:
        """The files that the commands of such a box see. Opens nothing; `box` opens the session's."""
        ...

    async def check(self) -> str | None:
        """Why it does not work here, in one sentence; None when it does."""
        ...

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """The folders of `spec` are there. Raises ToolFailed when it cannot be opened."""
        ...


@runtime_checkable
class RemoteBackend(Protocol):
    """Of a backend whose sessions have their folders on another machine: none of them is made, measured or removed
    here."""

    where: str
    """Which machine that is."""

    async def discard_folders(self, session: str, *, keep: bool, age: float) -> None:
        """The folders of an ended session go to the trash there, or are removed if they are not to be kept; what has
        been in that trash for `age` seconds is removed. Raises ToolFailed when that cannot be done now."""
        ...
