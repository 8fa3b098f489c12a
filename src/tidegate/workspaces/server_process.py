"""Processes of services that the operator configures, such as tool servers, each in a separate sandbox.

A process sees what a session's commands see: a read-only system, a working folder, its own home folder and, if
`network` is true, public addresses. The home folders of users are never visible. If `sandboxed` is false, the process
runs with the rights of the gateway's user (or, if that is root, of an unprivileged user), and a guardian ends it.

The process belongs to `ServerProcesses.open` until that method returns, and then to the caller. Closing a process ends
all its descendants as well, including those that left its process group. The kernel or the guardian does the same when
the gateway dies for any reason. The folders are kept, because the home folder serves as the cache of programs such as
`npx` and `uvx` that download what they run.
"""

import asyncio
import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from anyio import CancelScope, to_thread

from tidegate.errors import ToolFailed
from tidegate.lifetimes import SingleFlight
from tidegate.security.addresses import Network
from tidegate.values import Frozen, new_id
from tidegate.workspaces.backends.interface import Backend, Child, Sandbox, SandboxLimits, SandboxSpec, SandboxUsage
from tidegate.workspaces.kernel.cgroups import Cgroups
from tidegate.workspaces.kernel.users import user_of
from tidegate.workspaces.processes.children import Spawner
from tidegate.workspaces.session_folders import FOLDER_MODE, give

INPUT_CLOSED_SECONDS = 1.0
"""Seconds that a process has to exit after its input was closed."""

TERMINATED_SECONDS = 1.0
"""Seconds between SIGTERM and SIGKILL."""


class ProcessSpec(Frozen, frozen=True):
    """What to start, and where. `name` is unique among the running processes and valid as a file name. `folder` is the
    user's folder in which the process works; by default, the process gets a new folder below `root`."""

    name: str
    root: Path
    command: Sequence[str]
    environment: Mapping[str, str] = {}
    folder: Path | None = None
    read_only: tuple[Path, ...] = ()
    sandboxed: bool = True
    network: bool = True
    reachable: tuple[Network, ...] = ()
    memory_bytes: int = 1024 * 1024 * 1024
    processes: int = 256


class ServerProcess:
    """A running process with its three streams. `folder` is its working folder as the process sees it."""

    def __init__(self, sandbox: Sandbox, child: Child, folder: str, limits: SandboxLimits) -> None:
        self._sandbox = sandbox
        self._child = child
        self._limits = limits
        self.folder = folder
        self.read = child.read
        self.read_errors = child.read_state
        self.write = child.write
        self.wait = child.wait
        self.close_streams = child.close

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def close_reason(self) -> str:
        """The reason why the sandbox was ended for exceeding a limit, or an empty string."""
        return self._sandbox.close_reason

    async def usage(self) -> SandboxUsage:
        return await self._sandbox.load()

    async def check_limits(self) -> SandboxUsage:
        """Returns the usage. Ends all processes if the usage exceeds a limit that the kernel does not enforce."""
        used = await self._sandbox.load()
        for name, value in (("memory_bytes", used.memory_bytes), ("processes", used.processes)):
            limit = getattr(self._limits, name)
            if name not in self._sandbox.kernel_limits and value > limit:
                self._sandbox.close_reason = f"It used {value:,} of {limit:,} ({name}) and was ended."
                await self._sandbox.close()
                break
        return used

    async def close(self) -> None:
        """Closes the input, terminates and then kills the remaining processes, and closes the streams."""
        with CancelScope(shield=True):
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(INPUT_CLOSED_SECONDS):
                        self._child.close_input()
                        await self._child.wait()
                await self._child.end(TERMINATED_SECONDS)
            finally:
                self._child.close()
                await self._sandbox.close()


class ServerProcesses:
    """Starts processes with the backends that sessions use. Owned by `Workspaces`."""

    def __init__(self, spawner: Spawner, groups: Cgroups) -> None:
        self._spawner = spawner
        self._groups = groups
        self._backends: dict[bool, Backend] = {}  # lint: allow there are two
        self._choosing: dict[bool, SingleFlight[Backend]] = {}  # lint: allow there are two

    async def open(self, spec: ProcessSpec) -> ServerProcess:
        """Starts a process. Raises ToolFailed with the reason if the process cannot be started."""
        backend = await self._backend(spec.sandboxed)
        sandbox_spec = await to_thread.run_sync(self._prepare, spec)
        sandbox = await backend.open(sandbox_spec)
        try:
            script = f"exec {shlex.join(spec.command)}".encode()
            child = await sandbox.spawn(b"%d\n%s" % (len(script), script), new_id("b"))
        except BaseException:
            with CancelScope(shield=True):
                await sandbox.close()
            raise
        return ServerProcess(sandbox, child, backend.inner(sandbox_spec.folder), sandbox_spec.limits)

    async def _backend(self, sandboxed: bool) -> Backend:
        while (known := self._backends.get(sandboxed)) is None:
            if (choosing := self._choosing.get(sandboxed)) is not None:
                await choosing.join()
                continue
            flight = self._choosing[sandboxed] = SingleFlight()
            try:
                self._backends[sandboxed] = await flight.lead(lambda: self._choose(sandboxed))
            finally:
                del self._choosing[sandboxed]
        return known

    async def _choose(self, sandboxed: bool) -> Backend:
        if sandboxed:
            from tidegate.workspaces.backends.bubblewrap import BubblewrapBackend  # imported only if it is used

            backend: Backend = BubblewrapBackend(self._spawner, self._groups)
        else:
            from tidegate.workspaces.backends.local import LocalBackend

            backend = LocalBackend(self._spawner, self._groups)
        if (why := await backend.check()) is not None:
            raise ToolFailed(
                f"{why} Or set sandbox = false to run the program without a sandbox." if sandboxed else why
            )
        return backend

    def _prepare(self, spec: ProcessSpec) -> SandboxSpec:
        """Creates the folders and returns the specification of the sandbox."""
        if spec.folder is not None and not spec.folder.is_dir():
            raise ToolFailed(f"The folder {spec.folder} does not exist: create it, or change cwd.")
        user = user_of("", spec.folder, self._spawner.owner) if spec.folder is not None else self._spawner.user
        private = spec.root / spec.name
        own = private / "work"
        made = SandboxSpec(
            session=spec.name,
            folder=spec.folder or own,
            project=spec.folder is not None,
            private=private,
            network=spec.network and spec.sandboxed,
            reachable=spec.reachable,
            environment=spec.environment,
            read_only=spec.read_only,
            user=user,
            limits=SandboxLimits(
                memory_bytes=spec.memory_bytes,
                processes=spec.processes,
                disk_bytes=2**40,
                file_bytes=2**40,
                cpu_seconds=10 * 365 * 86400.0,
            ),
        )
        try:
            spec.root.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            private.mkdir(mode=FOLDER_MODE, exist_ok=True)
            for folder in (made.home, made.temporary, own):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(mode=FOLDER_MODE)
                    give(folder, user)
        except OSError as error:
            raise ToolFailed(f"The program's folder cannot be created ({error.strerror}).") from None
        return made
