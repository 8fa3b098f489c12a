"""Selection of the backend that runs sessions' commands.

The backend is determined once, on first use. If none can be used, commands are refused with a one-sentence reason, but
file tools still work. Only `auto` chooses a backend; a backend named by the operator is never replaced with another
one.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from tidegate.config import WorkspaceSettings
from tidegate.errors import ToolFailed
from tidegate.lifetimes import SingleFlight
from tidegate.workspaces.backends.interface import Backend, Enforcement, OpenSandbox, Sandbox, SandboxSpec
from tidegate.workspaces.files import Files, Mount
from tidegate.workspaces.kernel.cgroups import Cgroups
from tidegate.workspaces.kernel.users import is_root
from tidegate.workspaces.processes.children import Spawner

AS_ROOT: Mapping[str, str] = MappingProxyType(
    {
        "bubblewrap": "The gateway runs as root: commands and file tools run as an unprivileged user, but a flaw in "
        "the gateway itself would endanger the whole machine. Run it as a dedicated user.",
        "local": "The gateway runs as root, and commands run without a sandbox, as an unprivileged user: they can "
        "reach whatever that user can reach. Run it as a dedicated user, or choose another workspaces.backend.",
    }
)
"""The consequences of running as root, for each backend whose commands run on this machine."""


class NoCommands:
    """A placeholder if no backend works. Gives access to the session's files, and refuses commands with the reason."""

    name = "none"
    sandboxed = False

    def __init__(self, reason: str, spawner: Spawner) -> None:
        self.reason = reason
        self._spawner = spawner

    @property
    def enforced(self) -> Mapping[str, Enforcement]:
        return MappingProxyType({})

    @property
    def uncounted(self) -> tuple[str, ...]:
        return ()

    def inner(self, folder: Path) -> str:
        return "/workspace"

    def files(self, spec: SandboxSpec, open_sandbox: OpenSandbox) -> Files:
        from tidegate.workspaces.files.local_files import LocalFiles  # imported when files are first used

        mount = Mount(inner="/workspace", folder=spec.folder, guarded=spec.project)
        return LocalFiles((mount,), self._spawner, user=spec.user)

    async def check(self) -> str | None:
        return None

    async def open(self, spec: SandboxSpec) -> Sandbox:
        raise ToolFailed(self.reason)


class BackendSelection:
    """The backend selected in the settings. `make` creates a backend by name; tests can replace it."""

    def __init__(
        self, settings: WorkspaceSettings, spawner: Spawner, groups: Cgroups, make: Callable[[str], Backend] | None
    ) -> None:
        self._settings = settings
        self._spawner = spawner
        self._groups = groups
        self._make = make or self._make_backend
        self._chosen: Backend | None = None
        self._choosing: SingleFlight[Backend] | None = None

    @property
    def known(self) -> Backend | None:
        """The selected backend, or None before the first use."""
        return self._chosen

    async def backend(self) -> Backend:
        while self._chosen is None:
            if self._choosing is None:
                self._choosing = SingleFlight()
                try:
                    self._chosen = await self._choosing.lead(self._choose)
                finally:
                    self._choosing = None
            else:
                await self._choosing.join()
        return self._chosen

    @property
    def warning(self) -> str:
        """A warning if the gateway runs as root, otherwise empty."""
        name = "bubblewrap" if self._settings.backend == "auto" else self._settings.backend
        return AS_ROOT.get(name, "") if is_root() and not isinstance(self._chosen, NoCommands) else ""

    def reconsider(self) -> None:
        """Lets the next use check again if the last check failed, since a backend may have become usable in the
        meantime."""
        if isinstance(self._chosen, NoCommands):
            self._chosen = None

    async def _choose(self) -> Backend:
        wanted = self._settings.backend
        if wanted == "none":
            return NoCommands("Commands are disabled here (workspaces.backend is none).", self._spawner)
        backend = self._make("bubblewrap" if wanted == "auto" else wanted)
        why = await backend.check()
        if why is None:
            return backend
        if wanted == "auto":
            why = f"{why} Or let commands run without a sandbox, with workspaces.backend = local."
        return NoCommands(f"Commands cannot be run here: {why}", self._spawner)

    def _make_backend(self, name: str) -> Backend:
        """Creates the backend with this name. Only that backend's module is imported."""
        if name == "bubblewrap":
            from tidegate.workspaces.backends.bubblewrap import BubblewrapBackend

            return BubblewrapBackend(self._spawner, self._groups)
        if name == "local":
            from tidegate.workspaces.backends.local import LocalBackend

            return LocalBackend(self._spawner, self._groups)
        from tidegate.workspaces.backends.ssh import SshBackend

        return SshBackend(self._spawner, self._settings.ssh_host, self._settings.ssh_options)
