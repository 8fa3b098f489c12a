"""The `bubblewrap` backend: one sandbox per session, built from the kernel's namespaces.

A command sees a read-only system, its session's folder under /workspace, the session's own home and /tmp, and the
processes of its session. It sees nothing else on the machine. It has no capabilities and cannot get any. It reaches no
more of the kernel than `seccomp` permits and no more of the network than `sandbox_network` permits. When a command
ends, everything that it started is killed, too. These processes are identified by the command's control group or,
without control groups, by a mark in their environment.

A sandbox ends with the gateway, however and whenever the gateway dies, even while the sandbox is starting. The two are
connected by a socket, the *lifeline*. Only the gateway holds the other end, and nobody else can open it. When the
gateway dies, the kernel closes that end. The sandbox's first process then reads end-of-file and exits, whereupon the
kernel kills everything in the namespace. Once the sandbox is up, the kernel also kills `bwrap` at that moment, and the
first process with it, so that even a stopped process ends. During set-up, we must not kill `bwrap`: its two processes
wait for each other, and if one dies, the other waits forever (docs/decisions/0026).

A sandbox consists of `bwrap` and a shell, its first process, which only holds the namespaces and reaps orphans; each
command enters these namespaces. A session's commands therefore share /tmp and see each other, a named background
process keeps running between other commands, and a command has its own streams and exit code like any child process.
All state is on disk, so an idle sandbox can be closed and opened again.
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
    find_mounts,
)

log = Log(__name__)

OPEN_SECONDS = 10.0
"""Time limit for opening a sandbox, which normally takes milliseconds. A machine that takes longer than this has
another problem."""

SHARED_MEMORY_BYTES = 64 * 1024 * 1024
"""Size limit of both /dev/shm and /run. Their files are in memory but belong to no process. They count towards the
session's memory and together never exceed it."""

_INFO, _LIFELINE, _FILES = 5, 6, 7  # descriptor numbers in `bwrap`; further files start at the last number
_INFO_BYTES = 4096  # more than `bwrap` reports
_HOLD = f"echo up; exec >/dev/null; while read -r -u {_LIFELINE} _; do :; done"
"""The script for a sandbox's first process. Its output reports that everything is mounted. It exits when the lifeline
is closed. Being a shell, it reaps orphans, and like any first process, it cannot be killed from inside."""

_USER = 1000  # the user id inside the sandbox, whichever user runs the gateway
_PASSWD = f"agent:x:{_USER}:{_USER}:agent:{HOME}:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
_GROUP = f"agent:x:{_USER}:\nnogroup:x:65534:\n"

_NO_NESTING = (
    "--unshare-user",
    "--disable-userns",
)  # no new user namespaces inside, and therefore no capabilities in them

SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
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
"""Writable files in /proc that affect the whole machine. For these files, the kernel checks only the owner, not
capabilities, so they are mounted read-only."""

_KEYS = "/proc/keys"  # lists all of the user's keys, including those of other programs and sandboxes

_ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "fonts", "gai.conf",
    "host.conf", "hosts", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf",
    "localtime", "magic", "mime.types", "nsswitch.conf", "os-release", "pki/ca-trust", "pki/tls/certs",
    "pki/tls/openssl.cnf", "protocols", "python3", "services", "shells", "ssl/certs", "ssl/openssl.cnf",
    "terminfo", "timezone",
)  # fmt: skip
"""The parts of /etc that programs need. None of these contain secrets; locally added files might."""


