"""The backend `bubblewrap`: one sandbox per session, made by the kernel's namespaces.

Guarantee: a command sees a read-only system, its session's folder under /workspace, a home and a /tmp of the session's
own and the processes of its session, and nothing else of the machine; it has no capability and can get none, reaches
no more of the kernel than `seccomp` leaves it and no more of the network than `network` does. What came
of one command ends with that command: it is known by its control group, or, where there is none, by a mark in its
environment.

A sandbox ends with the gateway, however and whenever that dies, also while the sandbox starts. They are tied by a
socket, the *lifeline*: its other end is held by the gateway alone and cannot be opened by anybody. When the gateway is
gone, the kernel closes that end; the sandbox's first process reads the end of its lifeline and exits, and the kernel
ends a namespace with its first process. Once the sandbox is up, the kernel also kills `bwrap` at that moment, and the
first process with it, so that even a stopped one ends. During set-up nothing of ours may kill `bwrap`: its two
processes wait for each other, and a process whose partner has died waits for ever (docs/decisions/0026).

A sandbox is one `bwrap` and a shell in it, its first process, that does nothing but hold the namespaces and reap what
is orphaned there; each command enters them. So a session's commands
share /tmp and see each other, a background process outlives the command that started it, and a command has its own
streams and exit code like any child. All that is on disk, so that a sandbox may be closed and made again when nothing
runs in it.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec
from anyio import CancelScope, to_thread

from tidegate.errors import ToolFailed
from tidegate.log import Log
from tidegate.values import new_id
from tidegate.workspaces.backends import guardian, sandbox_network
from tidegate.workspaces.backends.bubblewrap_sandbox import HOME, INNER, BubblewrapSandbox, SandboxPrograms
from tidegate.workspaces.backends.interface import (
    MARK,
    OWNER,
    Enforcement,
    OpenSandbox,
    SandboxSpec,
    enforced,
    uncounted,
)
from tidegate.workspaces.files import Files, Mount
from tidegate.workspaces.kernel import seccomp
from tidegate.workspaces.kernel.cgroups import Cgroup, Cgroups
from tidegate.workspaces.kernel.users import as_user, as_user_reaching
from tidegate.workspaces.processes.children import (
    ChildProcess,
    Spawner,
    find_program,
    kill_and_close,
    kill_when_closed,
    killed_on_error,
)
from tidegate.workspaces.protected_mounts import (
    ProtectedMount,
    protected,
)

log = Log(__name__)

OPEN_SECONDS = 10.0
"""A sandbox is there within milliseconds; a machine that needs longer than this has another problem."""

SHARED_MEMORY_BYTES = 64 * 1024 * 1024
"""Of /dev/shm and /run each, at most: they lie in memory and are no process's own. Together they have no more than the
session's memory, of which they are a part."""

_INFO, _LIFELINE, _FILES = 5, 6, 7  # what `bwrap` is given, by its numbers there; from the last on, files
_INFO_BYTES = 4096  # more than it tells of itself
_HOLD = f"echo up; exec >/dev/null; while read -r -u {_LIFELINE} _; do :; done"
"""What a sandbox's first process does: its line says that all is mounted; at the end of the lifeline it ends. A shell
reaps whatever is orphaned below it. From inside it cannot be killed, as no first process can."""

_USER = 1000  # whoever the gateway is, the sandbox's user is nobody in particular
_PASSWD = f"agent:x:{_USER}:{_USER}:agent:{HOME}:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
_GROUP = f"agent:x:{_USER}:\nnogroup:x:65534:\n"

_NO_NESTING = ("--unshare-user", "--disable-userns")  # inside, nobody can make namespaces and rule in them

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_MACHINE = (
    "sys",
    "sysrq-trigger",
    "irq",
    "bus",
    "acpi",
    "driver",
    "fs",
    "mtrr",
    "pressure",
    "scsi",
    "slabinfo",
    "timer_stats",
)
"""What of /proc is the whole machine's and can be written. The kernel asks there for the owner alone and for no
capability: this closes it to whoever that is."""

_KEYS = "/proc/keys"  # of all keys of the user, whichever of their programs or sandboxes has them

_ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "fonts", "gai.conf",
    "host.conf", "hosts", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf",
    "localtime", "magic", "mime.types", "nsswitch.conf", "os-release", "pki/ca-trust", "pki/tls/certs",
    "pki/tls/openssl.cnf", "protocols", "python3", "services", "shells", "ssl/certs", "ssl/openssl.cnf",
    "terminfo", "timezone",
)  # fmt: skip
"""Of /etc: what programs need to run. None of it holds a secret, which cannot be said of what a machine adds."""


class BubblewrapBackend:
    name = "bubblewrap"
    sandboxed = True

    def __init__(self, spawner: Spawner, groups: Cgroups | None = None) -> None:
        """Without `groups`, what they would hold is looked at."""
        self._spawner = spawner
        self._groups = groups
        self._nesting: tuple[str, ...] = _NO_NESTING

    @property
    def enforced(self) -> Mapping[str, Enforcement]:
        return enforced(self._groups.kernel_limits if self._groups else (), {"processes": "rlimit"})

    @property
    def uncounted(self) -> tuple[str, ...]:
        return uncounted(self.enforced)

    def inner(self, folder: Path) -> str:
        return INNER

    def files(self, spec: SandboxSpec, open_sandbox: OpenSandbox) -> Files:
        """They lie on this machine: nothing has to be entered to read them."""
        seen = [Mount(inner=str(folder), folder=folder, writable=False) for folder in spec.read_only]
        from tidegate.workspaces.files.local import LocalFiles  # with the first file that is asked for

        return LocalFiles(
            (
                Mount(inner=INNER, folder=spec.folder, project=spec.project),
                Mount(inner=HOME, folder=spec.home),
                Mount(inner="/tmp", folder=spec.temporary),
                *seen,
            ),
            self._spawner,
            user=spec.user,
        )

    async def check(self) -> str | None:
        why = await self._try(_NO_NESTING)
        if why is not None:
            # What is older than this option is still a wall, though with more of the kernel to be reached through it.
            why = await self._try(())
            self._nesting = ()
        if why is None and self._groups is not None:
            await to_thread.run_sync(self._groups.find)
        return why

    async def _try(self, nesting: tuple[str, ...]) -> str | None:
        try:
            programs = _programs()
            arguments = as_user(self._spawner.user, programs.setpriv)
            arguments += [programs.bwrap, *self._isolation(), *nesting]
            arguments += await to_thread.run_sync(_system)
            arguments += ["--", programs.bash, "-c", ":"]
            child = await self._spawner.spawn(arguments, self._environment(), within=seccomp.confined)
        except ToolFailed as error:
            return error.message
        except OSError as error:
            return f"bwrap cannot be started here ({error.strerror})."
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                code = await child.wait()
                said = (await child.read_state()).decode(errors="replace").strip()
        except TimeoutError:
            return "bwrap does not come to an end here."
        finally:
            await kill_and_close(child)
        return None if code == 0 else f"bwrap does not work here: {said or f'exit code {code}'}."

    async def open(self, spec: SandboxSpec) -> BubblewrapSandbox:
        programs = _programs()
        joining = sandbox_network.programs(programs.nsenter) if spec.network else None
        reached = (spec.folder, spec.home, spec.temporary, *spec.read_only)
        arguments = [*as_user_reaching(spec.user, *reached), programs.bwrap, *self._isolation(), *self._nesting]
        arguments += await to_thread.run_sync(_system, spec.limits.memory_bytes // 2)
        arguments += ["--bind", str(spec.temporary), "/tmp", "--bind", str(spec.temporary), "/var/tmp"]
        arguments += ["--bind", str(spec.home), HOME, "--bind", str(spec.folder), INNER, "--chdir", INNER]
        guarded = await to_thread.run_sync(protected, spec.folder) if spec.project else ()
        for mount in guarded:
            way = "--bind" if mount.writable else "--ro-bind"
            arguments += [way, str(spec.folder / mount.path), f"{INNER}/{mount.path}"]
        for folder in spec.read_only:
            arguments += ["--ro-bind-try", str(folder), str(folder)]
        files = _files(spec)
        for number, path in enumerate(files, _FILES):
            arguments += ["--ro-bind-data", str(number), path]
        # Last, since it closes what all of this is mounted in: that lies in memory, which nobody counts.
        arguments += ["--remount-ro", "/", "--info-fd", str(_INFO), "--"]
        # From here on it ends with `bwrap`. The option for that, --die-with-parent, would also be for `bwrap` itself,
        # from the middle of the set-up on.
        arguments += [programs.setpriv, "--pdeathsig", "KILL", programs.bash, "-c", _HOLD]
        group = None if self._groups is None else await self._groups.make(spec.limits)
        try:
            sandbox = await self._started(programs, joining, spec, arguments, files, group, guarded)
        except BaseException as error:
            if group is not None:
                with CancelScope(shield=True):
                    await to_thread.run_sync(group.end)
            if isinstance(error, OSError):
                raise ToolFailed(f"The sandbox cannot be started ({error.strerror}).") from None
            raise
        if not await sandbox.is_intact():
            raise ToolFailed("A protected file of the project changed while the sandbox was made; try again.")
        return sandbox

    async def _started(
        self,
        programs: SandboxPrograms,
        joining: sandbox_network.Programs | None,
        spec: SandboxSpec,
        arguments: list[str],
        files: Mapping[str, str],
        group: Cgroup | None,
        guarded: tuple[ProtectedMount, ...],
    ) -> BubblewrapSandbox:
        mark = new_id("b")
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as given:
            # Of packets: at the end of a stream the kernel sends no signal while somebody is about to read from it.
            lifeline, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            failed.callback(lifeline.close)
            given.callback(theirs.close)
            # No pipe: a gateway that is gone cannot read it, and `bwrap` would die of writing to it.
            info = os.memfd_create("info")
            given.callback(os.close, info)
            passing = {theirs.fileno(): _LIFELINE, info: _INFO}
            for number, text in enumerate(files.values(), _FILES):
                fd = _holding(text)
                passing[fd] = number
                given.callback(os.close, fd)
            environment = self._environment(mark)
            child = await self._spawner.spawn(arguments, environment, passing=passing, within=seccomp.confined)
            async with _or_swept(child, mark):
                child.close_input()
                await _standing(child)
                first = int(msgspec.json.decode(os.pread(info, _INFO_BYTES, 0))["child-pid"])
                kill_when_closed(theirs, child)
                sandbox = BubblewrapSandbox(self._spawner, programs, spec, child, first, lifeline, group, guarded)
                failed.pop_all()
                if joining is not None:
                    async with _or_closed(sandbox):
                        await sandbox.connect(joining, environment)
            return sandbox

    def _environment(self, mark: str = "") -> dict[str, str]:
        """Of `bwrap` itself, in whose environment its processes are found as long as they set up the sandbox."""
        return {"PATH": "/usr/bin:/bin", OWNER: self._spawner.owner, MARK: mark}

    def _isolation(self) -> list[str]:
        # What is started is itself the first process: so `bwrap` ends after it has reaped it, and not before.
        options = ["--unshare-all", "--as-pid-1", "--new-session", "--cap-drop", "ALL"]
        options += ["--clearenv", "--setenv", OWNER, self._spawner.owner]
        return [*options, "--uid", str(_USER), "--gid", str(_USER), "--hostname", "workspace"]


@contextlib.asynccontextmanager
async def _or_closed(sandbox: BubblewrapSandbox) -> AsyncIterator[None]:
    """What fails in the block closes the sandbox."""
    try:
        yield
    except BaseException:
        with CancelScope(shield=True):
            await sandbox.close()
        raise


def _holding(text: str) -> int:
    """A pipe from which this text, which is shorter than a pipe is long, can be read."""
    out, into = os.pipe()
    try:
        os.write(into, text.encode())
    finally:
        os.close(into)
    return out


@contextlib.asynccontextmanager
async def _or_swept(child: ChildProcess, mark: str) -> AsyncIterator[None]:
    """What fails in the block ends the child, and also a process of its set-up that somebody has orphaned."""
    try:
        async with killed_on_error(child):
            yield
    except BaseException:
        with CancelScope(shield=True):
            await to_thread.run_sync(guardian.sweep, f"{MARK}={mark}")
        raise


async def _standing(child: ChildProcess) -> None:
    """Waits until the sandbox stands."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            if not await child.read():
                said = (await child.read_state()).decode(errors="replace").strip()
                raise ToolFailed(f"The sandbox cannot be started: {said or 'bwrap gave no reason'}.")
    except TimeoutError:
        raise ToolFailed(f"The sandbox was not there within {OPEN_SECONDS:g} s.") from None
    child.close_output()  # it says no more, and a descriptor for each session is a descriptor


def _programs() -> SandboxPrograms:
    found = {name: find_program(name) for name in SandboxPrograms._fields}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        package = "bubblewrap" if missing == ["bwrap"] else "bubblewrap and util-linux"
        raise ToolFailed(
            f"{missing[0]} is not installed here: install {package}, or choose another workspaces.backend."
        )
    return SandboxPrograms(**{name: str(path) for name, path in found.items()})


def _files(spec: SandboxSpec) -> dict[str, str]:
    """What is in the files that a sandbox has of its own."""
    files = {"/etc/passwd": _PASSWD, "/etc/group": _GROUP, _KEYS: ""}
    if spec.network:
        files["/etc/resolv.conf"] = sandbox_network.RESOLV_CONF
    return {path: text for path, text in files.items() if path != _KEYS or Path(path).exists()}


def _system(memory: int = SHARED_MEMORY_BYTES) -> list[str]:
    """The read-only system. Links of the root (merged /usr) stay links. What lies in memory gets no more than `memory`
    each."""
    options: list[str] = []
    for name in _SYSTEM:
        place = Path("/", name)
        if place.is_symlink():
            options += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            options += ["--ro-bind", str(place), str(place)]
    for name in _ETC:
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    size = ["--size", str(min(SHARED_MEMORY_BYTES, memory))]
    machine = [option for name in _MACHINE for option in ("--ro-bind-try", f"/proc/{name}", f"/proc/{name}")]
    options += ["--proc", "/proc", *machine, "--dev", "/dev"]
    options += [*size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    return [*options, *size, "--tmpfs", "/run"]