class BubblewrapBackend:
    name = "bubblewrap"
    sandboxed = True

    def __init__(self, spawner: Spawner, groups: Cgroups | None = None, *, open_seconds: float = OPEN_SECONDS) -> None:
        """Without `groups`, the limits that control groups would enforce are polled."""
        self._spawner = spawner
        self._groups = groups
        self._open_seconds = open_seconds
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
        """Returns the session's files, which are on this machine and can be used without opening the sandbox."""
        seen = [Mount(inner=str(folder), folder=folder, writable=False) for folder in spec.read_only]
        from tidegate.workspaces.files.local_files import LocalFiles  # imported with the first use of files

        return LocalFiles(
            (
                Mount(inner=INNER, folder=spec.folder, guarded=spec.project),
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
            # Older versions of bwrap without this option still isolate, but expose more of the kernel.
            why = await self._try(())
            self._nesting = ()
        if why is None and self._groups is not None:
            await to_thread.run_sync(self._groups.detect)
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
            async with asyncio.timeout(self._open_seconds):
                code = await child.wait()
                output = (await child.read_state()).decode(errors="replace").strip()
        except TimeoutError:
            return "bwrap hangs here."
        finally:
            await kill_and_close(child)
        return None if code == 0 else f"bwrap does not work here: {output or f'exit code {code}'}."

    async def open(self, spec: SandboxSpec) -> BubblewrapSandbox:
        programs = _programs()
        joining = sandbox_network.programs(programs.nsenter) if spec.network else None
        reached = (spec.folder, spec.home, spec.temporary, *spec.read_only)
        arguments = [*as_user_reaching(spec.user, *reached), programs.bwrap, *self._isolation(), *self._nesting]
        arguments += await to_thread.run_sync(_system, spec.limits.memory_bytes // 2)
        arguments += ["--bind", str(spec.temporary), "/tmp", "--bind", str(spec.temporary), "/var/tmp"]
        arguments += ["--bind", str(spec.home), HOME, "--bind", str(spec.folder), INNER, "--chdir", INNER]
        guarded = await to_thread.run_sync(find_mounts, spec.folder) if spec.project else ()
        for mount in guarded:
            way = "--bind" if mount.writable else "--ro-bind"
            arguments += [way, str(spec.folder / mount.path), f"{INNER}/{mount.path}"]
        for folder in spec.read_only:
            arguments += ["--ro-bind-try", str(folder), str(folder)]
        files = _files(spec)
        for number, path in enumerate(files, _FILES):
            arguments += ["--ro-bind-data", str(number), path]
        # This comes last, since it makes the root read-only. The root is in memory that no limit counts.
        arguments += ["--remount-ro", "/", "--info-fd", str(_INFO), "--"]
        # From here on, the process ends with `bwrap`. The option --die-with-parent would also apply to `bwrap` itself,
        # starting in the middle of its set-up.
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
            raise ToolFailed("A protected file of the project changed while the sandbox was being opened; try again.")
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
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as passed:
            # Use packets, because at the end of a stream, the kernel sends no signal while a process is about to read
            # from it.
            lifeline, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            failed.callback(lifeline.close)
            passed.callback(theirs.close)
            # Do not use a pipe: after the gateway has died, nobody would read from it, and `bwrap` would die from
            # writing to it.
            info = os.memfd_create("info")
            passed.callback(os.close, info)
            passing = {theirs.fileno(): _LIFELINE, info: _INFO}
            for number, text in enumerate(files.values(), _FILES):
                fd = _holding(text)
                passing[fd] = number
                passed.callback(os.close, fd)
            environment = self._environment(mark)
            child = await self._spawner.spawn(arguments, environment, passing=passing, within=seccomp.confined)
            async with _or_swept(child, mark):
                child.close_input()
                await _standing(child, self._open_seconds)
                first = int(msgspec.json.decode(os.pread(info, _INFO_BYTES, 0))["child-pid"])
                kill_when_closed(theirs, child)
                sandbox = BubblewrapSandbox(self._spawner, programs, spec, child, first, lifeline, group, guarded)
                failed.pop_all()
                if joining is not None:
                    async with _or_closed(sandbox):
                        await sandbox.connect(joining, environment)
            return sandbox

    def _environment(self, mark: str = "") -> dict[str, str]:
        """Returns the environment for `bwrap` itself. The environment identifies `bwrap`'s processes while they set up
        the sandbox."""
        return {"PATH": "/usr/bin:/bin", OWNER: self._spawner.owner, MARK: mark}

    def _isolation(self) -> list[str]:
        # The command itself is the first process, so `bwrap` exits only after reaping it.
        options = ["--unshare-all", "--as-pid-1", "--new-session", "--cap-drop", "ALL"]
        options += ["--clearenv", "--setenv", OWNER, self._spawner.owner]
        return [*options, "--uid", str(_USER), "--gid", str(_USER), "--hostname", "workspace"]


@contextlib.asynccontextmanager
async def _or_closed(sandbox: BubblewrapSandbox) -> AsyncIterator[None]:
    """Closes the sandbox if the block fails."""
    try:
        yield
    except BaseException:
        with CancelScope(shield=True):
            await sandbox.close()
        raise


def _holding(text: str) -> int:
    """Returns the read end of a pipe that contains this text, which must fit into the pipe's buffer."""
    out, into = os.pipe()
    try:
        os.write(into, text.encode())
    finally:
        os.close(into)
    return out


@contextlib.asynccontextmanager
async def _or_swept(child: ChildProcess, mark: str) -> AsyncIterator[None]:
    """If the block fails, kills the child and any orphans that it has left behind while setting up the sandbox."""
    try:
        async with killed_on_error(child):
            yield
    except BaseException:
        with CancelScope(shield=True):
            await to_thread.run_sync(guardian.sweep, f"{MARK}={mark}")
        raise


async def _standing(child: ChildProcess, seconds: float) -> None:
    """Waits until the sandbox is up."""
    try:
        async with asyncio.timeout(seconds):
            if not await child.read():
                output = (await child.read_state()).decode(errors="replace").strip()
                raise ToolFailed(f"The sandbox cannot be started: {output or 'bwrap gave no reason'}.")
    except TimeoutError:
        raise ToolFailed(f"The sandbox did not start within {seconds:g} s.") from None
    child.close_output()  # there is no more output, and this saves a descriptor per session


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
    """Returns the contents of files that exist only in sandboxes, by path."""
    files = {"/etc/passwd": _PASSWD, "/etc/group": _GROUP, _KEYS: ""}
    if spec.network:
        files["/etc/resolv.conf"] = sandbox_network.RESOLV_CONF
    return {path: text for path, text in files.items() if path != _KEYS or Path(path).exists()}


def _system(memory: int = SHARED_MEMORY_BYTES) -> list[str]:
    """Returns the `bwrap` arguments that mount the read-only system. Symbolic links in the root (merged /usr) stay
    links. Each tmpfs may use at most `memory`."""
    options: list[str] = []
    for name in SYSTEM:
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
